"""JSON: the rows of the CSV as a list of objects, null for what is not known."""

from __future__ import annotations

from flatout.record import Record
from flatout.show.rows import json_text, rows


def write(record: Record) -> str:
    return json_text(rows(record))
