"""A configuration's speed over time: its operating points run by run, over all versions of its engine."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from flatout.compare.ratio import NARROWEST, Estimate, Ratio, estimate, quantile_of, ratio
from flatout.flags import Status
from flatout.show import numbers
from flatout.site.boards import KINDS, Board, Pooled, board_of, pool
from flatout.site.index import of_history
from flatout.site.schema import points, runs

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
    return [Series(board, held[board], change_points(held[board])) for board in order]


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


FALSE_ALARMS: Final = 0.01
"""The chance of a shift in a series whose level never changed; what was simulated is below it (tests)."""
LEAST_RUNS: Final = 4
"""Fewer tell nothing of how much runs differ by themselves."""
MOST_RUNS: Final = 200
_SHORTEST: Final = 6
_SHRINK: Final = math.sqrt(2)
_LEAST_SHIFT: Final = math.log1p(0.005)
"""Half a per cent: smaller steps are real at times, and nobody's business."""
_FLOOR: Final = math.log1p(NARROWEST) / 1.96

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


class Dated(NamedTuple):
    """One run's rate with its 95 % interval. `flatout`: the version that measured; None where it is not known."""

    at_us: int
    value: float
    low: float | None
    high: float | None
    public_id: str
    engine_version: str | None = None
    flatout: str | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """A step between run `index` − 1 and run `index` of the series. `change`: level after over level before, with its
    95 % interval. `sure` is False where only the newest run shows it. `engine_version`, `flatout`: (before, after)
    where they differ at the step."""

    index: int
    at_us: int
    before: Pooled
    after: Pooled
    change: Ratio
    sure: bool
    engine_version: tuple[str, str] | None = None
    flatout: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Sums:
    """Running sums over the series: of logarithms, their squares, and the squared errors within runs."""

    x: _Floats
    xx: _Floats
    ee: _Floats


def change_points(series: Sequence[Dated]) -> list[Shift]:
    """The level shifts of a series in order of time (ValueError otherwise), of its newest MOST_RUNS runs; none for
    fewer than LEAST_RUNS. Runs whose rate is no positive number are passed over."""
    if any(a.at_us > b.at_us for a, b in pairwise(series)):
        raise ValueError("a series goes from the oldest run to the newest")
    index = [i for i, dated in enumerate(series) if 0 < dated.value < math.inf][-MOST_RUNS:]
    n = len(index)
    if n < LEAST_RUNS:
        return []
    sums = _sums([series[i] for i in index])
    splits = _refined(sums, _splits(sums, n), n)
    if not splits:
        return []
    made = [estimate(series[i].value, series[i].low, series[i].high) for i in index]
    estimates = [one for one in made if one is not None]  # all: their values are above 0
    edges = [0, *splits, n]
    found = [
        _shift(series, index, estimates, (left, middle, right))
        for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False)
    ]
    return [shift for shift in found if shift is not None]


def _shift(
    series: Sequence[Dated], index: Sequence[int], runs: Sequence[Estimate], at: tuple[int, int, int]
) -> Shift | None:
    left, middle, right = at
    a, b = runs[left:middle], runs[middle:right]
    change, before, after = ratio(a, b), pool(a), pool(b)
    if before is None or after is None or change.p is None or change.p > FALSE_ALARMS:
        return None
    last, first = series[index[middle - 1]], series[index[middle]]
    return Shift(
        index[middle], first.at_us, before, after, change, min(len(a), len(b)) > 1,
        _changed(last.engine_version, first.engine_version), _changed(last.flatout, first.flatout),
    )  # fmt: skip


def _changed(before: str | None, after: str | None) -> tuple[str, str] | None:
    return (before or "not known", after or "not known") if before != after else None


def _sums(runs: Sequence[Dated]) -> _Sums:
    value, low, high = (
        np.array([np.nan if part is None else part for part in parts], dtype=np.float64)
        for parts in ([run.value for run in runs], [run.low for run in runs], [run.high for run in runs])
    )
    logs = np.log(value)
    logs -= logs[0]  # squares of small numbers keep their digits
    told = (low <= value) & (value <= high) & np.isfinite(high)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        far = np.maximum(np.log(value / np.maximum(low, 0)), np.log(high / value)) / 1.96
    errors = np.where(told, np.clip(far, _FLOOR, 1e3), 0.0)  # an interval that is not known hinders nothing
    zero = np.zeros(1)
    x, xx, ee = (np.concatenate([zero, np.cumsum(part)]) for part in (logs, logs * logs, errors * errors))
    return _Sums(x, xx, ee)


@dataclass(frozen=True, slots=True)
class _Looks:
    """All splits k of all stretches [i, j) that are looked at in a series of one length, with their thresholds: t for
    the spread between runs, and the normal's for their own intervals."""

    i: _Ints
    j: _Ints
    k: _Ints
    between: _Floats
    within: _Floats


