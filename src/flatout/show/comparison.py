"""A comparison in the terminal, as plain text and as Markdown: what differs, and each cell's ratio and verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flatout.compare import (
    CellPair,
    Compared,
    Comparison,
    Crossing,
    Difference,
    Key,
    Outcome,
    Pair,
    Side,
    Value,
    Verdict,
    letter_of,
)
from flatout.show import about, numbers
from flatout.show.layout import Box, Column, Line, box, grid, line, paragraph, text_of
from flatout.show.markdown import escape
from flatout.show.safe import clean, for_encoding

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 20
TEXT_WIDEST: Final = 110
NAMES: Final = {
    "total_tok_s": "total tok/s",
    "prefill_tok_s": "prefill tok/s",
    "end_to_end_tok_s": "end-to-end tok/s",
    "per_request_tok_s": "per-request tok/s",
    "ttft_ms": "TTFT p50",
    "itl_ms": "ITL p50",
}
_STYLES: Final = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNKNOWN: "dim"}
_MOST_NAMED: Final = 30
_UNCHECKED: Final = "no cell has this figure and matches: nothing was checked"
EQUAL: Final = "Same hardware, engine, version, model, prompts and suite, as far as the records tell."
METHOD: Final = (
    "B / A is the ratio of the two figures; its interval is that of both together. 'No difference seen': the runs "
    "cannot tell the two apart; 'could show' is the smallest true difference that they would have found in nine of ten "
    "cases. Over all cells together, equal speeds are called different in at most one of twenty comparisons."
)


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of one figure, or of the cells' speeds."""

    title: str
    rows: tuple[tuple[CellPair, Compared], ...]
    left_out: str | None = None


def render(comparison: Comparison, console: Console, *, every: bool = False) -> None:
    """Prints the comparison in the console's width, in colour where it has any."""
    from rich.text import Text

    for content in document(comparison, max(NARROWEST, console.width - 1), every=every):
        made = Text(no_wrap=True, end="")
        for part, style in content:
            made.append(for_encoding(part, console.encoding), style or None)
        console.print(made, soft_wrap=True, highlight=False, markup=False, emoji=False)


def text(comparison: Comparison, width: int = 100, *, every: bool = False) -> str:
    """The comparison as text without colours or controls, no line wider than `width` (at least 20).

    `every`: also the rows of the other figures where nothing was seen."""
    lines = document(comparison, max(NARROWEST, width), every=every)
    return "\n".join(text_of(content).rstrip() for content in lines)


def document(comparison: Comparison, width: int, *, every: bool = False) -> list[Line]:
    """All lines, none wider than `width`."""
    wide = min(width, TEXT_WIDEST)
    lines = _sides(comparison, wide)
    for pair in comparison.pairs:
        lines += [(), *_pair(pair, width, every=every)]
    lines.append(())
    lines += paragraph(METHOD, wide, style="dim")
    for note in comparison.notes:
        lines += paragraph(clean(note, 1000), wide, first=line(("note  ", "yellow")))
    return lines


def _sides(comparison: Comparison, width: int) -> list[Line]:
    lines: list[Line] = []
    for number, side in enumerate(comparison.sides):
        lines += paragraph(side_text(side), width, first=line((f"{letter_of(number)}  ", "bold")))
        lines += paragraph(clean(side.name, 300), width, first=line("   "), style="dim")
    return lines


def side_text(side: Side) -> str:
    """Who a side is: model on hardware, engine, suite, date, and how many runs. Contains HARD_SPACE, for `wrap`."""
    first = side.records[0]
    many = f" · {len(side.records)} runs" if len(side.records) > 1 else ""
    return f"{about.title(first)} · {about.subtitle(first)}{many}"


