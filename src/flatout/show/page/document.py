"""The page as one file: everything inline, and a policy in it that lets nothing else run or load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.record import Record
from flatout.show.page import decode, detail, ending, facts, head, measurements, prefill, scaling
from flatout.show.page.bursts import section as bursts_section
from flatout.show.page.cells import Limit, Shown, choose
from flatout.show.page.frame import asset, document, inline
from flatout.show.page.html import Html, join, tag
from flatout.show.safe import clean


@dataclass(frozen=True, slots=True)
class Fragment:
    """The page's parts, for a larger page that holds them: sheet and script as text, `head` with the title and the
    first numbers, `rest` with everything beneath it. The script wants an element `#said` to speak through."""

    style: str
    script: str
    head: Html
    rest: Html

    @property
    def body(self) -> Html:
        return join(self.head, self.rest)


def fragment(
    record: Record,
    *,
    samples_dir: Path | None = None,
    limits: Mapping[str, Limit] | None = None,
    files: bool = False,
) -> Fragment:
    """What `render` shows, without a document around it. `files`: the page holds its CSV, JSON and record itself."""
    shown = choose(record, limits, files=files)
    top, sections, panels = _parts(shown, samples_dir)
    return Fragment(asset("page.css"), asset("page.js"), top, join(sections, panels))


def render(record: Record, *, samples_dir: Path | None = None, limits: Mapping[str, Limit] | None = None) -> str:
    """One self-contained HTML file for a record, which it does not change.

    `samples_dir`: the folder of the record's `.npz` files, for the charts of single requests; without it, or where a
    file is missing or broken, those charts are left out. `limits`: by cell id, for the share of the hardware's limit.
    Raises nothing for any record that `record.parse` takes.
    """
    style, script = asset("page.css"), asset("page.js")
    top, sections, panels = _parts(choose(record, limits), samples_dir)
    body = tag(
        "body",
        tag("a", "To the measurements", href="#all", class_="skip"),
        tag("main", top, sections, id="main"),
        panels,
        tag("footer", _footer(record)),
        tag("div", "", id="said", role="status", class_="vh"),
        inline("script", script),
    )
    title = head.title(record)
    told = f"{title}: {head.verdict(record)}"
    return document(f"{title} · flatout speed test", told, body, style=style, script=script)


def _parts(shown: Shown, samples_dir: Path | None) -> tuple[Html, Html, Html]:
    """The header, the sections beneath it with the links to them, and the cells' panels."""
    parts = [
        (None, None, facts.sections(shown.record)),
        ("prefill", "Prefill", prefill.section(shown, scaling.prefill(shown))),
        ("decode", "Sustained decode", decode.section(shown)),
        ("bursts", "Bursts", bursts_section(shown)),
        ("scaling", "Scaling", scaling.section(shown)),
        ("all", "All measurements", measurements.section(shown)),
        ("legend", "Legend", ending.section(shown)),
    ]
    links = [(anchor, word) for anchor, word, made in parts if anchor and word and made is not None]
    sections = join(head.navigation(links), [made for _, _, made in parts])
    return head.head(shown), sections, tag("div", detail.panels(shown, samples_dir), class_="panels")


def _footer(record: Record) -> Html:
    return tag(
        "p", f"Made by flatout {clean(record.client.flatout, 40)} from its record ", tag("code", clean(record.id, 120)),
        f", format {record.format}. This file loads nothing and sends nothing.",
    )  # fmt: skip
