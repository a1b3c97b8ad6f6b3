"""Charts and pictures: places follow the numbers, whatever a record or a file of samples holds."""

from __future__ import annotations

import io
import math
import re
import struct
import tracemalloc
import xml.etree.ElementTree as ET
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.compare import CellPair, Compared, Key, Value, Verdict
from flatout.compare.ratio import Ratio
from flatout.flags import Status
from flatout.record import Cell, Histogram, Record, Series
from flatout.show import charts, picture
from flatout.show.charts import STEPS, Heat
from flatout.show.page.compared import Row, overlay
from tests import page_records, records

SHAPES = {"svg", "path", "text"}
anything = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none()


def of(record: Record) -> list[charts.Large]:
    return [*charts.prefill(record), *charts.scaling(record)]


def names(svg: str) -> set[str]:
    return {node.tag.rsplit("}", 1)[-1] for node in ET.fromstring(svg).iter()}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter()]


# large charts


def test_a_chart_has_a_mark_for_each_measured_cell() -> None:
    record = records.seed_page()
    total = charts.scaling(record)[0]
    decode = [c for c in record.cells if c.phase == "decode" and c.decode is not None]
    assert "30 points in 6 lines" in total.summary
    hollow = re.findall(r'd="([^"]*)" class="mark hollow', total.svg)
    assert sum(d.count("M") for d in hollow) == sum(c.status == Status.DOUBTFUL for c in decode) == 11
    assert sum(name in ("8K", "16K", "32K", "64K", "128K", "251K") for name in texts(total.svg)) == 6
    assert "256K" in texts(charts.prefill(record)[0].svg) or "251K" in texts(charts.prefill(record)[0].svg)
    assert not [text for chart in of(record) for text in texts(chart.svg) if "262" in text], "K, as the label says"


def test_places_follow_the_numbers() -> None:
    """On logarithmic axes 1, 2, 4, 8 at once stand at equal distances, and so do 100, 200, 400, 800 tok/s."""
    cells = [records.decode("8K", 8192, n, 100.0 * n, active=1.0) for n in (1, 2, 4, 8)]
    svg = charts.scaling(records.record(cells))[0].svg
    line = re.search(r'd="M([^"]*)" class="line k-0"', svg)
    assert line is not None
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", line.group(1))][::2]
    steps = [(round(b[0] - a[0], 0), round(a[1] - b[1], 0)) for a, b in pairwise(points)]
    assert len(set(steps)) == 1 and steps[0][0] > 0 and steps[0][1] > 0


def test_charts_have_no_colour_and_nothing_active_of_their_own() -> None:
    for chart in of(page_records.planted(records.seed_page(), statuses=False)):
        assert names(chart.svg) <= SHAPES
        attributes = {name for node in ET.fromstring(chart.svg).iter() for name in node.attrib}
        assert attributes <= {"d", "class", "viewBox", "role", "aria-label", "x", "y", "text-anchor"}


@pytest.mark.parametrize("value", page_records.EXTREME)
def test_absurd_numbers_make_a_chart_or_none(value: float) -> None:
    for chart in of(page_records.extreme(value)):
        assert not re.search(r"nan|inf", chart.svg, re.IGNORECASE)


@given(
    st.lists(st.tuples(st.none() | st.integers(-5, 10**30), *[anything] * 5), max_size=8),
    st.sampled_from(list(Verdict)),
)
def test_overlaid_charts_draw_whatever_there_is_within_their_frame(rows: list[Any], verdict: Verdict) -> None:
    cells = []
    for x, a, b, ratio, low, high in rows:
        sides = [None if v is None else Value(v, low, high, (v,)) for v in (a, b)]
        made = Compared("ttft_ms", *sides, None if ratio is None else Ratio(ratio, low, high), verdict)
        key = Key("decode", "x", x, 1)
        cells.append((x, Row(key, (CellPair(key, ("valid",), ("doubtful",), (), (), {"ttft_ms": made}),), "x")))
    chart = overlay(["A", "B"], cells, "ttft_ms", "<b>", "context")
    if chart is not None:
        assert "nan" not in chart.svg and "inf" not in chart.svg and names(chart.svg) <= SHAPES
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", chart.svg):
            assert -1 <= float(x) <= 360 and -1 <= float(y) <= 360


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_axes_have_few_round_ticks(most: float) -> None:
    ticks = charts.round_ticks(most)
    assert ticks[0] == 0 and 2 <= len(ticks) <= 6 and ticks[-1] <= most * (1 + 1e-9)


