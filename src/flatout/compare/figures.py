"""Figures of a cell by their key (`total_tok_s`, `itl_ms.p99`): what there is, and its value with its interval."""

from __future__ import annotations

import difflib
import math
from typing import Final

from flatout import metrics
from flatout.compare.ratio import Estimate, estimate, of_samples
from flatout.compare.result import CompareError
from flatout.flags import MEASURED
from flatout.metrics import Metric, Reading
from flatout.record import Cell, Distribution, Rate

SPEED: Final[dict[str, str]] = {phase: metric.key for phase, metric in metrics.SPEED.items()}
"""The figure that is a cell's speed."""
SHOWN: Final[dict[str, tuple[str, ...]]] = {
    phase: tuple(metric.key for metric in metrics.judged(phase)) for phase in metrics.PHASES
}
KEYS: Final = {metric.key: metric for metric in metrics.METRICS if metric.kind in ("float", "int")}
"""All that can be compared: every figure that is a number."""
_MOST: Final = 1e18


def names() -> dict[str, bool]:
    """Every figure's key without its percentiles, and whether it is a distribution."""
    return {key: f"{key}.max" in KEYS for key in KEYS if key.rpartition(".")[0] not in KEYS}


def figure(text: str) -> Metric:
    """`total_tok_s`, `itl_ms`, `itl_ms.p99` → the figure. Raises CompareError for what is none."""
    name = text.removesuffix(".p50")
    if name in KEYS and (name == text or f"{name}.max" in KEYS):
        return KEYS[name]
    near = difflib.get_close_matches(text, KEYS, 3)
    raise CompareError(
        f"'{text}' is no figure of a record"
        + (f"; did you mean {', '.join(near)}?" if near else "; such as total_tok_s, ttft_ms or itl_ms.p99")
    )


def measured(cell: Cell) -> bool:
    return cell.status in MEASURED


def read(cell: Cell, wanted: Metric) -> tuple[float | None, Estimate | None, str | None]:
    """(value, the value with its interval, why there is none) of one cell. The Estimate is None for what is no
    positive number."""
    if not measured(cell):
        return None, None, cell.status.replace("_", " ")
    reading = metrics.read(cell, wanted)
    if reading.number is None:
        few = isinstance(reading.holder, Distribution)
        return None, None, reading.reason or ("there were too few samples" if few else "it was not measured")
    value = float(max(-_MOST, min(_MOST, reading.number)))
    return value, _estimate(cell, wanted, reading, value), reading.reason


def _estimate(cell: Cell, wanted: Metric, reading: Reading, value: float) -> Estimate | None:
    holder, why = reading.holder, reading.interval_reason
    if isinstance(holder, Rate):
        between = holder.interval == "between repeats"
        return estimate(value, holder.low, holder.high, n=holder.n, between=between, reason=holder.reason)
    if not isinstance(holder, Distribution) or wanted.key.endswith((".max", ".mean")):
        return Estimate(value, reason="it has no interval") if math.isfinite(value) and value > 0 else None
    if wanted.key == "ttft_ms" and cell.prefill is not None:
        times = [s.ttft_ms for s in cell.prefill.samples if s.used and s.ttft_ms is not None]
        if times:  # Student's, with its degrees of freedom, which the interval alone does not tell
            return of_samples(value, times)
    return estimate(value, reading.low, reading.high, reason=why or f"{holder.n} samples give it no interval")
