"""All charts: the shades of numbers, a cell's small charts, and the large ones with axes, as SVG without a colour.

The style sheet gives the colours, so that one drawing serves light and dark. `element` makes all of the markup: shapes,
numbers, and text that is made harmless and escaped.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from markupsafe import Markup, escape

from flatout.flags import Status
from flatout.record import Cell, Distribution, Histogram, Record, Series
from flatout.show import about, matrix, numbers
from flatout.show.safe import clean

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LARGEST: Final = 1e15
"""A larger number is no measurement, and is left out of every drawing."""
SMALLEST: Final = 1e-9
LONGEST: Final = 16
"""Characters of a number; a longer one is no measurement either."""
LIGHT: Final = (
    "#fbf7e9", "#f6edd9", "#f3e4c7", "#f1d9b4", "#f0cfa2", "#efc390", "#efb77e", "#efab6c", "#ef9d5b", "#ef8f4b",
)  # fmt: skip
"""The shades on light paper, worst to best; the page's style sheet has them too, and their dark sisters."""
STEPS: Final = len(LIGHT)
KINDS: Final = 16
"""Colours of lines; the style sheet has one for each class from k-0 on."""
_SHAPES: Final = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", "m-2.8 -2.8h5.6v5.6h-5.6z", "m0 -3.7l3.5 6.2h-7z",
    "m0 -4l3.5 4l-3.5 4l-3.5 -4z", "m-1.2 -3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",
    "m0 3.7l3.5 -6.2h-7z", "m3.7 0l-6.2 3.5v-7z", "m-3.7 0l6.2 3.5v-7z",
)  # fmt: skip


def drawable(value: float | int | None) -> float | None:
    """The value as a float that can be drawn, or None: missing, not finite, or absurdly large."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def element(name: str, *children: str | Markup, **attributes: str | None) -> Markup:
    """An element. Attribute names lose a trailing `_`, and `_` becomes `-`; None leaves an attribute out."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(clean(value, 50_000))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(child if isinstance(child, Markup) else clean(child)) for child in children)
    return Markup(f"<{name}{''.join(given)}>{inner}</{name}>")


class Heat:
    """Shades for one figure, in ten steps on a logarithmic scale. `more`: whether a larger value is the better one."""

    def __init__(self, found: Iterable[float | None], *, more: bool) -> None:
        known = [value for value in map(drawable, found) if value is not None and value > 0]
        self._low = min(known, default=1.0)
        self._high = max(known, default=1.0)
        self._more = more

    def step(self, value: float | None) -> int | None:
        """0 (worst) to STEPS - 1 (best); None for what cannot be placed."""
        number = drawable(value)
        if number is None or number <= 0:
            return None
        if self._high <= self._low:
            return STEPS // 2
        share = _clamp(math.log(number / self._low) / math.log(self._high / self._low))
        return min(STEPS - 1, int((share if self._more else 1 - share) * STEPS))


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else "out of range"


# small charts: one path each, stretched to its place; the words around it are HTML and stay sharp

WIDE, HIGH = 600, 100
MOST_POINTS: Final = 150
MOST_BARS: Final = 120


@dataclass(frozen=True, slots=True)
class Small:
    """A small chart and its words. `key`: what its lines are; `peak`: what the top stands for; `left`, `right`: the
    ends of its axis."""

    title: str
    svg: Markup
    left: str
    right: str
    peak: str = ""
    key: str = ""


Points = list[tuple[float, float | None]]


def points(series: Series | None) -> Points:
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


def _top(*lines: Points) -> float | None:
    return max((v for line in lines for _, v in line if v is not None), default=None)


def curve(lines: Sequence[tuple[str, Points]], *, end_s: float, highest: float, label: str, steps: bool) -> Markup:
    """Lines (class, points) over time from 0 to `end_s`, values from 0 to `highest`; `steps`: flat between points."""
    span, high = max(end_s, 1e-9), highest if highest > 0 else 1.0
    return _stretched([_stroke(f"ln {kind}", _path(line, span, high, steps)) for kind, line in lines if line], label)


def _path(line: Points, span: float, high: float, steps: bool) -> str:
    made: list[str] = []
    pen_down = False
    for t, value in line:
        if value is None:
            pen_down = False
            continue
        x, y = _clamp(t / span) * WIDE, HIGH - 2 - _clamp(value / high) * (HIGH - 4)
        made.append(f"M{x:.0f} {y:.1f}" if not pen_down else f"H{x:.0f}V{y:.1f}" if steps else f"L{x:.0f} {y:.1f}")
        pen_down = True
    return "".join(made)


