"""The page as one file: everything inline, and a policy in it that lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from flatout.record import Record
from flatout.show.page import decode, detail, ending, facts, head, measurements, prefill, scaling
from flatout.show.page.bursts import section as bursts_section
from flatout.show.page.cells import Limit, Shown, choose
from flatout.show.page.html import Html, join, raw, tag
from flatout.show.safe import clean


def render(record: Record, *, samples_dir: Path | None = None, limits: Mapping[str, Limit] | None = None) -> str:
    """One self-contained HTML file for a record, which it does not change.

    `samples_dir`: the folder of the record's `.npz` files, for the charts of single requests; without it, or where a
    file is missing or broken, those charts are left out. `limits`: by cell id, for the share of the hardware's limit.
    Raises nothing for any record that `record.parse` takes.
    """
    shown = choose(record, limits)
    style, script = _asset("page.css"), _asset("page.js")
    main = tag("main", _sections(shown), id="main")
    body = tag(
        "body",
        tag("a", "To the measurements", href="#all", class_="skip"),
        main,
        tag("div", detail.panels(shown, samples_dir), class_="panels"),
        tag("footer", _footer(record)),
        tag("div", "", id="said", role="status", class_="vh"),
        _inline("script", script),
    )
    document = tag("html", _head(record, style, script), body, lang="en")
    return f"<!doctype html>\n{document}\n"


def _sections(shown: Shown) -> Html:
    parts = [
        (None, None, head.head(shown)),
        (None, None, facts.sections(shown.record)),
        ("prefill", "Prefill", prefill.section(shown, scaling.prefill(shown))),
        ("decode", "Sustained decode", decode.section(shown)),
        ("bursts", "Bursts", bursts_section(shown)),
        ("scaling", "Scaling", scaling.section(shown)),
        ("all", "All measurements", measurements.section(shown)),
        ("legend", "Legend", ending.section(shown)),
    ]
    links = [(anchor, word) for anchor, word, made in parts if anchor and word and made is not None]
    bodies = [made for _, _, made in parts]
    return join(bodies[0], head.navigation(links), bodies[1:])


def _footer(record: Record) -> Html:
    return tag(
        "p", f"Made by flatout {clean(record.client.flatout, 40)} from its record ", tag("code", clean(record.id, 120)),
        f", format {record.format}. This file loads nothing and sends nothing.",
    )  # fmt: skip


def _head(record: Record, style: str, script: str) -> Html:
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="description", content=f"{head.title(record)}: {head.verdict(record)}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{head.title(record)} · flatout speed test"),
        _inline("style", style),
    )


def _asset(name: str) -> str:
    return resources.files("flatout.show.page").joinpath(name).read_text(encoding="utf-8")


def _inline(name: str, content: str) -> Html:
    """Our own file, whole: its hash is in the policy."""
    return raw(f"<{name}>{content}</{name}>")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
