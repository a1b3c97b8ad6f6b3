"""All measurements: every planned cell, every column, and the same as files from within the page."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from typing import Final

from flatout.record import Cell, Record
from flatout.show import about, legend, numbers
from flatout.show.exports import csv
from flatout.show.page import rows, values
from flatout.show.page.cells import Shown
from flatout.show.page.frame import held_file
from flatout.show.page.head import title
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.page.rows import Column
from flatout.show.safe import clean

MOST_RECORD_BYTES: Final = 8 * 1024 * 1024
"""A record that is larger is not put into its page."""
_LEFT: Final = frozenset({"phase", "context", "status", "flags", "token_source"})


def section(shown: Shown) -> Html:
    shows = rows.columns(shown.cells)
    return tag(
        "section",
        tag("h2", "All measurements", id="all"),
        tag("p", "Every planned cell. Latencies are medians where nothing else is said; total tok/s is output over all "
            "simultaneous requests, for prefill the prompt. TTFT of decode is measured with the context in the prefix "
            "cache, so it mostly leaves prefill out. Why a figure is missing stands on its dash.", class_="cap"),
        _files(shown) if shown.files else None,
        tag("div", _table(shown, shows), class_="wide edge", tabindex="0", role="region",
            aria_label="All measurements"),
        _missing(shown),
    )  # fmt: skip


def _table(shown: Shown, shows: Sequence[Column]) -> Html:
    head = tag(
        "tr",
        [tag("th", column.head, scope="col", class_="l" if column.name in _LEFT else None) for column in shows],
    )
    body = [_row(shown, cell, shows) for cell in shown.cells]
    return tag("table", tag("caption", "All measurements", class_="vh"), tag("thead", head), tag("tbody", body),
               class_="all", id="cells")  # fmt: skip


def _row(shown: Shown, cell: Cell, shows: Sequence[Column]) -> Html:
    return tag("tr", [_entry(shown, cell, column) for column in shows], class_=None if about.measured(cell) else "off")


def _entry(shown: Shown, cell: Cell, column: Column) -> Html:
    value = column.get(cell)
    text = column.text(value)
    left = "l" if column.name in _LEFT else None
    if column.name == "context":
        key = cell.context_tokens if cell.context_tokens is not None and cell.context_tokens < 10**15 else None
        link = tag("a", text, hidden(f" × {cell.concurrency}, all figures"), href=f"#{shown.anchor(cell)}")
        return tag("th", link, scope="row", class_="l", data_v=key)
    if column.name == "status":
        why = clean(cell.reason, 300) if cell.reason else None
        return tag("td", tag("span", text, title=why), class_="l")
    if text == numbers.NONE:
        return tag("td", values.dash(column.why(cell)) if column.name != "flags" else None, class_=left)
    number = values.drawable(value) if isinstance(value, int | float) else None
    return tag("td", text, class_=left, data_v=None if number is None else f"{number:.10g}")


def _missing(shown: Shown) -> Html | None:
    """Why measured cells lack a figure, in text."""
    told = legend.missing(shown.record)
    if not told:
        return None
    items = [
        tag("li", f"{text} ", tag("span", f"({clean(names, 300)})", class_="soft"))
        for names, text in told[:60]
    ]  # fmt: skip
    return tag("details", tag("summary", "Why figures are missing"), tag("ul", items, class_="notes"))


def _files(shown: Shown) -> Html:
    """Links that hold their files themselves: they need no script and no network."""
    record = shown.record
    identity = {
        "title": title(record), "model": about.model_name(record), "engine": about.engine_name(record),
        "hardware": about.hardware_name(record), "suite": clean(record.plan.suite, 80),
        "started": clean(record.started, 40),
    }  # fmt: skip
    name = file_name(record)
    links = [
        held_file("CSV", f"{name}.csv", "text/csv;charset=utf-8", csv.write(record, shown.cells).encode()),
        held_file("JSON", f"{name}.json", "application/json", rows.to_json(record, shown.cells, identity).encode()),
    ]
    whole = record.model_dump_json().encode()
    if len(whole) <= MOST_RECORD_BYTES:
        packed = gzip.compress(whole, 9, mtime=0)
        links.append(held_file("the whole record (JSON, gzip)", f"{name}.record.json.gz", "application/gzip", packed))
    return tag("p", "Download as ", join(links[0], ", ", links[1], *([" or ", links[2]] if links[2:] else [])), ".",
               class_="files")  # fmt: skip


def file_name(record: Record) -> str:
    """A name for files made from the record that every system takes."""
    words = (
        about.known(record.model.served_as) or about.model_name(record),
        about.known(record.engine.name) or "",
        record.id,
    )
    made = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-._")[:48] for word in words)
    return re.sub(r"-{2,}", "-", made).strip("-._") or "flatout"
