"""What is ranked: leaderboards, each at one stated operating point, with shared places and intervals; the page of a
model, a piece of hardware or an engine; and a configuration's speed over time.

Each is kept until what it is drawn from changes: the digest of that is its name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from flatout.site import boards, listing
from flatout.site.answers import READ
from flatout.site.boards import Board, BoardInfo, Kind, Standing
from flatout.site.drawings import BOARD, HISTORY, SUBJECT
from flatout.site.errors import NotFound
from flatout.site.history import MOST_RUNS, digest, history, shift_words
from flatout.site.html import page, part
from flatout.site.listing import Filter
from flatout.site.pages.pictures import axis, trace
from flatout.site.state import site
from flatout.site.subjects import Heading, SubjectKind, heading, subject

router: Final = APIRouter()
ROWS: Final = 100
NEWEST: Final = 20
LETTERS: Final = {"model": "m", "hardware": "h", "engine": "e"}
_KEY_CHARS: Final = 64
_COLUMNS: Final = 8
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
    with site(request).database.read() as conn:
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
    with site(request).database.read() as conn:
        rows = boards.top(
            conn, known.name, model=asked["m"] or None, hardware=asked["h"] or None, engine=asked["e"] or None,
            limit=ROWS,
        )  # fmt: skip
        choices = listing.choices(conn)
        near = [info for info in boards.all_boards(conn) if _beside(info.board, known)]
    # all plain values: what they are written out as tells them from any others
    of = hashlib.sha256(repr((known, rows, choices, asked, near)).encode()).hexdigest()
    _, drawn = site(request).drawings.part(BOARD, of, lambda: ({}, _board_body(known, rows, choices, asked, near)))
    return page(request, "board.html", f"{known.title} · leaderboard", board=known, drawn=drawn)


def _board_body(
    board: Board, rows: Sequence[Standing], choices: listing.Choices, typed: dict[str, str], near: Sequence[BoardInfo]
) -> str:
    return part(
        "board_body.html", board=board, rows=rows, shared=Counter(row.place for row in rows), choices=choices,
        end=axis(rows, open_ended=any(row.or_more for row in rows)), typed=typed, near=near, limit=ROWS,
        head=HEADS[board.kind][0], filtered=any(typed.values()),
        unknown=any(not row.interval_known and board.kind != "users" for row in rows),
        kept="?" + urlencode({k: v for k, v in typed.items() if v}) if any(typed.values()) else "",
    )  # fmt: skip


def grid(kind: Kind, known: Sequence[BoardInfo]) -> Grid:
    """The boards of a kind as a table; where there are too many, those that rank most configurations."""
    mine = [info for info in known if info.board.kind == kind]
    down, across = Counter[int](), Counter[int]()
    for info in mine:
        down[info.board.context_tokens] += info.configurations
        across[info.board.n] += info.configurations
    contexts, columns = (sorted(sorted(n, key=lambda k: (-n[k], k))[:MOST_SHOWN]) for n in (down, across))
    by = {(info.board.context_tokens, info.board.n): info for info in mine}
    rows = [(context, [by.get((context, n)) for n in columns]) for context in contexts]
    others = [i for i in mine if i.board.context_tokens not in contexts or i.board.n not in columns]
    return Grid(kind, *HEADS[kind], columns, rows, others[:200])


def _common(known: Sequence[BoardInfo]) -> list[BoardInfo]:
    """Of each kind the board that ranks most: the first to look at."""
    kinds = [[info for info in known if info.board.kind == kind] for kind in boards.KINDS]
    return [max(k, key=lambda info: (info.configurations, -info.board.context_tokens)) for k in kinds if k]


def _beside(one: Board, other: Board) -> bool:
    """Of the same kind, and at the same context or the same number: a step to the side."""
    near = one.n == other.n or one.context_tokens == other.context_tokens
    return near and one.kind == other.kind and one != other


# --- models, hardware, engines ----------------------------------------------------------------------------------------


@router.api_route("/models/{key}", methods=READ)
def model(request: Request, key: str) -> Response:
    """Where a model runs fastest. Raises NotFound."""
    return _subject(request, "model", key)


@router.api_route("/hardware/{key}", methods=READ)
def hardware(request: Request, key: str) -> Response:
    """What runs fastest on a piece of hardware. Raises NotFound."""
    return _subject(request, "hardware", key)


@router.api_route("/engines/{key}", methods=READ)
def engine(request: Request, key: str) -> Response:
    """What an engine serves fastest. Raises NotFound."""
    return _subject(request, "engine", key)


def _subject(request: Request, kind: SubjectKind, key: str) -> Response:
    with site(request).database.read() as conn:
        of = heading(conn, kind, key) if len(key) <= listing.LONGEST else None
    if of is None:
        raise NotFound(f"No public run here has this {kind}. All that there is stands in the list of runs.")
    _, drawn = site(request).drawings.part(SUBJECT, of.digest, lambda: ({}, _subject_body(request, of)))
    return page(request, "subject.html", f"{of.label} · {kind}", of=of, drawn=drawn)


def _subject_body(request: Request, of: Heading) -> str:
    here, letter = site(request), LETTERS[of.kind]
    with here.database.read() as conn:
        fastest = subject(conn, of)
        newest = listing.find(conn, Filter.from_query({letter: of.key}), limit=NEWEST, secret=here.settings.secret)
    points = {"single": fastest.single, "total": fastest.total, "prefill": fastest.prefill, "users": fastest.users}
    groups = [(HEADS[kind], [(p, axis(p.rows)) for p in points[kind]]) for kind in boards.KINDS if points[kind]]
    return part("subject_body.html", subject=fastest, groups=groups, rows=newest.rows, letter=letter)


# --- over time --------------------------------------------------------------------------------------------------------


@router.api_route("/history/{key}", methods=READ)
def over_time(request: Request, key: str) -> Response:
    """All public runs of a configuration, over the versions of its engine. Raises NotFound."""
    with site(request).database.read() as conn:
        of = digest(conn, key) if len(key) <= _KEY_CHARS else None
    if of is None:
        raise _no_history()
    words, drawn = site(request).drawings.part(HISTORY, of, lambda: _history_body(request, key))
    return page(request, "history.html", words["title"], about=words["about"], drawn=drawn)


def _history_body(request: Request, key: str) -> tuple[dict[str, str], str]:
    """(title and description, body). Raises NotFound where the last run has just gone."""
    with site(request).database.read() as conn:
        past = history(conn, key)
    if past is None:
        raise _no_history()
    series = []
    for one in past.series:
        many = f"{len(one.runs)} runs" if len(one.runs) != 1 else "1 run"
        label = f"{one.board.title} over {many}, {len(one.shifts)} level shifts"
        series.append((one, trace(one.runs, one.shifts, label), [shift_words(shift) for shift in one.shifts]))
    shown = {run.public_id: run for one, _, _ in series for run in one.runs}
    body = part(
        "history_body.html", history=past, series=series, most=MOST_RUNS,
        runs=sorted(shown.values(), key=lambda run: run.at_us, reverse=True),
        values={(one.board, run.public_id): run for one, _, _ in series for run in one.runs},
        columns=[one.board for one, _, _ in series][:_COLUMNS],
    )  # fmt: skip
    where = f"{past.model} on {past.hardware}"
    return {"title": f"{where} over time", "about": f"{where} with {past.engine}: {past.runs} runs over time."}, body


def _no_history() -> NotFound:
    return NotFound("No public run has this configuration. A run's page links to its history.")