def _stroke(kind: str, d: str) -> Markup:
    return element("path", d=d, class_=kind, vector_effect="non-scaling-stroke")


def _stretched(shapes: Sequence[Markup], label: str) -> Markup:
    return element(
        "svg", *shapes, viewBox=f"0 0 {WIDE} {HIGH}", preserveAspectRatio="none", role="img", aria_label=label,
        class_="plot",
    )  # fmt: skip


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
    edges = [edge for edge in map(drawable, histogram.edges) if edge is not None]
    counts = [max(0.0, count) for count in map(drawable, histogram.counts) if count is not None]
    broken = len(edges) != len(histogram.edges) or len(counts) != len(histogram.counts) or len(edges) != len(counts) + 1
    if broken or any(b <= a for a, b in pairwise(edges)) or max(counts) <= 0:
        return None
    while len(counts) > MOST_BARS:
        counts = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
        edges = [*edges[:-1:2], edges[-1]]
    axis = Bars((), edges[0], edges[-1], edges[0] > 0 and edges[-1] / edges[0] > 3)
    places = [axis.place(edge) or 0.0 for edge in edges]
    tallest = max(counts)
    made = [(a, b, c / tallest) for (a, b), c in zip(pairwise(places), counts, strict=True)]
    return Bars(made, axis.low, axis.high, axis.log)


def histogram(found: Bars, marks: Sequence[tuple[str, float | None]], label: str) -> Markup:
    """Bars, and a line for each mark (a percentile: its class, its value)."""
    path = "".join(
        f"M{a * WIDE:.1f} {HIGH}V{HIGH - max(1.0, h * (HIGH - 4)):.1f}H{max(b * WIDE - 1, a * WIDE + 0.5):.1f}V{HIGH}Z"
        for a, b, h in found.bars
        if h > 0
    )
    places = [(kind, at) for kind, value in marks if (at := found.place(value)) is not None]
    lines = [_stroke(f"mk {kind}", f"M{at * WIDE:.1f} 0V{HIGH}") for kind, at in places]
    return _stretched([element("path", d=path, class_="bar"), *lines], label)


Strip = Sequence[tuple[float, float, str]]


def strips(rows: Sequence[Strip], label: str) -> Markup:
    """Rows of bars over one axis: (from, to, class), 0..1."""
    high = HIGH / max(1, len(rows))
    paths: dict[str, str] = {}
    for number, row in enumerate(rows):
        for a, b, kind in row:
            x, wide = _clamp(a) * WIDE, max(0.6, (_clamp(b) - _clamp(a)) * WIDE)
            bar = f"M{x:.1f} {(number + 0.1) * high:.2f}h{wide:.1f}v{high * 0.8:.2f}h-{wide:.1f}z"
            paths[kind] = paths.get(kind, "") + bar
    return _stretched([element("path", d=path, class_=f"st {kind}") for kind, path in paths.items()], label)


def of_cell(cell: Cell, samples_dir: Path | None) -> list[Small]:
    """Tokens over the window, time between tokens, running and waiting, TTFT, and the requests where samples are."""
    figures = cell.decode or cell.burst
    if figures is None:
        return []
    found = [
        _tokens(cell), _spread("Time between tokens", figures.itl_ms, "tokens"), _running(cell),
        _spread("TTFT", figures.ttft_ms, "requests"), streams(cell, samples_dir),
    ]  # fmt: skip
    return [chart for chart in found if chart is not None]


def _end_s(cell: Cell, *lines: Points) -> float:
    """The end of the time axis: the window's, or as far as the points go where its length is no use."""
    length = drawable(cell.window.length_s) if cell.window is not None else None
    return length if length is not None and length > 0 else max([1e-3, *(t for line in lines for t, _ in line)])


def _over_time(title: str, lines: Sequence[tuple[str, Points]], end_s: float, peak: str, label: str, key: str) -> Small:
    highest = max(_top(*(line for _, line in lines)) or 0.0, 1e-9)
    svg = curve(lines, end_s=end_s, highest=highest, label=label, steps=key != "")
    return Small(title, svg, "0 s", _short(numbers.seconds(end_s)), peak, key)


