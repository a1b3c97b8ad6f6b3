"""What lint found, as text, in the terminal and as Markdown: a block for each rule, its cells, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len

from flatout.lint import Finding
from flatout.lint.finding import TITLES
from flatout.show.layout import Line, line, padded, paragraph, text_of
from flatout.show.markdown import escape
from flatout.show.safe import clean, for_encoding

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 20
TEXT_WIDEST: Final = 110
CLEAN: Final = "Nothing found: the figures fit each other."
_STYLES: Final = {"error": "red", "warning": "yellow", "note": "dim"}
_ORDER: Final = ("error", "warning", "note")
_WIDEST_NAME: Final = 24


def render(findings: Sequence[Finding], console: Console) -> None:
    """Prints the findings in the console's width, in colour where it has any."""
    from rich.text import Text

    for content in document(findings, max(NARROWEST, console.width - 1)):
        made = Text(no_wrap=True, end="")
        for part, style in content:
            made.append(for_encoding(part, console.encoding), style or None)
        console.print(made, soft_wrap=True, highlight=False, markup=False, emoji=False)


def text(findings: Sequence[Finding], width: int = 100) -> str:
    """The findings as text without colours or controls, no line wider than `width` (at least 20)."""
    return "\n".join(text_of(content).rstrip() for content in document(findings, max(NARROWEST, width)))


def document(findings: Sequence[Finding], width: int) -> list[Line]:
    """All lines, none wider than `width`."""
    if not findings:
        return paragraph(CLEAN, width)
    wide = min(width, TEXT_WIDEST)
    lines: list[Line] = []
    for group in _groups(findings):
        first = group[0]
        head = f"{TITLES.get(first.rule, clean(first.rule, 40))}  "
        lines += paragraph(f"{head}({first.severity})", wide, style=f"bold {_STYLES[first.severity]}")
        names = max(min(cell_len(_cell(one)), _WIDEST_NAME) for one in group)
        for one in group:
            told = clean(one.what, 400)
            lines += paragraph(told, wide, first=line((f"  {padded(_cell(one), names)}  ", "bold")))
        lines += paragraph(first.why, wide, first=line(("  why  ", "dim")), style="dim")
        lines += paragraph(first.todo, wide, first=line(("  do   ", "dim")))
        lines.append(())
    return [*lines, *paragraph(sentence(findings), wide, style="bold")]


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


def _cell(one: Finding) -> str:
    return clean(one.cell, 60) or "(all)"


def markdown(findings: Sequence[Finding]) -> str:
    """The findings as Markdown that GitHub and forums show right."""
    if not findings:
        return escape(CLEAN)
    parts = [f"**{escape(sentence(findings))}**"]
    for group in _groups(findings):
        first = group[0]
        rows = "\n".join(f"| {escape(_cell(one), 60)} | {escape(one.what, 400)} |" for one in group)
        title = TITLES.get(first.rule, first.rule)
        parts.append(
            f"**{escape(title)}** ({first.severity})\n\n| cell | what |\n| --- | --- |\n{rows}\n\n"
            f"{escape(first.why, 1000)} {escape(first.todo, 1000)}"
        )
    return "\n\n".join(parts)


def data(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as values that `json.dumps` takes; texts are clean."""
    return [{name: clean(value, 1000) for name, value in asdict(one).items()} for one in findings]
