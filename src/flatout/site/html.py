"""From values to a page: the templates, what every page holds, and the headers that guard it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError

from flatout import __version__
from flatout.show import numbers
from flatout.show.page import frame, values
from flatout.show.safe import clean
from flatout.site import times
from flatout.site.answers import Piece, asset_url, in_pieces, piece, whole
from flatout.site.errors import SiteError, sentence
from flatout.site.session import csrf_field, viewer
from flatout.site.state import site

LONGEST: Final = 4_000
"""Characters of any one text in a page."""
NOTICES: Final[Mapping[str, tuple[str, str]]] = {
    "out": ("/account", "You are signed out."),
    "revoked": ("/account", "The token is revoked. Nothing that used it works any more."),
    "revoked-all": (
        "/account",
        "The token is revoked, with those that were made with it. Nothing that used them works any more.",
    ),
    "deleted": ("/account", "Your account is closed, and the content of your runs is deleted."),
    "reported": ("/r/", "Thank you. The moderators will look at this run."),
    "approved": ("/r/", "The run is public now."),
    "hidden": ("/r/", "The run is hidden now; its page says why."),
    "settled": ("/moderate", "The report is settled."),
}
"""What a page says after a form, by `said` in its address, and where."""
NOTHING: Final[Mapping[str, str]] = {}
_SLOT: Final = "\0"
"""No text in a page holds it: `_shown` takes it out."""


@cache
def script() -> str:
    """The report page's own script: it copies, sorts and walks. Every page works without it."""
    return frame.asset("page.js")


@cache
def policy(*, scripted: bool, framed: bool = False) -> str:
    """The Content-Security-Policy: one script, known by its hash; sheets of our own; forms to ourselves."""
    parts = [
        "default-src 'none'",
        "style-src 'self'",
        *([f"script-src {frame.source(script())}"] if scripted else []),
        "img-src 'self' data:",
        "form-action 'none'" if framed else "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors *" if framed else "frame-ancestors 'none'",
    ]
    return "; ".join(parts)


def page(
    request: Request, template: str, title: str, *, status: int = 200, scripted: bool = False,
    sheets: tuple[str, ...] = (), headers: Mapping[str, str] | None = None,
    drawn: Mapping[str, Piece] | None = None, form: Mapping[str, str] = NOTHING, errors: Mapping[str, str] = NOTHING,
    **content: Any,
) -> Response:  # fmt: skip
    """The page, or 304 where the reader has it already. `title`: for the tab; `scripted`: it holds the script;
    `sheets`: further style sheets by name; `drawn`: what was drawn before, each to stand once where the template has
    its name; `form`: what was typed into its form, with `errors` by field."""
    try:
        who = viewer(request)
    except (SiteError, SQLAlchemyError):
        who = None  # the page that says so must not fail for the same reason
    where, notice = NOTICES.get(request.query_params.get("said", ""), ("/", ""))
    text = part(
        template, title=title, site=site(request).settings, who=who, at=request.url.path, sheets=sheets,
        script=Markup(script()) if scripted else None,  # our own file, whole
        version=__version__, csrf_field=lambda: csrf_field(request), form=form, errors=errors,
        notice=notice if request.url.path.startswith(where) else "",
        **{name: Markup(f"{_SLOT}{name}{_SLOT}") for name in drawn or {}}, **content,
    )  # fmt: skip
    headers = {"Content-Security-Policy": policy(scripted=scripted), **(headers or {})}
    status = 422 if errors else status
    kind = "text/html; charset=utf-8"
    if drawn is None:
        return whole(request, text.encode(), kind, status=status, headers=headers)
    # what was drawn stands in its places, and between them what was made now
    pieces = [drawn[between] if i % 2 else piece(between.encode(), 0) for i, between in enumerate(text.split(_SLOT))]
    return in_pieces(request, pieces, kind, status=status, headers=headers)


def part(template: str, **content: Any) -> str:
    """A template filled. What stands within a page and is the same for everybody can be kept."""
    return environment().get_template(template).render(**content)


def error_page(request: Request, status: int, title: str, text: str, members: Mapping[str, str | None]) -> Response:
    """What happened, what it means, what to do. `members`: `place`, what in the request was wrong; `id`, the number of
    a fault, for the operator; `state`, `reason`, `at`, `successor` of a run that is not shown any more."""
    state = members.get("state")
    if not members.get("place"):  # what is wrong at a place begins with its name
        text = sentence(text[:1].upper() + text[1:])
    return page(
        request, "stone.html" if state else "error.html", title if not state else f"A run that was {state}",
        status=status, headers={"Cache-Control": "no-store"} if status >= 500 else None, code=status, words=text,
        heading=title, number=members.get("id"), state=state, reason=members.get("reason"), since=members.get("at"),
        successor=members.get("successor"),
    )  # fmt: skip


def see_other(path: str) -> RedirectResponse:
    """After a form: on to a page of our own that can be loaded again without sending the form again. `path`: made by
    us, never by a visitor."""
    assert path.startswith("/") and not path.startswith("//")
    return RedirectResponse(path, status_code=303, headers={"Cache-Control": "no-store"})


@cache
def environment() -> Environment:
    templates = Environment(
        loader=PackageLoader("flatout.site", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False, finalize=_shown,
    )  # fmt: skip
    templates.filters |= {
        "rate": values.rate, "count": values.count, "context": numbers.context, "size": numbers.size,
        "change": lambda ratio: f"{'+' if ratio > 1 else '−' if ratio < 1 else ''}{numbers.percent(abs(ratio - 1))}",
        "interval": lambda row: numbers.interval(row.value, row.low, row.high),
        "day": times.day, "moment": times.moment, "iso": lambda us: times.when(us) or "",
        "path": lambda text: quote(str(text), safe=""), "lines": lines, "broken": broken, "query": urlencode,
    }  # fmt: skip
    templates.globals["asset"] = asset_url
    return templates


def _shown(value: Any) -> Any:
    """What an expression puts into the page: markup as it is, text harmless and on one line, nothing as `—`."""
    if value is None:
        return numbers.NONE
    if not isinstance(value, str) or isinstance(value, Markup) or hasattr(value, "__html__"):
        return value
    if len(value) <= LONGEST and value.isascii() and value.isprintable() and "  " not in value:
        return value
    return clean(value, LONGEST)


def lines(text: str) -> Markup:
    """A text of several lines, each made harmless."""
    return Markup("\n").join(escape(clean(line, LONGEST)) for line in text.splitlines()[:500])


def broken(text: str | None) -> Markup:
    """A long version or name, which may break behind its signs and nowhere else."""
    parts = re.split(r"(?<=[+._/-])", clean(text or "", LONGEST))
    return Markup("<wbr>").join(escape(part) for part in parts)
