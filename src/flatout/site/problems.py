"""What a visitor is told when something does not work: a page for people, problem+json (RFC 9457) for programs."""

from __future__ import annotations

import errno
import json
import logging
import secrets
import traceback
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flatout.site import reasons
from flatout.site.errors import Conflict, Forbidden, Gone, NotFound, Refused, SiteError, TooMany, Unavailable
from flatout.site.rescan import shown

log: Final = logging.getLogger("flatout.site")

PROBLEM: Final = "application/problem+json"
RETRY_S: Final = 10
"""After so long a database or disk that failed may be asked again."""

TITLES: Final[Mapping[int, str]] = {
    400: "The request cannot be understood",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "That cannot be done here",
    406: "Not available in that form",
    408: "The request came too slowly",
    409: "That does not fit what is there",
    410: "Gone",
    411: "The length is missing",
    413: "Too large",
    414: "The address is too long",
    415: "The content is of another type than expected",
    421: "This site has another name",
    422: "The content is not as it must be",
    429: "Too many requests",
    500: "A fault in the site",
    503: "The site cannot answer at the moment",
}

WORDS: Final[Mapping[int, str]] = {
    400: "The request is malformed.",
    404: "There is nothing at this address.",
    405: "This address answers to other methods only.",
}


BARE: Final = "Something went wrong that should not have, and the page that says so failed, too. Tell the operator.\n"


class Refusal(HTTPException):
    """A request that is refused while its body still comes in."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text, {"Connection": "close"})


class Tombstone(Gone):
    """A run that is not shown any more: why, since when (`at`, RFC 3339), and what took its place."""

    def __init__(self, state: str, reason: str | None, at: str | None, successor: str | None) -> None:
        told = f"This run was {state}" + (f" on {at[:10]}" if at else "") + (f": {reason}" if reason else "")
        super().__init__(sentence(told) + (f" The run {successor} took its place." if successor else ""))
        self.state, self.reason, self.at, self.successor = state, reason, at, successor


def sentence(text: str) -> str:
    """With a full stop, unless it ends with a sign of its own."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def wants_page(path: str, accept: str) -> bool:
    """A person's browser asks, not a program."""
    if path.startswith("/api/") or path.endswith(".json"):
        return False
    return "text/html" in accept or not any(kind in accept for kind in ("json", "image/", "text/csv"))


def answer(
    request: Request, status: int, text: str, *, headers: Mapping[str, str] | None = None, **extra: Any
) -> Response:
    """The error as its reader wants it. `extra`: more members of the problem (place, id, …); None is left out."""
    title = TITLES.get(status, "That did not work")
    told = {name: value for name, value in extra.items() if value is not None}
    if wants_page(request.url.path, request.headers.get("accept", "")):
        from flatout.site.pages import errors as pages

        response = pages.page(request, status, title, text, **told)
        response.headers.update(headers or {})
        return response
    content = {"type": "about:blank", "title": title, "status": status, "detail": text, **told}
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, dict(headers or {}), PROBLEM)


def fault(request: Request, error: BaseException) -> Response:
    """The answer to what nobody expected: an id that stands in the log, too, beside the place in the code. Neither the
    error's text (it may hold what was sent) nor the visitor's address is logged."""
    number = secrets.token_hex(4)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)
    route = getattr(request.scope.get("route"), "path", "no route")
    log.error("fault %s: %s in %s %s: %s", number, type(error).__name__, request.method, route, places)
    text = f"Something went wrong that should not have. Tell the site's operator the number {number}."
    return answer(request, 500, text, id=number)


def lack(error: BaseException) -> str | None:
    """Why the site cannot work at the moment, if that is what the error says: the database or the disk."""
    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, (OperationalError, InterfaceError)):
        return "The database does not answer. Nothing was changed; try again."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The site's disk is full. Nothing was changed; tell its operator."
    return None


def unavailable(request: Request, text: str, error: BaseException) -> Response:
    """503, with the reason in the log: what the driver said, which is the operator's business alone."""
    state = request.app.state
    state.reasons.say(text, error, reasons.secrets_of(state.site.settings))
    return answer(request, 503, text, headers={"Retry-After": str(RETRY_S)})


def anything(request: Request, error: Exception) -> Response:
    """The answer to any error at all; in plain words where the page with them cannot be made either."""
    try:
        return _answered(request, error)
    except Exception as second:
        places = " < ".join(f"{f.name} ({f.filename}:{f.lineno})" for f in traceback.extract_tb(second.__traceback__))
        log.error("the answer to %s failed: %s: %s", type(error).__name__, type(second).__name__, places)
        return Response(BARE, 500, {"Cache-Control": "no-store"}, "text/plain; charset=utf-8")


def _answered(request: Request, error: Exception) -> Response:
    text = lack(error)
    if text is not None:
        return unavailable(request, text, error)
    if isinstance(error, SiteError):
        return _site_error(request, error)
    if isinstance(error, ClientDisconnect):
        return answer(request, 400, "The content ended before it was whole.")  # nobody reads it any more
    if isinstance(error, RequestValidationError):
        return _invalid(request, error)
    if isinstance(error, HTTPException):
        return _http(request, error)
    return fault(request, error)


def install(app: FastAPI) -> None:
    """Errors of the routes go to `anything`; those of the middleware, `Faults` catches."""
    app.state.reasons = reasons.Reasons()

    async def handle(request: Request, error: Exception) -> Response:
        return anything(request, error)

    for kind in (SiteError, RequestValidationError, HTTPException, OperationalError, InterfaceError, OSError):
        app.add_exception_handler(kind, handle)


def _site_error(request: Request, error: SiteError) -> Response:
    if isinstance(error, TooMany):
        return answer(request, 429, str(error), headers={"Retry-After": str(max(1, error.retry_after_s))})
    if isinstance(error, Refused):
        return answer(request, 413 if error.too_large else 422, str(error), place=error.place or None)
    if isinstance(error, Tombstone):
        return answer(
            request, 410, str(error), state=error.state, reason=error.reason, at=error.at, successor=error.successor
        )
    for kind, status in ((NotFound, 404), (Gone, 410), (Forbidden, 403), (Conflict, 409)):
        if isinstance(error, kind):
            return answer(request, status, str(error))
    return fault(request, error)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    """The first thing that is wrong, by place, without what was sent."""
    found = error.errors()
    first = found[0]
    if first["type"] == "json_invalid":
        return answer(request, 400, "The content is not JSON, or cut off.")
    place = ".".join(shown(str(part)) for part in first["loc"])[:200]  # a key may be anything, a secret too
    more = f" ({len(found)} places in all)" if len(found) > 1 else ""
    return answer(request, 422, f"{place}: {first['msg']}{more}", place=place)


def _http(request: Request, error: HTTPException) -> Response:
    usual = error.detail in ("Not Found", "Method Not Allowed", "There was an error parsing the body")
    text = WORDS.get(error.status_code, error.detail) if usual else error.detail
    return answer(request, error.status_code, text, headers=error.headers)
