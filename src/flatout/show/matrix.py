"""The cells of a phase by context and number of simultaneous requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flatout.record import Cell, Record
from flatout.show import about

Row = tuple[str, int | None]
"""A matrix row: the context's label and tokens."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells of one phase by context and number of simultaneous requests."""

    rows: tuple[Row, ...]
    columns: tuple[int, ...]
    cells: Mapping[tuple[Row, int], Cell]


def row_of(cell: Cell) -> Row:
    return about.context(cell), cell.context_tokens


def of(cells: Iterable[Cell], phase: str = "decode") -> Matrix:
    """The matrix of a phase; contexts ascending, those of unknown length last, in the plan's order."""
    chosen = [cell for cell in cells if cell.phase == phase]
    rows = sorted(dict.fromkeys(map(row_of, chosen)), key=lambda row: row[1] if row[1] is not None else float("inf"))
    return Matrix(
        rows=tuple(rows),
        columns=tuple(sorted({cell.concurrency for cell in chosen})),
        cells={(row_of(cell), cell.concurrency): cell for cell in chosen},
    )


def warm_ttft(record: Record) -> dict[Row, float]:
    """TTFT p50 of one request alone whose context was warm, by context: what stands beside the cold one."""
    return {
        row_of(cell): cell.decode.ttft_ms.p50
        for cell in record.cells
        if cell.phase == "decode"
        and cell.concurrency == 1
        and about.measured(cell)
        and cell.decode is not None
        and cell.decode.ttft_ms.p50 is not None
        and cell.decode.contexts_cached is not False
    }
