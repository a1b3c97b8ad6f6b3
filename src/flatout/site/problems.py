"""What a visitor is told when something does not work: a page for people, problem+json (RFC 9457) for programs."""

from __future__ import annotations

import errno
import json
import logging
import secrets
import traceback
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flatout.site.errors import SiteError, TooMany, Unavailable
from flatout.site.html import error_page
from flatout.site.rescan import shown
from flatout.site.state import site

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


def too_large(limit: int) -> Refusal:
    size = f"{limit / 1024 / 1024:.3g} MiB" if limit >= 1024 * 1024 else f"{limit / 1024:.3g} KiB"
    return Refusal(413, f"The content is larger than the {size} that may be sent here.")


def install(app: FastAPI) -> None:
    """Errors of the routes go to `anything`; those of the middleware, `Faults` catches."""

    async def handle(request: Request, error: Exception) -> Response:
        return anything(request, error)

    for kind in (SiteError, RequestValidationError, HTTPException, OperationalError, InterfaceError, OSError):
        app.add_exception_handler(kind, handle)


def anything(request: Request, error: Exception) -> Response:
    """The answer to any error at all; in plain words where the page with them cannot be made either."""
    try:
        return _answer_to(request, error)
    except Exception as second:
        log.error("the answer to %s failed: %s: %s", type(error).__name__, type(second).__name__, _places(second))
        return Response(BARE, 500, {"Cache-Control": "no-store"}, "text/plain; charset=utf-8")


def _answer_to(request: Request, error: Exception) -> Response:
    if (text := lack(error)) is not None:
        site(request).reasons.say(text, error)  # what the driver said is the operator's business alone
        return answer(request, 503, text, headers={"Retry-After": str(RETRY_S)})
    if isinstance(error, SiteError) and error.status != 500:
        headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, TooMany) else {}
        return answer(request, error.status, str(error), error.members, headers)
    if isinstance(error, ClientDisconnect):
        return answer(request, 400, "The content ended before it was whole.")  # nobody reads it any more
    if isinstance(error, RequestValidationError):
        return _invalid(request, error)
    if isinstance(error, HTTPException):
        usual = error.detail in ("Not Found", "Method Not Allowed", "There was an error parsing the body")
        text = WORDS.get(error.status_code, error.detail) if usual else error.detail
        return answer(request, error.status_code, text, headers=error.headers)
    return _fault(request, error)


def lack(error: BaseException) -> str | None:
    """Why the site cannot work at the moment, if that is what the error says: the database or the disk."""
    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, (OperationalError, InterfaceError)):
        return "The database does not answer. Nothing was changed; try again."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The site's disk is full. Nothing was changed; tell its operator."
    return None


def _invalid(request: Request, error: RequestValidationError) -> Response:
    """The first thing that is wrong, by place, without what was sent."""
    mistakes = error.errors()
    if mistakes[0]["type"] == "json_invalid":
        return answer(request, 400, "The content is not JSON, or cut off.")
    place = ".".join(shown(str(part)) for part in mistakes[0]["loc"])[:200]  # a key may be anything, a secret too
    more = f" ({len(mistakes)} places in all)" if len(mistakes) > 1 else ""
    return answer(request, 422, f"{place}: {mistakes[0]['msg']}{more}", {"place": place})


def _fault(request: Request, error: BaseException) -> Response:
    """The answer to what nobody expected: an id that stands in the log, too, beside the place in the code. Neither the
    error's text (it may hold what was sent) nor the visitor's address is logged."""
    number = secrets.token_hex(4)
    route = getattr(request.scope.get("route"), "path", "no route")
    log.error("fault %s: %s in %s %s: %s", number, type(error).__name__, request.method, route, _places(error))
    text = f"Something went wrong that should not have. Tell the site's operator the number {number}."
    return answer(request, 500, text, {"id": number})


def _places(error: BaseException) -> str:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)


def answer(
    request: Request, status: int, text: str, members: Mapping[str, str | None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """The error as its reader wants it. `members`: more of the problem (place, id, …); None is left out."""
    title = TITLES.get(status, "That did not work")
    known = {name: value for name, value in (members or {}).items() if value is not None}
    if wants_page(request.url.path, request.headers.get("accept", "")):
        response = error_page(request, status, title, text, known)
        response.headers.update(headers or {})
        return response
    content = {"type": "about:blank", "title": title, "status": status, "detail": text, **known}
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, dict(headers or {}), PROBLEM)


def wants_page(path: str, accept: str) -> bool:
    """A person's browser asks, not a program."""
    if path.startswith("/api/") or path.endswith(".json"):
        return False
    return "text/html" in accept or not any(kind in accept for kind in ("json", "image/", "text/csv"))
