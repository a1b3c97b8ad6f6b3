"""Charts of two sides, one over the other, with their ratio below: SVG of our own, coloured by the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from flatout.compare import CellPair, Compared, Value, Verdict
from flatout.flags import Status
from flatout.show import numbers
from flatout.show.comparison import NAMES
from flatout.show.page import values
from flatout.show.page.compared_words import SIGNS
from flatout.show.page.html import Html, tag
from flatout.show.page.values import drawable

MOST_CHARTS: Final = 24
MOST_SPOTS: Final = 60
WIDE, LEFT, RIGHT = 320.0, 46.0, 308.0
TOP, BOTTOM = 8.0, 128.0
HIGH_TOP, HIGH_BOTTOM = 150.0, 214.0
HIGH: Final = 248
"""The frame: values from TOP to BOTTOM, ratios from HIGH_TOP to HIGH_BOTTOM, the axis' words below."""
_ABOVE: Final = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 100.0, 1000.0)
_BELOW: Final = (0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.2, 0.1, 0.01, 0.001)
_NARROWEST: Final = math.log(1.015)
_WIDEST: Final = math.log(1000)
_REACH: Final = math.log(2)
"""So far from 1, or twice as far as the ratios themselves, the strip shows intervals; longer ones are cut."""
_SMALLEST: Final = 1e-9
_WORD: Final = 19.0
"""Room that a word of the axis needs, at least."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One cell: its place on the axis and what is known there; `doubts`: whether A, B and the ratio are doubtful."""

    x: float
    a: Value | None
    b: Value | None
    made: Compared
    doubts: tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to places; `low` and `high` are logarithms where the axis is one."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def spots(cells: Iterable[CellPair], name: str, x: Callable[[CellPair], int | None]) -> list[Spot]:
    """The cells that can stand on a logarithmic axis, in its order."""
    made = []
    for cell in cells:
        found = cell.figures.get(name)
        at = drawable(x(cell))
        if found is None or at is None or at <= 0 or (_y(found.a) is None and _y(found.b) is None):
            continue
        doubts = (Status.DOUBTFUL in cell.a_status, Status.DOUBTFUL in cell.b_status, bool(cell.doubts))
        made.append(Spot(at, found.a, found.b, found, doubts))
    return sorted(made, key=lambda spot: spot.x)[:MOST_SPOTS]


def _y(value: Value | None) -> float | None:
    found = drawable(value.value) if value is not None else None
    return found if found is not None and found >= _SMALLEST else None


def draw(found: Sequence[Spot], name: str, title: str, letter: str, x_title: str) -> Html | None:
    """One chart; None for fewer than two places. `title` stands above it."""
    places = sorted({spot.x for spot in found})
    if len(places) < 2:
        return None
    low, high = math.log(places[0]), math.log(places[-1])
    if high - low < _SMALLEST:
        return None
    edge = (high - low) * 0.06
    across = Axis(low - edge, high + edge, LEFT, RIGHT)
    most = max(y for spot in found for v in (spot.a, spot.b) if (y := _top(v)) is not None)
    up = Axis(0.0, most * 1.04, BOTTOM, TOP)
    shapes = [
        _frame(across, up, places, name, x_title),
        *_side(found, across, up, 0),
        *_side(found, across, up, 1),
        *_ratios(found, across, letter),
    ]
    told = f"{NAMES.get(name, name)}, {title}: A and {letter} against {x_title}, and their ratio; {_said(found)}"
    svg = tag("svg", shapes, viewBox=f"0 0 {WIDE:.0f} {HIGH}", role="img", aria_label=told, class_="chart")
    return tag("figure", tag("figcaption", tag("b", title)), svg, class_="large")


def _said(found: Sequence[Spot]) -> str:
    counts = ((v, sum(spot.made.verdict == v for spot in found)) for v in Verdict)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts if count)


def _top(value: Value | None) -> float | None:
    """The upper end of what is drawn for a value; an interval far beyond it is cut."""
    y = _y(value)
    if y is None or value is None:
        return None
    high = drawable(value.high)
    return min(high, y * 1.5) if high is not None and high > y else y


