"""The matrix as a picture for posts: 1200 × 630 as sites show links, or as large as all its cells need.

Drawn as SVG here and turned into PNG by vl-convert (the extra `pictures`). Cells have the same shades, words and
frontier as in the page.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flatout.flags import Status
from flatout.record import Cell, Record
from flatout.show import about, capacity, matrix, numbers
from flatout.show.page import values
from flatout.show.page.heat import LIGHT, Heat
from flatout.show.safe import HARD_SPACE, clean

PAPER, INK, SOFT, VOID = "#fdfcfa", "#191714", "#615c54", "#f0ede7"
FONT: Final = "Liberation Sans, Arial, Helvetica, Roboto, DejaVu Sans, sans-serif"
CARD: Final = (1200, 630)
SCALE: Final = 2.0
MOST: Final = (40, 40)
"""Rows and columns of the largest picture."""
_SIDE: Final = 44.0
_DIGIT, _NARROW = 0.556, 0.278
"""Widths of a digit, and of a comma or point, in the fonts of FONT, for one unit of size."""
_LEGEND: Final = "total tok/s, ± 95 %, TTFT · columns: requests at once"
_NO_ROOM: Final = (Status.OVER_CAPACITY, Status.OVER_LENGTH)


class PictureError(Exception):
    """No picture can be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the matrix stands: rows and columns that fit, the size of a cell, the corner, the whole picture's size."""

    rows: Sequence[matrix.Row]
    columns: Sequence[int]
    cell: tuple[float, float]
    corner: tuple[float, float]
    size: tuple[float, float]
    left_out: str


def png(record: Record, *, size: Literal["card", "full"] = "card") -> bytes:
    """The picture as PNG. `card`: 1200 × 630 pixels, cells that do not fit are left out and counted; `full`: every cell
    up to MOST, at twice the density. Raises PictureError: the extra is not installed, or there is no decode cell."""
    drawn = svg(record, size=size)
    try:
        import vl_convert
    except ImportError as error:
        raise PictureError("pictures need the extra: pip install 'flatout[pictures]'") from error
    made: bytes = vl_convert.svg_to_png(drawn, scale=1.0 if size == "card" else SCALE)
    return made


def svg(record: Record, *, size: Literal["card", "full"] = "card") -> str:
    """The same as SVG text. Raises PictureError if the record has no decode cell."""
    found = matrix.of(record.cells)
    if not found.rows:
        raise PictureError("the record has no decode cells, so there is no matrix to draw")
    frame = _card(found) if size == "card" else _full(found)
    wide, high = frame.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}">',
        f'<rect width="{wide:.0f}" height="{high:.0f}" fill="{PAPER}"/>',
        *_head(record, wide),
        *_matrix(record, found, frame),
        *_foot(record, frame),
        "</svg>",
    ]
    return "".join(parts)


def _card(found: matrix.Matrix) -> _Frame:
    rows, columns = found.rows[:8], found.columns[:9]
    high = min(78.0, (CARD[1] - 236.0) / len(rows))
    wide = min(230.0, (CARD[0] - 2 * _SIDE - 74.0) / len(columns))
    out = len(found.rows) * len(found.columns) - len(rows) * len(columns)
    return _Frame(
        rows, columns, (wide, high), (_SIDE + 74.0, 186.0), CARD, f"{out:,} more cells in the record" if out else ""
    )


def _full(found: matrix.Matrix) -> _Frame:
    rows, columns = found.rows[: MOST[0]], found.columns[: MOST[1]]
    wide, high = 122.0, 76.0
    out = len(found.rows) * len(found.columns) - len(rows) * len(columns)
    size = (max(900.0, 2 * _SIDE + 74 + wide * len(columns)), 186 + high * len(rows) + 60)
    return _Frame(
        rows, columns, (wide, high), (_SIDE + 74.0, 186.0), size, f"{out:,} more cells in the record" if out else ""
    )


def _text(
    x: float, y: float, text: str, size: float, *, bold: bool = False, fill: str = INK, anchor: str = "start"
) -> str:
    safe = html.escape("".join(c if c.isprintable() or c == HARD_SPACE else " " for c in text))
    weight = ' font-weight="700"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{FONT}" font-size="{size:.1f}"{weight} fill="{fill}" '
        f'text-anchor="{anchor}">{safe}</text>'
    )


def _fit(text: str, wide: float, size: float, *, least: float) -> tuple[str, float]:
    """The text and a size at which it fits into the width, cut where even the least size is too large."""
    each = 0.56
    fits = wide / (each * max(1, len(text)))
    if fits >= least:
        return text, min(size, fits)
    most = int(wide / (each * least))
    return text[: max(1, most - 1)].rstrip() + "…", least


def _head(record: Record, wide: float) -> list[str]:
    room = wide - 2 * _SIDE
    name = about.model_name(record).rsplit("/", 1)[-1]
    title, size = _fit(f"{name} on {about.hardware_name(record)}", room, 46, least=24)
    sub = " · ".join(p for p in (about.engine_name(record), about.precision(record), about.speculation(record)) if p)
    below, small = _fit(sub, room, 20, least=14)
    date = (about.moment(record.started) or "")[:10]
    told, tiny = _fit(f"{about.verdict(record).replace(HARD_SPACE, ' ')} · {date}", room - 350, 17, least=10)
    return [
        _text(_SIDE, 74, title, size, bold=True),
        _text(_SIDE, 106, below, small),
        _text(_SIDE, 134, told, tiny, fill=SOFT),
        _text(wide - _SIDE, 134, _LEGEND, 13, fill=SOFT, anchor="end"),
    ]


