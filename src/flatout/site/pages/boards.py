"""Leaderboards: each at one stated operating point, with shared places and intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from flatout.site import boards, listing
from flatout.site.boards import Board, BoardInfo, Kind, Standing
from flatout.site.errors import NotFound
from flatout.site.pages import workshop
from flatout.site.pages.answers import READ
from flatout.site.pages.rendered import BOARD
from flatout.site.pages.templating import page, part, site_of
from flatout.site.pages.whiskers import axis, whisker

router: Final = APIRouter()
ROWS: Final = 100
HEADS: Final[dict[Kind, tuple[str, str]]] = {
    "single": ("One request alone", "Decode speed of a single stream: what one person feels."),
    "total": ("All requests together", "Tokens a second of many simultaneous requests: what a machine gives."),
    "prefill": ("Prefill", "How fast a cold prompt is read: what decides the wait for the first token."),
    "users": ("How many at once", "The most simultaneous requests of which each still gets a stated speed."),
}
MOST_SHOWN: Final = 16
"""Contexts and columns of a table of operating points; the rest is named below it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Boards of one kind, a row a context. `columns`: concurrency, tok/s for each, or one."""

    kind: Kind
    head: str
    about: str
    columns: list[int]
    rows: list[tuple[int, list[BoardInfo | None]]]
    others: list[BoardInfo]


@router.api_route("/boards", methods=READ)
def all_boards(request: Request) -> Response:
    """Every operating point that is ranked."""
    with site_of(request).database.read() as conn:
        known = boards.all_boards(conn)
        tops = [(info, boards.top(conn, info.board.name, limit=3)) for info in _common(known)]
    grids = [grid(kind, known) for kind in boards.KINDS]
    leaders = [(info, rows) for info, rows in tops if rows]
    return page(request, "boards.html", "Leaderboards", grids=[g for g in grids if g.rows], leaders=leaders)


@router.api_route("/boards/{name}", methods=READ)
def board(request: Request, name: str) -> Response:
    """One ranking, of all or of a model's, a piece of hardware's or an engine's configurations. Raises NotFound."""
    known = boards.parse(name)
    if known is None:
        raise NotFound("There is no such leaderboard. The operating points that are ranked stand at /boards.")
    asked = {key: request.query_params.get(key, "")[: listing.LONGEST] for key in ("m", "h", "e")}
    with site_of(request).database.read() as conn:
        rows = boards.top(
            conn, known.name, model=asked["m"] or None, hardware=asked["h"] or None, engine=asked["e"] or None,
            limit=ROWS,
        )  # fmt: skip
        there = listing.choices(conn)
        near = [info for info in boards.all_boards(conn) if _beside(info.board, known)]
    # all plain values: what they are written out as tells them from any others
    of = hashlib.sha256(repr((known, rows, there, asked, near)).encode()).hexdigest()
    _, made = workshop.part(request, BOARD, of, lambda: ({}, _body(known, rows, there, asked, near)))
    return page(request, "board.html", f"{known.title} · leaderboard", board=known, drawn=made)


def _body(
    board: Board, rows: Sequence[Standing], choices: listing.Choices, typed: dict[str, str], near: Sequence[BoardInfo]
) -> str:
    end = axis(rows, open_ended=any(row.or_more for row in rows))
    lines = [(row, whisker(row, end, open_ended=row.or_more), shared(rows, row.place)) for row in rows]
    return part(
        "board_body.html", board=board, lines=lines, choices=choices, typed=typed, near=near, limit=ROWS,
        head=HEADS[board.kind][0], filtered=any(typed.values()), unknown=any(not _known(row) for row in rows),
        kept=_kept(typed),
    )  # fmt: skip


def grid(kind: Kind, known: Sequence[BoardInfo]) -> Grid:
    """The boards of a kind as a table; where there are too many, those that rank most configurations."""
    mine = [info for info in known if info.board.kind == kind]
    weight: dict[int, int] = {}
    across: dict[int, int] = {}
    for info in mine:
        weight[info.board.context_tokens] = weight.get(info.board.context_tokens, 0) + info.configurations
        across[info.board.n] = across.get(info.board.n, 0) + info.configurations
    contexts = sorted(sorted(weight, key=lambda c: (-weight[c], c))[:MOST_SHOWN])
    columns = sorted(sorted(across, key=lambda n: (-across[n], n))[:MOST_SHOWN])
    by = {(info.board.context_tokens, info.board.n): info for info in mine}
    rows = [(context, [by.get((context, n)) for n in columns]) for context in contexts]
    others = [i for i in mine if i.board.context_tokens not in contexts or i.board.n not in columns]
    return Grid(kind, *HEADS[kind], columns, rows, others[:200])


def shared(rows: Sequence[Standing], place: int) -> int:
    """How many rows have that place."""
    return sum(row.place == place for row in rows)


def _common(known: Sequence[BoardInfo]) -> list[BoardInfo]:
    """Of each kind the board that ranks most: the first to look at."""
    made = []
    for kind in boards.KINDS:
        mine = [info for info in known if info.board.kind == kind]
        if mine:
            made.append(max(mine, key=lambda info: (info.configurations, -info.board.context_tokens)))
    return made


def _beside(one: Board, other: Board) -> bool:
    """Of the same kind, and at the same context or the same number: a step to the side."""
    if one.kind != other.kind or one == other:
        return False
    return one.n == other.n or one.context_tokens == other.context_tokens


def _known(row: Standing) -> bool:
    return row.interval_known or row.board.kind == "users"


def _kept(asked: dict[str, str]) -> str:
    """The filters, for links to other boards."""
    active = {name: value for name, value in asked.items() if value}
    return "?" + urlencode(active) if active else ""
