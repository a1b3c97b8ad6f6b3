"""Plain lines: one for what is worth one, none that controls a terminal, none that ends a run."""

from __future__ import annotations

import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from flatout.run.events import CellDone, Doing, Event, Finished, Gauges, Note, Started
from flatout.show.plain import PlainView, cell_text
from tests import records


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(*events: tuple[float, Event]) -> list[str]:
    """Each event at its second; the lines without their times."""
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream, clock=clock)
    for at_s, event in events:
        clock.now_s = 1000.0 + at_s
        view(event)
    return [row[14:] for row in stream.getvalue().splitlines()]


def test_a_run_in_lines() -> None:
    record = records.seed_page()
    cells = {cell.id: cell for cell in record.cells}
    stream, clock = io.StringIO(), Clock()
    view = PlainView(stream, clock=clock)
    view(Started(record, Path("x")))
    clock.now_s += 65
    view(CellDone(cells["p/8192"]))
    view(CellDone(cells["d/8192/1"]))
    view(CellDone(cells["d/8192/8"]))
    view(CellDone(cells["d/8192/128"]))
    view(Note("the server refused ignore_eos", "warning"))
    view(Finished(record, Path("x")))
    assert stream.getvalue().splitlines() == [
        "         0 s  Qwen/Qwen3.5-4B on H200 NVL 141 GB · sglang 0.5.6.post3.dev9269+g834400705 · BF16 · full/1 · "
        "2026-11-30 02:41 +00:00 · 55 cells",
        "   1 min 5 s  prefill 8K  37.1K tok/s ±0.4 %  TTFT 219 ms",
        "   1 min 5 s  8K × 1  454.2 tok/s ±0.4 %  TTFT 86 ms  each 455.5 tok/s",
        "   1 min 5 s  8K × 8  2,422 tok/s ±0.4 %  TTFT 96 ms  each 309.4 tok/s  doubtful: contaminated",
        "   1 min 5 s  8K × 128  over capacity: 128 x (8,192 + 4,096) tokens need 1,572,864 of KV cache; the server "
        "holds 1,187,904",
        "   1 min 5 s  warning: the server refused ignore_eos",
        "   1 min 5 s  finished: 37 of 55 cells measured, 11 doubtful, 3 queued",
    ]


def test_counting_steps_are_said_once_and_now_and_then() -> None:
    def doing(n: int) -> Doing:
        return Doing(f"measuring 8K x 4: {n} of 90 s", "d/8192/4")

    told = lines_of(*((float(n), doing(n)) for n in range(90)))
    assert told == [f"measuring 8K x 4: {n} of 90 s" for n in (0, 30, 60)]


def test_gauges_make_no_line_and_waits_say_how_long() -> None:
    told = lines_of(
        (0, Gauges("d/1/1", 1.0, 0.0, 0.5, 1, 1, 100.0, {})),
        (1, Doing("draining", "a", "the server to become idle", 120.0, 0.25, 90.0)),
    )
    assert told == ["draining, waiting for the server to become idle (at most 2 min)  [25 %, 1 min 30 s left]"]


def test_every_kind_of_cell_has_a_line() -> None:
    told = [cell_text(cell) for cell in records.every_kind().cells]
    assert "8K × 1  failed: the server closed the stream" in told
    assert "burst 1K × 16  2,345 tok/s ±0.4 %  TTFT 240 ms" in told
    assert "1K × 8  310.0 tok/s ±0.4 %  TTFT 3,021 ms  each 77.0 tok/s  requests queued" in told


@given(st.text(max_size=100))
def test_lines_carry_no_controls(text: str) -> None:
    told = lines_of((0, Note(text)), (1, Doing(text, None, text, 3.0)))
    assert len(told) == 2 and all(row.isprintable() for row in told)


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_broken_or_closed_stream_ends_no_run() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        view = PlainView(stream)
        view(Note("one"))
        view(Note("two"))


def test_a_stream_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    PlainView(stream)(CellDone(records.seed_page().cells[7]))
    assert b"  8K x 1  454.2 tok/s +/-0.4 %  TTFT 86 ms" in raw.getvalue()
