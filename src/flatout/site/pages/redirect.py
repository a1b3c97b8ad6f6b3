"""After a form: on to a page that can be loaded again without sending the form again."""

from __future__ import annotations

from fastapi.responses import RedirectResponse


def see_other(path: str) -> RedirectResponse:
    """303 to a page of our own. `path`: made by us, never by a visitor."""
    assert path.startswith("/") and not path.startswith("//")
    return RedirectResponse(path, status_code=303, headers={"Cache-Control": "no-store"})