def _pair(pair: Pair, width: int, *, every: bool) -> list[Line]:
    letter = pair.letter
    wide = min(width, TEXT_WIDEST)
    lines = paragraph(f"{letter} against A: {sentence(pair)}", wide, style="bold")
    lines += _banner(pair, letter, wide)
    for table in tables(pair, every=every):
        lines += [(), *paragraph(table.title, wide, style="bold")]
        if table.rows:
            lines += _grid(table, letter, width)
        if table.left_out:
            lines += paragraph(table.left_out, wide, style="dim")
    for title, texts in _lists(pair, letter):
        lines += [(), *paragraph(title, wide, style="bold")]
        for said in texts:
            lines += paragraph(said, wide, first=line("  "))
    return lines


def sentence(pair: Pair) -> str:
    """`30 cells: 3 faster, 1 slower, 26 no difference seen; 2 doubtful (1 slower)`."""
    cells = [c for c in pair.cells if c.measured]
    clean_cells = [c for c in cells if not c.doubts]
    if not cells:
        return "the two have no measured cell in common"
    counts = ", ".join(f"{n} {v}" for v in Verdict if (n := pair.count(v)))
    told = f"{_cells(len(clean_cells))}: {counts}" if clean_cells else "no cell without doubt"
    doubtful = len(cells) - len(clean_cells)
    if doubtful:
        inner = ", ".join(f"{n} {v}" for v in Verdict if (n := pair.count(v, doubtful=True)))
        told += f"; {doubtful} doubtful ({inner})"
    if pair.mean_ratio is not None:
        mean = pair.mean_ratio
        told += f"; geometric mean of {pair.letter} / A over the decode cells without doubt: {_ratio(mean.value)}"
        if mean.low is not None and mean.high is not None:
            told += f" ({_ratio(mean.low)}–{_ratio(mean.high)})"
    return told


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"


def _banner(pair: Pair, letter: str, width: int) -> list[Line]:
    if not pair.differences and not pair.unknown:
        return paragraph(EQUAL, width, style="dim")
    lines: list[Line] = []
    if pair.differences:
        groups = ", ".join(dict.fromkeys(d.what for d in pair.differences))
        lines += paragraph(f"NOT EQUAL: {groups}", width, style="bold yellow")
        for told in _told(pair.differences, letter):
            lines += paragraph(told, width, first=line("  "), indent=4)
    for unknown in pair.unknown:
        lines += paragraph(
            f"not known to be equal: {clean(unknown, 300)}", width, first=line("  "), indent=4, style="dim"
        )
    return lines


def _told(differences: Iterable[Difference], letter: str) -> list[str]:
    return [
        f"{d.what}{'' if d.name in (d.what, 'options') else f', {clean(d.name, 60)}'}: "
        f"A {clean(d.a, 400)} | {letter} {clean(d.b, 400)}"
        for d in differences
    ]


def tables(pair: Pair, *, every: bool = False) -> list[_Table]:
    """The cells' speeds in full; of the other figures the rows where something was seen, and how many were left out."""
    made = []
    cells = [c for c in pair.cells if c.measured]
    for phase, title in (("decode", "Decode"), ("prefill", "Prefill"), ("burst", "Burst")):
        rows = tuple((c, c.speed) for c in cells if c.key.phase == phase and c.speed is not None)
        if rows:
            name = NAMES[rows[0][1].figure]
            made.append(_Table(name.capitalize() if name.startswith(phase) else f"{title}: {name}", rows))
    for name in ("per_request_tok_s", "ttft_ms", "itl_ms"):
        rows = tuple((c, c.figures[name]) for c in cells if name in c.figures)
        if rows:
            seen = rows if every else tuple(r for r in rows if r[1].verdict in (Verdict.FASTER, Verdict.SLOWER))
            made.append(_Table(NAMES[name], seen, None if every else _left_out([c for _, c in rows])))
    return made


def _left_out(rows: Sequence[Compared]) -> str | None:
    told = []
    for verdict in (Verdict.SAME, Verdict.UNKNOWN):
        found = [c for c in rows if c.verdict == verdict]
        least = sorted(c.least for c in found if c.least is not None)
        could = f" (could show {numbers.percent(least[0])} to {numbers.percent(least[-1])})" if least else ""
        told += [f"{verdict} in {_cells(len(found))}{could}"] if found else []
    return "; ".join(told) or None


