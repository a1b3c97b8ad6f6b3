"""The decode matrix and the lists of prefill and burst cells, as grids of styled lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flatout.flags import Status
from flatout.record import Cell, DecodeFigures, Rate, Record
from flatout.show import about, numbers
from flatout.show.layout import Box, Column, Line, Span, box, grid, line

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


def number_style(status: str) -> str:
    return "bold" if status == Status.VALID else f"bold {about.style(status)}".strip()


def marked(number: str, mark: str, wide: int, style: str, mark_style: str = "magenta") -> Line:
    """A number and its footnote letters, the letters in a column of their own so that the digits stay in line."""
    spans: list[Span] = [(number, style)]
    if wide:
        spans += [(" ", ""), (mark.ljust(wide), mark_style)]
    return tuple(spans)


def _decode_box(cell: Cell, letter: Mapping[str, str], wide: int) -> Box:
    if not about.measured(cell) or cell.decode is None:
        words = about.two_lines(cell.status)
        return box(*((word, about.style(cell.status)) for word in words if word))
    figures: DecodeFigures = cell.decode
    pad = " " * (wide + 1) if wide else ""
    lines: list[Line] = [
        marked(numbers.rate(figures.total_tok_s.value), about.marks(cell, letter), wide, number_style(cell.status)),
        line((numbers.ms(figures.ttft_ms.p50) + pad, "dim")),
    ]
    if cell.status != Status.VALID:
        lines.append(line((about.two_lines(cell.status)[0] + pad, about.style(cell.status))))
    return tuple(lines)


def decode_lines(record: Record, letter: Mapping[str, str], width: int) -> list[Line]:
    """Rows are contexts, columns simultaneous requests; a cell has total tok/s, the TTFT's median below, and a word."""
    matrix = of(record.cells)
    if not matrix.rows:
        return []
    wide = {
        n: max([len(about.marks(cell, letter)) for (_, m), cell in matrix.cells.items() if m == n], default=0)
        for n in matrix.columns
    }
    head = [box(("context", "dim")), *(box((f"{n}" + _pad(wide[n]), "bold")) for n in matrix.columns)]
    rows: list[list[Box]] = []
    for row in matrix.rows:
        boxes: list[Box] = [box((row[0], "bold"))]
        for n in matrix.columns:
            cell = matrix.cells.get((row, n))
            boxes.append(_decode_box(cell, letter, wide[n]) if cell else ())
        rows.append(boxes)
    return grid(head, rows, [Column(), *(Column(wide=6) for _ in matrix.columns)], width=width, air=True)


def _pad(wide: int) -> str:
    return " " * (wide + 1) if wide else ""


def _rate_cells(cell: Cell, rate: Rate | None, letter: Mapping[str, str], wide: int) -> tuple[Box, Box]:
    """The rate with its marks and its interval; the status word in the rate's place where there is no number."""
    if rate is None or not about.measured(cell):
        return box((about.status_word(cell.status), about.style(cell.status))), ()
    shown = marked(numbers.rate(rate.value), about.marks(cell, letter), wide, number_style(cell.status))
    return (shown,), box((numbers.interval(rate.value, rate.low, rate.high), "dim"))


def _mark_width(cells: Sequence[Cell], letter: Mapping[str, str]) -> int:
    return max([len(about.marks(cell, letter)) for cell in cells], default=0)


def prefill_lines(record: Record, letter: Mapping[str, str], width: int) -> list[Line]:
    """Context, prompt tok/s with its interval, TTFT cold, and the warm TTFT of one request for comparison."""
    cells = [cell for cell in record.cells if cell.phase == "prefill"]
    if not cells:
        return []
    warm = warm_ttft(record)
    with_warm = any(row_of(cell) in warm for cell in cells)
    wide = _mark_width(cells, letter)
    names = ["context", "tok/s" + _pad(wide), "± 95 %", "TTFT cold", *(["TTFT warm"] if with_warm else []), ""]
    rows: list[list[Box]] = []
    for cell in cells:
        figures = cell.prefill if about.measured(cell) else None
        shown, spread = _rate_cells(cell, figures.prefill_tok_s if figures else None, letter, wide)
        row = [box((about.context(cell), "bold")), shown, spread]
        row.append(box(numbers.ms(figures.ttft_ms.p50)) if figures else ())
        if with_warm:
            row.append(box((numbers.ms(warm[row_of(cell)]), "dim")) if row_of(cell) in warm else ())
        doubtful = cell.status if figures and cell.status != Status.VALID else ""
        rows.append([*row, box((about.status_word(doubtful), about.style(doubtful))) if doubtful else ()])
    columns = [Column() for _ in names[:-1]] + [Column("left")]
    return grid([box((name, "dim")) for name in names], rows, columns, width=width, gaps=(3, 1))


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


def burst_lines(record: Record, letter: Mapping[str, str], width: int) -> list[Line]:
    """Bursts: end-to-end tok/s, how long all took, TTFT, time between tokens, completed and failed requests."""
    cells = [cell for cell in record.cells if cell.phase == "burst"]
    if not cells:
        return []
    wide = _mark_width(cells, letter)
    names = ["context", "at once", "tok/s" + _pad(wide), "± 95 %", "took", "TTFT p50", "ITL p50", "done", "failed", ""]
    rows: list[list[Box]] = []
    for cell in cells:
        figures = cell.burst if about.measured(cell) else None
        shown, spread = _rate_cells(cell, figures.end_to_end_tok_s if figures else None, letter, wide)
        row = [box((about.context(cell), "bold")), box(str(cell.concurrency)), shown, spread]
        if figures:
            row += [
                box(numbers.seconds(figures.duration_s)),
                box(numbers.ms(figures.ttft_ms.p50)),
                box(numbers.ms(figures.itl_ms.p50, fine=True)),
                box(numbers.count(figures.completed)),
                box((numbers.count(figures.failed_requests), "red" if figures.failed_requests else "dim")),
            ]
        else:
            row += [(), (), (), (), ()]
        word = about.status_word(cell.status) if figures and cell.status != Status.VALID else ""
        rows.append([*row, box((word, about.style(cell.status))) if word else ()])
    columns = [Column() for _ in names[:-1]] + [Column("left")]
    return grid([box((name, "dim")) for name in names], rows, columns, width=width, keys=2, gaps=(3, 1))
