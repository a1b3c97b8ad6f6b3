"""The page of a model, a piece of hardware or an engine: what is fastest there, and by how much."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, exists, select

from flatout.compare.ratio import Ratio
from flatout.show import numbers
from flatout.site.boards import KINDS, Board, Kind, Standing, fastest, lead, parse
from flatout.site.schema import boards, names, runs
from flatout.site.schema import standings as ranked

SubjectKind = Literal["model", "hardware", "engine"]
ROWS: Final = 5
POINTS: Final = 4
"""Operating points of each kind: those that most configurations of the whole site have."""
_KEYS: Final = {"model": ranked.c.model_key, "hardware": ranked.c.hardware_key, "engine": ranked.c.engine_key}


@dataclass(frozen=True, slots=True)
class Fastest:
    """One operating point: the best configuration of each of what competes there, at most ROWS. `ahead`: the first's
    speed over the second's, None for a single row and on boards that count requests. `words`: by how much."""

    board: Board
    rows: list[Standing]
    ahead: Ratio | None
    words: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What is quickly told of a subject, and all that its page depends on: `stamp` changes with its runs (`counts`),
    `boards`, the operating points that are shown, with everybody's."""

    kind: SubjectKind
    key: str
    label: str
    runs: int
    stamp: int
    boards: tuple[Board, ...]

    @property
    def digest(self) -> str:
        """SHA-256 in hex: of two headings with the same one, the pages are the same."""
        parts = (self.kind, self.key, self.label, str(self.runs), str(self.stamp), *(b.name for b in self.boards))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Subject:
    """`runs`: public ones. What competes: on a model's page hardware with engine, on hardware's model with engine, on
    an engine's model with hardware. The four kinds are never one ranking: `single` is one request's decode speed,
    `total` that of many together."""

    kind: SubjectKind
    key: str
    label: str
    runs: int
    newest_us: int | None
    single: list[Fastest]
    total: list[Fastest]
    prefill: list[Fastest]
    users: list[Fastest]
    among: str


_AMONG: Final = {
    "model": ("hardware with engine", ("hardware_key", "engine_key")),
    "hardware": ("model with engine", ("model_key", "engine_key")),
    "engine": ("model with hardware", ("model_key", "hardware_key")),
}


def heading(conn: Connection, kind: SubjectKind, key: str) -> Heading | None:
    """The model, hardware or engine of that key; None where no public run has it."""
    wanted = select(names.c.label, names.c.runs, names.c.stamp).where(names.c.kind == kind, names.c.key == key)
    known = conn.execute(wanted).first()
    if known is None or known.runs <= 0:
        return None
    here = tuple(board for each in KINDS for board in _common(conn, kind, key, each))
    return Heading(kind, key, known.label, known.runs, known.stamp, here)


def subject(conn: Connection, of: Heading) -> Subject:
    """What there is to tell of it."""
    kind, key = of.kind, of.key
    column = {"model": runs.c.model_key, "hardware": runs.c.hardware_key, "engine": runs.c.engine_key}[kind]
    newest = select(runs.c.started_us).where(column == key, runs.c.state == "public")
    newest_us = conn.scalar(newest.order_by(runs.c.started_us.desc(), runs.c.id.desc()).limit(1))
    points = _fastest(conn, kind, key, of.boards)
    made = {each: [point for point in points if point.board.kind == each] for each in KINDS}
    return Subject(
        kind, key, of.label, of.runs, newest_us, made["single"], made["total"], made["prefill"], made["users"],
        _AMONG[kind][0],
    )  # fmt: skip


def _common(conn: Connection, kind: SubjectKind, key: str, board_kind: Kind) -> list[Board]:
    """The boards of a kind that most configurations of the site stand on, of those that there are here."""
    here = exists().where(_KEYS[kind] == key, ranked.c.board == boards.c.board)
    order = (boards.c.configurations.desc(), boards.c.board.desc())
    common = select(boards.c.board).where(boards.c.kind == board_kind, here).order_by(*order).limit(POINTS)
    known = [board for name in conn.scalars(common) if (board := parse(name)) is not None]
    return sorted(known, key=lambda b: (b.context_tokens, b.n))


def _fastest(conn: Connection, kind: SubjectKind, key: str, known: Sequence[Board]) -> list[Fastest]:
    made = []
    for board, rows in fastest(conn, known, kind, key, _AMONG[kind][1], ROWS).items():
        ahead = lead(rows[0], rows[1]) if len(rows) > 1 and board.kind != "users" else None
        made.append(Fastest(board, rows, ahead, words(board.kind, rows, ahead)))
    return made


def words(kind: Kind, rows: Sequence[Standing], ahead: Ratio | None) -> str:
    """By how much the first is ahead of the second, or that no difference is shown."""
    if len(rows) < 2:
        return "the only one measured here"
    first, second = rows[0], rows[1]
    if kind == "users":
        many = f"{numbers.count(first.value)}{' or more' if first.or_more else ''}"
        if second.place == first.place:
            return f"{many}, as many as the next"
        return f"{many}; the next {numbers.count(second.value)}{' or more' if second.or_more else ''}"
    shared = sum(row.place == first.place for row in rows[1:])
    if shared:
        others = "the next" if shared == 1 else f"the next {shared}"
        return f"no difference shown to {others}"
    if ahead is None or ahead.low is None or ahead.high is None:
        return "faster than the next"
    unknown = "" if first.interval_known and second.interval_known else ", an unknown interval taken as ±3 %"
    return (
        f"{numbers.percent(ahead.value - 1)} faster than the next "
        f"(95 % interval {numbers.percent(ahead.low - 1)} to {numbers.percent(ahead.high - 1)}{unknown})"
    )