def cell_name(key: Key) -> str:
    """`8K × 4`, `prefill 8K`, `burst 8K × 4`, as elsewhere."""
    label = clean(key.context, 12) or numbers.context(key.tokens)
    if key.phase == "prefill":
        return f"prefill {label}"
    return ("burst " if key.phase == "burst" else "") + f"{label} × {key.concurrency}"


def _value(figure: str, value: Value | None) -> str:
    if value is None:
        return numbers.NONE
    shown = amount(figure, value.value)
    if len(value.runs) > 1:
        spread = max(value.runs) / min(value.runs) - 1
        return f"{shown} ({len(value.runs)} runs, spread {numbers.percent(spread)})"
    half = numbers.interval(value.value, value.low, value.high)
    return shown if half == numbers.NONE else f"{shown} {half}"


def amount(figure: str, value: float | None) -> str:
    """A figure's value as elsewhere, by the unit in its name."""
    name = figure.split(".")[0]
    if name.endswith("_tok_s"):
        return numbers.rate(value)
    if name.endswith("_ms"):
        return numbers.ms(value, fine=name in ("itl_ms", "tpot_ms"))
    if value is None or not math.isfinite(value):
        return numbers.NONE
    return numbers.seconds(value) if name.endswith("_s") else f"{value:,.6g}"


def _ratio(value: float | None) -> str:
    """Four digits around 1, where 2 % must show; — if it is not known."""
    if value is None or not math.isfinite(value):
        return numbers.NONE
    if value >= 1e6:
        return "> 1M"
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def _interval(made: Compared) -> str:
    found = made.ratio
    if found is None or found.low is None or found.high is None:
        return numbers.NONE
    return f"{_ratio(found.low)}–{_ratio(found.high)}"


def _least(made: Compared) -> str:
    return numbers.percent(made.least) if made.least is not None and made.least < 10 else numbers.NONE


def _verdict(cell: CellPair, made: Compared) -> str:
    """The verdict, never without the doubts that it stands under."""
    told = str(made.verdict)
    if made.verdict == Verdict.UNKNOWN:
        told = clean(made.reason or str(made.verdict), 80)
    if cell.doubts:
        doubts = clean("; ".join(cell.doubts), 120)
        # a doubt weighs most where a difference is claimed
        told += f", doubtful: {doubts}" if made.verdict != Verdict.SAME else f" ({doubts})"
    elif cell.notes and made.verdict in (Verdict.FASTER, Verdict.SLOWER):
        told += f" ({clean('; '.join(cell.notes), 120)})"
    return told


def _row(cell: CellPair, made: Compared) -> tuple[str, ...]:
    return (
        cell_name(cell.key), _value(made.figure, made.a), _value(made.figure, made.b),
        _ratio(made.ratio.value if made.ratio is not None else None), _interval(made), _verdict(cell, made),
        _least(made),
    )  # fmt: skip


def _head(letter: str) -> list[str]:
    return ["cell", "A", letter, f"{letter} / A", "95 % interval", "verdict", "could show"]


def _grid(table: _Table, letter: str, width: int) -> list[Line]:
    head = [box((name, "dim")) for name in _head(letter)]
    rows: list[list[Box]] = []
    for cell, made in table.rows:
        shown = _row(cell, made)
        style = "yellow" if cell.doubts else _STYLES[made.verdict]
        # a long verdict goes on below: the table stays as wide as its numbers
        folded = tuple(line((text_of(part), style)) for part in paragraph(shown[5], min(34, max(8, width - 4))))
        rows.append([box((shown[0], "bold")), *(box(part) for part in shown[1:5]), folded, box((shown[6], "dim"))])
    columns = [Column(), Column(), Column(), Column(), Column(), Column("left"), Column()]
    return grid(head, rows, columns, width=width)