# shades and small charts


@given(st.lists(anything, max_size=50), anything, st.booleans())
def test_shades_are_steps_and_go_with_what_is_better(
    found: list[float | None], value: float | None, more: bool
) -> None:
    step = Heat(found, more=more).step(value)
    assert step is None or 0 <= step < STEPS
    assert Heat([1, 10, 100], more=more).step(100) == (STEPS - 1 if more else 0)


@given(st.lists(anything, max_size=60), st.lists(anything, max_size=60))
def test_any_histogram_is_drawn_or_left_out(edges: list[float | None], counts: list[float | None]) -> None:
    made = charts.bars(Histogram.model_construct(edges=edges, counts=counts))
    if made is not None:
        assert all(0 <= a <= b <= 1 + 1e-9 and 0 <= h <= 1 for a, b, h in made.bars)
        assert "nan" not in charts.histogram(made, [("p50", made.low)], "x")


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=400, unique=True).map(sorted))
def test_a_histogram_keeps_its_weight(edges: list[float]) -> None:
    made = charts.bars(Histogram(edges=edges, counts=[1.0] * (len(edges) - 1)))
    assert made is not None and len(made.bars) <= charts.MOST_BARS
    assert made.bars[0][0] == 0 and math.isclose(made.bars[-1][1], 1)


@given(st.lists(st.tuples(anything, anything), max_size=500))
def test_any_series_is_drawn(pairs: list[tuple[float | None, float | None]]) -> None:
    series = Series.model_construct(t_s=[t for t, _ in pairs], values=[v for _, v in pairs])
    points = charts.points(series)
    assert len(points) <= max(charts.MOST_POINTS, len(pairs))
    assert not re.search(r"nan|inf", charts.curve([("a", points)], end_s=30, highest=10, label="x", steps=True))


# the requests of a cell

COLUMNS = ("stream", "send_ns", "first_token_ns", "end_ns")
TIMES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 40 * 10**9), st.sampled_from([-1, 0, 10**9]))


def cell() -> Cell:
    return records.decode("8K", 8192, 2, 10.0).model_copy(update={"samples": "samples/a.npz"})


def write(folder: Path, arrays: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)


def column(values: Any, kind: str = "int64") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(values, dtype=kind), version=(1, 0))
    return out.getvalue()


def drawn(made: charts.Small | None) -> str:
    assert made is not None
    return made.svg


def test_samples_give_the_streams_of_a_cell(tmp_path: Path) -> None:
    """Two streams, three requests, one of them cut by the window's end: rows and bars as they were sent."""
    second = 10**9
    requests = [(0, 1, 4, 16), (0, 16, 19, 31), (1, 2, 3, 200)]
    columns = [[row[i] * (second if i else 1) for row in requests] for i in range(4)]
    write(tmp_path, dict(zip(COLUMNS, map(column, columns), strict=True)))
    svg = drawn(charts.streams(cell(), tmp_path))
    assert "3 requests of 2 streams over the window" in svg
    waits = re.search(r'd="([^"]*)" class="st wait"', svg)
    assert waits is not None
    # the window is [1 s, 31 s] and 600 wide: 3 s are 60
    assert re.findall(r"h(\d+\.\d)v", waits.group(1)) == ["60.0", "60.0", "20.0"]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(-2, 70), TIMES, TIMES, TIMES), max_size=30), st.integers(0, 2))
def test_any_requests_are_drawn_as_they_lie_in_the_window(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, int, int]], missing: int
) -> None:
    """Those of the first 64 streams that were in flight while it was open; none where a column is too short."""
    folder, window = tmp_path_factory.mktemp("streams"), cell().window
    assert window is not None
    columns = [[row[i] for row in requests] for i in range(4)]
    columns[3] = columns[3][: max(0, len(requests) - missing)]
    kinds = ("int32", "int64", "int64", "int64")
    write(folder, {name: column(told, kind) for name, told, kind in zip(COLUMNS, columns, kinds, strict=True)})
    made = charts.streams(cell(), folder)
    seen = [
        stream
        for stream, send, _, end in requests
        if 0 <= stream < charts.MOST_STREAMS
        and 0 <= send <= window.close_ns
        and (end if end >= 0 else window.close_ns) >= window.open_ns
    ]
    if not seen or len(columns[3]) != len(requests):
        assert made is None
    else:
        assert f"{len(seen)} requests of {len(set(seen))} streams" in drawn(made)


