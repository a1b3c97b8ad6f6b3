"""CSV: a row a planned cell, all columns, numbers in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

from flatout.metrics import Value
from flatout.record import Cell, Record
from flatout.show.rows import COLUMNS, rows

_FORMULA: Final = frozenset("=+-@＝＋－＠")
_QUOTE: Final = "'"


def write(record: Record, cells: Iterable[Cell] | None = None) -> str:
    """RFC 4180, lines end in LF. A text that a spreadsheet would take for a formula begins with an apostrophe (as does
    one that has one of its own), so that it stays text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in COLUMNS])
    for row in rows(record, cells):
        writer.writerow([_field(value) for value in row.values()])
    return out.getvalue()


def _field(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _QUOTE + value if value[:1] in _FORMULA or value[:1] == _QUOTE else value
    return repr(value)


def value(name: str, text: str) -> Value:
    """What one field stood for: the way back. Raises ValueError for a number that is none."""
    kind = next(column.kind for column in COLUMNS if column.name == name)
    if text == "":
        return None
    if kind == "text":
        return text[1:] if text[0] == _QUOTE else text
    if kind == "bool":
        return text == "true"
    return int(text) if kind == "int" else float(text)
