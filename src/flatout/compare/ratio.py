"""From measured values with intervals to their ratio, its interval and whether it shows a difference. Pure.

Everything is on the log scale, where a ratio is a difference. A standard error is kept for each side of a value, since
intervals need not be symmetric: the ratio's lower end takes B's lower and A's upper (MOVER: Zou and Donner, Statistics
in Medicine 27, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

from flatout.measure.student import t_cdf, t_quantile

LEVEL: Final = 0.05
"""The chance that two runs of equal speed are told apart anywhere in one family of cells."""
POWER: Final = 0.9
"""The chance with which the smallest difference that could have been shown would have been."""
NARROWEST: Final = 0.001
"""Relative half width below which no interval is believed: window edges and engine steps alone move a rate so much."""
_TAIL = 0.975
_Z = NormalDist().inv_cdf(_TAIL)
_LEAST_ERROR = math.log1p(NARROWEST) / _Z
_FARTHEST = 700.0  # of a logarithm: beyond it the exponential is no float any more
_MANY = 200.0  # degrees of freedom from which Student's t is taken for normal

How = Literal["within this run", "between repeats"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A positive value of one run, its 95 % interval [low, high], and the standard errors of its logarithm towards
    either end (`inf` where the interval reaches 0; None with `reason` where there is none), with degrees of freedom."""

    value: float
    below: float | None = None
    above: float | None = None
    df: float = math.inf
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """B / A. [low, high]: its 95 % interval, None with `reason` where none can be claimed. `p`: the chance of so large
    a difference at equal speed. `error`: standard error of the logarithm, the larger side's, with `df` degrees."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    error: float | None = None
    df: float = math.inf
    how: How | None = None
    reason: str | None = None


def estimate(
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    n: int | None = None,
    between: bool = False,
    reason: str | None = None,
) -> Estimate | None:
    """A value with its 95 % interval as an Estimate, or None if it is no positive number.

    `between`: the interval is Student's over `n` values. Intervals from batches, sections and ranks are taken as
    normal: their own quantile is wider, so the error comes out a little too large, never too small.
    """
    if value is None or not math.isfinite(value) or value <= 0 or not math.isfinite(math.log(value)):
        return None
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)) or not low <= value <= high:
        return Estimate(value, reason=reason or "it has no interval")
    df = float(min(n, 10**9) - 1) if between and n is not None and n > 1 else math.inf
    quantile = quantile_of(_TAIL, df)
    below = math.log(value / low) / quantile if low > 0 and value / low < math.inf else math.inf
    above = math.log(high / value) / quantile
    return Estimate(value, max(below, _LEAST_ERROR), max(above, _LEAST_ERROR), df, low, high)


def of_samples(value: float | None, samples: Sequence[float]) -> Estimate | None:
    """A middle value with the standard error of its samples' mean on the log scale."""
    logs = [math.log(s) for s in samples if math.isfinite(s) and s > 0]
    if value is None or not math.isfinite(value) or value <= 0:
        return None
    if len(logs) < 2:
        return Estimate(value, reason="one sample has no spread")
    df = float(len(logs) - 1)
    error = max(math.sqrt(_squares(logs) / df / len(logs)), _LEAST_ERROR)
    far = _exp(error * quantile_of(_TAIL, df))
    return Estimate(value, error, error, df, value / far, value * far)


def ratio(a: Sequence[Estimate], b: Sequence[Estimate]) -> Ratio:
    """Mean of B's runs over mean of A's (geometric). Raises ValueError if a side has no value.

    Within the runs: their intervals, independent. Between repeats, where a side has two runs or more: Student's t with
    the variance of both sides pooled. The wider of the two counts, and the less certain of the two chances.
    """
    if not a or not b:
        raise ValueError("a ratio needs a value on each side")
    change = _mean([math.log(e.value) for e in b]) - _mean([math.log(e.value) for e in a])
    value = _exp(change)
    found = [r for r in (_within(a, b, change), _between(a, b, change)) if r is not None]
    if not found:
        missing = next((e.reason for e in (*b, *a) if e.reason), None)
        return Ratio(value, reason=missing or "a side has no interval")
    widest = max(found, key=lambda r: (r.high or 0.0) / r.low if r.low else math.inf)
    return Ratio(value, widest.low, widest.high, max(r.p or 0.0 for r in found), widest.error, widest.df, widest.how)


