"""The result in short as data, for `--json`: who, what came out of each cell, and where the record is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from flatout.record import Cell, Distribution, Rate, Record
from flatout.show import about, capacity
from flatout.show.safe import HARD_SPACE, clean

FORMAT: Final = "flatout-summary/1"


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
    if not about.measured(cell):
        return shown
    if cell.decode is not None:
        d = cell.decode
        shown |= _rate("total_tok_s", d.total_tok_s)
        shown["per_request_tok_s"] = d.per_request_tok_s.p50
        shown |= _percentiles("ttft", d.ttft_ms) | _percentiles("itl", d.itl_ms)
        shown["active_own_mean"] = d.active_own_mean
        shown["active_server_mean"] = d.active_server_mean
        shown["completed"] = d.completed
        shown["output_tokens"] = d.output_tokens
        shown["acceptance_length"] = d.acceptance.length if d.acceptance is not None else None
        shown["window_s"] = cell.window.length_s if cell.window is not None else None
    elif cell.burst is not None:
        b = cell.burst
        shown |= _rate("end_to_end_tok_s", b.end_to_end_tok_s)
        shown["per_request_tok_s"] = b.per_request_tok_s.p50
        shown |= _percentiles("ttft", b.ttft_ms) | _percentiles("itl", b.itl_ms)
        shown |= {"completed": b.completed, "failed_requests": b.failed_requests}
        shown |= {"output_tokens": b.output_tokens, "duration_s": b.duration_s}
    elif cell.prefill is not None:
        shown |= _rate("prefill_tok_s", cell.prefill.prefill_tok_s)
        shown["ttft_p50_ms"] = cell.prefill.ttft_ms.p50
        shown["prompt_tokens"] = cell.prefill.prompt_tokens
    return shown


def _rate(name: str, rate: Rate) -> dict[str, float | None]:
    return {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}


def _percentiles(name: str, figure: Distribution) -> dict[str, float | None]:
    return {f"{name}_p50_ms": figure.p50, f"{name}_p99_ms": figure.p99}
