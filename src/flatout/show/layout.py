"""Lines of styled spans, and how they are put into columns: the one layout behind the terminal, the live view and
plain text, so that all three say the same. Styles are rich's style words; plain text drops them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len

Span = tuple[str, str]
Line = tuple[Span, ...]
"""One line on the terminal. Its texts are clean (`show.safe`) before they get here."""
Box = tuple[Line, ...]
"""The content of one cell of a grid: its lines from the top."""

EMPTY: Final[Line] = ()
HARD_SPACE: Final = "\u00a0"
"""A space at which `wrap` does not break; it comes out as a space. Clean text has none of its own."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column stands; `wide`: least width."""

    align: Literal["left", "right"] = "right"
    wide: int = 0


def line(*spans: Span | str) -> Line:
    """A line from spans and unstyled texts."""
    return tuple(span if isinstance(span, tuple) else (span, "") for span in spans)


def box(*lines: Span | str) -> Box:
    """A grid's cell of plain lines, each one span."""
    return tuple(line(part) for part in lines)


def width_of(content: Line) -> int:
    """Terminal columns that a line takes."""
    return sum(cell_len(text) for text, _ in content)


def text_of(content: Line) -> str:
    return "".join(text for text, _ in content)


def padded(text: str, width: int) -> str:
    """The text with spaces up to so many terminal columns."""
    return text + " " * (width - cell_len(text))


def cut(content: Line, width: int) -> Line:
    """The line, or its beginning and `…` where it is wider than `width`."""
    if width_of(content) <= width:
        return content
    if width < 1:
        return EMPTY
    made: list[Span] = []
    left = width - 1
    for text, style in content:
        kept = _head(text, left)
        made.append((kept, style))
        left -= cell_len(kept)
        if kept != text:
            break
    return (*made, ("…", ""))


