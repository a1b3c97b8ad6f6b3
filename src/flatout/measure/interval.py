"""95 % intervals: of a rate by batch means, of a percentile by ranks, between repeats."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from flatout.measure.pauses import PauseShare
from flatout.measure.student import beta_inc, t_quantile
from flatout.measure.trend import few_switches
from flatout.record import Rate

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

CONFIDENCE: Final = 0.95
BINS: Final = 256
"""Equal bins that a window is cut into; batches are 1, 2, 4, … of them."""
LEAST_BATCHES: Final = 12
LEAST_TOKENS: Final = 48
MOST_SAMPLES: Final = 100_000.0
"""No percentile is believed to be known better than from so many independent samples."""

WANDERED: Final = "the speed wandered slowly: the window is too short for an interval"

_LEVEL = 0.2  # of the lag-1 test; generous, so that batches grow while there is any sign of correlation
_TOO_CORRELATED = 0.9
_WINDOW = 5.0  # Sokal's c
_CYCLES_PER_DF = 3.0
_KERNEL_PARTS = 24
_Z: Final = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)


@dataclass(frozen=True, slots=True)
class MeanError:
    """The error of a mean of correlated bins: its variance, Student's degrees of freedom, the number of batches behind
    it, and their skewness / (6 sqrt(batches))."""

    variance: float
    df: float
    batches: int
    skew: float


def mean_error(bins: F64) -> MeanError | str:
    """The error of the mean of `bins` (n,), or the reason why none can be claimed.

    Batch means (Law, Simulation Modeling and Analysis, 9.5.3), batches doubled until von Neumann's lag-1 test finds
    no correlation, the variance corrected for what remains by (1 + r) / (1 - r) as in Skart (Tafazzoli, Wilson, Lada,
    Steiger 2011); never below the variance by the integrated autocorrelation time of the bins (Sokal 1997).
    """
    n = len(bins)
    if n < LEAST_BATCHES:
        return "the window is too short for an interval"
    scale = float(np.abs(bins).max())
    if scale == 0.0:
        return MeanError(0.0, n - 1.0, n, 0.0)
    bins = bins / scale  # squares of very small rates would vanish
    batches = n
    while True:
        size = n // batches
        means = bins[: size * batches].reshape(batches, size).mean(axis=1)
        lag1 = _lag1(means)
        if abs(lag1 + 1.0 / batches) * math.sqrt(batches) < NormalDist().inv_cdf(1.0 - _LEVEL / 2.0):
            break
        if batches // 2 < LEAST_BATCHES:
            break
        batches //= 2
    rest = lag1 + (1.0 + 4.0 * max(lag1, 0.0)) / batches  # small-sample bias of r (Marriott and Pope 1954)
    if rest > _TOO_CORRELATED:
        return WANDERED
    inflate = (1.0 + max(rest, 0.0)) / (1.0 - max(rest, 0.0))
    time = _correlation_time(bins)
    if time >= n:
        return WANDERED
    variance = max(
        float(means.var(ddof=1)) / batches * inflate, float(bins.var(ddof=1)) * time / n if time > 1 else 0.0
    )
    df = max(2.0, min((batches - 1) / inflate, n / max(time, 1.0) / _CYCLES_PER_DF))
    return MeanError(variance * scale * scale, df, batches, _skewness(means) / (6.0 * math.sqrt(batches)))


def batch_interval(bins: F64, *, looks: int = 1) -> tuple[float, float, int] | str:
    """Distances (below, above) from the mean of `bins` (n,) to its 95 % interval's ends, and the number of batches; or
    the reason why none can be claimed.

    Student's t with the error of `mean_error`, the quantile corrected for skewness (Willink 2005) as in Skart. `looks`:
    Bonferroni's correction for how many ends the window could have had.
    """
    mean = mean_error(bins)
    if isinstance(mean, str):
        return mean
    t = t_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0 / looks, round(mean.df, 1))
    error = math.sqrt(mean.variance)
    return _willink(t, mean.skew) * error, -_willink(-t, mean.skew) * error, mean.batches


def _lag1(values: F64) -> float:
    d = values - values.mean()
    total = float(d @ d)
    return float(d[1:] @ d[:-1]) / total if total > 1e-18 * float(values @ values) else 0.0


def _skewness(values: F64) -> float:
    d = values - values.mean()
    spread = float((d * d).mean())
    return float((d**3).mean()) / spread**1.5 if spread > 1e-18 * float((values * values).mean()) else 0.0


def _willink(t: float, beta: float) -> float:
    """Willink (2005), Communications in Statistics 34: G(t) of the skewness-corrected t statistic."""
    if abs(beta) < 1e-6:
        return t
    return (float(np.cbrt(1.0 + 6.0 * beta * (t - beta))) - 1.0) / (2.0 * beta)


def _correlation_time(bins: F64) -> float:
    """Integrated autocorrelation time 1 + 2 sum(rho), in bins, with Sokal's self-consistent window."""
    n = len(bins)
    d = bins - bins.mean()
    spectrum = np.fft.rfft(d, 2 * n)
    cov = np.fft.irfft(spectrum * np.conj(spectrum))[:n] / n
    if cov[0] <= 1e-18 * float((bins * bins).mean()):
        return 1.0
    lags = np.arange(1, n // 2)
    times = 1.0 + 2.0 * np.cumsum(cov[1 : n // 2] / cov[0])
    wide_enough = np.flatnonzero(lags >= _WINDOW * np.maximum.accumulate(np.maximum(times, 0.2)))
    if not len(wide_enough):
        return float(n)
    at = int(wide_enough[0])
    return max(float(times[at]) * (1.0 + (2.0 * float(lags[at]) + 1.0) / n), 1e-9)


def rate_interval(
    bins: F64, *, bin_s: float, value: float | None = None, paused: PauseShare | None = None, looks: int = 1
) -> Rate:
    """The rate in tokens/s with its 95 % interval "within this run".

    `bins` (n,): tokens per equal bin of `bin_s` seconds. `value`: the rate by definition, where `bins` are smoothed
    (default: their own): the interval is that around the bins' mean, widened to lie around `value` too, since the two
    differ by the lumps that the window's edges cut (see `window.smooth_bins`). `paused`: what the bins do not
    show: the interval reaches to the rate at the long run's share of pauses, and the error of that is added in squares.
    """
    seconds = len(bins) * bin_s
    if seconds <= 0:
        return Rate(reason="the window has no length")
    centre = float(bins.sum()) / seconds
    value = centre if value is None else value
    if value * seconds < LEAST_TOKENS:
        return Rate(value=value, reason=f"fewer than {LEAST_TOKENS} tokens: too few for an interval")
    switches = few_switches(bins, least_run=3)
    if switches is not None:
        return Rate(value=value, reason=rarely(switches))
    distances = batch_interval(bins, looks=looks)
    if isinstance(distances, str):
        return Rate(value=value, reason=distances)
    below, above, batches = distances
    paused = paused or PauseShare()
    beside = NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / 2.0 / looks) * paused.deviation * value
    low = min(centre, value) / (1.0 + max(paused.excess, 0.0)) - math.hypot(below / bin_s, beside)
    high = max(centre, value) / (1.0 + min(paused.excess, 0.0)) + math.hypot(above / bin_s, beside)
    return Rate(value=value, low=max(low, 0.0), high=high, interval="within this run", n=batches)


def rarely(switches: int) -> str:
    """The reason why two levels have no interval."""
    times = "once" if switches == 1 else f"{switches} times"
    return f"the speed switched between two levels, {times} only: the window is too short for an interval"


def early_end(
    counts_per_bin: Sequence[float],
    bin_s: float,
    target_relative: float,
    look_index: int,
    looks: int,
    decoding_per_bin: Sequence[float] = (),
    pause_deviation: float = 0.0,
) -> bool:
    """Whether the window may end at this look: its interval, allowing for all `looks`, is within ± `target_relative`.

    `counts_per_bin`: counts (events do) per bin of `bin_s` since the window opened; fine bins, 20 ms or less, are
    best. They are smoothed over a 24th of the window, so that the lumps of engine steps do not pass for noise.
    `decoding_per_bin`: how many streams decoded, so that their pauses do not pass for it either (as in
    `window.pace_bins`); `pause_deviation`: what is not known of these. The last look always ends it. Raises ValueError
    for a look that was not planned.
    """
    if not 0 <= look_index < looks:
        raise ValueError(f"look {look_index} of {looks} was not planned")
    if look_index == looks - 1:
        return True
    smooth = _smoothed(counts_per_bin)
    if len(decoding_per_bin) == len(counts_per_bin) and len(smooth):
        decoding = _smoothed(decoding_per_bin)
        busy = decoding > 0.2 * decoding.mean()
        smooth = smooth[busy] / decoding[busy] * decoding.mean()
    width = max(1, math.ceil(len(smooth) / BINS))
    n = len(smooth) // width
    bins = smooth[: n * width].reshape(n, width).sum(axis=1)
    paused = PauseShare(0.0, pause_deviation)
    half = rate_interval(bins, bin_s=bin_s * width, paused=paused, looks=looks).relative_half_width
    return half is not None and half <= target_relative


def _smoothed(per_bin: Sequence[float]) -> F64:
    values = np.asarray(per_bin, dtype=np.float64)
    kernel = np.hanning(max(1, len(values) // _KERNEL_PARTS) + 2)[1:-1]
    return np.convolve(values, kernel / kernel.sum(), "valid") if len(values) else values


def between_repeats(values: Sequence[float]) -> Rate:
    """Median of repeats with Student's interval of their mean, widened to hold the median (n >= 2)."""
    if not values:
        return Rate(reason="no repeat was measured")
    middle = median(values)
    if len(values) < 2:
        return Rate(value=middle, reason="one repeat has no spread", n=1)
    data = np.asarray(values, dtype=np.float64)
    half = t_quantile(0.5 + CONFIDENCE / 2.0, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    mean = float(data.mean())
    return Rate(
        value=middle, low=max(min(mean - half, middle), 0.0), high=max(mean + half, middle), interval="between repeats",
        n=len(data),
    )  # fmt: skip


def order_interval(values: Sequence[float] | F64, q: float) -> tuple[float, float] | None:
    """95 % interval of the q-quantile of independent values by order statistics, None if there are too few.

    Ranks l < u with P(l <= Binomial(n, q) < u) >= 0.95 (David and Nagaraja, Order Statistics, 7.1), each side 2.5 %.
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    n, tail = len(data), (1.0 - CONFIDENCE) / 2.0
    # The i-th smallest (from 1) is above the quantile with P(X <= i - 1), below it with P(X >= i).
    low = bisect_right(range(n), tail, key=lambda i: _binomial_cdf(i, n, q)) - 1
    high = bisect_left(range(n), 1.0 - tail, key=lambda i: _binomial_cdf(i, n, q))
    return (float(data[low]), float(data[high])) if low >= 0 and high < n else None


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) = I_{1-p}(n - k, k + 1) (Abramowitz and Stegun 26.5.24)."""
    return 1.0 if k >= n else beta_inc(n - k, k + 1.0, 1.0 - p)


def least_independent(q: float) -> int:
    """Independent samples that a 95 % interval of the q-quantile needs: with fewer, the largest (or smallest) of them
    is not beyond it surely enough. 6, 36 and 368 for p50, p90 and p99."""
    return math.ceil(math.log((1.0 - CONFIDENCE) / 2.0) / math.log(max(q, 1.0 - q)))


@lru_cache(maxsize=4096)
def _fractions(n: float, q: float) -> tuple[float, float] | None:
    """Shares of the samples, ordered, at which the 95 % interval of the q-quantile of `n` independent ones begins and
    ends; None if n is too few. Fractional order statistics (Hutson 1999, Journal of Applied Statistics 26)."""
    tail, ends = (1.0 - CONFIDENCE) / 2.0, []
    for chance in (1.0 - tail, tail):
        low, high = 1.0 / (n + 1.0), n / (n + 1.0)
        if not _above(low, n, q) >= chance >= _above(high, n, q):
            return None
        while high - low > 1e-9:
            middle = (low + high) / 2.0
            low, high = (middle, high) if _above(middle, n, q) > chance else (low, middle)
        ends.append((low + high) / 2.0)
    return ends[0], ends[1]


def _above(share: float, n: float, q: float) -> float:
    """P(the sample at `share` of n ordered ones lies below the q-quantile)."""
    return beta_inc((n + 1.0) * share, (n + 1.0) * (1.0 - share), q)


class _Ordered:
    """Weighted values in order, each in one of `parts` equal parts of the window (`where`, (n,)). They depend on each
    other: those of one engine step, or of one slow moment, say the same thing once."""

    def __init__(self, values: F64, weights: F64, where: I64, parts: int) -> None:
        order = np.argsort(values, kind="stable")
        self.values, self.weights, self.where = values[order], weights[order], where[order]
        self.share = np.cumsum(self.weights) / self.weights.sum()
        self.per_bin = np.bincount(self.where, self.weights, parts)
        self.most = min(float(self.weights.sum() ** 2 / (self.weights @ self.weights)), MOST_SAMPLES)

    def at(self, share: float) -> float:
        """The value at that share of the weight."""
        return float(self.values[min(int(np.searchsorted(self.share, share - 1e-12)), len(self.values) - 1)])

    def independent(self, value: float) -> float | str:
        """As how many independent samples these tell the share of values below `value` (and up to it: the fewer).

        p (1 - p) / variance of that share p, a ratio over the window's bins, reduced for the variance's own
        uncertainty: the effective sample size of Korn and Graubard (1998, Survey Methodology 24), with batches in time
        for clusters.
        """
        fewest = self.most
        sides: tuple[Literal["left", "right"], ...] = ("left", "right")
        for side in sides:
            upto = int(np.searchsorted(self.values, value, side))
            p = float(self.share[upto - 1]) if 0 < upto < len(self.values) else 0.0
            if not 1e-9 < p < 1.0 - 1e-9:
                continue
            bins = np.bincount(self.where[:upto], self.weights[:upto], len(self.per_bin)) - p * self.per_bin
            error = mean_error(bins / self.per_bin.mean())
            if isinstance(error, str):
                return error
            t = t_quantile(0.5 + CONFIDENCE / 2.0, round(error.df, 1))
            if error.variance > 0:
                fewest = min(fewest, p * (1.0 - p) / error.variance * (_Z / t) ** 2)
        return fewest

    def ends(self, independent: float, q: float) -> tuple[float, float] | None:
        shares = _fractions(round(independent, 1 if independent < 1000 else 0), q)
        return (self.at(shares[0]), self.at(shares[1])) if shares else None


def quantile_intervals(
    values: F64, weights: F64, where: I64, parts: int, quantiles: Sequence[float], *, what: str
) -> list[tuple[float, float] | str]:
    """95 % intervals of the quantiles (ascending) of weighted values that depend on each other, each with the reason
    where none can be claimed. Shapes: (n,); `where`: the part of the window, of `parts` equal ones, that a value
    belongs to; `what`: the samples' name.

    Woodruff's method (1952, Journal of the American Statistical Association 47): the interval of the share of values
    below the quantile, read back as values. The effective number of samples is the fewest at the quantile and at the
    interval's ends; and no quantile is given one from fewer than it needs at the quantiles before it, where there are
    more events to tell how long the values remember. That number is itself an estimate, and where it is just enough,
    an interval comes from those windows in which it came out high: so half of what is needed is taken off.
    """
    data, fewest = _Ordered(values, weights, where, parts), math.inf
    intervals: list[tuple[float, float] | str] = []
    for q in quantiles:
        number = _fewest_around(data, q)
        fewest = 0.0 if isinstance(number, str) else min(fewest, number)
        if isinstance(number, str):
            intervals.append(number)
            continue
        least = least_independent(q)
        ends = data.ends(max(float(least), number - least / 2.0), q) if fewest >= least else None
        if ends is None:
            have = f"it has about {fewest:,.0f}" if fewest > 0 else "they depend on each other for too long"
            intervals.append(f"needs {least} independent {what}: {have}")
        else:
            intervals.append((min(ends[0], data.at(q)), max(ends[1], data.at(q))))
    return intervals


def _fewest_around(data: _Ordered, q: float) -> float | str:
    number = data.independent(data.at(q))
    ends = data.ends(number, q) if not isinstance(number, str) else None
    for end in ends or ():
        there = data.independent(end)
        if isinstance(there, str) or isinstance(number, str):
            return there
        number = min(number, there)
    return number


def section_interval(sections: Sequence[float], *, centre: float) -> tuple[float, float] | None:
    """95 % interval around a percentile `centre` from the same percentile of consecutive sections of the window.

    Sectioning (Asmussen and Glynn, Stochastic Simulation, III.5), with sections joined and corrected like batches; None
    with too few sections.
    """
    data = np.asarray(sections, dtype=np.float64)
    distances = batch_interval(data)
    if isinstance(distances, str):
        return None
    below, above, _ = distances
    mean = float(data.mean())
    # A section's percentile is that of fewer samples, so their mean may lie beside the centre.
    return min(centre - below, mean), max(centre + above, mean)