def _frame(across: Axis, up: Axis, places: Sequence[float], name: str, x_title: str) -> Html:
    made: list[Html] = []
    for tick in _round_ticks(up.high):
        y = up.place(tick)
        made += [_line(LEFT, y, RIGHT, y, "s-grid"), _text(LEFT - 5, y + 3.5, _tick(name, tick), "end")]
    last = -math.inf
    for x in places:
        at = across.place(math.log(x))
        made.append(_line(at, HIGH_BOTTOM, at, HIGH_BOTTOM + 4, "s-soft"))
        if at - last >= _WORD or last == -math.inf:
            word = numbers.context(int(x)) if x_title == "context" else f"{x:,.0f}"
            made.append(_text(at, HIGH_BOTTOM + 15, values.short(word), "middle"))
            last = at + (6 if len(word) > 3 else 0)
    made += [_line(LEFT, HIGH_BOTTOM, RIGHT, HIGH_BOTTOM, "s-soft"), _line(LEFT, BOTTOM, RIGHT, BOTTOM, "s-soft")]
    made.append(_text((LEFT + RIGHT) / 2, HIGH - 4, x_title, "middle"))
    return tag("g", made)


def _tick(name: str, value: float) -> str:
    if value == 0:
        return "0"
    if not name.endswith("_tok_s"):
        return values.short(f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
    for size, unit in ((1e6, "M"), (1e3, "K")):
        if value >= size:
            return values.short(f"{value / size:,.4g}{unit}")
    return values.short(f"{value:.4g}")


def _round_ticks(most: float) -> list[float]:
    """0 and at most four round values up to `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(s * power / 10 for s in (1, 2, 2.5, 5, 10, 20, 25, 50) if most / (s * power / 10) <= 4.2)
    return [i * step for i in range(int(most / step) + 1)]


def _side(found: Sequence[Spot], across: Axis, up: Axis, which: int) -> list[Html]:
    """A side's line with its intervals and marks; it breaks where a cell between has no number."""
    kind = ("side-a", "side-b")[which]
    dots: list[tuple[float, float, Spot] | None] = []
    bars = []
    for spot in found:
        value = (spot.a, spot.b)[which]
        y = _y(value)
        if y is None or value is None:
            dots.append(None)
            continue
        x = across.place(math.log(spot.x))
        dots.append((x, up.place(y), spot))
        low, high = drawable(value.low), drawable(value.high)
        if low is not None and high is not None and 0 <= low <= y <= high:
            bars.append(f"M{x:.1f} {up.place(low):.1f}V{up.place(high):.1f}")
    path = "".join(
        f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in pairwise(dots) if a is not None and b is not None
    )
    made = [tag("path", d=path, class_=f"run {kind}")] if path else []
    made += [tag("path", d="".join(bars), class_=f"bars {kind}")] if bars else []
    for dot in dots:
        if dot is not None:
            made.append(_mark(*dot[:2], kind, doubtful=dot[2].doubts[which]))
    return made


def _mark(x: float, y: float, kind: str, *, doubtful: bool) -> Html:
    hollow = " hollow" if doubtful else ""
    if kind == "side-a":
        return tag(
            "rect", x=f"{x - 3.6:.1f}", y=f"{y - 3.6:.1f}", width="7.2", height="7.2", class_=f"dot {kind}{hollow}"
        )
    return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.9", class_=f"dot {kind}{hollow}")


def _ratios(found: Sequence[Spot], across: Axis, letter: str) -> list[Html]:
    """The strip of B / A: a line at 1, each cell's ratio with its interval, its verdict as shape and colour."""
    known = [(spot, r) for spot in found if (r := _logs(spot.made)) is not None]
    reach = max([_REACH, *(2 * abs(ends[1]) for _, ends in known)])
    low = min([-_NARROWEST, *(max(ends[0], -reach) for _, ends in known)])
    high = max([_NARROWEST, *(min(ends[2], reach) for _, ends in known)])
    edge = (high - low) * 0.08
    up = Axis(low - edge, high + edge, HIGH_BOTTOM, HIGH_TOP)
    one = up.place(0.0)
    made = [_line(LEFT, one, RIGHT, one, "s-soft"), _text(LEFT - 5, one + 3.5, "1", "end")]
    for tick in _ratio_ticks(low, high):
        y = up.place(math.log(tick))
        if abs(y - one) >= 11:
            made += [_line(LEFT, y, RIGHT, y, "s-grid"), _text(LEFT - 5, y + 3.5, f"{tick:.3g}", "end")]
    made.append(_text(LEFT, HIGH_TOP - 7, f"{letter} / A", "start"))
    if not known:
        made.append(_text((LEFT + RIGHT) / 2, one - 6, "no cell has both", "middle"))
    for spot, (below, middle, above) in known:
        x, y = across.place(math.log(spot.x)), up.place(middle)
        kind = {Verdict.FASTER: "v-up", Verdict.SLOWER: "v-down"}.get(spot.made.verdict, "v-same")
        if above > below:
            made.append(tag("path", d=f"M{x:.1f} {up.place(below):.1f}V{up.place(above):.1f}", class_=f"bars {kind}"))
        made.append(_verdict(x, y, spot, kind))
    return made


def _verdict(x: float, y: float, spot: Spot, kind: str) -> Html:
    shapes = {"v-up": "m0 -4.4l4.4 7.6h-8.8z", "v-down": "m0 4.4l4.4 -7.6h-8.8z"}
    hollow = " hollow" if spot.doubts[2] or spot.made.verdict == Verdict.UNKNOWN else ""
    if kind in shapes:
        return tag("path", d=f"M{x:.1f} {y:.1f}{shapes[kind]}", class_=f"dot {kind}{hollow}")
    return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="3", class_=f"dot {kind}{hollow}")


