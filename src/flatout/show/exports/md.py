"""Markdown: header, tables, legend and the line about users at once, for GitHub and forums."""

from __future__ import annotations

from flatout.record import Record
from flatout.show import document, result


def write(record: Record) -> str:
    return document.markdown(result.pasted(record))
