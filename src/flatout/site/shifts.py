"""Where the level of a configuration's speed shifted from run to run. Pure.

Rates are taken as logarithms. A shift is a split of some stretch of runs whose two sides differ by more than the runs
on each side differ among themselves (two-sample t with pooled variance), and by more than their own intervals allow.
The stretches are the whole and a fixed set of shorter ones, each half over the next (seeded binary segmentation:
Kovács, Bühlmann, Li and Munk, Biometrika 110, 2023), so a fall that was later mended is found, too; the shortest
stretch that shows a shift tells where (narrowest over threshold: Baranowski, Chen and Fryzlewicz, JRSS B 81, 2019).
The thresholds are Bonferroni's over all splits that are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.compare.ratio import NARROWEST, Estimate, Ratio, estimate, quantile_of, ratio
from flatout.site.boards import Pooled, pool

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


def shifts(series: Sequence[Dated]) -> list[Shift]:
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
