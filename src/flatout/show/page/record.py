"""A record's page: which parts it has, and the file or the fragment that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.record import Record
from flatout.show import about, charts
from flatout.show.page import frame, identity, legend, panels, tables
from flatout.show.page.shown import Limit, Shown, choose
from flatout.show.safe import clean


@dataclass(frozen=True, slots=True)
class Fragment:
    """The page's parts, for a larger page that holds them: sheet and script as text, `head` with the title and the
    first numbers, `rest` with everything beneath it. The script wants an element `#said` to speak through."""

    style: str
    script: str
    head: Markup
    rest: Markup


def fragment(
    record: Record,
    *,
    samples_dir: Path | None = None,
    limits: Mapping[str, Limit] | None = None,
    files: bool = False,
) -> Fragment:
    """What `render` shows, without a document around it. `files`: the page holds its CSV, JSON and record itself."""
    shown = choose(record, limits, files=files)
    head = frame.fill("head.html", **identity.head(shown))
    return Fragment(style(), script(), head, frame.fill("rest.html", **_rest(shown, samples_dir)))


def render(record: Record, *, samples_dir: Path | None = None, limits: Mapping[str, Limit] | None = None) -> str:
    """One self-contained HTML file for a record, which it does not change.

    `samples_dir`: the folder of the record's `.npz` files, for the charts of single requests; without it, or where a
    file is missing or broken, those charts are left out. `limits`: by cell id, for the share of the hardware's limit.
    Raises nothing for any record that `record.parse` takes.
    """
    made = fragment(record, samples_dir=samples_dir, limits=limits, files=True)
    title = identity.title(record)
    return frame.document(
        "record.html", style=made.style, script=made.script, head=made.head, rest=made.rest, title=title,
        description=f"{title}: {identity.verdict(record)}", version=clean(record.client.flatout, 40),
        id=clean(record.id, 120), format=record.format,
    )  # fmt: skip


def style() -> str:
    return frame.asset("page.css")


def script() -> str:
    return frame.asset("page.js")


def _rest(shown: Shown, samples_dir: Path | None) -> dict[str, Any]:
    record = shown.record
    listings = {"prefill": tables.prefill(shown), "bursts": tables.bursts(shown)}
    decode = tables.decode(shown)
    scaling = charts.scaling(record)
    links = [
        ("prefill", "Prefill", listings["prefill"]), ("decode", "Sustained decode", decode),
        ("bursts", "Bursts", listings["bursts"]), ("scaling", "Scaling", scaling),
        ("all", "All measurements", True), ("legend", "Legend", True),
    ]  # fmt: skip
    command = record.engine.launch_command
    return {
        **listings, "decode": decode, "scaling": scaling, "scaling_lines": charts.contexts(record),
        "links": [(anchor, word) for anchor, word, there in links if there], "facts": identity.sections(record),
        "sources": identity.SOURCES, "commands": identity.commands(record),
        "no_command": None if command.value else clean(command.reason or "no reason is recorded", 200),
        "prefill_charts": charts.prefill(record), "key_mark": charts.key_mark, "all": tables.everything(shown),
        "doubtful": any(cell.status == "doubtful" for cell in shown.cells),
        "panels": panels.panels(shown, samples_dir), "legend": legend.section(shown),
        "measured": any(about.measured(cell) for cell in shown.cells),
    }  # fmt: skip