def _splits(sums: _Sums, n: int) -> list[int]:
    """Where the level shifts, ascending. Half of the false alarms are left to the whole stretch, half to all shorter
    ones together."""
    shorter = _shorter(n)
    excess = _excess(sums, shorter)
    found: list[int] = []
    todo = [(0, n)]
    while todo:
        left, right = todo.pop()
        clear = np.flatnonzero((excess > 0) & (shorter.i >= left) & (shorter.j <= right))
        if len(clear):  # the shortest stretch, and in it the clearest split
            sizes = (shorter.j - shorter.i)[clear]
            clear = clear[sizes == sizes.min()]
            split = int(shorter.k[clear[np.argmax(excess[clear])]])
        else:
            most, split = _most(sums, (left, right), FALSE_ALARMS / 2 / max(1, right - left - 2), newest=right == n)
            if most <= 0:
                continue
        found.append(split)
        todo += [(left, split), (split, right)]
    return sorted(found)


@lru_cache(maxsize=2 * MOST_RUNS)
def _shorter(n: int) -> _Looks:
    windows = list(_windows(n))
    chance = FALSE_ALARMS / 2 / max(1, sum(max(0, right - left - 3) for left, right in windows))
    return _looks([(i, j, _at(i, j, newest=j == n)) for i, j in windows], chance)


def _looks(stretches: Sequence[tuple[int, int, range]], chance: float) -> _Looks:
    made = [(i, j, k, t) for i, j, at in stretches if at for t in (_far(chance, j - i - 2),) for k in at]
    i, j, k = (np.array([row[part] for row in made], dtype=np.int64) for part in range(3))
    between = np.array([row[3] for row in made], dtype=np.float64)
    return _Looks(i, j, k, between, np.full(len(made), _far(chance, 1e3)))


def _at(i: int, j: int, *, newest: bool) -> range:
    """Splits of a stretch: two runs or more on each side; the newest run may stand alone against LEAST_RUNS."""
    size = j - i
    last = j - 1 if newest and size > LEAST_RUNS else j - 2
    return range(i + 2, last + 1) if size >= LEAST_RUNS else range(0)


def _windows(n: int) -> Iterator[tuple[int, int]]:
    """Stretches shorter than the whole, the shortest first, each half over the next."""
    lengths: list[int] = []
    length = n / _SHRINK
    while length >= _SHORTEST:
        lengths.append(round(length))
        length /= _SHRINK
    for size in reversed(lengths):
        count = math.ceil((n - size) / (size / 2)) + 1
        for i in range(count):
            left = round(i * (n - size) / max(1, count - 1))
            yield left, left + size


def _excess(sums: _Sums, looks: _Looks) -> _Floats:
    """How far the gap at each split is above its threshold, relative to it; above 0: a shift."""
    i, j, k = looks.i, looks.j, looks.k
    n1, n2 = (k - i).astype(np.float64), (j - k).astype(np.float64)
    mean1, mean2 = (sums.x[k] - sums.x[i]) / n1, (sums.x[j] - sums.x[k]) / n2
    rest = (sums.xx[j] - sums.xx[i]) - n1 * mean1 * mean1 - n2 * mean2 * mean2
    spread = np.maximum(rest / (n1 + n2 - 2), _FLOOR * _FLOOR) * (1 / n1 + 1 / n2)
    within = (sums.ee[k] - sums.ee[i]) / (n1 * n1) + (sums.ee[j] - sums.ee[k]) / (n2 * n2)
    needed = np.maximum(looks.between * np.sqrt(spread), looks.within * np.sqrt(within))
    made: _Floats = np.abs(mean2 - mean1) / np.maximum(needed, _LEAST_SHIFT) - 1
    return made


def _most(sums: _Sums, stretch: tuple[int, int], chance: float, *, newest: bool) -> tuple[float, int]:
    """(how far the clearest split of a stretch is above its threshold, where it is)."""
    looks = _looks([(*stretch, _at(*stretch, newest=newest))], chance)
    if not len(looks.k):
        return -math.inf, stretch[0]
    excess = _excess(sums, looks)
    best = int(np.argmax(excess))
    return float(excess[best]), int(looks.k[best])


def _far(chance: float, df: float) -> float:
    return quantile_of(1 - chance / 2, df)


def _refined(sums: _Sums, splits: Sequence[int], n: int) -> list[int]:
    """Each split again where it is clearest between its neighbours."""
    edges = [0, *splits, n]
    for at in range(1, len(edges) - 1):
        _, edges[at] = max(
            (_most(sums, (edges[at - 1], edges[at + 1]), FALSE_ALARMS, newest=edges[at + 1] == n)),
            (-math.inf, edges[at]),
        )
    return sorted(set(edges[1:-1]))
