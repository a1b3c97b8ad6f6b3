"""Bencher Metric Format (bencher.dev, "Bencher Metric Format (BMF)"): {benchmark: {measure: {value, lower, upper}}}."""

from __future__ import annotations

import math
from typing import Final

from flatout.flags import Status
from flatout.record import Cell, Distribution, Rate, Record
from flatout.show import about
from flatout.show.safe import clean

Metric = dict[str, float]
SHOWN: Final = frozenset({Status.VALID, Status.REQUESTS_QUEUED})
"""A doubtful figure would raise alarms about the test, not about the engine."""
_NAME_LIMIT: Final = 1000


def bencher(record: Record) -> dict[str, dict[str, Metric]]:
    """One benchmark for each valid or queued cell (`decode 8K x4`), its rates with their intervals as lower and upper
    value. Cells without a trusted number are left out: the format has no null."""
    found: dict[str, dict[str, Metric]] = {}
    for cell in record.cells:
        measures = _measures(cell) if cell.status in SHOWN else {}
        if measures:
            name = _name(cell)
            found[name if name not in found else clean(f"{name} {cell.id}", _NAME_LIMIT)] = measures
    return found


def _name(cell: Cell) -> str:
    many = "" if cell.phase == "prefill" else f" x{cell.concurrency}"
    return clean(f"{cell.phase} {about.context(cell)}{many}", _NAME_LIMIT)


def _measures(cell: Cell) -> dict[str, Metric]:
    made: dict[str, Metric | None] = {}
    if cell.prefill is not None:
        made = {"prefill-tok-s": _of_rate(cell.prefill.prefill_tok_s), "ttft-ms": _median(cell.prefill.ttft_ms)}
    elif cell.decode is not None:
        d = cell.decode
        made = {
            "total-tok-s": _of_rate(d.total_tok_s), "per-request-tok-s": _median(d.per_request_tok_s),
            "ttft-ms": _median(d.ttft_ms), "itl-ms": _median(d.itl_ms),
            "itl-p99-ms": _metric(d.itl_ms.p99, d.itl_ms.p99_low, d.itl_ms.p99_high),
        }  # fmt: skip
    elif cell.burst is not None:
        b = cell.burst
        made = {
            "end-to-end-tok-s": _of_rate(b.end_to_end_tok_s), "per-request-tok-s": _median(b.per_request_tok_s),
            "ttft-ms": _median(b.ttft_ms), "itl-ms": _median(b.itl_ms),
        }  # fmt: skip
    return {name: metric for name, metric in made.items() if metric is not None}


def _of_rate(rate: Rate) -> Metric | None:
    return _metric(rate.value, rate.low, rate.high)


def _median(spread: Distribution) -> Metric | None:
    return _metric(spread.p50, spread.p50_low, spread.p50_high)


def _metric(value: float | None, low: float | None = None, high: float | None = None) -> Metric | None:
    if value is None or not math.isfinite(value):
        return None
    made = {"value": float(value)}
    if low is not None and math.isfinite(low):
        made["lower_value"] = float(low)
    if high is not None and math.isfinite(high):
        made["upper_value"] = float(high)
    return made
