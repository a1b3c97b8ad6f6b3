"""What lint found as a document: a list for each rule, its cells, why, and what to do; and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from flatout.lint import Finding
from flatout.lint.finding import TITLES
from flatout.show.document import Block, Document, Heading, Item, Items, Paragraph
from flatout.show.safe import clean

CLEAN: Final = "Nothing found: the figures fit each other."
_STYLES: Final = {"error": "red", "warning": "yellow", "note": "dim"}
_ORDER: Final = ("error", "warning", "note")


def document(findings: Sequence[Finding]) -> Document:
    """A list for each rule: its cells, why it matters, and what to do; how many there are at the end."""
    blocks: list[Block] = []
    for group in _groups(findings):
        first = group[0]
        title = f"{TITLES.get(first.rule, clean(first.rule, 40))} ({first.severity})"
        cells = [Item(clean(one.what, 400), clean(one.cell, 60) or "(all)") for one in group]
        ends = [Item(first.why, "why", style="dim"), Item(first.todo, "do", style="dim")]
        blocks += [Heading(title, style=f"bold {_STYLES[first.severity]}"), Items([*cells, *ends])]
    return [*blocks, Paragraph(sentence(findings), "bold" if findings else "")]


def sentence(findings: Sequence[Finding]) -> str:
    """`14 errors, 31 warnings and 8 notes in 25 cells`."""
    if not findings:
        return CLEAN
    counts = []
    for severity in _ORDER:
        count = sum(one.severity == severity for one in findings)
        if count:
            counts.append(f"{count} {severity}" + ("" if count == 1 else "s"))
    cells = len({one.cell for one in findings if one.cell})
    told = " and ".join(part for part in (", ".join(counts[:-1]), counts[-1]) if part)
    return told + (f" in {cells} cell{'' if cells == 1 else 's'}" if cells else "")


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one rule and severity together; the gravest first, then in the order of the rules."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.rule, one.severity), []).append(one)
    return sorted(groups.values(), key=lambda group: _ORDER.index(group[0].severity))


def data(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as values that `json.dumps` takes; texts are clean."""
    return [{name: clean(value, 1000) for name, value in asdict(one).items()} for one in findings]
