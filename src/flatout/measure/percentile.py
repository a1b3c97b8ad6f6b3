"""Percentiles of weighted values of which some are known only as "longer than this" (requests that were cut)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flatout.record import QUANTILES, Distribution, Histogram

F64 = npt.NDArray[np.float64]

LEAST_SAMPLES: Final = {name: 1 if q <= 0.5 else math.ceil(round(1.0 / (1.0 - q), 9)) for name, q in QUANTILES.items()}
"""Samples that a percentile needs, so that one lies beyond it; a median is shown of any number, with n."""

_HISTOGRAM_BINS = 40


def quantile(values: F64, weights: F64, censored: npt.NDArray[np.bool_], q: float) -> tuple[float, bool] | None:
    """The q-quantile (0 < q < 1) and False, or a lower bound of it and True; None without weight. Shapes: (n,).

    Product-limit estimator (Kaplan and Meier 1958), values weighted: the smallest uncensored value at which the
    estimated share of longer ones falls to 1 - q or below. Without censoring that is the smallest value whose cumulated
    weight reaches q of all; where it does so exactly, the middle between it and the next (the usual median of an even
    number). If cut requests keep the curve above 1 - q, the longest value stands as the lower bound.
    """
    keep = weights > 0
    values, weights, censored = values[keep], weights[keep], censored[keep]
    if not len(values):
        return None
    order = np.lexsort((censored, values))  # at one value, what ended comes before what was cut
    values, weights, censored = values[order], weights[order], censored[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    ended = np.where(censored, 0.0, weights)
    with np.errstate(divide="ignore"):
        survival = np.exp(np.cumsum(np.log(np.maximum(1.0 - ended / at_risk, 0.0))))
    rows = np.flatnonzero(~censored)
    rows = rows[np.append(np.diff(values[rows]) != 0, True)[: len(rows)]]  # of equal values, the last
    slack = 1e-9
    reached = np.flatnonzero(survival[rows] <= 1.0 - q + slack)
    if not len(reached):
        return float(values[-1]), True
    at = int(reached[0])
    value = float(values[rows[at]])
    if survival[rows[at]] >= 1.0 - q - slack and at + 1 < len(rows):  # on the step: the quantile is the flat piece
        return (value + float(values[rows[at + 1]])) / 2.0, False
    return value, False


def distribution(
    values: Sequence[float] | F64,
    *,
    weights: F64 | None = None,
    censored: npt.NDArray[np.bool_] | None = None,
    empty: str = "no sample",
    what: str = "requests",
    whose: str | None = None,
) -> Distribution:
    """Percentiles, mean, maximum and histogram of `values` (n,), weighted, without intervals (see `with_intervals`).

    `censored` (n,): values that are only lower bounds. `empty`: the reason where there are none; `what`: the samples'
    name.
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if not n:
        return Distribution(whose=whose, reasons=dict.fromkeys((*QUANTILES, "max", "mean", "interval"), empty))
    weight = np.ones(n) if weights is None else weights
    cut = np.zeros(n, dtype=np.bool_) if censored is None else censored
    reasons = {"interval": "not computed"}
    figures: dict[str, Any] = {"mean": float((data * weight).sum() / weight.sum()), "max": float(data.max())}
    for name in QUANTILES:
        value = _percentile(data, weight, cut, name, what)
        if isinstance(value, str):
            reasons[name] = value
        else:
            figures[name] = value
    if cut.any():
        reasons["mean"] = f"{int(cut.sum())} of {n} {what} were cut: only a lower bound is known"
        del figures["mean"]
        if data[~cut].max(initial=-1.0) >= data.max():
            reasons["max"] = "the longest that was not cut"
        else:
            reasons["max"] = reasons["mean"]
            del figures["max"]
    bins = histogram(data[~cut], weight[~cut])
    return Distribution(n=n, censored=int(cut.sum()), whose=whose, reasons=reasons, histogram=bins, **figures)


def with_intervals(plain: Distribution, ends: Mapping[str, tuple[float, float] | str]) -> Distribution:
    """The distribution with 95 % intervals of the percentiles that it has, by name (`p50`), each with the reason where
    there is none. An interval is widened to hold its percentile, and never reaches below 0."""
    reasons = {name: text for name, text in plain.reasons.items() if not name.endswith("interval")}
    limits: dict[str, float] = {}
    for name in QUANTILES:
        value, end = getattr(plain, name), ends.get(name, "not computed")
        if value is None:
            continue
        if isinstance(end, str):
            reasons["interval" if name == "p50" else f"{name}_interval"] = end
        else:
            limits |= {f"{name}_low": max(min(end[0], value), 0.0), f"{name}_high": max(end[1], value)}
    return plain.model_copy(update={"reasons": reasons, **limits})


def _percentile(data: F64, weight: F64, cut: npt.NDArray[np.bool_], name: str, what: str) -> float | str:
    """The percentile of that name, or the reason why it is not known."""
    if len(data) < LEAST_SAMPLES[name]:
        return f"needs {LEAST_SAMPLES[name]} {what}, has {len(data)}"
    result = quantile(data, weight, cut, QUANTILES[name])
    if result is None:
        return f"no {what} with weight"
    value, bound = result
    if bound:
        return f"lies beyond {value:.6g}: {int(cut.sum())} of {len(data)} {what} were cut before they showed it"
    return value


def histogram(values: F64, weights: F64) -> Histogram | None:
    """At most 40 log-spaced bins from the least positive value to the greatest; values of 0 or below join the first.
    None where no value is positive."""
    positive = values[values > 0]
    if not len(positive):
        return None
    low, high = float(positive.min()), float(positive.max())
    if high <= low * (1.0 + 1e-9):
        return Histogram(edges=[low, high * (1.0 + 1e-6)], counts=[float(weights.sum())])
    bins = min(_HISTOGRAM_BINS, max(8, math.ceil(math.sqrt(len(values)))))
    edges = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high * (1.0 + 1e-9)
    counts, _ = np.histogram(np.clip(values, low, high), edges, weights=weights)
    return Histogram(edges=edges.tolist(), counts=counts.astype(float).tolist())
