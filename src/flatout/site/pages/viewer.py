"""Who looks at a page: the session names a token, and ends as soon as the token does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import Request

from flatout.site.accounts import Who, who_by_token
from flatout.site.errors import Forbidden

if TYPE_CHECKING:
    from flatout.site.app import Site

TOKEN: Final = "token"
"""The session's key for the number of the token it was opened with, and the token's epoch then."""


def viewer(request: Request) -> Who | None:
    """The person signed in; None for a visitor. Looked up once a request. Raises Unavailable."""
    known = getattr(request.state, "viewer", None)
    if known is not None:
        return known if isinstance(known, Who) else None
    session = request.scope.get("session") or {}
    kept = session.get(TOKEN)
    found: Who | None = None
    if kept is not None:
        if isinstance(kept, list) and len(kept) == 2 and all(isinstance(part, int) for part in kept):
            site: Site = request.app.state.site
            with site.database.read() as conn:
                found = who_by_token(conn, kept[0], kept[1])
        if found is None:
            request.session.clear()
    request.state.viewer = found if found is not None else "nobody"
    return found


def signed_in(request: Request, scope: str | None = None) -> Who:
    """The person signed in. Raises Forbidden: nobody is, or the token they signed in with may not."""
    found = viewer(request)
    if found is None:
        raise Forbidden("Sign in first: this page is for those who have an account here.")
    if scope is not None and not found.may(scope):
        raise Forbidden(f"The token that you signed in with may not do this: it lacks the scope “{scope}”.")
    return found


def enter(request: Request, who: Who) -> None:
    """Opens the session anew, so that nothing from before it can be used in it."""
    request.session.clear()
    request.session[TOKEN] = [who.token_id, who.epoch]
    request.state.viewer = who


def leave(request: Request) -> None:
    request.session.clear()
    request.state.viewer = "nobody"