def test_of_many_requests_the_first_are_drawn(tmp_path: Path) -> None:
    send = np.arange(10_000) * 1_000_000 + 10**9
    write(tmp_path, {"stream": column(np.arange(10_000) % 100, "int32"), "send_ns": column(send),
                     "first_token_ns": column(send + 10), "end_ns": column(send + 20)})  # fmt: skip
    assert f"{charts.MOST_REQUESTS} requests of {charts.MOST_STREAMS} streams" in drawn(
        charts.streams(cell(), tmp_path)
    )


@pytest.mark.parametrize("shape", ["(2,)", "(10**6,)", "(999999,)", "(10000000000,)", "(-1,)", "(1, 1)", "()", "None"])
def test_a_column_that_lies_about_its_shape_is_not_drawn(tmp_path: Path, shape: str) -> None:
    """And takes no memory."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)
    write(tmp_path, dict.fromkeys(COLUMNS, data))
    tracemalloc.start()
    try:
        assert charts.streams(cell(), tmp_path) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=30)), min_size=1, max_size=4))
def test_no_damage_breaks_the_page(tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write(folder, {name: column([10**9, 2 * 10**9, 3 * 10**9]) for name in COLUMNS})
    data = bytearray((folder / "a.npz").read_bytes())
    for at, put in damage:
        at %= len(data)
        data[at : at + len(put)] = put
    (folder / "a.npz").write_bytes(data)
    charts.streams(cell(), folder)


def test_what_is_no_sample_of_this_cell_is_not_drawn(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(COLUMNS, column([1, 2])))
    made = cell()
    assert made.window is not None
    endless = made.window.model_copy(update={"close_ns": 2**70})
    for changed in ({"window": endless}, {"window": None}, {"samples": "../../etc/a"}, {"samples": "absent.npz"}):
        assert charts.streams(made.model_copy(update=changed), tmp_path) is None


# pictures


def size(png: bytes) -> tuple[int, int]:
    wide, high = struct.unpack(">II", png[16:24])
    return wide, high


def test_the_card_has_the_size_that_sites_show_and_the_full_picture_grows() -> None:
    pytest.importorskip("vl_convert", reason="the extra `pictures` is not installed")
    small, large = records.every_kind(), records.seed_page()
    assert size(picture.png(small)) == size(picture.png(large)) == (1200, 630)
    fulls = [size(picture.png(record, size="full")) for record in (small, large)]
    assert fulls[1][0] > fulls[0][0] and fulls[1][1] > fulls[0][1]
    assert picture.png(page_records.planted(large, statuses=True)).startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["card", "full"])
def test_a_picture_says_what_the_record_says(kind: Any) -> None:
    svg = picture.svg(records.seed_page(), size=kind)
    told = " ".join(texts(svg))
    for text in (
        "Qwen3.5-4B on H200 NVL 141 GB", "37 of 55 cells measured, 11 doubtful, 3 queued", "4,657", "258.1", "doubtful",
        "queued", "capacity", "a contaminated", "2026-11-30", "One request alone", "38.2K", "prefill", "256K", "12.2K",
        "tok/s at 8K × 32", "86 ms TTFT",
    ):  # fmt: skip
        assert text in told
    assert svg.count('fill="url(#hatch)"') == 11, "doubtful cells are hatched"
    marks = re.findall(r'd="M[\d.]+ [\d.]+(m[^"]*)" stroke="#191714" stroke-width="1.5"', svg)
    assert sorted(map(marks.count, set(marks))) == [3, 11], "queued has a mark of its own"


def test_a_picture_holds_text_and_shapes_only_and_counts_what_does_not_fit() -> None:
    svg = picture.svg(page_records.planted(records.seed_page(), statuses=False))
    assert names(svg) <= {"svg", "path", "rect", "text", "defs", "pattern"}
    assert "more cells in the record" in picture.svg(page_records.many(30))
    assert len(picture.svg(page_records.many(200), size="full")) < 3_000_000
    with pytest.raises(picture.PictureError, match="no decode cells"):
        picture.png(records.record([records.prefill("8K", 8192, 1.0, 1.0)]))
