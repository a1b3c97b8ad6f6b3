"""The result in short as data, for `--json`: who, what came out of each cell, and where the record is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from flatout import metrics
from flatout.metrics import BY_NAME
from flatout.record import Cell, Record
from flatout.show import about, capacity
from flatout.show.safe import HARD_SPACE, clean

FORMAT: Final = "flatout-summary/1"
_LATENCIES: Final = ("per_request_tok_s", "ttft_ms", "ttft_ms.p99", "itl_ms", "itl_ms.p99")
_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "decode": ("total_tok_s", *_LATENCIES, "active_own_mean", "active_server_mean", "completed", "output_tokens",
               "acceptance.length", "measured_s"),
    "burst": ("end_to_end_tok_s", *_LATENCIES, "completed", "failed_requests", "output_tokens", "duration_s"),
    "prefill": ("prefill_tok_s", "ttft_ms", "prompt_tokens"),
}  # fmt: skip
_NAMES: Final = {
    "ttft_ms": "ttft_p50_ms", "ttft_ms.p99": "ttft_p99_ms", "itl_ms": "itl_p50_ms", "itl_ms.p99": "itl_p99_ms",
    "acceptance.length": "acceptance_length", "measured_s": "window_s",
}  # fmt: skip
"""What the format calls figures otherwise than the table."""


def summary(record: Record, path: Path | None) -> dict[str, Any]:
    """Values that `json.dumps` takes. Figures carry their unit in their name and are null where they are not known;
    the reasons are in the record. Texts are clean, so that they can be printed."""
    return {
        "format": FORMAT,
        "id": clean(record.id),
        "state": record.state,
        "state_reason": clean(record.state_reason) if record.state_reason else None,
        "started": clean(record.started),
        "finished": clean(record.finished) if record.finished else None,
        "model": about.known(record.model.id) or about.known(record.model.served_as),
        "engine": about.known(record.engine.name),
        "engine_version": about.known(record.engine.version),
        "precision": about.precision(record),
        "hardware": None if record.hardware.describes == "client only" else about.hardware_name(record),
        "suite": clean(record.plan.suite),
        "cells_planned": len(record.cells),
        "cells_measured": sum(map(about.measured, record.cells)),
        "verdict": about.verdict(record).replace(HARD_SPACE, " "),
        "cells": [_cell(cell) for cell in record.cells],
        "at_once": {
            "per_user_tok_s": record.per_user_tok_s,
            "contexts": [{**asdict(answer), "text": answer.text} for answer in capacity.capacities(record)],
        },
        "warnings": [clean(warning, 1000) for warning in record.warnings],
        "path": str(path) if path is not None else None,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": clean(cell.id),
        "phase": cell.phase,
        "context": about.context(cell),
        "context_tokens": cell.context_tokens,
        "concurrency": cell.concurrency,
        "status": clean(cell.status),
        "flags": [clean(flag.name) for flag in cell.flags],
        "reason": clean(cell.reason) if cell.reason else None,
        "error": clean(cell.error) if cell.error else None,
    }
    for key in _FIGURES[cell.phase] if about.measured(cell) else ():
        reading, name = metrics.read(cell, BY_NAME[key]), _NAMES.get(key, key)
        shown[name] = reading.value
        if key == metrics.SPEED[cell.phase].key:
            shown |= {f"{name}_low": reading.low, f"{name}_high": reading.high}
    return shown
