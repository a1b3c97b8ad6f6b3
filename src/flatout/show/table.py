"""The result in the terminal, or as plain text: one document from the record, in colour or without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from flatout.record import Record
from flatout.show import about, legend, matrix, measurements
from flatout.show.layout import Line, line, paragraph, text_of, width_of
from flatout.show.safe import clean, for_encoding

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 20
"""Columns below which nothing is folded any further."""
TEXT_WIDEST: Final = 110
"""Sentences are not set wider than they can be read, however wide the terminal."""

PREFILL: Final = "tok/s of a cold prompt, alone on the server"
DECODE: Final = "total tok/s, TTFT p50 below; columns: requests at once"
BURST: Final = "all requests at once until all are done"


def render(record: Record, console: Console, *, path: Path | None, wide: bool = False) -> None:
    """Prints the result in the console's width. `path`: where the record is. `wide`: also the machine, engine and run
    in full, every measurement in one table, and what was seen for each flag."""
    from rich.text import Text

    # one column less than the console: a line that fills it whole wraps in some terminals
    for content in document(record, max(NARROWEST, console.width - 1), path=path, wide=wide):
        text = Text(no_wrap=True, end="")
        for part, style in content:
            text.append(for_encoding(part, console.encoding), style or None)
        console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def plain(record: Record, width: int = 100, path: Path | None = None, *, wide: bool = True) -> str:
    """The result as text without colours or controls, no line wider than `width` (at least 20), to be printed."""
    lines = document(record, max(NARROWEST, width), path=path, wide=wide)
    return "\n".join(text_of(content).rstrip() for content in lines)


def document(record: Record, width: int, *, path: Path | None, wide: bool) -> list[Line]:
    """All lines of the result, none wider than `width` but the record's path, which must stay whole."""
    letter = about.letters(record)
    text_width = min(width, TEXT_WIDEST)
    parts: list[list[Line]] = [
        _header(record, text_width),
        measurements.fact_lines(record, text_width) if wide else [],
        _named("Prefill", PREFILL, matrix.prefill_lines(record, letter, width), width),
        _named("Decode", DECODE, matrix.decode_lines(record, letter, width), width),
        _named("Burst", BURST, matrix.burst_lines(record, letter, width), width),
        _named("All measurements", None, measurements.lines(record, letter, width), width) if wide else [],
        legend.flag_lines(record, text_width, every=wide),
        legend.status_lines(record, text_width, every=wide),
        _notes(record, text_width, wide=wide),
        legend.warning_lines(record.warnings, text_width),
        legend.capacity_lines(record, text_width),
        [line(("record  ", "dim"), where(path))] if path is not None else [],
    ]
    lines: list[Line] = []
    for part in parts:
        if part and lines:
            lines.append(())
        lines += part
    return lines


def where(path: Path) -> str:
    """The path from here if it lies below, else whole. It is never folded, so that it can be copied."""
    absolute = path.absolute()
    here = Path.cwd()
    return clean(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute, 4096)


def _named(name: str, about_it: str | None, lines: list[Line], width: int) -> list[Line]:
    """A table under its name, with what its numbers are beside it where there is room, else below."""
    if not lines:
        return []
    told = line((name, "bold"), (f"  {about_it}" if about_it else "", "dim"))
    if width_of(told) > width:
        return [line((name, "bold")), *paragraph(about_it or "", width, style="dim"), *lines]
    return [told, *lines]


def _header(record: Record, width: int) -> list[Line]:
    lines = paragraph(about.title(record), width, style="bold")
    lines += paragraph(about.subtitle(record), width)
    speculation = about.speculation(record)
    if speculation:
        lines += paragraph(f"speculative decoding: {speculation}", width, style="dim")
    sound = all(cell.status == "valid" and not cell.flags for cell in record.cells)
    lines += paragraph(about.verdict(record), width, style="" if sound else "yellow")
    ending = about.ending(record)
    if ending:
        lines += paragraph(ending, width, style="bold yellow")
    return lines


def _notes(record: Record, width: int, *, wide: bool) -> list[Line]:
    lines: list[Line] = []
    launched = legend.launch_ttft(record)
    if launched:
        lines += paragraph(f"{legend.LAUNCHED} {about.cell_names(launched)}", width, style="dim")
    if wide:
        lines += legend.missing_lines(legend.missing(record), width)
    return lines
