"""A comparison as a document: what differs, and each cell's ratio and verdict; and as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from flatout import metrics
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
from flatout.metrics import BY_NAME
from flatout.show import about, numbers
from flatout.show.document import Block, Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.show.safe import clean

NAMES: Final = {metric.key: metric.label for metric in metrics.METRICS if metric.judged}
_STYLES: Final = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNKNOWN: "dim"}
_MOST_NAMED: Final = 30
Rows = Sequence[tuple[CellPair, Compared]]
_UNCHECKED: Final = "no cell has this figure and matches: nothing was checked"
EQUAL: Final = "Same hardware, engine, version, model, prompts and suite, as far as the records tell."
METHOD: Final = (
    "B / A is the ratio of the two figures; its interval is that of both together. 'No difference seen': the runs "
    "cannot tell the two apart; 'could show' is the smallest true difference that they would have found in nine of ten "
    "cases. Over all cells together, equal speeds are called different in at most one of twenty comparisons."
)


def document(comparison: Comparison, outcomes: Sequence[Outcome] = (), *, every: bool = False) -> Document:
    """`every`: also the rows of the other figures where nothing was seen. `outcomes`: what `--fail-if` found."""
    sides = [Item(side_text(s), letter_of(i), details=[s.name]) for i, s in enumerate(comparison.sides)]
    pairs = [block for pair in comparison.pairs for block in _pair(pair, every=every)]
    notes = [Paragraph(note, term="note", term_style="yellow") for note in comparison.notes]
    return [Items(sides), *pairs, Paragraph(METHOD, "dim", apart=True), *notes, *outcome_items(outcomes)]


def side_text(side: Side) -> str:
    """Who a side is: model on hardware, engine, suite, date, and how many runs. Contains HARD_SPACE, for `wrap`."""
    first = side.records[0]
    many = f" · {len(side.records)} runs" if len(side.records) > 1 else ""
    return f"{about.title(first)} · {about.subtitle(first)}{many}"


def _pair(pair: Pair, *, every: bool) -> Document:
    letter = pair.letter
    blocks: list[Block] = [Heading(f"{letter} against A"), Paragraph(sentence(pair)), *_banner(pair)]
    for title, rows, left_out in tables(pair, every=every):
        blocks.append(Heading(title))
        blocks += [Table(_columns(letter), [_row(cell, compared) for cell, compared in rows])] if rows else []
        blocks += [Paragraph(left_out, "dim")] if left_out else []
    for title, texts in _lists(pair, letter):
        blocks += [Heading(title), Items([Item(text) for text in texts])]
    return blocks


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
        told += f"; geometric mean of {pair.letter} / A over the decode cells without doubt: {ratio(mean.value)}"
        if mean.low is not None and mean.high is not None:
            told += f" ({ratio(mean.low)}–{ratio(mean.high)})"
    return told


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"


def _banner(pair: Pair) -> Document:
    if not pair.differences and not pair.unknown:
        return [Paragraph(EQUAL, "dim")]
    groups = ", ".join(dict.fromkeys(d.what for d in pair.differences))
    items = [Item(_told(d, pair.letter)) for d in pair.differences]
    items += [Item(f"not known to be equal: {unknown}") for unknown in pair.unknown]
    title = f"NOT EQUAL: {groups}" if groups else "Not known to be equal"
    return [Heading(title, style="bold yellow"), Items(items)]


def _told(difference: Difference, letter: str) -> str:
    d = difference
    name = "" if d.name in (d.what, "options") else f", {clean(d.name, 60)}"
    return f"{d.what}{name}: A {clean(d.a, 400)} | {letter} {clean(d.b, 400)}"


def tables(pair: Pair, *, every: bool = False) -> list[tuple[str, Rows, str | None]]:
    """(title, rows, how many were left out): the cells' speeds in full, of the other figures the rows where something
    was seen."""
    found: list[tuple[str, Rows, str | None]] = []
    cells = [c for c in pair.cells if c.measured]
    for phase in ("decode", "prefill", "burst"):
        rows = [(c, c.speed) for c in cells if c.key.phase == phase and c.speed is not None]
        if rows:
            name = BY_NAME[rows[0][1].figure].label
            found.append((name.capitalize() if name.startswith(phase) else f"{phase.capitalize()}: {name}", rows, None))
    speeds = {metric.key for metric in metrics.SPEED.values()}
    for metric in (metric for metric in metrics.METRICS if metric.judged and metric.key not in speeds):
        rows = [(c, c.figures[metric.key]) for c in cells if metric.key in c.figures]
        if rows:
            seen = rows if every else [r for r in rows if r[1].verdict in (Verdict.FASTER, Verdict.SLOWER)]
            found.append((metric.label, seen, None if every else _left_out([c for _, c in rows])))
    return found


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
    return about.place(key.phase, clean(key.context, 12) or numbers.context(key.tokens), key.concurrency)


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
    """A figure's value as elsewhere."""
    metric = BY_NAME.get(figure)
    return numbers.figure(metric, value) if metric is not None else numbers.NONE


def ratio(value: float | None) -> str:
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
    return f"{ratio(found.low)}–{ratio(found.high)}"


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


def _row(cell: CellPair, made: Compared) -> list[Cell | str]:
    return [
        Cell(cell_name(cell.key), "bold"), _value(made.figure, made.a), _value(made.figure, made.b),
        ratio(made.ratio.value if made.ratio is not None else None), _interval(made),
        Cell(_verdict(cell, made), "yellow" if cell.doubts else _STYLES[made.verdict]), Cell(_least(made), "dim"),
    ]  # fmt: skip


def _columns(letter: str) -> list[Column]:
    names = ("cell", "A", letter, f"{letter} / A", "95 % interval", "verdict", "could show")
    return [Column(name, "left" if name == "verdict" else "right", folds=name == "verdict") for name in names]


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


def outcome_items(outcomes: Sequence[Outcome]) -> Document:
    """What `--fail-if` found: a line a condition, and one for each cell that crossed it."""
    items = []
    for outcome in outcomes:
        lines = []
        for title, crossings in (("broken", outcome.broken), ("undecided", outcome.undecided)):
            lines += [f"{title}: {crossing_text(outcome, crossing)}" for crossing in crossings[:_MOST_NAMED]]
            more = len(crossings) - _MOST_NAMED
            lines += [f"… and {more} more {title}"] if more > 0 else []
        counted = f"{len(outcome.broken)} broken, {len(outcome.undecided)} undecided of {outcome.checked} cells"
        text = f"{outcome.condition} in {clean(outcome.side, 80)}: {counted if outcome.checked else _UNCHECKED}"
        word, style = ("FAILED", "bold red") if outcome.failed else ("passed", "bold green")
        items.append(Item(text, word, details=lines, style=style))
    return [Items(items)] if items else []


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