def _logs(made: Compared) -> tuple[float, float, float] | None:
    """Logarithms of a ratio's lower end, itself and its upper end, cut to what can be drawn."""
    found = made.ratio
    middle = drawable(found.value) if found is not None else None
    if found is None or middle is None or middle <= 0:
        return None
    ends = [middle if end is None else end for end in (found.low, middle, found.high)]
    cut = [_log(end) for end in ends]
    return min(cut), cut[1], max(cut)


def _log(value: float) -> float:
    """The logarithm of a ratio, cut at a thousand: an end of an interval may be 0 or endless."""
    if not value > 0:
        return -_WIDEST
    return min(_WIDEST, max(-_WIDEST, math.log(value)))


def _ratio_ticks(low: float, high: float) -> list[float]:
    """One round factor to either side of 1, the largest that fits."""
    above = [step for step in _ABOVE if math.log(step) <= high]
    below = [step for step in _BELOW if math.log(step) >= low]
    return [*above[-1:], *below[-1:]]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=kind)


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_="f-soft tick")


def key(letter: str) -> Html:
    """What lines and marks stand for."""
    sample = {
        "side-a": [tag("path", d="M0 6H26", class_="run side-a"), _mark(13, 6, "side-a", doubtful=False)],
        "side-b": [tag("path", d="M0 6H26", class_="run side-b"), _mark(13, 6, "side-b", doubtful=False)],
    }
    items = [
        tag("li", tag("svg", sample[kind], viewBox="0 0 26 12", aria_hidden="true", class_="sample"), f" {name}")
        for kind, name in (("side-a", "A"), ("side-b", letter))
    ]
    below = (
        f"below: {letter} / A with its 95 % interval, {SIGNS[Verdict.FASTER]} faster, {SIGNS[Verdict.SLOWER]} slower, "
        "● no difference seen; hollow: doubtful or not to be told"
    )
    return tag("ul", items, tag("li", below), class_="key")


def prefill(cells: Sequence[CellPair], letter: str) -> Html | None:
    """Prefill rate and TTFT over the context."""
    made = []
    for name, title in (("prefill_tok_s", "Prefill rate by context, tok/s"), ("ttft_ms", "TTFT cold by context, ms")):
        chart = draw(spots(cells, name, lambda cell: cell.key.tokens), name, title, letter, "context")
        made += [chart] if chart is not None else []
    return tag("div", key(letter), tag("div", made, class_="charts three"), class_="overlaid") if made else None