def _within(a: Sequence[Estimate], b: Sequence[Estimate], change: float) -> Ratio | None:
    down, up = _side(b, "below"), _side(b, "above")
    a_up, a_down = _side(a, "above"), _side(a, "below")
    if down is None or up is None or a_up is None or a_down is None:
        return None
    lower, higher = _added(down, a_up), _added(up, a_down)
    return _judged(change, lower, higher, "within this run")


def _between(a: Sequence[Estimate], b: Sequence[Estimate], change: float) -> Ratio | None:
    df = len(a) + len(b) - 2
    if df < 1:
        return None
    squares = sum(_squares([math.log(e.value) for e in side]) for side in (a, b))
    error = math.sqrt(squares / df * (1 / len(a) + 1 / len(b)))
    both = (max(error, _LEAST_ERROR), float(df))
    return _judged(change, both, both, "between repeats")


_Error = tuple[float, float]  # a standard error and its degrees of freedom


def _side(runs: Sequence[Estimate], end: Literal["below", "above"]) -> _Error | None:
    """Standard error of the mean of the runs' logarithms towards one end; None where a run has none."""
    found = [(e.below if end == "below" else e.above, e.df) for e in runs]
    parts = [(error / len(runs), df) for error, df in found if error is not None]
    if len(parts) < len(runs):
        return None
    made = parts[0]
    for part in parts[1:]:
        made = _added(made, part)
    return made


def _added(one: _Error, two: _Error) -> _Error:
    """Independent errors together; degrees of freedom by Welch and Satterthwaite."""
    error = math.hypot(one[0], two[0])
    if not math.isfinite(error) or error <= 0:
        return error, math.inf
    weight = sum((e / error) ** 4 / df for e, df in (one, two))
    return error, 1 / weight if weight > 0 else math.inf


def _judged(change: float, lower: _Error, higher: _Error, how: How) -> Ratio:
    ends = [change - lower[0] * quantile_of(_TAIL, lower[1]), change + higher[0] * quantile_of(_TAIL, higher[1])]
    low, high = (_exp(end) if end > -math.inf else 0.0 for end in ends)
    # the end that lies towards "equal" decides
    error, df = lower if change > 0 else higher
    p = 2 * _tail(abs(change) / error, df) if change else 1.0
    most = max(lower, higher, key=lambda e: e[0] * quantile_of(_TAIL, e[1]))
    return Ratio(_exp(change), low, high, p, most[0], most[1], how)


def together(found: Sequence[Ratio]) -> Ratio:
    """Geometric mean of ratios (at least one), with its 95 % interval from their errors, taken as independent."""
    value = _exp(_mean([math.log(r.value) for r in found]))
    if any(r.error is None for r in found):
        return Ratio(value, reason="not every cell has an interval")
    error = math.hypot(*(r.error or 0.0 for r in found)) / len(found)
    far = _exp(error * _Z)
    return Ratio(value, value / far, value * far, error=error)


def least_shown(found: Ratio, level: float) -> float | None:
    """The smallest relative difference that would have been shown at that level with a chance of 90 %; None if any
    might have been missed."""
    if found.error is None or not math.isfinite(found.error):
        return None
    far = found.error * (quantile_of(1 - level / 2, found.df) + quantile_of(POWER, found.df))
    return math.expm1(far) if far < 5 else None


def level_of(chances: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """(limit that a chance must not exceed to show a difference, the limit that one more would have had to meet).

    Benjamini and Hochberg (1995): with no true difference in the family, one is seen anywhere with a chance of `level`
    at most; with true ones, at most that share of those seen is false. An empty family has the plain level.
    """
    m = len(chances)
    if not m:
        return level, level
    shown = 0
    for rank, p in enumerate(sorted(chances), start=1):
        if p <= level * (rank / m):
            shown = rank
    return level * (shown / m), level * (min(shown + 1, m) / m)


def quantile_of(p: float, df: float) -> float:
    """Student's t (the normal distribution's for very many degrees of freedom `df`): P(T < answer) = p."""
    if df >= _MANY:
        return NormalDist().inv_cdf(p)
    # rounded down, so that cells share what is dear to compute
    return t_quantile(p, max(1.0, math.floor(df * 10) / 10 if df < 10 else math.floor(df)))


def _tail(t: float, df: float) -> float:
    """P(T > t) for t >= 0."""
    return math.erfc(t / math.sqrt(2)) / 2 if df >= _MANY else t_cdf(-t, max(1.0, df))


def _exp(logarithm: float) -> float:
    """The exponential within what floats hold, above 0: of one beyond it, that of the farthest."""
    return math.exp(min(max(logarithm, -_FARTHEST), _FARTHEST))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.fsum((v - middle) ** 2 for v in values)
