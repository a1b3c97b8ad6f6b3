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
from flatout.site.errors import Refused
from flatout.site.index import RunRow
from flatout.site.listing import Filter
from flatout.site.pages.answers import READ
from flatout.site.pages.templating import page, site_of
from flatout.site.pages.viewer import viewer
from flatout.site.schema import names

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
    site = site_of(request)
    typed = {name: request.query_params.get(name, "") for name in FIELDS}
    refused, status = None, 200
    asked, found = Filter(), listing.Page([])
    latest: RunRow | None = None
    with site.database.read() as conn:
        numbers, there = counted(conn), listing.choices(conn)
        try:
            asked = Filter.from_query(request.query_params)
            found = listing.find(conn, asked, limit=ROWS, secret=site.settings.secret, viewer=looks(viewer(request)))
        except Refused as error:
            refused, status = error.text, 422
        if numbers.runs:
            latest = _latest(conn, asked, found, site.settings.secret)
    query = asked.to_query()
    return page(
        request, "runs.html", "Speed tests of LLM servers", status=status, scripted=not numbers.runs,
        rows=found.rows, notes=found.notes, refused=refused, typed=_fields(typed), numbers=numbers,
        choices=there, latest=latest, chips=chips(typed, found.labels),
        more_open=any(typed[name] for name in ("p", "s", "c", "from", "to")),
        next=f"/?{_with(query, after=found.next)}" if found.next else None,
        first=f"/?{_with(query)}".rstrip("?") if asked.after else None,
        local=site.settings.results_dir,
    )  # fmt: skip


def looks(who: Who | None) -> listing.Viewer:
    """What this person may see in lists besides what is public."""
    if who is None:
        return listing.Viewer()
    return listing.Viewer(who.account_id, moderator=who.may("moderate"))


def counted(conn: Connection) -> Numbers:
    """From the names, which are few, not from the runs."""
    query = select(names.c.kind, func.count(), func.sum(names.c.runs)).where(names.c.runs > 0).group_by(names.c.kind)
    found = {kind: (int(many), int(all_runs)) for kind, many, all_runs in conn.execute(query)}
    none = (0, 0)
    engines, all_runs = found.get("engine", none)
    return Numbers(all_runs, found.get("model", none)[0], found.get("hardware", none)[0], engines)


def chips(typed: Mapping[str, str], labels: Mapping[str, str]) -> list[Chip]:
    """The filters that were asked for, each with the address that leaves it out."""
    active = {name: value for name, value in typed.items() if value}
    return [
        Chip(
            FIELDS[name],
            labels.get(listing.KEYS.get(name, ""), value),
            "/?" + urlencode({k: v for k, v in active.items() if k != name}),
        )
        for name, value in active.items()
    ]


def _latest(conn: Connection, asked: Filter, found: listing.Page, secret: str) -> RunRow | None:
    if asked == Filter() and found.rows:
        return found.rows[0]
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
