"""The result as a picture for posts: 1200 × 630 as sites show links, or as large as all its cells need.

Drawn as SVG here and turned into PNG by vl-convert (the extra `pictures`). Numbers, shades, words, hatching and
frontier are those of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup

from flatout import metrics
from flatout.flags import Status
from flatout.record import Cell, Record
from flatout.show import about, matrix, numbers
from flatout.show.charts import LIGHT, Heat, element
from flatout.show.page import identity, values
from flatout.show.page.shown import choose
from flatout.show.page.tables import NO_ROOM
from flatout.show.safe import clean

PAPER, INK, SOFT, VOID = "#fdfcfa", "#191714", "#615c54", "#f0ede7"
FONT: Final = "Liberation Sans, Arial, Helvetica, Roboto, DejaVu Sans, sans-serif"
CARD: Final = (1200, 630)
SCALE: Final = 2.0
MOST: Final = (40, 40)
"""Rows and columns of the largest picture."""
_SIDE, _TOP, _LABELS, _PREFILL, _GAP = 44.0, 242.0, 62.0, 116.0, 14.0
"""The border, the matrix' upper edge, and the widths of contexts, of the prefill column, and of the gap after it."""
_DIGIT, _NARROW = 0.556, 0.278
"""Widths of a digit, and of a comma or point, in the fonts of FONT, for one unit of size."""
_MARKS: Final = {
    Status.DOUBTFUL: "m-4 0l4 -4l4 4l-4 4z",
    Status.REQUESTS_QUEUED: "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
}
"""A shape before a status' word: a fallback font's glyph would change the word's own font."""


class PictureError(Exception):
    """No picture can be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the matrix stands: rows and columns that fit, the size of a cell, the left edge of the decode columns, and
    the whole picture's size. `prefill`: a column of its own before them."""

    rows: Sequence[matrix.Row]
    columns: Sequence[int]
    cell: tuple[float, float]
    left: float
    size: tuple[float, float]
    prefill: bool
    left_out: int


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
    decode, prefill = matrix.of(record.cells), matrix.of(record.cells, "prefill")
    if not decode.rows:
        raise PictureError("the record has no decode cells, so there is no matrix to draw")
    frame = _frame(decode, prefill, size)
    wide, high = (f"{part:.0f}" for part in frame.size)
    hatch = element(
        "pattern", element("path", d="M-1 9L9 -1M-1 1L1 -1M7 9L9 7", stroke=INK, stroke_opacity="0.16"), id="hatch",
        width="8", height="8", patternUnits="userSpaceOnUse",
    )  # fmt: skip
    return element(
        "svg", element("defs", hatch), element("rect", width=wide, height=high, fill=PAPER),
        *_head(record, frame.size[0]), *_contexts(frame), *_prefill(prefill, frame), *_decode(record, decode, frame),
        *_foot(record, frame), xmlns="http://www.w3.org/2000/svg", width=wide, height=high,
        viewBox=f"0 0 {wide} {high}",
    )  # fmt: skip


def _frame(decode: matrix.Matrix, prefill: matrix.Matrix, size: str) -> _Frame:
    both = sorted({*decode.rows, *prefill.rows}, key=lambda row: row[1] if row[1] is not None else float("inf"))
    most = (8, 9) if size == "card" else MOST
    rows, columns = both[: most[0]], decode.columns[: most[1]]
    left = _SIDE + _LABELS + (_PREFILL + _GAP if prefill.rows else 0.0)
    cell, whole = (124.0, 72.0), (float(CARD[0]), float(CARD[1]))
    if size == "card":
        cell = (min(230.0, (CARD[0] - _SIDE - left) / len(columns)), min(86.0, (CARD[1] - _TOP - 48) / len(rows)))
    else:
        whole = (max(960.0, left + _SIDE + cell[0] * len(columns)), _TOP + cell[1] * len(rows) + 56)
    out = len(decode.rows) * len(decode.columns) - sum(row in decode.rows for row in rows) * len(columns)
    return _Frame(rows, columns, cell, left, whole, bool(prefill.rows), out)


def _text(
    x: float, y: float, text: str, size: float, *, bold: bool = False, fill: str = INK, anchor: str = "start"
) -> Markup:
    safe = "".join(c if c.isprintable() else " " for c in clean(text))
    return element(
        "text", safe, x=f"{x:.1f}", y=f"{y:.1f}", font_family=FONT, font_size=f"{size:.1f}",
        font_weight="700" if bold else None, fill=fill, text_anchor=anchor,
    )  # fmt: skip