def _tokens(cell: Cell) -> Small | None:
    line = points(cell.decode.tok_s_series) if cell.decode is not None else []
    peak = _top(line)
    if cell.decode is None or peak is None:
        return None
    end_s, total = _end_s(cell, line), drawable(cell.decode.total_tok_s.value)
    lines = [("a", line)]
    if total is not None and 0 <= total <= peak:
        lines.append(("mean", [(0.0, total), (end_s, total)]))
    most = _short(numbers.rate(peak))
    label = f"Tokens per second over the window of {_short(numbers.seconds(end_s))}: at most {most}"
    return _over_time("Tokens per second", lines, end_s, most, label, f"mean {_short(numbers.rate(total))}")


def _running(cell: Cell) -> Small | None:
    if cell.decode is None:
        return None
    running, waiting = points(cell.decode.running_series), points(cell.decode.waiting_series)
    peak = _top(running, waiting)
    if peak is None:
        return None
    label = (
        f"Requests running and waiting on the server over the window: at most {_short(numbers.mean(_top(running)))} "
        f"running, {_short(numbers.mean(_top(waiting)))} waiting"
    )
    key = f"{_short(numbers.count(drawable(cell.concurrency)))} asked; dashed: waiting"
    lines = [("a", running), ("b", waiting)]
    end_s = _end_s(cell, running, waiting)
    return _over_time("Running and waiting", lines, end_s, _short(numbers.count(peak)), label, key)


def _spread(title: str, found: Distribution, weight: str) -> Small | None:
    drawn = bars(found.histogram)
    if drawn is None or len(drawn.bars) < 2:
        return None
    marks = [("p50", found.p50), ("p90", found.p90), ("p99", found.p99)]
    key = ", ".join(f"{name} {_fine(value)}" for name, value in marks if value is not None)
    svg = histogram(drawn, marks, f"{title}, histogram of {_short(numbers.count(found.n))} {weight}, {key}")
    return Small(title, svg, _fine(drawn.low), _fine(drawn.high) + (" (log)" if drawn.log else ""), key=key)


def _fine(value: float) -> str:
    return _short(numbers.ms(value, fine=True))


def over_window(title: str, series: Series, unit: str) -> Small | None:
    """A curve of the machine's over the window."""
    line = points(series)
    peak = _top(line)
    if peak is None:
        return None
    most = f"{_short(numbers.count(peak))} {unit}".strip()
    end_s = max([1e-3, *(t for t, _ in line)])
    return _over_time(title, [("a", line)], end_s, most, f"{title} over the window, at most {most}", "")


# the requests of a cell, from its samples

