"""Strings that want to act where they are shown, records full of them, and Markdown as a reader sees it."""

from __future__ import annotations

from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flatout.record import Record
from tests import records

HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b\x07\x9b\r\n\u202e|`<"), min_size=1, max_size=40)


def hostile(text: str) -> Record:
    """A record in which every string of a server is the text."""
    record = records.every_kind()
    record.model.id = records.fact(text)
    record.engine.name = record.engine.version = record.engine.launch_command = records.fact(text)
    record.hardware.facts = {text: records.fact(text), "gpu": records.fact(text)}
    record.warnings = [text]
    record.state_reason = text
    for cell in record.cells:
        cell.context = text[:12]
        cell.reason = cell.error = text
        for flag in cell.flags:
            flag.detail = text
    return record


PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tables(text: str) -> list[list[list[str]]]:
    """Tables as rows of rendered cell texts."""
    found: list[list[list[str]]] = []
    tokens = PARSER.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            children = tokens[i + 1].children or []
            assert all(child.type in ("text", "text_special") for child in children), children
            found[-1][-1].append("".join(child.content for child in children))
    return found