def _fit(text: str, wide: float, size: float, *, least: float) -> tuple[str, float]:
    """The text and a size at which it fits into the width, cut where even the least size is too large."""
    fits = wide / (0.56 * max(1, len(text)))
    if fits >= least:
        return text, min(size, fits)
    return text[: max(1, int(wide / (0.56 * least)) - 1)].rstrip() + "…", least


def _head(record: Record, wide: float) -> list[Markup]:
    """Who, how it went, and the headline numbers."""
    room = wide - 2 * _SIDE
    title, size = _fit(identity.title(record), room, 44, least=24)
    sub = " · ".join(p for p in (about.engine_name(record), about.precision(record), about.speculation(record)) if p)
    below, small = _fit(sub, room, 19, least=13)
    date = (about.moment(record.started) or "")[:10]
    told, tiny = _fit(f"{identity.verdict(record)} · {date}", room, 16, least=10)
    parts = [
        _text(_SIDE, 62, title, size, bold=True), _text(_SIDE, 91, below, small),
        _text(_SIDE, 115, told, tiny, fill=SOFT),
    ]  # fmt: skip
    firsts = identity.firsts(choose(record, None))
    for at, first in enumerate(firsts):
        x, each = _SIDE + at * room / len(firsts), room / len(firsts) - 12
        label, fine = _fit(first.label, each, 14, least=9)
        number, big = _fit(first.number, each * 0.5, 30, least=16)
        after = x + _wide(number, big) + 7
        at_, less = _fit(
            " ".join(p for p in (first.unit, first.below if first.anchor else "") if p), x + each - after, 14, least=9
        )
        parts += [
            _text(x, 150, label, fine, fill=SOFT), _text(x, 180, number, big, bold=True),
            _text(after, 180, at_, less, fill=SOFT),
        ]  # fmt: skip
    return parts


def _contexts(frame: _Frame) -> list[Markup]:
    """The words around the matrix: contexts on the left, numbers of requests above."""
    above = _TOP - 10
    parts = [_text(_SIDE, above, "context", 13, fill=SOFT)]
    if frame.prefill:
        parts.append(_text(_SIDE + _LABELS, above - 20, "prefill, cold", 13, fill=SOFT))
        parts.append(_text(_SIDE + _LABELS, above, "tok/s, ± 95 %, TTFT", 11, fill=SOFT))
    parts.append(_text(frame.left, above - 20, "decode: total tok/s, ± 95 %, TTFT, by requests at once", 13, fill=SOFT))
    for i, n in enumerate(frame.columns):
        parts.append(_text(frame.left + i * frame.cell[0] + 8, above, f"{n:,}" if n < 10**7 else "…", 15, bold=True))
    for y, row in enumerate(frame.rows):
        label, size = _fit(row[0], _LABELS - 6, 17, least=9)
        parts.append(_text(_SIDE, _TOP + y * frame.cell[1] + 21, label, size, bold=True))
    return parts


def _prefill(found: matrix.Matrix, frame: _Frame) -> list[Markup]:
    cells = {row: cell for (row, _), cell in found.cells.items()}
    heat = Heat([metrics.read(cell, metrics.SPEED["prefill"]).number for cell in cells.values()], more=True)
    parts: list[Markup] = []
    for y, row in enumerate(frame.rows):
        if row in cells:
            size = (_PREFILL, frame.cell[1])
            parts += _square(cells[row], _SIDE + _LABELS, _TOP + y * frame.cell[1], size, heat, "", "")
    return parts


def _decode(record: Record, found: matrix.Matrix, frame: _Frame) -> list[Markup]:
    heat = Heat([metrics.read(cell, metrics.SPEED["decode"]).number for cell in found.cells.values()], more=True)
    letters = about.letters(record)
    parts: list[Markup] = []
    for y, row in enumerate(frame.rows):
        for x, n in enumerate(frame.columns):
            cell = found.cells.get((row, n))
            if cell is not None:
                at = (frame.left + x * frame.cell[0], _TOP + y * frame.cell[1])
                parts += _square(cell, *at, frame.cell, heat, about.marks(cell, letters), "TTFT")
    return [*parts, *_frontier(found, frame)]


