"""Small pictures, drawn here as SVG that loads nothing: a badge, a value with its interval on an axis, and a
configuration's speed over its runs. Shapes, numbers and escaped text only; colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
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
    """Dots with 95 % intervals, level shifts, and where the engine's version changed; empty where nothing can be drawn.
    One step to the right is one run, so that many runs of one day and few of a year can both be told apart."""
    first = max(0, len(runs) - MOST_DOTS)
    shown = runs[first:]
    if not shown or not all(math.isfinite(run.value) and 0 < run.value <= _LARGEST for run in shown):
        return Markup("")
    low, high = _ends(shown)
    y = partial(_y, low=low, high=high)
    dots = [
        (_x(i, len(shown)), y(run.value), (y(run.low or 0.0), y(run.high or 0.0)) if _good(run) else None)
        for i, run in enumerate(shown)
    ]
    svg = part(
        "trace.svg", label=label, wide=WIDE, high=HIGH, left=LEFT, right=WIDE - RIGHT, top=TOP, bottom=HIGH - BOTTOM,
        ticks=[(y(tick), _tick(tick)) for tick in ticks(low, high)], dots=dots, versions=_versions(shown),
        steps=_steps(shown, shifts, first), days=[day(run.at_us) for run in (shown[0], *shown[1:][-1:])],
    )  # fmt: skip
    return Markup(svg)  # our own template, whole


def _ends(runs: Sequence[Dated]) -> tuple[float, float]:
    """The axis: all values and intervals, a little more, and never so near that nothing but noise shows."""
    lows = [run.low if _good(run) and run.low is not None else run.value for run in runs]
    highs = [run.high if _good(run) and run.high is not None else run.value for run in runs]
    middle = (min(lows) + max(highs)) / 2
    reach = max((max(highs) - min(lows)) / 2 * 1.15, middle * 0.03)
    return max(0.0, middle - reach), middle + reach


def _good(run: Dated) -> bool:
    """The interval can be drawn: it holds the value and is no wider than ten times it."""
    low, high = run.low, run.high
    return low is not None and high is not None and 0 <= low <= run.value <= high <= run.value * 10


def _x(index: float, count: int) -> float:
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


def _tick(value: float) -> str:
    """A number on the axis: with all the digits that tell it from its neighbours."""
    return numbers.rate(value) if value >= 10_000 and value % 100 == 0 else f"{value:,.10g}"


Line = tuple[float, float, str, str]
"""A line down the picture: where, and where its words begin or end (`anchor`)."""


def _versions(runs: Sequence[Dated]) -> list[Line]:
    """Where the engine's version changed, at the last few, with the new versions' names as far as none covers another,
    the newest first."""
    lines: list[Line] = []
    changed = [i for i, (a, b) in enumerate(pairwise(runs), 1) if a.engine_version != b.engine_version]
    taken: list[tuple[float, float]] = []
    for i in reversed(changed[-MOST_VERSIONS:]):
        words = clean(runs[i].engine_version or "version not known", 16)
        line = _beside(i, len(runs), words)
        left = line[1] if line[2] == "start" else line[1] - CHAR_WIDE * len(words)
        right = left + CHAR_WIDE * len(words)
        if len(taken) < MOST_NAMED and all(right < other[0] or left > other[1] for other in taken):
            taken.append((left, right))
        else:
            line = (*line[:3], "")
        lines.append(line)
    return lines


def _steps(runs: Sequence[Dated], shifts: Sequence[Shift], first: int) -> list[Line]:
    """The level shifts, each with its size."""
    lines = []
    for shift in shifts:
        if 0 < shift.index - first < len(runs):
            sign = "+" if shift.change.value > 1 else "−"
            size = f"{sign}{numbers.percent(abs(shift.change.value - 1))}{'' if shift.sure else '?'}"
            lines.append(_beside(shift.index - first, len(runs), size))
    return lines


def _beside(index: int, count: int, words: str) -> Line:
    """A line before a run, with words on whichever side has more room."""
    x = _x(index - 0.5, count)
    return (x, x + 4, "start", words) if x < WIDE * 0.7 else (x, x - 4, "end", words)
