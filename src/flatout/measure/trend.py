"""Did the speed change while it was measured: a drift over the window, or two levels that it switches between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

DRIFT_LEVEL: Final = 0.002
MODES_APART: Final = 0.1
"""Least distance of two levels, relative to the mean."""

LEAST_SWITCHES: Final = 12
"""Changes between two levels that tell how long each lasts."""

_BATCHES = 32
_MODES_SEPARATION = 6.0  # distance of two levels in standard deviations within them; a uniform spread has 3.5
_LEAST_IN_MODE = 0.08


@dataclass(frozen=True, slots=True)
class Drift:
    """`change`: fitted change over the window, relative to its mean rate. `p`: two-sided, corrected for
    autocorrelation. `detected`: significant and large enough to matter."""

    detected: bool
    change: float
    p: float


@dataclass(frozen=True, slots=True)
class Modes:
    """Two levels of speed: their means (the unit of what was given) and the share of samples on the lower one."""

    low: float
    high: float
    low_share: float


def batches(bins: F64, count: int = _BATCHES) -> F64:
    """`bins` (n,) as at most `count` equal batch means; a rest of bins at the front is left out."""
    size = max(1, len(bins) // count)
    kept = bins[len(bins) % size :]
    return np.asarray(kept.reshape(-1, size).mean(axis=1))


def drift(bins: F64, *, least_change: float) -> Drift | None:
    """Mann-Kendall trend test on batch rates (Mann 1945; ties after Kendall 1975), None if there are fewer than 16.

    The statistic's variance is multiplied by the effective-sample-size factor (1 + r) / (1 - r) of the detrended
    series' lag-1 correlation (Yue and Wang 2004), r corrected for small-sample bias. `detected` also needs a change
    (Theil-Sen slope x window, relative to the mean) of at least `least_change`.
    """
    values = batches(bins)
    n = len(values)
    if n < 16 or values.mean() <= 0:
        return None
    i, j = np.triu_indices(n, 1)
    rises = values[j] - values[i]
    slope = float(np.median(rises / (j - i)))
    score = float(np.sign(rises).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    change = slope * n / float(values.mean())
    if variance <= 0:
        return Drift(False, 0.0, 1.0)
    r = _rest_correlation(values - slope * np.arange(n))
    z = (abs(score) - 1.0) / math.sqrt(variance * (1.0 + r) / (1.0 - r)) if score else 0.0
    p = 2.0 * NormalDist().cdf(-max(z, 0.0))
    return Drift(p < DRIFT_LEVEL and abs(change) >= least_change, change, p)


def _rest_correlation(values: F64) -> float:
    """Lag-1 correlation corrected for the bias -(1 + 4 r) / n of an estimated mean and trend; within [0, 0.95]."""
    d = values - values.mean()
    total = float(d @ d)
    n = len(values)
    if total <= 1e-18 * float(values @ values):
        return 0.0
    r = float(d[1:] @ d[:-1]) / total
    return min(max(0.0, r + (2.0 + 4.0 * max(r, 0.0)) / n), 0.95)


def modes(values: Sequence[float] | F64, *, least: int = 2, least_run: int = 1) -> Modes | None:
    """Two clearly separate levels in `values` (batch rates, or one rate a repeat), or None.

    The split that minimises the variance within (Fisher 1958: optimal on sorted values). It counts if the levels are
    MODES_APART of the mean and six standard deviations of their insides apart, and each holds `least` values or more,
    `least_run` of them in a row.
    """
    given = np.asarray(values, dtype=np.float64)
    data = np.sort(given)
    n = len(data)
    least = max(least, math.ceil(_LEAST_IN_MODE * n) if n > 2 / _LEAST_IN_MODE else least)
    if n < max(2 * least, 10) or data.mean() <= 0:
        return None
    sums, squares = np.cumsum(data), np.cumsum(data * data)
    k = np.arange(least, n - least + 1)
    low, high = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (n - k)
    within = np.maximum(squares[-1] - k * low * low - (n - k) * high * high, 0.0)
    best = int(np.argmin(within))
    inside = math.sqrt(float(within[best]) / (n - 2)) if n > 2 else 0.0
    apart = float(high[best] - low[best])
    if apart < MODES_APART * float(data.mean()) or apart < _MODES_SEPARATION * inside:
        return None
    is_low = given < (data[k[best] - 1] + data[k[best]]) / 2.0
    if min(_longest_run(is_low), _longest_run(~is_low)) < least_run:
        return None
    return Modes(float(low[best]), float(high[best]), float(k[best]) / n)


def few_switches(values: Sequence[float] | F64, *, least_run: int = 1) -> int | None:
    """How often a series (bins or sections of the window, in order) changed between two levels; None where it has one
    level, or changed so often that the window shows how much time each takes. `least_run`: see `modes`."""
    series = batches(np.asarray(values, dtype=np.float64))
    levels = modes(series, least=3, least_run=least_run)
    if levels is None:
        return None
    switches = int(np.count_nonzero(np.diff(series < (levels.low + levels.high) / 2.0)))
    return switches if switches < LEAST_SWITCHES else None


def _longest_run(mask: npt.NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))