def _matrix(record: Record, found: matrix.Matrix, frame: _Frame) -> list[str]:
    x0, y0 = frame.corner
    wide, high = frame.cell
    heat = Heat([_total(cell) for cell in found.cells.values()], more=True)
    letters = about.letters(record)
    parts = [_text(_SIDE, y0 - 10, "context", 13, fill=SOFT)]
    parts += [
        _text(x0 + i * wide + 8, y0 - 10, f"{n:,}" if n < 10**7 else "…", 16, bold=True)
        for i, n in enumerate(frame.columns)
    ]
    for y, row in enumerate(frame.rows):
        label, size = _fit(row[0], 66, 17, least=9)
        parts.append(_text(_SIDE, y0 + y * high + 26, label, size, bold=True))
        for x, n in enumerate(frame.columns):
            cell = found.cells.get((row, n))
            if cell is not None:
                parts += _square(cell, x0 + x * wide, y0 + y * high, frame.cell, heat, about.marks(cell, letters))
    return [*parts, *_frontier(found, frame)]


def _total(cell: Cell) -> float | None:
    return cell.decode.total_tok_s.value if cell.decode is not None and about.measured(cell) else None


def _square(cell: Cell, x: float, y: float, size: tuple[float, float], heat: Heat, marks: str) -> list[str]:
    wide, high = size[0] - 3, size[1] - 3
    step = heat.step(_total(cell))
    fill = LIGHT[step] if step is not None else VOID
    parts = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="3" fill="{fill}"/>']
    if cell.decode is None or not about.measured(cell):
        words = [word for word in about.two_lines(cell.status) if word]
        return parts + [_text(x + 8, y + 20 + i * 15, word, 12, fill=SOFT) for i, word in enumerate(words)]
    number = values.rate(cell.decode.total_tok_s.value)
    letters = marks if len(marks) <= 4 else f"{marks[:3]}+"
    text, big = _fit(number, wide - 16 - 8 * len(letters), min(22.0, high * 0.34), least=9)
    line = big + 6
    parts.append(_text(x + 8, y + line, text, big, bold=True))
    if letters:
        after = x + 10 + big * sum(_NARROW if c in ",." else _DIGIT for c in text)
        parts.append(_text(after, y + line - big * 0.35, letters, big * 0.55, bold=True))
    below = [values.interval(cell.decode.total_tok_s), values.ms(cell.decode.ttft_ms.p50)]
    told = " · ".join(word for word in below if word != numbers.NONE)
    if told and high >= 40:
        shown, small = _fit(told, wide - 14, 12.5, least=8)
        parts.append(_text(x + 8, y + line + 16, shown, small))
    if cell.status != Status.VALID and high >= 52:
        # a shape beside the word: a fallback font's glyph would change the word's own font
        parts.append(
            f'<path d="M{x + 12:.1f} {y + high - 15:.1f}l4 4l-4 4l-4 -4z" stroke="{INK}" stroke-width="1.6" '
            'fill="none"/>'
        )
        parts.append(_text(x + 21, y + high - 7, about.two_lines(cell.status)[0], 12, bold=True))
    return parts


def _room(cell: Cell | None) -> bool:
    return cell is None or cell.status not in _NO_ROOM


def _frontier(found: matrix.Matrix, frame: _Frame) -> list[str]:
    """A line between cells for which the server has room and those for which it has not."""
    x0, y0 = frame.corner
    wide, high = frame.cell
    moves: list[str] = []
    for y, row in enumerate(frame.rows):
        for x, n in enumerate(frame.columns):
            here = found.cells.get((row, n))
            left = found.cells.get((row, frame.columns[x - 1])) if x else here
            over = found.cells.get((frame.rows[y - 1], n)) if y else here
            if here and left and _room(here) != _room(left):
                moves.append(f"M{x0 + x * wide - 1.5:.1f} {y0 + y * high - 3:.1f}v{high + 3:.1f}")
            if here and over and _room(here) != _room(over):
                moves.append(f"M{x0 + x * wide - 3:.1f} {y0 + y * high - 1.5:.1f}h{wide + 3:.1f}")
    return [f'<path d="{"".join(moves)}" stroke="{INK}" stroke-width="3" fill="none"/>'] if moves else []


def _foot(record: Record, frame: _Frame) -> list[str]:
    wide, high = frame.size
    answers = capacity.capacities(record)[:6]
    users = " · ".join(f"{a.context}: {a.text}" for a in answers)
    seen = {flag.name for cell in record.cells if cell.phase == "decode" for flag in cell.flags}
    flags = [
        f"{letter} {clean(name, 40).replace('_', ' ')}"
        for name, letter in about.letters(record).items()
        if name in seen
    ]
    told = [
        f"At once at ≥ {record.per_user_tok_s:g} tok/s each: {users}" if users else "",
        ", ".join(flags[:6]),
        frame.left_out,
    ]
    first, size = _fit(" · ".join(word for word in told if word), wide - 2 * _SIDE - 140, 15, least=10)
    return [
        _text(_SIDE, high - 22, first, size),
        _text(wide - _SIDE, high - 22, f"flatout {clean(record.client.flatout, 20)}", 15, bold=True, anchor="end"),
    ]