MOST_STREAMS: Final = 64
MOST_REQUESTS: Final = 600
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_ROWS: Final = 1_000_000
"""Requests in a file; one with more is no cell's, and is not read."""
_COLUMNS: Final = ("stream", "send_ns", "first_token_ns", "end_ns")
_BROKEN: Final = (
    OSError, ValueError, KeyError, IndexError, EOFError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What a file that is no samples of ours may raise."""


def streams(cell: Cell, samples_dir: Path | None) -> Small | None:
    """When each request was sent, had its first token, and ended. None where there are no samples of this cell, or
    they are no samples of ours: they only add to the page."""
    if samples_dir is None or cell.samples is None or cell.window is None:
        return None
    # only the file's own name counts: a record must not be able to name a file elsewhere
    path = samples_dir / PurePosixPath(cell.samples.replace("\\", "/")).name
    try:
        if path.suffix != ".npz" or not path.is_file():
            return None
        stat = path.stat()
        return _streams(cell, _read(path, stat.st_mtime_ns, stat.st_size)) if stat.st_size <= MOST_BYTES else None
    except _BROKEN:
        return None


@lru_cache(maxsize=1)
def _read(path: Path, _time_ns: int, _size: int) -> npt.NDArray[np.int64]:
    """The four columns of the table of requests that are drawn, shape (4, R). The last file is kept, for a record
    whose cells all name one. Raises ValueError and what zipfile does."""
    import numpy as np

    with zipfile.ZipFile(path) as archive:
        found: list[npt.NDArray[np.int64]] = []
        for name in _COLUMNS:
            with archive.open(f"{name}.npy") as file:
                found.append(_column(file))
    if len({len(column) for column in found}) > 1:
        raise ValueError("the columns are of different lengths")
    return np.stack(found)


def _column(file: IO[bytes]) -> npt.NDArray[np.int64]:
    """Read by ourselves: no byte of it before its header has told that it is no longer than MOST_ROWS."""
    import numpy as np

    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of an unknown kind")
    shape, _, kind = np.lib.format.read_array_header_1_0(file)
    if len(shape) != 1 or not 0 <= shape[0] <= MOST_ROWS or kind.kind != "i":
        raise ValueError("an array that no samples have")
    return np.frombuffer(file.read(shape[0] * kind.itemsize), dtype=kind, count=shape[0]).astype(np.int64)


def _streams(cell: Cell, requests: npt.NDArray[np.int64]) -> Small | None:
    import numpy as np

    window = cell.window
    if window is None or window.close_ns <= window.open_ns:
        return None
    span = window.close_ns - window.open_ns
    stream, send, first, end = requests
    stop = np.where(end >= 0, end, window.close_ns)
    seen = (send >= 0) & (stop >= window.open_ns) & (send <= window.close_ns) & (stream >= 0) & (stream < MOST_STREAMS)
    at = np.flatnonzero(seen)[:MOST_REQUESTS]
    rows: dict[int, list[tuple[float, float, str]]] = {}
    for key, *times in zip(*(part[at].tolist() for part in (stream, send, first, stop)), strict=True):
        sent, begun, stopped = ((t - window.open_ns) / span for t in (times[0], max(times[1], -1), times[2]))
        begun = begun if times[1] >= 0 else stopped
        bars = ((sent, begun, "wait"), (begun, stopped, "give"))
        rows.setdefault(key, []).extend(bar for bar in bars if bar[1] > 0 and bar[0] < 1)
    if not rows:
        return None
    label = f"{len(at)} requests of {len(rows)} streams over the window: waiting for the first token, then decoding"
    svg = strips([rows[key] for key in sorted(rows)], label)
    key = f"{len(at)} requests; strong: before the first token"
    return Small("Streams", svg, "0 s", _short(numbers.seconds(window.length_s)), key=key)


# large charts, with axes

MOST_SERIES: Final = 16
MOST_SPOTS: Final = 400
MARGIN: Final = 1.15
"""How far a logarithmic axis goes beyond its points; a longer interval is cut there."""
LEVELS: Final = ("context", "requests at once")
"""Axes whose ticks are the planned values themselves."""
_LEFT, _TOP, _BELOW = 46.0, 8.0, 40.0
"""Room around the frame: for the words of the y axis, above, and for those of the x axis."""
_STRIP: Final = 86.0
"""Room below the frame for a strip of ratios."""
_WORD: Final = 22.0
"""Room that a word of an axis needs."""
_ABOVE: Final = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 100.0, 1000.0)
_NARROWEST, _WIDEST, _REACH = math.log(1.015), math.log(1000), math.log(2)
"""The strip shows at least 1.5 %, and no ratio beyond a thousand; of an interval no more than a factor of two, or twice
as far as the ratios themselves lie."""


@dataclass(frozen=True, slots=True)
class Large:
    """A chart with axes. `unit`: that of its y axis; `summary`: what it shows, in words."""

    title: str
    unit: str
    svg: Markup
    summary: str


@dataclass(frozen=True, slots=True)
class Spot:
    """One mark; `sound`: its number is not doubtful."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    sound: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """Spots that belong together; None breaks the line. `kind`: its class of colour; `shape`: that of its marks."""

    name: str
    spots: Sequence[Spot | None]
    kind: str
    shape: int

    @property
    def known(self) -> list[Spot]:
        return [spot for spot in self.spots if spot is not None]


@dataclass(frozen=True, slots=True)
class Ratios:
    """The strip below a chart: each line's ratios to the first. `title`: at its head; `marks`: (colour, verdict, spot),
    the verdict being `up`, `down` or `same`."""

    title: str
    marks: Sequence[tuple[str, str, Spot]]


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to places. `low`, `high`: its ends, as logarithms where it is logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        number = math.log(value) if self.log else value
        return self.start + _clamp((number - self.low) / (self.high - self.low)) * (self.end - self.start)


def spot(x: float | None, y: float | None, low: float | None, high: float | None, sound: bool) -> Spot | None:
    """None for what cannot stand on a logarithmic axis."""
    at, number = drawable(x), drawable(y)
    if at is None or number is None or at <= 0 or number < SMALLEST:
        return None
    good = low is not None and high is not None and 0 <= low <= number <= high <= LARGEST
    return Spot(at, number, low if good else None, high if good else None, sound)


def key_mark(line: Line) -> Markup:
    """How a line looks, for the words beside the charts."""
    shapes = [_shape("M0 6H26", f"line {line.kind}"), _shape(f"M13 6{_SHAPES[line.shape]}", f"mark {line.kind}")]
    return element("svg", *shapes, viewBox="0 0 26 12", aria_hidden="true", class_="sample")


def contexts(record: Record) -> list[Line]:
    """The lines of the scaling charts without their spots: the contexts in order."""
    rows = matrix.of(cell for cell in record.cells if about.measured(cell)).rows[:MOST_SERIES]
    return [line_of(i, row[0]) for i, row in enumerate(rows)]


def line_of(number: int, name: str, spots: Sequence[Spot | None] = ()) -> Line:
    """A line with the colour and shape of its number."""
    return Line(name, spots, f"k-{number % KINDS}", number % len(_SHAPES))


def prefill(record: Record) -> list[Large]:
    """Prefill rate by context; cold and warm TTFT by context. Fewer than two places: no chart."""
    warm_ms = matrix.warm_ttft(record)
    rate: list[Spot | None] = []
    cold: list[Spot | None] = []
    warm: list[Spot | None] = []
    cells = [c for c in record.cells if about.measured(c) and drawable(c.context_tokens) is not None][:MOST_SPOTS]
    for cell in cells:
        if cell.prefill is not None:
            r, sound = cell.prefill.prefill_tok_s, cell.status != Status.DOUBTFUL
            rate.append(spot(cell.context_tokens, r.value, r.low, r.high, sound))
            cold.append(spot(cell.context_tokens, cell.prefill.ttft_ms.p50, None, None, sound))
            warm.append(spot(cell.context_tokens, warm_ms.get(matrix.row_of(cell)), None, None, sound))
    labels = {float(c.context_tokens): about.context(c) for c in cells if c.context_tokens is not None}
    both, one = [line_of(0, "cold", cold), line_of(1, "warm", warm)], [line_of(0, "", rate)]
    made = (
        plot(one, "Prefill rate by context", "context", "tok/s", size=BESIDE, log_y=False, labels=labels),
        plot(both, "TTFT by context, cold and warm", "context", "ms", size=BESIDE, labels=labels),
    )
    return [chart for chart in made if chart is not None]


def scaling(record: Record) -> list[Large]:
    """Total and per-request rate against simultaneous requests, and one against the other; a line for each context."""
    names = {line.name: number for number, line in enumerate(contexts(record))}
    total: dict[str, list[Spot | None]] = {name: [] for name in names}
    each: dict[str, list[Spot | None]] = {name: [] for name in names}
    trade: dict[str, list[Spot | None]] = {name: [] for name in names}
    for cell in [c for c in record.cells if c.phase == "decode" and about.measured(c)][:MOST_SPOTS]:
        d, name = cell.decode, about.context(cell)
        if d is None or name not in names:
            continue
        sound, rate, one = cell.status != Status.DOUBTFUL, d.total_tok_s, d.per_request_tok_s
        total[name].append(spot(cell.concurrency, rate.value, rate.low, rate.high, sound))
        each[name].append(spot(cell.concurrency, one.p50, one.p50_low, one.p50_high, sound))
        trade[name].append(spot(one.p50, rate.value, None, None, sound))

    def lines(found: dict[str, list[Spot | None]]) -> list[Line]:
        return [line_of(names[name], name, spots) for name, spots in found.items()]

    made = (
        plot(lines(total), "Total rate", "requests at once", "tok/s"),
        plot(lines(each), "Rate of each request", "requests at once", "tok/s each"),
        plot(lines(trade), "System against user", "tok/s each", "tok/s in total"),
    )
    return [chart for chart in made if chart is not None]


SIZE: Final = (350.0, 262.0)
BESIDE: Final = (500.0, 190.0)
"""Width and height of a chart: of those that stand in a row, and of those beside a table."""


def plot(
    lines: Sequence[Line],
    title: str,
    x: str,
    y: str,
    *,
    size: tuple[float, float] = SIZE,
    log_y: bool = True,
    ratios: Ratios | None = None,
    labels: Mapping[float, str] | None = None,
) -> Large | None:
    """One chart: lines, marks (hollow where doubtful), intervals, each line's name at its end, and a strip of ratios
    below. `labels`: what places on the x axis are called. None for fewer than two places on it."""
    shown = [line for line in lines if line.known]
    xs = sorted({s.x for line in shown for s in line.known})
    if len(xs) < 2 or math.log(xs[-1] / xs[0]) < SMALLEST:
        return None
    wide, high = size
    named = max((len(line.name) for line in shown), default=0)
    across = _across(xs, x, wide - 12 - 6.2 * min(named, 12))
    up = _upward([s for line in shown for s in line.known], high - _BELOW, log_y)
    shapes = [*_y_axis(up, across, log_y), *(shape for line in shown for shape in _drawn(line, across, up))]
    shapes += _names(shown, across, up)
    floor = up.start
    if ratios is not None:
        floor = up.start + _STRIP
        shapes += _ratio_strip(ratios, across, Axis(0, 1, floor, up.start + 22, False))
    shapes += _x_axis(xs, x, across, floor, labels or {})
    told = f"{title}: {y} against {x}, {sum(len(line.known) for line in shown)} points in {len(shown)} lines"
    box = f"0 0 {wide:.0f} {high + floor - up.start:.0f}"
    return Large(title, y, element("svg", *shapes, viewBox=box, role="img", aria_label=told, class_="chart"), told)


def _across(xs: Sequence[float], x: str, end: float) -> Axis:
    low, high = (xs[0], xs[-1]) if x in LEVELS else _log_ends(xs)
    edge = math.log(high / low) * 0.05 if x in LEVELS else 0.0
    return Axis(math.log(low) - edge, math.log(high) + edge, _LEFT, end, True)


def _upward(found: Sequence[Spot], floor: float, log_y: bool) -> Axis:
    values = [s.y for s in found]
    if log_y:
        low, high = _log_ends(values)
        return Axis(math.log(low), math.log(high), floor, _TOP, True)
    # an interval far beyond its value is cut
    most = max(max(s.y, min(s.high or 0.0, s.y * 1.5)) for s in found)
    return Axis(0.0, most * 1.04, floor, _TOP, False)


def _log_ends(found: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis: a little beyond the values, and never so near that nothing but noise shows."""
    low, high = min(found), max(found)
    more = max(MARGIN, math.sqrt(2 * low / high) if high / low < 2 else 0.0)
    return low / more, high * more


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 steps between the ends; powers of ten where there would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps: tuple[float, ...] = (1, 2, 5) if len(powers) <= 4 else (1,)
    if high / low < 6:
        steps = (1, 1.5, 2, 3, 4, 5, 7)
    return [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]


def round_ticks(most: float) -> list[float]:
    """0 and at most four round values up to `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(s * power / 10 for s in (1, 2, 2.5, 5, 10, 20, 25, 50) if most / (s * power / 10) <= 4.2)
    return [i * step for i in range(int(most / step) + 1)]


def _tick(value: float) -> str:
    """40K, 1.5M, 0.05: K is 1000 here, also for times."""
    for size, unit in ((1e6, "M"), (1e3, "K")):
        if value >= size:
            return _short(f"{value / size:,.4g}{unit}")
    return _short(f"{value:.4g}")


def _y_axis(up: Axis, across: Axis, log_y: bool) -> list[Markup]:
    ticks = log_ticks(math.exp(up.low), math.exp(up.high)) if log_y else round_ticks(up.high)
    made, last = [], math.inf
    for tick in ticks:
        y = up.place(tick)
        if last - y >= 11:
            made += [_shape(f"M{across.start:.1f} {y:.1f}H{across.end:.1f}", "grid")]
            made += [_text(across.start - 5, y + 3.5, _tick(tick), "end")]
            last = y
    return made


def _x_axis(xs: Sequence[float], x: str, across: Axis, floor: float, labels: Mapping[float, str]) -> list[Markup]:
    levels = x in LEVELS
    ticks = xs[:40] if levels else log_ticks(math.exp(across.low), math.exp(across.high))
    made = [_shape(f"M{across.start:.1f} {floor:.1f}H{across.end:.1f}", "axis")]
    free = -math.inf
    for tick in ticks:
        at = across.place(tick)
        made.append(_shape(f"M{at:.1f} {floor:.1f}v4", "axis"))
        word = labels.get(tick) or (f"{tick:,.0f}" if levels else _tick(tick))
        half = max(_WORD, 6.2 * len(word)) / 2
        if at - half >= free:
            made.append(_text(at, floor + 15, _short(word), "middle"))
            free = at + half
    return [*made, _text((across.start + across.end) / 2, floor + 31, x, "middle")]


def _drawn(line: Line, across: Axis, up: Axis) -> list[Markup]:
    """A line with its intervals and marks."""
    at = [(across.place(s.x), up.place(s.y), s) if s is not None else None for s in line.spots]
    path = "".join(
        f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in pairwise(at) if a is not None and b is not None
    )
    made = [_shape(path, f"line {line.kind}")] if path else []
    known = [place for place in at if place is not None]
    intervals = "".join(
        f"M{x:.1f} {up.place(max(s.low, SMALLEST)):.1f}V{up.place(s.high):.1f}"
        for x, _, s in known
        if s.low is not None and s.high is not None
    )
    made += [_shape(intervals, f"bars {line.kind}")] if intervals else []
    for sound, kind in ((True, "mark"), (False, "mark hollow")):
        marks = "".join(f"M{x:.1f} {y:.1f}{_SHAPES[line.shape]}" for x, y, s in known if s.sound == sound)
        made += [_shape(marks, f"{kind} {line.kind}")] if marks else []
    return made


def _names(lines: Sequence[Line], across: Axis, up: Axis) -> list[Markup]:
    """The lines' names at their last marks, outwards, moved apart where they would cover each other."""
    ends = [(line.name, line.known[-1], line.known[-1].x >= line.known[0].x) for line in lines if line.name]
    made: list[Markup] = []
    taken: list[tuple[float, float]] = []
    for name, end, right in sorted(ends, key=lambda one: -up.place(one[1].y)):
        x, y = across.place(end.x) + (7 if right else -7), up.place(end.y) + 3.5
        y = min([y, *(other_y - 11 for other_x, other_y in taken if abs(other_x - x) < 40)])
        taken.append((x, y))
        made.append(_text(x, y, clean(name, 12), "start" if right else "end", "name"))
    return made


def _ratio_strip(ratios: Ratios, across: Axis, room: Axis) -> list[Markup]:
    """A line at 1, and each cell's ratio with its interval, the verdict as its shape."""
    known = [(kind, verdict, s, _logs(s)) for kind, verdict, s in ratios.marks]
    reach = max([_REACH, *(2 * abs(ends[1]) for *_, ends in known)])
    low = min([-_NARROWEST, *(max(ends[0], -reach) for *_, ends in known)])
    high = max([_NARROWEST, *(min(ends[2], reach) for *_, ends in known)])
    edge = (high - low) * 0.08
    up = Axis(low - edge, high + edge, room.start, room.end, False)
    one = up.place(0.0)
    made = [_shape(f"M{across.start:.1f} {one:.1f}H{across.end:.1f}", "axis"), _text(41, one + 3.5, "1", "end")]
    for tick in (
        *[t for t in _ABOVE if math.log(t) <= high][-1:],
        *[1 / t for t in _ABOVE if -math.log(t) >= low][-1:],
    ):
        y = up.place(math.log(tick))
        if abs(y - one) >= 11:
            made += [_shape(f"M{across.start:.1f} {y:.1f}H{across.end:.1f}", "grid")]
            made += [_text(41, y + 3.5, f"{tick:.3g}", "end")]
    made.append(_text(across.start, room.end - 5, ratios.title, "start"))
    shapes = {"up": _SHAPES[2], "down": _SHAPES[5]}
    for kind, verdict, s, (below, middle, above) in known:
        x = across.place(s.x)
        if above > below:
            made.append(_shape(f"M{x:.1f} {up.place(below):.1f}V{up.place(above):.1f}", f"bars {kind}"))
        hollow = "" if s.sound else " hollow"
        made.append(_shape(f"M{x:.1f} {up.place(middle):.1f}{shapes.get(verdict, _SHAPES[0])}", f"mark {kind}{hollow}"))
    return made


def _logs(s: Spot) -> tuple[float, float, float]:
    """Logarithms of a ratio's lower end, itself and its upper end, cut at a thousand: an end may be 0 or endless."""
    ends = [s.y if end is None else end for end in (s.low, s.y, s.high)]
    cut = [min(_WIDEST, max(-_WIDEST, math.log(end))) if end > 0 else -_WIDEST for end in ends]
    return min(cut), cut[1], max(cut)


def _shape(d: str, kind: str) -> Markup:
    return element("path", d=d, class_=kind)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Markup:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)
