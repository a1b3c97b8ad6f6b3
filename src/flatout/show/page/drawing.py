"""Small charts of our own: one SVG path each, stretched to its place; the words around it are HTML and stay sharp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from flatout.record import Histogram, Series
from flatout.show.page.html import Html, tag
from flatout.show.page.values import drawable

WIDE: Final = 600
HIGH: Final = 100
MOST_POINTS: Final = 150
MOST_BARS: Final = 120


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `kind`: its class in the style sheet; `steps`: flat between points."""

    points: Sequence[tuple[float, float | None]]
    kind: str = "a"
    steps: bool = False


def points(series: Series | None) -> list[tuple[float, float | None]]:
    """The points of a curve that can be drawn, at most MOST_POINTS: neighbours are averaged."""
    if series is None:
        return []
    pairs = [
        (t, drawable(value))
        for t, value in zip(map(drawable, series.t_s[:100_000]), series.values[:100_000], strict=False)
        if t is not None
    ]
    if len(pairs) <= MOST_POINTS:
        return pairs
    step = len(pairs) / MOST_POINTS
    groups = [pairs[int(i * step) : int((i + 1) * step)] for i in range(MOST_POINTS)]
    return [(sum(t for t, _ in group) / len(group), _mean([v for _, v in group])) for group in groups if group]


def _mean(found: Sequence[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def top(lines: Sequence[Line]) -> float | None:
    """The largest value of all lines, or None where there is nothing to draw."""
    return max((v for line in lines for _, v in line.points if v is not None), default=None)


def curve(lines: Sequence[Line], *, from_s: float, to_s: float, highest: float, label: str) -> Html:
    """Lines over one time axis; values from 0 to `highest`."""
    span = max(to_s - from_s, 1e-9)
    high = highest if highest > 0 else 1.0
    shapes = [
        tag("path", d=_path(line, from_s, span, high), class_=f"ln {line.kind}", vector_effect="non-scaling-stroke")
        for line in lines
        if line.points
    ]
    return _svg(shapes, label)


def _path(line: Line, from_s: float, span: float, high: float) -> str:
    made: list[str] = []
    pen_down = False
    last_y = 0.0
    for t, value in line.points:
        if value is None:
            pen_down = False
            continue
        x = _clamp((t - from_s) / span) * WIDE
        y = HIGH - 2 - _clamp(value / high) * (HIGH - 4)
        if not pen_down:
            made.append(f"M{x:.0f} {y:.1f}")
        elif line.steps:
            made.append(f"H{x:.0f}" + (f"V{y:.1f}" if abs(y - last_y) >= 0.05 else ""))
        else:
            made.append(f"L{x:.0f} {y:.1f}")
        pen_down, last_y = True, y
    return "".join(made)


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram ready to draw: bars as (from, to, height), all 0..1, and the ends of its axis."""

    bars: Sequence[tuple[float, float, float]]
    low: float
    high: float
    log: bool

    def place(self, value: float | None) -> float | None:
        """Where a value stands on the axis, 0..1; None outside it."""
        number = drawable(value)
        if number is None or not self.low <= number <= self.high or self.high <= self.low:
            return None
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)


def bars(histogram: Histogram | None) -> Bars | None:
    """None where there is no histogram, or a broken one: edges that do not rise, counts that do not fit them."""
    if histogram is None or not 1 <= len(histogram.counts) <= 10_000:
        return None
    edges = [drawable(edge) for edge in histogram.edges]
    counts = [drawable(count) for count in histogram.counts]
    known_edges = [edge for edge in edges if edge is not None]
    known_counts = [max(0.0, count) for count in counts if count is not None]
    if len(known_edges) != len(edges) or len(known_counts) != len(counts) or len(edges) != len(counts) + 1:
        return None
    if any(b <= a for a, b in pairwise(known_edges)) or max(known_counts) <= 0:
        return None
    while len(known_counts) > MOST_BARS:
        known_counts = [sum(known_counts[i : i + 2]) for i in range(0, len(known_counts), 2)]
        known_edges = [*known_edges[:-1:2], known_edges[-1]]
    low, high = known_edges[0], known_edges[-1]
    log = low > 0 and high / low > 3
    axis = Bars((), low, high, log)
    places = [axis.place(edge) or 0.0 for edge in known_edges]
    tallest = max(known_counts)
    made = [(a, b, c / tallest) for a, b, c in zip(places, places[1:], known_counts, strict=False)]
    return Bars(made, low, high, log)


def histogram(found: Bars, marks: Sequence[tuple[str, float | None]], label: str) -> Html:
    """Bars, and a line for each mark (a percentile: its class, its value)."""
    path = "".join(
        f"M{a * WIDE:.1f} {HIGH}V{HIGH - max(1.0, h * (HIGH - 4)):.1f}H{max(b * WIDE - 1, a * WIDE + 0.5):.1f}V{HIGH}Z"
        for a, b, h in found.bars
        if h > 0
    )
    shapes = [tag("path", d=path, class_="bar")]
    for kind, value in marks:
        at = found.place(value)
        if at is not None:
            shapes.append(tag("path", d=f"M{at * WIDE:.1f} 0V{HIGH}", class_=f"mk {kind}",
                              vector_effect="non-scaling-stroke"))  # fmt: skip
    return _svg(shapes, label)


def strips(rows: Sequence[Sequence[tuple[float, float, str]]], label: str) -> Html:
    """Rows of bars over one axis: (from, to, class), 0..1."""
    high = HIGH / max(1, len(rows))
    shapes = []
    by_kind: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        y = number * high
        for a, b, kind in row:
            x, wide = _clamp(a) * WIDE, max(0.6, (_clamp(b) - _clamp(a)) * WIDE)
            by_kind.setdefault(kind, []).append(
                f"M{x:.1f} {y + high * 0.1:.2f}h{wide:.1f}v{high * 0.8:.2f}h-{wide:.1f}z"
            )
    for kind, parts in by_kind.items():
        shapes.append(tag("path", d="".join(parts), class_=f"st {kind}"))
    return _svg(shapes, label)


def _svg(shapes: Sequence[Html], label: str) -> Html:
    return tag(
        "svg", shapes, viewBox=f"0 0 {WIDE} {HIGH}", preserveAspectRatio="none", role="img", aria_label=label,
        class_="plot",
    )  # fmt: skip


def figure(title: str, picture: Html, left: str, right: str, *, peak: str = "", key: Html | str = "") -> Html:
    """A small chart with its words: title, what the top of the picture stands for, the two ends of the axis."""
    return tag(
        "figure",
        tag("figcaption", tag("b", title), " ", tag("span", key) if key else None),
        tag("div", tag("span", peak, class_="peak") if peak else None, picture, class_="plotbox"),
        tag("div", tag("span", left), tag("span", right), class_="ends"),
        class_="small",
    )
