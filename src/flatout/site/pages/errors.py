"""What went wrong, as a page: what happened, what it means, what to do; and the stone of a run that is gone."""

from __future__ import annotations

from fastapi import Request, Response

from flatout.site.pages.templating import page as made
from flatout.site.problems import sentence


def page(request: Request, status: int, title: str, text: str, **told: str | None) -> Response:
    """The page of an error. `told`: `place`, what in the request was wrong; `id`, the number of a fault, for the
    operator; `state`, `reason`, `at`, `successor` of a run that is not shown any more."""
    state = told.get("state")
    if not told.get("place"):  # what is wrong at a place begins with its name
        text = sentence(text[:1].upper() + text[1:])
    return made(
        request, "stone.html" if state else "error.html", title if not state else f"A run that was {state}",
        status=status, headers={"Cache-Control": "no-store"} if status >= 500 else None, code=status, words=text,
        heading=title, number=told.get("id"), state=state, reason=told.get("reason"), since=told.get("at"),
        successor=told.get("successor"),
    )  # fmt: skip