def _lists(pair: Pair, letter: str) -> list[tuple[str, list[str]]]:
    """Statuses that changed, and cells that only one side planned."""
    changed = [
        f"{cell_name(c.key)}: {_statuses(c.a_status)} → {_statuses(c.b_status)}" for c in pair.cells if c.changed
    ]
    made = [("Statuses that changed", changed)] if changed else []
    empty = sum(not c.measured for c in pair.cells)
    if empty:
        made.append(("Measured on neither side", [_cells(empty)]))
    for title, keys in (("Only in A", pair.only_a), (f"Only in {letter}", pair.only_b)):
        if keys:
            more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
            made.append((title, [", ".join(map(cell_name, keys[:_MOST_NAMED])) + more]))
    return made


def _statuses(found: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(about.status_word, found)))


def markdown(comparison: Comparison, *, every: bool = False) -> str:
    """The comparison as Markdown that GitHub and forums show right."""
    parts = ["\n".join(f"- **{letter_of(i)}**: {escape(side_text(s))}" for i, s in enumerate(comparison.sides))]
    for pair in comparison.pairs:
        parts += _pair_markdown(pair, every=every)
    parts.append(f"<sub>{escape(METHOD, 2000)}</sub>")
    parts += [f"> {escape(note, 1000)}" for note in comparison.notes]
    return "\n\n".join(parts)


def _pair_markdown(pair: Pair, *, every: bool) -> list[str]:
    letter = pair.letter
    parts = [f"**{letter} against A**: {escape(sentence(pair), 2000)}"]
    if pair.differences or pair.unknown:
        groups = ", ".join(dict.fromkeys(d.what for d in pair.differences))
        told = [*_told(pair.differences, letter), *(f"not known to be equal: {u}" for u in pair.unknown)]
        banner = f"⚠️ **Not equal**: {escape(groups)}" if groups else "**Not known to be equal**"
        parts.append(banner + "\n\n" + "\n".join(f"- {escape(said, 1000)}" for said in told))
    else:
        parts.append(escape(EQUAL))
    head = _head(letter)
    for table in tables(pair, every=every):
        shown = f"**{escape(table.title)}**"
        if table.rows:
            rows = [head, ["---", "---:", "---:", "---:", "---:", "---", "---:"]]
            rows += [[escape(part) for part in _row(cell, made)] for cell, made in table.rows]
            shown += "\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows)
        parts.append(shown + (f"\n\n{escape(table.left_out)}" if table.left_out else ""))
    for title, texts in _lists(pair, letter):
        parts.append(f"**{title}**\n\n" + "\n".join(f"- {escape(said, 4000)}" for said in texts))
    return parts


def outcomes(found: Sequence[Outcome], width: int = 100) -> str:
    """What `--fail-if` found, as plain text: a line a condition, and one for each cell that crossed it."""
    return "\n".join(text_of(made).rstrip() for made in _outcome_lines(found, min(max(NARROWEST, width), TEXT_WIDEST)))


def outcomes_markdown(found: Sequence[Outcome]) -> str:
    """What `--fail-if` found, as a Markdown list."""
    lines: list[str] = []
    for outcome in found:
        told = _counted(outcome) if outcome.checked else _UNCHECKED
        word = "❌ **failed**" if outcome.failed else "✅ passed"
        lines.append(f"- {word}: {escape(outcome.condition)} in {escape(outcome.side, 80)}: {escape(told)}")
        for title, crossings in (("broken", outcome.broken), ("undecided", outcome.undecided)):
            shown = crossings[:_MOST_NAMED]
            lines += [f"  - {title}: {escape(crossing_text(outcome, crossing), 600)}" for crossing in shown]
            if len(crossings) > _MOST_NAMED:
                lines.append(f"  - … and {len(crossings) - _MOST_NAMED} more {title}")
    return "\n".join(lines)


