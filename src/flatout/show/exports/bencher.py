"""Bencher Metric Format (bencher.dev): {benchmark: {measure: {value, lower_value, upper_value}}}."""

from __future__ import annotations

import json
import math
from typing import Final

from flatout import metrics
from flatout.flags import Status
from flatout.metrics import BY_NAME, Metric
from flatout.record import Cell, Record
from flatout.show import about
from flatout.show.safe import clean

Measure = dict[str, float]
SHOWN: Final = frozenset({Status.VALID, Status.REQUESTS_QUEUED})
"""A doubtful figure would raise alarms about the test, not about the engine."""
_NAME_LIMIT: Final = 1000
_ITL_P99: Final = BY_NAME["itl_ms.p99"]
_NAMES: Final = {"itl_ms.p99": "itl-p99-ms"}


def write(record: Record) -> str:
    return json.dumps(bencher(record), indent=1)


def bencher(record: Record) -> dict[str, dict[str, Measure]]:
    """One benchmark for each valid or queued cell (`decode 8K x4`), its rates with their intervals as lower and upper
    value. Cells without a trusted number are left out: the format has no null."""
    found: dict[str, dict[str, Measure]] = {}
    for cell in record.cells:
        measures = _measures(cell) if cell.status in SHOWN else {}
        if measures:
            name = _name(cell)
            found[name if name not in found else clean(f"{name} {cell.id}", _NAME_LIMIT)] = measures
    return found


def _name(cell: Cell) -> str:
    many = "" if cell.phase == "prefill" else f" x{cell.concurrency}"
    return clean(f"{cell.phase} {about.context(cell)}{many}", _NAME_LIMIT)


def _measures(cell: Cell) -> dict[str, Measure]:
    """What compare judges of a cell, and the p99 of decode's ITL."""
    wanted = [*metrics.judged(cell.phase), *([_ITL_P99] if cell.phase == "decode" else [])]
    found = {_NAMES.get(metric.key, metric.key.replace("_", "-")): _measure(cell, metric) for metric in wanted}
    return {name: measure for name, measure in found.items() if measure is not None}


def _measure(cell: Cell, metric: Metric) -> Measure | None:
    reading = metrics.read(cell, metric)
    ends = (("value", reading.number), ("lower_value", reading.low), ("upper_value", reading.high))
    measure = {name: float(value) for name, value in ends if value is not None and math.isfinite(value)}
    return measure if "value" in measure else None
