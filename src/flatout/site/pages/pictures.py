"""Small pictures, drawn here as SVG that loads nothing: a badge, a value with its interval on an axis, and a
configuration's speed over its runs. Shapes, numbers and escaped text only; colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from flatout.show import numbers
from flatout.show.safe import clean
from flatout.site.boards import Board, Ranked
from flatout.site.history import Dated, Shift
from flatout.site.html import part
from flatout.site.times import day

_WIDE: Final = frozenset("mwMWK@%≥×—")
_THIN: Final = frozenset("iljtfr.,:;|!1 ()/·")
NO_FIGURE: Final = "no valid figure"
_ROOM: Final = 1.15  # beyond the largest value, where one has no upper end
WIDE, HIGH = 460.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 8.0, 26.0, 22.0
MOST_VERSIONS: Final = 12
MOST_NAMED: Final = 4
CHAR_WIDE: Final = 6.6  # the most that a character of such words takes
MOST_DOTS: Final = 300
_LARGEST: Final = 1e15


def badge_words(board: Board | None, value: float | None) -> str:
    """`173 tok/s · 8K × 1`, `≥ 30 tok/s each: 12 at 8K`."""
    if board is None:
        return NO_FIGURE
    context = numbers.context(board.context_tokens)
    where = f"{context} prefill" if board.kind == "prefill" else f"{context} × {board.n}"
    if value is None:
        return f"{NO_FIGURE} · {where}"
    if board.kind == "users":
        return f"{numbers.count(value)} at once ≥ {board.n} tok/s · {context}"
    return f"{numbers.rate(value)} tok/s · {where}"


def badge(left: str, right: str) -> str:
    """A two-part badge. Both texts are made harmless and escaped."""
    left, right = clean(left, 40), clean(right, 80)
    return part("badge.svg", left=left, right=right, a=_text_width(left), b=_text_width(right))


def _text_width(text: str) -> int:
    """How wide a part is, with its margins: an estimate, which `textLength` makes exact."""
    return round(sum(9.6 if c in _WIDE else 4.2 if c in _THIN else 6.9 for c in text)) + 12


def axis(rows: Sequence[Ranked], *, open_ended: bool = False) -> float:
    """The end of the rows' common axis, which begins at 0: the largest value or end of an interval, and room beyond it
    where one has no upper end."""
    end = max((row.value if row.high is None else max(row.value, row.high) for row in rows), default=0.0)
    return end * _ROOM if open_ended else end


def trace(runs: Sequence[Dated], shifts: Sequence[Shift], label: str) -> Markup:
    """The picture; empty where nothing can be drawn. One step to the right is one run, so that many runs of one day and
    few of a year can both be told apart."""
    first = max(0, len(runs) - MOST_DOTS)
    shown = [run for run in runs[first:] if math.isfinite(run.value) and 0 < run.value <= _LARGEST]
    if len(shown) < 1 or len(shown) != len(runs[first:]):
        return Markup("")
    low, high = _ends(shown)
    parts = [*_axes(shown, low, high), *_versions(shown)]
    parts += _steps(shown, shifts, first)
    points = [(_x(i, len(shown)), _y(run.value, low, high)) for i, run in enumerate(shown)]
    parts.append(_path("line", "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)))
    parts += [_dot(run, x, low, high) for run, (x, _) in zip(shown, points, strict=True)]
    return Markup('<svg class="trace" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>').format(
        WIDE, HIGH, label, Markup("").join(parts)
    )


def _ends(runs: Sequence[Dated]) -> tuple[float, float]:
    """The axis: all values and intervals, a little more, and never so near that nothing but noise shows."""
    lows = [run.low if _good(run) and run.low is not None else run.value for run in runs]
    highs = [run.high if _good(run) and run.high is not None else run.value for run in runs]
    low, high = min(lows), max(highs)
    middle = (low + high) / 2
    reach = max((high - low) / 2 * 1.15, middle * 0.03)
    return max(0.0, middle - reach), middle + reach


def _good(run: Dated) -> bool:
    """The interval can be drawn: it holds the value and is no wider than ten times it."""
    low, high = run.low, run.high
    return low is not None and high is not None and 0 <= low <= run.value <= high <= run.value * 10


def _x(index: int, count: int) -> float:
    span = WIDE - LEFT - RIGHT
    return LEFT + span / 2 if count == 1 else LEFT + 8 + (span - 16) * index / (count - 1)


def _y(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * min(1.0, max(0.0, share))


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers between the ends."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(s for s in (power, power / 2, power / 5, power / 10) if (high - low) / s >= 4)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(runs: Sequence[Dated], low: float, high: float) -> list[Markup]:
    parts = []
    for tick in ticks(low, high):
        y = _y(tick, low, high)
        parts.append(_path("grid", f"M{LEFT:.0f},{y:.1f}H{WIDE - RIGHT:.0f}"))
        parts.append(_text("t-soft", LEFT - 6, y + 3.5, "end", _tick(tick)))
    parts.append(_path("axis", f"M{LEFT:.0f},{HIGH - BOTTOM:.1f}H{WIDE - RIGHT:.0f}"))
    places = [(0, "start")] if len(runs) == 1 else [(0, "start"), (len(runs) - 1, "end")]
    for index, anchor in places:
        x = LEFT if anchor == "start" else WIDE - RIGHT
        parts.append(_text("t-soft", x, HIGH - 6, anchor, day(runs[index].at_us)))
    return parts


def _tick(value: float) -> str:
    """A number on the axis: with all the digits that tell it from its neighbours."""
    if value >= 10_000 and value % 100 == 0:
        return numbers.rate(value)
    return f"{value:,.10g}"


def _versions(runs: Sequence[Dated]) -> list[Markup]:
    """Where the engine's version changed: dotted lines at the last few, with the new versions' names as far as none
    covers another, the newest first."""
    parts = []
    changed = [i for i, (a, b) in enumerate(pairwise(runs), 1) if a.engine_version != b.engine_version]
    taken: list[tuple[float, float]] = []
    for i in reversed(changed[-MOST_VERSIONS:]):
        x = (_x(i - 1, len(runs)) + _x(i, len(runs))) / 2
        parts.append(_path("version", f"M{x:.1f},{TOP - 8:.0f}V{HIGH - BOTTOM:.1f}"))
        words = clean(runs[i].engine_version or "version not known", 16)
        left, right = _extent(x, words)
        if len(taken) < MOST_NAMED and all(right < other[0] or left > other[1] for other in taken):
            taken.append((left, right))
            parts.append(_beside("t-soft", x, TOP - 12, words))
    return parts


def _steps(runs: Sequence[Dated], shifts: Sequence[Shift], first: int) -> list[Markup]:
    """The level shifts, each with its size."""
    parts = []
    for i, shift in ((shift.index - first, shift) for shift in shifts):
        if not 0 < i < len(runs):
            continue
        x = (_x(i - 1, len(runs)) + _x(i, len(runs))) / 2
        sign = "+" if shift.change.value > 1 else "−"
        word = f"{sign}{numbers.percent(abs(shift.change.value - 1))}{'' if shift.sure else '?'}"
        parts += [_path("shift", f"M{x:.1f},{TOP:.0f}V{HIGH - BOTTOM:.1f}"), _beside("t-warn", x, TOP + 10, word)]
    return parts


def _extent(x: float, words: str) -> tuple[float, float]:
    """From where to where `_beside` puts words at a line."""
    wide = CHAR_WIDE * len(words)
    return (x + 4, x + 4 + wide) if x < WIDE * 0.7 else (x - 4 - wide, x - 4)


def _beside(kind: str, x: float, y: float, words: str) -> Markup:
    """Words at a line, on whichever side has more room."""
    left, right = _extent(x, words)
    return _text(kind, left, y, "start", words) if left > x else _text(kind, right, y, "end", words)


def _path(kind: str, d: str) -> Markup:
    return Markup(f'<path class="{kind}" d="{d}"/>')  # both are ours: a word and numbers


def _text(kind: str, x: float, y: float, anchor: str, words: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, words)


def _dot(run: Dated, x: float, low: float, high: float) -> Markup:
    y = _y(run.value, low, high)
    dot = Markup(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.8"/>')
    if not _good(run) or run.low is None or run.high is None:
        return dot
    bottom, top = _y(run.low, low, high), _y(run.high, low, high)
    return _path("bar", f"M{x:.1f},{bottom:.1f}V{top:.1f}") + dot
