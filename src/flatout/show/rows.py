"""A record as rows, one a planned cell: the same columns in CSV, JSON and Parquet, the page's files and the site's.

What is not known is None, never 0, and the figures of a cell whose status shows none are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flatout import metrics
from flatout.metrics import Kind, Metric, Phase, Value
from flatout.record import Cell, Record
from flatout.show import about
from flatout.show.safe import clean

_TEXT_LIMIT: Final = 4000


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name with the unit, its type, and its value of a cell."""

    name: str
    kind: Kind
    value: Callable[[Record, Cell], Value]


def _identity(name: str, value: Callable[[Record], Value]) -> Column:
    return Column(name, "text", lambda record, _: value(record))


def _plan(name: str, kind: Kind, value: Callable[[Cell], Value]) -> Column:
    return Column(name, kind, lambda _, cell: value(cell))


def _figure(name: str, by_phase: dict[Phase, Metric]) -> list[Column]:
    """A figure, and the ends of its 95 % interval where it can have one."""

    def part(part: str) -> Callable[[Record, Cell], Value]:
        def read(_: Record, cell: Cell) -> Value:
            metric = by_phase.get(cell.phase)
            value: Value = getattr(metrics.read(cell, metric), part) if metric is not None else None
            return value

        return read

    first = next(iter(by_phase.values()))
    parts = [("", "value"), ("_low", "low"), ("_high", "high")] if first.interval else [("", "value")]
    return [Column(name + ending, first.kind, part(field)) for ending, field in parts]


COLUMNS: Final[tuple[Column, ...]] = (
    _identity("run", lambda r: r.id),
    _identity("started", lambda r: r.started),
    _identity("model", about.model_name),
    _identity("engine", lambda r: about.known(r.engine.name)),
    _identity("engine_version", lambda r: about.known(r.engine.version)),
    _identity("quantization", about.precision),
    _identity("hardware", about.hardware_name),
    _identity("suite", lambda r: r.plan.suite),
    _plan("cell", "text", lambda c: c.id),
    _plan("phase", "text", lambda c: c.phase),
    _plan("context", "text", lambda c: c.context),
    _plan("context_tokens", "int", lambda c: c.context_tokens),
    _plan("concurrency", "int", lambda c: c.concurrency),
    _plan("max_output_tokens", "int", lambda c: c.max_output),
    _plan("need_tokens", "int", lambda c: c.need_tokens),
    _plan("status", "text", lambda c: c.status),
    _plan("flags", "text", lambda c: " ".join(dict.fromkeys(flag.name for flag in c.flags)) or None),
    _plan("reason", "text", lambda c: c.reason),
    _plan("error", "text", lambda c: c.error),
    *(column for name, by_phase in metrics.columns().items() for column in _figure(name, by_phase)),
    _plan("cell_started", "text", lambda c: c.started),
    _plan("cell_finished", "text", lambda c: c.finished),
    _plan("order", "int", lambda c: c.order),
    _plan("attempts_redone", "int", lambda c: len(c.attempts)),
)


def rows(record: Record, cells: Iterable[Cell] | None = None) -> list[dict[str, Value]]:
    """Every planned cell (or those given) with all columns, in the plan's order; texts are clean."""
    return [_row(record, cell) for cell in (record.cells if cells is None else cells)]


def _row(record: Record, cell: Cell) -> dict[str, Value]:
    row: dict[str, Value] = {}
    for column in COLUMNS:
        value = column.value(record, cell)
        if value is not None and column.kind == "text":
            value = clean(value, _TEXT_LIMIT) or None  # a text of nothing but control characters says nothing
        elif value is not None and column.kind == "float":
            value = float(value)
        row[column.name] = value
    return row


def json_text(content: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> str:
    """JSON text of an export, ending in a newline; nothing in it ends a script element of a page it is put into."""
    plain = dict(content) if isinstance(content, Mapping) else list(content)
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).replace("</", "<\\/") + "\n"
