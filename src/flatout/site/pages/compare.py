"""Runs side by side: which is faster, by how much, and whether the runs can tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from flatout.compare import letter_of
from flatout.site import listing
from flatout.site.answers import READ, piece
from flatout.site.drawings import Drawn
from flatout.site.errors import NotFound, Refused, Tombstone, sentence
from flatout.site.html import page
from flatout.site.index import RunRow
from flatout.site.listing import Filter
from flatout.site.session import viewer
from flatout.site.state import address, site

router: Final = APIRouter()
MOST_SIDES: Final = 12
OFFERED: Final = 12
_ID: Final = re.compile(r"[a-z2-7]{12}")
NOTHING: Final[Drawn] = {}, {"body": piece(b"")}


@dataclass(frozen=True, slots=True)
class Side:
    """A run that is compared: its letter, and the addresses with it in front and without it."""

    letter: str
    row: RunRow
    first: str | None
    without: str


@router.api_route("/compare", methods=READ)
def compare(request: Request) -> Response:
    """The runs named by `r`, the first being what the others are compared with; fewer than two: what to pick."""
    here, who = site(request), viewer(request)
    asked = list(dict.fromkeys(_id(text) for text in request.query_params.getlist("r") if text.strip()))
    rows: list[RunRow] = []
    missing: list[str] = []
    for run_id in asked[: MOST_SIDES + 1]:
        try:
            rows.append(here.visible(who, run_id))
        except (NotFound, Tombstone) as error:
            missing.append(f"{run_id[:40]}: {error}")
    rows = rows[:MOST_SIDES]
    many, refused = len(rows) > 1, None
    words, drawn = NOTHING
    count = partial(here.throttle.check, "compare", address(request.scope))
    try:
        if many:
            words, drawn = here.drawings.comparison(rows, count)
    except Refused as error:
        refused = sentence(error.text[:1].upper() + error.text[1:])
    ids = [row.public_id for row in rows]
    return page(
        request, "compare.html", words.get("title", "Compare runs"), sheets=("compared.css",), rows=rows,
        status=422 if refused else 404 if missing and not rows else 200,
        sides=[_side(ids, number, row) for number, row in enumerate(rows)], drawn=drawn,
        compared=many and not refused and "error" not in words, error=refused or words.get("error"),
        missing=missing, too_many=len(asked) > MOST_SIDES, most=MOST_SIDES, offered=_offered(request, rows),
        swapped=f"/compare?{_query(ids[1::-1] + ids[2:])}" if many else None, query=_query(ids),
        full=len(rows) >= MOST_SIDES,
    )  # fmt: skip


def _id(text: str) -> str:
    """A run's id out of itself or its link."""
    return text.strip().split("#")[0].split("?")[0].rstrip("/").rpartition("/")[2]


def _side(ids: list[str], number: int, row: RunRow) -> Side:
    others = [i for i in ids if i != row.public_id]
    return Side(
        letter_of(number), row, f"/compare?{_query([row.public_id, *others])}" if number else None,
        f"/compare?{_query(others)}" if others else "/compare",
    )  # fmt: skip


def _query(ids: list[str]) -> str:
    return urlencode([("r", i) for i in ids if _ID.fullmatch(i)])


def _offered(request: Request, rows: list[RunRow]) -> list[RunRow]:
    """Runs that are worth comparing with the first: of its model, else the newest."""
    here = site(request)
    near = Filter(model=rows[0].model_key or None) if rows else Filter()
    with here.database.read() as conn:
        others = listing.find(conn, near, limit=OFFERED + len(rows), secret=here.settings.secret).rows
    known = {row.public_id for row in rows}
    return [row for row in others if row.public_id not in known][:OFFERED]
