"""A configuration's speed over time: its operating points run by run, over all versions of its engine."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select

from flatout.flags import Status
from flatout.show import numbers
from flatout.site.boards import KINDS, Board, board_of
from flatout.site.rows import of_history
from flatout.site.schema import points, runs
from flatout.site.shifts import MOST_RUNS, Dated, Shift, shifts

__all__ = ["MOST_RUNS", "Dated", "History", "Series", "Shift", "history", "shift_words", "shifts"]

MOST_SERIES: Final = 16
_CHUNK: Final = 200


@dataclass(frozen=True, slots=True)
class Series:
    """One operating point, from the oldest run to the newest, with its level shifts."""

    board: Board
    runs: list[Dated]
    shifts: list[Shift]


@dataclass(frozen=True, slots=True)
class History:
    """`model` to `speculation`: of the newest run. `runs`: public ones in all; the newest MOST_RUNS are in the series.
    `series`: those of most runs, at most MOST_SERIES, in the order of kinds, contexts and concurrencies. `versions`:
    the engine's, the newest first."""

    history_key: str
    model_key: str
    model: str
    hardware_key: str
    hardware: str
    engine_key: str
    engine: str
    precision: str
    speculation: str
    launch_known: bool
    runs: int
    versions: list[str]
    series: list[Series]


def digest(conn: Connection, history_key: str) -> str | None:
    """SHA-256 in hex of the runs that `history` tells of; None where there is none. What a run's row tells never
    changes while it is public; one that was hidden and shown again has another `state_us`."""
    found = conn.execute(of_history(select(runs.c.content_hash, runs.c.state_us), history_key, MOST_RUNS)).all()
    return hashlib.sha256(str(found).encode()).hexdigest() if found else None


def history(conn: Connection, history_key: str) -> History | None:
    """None where no public run has that key."""
    found = conn.execute(of_history(select(runs), history_key, MOST_RUNS)).all()
    if not found:
        return None
    newest = found[0]
    told = {row.id: json.loads(row.summary) for row in found}
    return History(
        history_key, newest.model_key, newest.model, newest.hardware_key, newest.hardware, newest.engine_key,
        newest.engine, newest.precision, newest.speculation, bool(told[newest.id].get("launch_known")), len(found),
        list(dict.fromkeys(row.engine_version for row in found if row.engine_version)),
        _series(conn, [row for row in reversed(found) if row.run_state in ("finished", "interrupted")], told),
    )  # fmt: skip


def _series(conn: Connection, ordered: Sequence[Any], told: dict[int, Any]) -> list[Series]:
    by_run: dict[int, list[Any]] = {}
    ids = [row.id for row in ordered]
    wanted = (points.c.run_id, points.c.phase, points.c.context_tokens, points.c.concurrency, points.c.rate_tok_s,
              points.c.rate_low, points.c.rate_high)  # fmt: skip
    for i in range(0, len(ids), _CHUNK):
        chosen = points.c.run_id.in_(ids[i : i + _CHUNK])
        valid = select(*wanted).where(chosen, points.c.status == Status.VALID, points.c.rate_tok_s.is_not(None))
        for cell in conn.execute(valid).all():
            by_run.setdefault(cell.run_id, []).append(cell)
    held: dict[Board, list[Dated]] = {}
    for row in ordered:
        flatout = told[row.id].get("flatout")
        for _, phase, context, n, rate, low, high in by_run.get(row.id, ()):
            board = board_of(phase, context, n)
            if board is not None:
                dated = Dated(row.started_us, rate, low, high, row.public_id, row.engine_version, flatout)
                held.setdefault(board, []).append(dated)
    counts = Counter({board: len(dated) for board, dated in held.items()})
    chosen_boards = [board for board, _ in counts.most_common(MOST_SERIES)]
    order = sorted(chosen_boards, key=lambda b: (KINDS.index(b.kind), b.context_tokens, b.n))
    return [Series(board, held[board], shifts(held[board])) for board in order]


def shift_words(shift: Shift) -> str:
    """A shift in a sentence, with its interval, what changed at it, and whether one run alone shows it."""
    change = shift.change
    way = "faster" if change.value > 1 else "slower"
    text = f"{numbers.percent(abs(change.value - 1))} {way}"
    if change.low is not None and change.high is not None:
        ends = sorted((change.low - 1, change.high - 1))
        text += f" (95 % interval {_signed(ends[0])} to {_signed(ends[1])})"
    changed = [
        f"{name} {pair[0]} → {pair[1]}"
        for name, pair in (("engine", shift.engine_version), ("flatout", shift.flatout))
        if pair is not None
    ]
    text += "; at the step: " + ", ".join(changed) if changed else "; same engine and flatout version on both sides"
    return text if shift.sure else text + "; only the newest run shows it, so it may be that run alone"


def _signed(share: float) -> str:
    return ("+" if share > 0 else "−" if share < 0 else "") + numbers.percent(abs(share))