def _square(
    cell: Cell, x: float, y: float, size: tuple[float, float], heat: Heat, marks: str, ttft: str
) -> list[Markup]:
    wide, high = size[0] - 3, size[1] - 3
    speed = metrics.read(cell, metrics.SPEED[cell.phase])
    step = heat.step(speed.number)

    def box(fill: str) -> Markup:
        return element(
            "rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{wide:.1f}", height=f"{high:.1f}", rx="3", fill=fill
        )  # fmt: skip

    parts = [box(LIGHT[step] if step is not None else VOID)]
    if not about.measured(cell) or speed.number is None:
        words = [word for word in about.two_lines(cell.status) if word]
        return parts + [_text(x + 8, y + 18 + i * 14, word, 12, fill=SOFT) for i, word in enumerate(words)]
    if cell.status == Status.DOUBTFUL:
        parts.append(box("url(#hatch)"))
    letters = marks if len(marks) <= 4 else f"{marks[:3]}+"
    text, big = _fit(values.rate(speed.number), wide - 16 - 8 * len(letters), min(21.0, high * 0.36), least=9)
    line = y + big + 2
    parts.append(_text(x + 8, line, text, big, bold=True))
    if letters:
        parts.append(_text(x + 10 + _wide(text, big), line - big * 0.35, letters, big * 0.55, bold=True))
    waited = values.figure(cell, "ttft_ms")
    small = [values.half(speed).text, f"{waited.text} {ttft}".strip() if waited.known else numbers.NONE]
    lines = [" · ".join(word for word in small if word != numbers.NONE)] if high < 60 else small
    for at, told in enumerate(word for word in lines if word and word != numbers.NONE):
        shown, fine = _fit(told, wide - 14, 12.0, least=7.5)
        parts.append(_text(x + 8, line + 11.5 + at * 14, shown, fine))
    return parts + (_status(cell.status, x + 12, y + high - 4) if high >= 42 else [])


def _wide(text: str, size: float) -> float:
    """How wide a number stands, about."""
    return size * sum(_NARROW if c in ",." else 0.7 if c.isalpha() else _DIGIT for c in text)


def _status(status: str, x: float, y: float) -> list[Markup]:
    """The word of a status that is no plain number, its shape before it."""
    if status == Status.VALID:
        return []
    shape = _MARKS.get(Status(status) if status in set(Status) else Status.VALID, "m-3.5 -3.5h7v7h-7z")
    mark = element("path", d=f"M{x:.1f} {y - 3.8:.1f}{shape}", stroke=INK, stroke_width="1.5", fill="none")
    return [mark, _text(x + 8, y, about.two_lines(status)[0], 11, bold=True)]


def _room(cell: Cell | None) -> bool:
    return cell is None or cell.status not in NO_ROOM


def _frontier(found: matrix.Matrix, frame: _Frame) -> list[Markup]:
    """A line between cells for which the server has room and those for which it has not."""
    wide, high = frame.cell
    moves: list[str] = []
    for y, row in enumerate(frame.rows):
        for x, n in enumerate(frame.columns):
            here = found.cells.get((row, n))
            left = found.cells.get((row, frame.columns[x - 1])) if x else here
            over = found.cells.get((frame.rows[y - 1], n)) if y else here
            at = f"{frame.left + x * wide - 1.5:.1f} {_TOP + y * high - 1.5:.1f}"
            if here and left and _room(here) != _room(left):
                moves.append(f"M{at}v{high:.1f}")
            if here and over and _room(here) != _room(over):
                moves.append(f"M{at}h{wide:.1f}")
    line = element("path", d="".join(moves), stroke=INK, stroke_width="3", stroke_linecap="square", fill="none")
    return [line] if moves else []


def _foot(record: Record, frame: _Frame) -> list[Markup]:
    """What the letters mean, what is left out, and who measured."""
    wide, high = frame.size
    seen = {flag.name for cell in record.cells if cell.phase == "decode" for flag in cell.flags}
    flags = [
        f"{letter} {clean(name, 40).replace('_', ' ')}"
        for name, letter in about.letters(record).items()
        if name in seen
    ]
    told = [", ".join(flags[:6]), f"{frame.left_out:,} more cells in the record" if frame.left_out else ""]
    first, size = _fit(" · ".join(word for word in told if word), wide - 2 * _SIDE - 140, 15, least=10)
    return [
        _text(_SIDE, high - 20, first, size),
        _text(wide - _SIDE, high - 20, f"flatout {clean(record.client.flatout, 20)}", 15, bold=True, anchor="end"),
    ]
