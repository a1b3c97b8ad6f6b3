"""The small charts of one cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flatout.record import Cell, Distribution, Series
from flatout.show.page import drawing, streams, values
from flatout.show.page.drawing import Line
from flatout.show.page.html import Html, tag

MACHINE: Final = ("sm_clock_mhz", "power_w", "temperature_c", "gpu_use_percent", "cpu_use_percent", "throttled")


def decode(cell: Cell, samples_dir: Path | None) -> Html | None:
    """Tokens over the window, time between tokens, running and waiting, and the requests where samples are given."""
    d = cell.decode
    if d is None:
        return None
    made = [
        _tokens(cell),
        _histogram("Time between tokens", d.itl_ms, weight="tokens"),
        _running(cell),
        _histogram("TTFT", d.ttft_ms, weight="requests"),
        streams.chart(cell, samples_dir),
    ]
    return _grid(made)


def burst(cell: Cell) -> Html | None:
    if cell.burst is None:
        return None
    return _grid(
        [
            _histogram("Time between tokens", cell.burst.itl_ms, weight="tokens"),
            _histogram("TTFT", cell.burst.ttft_ms, weight="requests"),
        ]
    )


def machine(cell: Cell) -> Html | None:
    """The machine's curves, the well-known ones."""
    found = cell.telemetry.series if cell.telemetry is not None else {}
    return _grid([_curve(key, found[key]) for key in MACHINE if key in found])


def _grid(made: Sequence[Html | None]) -> Html | None:
    figures = [one for one in made if one is not None]
    return tag("div", figures, class_="smalls") if figures else None


def _ends(cell: Cell, lines: Sequence[Line]) -> tuple[float, float]:
    """The time axis: the window, or as far as the points go where its length is no use."""
    times = [t for line in lines for t, _ in line.points]
    length = values.drawable(cell.window.length_s) if cell.window is not None else None
    return 0.0, length if length is not None and length > 0 else max([1e-3, *times])


def _tokens(cell: Cell) -> Html | None:
    d = cell.decode
    if d is None:
        return None
    line = Line(drawing.points(d.tok_s_series), "a", steps=True)
    peak = drawing.top([line])
    if peak is None:
        return None
    start, end = _ends(cell, [line])
    lines = [line]
    total = values.drawable(d.total_tok_s.value)
    if total is not None and 0 <= total <= peak:
        lines.append(Line([(start, total), (end, total)], "mean"))
    label = f"Tokens per second over the window of {values.seconds(end)}: at most {values.rate(peak)}"
    picture = drawing.curve(lines, from_s=start, to_s=end, highest=peak, label=label)
    key = f"mean {values.rate(total)}" if total is not None else ""
    return drawing.figure("Tokens per second", picture, "0 s", values.seconds(end), peak=values.rate(peak), key=key)


def _running(cell: Cell) -> Html | None:
    d = cell.decode
    if d is None:
        return None
    running = Line(drawing.points(d.running_series), "a", steps=True)
    waiting = Line(drawing.points(d.waiting_series), "b", steps=True)
    peak = drawing.top([running, waiting])
    if peak is None:
        return None
    peak = max(peak, 1.0)
    start, end = _ends(cell, [running, waiting])
    label = (
        f"Requests running and waiting on the server over the window: at most {values.mean(drawing.top([running]))} "
        f"running, {values.mean(drawing.top([waiting]))} waiting"
    )
    picture = drawing.curve([running, waiting], from_s=start, to_s=end, highest=peak, label=label)
    key = f"{cell.concurrency} asked; dashed: waiting"
    return drawing.figure("Running and waiting", picture, "0 s", values.seconds(end), peak=values.count(peak), key=key)


def _histogram(title: str, found: Distribution, *, weight: str) -> Html | None:
    bars = drawing.bars(found.histogram)
    if bars is None or len(bars.bars) < 2:
        return None
    marks = [("p50", found.p50), ("p90", found.p90), ("p99", found.p99)]
    told = ", ".join(f"{name} {values.ms(value, fine=True)}" for name, value in marks if value is not None)
    label = f"{title}, histogram of {values.count(found.n)} {weight}, {told}"
    picture = drawing.histogram(bars, marks, label)
    scale = " (log)" if bars.log else ""
    return drawing.figure(
        title, picture, values.ms(bars.low, fine=True), values.ms(bars.high, fine=True) + scale, key=told
    )


def _curve(key: str, series: Series) -> Html | None:
    from flatout.show.page.detail import reading_name

    line = Line(drawing.points(series), "a")
    peak = drawing.top([line])
    if peak is None:
        return None
    end = max([1e-3, *(t for t, _ in line.points)])
    title = reading_name(key)
    unit = {"_mhz": " MHz", "_w": " W", "_c": " °C", "_percent": " %"}
    most = values.count(peak) + next((u for e, u in unit.items() if key.endswith(e)), "")
    picture = drawing.curve(
        [line], from_s=0.0, to_s=end, highest=peak, label=f"{title} over the window, at most {most}"
    )
    return drawing.figure(title, picture, "0 s", values.seconds(end), peak=most)
