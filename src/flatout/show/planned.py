"""The plan before anything is sent (`--dry-run`): each cell's need and verdict, and what the run will cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.plan import Limits, PlannedCell, estimate
from flatout.show import about
from flatout.show.document import Block, Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.suite import K, Suite

_MARKS: Final = {"measure": "", "over_capacity": "c", "over_length": "l", "not_run": "n"}
"""A cell's letter by its verdict; `q` stands for one that will queue."""


def document(
    cells: Sequence[PlannedCell], limits: Limits, suite: Suite, *, engine: str, model: str, budget: int | None = None
) -> Document:
    """Limits, the matrix, why cells are not measured, the sums."""
    room = (
        f"model length {_count(limits.model_length)}",
        f"KV cache {_count(limits.kv_tokens)} tokens",
        f"runs {_count(limits.max_running)} at once",
    )
    blocks: list[Block] = [
        Heading(f"{suite.label} on {model} ({engine})"),
        Paragraph(" · ".join(room)),
        Heading("KV need", "tokens of cache that each cell takes; columns: requests at once"),
        _matrix(cells),
    ]
    reasons = dict.fromkeys((_mark(cell), *_reason(cell, limits)) for cell in cells if _mark(cell))
    if reasons:
        blocks.append(Items([Item(text, term, mark) for mark, term, text in reasons]))
    return [*blocks, *_sums(cells, suite, budget)]


def _matrix(cells: Sequence[PlannedCell]) -> Table:
    """Contexts down, prefill and then numbers of simultaneous requests across."""
    columns = sorted({_column(cell) for cell in cells})
    by_place = {(cell.label, _column(cell)): cell for cell in cells}
    rows = [
        [Cell(label, "bold"), *(_square(by_place.get((label, column))) for column in columns)]
        for label in dict.fromkeys(cell.label for cell in cells)
    ]
    heads = [Column(f"{n:,}" if together else "prefill", style="bold") for together, n in columns]
    return Table([Column("context"), *heads], rows)


def _column(cell: PlannedCell) -> tuple[bool, int]:
    """Prefill first, then requests at once."""
    return cell.phase != "prefill", cell.concurrency


def _square(cell: PlannedCell | None) -> Cell | str:
    if cell is None:
        return ""
    return Cell(_tokens(cell.need_tokens), "" if cell.verdict == "measure" else "dim", _mark(cell))


def _tokens(need: int | None) -> str:
    """At most five signs; K = 1024 tokens, M = K × K."""
    if need is None:
        return "?"
    if need < 10_000:
        return f"{need:,}"
    millions = need / K**2
    return f"{need / K:.0f}K" if need < 999.5 * K else f"{millions:.2f}M" if millions < 9.995 else f"{millions:.1f}M"


def _mark(cell: PlannedCell) -> str:
    return "q" if cell.will_queue else _MARKS[cell.verdict]


def _reason(cell: PlannedCell, limits: Limits) -> tuple[str, str]:
    """The status that the cell will have, and why."""
    if cell.will_queue:
        return "queued", f"The server runs {_count(limits.max_running)} at once; the other requests wait."
    if cell.verdict == "over_capacity":
        return "over capacity", f"Left out: the server holds {_count(limits.kv_tokens)} tokens of KV cache."
    if cell.verdict == "over_length":
        return "over length", f"Left out: the server takes {_count(limits.model_length)} tokens for one request."
    return about.status_word(cell.verdict), f"Left out: {cell.reason}."


def _sums(cells: Sequence[PlannedCell], suite: Suite, budget: int | None) -> Document:
    cost = estimate(list(cells), suite)
    length = f"{cost.window_s / 60:.1f} min" if cost.window_s >= 60 else f"{cost.window_s:.0f} s"
    blocks = [
        Paragraph(
            f"{cost.measured} of {cost.cells} cells to be measured; their windows last {length} at most; warming and "
            "restarts come on top."
        ),
        Paragraph(
            f"At least {cost.cold_tokens:,} prompt tokens computed, {cost.cached_tokens:,} more from the server's "
            f"cache, {cost.output_tokens:,} tokens generated; a stream asks again until its window ends: fast servers "
            "get more."
        ),
    ]
    if budget is not None and budget < cost.tokens:
        text = f"--max-tokens-total {budget:,} does not reach for that: the last cells would not be run."
        blocks.append(Paragraph(text, "yellow"))
    return blocks


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