def _outcome_lines(found: Sequence[Outcome], width: int) -> list[Line]:
    lines: list[Line] = []
    for outcome in found:
        word = "FAILED" if outcome.failed else "passed"
        told = f"{word}  {outcome.condition}  in {clean(outcome.side, 80)}: "
        told += _counted(outcome) if outcome.checked else _UNCHECKED
        lines += paragraph(told, width, style="red" if outcome.failed else "green")
        for title, crossings in (("broken", outcome.broken), ("undecided", outcome.undecided)):
            for crossing in crossings[:_MOST_NAMED]:
                said = crossing_text(outcome, crossing)
                lines += paragraph(said, width, first=line(f"  {title:<9}  "))
            if len(crossings) > _MOST_NAMED:
                lines += paragraph(f"… and {len(crossings) - _MOST_NAMED} more {title}", width, first=line("  "))
    return lines


def _counted(outcome: Outcome) -> str:
    return f"{len(outcome.broken)} broken, {len(outcome.undecided)} undecided of {outcome.checked} cells"


def crossing_text(outcome: Outcome, crossing: Crossing) -> str:
    """`8K × 1: total_tok_s 454.2 → 431.0 (-5.1 %), the difference is shown`."""
    figure = str(outcome.condition.figure)
    told = f"{cell_name(crossing.key)}: {figure} {amount(figure, crossing.a)} → {amount(figure, crossing.b)}"
    if crossing.found is not None and outcome.condition.kind == "percent":
        told += f" ({'+' if crossing.found > 0 else ''}{numbers.percent(crossing.found)})"
    told += f", {clean(crossing.why, 200)}"
    return told + (f"; doubtful: {clean('; '.join(crossing.doubts), 200)}" if crossing.doubts else "")


def data(comparison: Comparison, found: Sequence[Outcome] = ()) -> dict[str, Any]:
    """The comparison as values that `json.dumps` takes; texts are clean. Missing is None."""
    return {
        "format": "flatout-comparison/1",
        "sides": [
            {"name": clean(s.name), "is": clean(side_text(s)), "runs": [clean(r.id) for r in s.records]}
            for s in comparison.sides
        ],
        "pairs": [_pair_data(pair) for pair in comparison.pairs],
        "notes": [clean(note, 1000) for note in comparison.notes],
        "fail_if": [
            {
                "condition": str(o.condition), "side": clean(o.side), "failed": o.failed, "checked": o.checked,
                "broken": [crossing_text(o, c) for c in o.broken],
                "undecided": [crossing_text(o, c) for c in o.undecided],
            }
            for o in found
        ],
    }  # fmt: skip


def _pair_data(pair: Pair) -> dict[str, Any]:
    return {
        "a": clean(pair.a.name),
        "b": clean(pair.b.name),
        "letter": pair.letter,
        "differences": [
            {"what": d.what, "name": clean(d.name), "a": clean(d.a), "b": clean(d.b)} for d in pair.differences
        ],
        "not_known": [clean(u) for u in pair.unknown],
        "mean_ratio": pair.mean_ratio.value if pair.mean_ratio is not None else None,
        "cells": [_cell_data(cell) for cell in pair.cells],
        "only_a": [cell_name(key) for key in pair.only_a],
        "only_b": [cell_name(key) for key in pair.only_b],
    }


def _cell_data(cell: CellPair) -> dict[str, Any]:
    key = cell.key
    made: Callable[[float | None], float | None] = lambda v: v if v is not None and math.isfinite(v) else None  # noqa: E731
    return {
        "cell": cell_name(key), "phase": key.phase, "context_tokens": key.tokens, "concurrency": key.concurrency,
        "a_status": [clean(s) for s in cell.a_status], "b_status": [clean(s) for s in cell.b_status],
        "doubts": [clean(d) for d in cell.doubts], "notes": [clean(n) for n in cell.notes],
        "figures": {
            name: {
                "a": c.a.value if c.a else None, "b": c.b.value if c.b else None,
                "ratio": made(c.ratio.value if c.ratio else None), "low": made(c.ratio.low if c.ratio else None),
                "high": made(c.ratio.high if c.ratio else None), "p": made(c.ratio.p if c.ratio else None),
                "interval": c.ratio.how if c.ratio else None, "verdict": str(c.verdict),
                "reason": clean(c.reason) if c.reason else None, "could_show": c.least,
            }
            for name, c in cell.figures.items()
        },
    }  # fmt: skip
