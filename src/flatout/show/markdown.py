"""The result as Markdown that GitHub and forums show right: pasted as it is, nothing from the record can act in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flatout.flags import Status
from flatout.record import Cell, Rate, Record
from flatout.show import about, capacity, legend, matrix, numbers
from flatout.show.layout import HARD_SPACE
from flatout.show.safe import clean

_ACTIVE: Final = re.compile(r"([\\`*_\[\]|~$#])")
_MENTION: Final = re.compile(r"@(?=\w)")
_LINK: Final = re.compile(r"(?i)(?:https?|ftp|mailto|xmpp):|www(?=\.)")
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_SUPERSCRIPT: Final = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
_WORD_JOINER: Final = "\u2060"


def escape(text: object, limit: int = 500) -> str:
    """Text that Markdown shows as itself, on one line: no markup, HTML, table cell, formula, link or mention begins in
    it."""
    shown = str(text).replace(HARD_SPACE, " ")
    escaped = _ACTIVE.sub(r"\\\1", clean(shown, limit)).translate(_ENTITIES)
    # nothing escapes an @ or a bare address on GitHub: an invisible joiner keeps it from naming a person, from linking
    inert = _MENTION.sub(f"@{_WORD_JOINER}", escaped)
    return _LINK.sub(lambda found: f"{found[0]}{_WORD_JOINER}", inert)


def render(record: Record) -> str:
    """Header, prefill table, matrix, bursts, legend, reasons and the line about users at once, to be printed."""
    letter = about.letters(record)
    parts = [
        f"**{escape(about.title(record))}**",
        _header(record),
        _prefill(record, letter),
        _decode(record, letter),
        _burst(record, letter),
        _legend(record),
        "\n\n".join(f"**Note**: {escape(warning, 1000)}" for warning in record.warnings),
        _capacity(record),
        f"Measured by flatout {escape(record.client.flatout, 40)}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _header(record: Record) -> str:
    parts = [about.subtitle(record), about.verdict(record)]
    speculation = about.speculation(record)
    if speculation:
        parts.insert(1, f"speculative decoding: {speculation}")
    ending = about.ending(record)
    told = " · ".join(escape(part) for part in parts)
    return told + (f"\n\n**{escape(ending)}**" if ending else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped texts, all columns to the right."""
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _marks(cell: Cell, letter: Mapping[str, str]) -> str:
    return about.marks(cell, letter).translate(_SUPERSCRIPT)


def _rate(cell: Cell, rate: Rate | None, letter: Mapping[str, str]) -> tuple[str, str]:
    """The rate with marks (and the word of a cell that is not simply valid), and its interval."""
    if rate is None or not about.measured(cell):
        return escape(about.status_word(cell.status)), ""
    word = "" if cell.status == Status.VALID else f" {about.two_lines(cell.status)[0]}"
    shown = escape(numbers.rate(rate.value)) + _marks(cell, letter) + word
    return shown, escape(numbers.interval(rate.value, rate.low, rate.high))


def _prefill(record: Record, letter: Mapping[str, str]) -> str:
    cells = [cell for cell in record.cells if cell.phase == "prefill"]
    if not cells:
        return ""
    warm = matrix.warm_ttft(record)
    rows = []
    for cell in cells:
        figures = cell.prefill if about.measured(cell) else None
        shown, spread = _rate(cell, figures.prefill_tok_s if figures else None, letter)
        row = [escape(about.context(cell)), shown, spread, numbers.ms(figures.ttft_ms.p50) if figures else ""]
        rows.append([*row, numbers.ms(warm[matrix.row_of(cell)]) if matrix.row_of(cell) in warm else ""])
    head = ["context", "tok/s", "± 95 %", "TTFT cold", "TTFT warm"]
    return "**Prefill**: tok/s of a cold prompt, alone on the server\n\n" + _table(head, rows)


def _decode(record: Record, letter: Mapping[str, str]) -> str:
    found = matrix.of(record.cells)
    if not found.rows:
        return ""
    rows = []
    for row in found.rows:
        cells = [found.cells.get((row, n)) for n in found.columns]
        rows.append([escape(row[0]), *("" if cell is None else _decode_cell(cell, letter) for cell in cells)])
    head = ["context", *(str(n) for n in found.columns)]
    return "**Decode**: total tok/s (TTFT p50); columns: requests at once\n\n" + _table(head, rows)


def _decode_cell(cell: Cell, letter: Mapping[str, str]) -> str:
    if cell.decode is None or not about.measured(cell):
        return escape(about.status_word(cell.status))
    shown = f"{numbers.rate(cell.decode.total_tok_s.value)}{_marks(cell, letter)}"
    shown += f" ({numbers.ms(cell.decode.ttft_ms.p50)})"
    return shown if cell.status == Status.VALID else f"{shown} {about.two_lines(cell.status)[0]}"


def _burst(record: Record, letter: Mapping[str, str]) -> str:
    cells = [cell for cell in record.cells if cell.phase == "burst"]
    if not cells:
        return ""
    rows = []
    for cell in cells:
        figures = cell.burst if about.measured(cell) else None
        shown, spread = _rate(cell, figures.end_to_end_tok_s if figures else None, letter)
        row = [escape(about.context(cell)), str(cell.concurrency), shown, spread]
        if figures:
            row += [numbers.seconds(figures.duration_s), numbers.ms(figures.ttft_ms.p50)]
            row += [numbers.count(figures.completed), numbers.count(figures.failed_requests)]
        rows.append(row + [""] * (8 - len(row)))
    head = ["context", "at once", "tok/s", "± 95 %", "took", "TTFT p50", "done", "failed"]
    return "**Burst**: all requests at once until all are done\n\n" + _table(head, rows)


def _legend(record: Record) -> str:
    lines = []
    for entry in legend.flags(record):
        mark = entry.letter.translate(_SUPERSCRIPT)
        lines.append(f"- {mark} **{escape(entry.term)}**: {escape(entry.sentence)} {_seen(entry, legend.DETAILS)}")
    for entry in legend.statuses(record):
        most = len(entry.details) if entry.name == Status.FAILED else legend.DETAILS
        lines.append(f"- **{escape(entry.term)}**: {escape(entry.sentence)} {_seen(entry, most)}")
    launched = legend.launch_ttft(record)
    if launched:
        lines.append(f"- {escape(legend.LAUNCHED)} {escape(about.cell_names(launched))}")
    return "\n".join(line.rstrip() for line in lines)


def _seen(entry: legend.Entry, most: int) -> str:
    """The cells, and what was seen in them where it is little."""
    if not entry.details:
        return escape(entry.where, 2000)
    if len(entry.details) > most:
        names, text = entry.details[0]
        shown = f"{entry.where}, such as {names}: {text}" if entry.where else f"Such as {names}: {text}"
        return escape(shown, 2000)
    told = "; ".join(f"{names}: {text}" for names, text in entry.details)
    return escape(told, 4000)


def _capacity(record: Record) -> str:
    answers = capacity.capacities(record)
    if not answers:
        return ""
    text = " · ".join(f"{answer.context}: {answer.text}" for answer in answers)
    notes = "; ".join(capacity.notes(answers))
    return f"**{escape(capacity.question(record.per_user_tok_s))}** {escape(text, 2000)}" + (
        f"\n\n{escape(notes, 2000)}" if notes else ""
    )
