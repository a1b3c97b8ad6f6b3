"""The chart of a cell's requests: drawn as they lie in the window, and nothing in a file of samples breaks the page."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.record import Cell
from flatout.show.page import streams
from tests import records

NAMES = ("stream", "send_ns", "first_token_ns", "end_ns")
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


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(-2, 70), TIMES, TIMES, TIMES), max_size=30), st.integers(0, 2))
def test_any_requests_are_drawn_as_they_lie_in_the_window(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, int, int]], missing: int
) -> None:
    """Those of the first 64 streams that were in flight while it was open; none where a column is too short."""
    folder, made_of = tmp_path_factory.mktemp("streams"), cell()
    window = made_of.window
    assert window is not None
    columns = [[row[i] for row in requests] for i in range(4)]
    columns[3] = columns[3][: max(0, len(requests) - missing)]
    kinds = ("int32", "int64", "int64", "int64")
    write(folder, {name: column(told, kind) for name, told, kind in zip(NAMES, columns, kinds, strict=True)})
    made = streams.chart(made_of, folder)
    seen = [
        stream
        for stream, send, _, end in requests
        if 0 <= stream < streams.MOST_STREAMS
        and 0 <= send <= window.close_ns
        and (end if end >= 0 else window.close_ns) >= window.open_ns
    ]
    if not seen or len(columns[3]) != len(requests):
        assert made is None
    else:
        assert f"{len(seen)} requests of {len(set(seen))} streams" in str(made)


def test_of_many_requests_the_first_are_drawn(tmp_path: Path) -> None:
    send = np.arange(10_000) * 1_000_000 + 10**9
    write(tmp_path, {"stream": column(np.arange(10_000) % 100, "int32"), "send_ns": column(send),
                     "first_token_ns": column(send + 10), "end_ns": column(send + 20)})  # fmt: skip
    assert f"{streams.MOST_REQUESTS} requests of {streams.MOST_STREAMS} streams" in str(streams.chart(cell(), tmp_path))


@pytest.mark.parametrize("shape", ["(2,)", "(10**6,)", "(999999,)", "(10000000000,)", "(-1,)", "(1, 1)", "()", "None"])
def test_a_column_that_lies_about_its_shape_is_not_drawn(tmp_path: Path, shape: str) -> None:
    """And takes no memory."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)
    write(tmp_path, dict.fromkeys(NAMES, data))
    tracemalloc.start()
    try:
        assert streams.chart(cell(), tmp_path) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=30)), min_size=1, max_size=4))
def test_no_damage_breaks_the_page(tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write(folder, {name: column([10**9, 2 * 10**9, 3 * 10**9]) for name in NAMES})
    data = bytearray((folder / "a.npz").read_bytes())
    for at, put in damage:
        at %= len(data)
        data[at : at + len(put)] = put
    (folder / "a.npz").write_bytes(data)
    streams.chart(cell(), folder)


def test_a_window_beyond_all_numbers_is_not_drawn(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(NAMES, column([1, 2])))
    made = cell()
    assert made.window is not None
    endless = made.window.model_copy(update={"close_ns": 2**70})
    assert streams.chart(made.model_copy(update={"window": endless}), tmp_path) is None
