"""Markdown: header, tables, legend and the line about users at once, for GitHub and forums."""

from __future__ import annotations

from flatout.record import Record
from flatout.show import markdown


def write(record: Record) -> str:
    return markdown.render(record)
