"""The large charts: Altair specifications, drawn to SVG by vl-convert, and made fit to stand inside a page.

What stands in the specification as a colour is only a name: the page's style sheet gives the real ones, so that one
drawing serves light and dark. Nothing but shapes, numbers and escaped text leaves `restyle`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flatout.flags import Status
from flatout.record import Record
from flatout.show import about, matrix
from flatout.show.safe import clean

SIZE: Final = (300, 220)
BESIDE: Final = (430, 135)
"""Width and height of a chart's frame: of those that stand in a row, and of those beside a table."""
MOST_SERIES: Final = 16
MOST_POINTS: Final = 400
LARGEST: Final = 1e15
MARGIN: Final = 1.15
"""How far a logarithmic axis goes beyond its points; a longer interval is cut there."""
LEVELS: Final = ("context", "requests at once")
"""Axes whose ticks are the planned values themselves."""
SHAPES: Final = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
INK, SOFT, GRID, PAPER = "#ab0001", "#ab0002", "#ab0003", "#ab0004"
_CLASSES: Final[Mapping[str, str]] = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper"}
_KEPT: Final = frozenset(
    {
        "d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "text-anchor", "font-size",
        "font-weight", "opacity", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dasharray",
        "stroke-linecap", "viewBox",
    }
)  # fmt: skip
_ELEMENTS: Final = frozenset({"svg", "g", "path", "line", "rect", "text", "tspan"})
_NUMBER: Final = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_NUMERIC: Final = re.compile(r"[-+0-9a-zA-Z.,() ]*")
_RATE_LABEL: Final = (
    "datum.value >= 1000000 ? format(datum.value / 1000000, '~g') + 'M' : "
    "datum.value >= 1000 ? format(datum.value / 1000, '~g') + 'K' : format(datum.value, '~g')"
)
_CONTEXT_LABEL: Final = (
    "datum.value >= 1024 && datum.value % 1024 == 0 ? format(datum.value / 1024, ',') + 'K' : format(datum.value, ',')"
)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. `svg`: markup for the page, without colours of its own; `summary`: what it shows, in words."""

    title: str
    svg: str
    summary: str


@dataclass(frozen=True, slots=True)
class Point:
    """One mark: place, interval upwards, its series, and whether the number is sound."""

    x: float
    y: float
    series: str
    low: float | None = None
    high: float | None = None
    sound: bool = True


def available() -> bool:
    """True where the extra `pictures` is installed; imports nothing."""
    return importlib.util.find_spec("altair") is not None and importlib.util.find_spec("vl_convert") is not None


def series_names(record: Record) -> list[str]:
    """The contexts that the scaling charts draw, in order; their place is their colour and shape."""
    return [row[0] for row in matrix.of(cell for cell in record.cells if about.measured(cell)).rows][:MOST_SERIES]


def prefill(record: Record) -> list[Chart]:
    """Prefill rate by context; cold and warm TTFT by context. Fewer than two points: no chart."""
    cells = [cell for cell in record.cells if cell.phase == "prefill" and about.measured(cell) and cell.prefill]
    rate, cold, warm = [], [], []
    warm_ms = matrix.warm_ttft(record)
    for cell in cells[:MOST_POINTS]:
        if cell.prefill is None or cell.context_tokens is None:
            continue
        r, sound = cell.prefill.prefill_tok_s, cell.status != Status.DOUBTFUL
        rate += _point(cell.context_tokens, r.value, "rate", sound, r.low, r.high)
        cold += _point(cell.context_tokens, cell.prefill.ttft_ms.p50, "cold", sound)
        warm += _point(cell.context_tokens, warm_ms.get(matrix.row_of(cell)), "warm", sound)
    made = []
    if len(rate) > 1:
        made.append(
            _draw(rate, ["rate"], "Prefill rate by context", "context", "tok/s", size=BESIDE, log_y=False, named=False)
        )
    if len(cold) > 1:
        made.append(
            _draw(cold + warm, ["cold", "warm"], "TTFT by context, cold and warm", "context", "ms", size=BESIDE)
        )
    return made


def scaling(record: Record) -> list[Chart]:
    """Total and per-request rate against simultaneous requests, and one against the other; a line for each context."""
    names = series_names(record)
    total: list[Point] = []
    each: list[Point] = []
    trade: list[Point] = []
    for cell in [c for c in record.cells if c.phase == "decode" and about.measured(c)][:MOST_POINTS]:
        d = cell.decode
        name = about.context(cell)
        if d is None or name not in names:
            continue
        sound, rate, one = cell.status != Status.DOUBTFUL, d.total_tok_s, d.per_request_tok_s
        total += _point(cell.concurrency, rate.value, name, sound, rate.low, rate.high)
        each += _point(cell.concurrency, one.p50, name, sound, one.p50_low, one.p50_high)
        trade += _point(one.p50, rate.value, name, sound)
    made = []
    if len({p.x for p in total}) > 1:
        made.append(_draw(total, names, "Total rate", "requests at once", "tok/s"))
        made.append(_draw(each, names, "Rate of each request", "requests at once", "tok/s each"))
    if len(trade) > 1:
        made.append(_draw(trade, names, "System against user", "tok/s each", "tok/s in total"))
    return made


def _point(
    x: float | None, y: float | None, series: str, sound: bool, low: float | None = None, high: float | None = None
) -> list[Point]:
    """No point at all for what cannot stand on a logarithmic axis."""
    if x is None or y is None or not 0 < x <= LARGEST or not 0 < y <= LARGEST:
        return []
    good = low is not None and high is not None and 0 <= low <= y <= high <= LARGEST
    return [Point(float(x), float(y), series, low if good else None, high if good else None, sound)]


def colour(number: int) -> str:
    return f"#ac{number:04x}"


def _ends(found: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis: a little beyond the values, and never so near that nothing but noise shows."""
    low, high = min(found), max(found)
    more = max(MARGIN, math.sqrt(2 * low / high) if high / low < 2 else 0.0)
    return low / more, high * more