def _head(text: str, width: int) -> str:
    """The longest beginning of `text` that takes at most `width` terminal columns."""
    if cell_len(text) <= width:
        return text
    end = min(len(text), max(0, width))
    while end and cell_len(text[:end]) > width:
        end -= 1
    return text[:end]


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces, or inside a word that is longer than a line."""
    whole = text.replace(" %", f"{HARD_SPACE}%")
    return [part.replace(HARD_SPACE, " ") for part in _wrapped(whole, max(1, width))]


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    now = ""
    for word in text.split(" "):
        while cell_len(word) > width:
            if now and cell_len(now) < width - 8:
                head = _head(word, width - cell_len(now) - 1)
                lines.append(f"{now} {head}")
            else:
                if now:
                    lines.append(now)
                head = _head(word, width) or word[:1]
                lines.append(head)
            now, word = "", word[len(head) :]
        joined = f"{now} {word}" if now else word
        if cell_len(joined) <= width:
            now = joined
        else:
            lines.append(now)
            now = word
    return [*lines, now] if now or not lines else lines


def paragraph(text: str, width: int, *, first: Line = EMPTY, indent: int | None = None, style: str = "") -> list[Line]:
    """Wrapped text after `first` (a hanging term); the other lines are indented by `indent` (default: first's width).

    Where the term leaves too little room, the text begins on a line of its own.
    """
    start = width_of(first)
    hang = start if indent is None else indent
    if hang > width // 2:
        hang = min(2, width // 4)
    lines: list[Line] = []
    if start > hang:
        lines.append(cut(first, width))
        first = EMPTY
        start = 0
    for i, part in enumerate(wrap(text, width - hang)):
        lead: Line = first if i == 0 and start else EMPTY
        pad = hang - width_of(lead)
        lines.append((*lead, (" " * pad, ""), (part, style)) if pad else (*lead, (part, style)))
    return lines


def flow(items: Sequence[Line], width: int, *, gap: int = 3, indent: int = 0) -> list[Line]:
    """Items side by side with a gap, going on below where the line is full; an item that is too wide is cut."""
    lines: list[Line] = []
    now: Line = EMPTY
    for item in items:
        item = cut(item, width - indent)
        room = width_of(now) + gap + width_of(item)
        if now and room <= width:
            now = (*now, (" " * gap, ""), *item)
            continue
        if now:
            lines.append(now)
        now = ((" " * indent, ""), *item) if indent else item
    return [*lines, now] if now else lines


def grid(
    head: Sequence[Box],
    rows: Sequence[Sequence[Box]],
    columns: Sequence[Column],
    *,
    width: int,
    keys: int = 1,
    air: bool = False,
    gaps: tuple[int, int] = (2, 1),
) -> list[Line]:
    """A table without rules. Too wide for `width`: first the gap shrinks, then the columns are dealt onto several
    bands below each other, each with the first `keys` columns again. `air`: a blank line between rows of many lines.
    """
    table = [head, *rows]
    wide = [
        max([column.wide, *(width_of(part) for row in table for part in row[i])]) for i, column in enumerate(columns)
    ]
    count = len(columns)
    gap = next((g for g in gaps if sum(wide) + g * (count - 1) <= width), gaps[0])
    key_width = sum(wide[:keys]) + gap * keys
    bands = _bands(wide, keys, width - key_width, gap)
    lines: list[Line] = []
    for number, band in enumerate(bands):
        chosen = [*range(min(keys, count)), *band]
        if number:
            lines.append(EMPTY)
        widths = _squeezed([wide[i] for i in chosen], gap, width)
        for row_number, row in enumerate(table):
            if air and row_number > 1:
                lines.append(EMPTY)
            lines += _row([row[i] for i in chosen], [columns[i] for i in chosen], widths, gap, bottom=row_number == 0)
    return lines


def _bands(wide: Sequence[int], keys: int, room: int, gap: int) -> list[list[int]]:
    """The columns after the keys, dealt onto as few bands as hold them, about equally many each."""
    rest = list(range(keys, len(wide)))
    greedy = _dealt(rest, wide, room, gap, len(rest) or 1)
    if len(greedy) < 2:
        return greedy
    for most in range(-(-len(rest) // len(greedy)), len(rest)):
        even = _dealt(rest, wide, room, gap, most)
        if len(even) == len(greedy):
            return even
    return greedy


def _dealt(rest: Sequence[int], wide: Sequence[int], room: int, gap: int, most: int) -> list[list[int]]:
    bands: list[list[int]] = [[]]
    used = 0
    for i in rest:
        need = wide[i] + (gap if bands[-1] else 0)
        if bands[-1] and (used + need > room or len(bands[-1]) >= most):
            bands.append([])
            used, need = 0, wide[i]
        bands[-1].append(i)
        used += need
    return bands


def _squeezed(widths: list[int], gap: int, width: int) -> list[int]:
    """Widths that fit: the widest column gives way as long as the sum is too much (only in very narrow terminals)."""
    widths = list(widths)
    while sum(widths) + gap * (len(widths) - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(cells: Sequence[Box], columns: Sequence[Column], widths: Sequence[int], gap: int, *, bottom: bool) -> Box:
    height = max([1, *(len(cell) for cell in cells)])
    lines: list[Line] = []
    for y in range(height):
        spans: list[Span] = []
        for x, (cell, column, wide) in enumerate(zip(cells, columns, widths, strict=True)):
            at = y - (height - len(cell)) if bottom else y
            part = cut(cell[at], wide) if 0 <= at < len(cell) else EMPTY
            pad = (" " * (wide - width_of(part)), "")
            if x:
                spans.append((" " * gap, ""))
            spans += [pad, *part] if column.align == "right" else [*part, pad]
        lines.append(_stripped(spans))
    return tuple(lines)


def _stripped(spans: Sequence[Span]) -> Line:
    """Without the spaces that end the line, and with neighbours of one style joined."""
    made: list[Span] = []
    for text, style in spans:
        if not text:
            continue
        if made and (made[-1][1] == style or not text.strip()) and "reverse" not in made[-1][1]:
            made[-1] = (made[-1][0] + text, made[-1][1])
        else:
            made.append((text, style))
    while made:
        text = made[-1][0].rstrip(" ")
        if text:
            made[-1] = (text, made[-1][1])
            break
        made.pop()
    return tuple(made)
