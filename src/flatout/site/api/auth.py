"""Whose request it is: a token in the Authorization header, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from flatout.site.accounts import Who
from flatout.site.errors import Refused
from flatout.site.rescan import shown
from flatout.site.state import address, site
from flatout.site.throttle import Kind

SCHEME: Final = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of this site: made on its account page or by its operator (`flatout site token add NAME`).",
)
MISSING: Final = "Send a token of this site: Authorization: Bearer flatout_…"
WRONG: Final = "The token is not known here: it may have been revoked, have expired, or be another site's."


class Needs:
    """A request with a token that has one of the scopes (none given: any token)."""

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes

    def __call__(self, request: Request, response: Response, _: Annotated[object, Depends(SCHEME)]) -> Who:
        who = given(request, response)
        if who is None:
            raise HTTPException(401, MISSING, {"WWW-Authenticate": "Bearer"})
        if self.scopes and not any(who.may(scope) for scope in self.scopes):
            raise HTTPException(403, f"The token lacks the scope “{self.scopes[0]}”.")
        return who


def visitor(request: Request, response: Response, _: Annotated[object, Depends(SCHEME)]) -> Who | None:
    """Whoever asks: None without a token. One with a wrong token does not pass."""
    return given(request, response)


def given(request: Request, response: Response) -> Who | None:
    """Whose token the request brings; None without one. Raises 401 for one that does not work, TooMany."""
    sent = request.headers.getlist("authorization")
    if not sent:
        return None
    scheme, _, text = sent[0].partition(" ")
    good = len(sent) == 1 and scheme.lower() == "bearer"
    who = site(request).whose(text.strip() if good else "", address(request.scope))
    if who is None:
        raise HTTPException(401, WRONG, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
    limited(request, response, "requests", f"token:{who.token_id}")
    return who


def only_json(request: Request) -> None:
    """Other types could come from a form on another site without the browser asking us first. Raises 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "Send the content as application/json, not compressed.")


def only_known(request: Request) -> None:
    """A misspelt filter must not become a list of everything. Raises Refused."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        there = ", ".join(sorted(known)) or "none"
        raise Refused(f"query.{shown(unknown[0])}", f"there is no such parameter here; there are: {there}")


def limited(request: Request, response: Response, kind: Kind, *keys: str) -> None:
    """Counts the request under each key and tells the tightest limit. Raises TooMany."""
    limits = [left for key in keys if (left := site(request).throttle.check(kind, key)) is not None]
    if limits:
        response.headers.update(min(limits, key=lambda left: left.remaining).headers())


AnyToken = Annotated[Who, Depends(Needs())]
Publisher = Annotated[Who, Depends(Needs("publish"))]
PublisherOrModerator = Annotated[Who, Depends(Needs("publish", "moderate"))]
Moderator = Annotated[Who, Depends(Needs("moderate"))]
Visitor = Annotated[Who | None, Depends(visitor)]
JsonOnly: Final = [Depends(only_json)]
OPTIONAL: Final[dict[str, Any]] = {"security": [{}]}
"""For the OpenAPI document of a route that a Visitor may use."""
