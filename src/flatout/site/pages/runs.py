"""The list of runs, newest first, with what there is to filter by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection, func, select

from flatout.site import listing
from flatout.site.accounts import Who
from flatout.site.answers import READ
from flatout.site.errors import Refused
from flatout.site.html import page
from flatout.site.index import RunRow
from flatout.site.listing import Filter
from flatout.site.schema import names
from flatout.site.session import viewer
from flatout.site.state import site

router: Final = APIRouter()
ROWS: Final = 50
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
FIELDS: Final[Mapping[str, str]] = {
    "q": "search", "m": "model", "h": "hardware", "e": "engine", "p": "precision", "s": "speculation", "c": "context",
    "from": "from", "to": "to",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chip:
    """An active filter, and the address without it."""

    word: str
    text: str
    without: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """How much there is, by kind, in public."""

    runs: int
    models: int
    hardware: int
    engines: int


@router.api_route("/", methods=READ)
def runs(request: Request) -> Response:
    """The runs that fit the filters in the address; what cannot be understood is said on the page."""
    here = site(request)
    typed = {name: request.query_params.get(name, "") for name in FIELDS}
    refused, wanted, page_of = None, Filter(), listing.Page([])
    latest: RunRow | None = None
    with here.database.read() as conn:
        numbers, choices = counted(conn), listing.choices(conn)
        try:
            wanted = Filter.from_query(request.query_params)
            page_of = listing.find(conn, wanted, limit=ROWS, secret=here.settings.secret, viewer=_sees(viewer(request)))
        except Refused as error:
            refused = error.text
        if numbers.runs:
            latest = _latest(conn, wanted, page_of, here.settings.secret)
    query = wanted.to_query()
    return page(
        request, "runs.html", "Speed tests of LLM servers", status=422 if refused else 200, scripted=not numbers.runs,
        rows=page_of.rows, notes=page_of.notes, refused=refused, typed=_fields(typed), numbers=numbers,
        choices=choices, latest=latest, chips=chips(typed, page_of.labels),
        more_open=any(typed[name] for name in ("p", "s", "c", "from", "to")),
        next=f"/?{_with(query, after=page_of.next)}" if page_of.next else None,
        first=f"/?{_with(query)}".rstrip("?") if wanted.after else None,
        local=here.settings.results_dir,
    )  # fmt: skip


def _sees(who: Who | None) -> listing.Viewer:
    """What this person may see in lists besides what is public."""
    if who is None:
        return listing.Viewer()
    return listing.Viewer(who.account_id, moderator=who.may("moderate"))


def counted(conn: Connection) -> Numbers:
    """From the names, which are few, not from the runs."""
    query = select(names.c.kind, func.count(), func.sum(names.c.runs)).where(names.c.runs > 0).group_by(names.c.kind)
    many = {"model": 0, "hardware": 0, "engine": 0}
    runs_of = dict(many)
    for kind, names_of, runs_all in conn.execute(query):
        many[kind], runs_of[kind] = int(names_of), int(runs_all)
    return Numbers(runs_of["engine"], many["model"], many["hardware"], many["engine"])


def chips(typed: Mapping[str, str], labels: Mapping[str, str]) -> list[Chip]:
    """The filters that were asked for, each with the address that leaves it out."""
    active = {name: value for name, value in typed.items() if value}
    without = {name: "/?" + urlencode({k: v for k, v in active.items() if k != name}) for name in active}
    return [Chip(FIELDS[n], labels.get(listing.KEYS.get(n, ""), text), without[n]) for n, text in active.items()]


def _latest(conn: Connection, wanted: Filter, page_of: listing.Page, secret: str) -> RunRow | None:
    if wanted == Filter() and page_of.rows:
        return page_of.rows[0]
    rows = listing.find(conn, Filter(), limit=1, secret=secret).rows
    return rows[0] if rows else None


def _fields(typed: Mapping[str, str]) -> dict[str, str]:
    """What was typed, for the form; a date's field takes no other text."""
    shown = {name: value[: listing.LONGEST] for name, value in typed.items()}
    return shown | {name: "" for name in ("from", "to") if not _DAY.fullmatch(shown[name])}


def _with(query: str, after: str | None = None) -> str:
    """The filter's query with another position, or with none."""
    parts = [part for part in query.split("&") if part and not part.startswith("after=")]
    return "&".join([*parts, *([urlencode({"after": after})] if after else [])])