def _ticks(found: Iterable[float]) -> list[float]:
    """1, 2, 5 steps around the values; powers of ten where there would be too many."""
    known = list(found)
    low, high = min(known), max(known)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    near = high / low < 6
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7) if near else (1, 2, 5) if len(powers) <= 4 else (1,)
    return [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]


def _draw(
    points: Sequence[Point],
    names: Sequence[str],
    title: str,
    x: str,
    y: str,
    *,
    size: tuple[int, int] = SIZE,
    log_y: bool = True,
    named: bool = True,
) -> Chart:
    """One chart: lines, points (hollow where doubtful), intervals, and each series' name at its end."""
    import vl_convert

    alt: Any = importlib.import_module("altair")  # its own types are too loose for the strict ones here

    ends = _ends([p.y for p in points]) if log_y else (0.0, max(p.y for p in points) * MARGIN)
    rows = [
        {
            "x": p.x, "y": p.y, "s": str(names.index(p.series)), "sound": p.sound, "i": i,
            "low": None if p.low is None else max(p.low, ends[0]),
            "high": None if p.high is None else min(p.high, ends[1] if log_y else LARGEST),
        }
        for i, p in enumerate(points)
    ]  # fmt: skip
    encode = _encoding(alt, points, names, x, y, ends if log_y else None)
    base = alt.Chart(alt.NamedData("points")).encode(**encode)
    layers: list[Any] = [base.mark_line(strokeWidth=1.8, opacity=0.9).encode(order=alt.Order("i:Q"))]
    if any(p.low is not None for p in points):
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2, opacity=0.7)
        layers.append(bars.encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")))
    shape = alt.Shape("s:N", scale=_ordinal(alt, names, list(SHAPES)), legend=None)
    dots = base.mark_point(size=44, filled=True, opacity=1).encode(shape=shape)
    layers.append(dots.transform_filter("datum.sound"))
    hollow = base.mark_point(size=44, filled=True, opacity=1, stroke=None, strokeWidth=1.4)
    hollow = hollow.encode(shape=shape, fill=alt.value(PAPER), stroke=encode["color"])
    layers.append(hollow.transform_filter("!datum.sound"))
    # rows by name: Altair copies what stands in a chart at every step, and checks it a dozen times
    held: dict[str, list[dict[str, Any]]] = {"points": rows}
    if named:
        label, held["names"] = _names(alt, points, encode, ends, log_y, before=x not in LEVELS)
        layers.append(label)
    drawn = alt.layer(*layers).properties(width=size[0], height=size[1]).to_dict(validate=False)
    made = {**drawn, "datasets": held, "config": _look()}
    # the specification has no address to load from, and none is allowed
    svg = vl_convert.vegalite_to_svg(made, allowed_base_urls=[])
    told = f"{title}: {y} against {x}, {len(points)} points in {len({p.series for p in points})} lines"
    return Chart(title, restyle(svg, told), told)


def _ordinal(alt: Any, names: Sequence[str], found: Sequence[str]) -> Any:
    return alt.Scale(
        domain=[str(i) for i in range(len(names))], range=[found[i % len(found)] for i in range(len(names))]
    )


def _encoding(
    alt: Any, points: Sequence[Point], names: Sequence[str], x: str, y: str, log_ends: tuple[float, float] | None
) -> dict[str, Any]:
    xs = sorted({p.x for p in points})
    levels = x in LEVELS
    x_axis = alt.Axis(
        title=x, values=xs[:40] if levels else _ticks(_ends(xs)),
        labelExpr=_CONTEXT_LABEL if x == "context" else _RATE_LABEL, labelOverlap=True, grid=False,
    )  # fmt: skip
    y_axis = alt.Axis(title=y, labelExpr=_RATE_LABEL, labelOverlap=True, tickCount=5)
    y_scale = alt.Scale(zero=True, nice=True)
    if log_ends is not None:
        y_axis = alt.Axis(title=y, labelExpr=_RATE_LABEL, labelOverlap=True, values=_ticks(log_ends))
        y_scale = alt.Scale(type="log", domain=list(log_ends), nice=False)
    low, high = (xs[0] / 1.1, xs[-1] * 1.25) if levels else _ends(xs)
    return {
        "x": alt.X("x:Q", axis=x_axis,
                   scale=alt.Scale(type="log", domain=[low if levels else low / 1.15, high], nice=False)),
        "y": alt.Y("y:Q", axis=y_axis, scale=y_scale),
        "color": alt.Color("s:N", scale=_ordinal(alt, names, [colour(i) for i in range(MOST_SERIES)]), legend=None),
    }  # fmt: skip


def _names(
    alt: Any,
    points: Sequence[Point],
    encode: Mapping[str, Any],
    ends: tuple[float, float],
    log_y: bool,
    *,
    before: bool,
) -> tuple[Any, list[dict[str, Any]]]:
    """The chart's layer and its rows: the series' names at their last points, moved apart where they would cover each
    other; `before`: on the left of them, where their lines come from the right."""
    last: dict[str, Point] = {}
    for point in points:
        last[point.series] = point
    span = math.log(ends[1] / ends[0]) if log_y else ends[1]
    rows: list[dict[str, Any]] = []
    for series, point in sorted(last.items(), key=lambda pair: pair[1].y):
        y = math.log(point.y) if log_y else point.y
        near = [r["at"] for r in rows if abs(math.log(r["x"] / point.x)) < 0.25]
        if near:
            y = max(y, max(near) + span * 0.06)
        rows.append({"x": point.x, "at": y, "y": math.exp(y) if log_y else y, "t": clean(series, 12)})
    label = alt.Chart(alt.NamedData("names")).mark_text(
        align="right" if before else "left", dx=-8 if before else 8, fontSize=11, color=INK
    )
    told = [{k: row[k] for k in ("x", "y", "t")} for row in rows]
    return label.encode(x=encode["x"], y=encode["y"], text="t:N"), told


def _look() -> dict[str, Any]:
    axis = {
        "domainColor": SOFT, "tickColor": SOFT, "gridColor": GRID, "labelColor": SOFT, "titleColor": SOFT,
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "titlePadding": 6, "tickSize": 4,
        "domainWidth": 1, "gridWidth": 1,
    }  # fmt: skip
    return {"axis": axis, "view": {"stroke": None}, "background": None, "aria": False, "font": "Arial", "padding": 4}


def restyle(svg: str, label: str) -> str:
    """The drawing with classes for colours, without scripts, links, styles and whatever else we do not draw with."""
    root = ET.fromstring(svg)
    made = _copied(root)
    if made is None:
        raise ValueError("the drawing is no SVG")
    made.attrib.pop("width", None)
    made.attrib.pop("height", None)
    made.set("class", "chart")
    made.set("role", "img")
    made.set("aria-label", label)
    return ET.tostring(made, encoding="unicode", short_empty_elements=True)


def _copied(node: ET.Element) -> ET.Element | None:
    name = node.tag.rsplit("}", 1)[-1]
    if name not in _ELEMENTS:
        return None
    made = ET.Element(name)
    for key, value in node.attrib.items():
        if key in _KEPT and _NUMERIC.fullmatch(value):
            made.set(key, _NUMBER.sub(lambda m: f"{float(m.group()):.1f}".removesuffix(".0"), value))
    classes = [c for c in (_class(node.get("fill"), "f"), _class(node.get("stroke"), "s")) if c]
    if node.get("fill") in ("none", "transparent"):
        made.set("fill", "none")
    if classes:
        made.set("class", " ".join(classes))
    made.text = node.text
    for child in node:
        copied = _copied(child)
        if copied is not None and not _nothing(copied):
            copied.tail = None
            made.append(copied)
    return made


def _class(value: str | None, kind: str) -> str | None:
    """`f-ink`, `s-3`: the class for a colour of the specification."""
    if value is None or value in ("none", "transparent"):
        return None
    if value in _CLASSES:
        return f"{kind}-{_CLASSES[value]}"
    number = re.fullmatch(r"#ac([0-9a-f]{4})", value)
    return f"{kind}-{int(number.group(1), 16) % MOST_SERIES}" if number else None


def _nothing(node: ET.Element) -> bool:
    """Empty groups, and the shapes that vega puts in for hit tests and backgrounds."""
    if node.tag in ("g", "text", "tspan"):
        return len(node) == 0 and not node.text
    return node.tag in ("path", "rect") and "class" not in node.attrib
