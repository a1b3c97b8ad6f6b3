"""All measurements as the page's table: the columns of the table of figures, behind those that name the cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flatout import metrics
from flatout.metrics import Metric, Phase, Reading, Value
from flatout.record import Cell, Record
from flatout.show import about, numbers
from flatout.show.page import values
from flatout.show.page.cells import PHASES
from flatout.show.rows import rows
from flatout.show.safe import clean


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `get`: the record's own value; `text`: as shown; `why`: the reason where it is missing. `always`: in
    the page even where no cell has it."""

    name: str
    head: str
    get: Callable[[Cell], Value]
    text: Callable[[Value], str]
    why: Callable[[Cell], str | None] = lambda cell: None
    always: bool = True


def _figure(name: str, by_phase: Mapping[Phase, Metric]) -> Column:
    first = next(iter(by_phase.values()))

    def read(cell: Cell) -> Reading:
        return metrics.read(cell, by_phase.get(cell.phase, first))

    return Column(
        name, first.label[:1].upper() + first.label[1:], lambda cell: read(cell).value,
        lambda value: values.short(numbers.figure(first, value)), lambda cell: read(cell).reason,
        first.shown != "if known",
    )  # fmt: skip


def _spread(value: Value) -> str:
    return numbers.NONE if not isinstance(value, float) else numbers.interval(1.0, 1.0 - value, 1.0 + value)


_SPEED: Final[Callable[[Cell], Reading]] = lambda cell: metrics.read(cell, metrics.SPEED[cell.phase])  # noqa: E731
_FIGURES: Final = [
    _figure(name, by_phase) for shown in ("first", "always", "if known")
    for name, by_phase in metrics.columns().items() if next(iter(by_phase.values())).shown == shown
]  # fmt: skip
IN_PAGE: Final[Sequence[Column]] = (
    Column("phase", "Phase", lambda c: c.phase, lambda v: PHASES.get(str(v), str(v))),
    Column("context", "Context", about.context, str),
    Column("concurrency", "Requests at once", lambda c: c.concurrency, lambda v: values.count(int(v or 0))),
    Column("status", "Status", lambda c: clean(c.status, 40), lambda v: about.status_word(str(v)).capitalize()),
    _FIGURES[0],
    Column("total_tok_s_interval", "± 95 %", lambda c: values.drawable(_SPEED(c).half), _spread,
           lambda c: _SPEED(c).interval_reason),
    *_FIGURES[1:],
    Column("flags", "Flags", lambda c: " ".join(clean(flag.name, 40) for flag in c.flags),
           lambda v: str(v).replace("_", " ") or numbers.NONE, lambda _: "no flag"),
)  # fmt: skip


def columns(cells: Sequence[Cell]) -> list[Column]:
    """The columns that the page shows for these cells."""
    return [c for c in IN_PAGE if c.always or any(c.get(cell) not in (None, 0) for cell in cells)]


def to_json(record: Record, cells: Sequence[Cell], identity: Mapping[str, str | None]) -> str:
    """The rows as JSON, with what they were measured on."""
    content = {"format": "flatout-table/1", "id": clean(record.id, 120), **identity, "cells": rows(record, cells)}
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=str)
