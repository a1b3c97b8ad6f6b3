"""From values to a page: the templates, what every page holds, and the headers that guard it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError

from flatout import __version__
from flatout.show import numbers
from flatout.show.page import frame, values
from flatout.show.safe import clean
from flatout.site.errors import SiteError
from flatout.site.pages import csrf
from flatout.site.pages.answers import Piece, in_pieces, piece, whole
from flatout.site.pages.viewer import viewer

if TYPE_CHECKING:
    from flatout.site.app import Site

LONGEST: Final = 4_000
"""Characters of any one text in a page."""
_ASSETS: Final[Mapping[str, tuple[str, str, str]]] = {
    "report.css": ("flatout.show.page", "page.css", "text/css; charset=utf-8"),
    "compared.css": ("flatout.show.page", "compared.css", "text/css; charset=utf-8"),
    "site.css": ("flatout.site.static", "site.css", "text/css; charset=utf-8"),
    "icon.svg": ("flatout.site.static", "icon.svg", "image/svg+xml"),
}
_SLOT: Final = "\0"
"""No text in a page holds it: `_shown` takes it out."""


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """A static file and its media type; None where there is none of that name."""
    if name not in _ASSETS:
        return None
    folder, file, kind = _ASSETS[name]
    return resources.files(folder).joinpath(file).read_bytes(), kind


@cache
def asset_url(name: str) -> str:
    """Its address, which changes with its content, so that it may be kept for good."""
    found = asset(name)
    assert found is not None, name
    return f"/static/{name}?v={hashlib.sha256(found[0]).hexdigest()[:12]}"


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


def site_of(request: Request) -> Site:
    found: Site = request.app.state.site
    return found


def page(
    request: Request,
    template: str,
    title: str,
    *,
    status: int = 200,
    scripted: bool = False,
    sheets: tuple[str, ...] = (),
    headers: Mapping[str, str] | None = None,
    drawn: Mapping[str, Piece] | None = None,
    **content: Any,
) -> Response:
    """The page, or 304 where the reader has it already. `title`: for the tab; `scripted`: it holds the script;
    `sheets`: further style sheets by name; `drawn`: what was drawn before, each to stand once where the template has
    its name."""
    site = site_of(request)
    try:
        who = viewer(request)
    except (SiteError, SQLAlchemyError):
        who = None  # the page that says so must not fail for the same reason
    slots = {name: Markup(f"{_SLOT}{name}{_SLOT}") for name in drawn or {}}
    made = (
        environment()
        .get_template(template)
        .render(
            title=title, site=site.settings, who=who, at=request.url.path, sheets=sheets,
            script=Markup(script()) if scripted else None,  # our own file, whole
            version=__version__, csrf_field=lambda: csrf.field(request), **slots, **content,
        )
    )  # fmt: skip
    told = {"Content-Security-Policy": policy(scripted=scripted), **(headers or {})}
    kind = "text/html; charset=utf-8"
    if drawn is None:
        return whole(request, made.encode(), kind, status=status, headers=told)
    return in_pieces(request, filled(made, drawn), kind, status=status, headers=told)


def part(template: str, **content: Any) -> str:
    """What stands within a page and is the same for everybody, so that it can be kept."""
    return environment().get_template(template).render(**content)


def filled(made: str, drawn: Mapping[str, Piece]) -> list[Piece]:
    """The page in pieces: what was drawn in its places, and between them what was made now."""
    parts = made.split(_SLOT)
    return [drawn[part] if number % 2 else piece(part.encode(), 0) for number, part in enumerate(parts)]


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("flatout.site", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_shown,
    )
    made.filters |= {
        "rate": values.rate,
        "count": values.count,
        "context": numbers.context,
        "size": numbers.size,
        "change": lambda ratio: f"{'+' if ratio > 1 else '−' if ratio < 1 else ''}{numbers.percent(abs(ratio - 1))}",
        "interval": lambda row: numbers.interval(row.value, row.low, row.high),
        "day": day,
        "moment": moment,
        "iso": iso,
        "path": lambda text: quote(str(text), safe=""),
        "lines": lines,
        "broken": broken,
        "query": urlencode,
    }
    made.globals |= {"asset": asset_url}
    return made


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


def _at(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1e6, UTC)


def day(us: int | None) -> str:
    """Microseconds since 1970 as a day, UTC."""
    try:
        return numbers.NONE if us is None else _at(us).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "no date"


def moment(us: int | None) -> str:
    """The same with the minute."""
    try:
        return numbers.NONE if us is None else _at(us).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "no date"


def iso(us: int) -> str:
    """The same for machines: `datetime=` of an element."""
    try:
        return _at(us).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""
