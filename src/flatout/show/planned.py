"""The plan before anything is sent (`--dry-run`): which cells will be measured, why others not, what it will cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.plan import Limits, PlannedCell, estimate
from flatout.show import about
from flatout.show.document import Block, Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.suite import Suite

_WORDS: Final = {
    "measure": ("measure", ""), "over_length": ("over", "length"), "over_capacity": ("over", "capacity"),
    "not_run": ("not run", ""),
}  # fmt: skip
NOTES: Final = {
    "prefill": "cold prompts, alone on the server",
    "decode": "what becomes of each cell, and its KV need in tokens; columns: requests at once",
    "burst": "what becomes of each cell, and its KV need in tokens; columns: requests at once",
}


def document(
    cells: Sequence[PlannedCell], limits: Limits, suite: Suite, *, engine: str, model: str, budget: int | None = None
) -> Document:
    """Limits, a matrix for each phase, why cells are not measured, the sums."""
    blocks: list[Block] = [
        Heading(f"{suite.label} on {model} ({engine})"),
        Paragraph(f"model length {_count(limits.model_length)} · KV cache {_count(limits.kv_tokens)} tokens · "
                  f"runs {_count(limits.max_running)} at once"),
    ]  # fmt: skip
    for phase, note in NOTES.items():
        chosen = [cell for cell in cells if cell.phase == phase]
        blocks += [Heading(phase.capitalize(), note), _matrix(chosen)] if chosen else []
    reasons = _reasons(cells)
    return [*blocks, *([Items(reasons)] if reasons else []), *_sums(cells, suite, budget)]


def _matrix(cells: Sequence[PlannedCell]) -> Table:
    columns = sorted({cell.concurrency for cell in cells})
    by_place = {(cell.label, cell.concurrency): cell for cell in cells}
    rows = [
        [Cell(label, "bold"), *(_square(by_place.get((label, n))) for n in columns)]
        for label in dict.fromkeys(cell.label for cell in cells)
    ]
    return Table([Column("context"), *(Column(str(n), style="bold") for n in columns)], rows, air=True)


def _square(cell: PlannedCell | None) -> Cell | str:
    if cell is None:
        return ""
    if cell.verdict != "measure":
        first, second = _WORDS[cell.verdict]
        return Cell(first, "dim", word=second, word_style="dim")
    below = _count(cell.need_tokens) if cell.phase != "prefill" else ""
    return Cell("measure", below=below, word="will queue" if cell.will_queue else "", word_style="cyan")


def _reasons(cells: Sequence[PlannedCell]) -> list[Item]:
    """One line for each verdict that is none to measure: how many, and the first one's reason."""
    items = []
    for verdict in ("over_length", "over_capacity", "not_run"):
        found = [cell for cell in cells if cell.verdict == verdict]
        if found:
            first = about.place(found[0].phase, found[0].label, found[0].concurrency)
            told = f"such as {first}: {found[0].reason}" if found[0].reason else first
            items.append(Item(f"{len(found)} of {len(cells)} cells, {told}", " ".join(_WORDS[verdict]).strip()))
    return items


def _sums(cells: Sequence[PlannedCell], suite: Suite, budget: int | None) -> Document:
    cost = estimate(list(cells), suite)
    length = f"{cost.window_s / 60:.1f} min" if cost.window_s >= 60 else f"{cost.window_s:.0f} s"
    blocks = [
        Paragraph(f"{cost.measured} of {cost.cells} cells to be measured; their windows last {length} at most; warming "
                  "and restarts come on top."),
        Paragraph(f"At least {cost.cold_tokens:,} prompt tokens computed, {cost.cached_tokens:,} more from the "
                  f"server's cache, {cost.output_tokens:,} tokens generated; a stream asks again until its window "
                  "ends: fast servers get more."),
    ]  # fmt: skip
    if budget is not None and budget < cost.tokens:
        text = f"--max-tokens-total {budget:,} does not reach for that: the last cells would not be run."
        blocks.append(Paragraph(text, "yellow"))
    return blocks


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
