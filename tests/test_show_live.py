"""The live view: what a frame shows, and that the terminal comes back whatever happens (on a real pseudo-terminal)."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flatout.flags import Status
from flatout.record import Record
from flatout.run.events import CellDone, Control, Doing, Finished, Gauges, Note, Started
from flatout.show.frame import Drawn, State, apply, frame
from flatout.show.keys import key_of
from flatout.show.live import LiveView
from tests import records

ROOT = Path(__file__).parents[1]
MACHINE = {"cpu_percent": 12.0, "gpu_use_percent": 97.0, "power_w": 512.0, "temperature_c": 61.0, "ram_used_bytes": 1e9}


def planned(record: Record) -> Record:
    """The record as it is when the run starts: what was cut has its status, the rest waits."""
    start = record.model_copy(deep=True)
    for cell in start.cells:
        if cell.status in (Status.OVER_CAPACITY, Status.OVER_LENGTH):
            cell.finished = record.started
        else:
            cell.status, cell.reason, cell.finished = Status.NOT_RUN, "not reached yet", None
            cell.decode = cell.prefill = cell.burst = None
            cell.flags = []
    return start


def state_of(record: Record, done: int, at_s: float = 100.0) -> State:
    """The state when `done` cells have their result and the next is measured."""
    state = State(started_s=0.0)
    apply(state, Doing("asking the server"), 0.0)
    apply(state, Started(planned(record), Path("results/x")), 1.0)
    todo = [c for c in record.cells if c.status not in (Status.OVER_CAPACITY, Status.OVER_LENGTH)]
    for cell in todo[:done]:
        apply(state, CellDone(cell), at_s)
    if done < len(todo):
        apply(state, Doing("measuring", todo[done].id, None, None, done / len(todo), 200.0), at_s)
        apply(state, Gauges(todo[done].id, 8.0, 1.0, 0.43, 7, 8, 1760.0, 1408.0, MACHINE), at_s)
    return state


def shown(state: State, width: int = 80, height: int = 24, now_s: float = 100.0, **more: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    drawn = Drawn(frame(state, width, height, now_s, **{"keys": True, **more}))
    lines = console.render_lines(drawn, console.options.update_dimensions(width, height))
    return ["".join(part.text for part in line).rstrip() for line in lines]


def test_a_frame_tells_what_matters() -> None:
    state = state_of(records.seed_page(), 13)
    apply(state, Note("the server refused return_token_ids", "warning"), 100.0)
    lines = shown(state)
    text = "\n".join(lines)
    assert lines[0].startswith("Qwen/Qwen3.5-4B on H200 NVL 141 GB") and lines[0].endswith("full/1")
    assert "sglang 0.5.6" in lines[1] and "3 min 20 s left · 1 min 40 s gone" in lines[2]
    assert lines[3] == "▸ measuring  1,408 tok/s now"
    assert "server   8 running · 1 waiting · KV 43 %    streams  7 of 8 · 1,760 events/s" in text
    assert "machine  CPU 12 % · GPU 97 % · 512 W · 61 °C" in text
    assert "! the server refused return_token_ids" in text
    assert lines[-1] == "s skip · q stop"
    rows = {row.split()[0]: row.split()[1:] for row in lines if re.match(r" *\d+K ", row)}
    assert rows["8K"] == ["37.1K", "454.2", "842.3", "1,509", "2,422!", "3,607", "4,657q", "▸1,408", "no", "room"]
    assert rows["16K"] == ["38.2K", "·", "·", "·", "·", "·", "·", "·", "no", "room"]
    assert rows["256K"] == ["12.2K"]


def test_a_wide_frame_has_ttft_below_and_the_answer_so_far() -> None:
    lines = shown(state_of(records.seed_page(), 13), 140, 40)
    at = next(i for i, row in enumerate(lines) if row.split()[:2] == ["8K", "37.1K"])
    assert lines[at + 1].split()[:6] == ["219", "ms", "86", "ms", "83", "ms"]
    assert lines[at].split()[-1] == "over" and lines[at + 1].split()[-1] == "capacity"
    assert "at once at ≥ 20 tok/s each  8K: ≥16" in lines


def test_a_wait_counts_down_and_is_bounded() -> None:
    state = state_of(records.seed_page(), 8)
    wait = Doing("draining", "d/8192/2", "the server to become idle (it runs 3)", 120.0)
    apply(state, wait, 100.0)
    apply(state, wait, 130.0)  # said again: the wait began at 100
    text = "\n".join(shown(state, now_s=140.0))
    assert "▸ draining" in text and "waiting for the server to become idle (it runs 3), at most 1 min 20 s more" in text
    apply(state, Doing("measuring", "d/8192/2"), 141.0)
    assert "waiting" not in "\n".join(shown(state, now_s=141.0)).replace("1 waiting", "")


def test_the_time_left_only_counts_down_within_a_cell_and_moves_half_way_between_cells() -> None:
    state = state_of(records.seed_page(), 8)
    share = state.share_done
    assert share is not None
    for at_s, left_s in ((110.0, 220.0), (120.0, 240.0)):  # the pace so far, told again while one cell goes on
        apply(state, Doing("measuring", "d/8192/2", None, None, share, left_s), at_s)
        assert state.left_until_s == 300.0
    apply(state, Doing("measuring", "d/8192/4", None, None, share + 0.1, 100.0), 130.0)
    assert state.left_until_s == 265.0
    assert "a little longer" in "\n".join(shown(state, now_s=270.0))


def test_rows_and_columns_without_room_are_counted() -> None:
    state = state_of(records.seed_page(), 13)
    assert "… 2 more rows" in "\n".join(shown(state, 80, 18))
    assert "… 2 more rows and 4 more columns" in "\n".join(shown(state, 50, 18))
    assert "no room for the table" in "\n".join(shown(state, 80, 12))


def test_a_long_step_tells_for_how_long() -> None:
    state = State()
    apply(state, Doing("asking the server"), 0.0)
    assert "for 12 s so far" in "\n".join(shown(state, now_s=12.0)) and "so far" not in "\n".join(
        shown(state, now_s=2.0)
    )


def test_the_record_may_change_under_the_view() -> None:
    record = planned(records.seed_page())
    state = State()
    apply(state, Started(record, Path("x")), 0.0)
    for cell in record.cells:
        cell.status = Status.FAILED
    assert "failed" not in "\n".join(shown(state))


def test_a_resumed_run_shows_what_it_has() -> None:
    record = records.seed_page()
    state = State()
    apply(state, Started(record, Path("x")), 0.0)
    assert "454.2" in "\n".join(shown(state))


def test_keys_line() -> None:
    state = State()
    assert shown(state, keys=False)[-1] == "Ctrl-C stop"
    assert "Ctrl-C again ends at once" in shown(state, stopping=True)[-1]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([records.seed_page, records.every_kind]), st.integers(0, 40), st.integers(20, 200),
    st.integers(4, 60), st.lists(st.text(max_size=300), max_size=4), st.text(max_size=200), st.floats(0, 1e6),
)  # fmt: skip
def test_frames_fill_the_terminal_exactly(
    kind: object, done: int, width: int, height: int, notes: list[str], text: str, now_s: float
) -> None:
    state = state_of(kind(), done)  # type: ignore[operator]
    for note in notes:
        apply(state, Note(note, "warning"), 100.0)
    apply(state, Doing(text, "d/8192/1", text, 30.0, 0.5, 10.0), 100.0)
    lines = shown(state, width, height, now_s)
    assert len(lines) == height
    assert all(cell_len(row) <= width and row.isprintable() for row in lines)


def test_the_running_cell_is_always_in_view() -> None:
    for done in (7, 12, 20, 35, 36):
        state = state_of(records.seed_page(), done)
        for size in ((60, 18), (44, 16), (80, 24), (140, 40)):
            assert re.search("▸ ?1,408", "\n".join(shown(state, *size))), (done, size)


@pytest.mark.parametrize(
    ("read", "key"),
    [(b"s", "s"), (b"Q", "q"), (b"ss", "s"), (b"\x1b[A", None), (b"\x1bOQ", None), (b"sq", None), (b"\x1b", None),
     (b"pasted text with s and q", None), (b"\xff", None), (b"\r", None), (b"1", None)],
)  # fmt: skip
def test_only_single_letters_are_keys(read: bytes, key: str | None) -> None:
    assert key_of(read) == key


def test_no_terminal_means_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    with LiveView(Control(), Console(file=file, force_terminal=True)) as view:
        view(Doing("asking the server"))
        view(Started(records.seed_page(), Path("x")))
        view(Finished(records.seed_page(), Path("x")))
        view.restore()
    assert "\x1b" not in file.getvalue()
    assert [row.split("  ")[-1][:20] for row in file.getvalue().splitlines()] == [
        "asking the server", "Qwen/Qwen3.5-4B on H", "finished: 37 of 55 c",
    ]  # fmt: skip


CHILD = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from rich.console import Console
from flatout.run.events import *
from flatout.show import live
from tests import records

record = records.every_kind()
record.model.id.value = "evil\\x1b]0;title\\x07\\x1b[5mname"
control = Control()

def work(seconds):
    "Until a stop, or so long."
    end = time.monotonic() + seconds
    while time.monotonic() < end and not control.stopping:
        time.sleep(0.05)

print("BEFORE", flush=True)
{before}
with live.LiveView(control, Console()) as view:
    view(Started(record, Path("x")))
    view(Doing("measuring", "d/1024/1", "the world", 60.0, 0.1, 50.0))
    {body}
print("AFTER", control.stop_reason, control.take_skip(), flush=True)
"""
"""A run that waits for the world; `body` is one line within it."""


class Terminal:
    """A child on a pseudo-terminal of its own, with everything that it wrote."""

    def __init__(
        self,
        body: str = "work(30)",
        *,
        before: str = "",
        width: int = 80,
        height: int = 24,
        term: str = "xterm-256color",
    ) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.settings = termios.tcgetattr(self.slave)
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(root=str(ROOT), before=before, body=body)],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, env={**env, "TERM": term},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.written = b""

    def read_until(self, mark: bytes, limit_s: float = 20.0) -> None:
        end = time.monotonic() + limit_s
        while mark not in self.written:
            left = end - time.monotonic()
            assert left > 0, f"no {mark!r} in {self.written[-2000:]!r}"
            if select.select([self.master], [], [], min(left, 0.2))[0]:
                self.written += os.read(self.master, 65536)

    def drain(self, seconds: float) -> None:
        """Reads for a while, as a terminal does."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.written += os.read(self.master, 65536)

    def finish(self, limit_s: float = 20.0) -> int:
        end = time.monotonic() + limit_s
        while self.child.poll() is None:
            assert time.monotonic() < end, f"the child hangs: {self.written[-2000:]!r}"
            self.drain(0.1)
        self.drain(0.2)
        return self.child.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.master)
        os.close(self.slave)

    @property
    def after(self) -> bytes:
        """What was written once the first screen was back."""
        return self.written[self.written.rindex(b"\x1b[?1049l") :]

    def assert_restored(self) -> None:
        assert termios.tcgetattr(self.slave) == self.settings
        out = self.written
        assert out.count(b"\x1b[?1049h") == out.count(b"\x1b[?1049l") == 1
        assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")
        assert b"\x1b[" not in self.after[8:]


FRAME = b"at most"  # the countdown: a frame is on the screen


def test_a_run_draws_and_gives_the_terminal_back() -> None:
    with Terminal("work(1.5)") as terminal:
        terminal.read_until(FRAME)
        assert b"BEFORE" in terminal.written[: terminal.written.index(b"\x1b[?1049h")]
        mode = termios.tcgetattr(terminal.slave)
        assert not mode[3] & termios.ICANON and not mode[3] & termios.ECHO and mode[3] & termios.ISIG
        assert terminal.finish() == 0
        terminal.assert_restored()
        assert b"AFTER None False" in terminal.after


def test_keys_skip_and_stop() -> None:
    with Terminal() as terminal:
        terminal.read_until(FRAME)
        os.write(terminal.master, b"\x1b[A")
        terminal.drain(0.5)
        os.write(terminal.master, b"s")
        terminal.read_until(b"skipping the cell")
        os.write(terminal.master, b"\x1a")  # Ctrl-Z does nothing
        terminal.drain(0.5)
        os.write(terminal.master, b"q")
        assert terminal.finish() == 0
        terminal.assert_restored()
        assert b"AFTER stopped by the user True" in terminal.after


def test_ctrl_c_as_an_exception_restores() -> None:
    with Terminal() as terminal:
        terminal.read_until(FRAME)
        os.write(terminal.master, b"\x03")
        assert terminal.finish() == -signal.SIGINT
        terminal.assert_restored()
        assert b"KeyboardInterrupt" in terminal.after


@pytest.mark.parametrize(("body", "code", "told"), [
    ("work(0.5); 1 / 0", 1, b"ZeroDivisionError"),
    ("sys.exit(7)", 7, b""),
    ("live.LiveView.__exit__ = lambda *_: None; work(0.5)", 0, b"AFTER"),  # nobody closes it: the exit of Python does
])  # fmt: skip
def test_every_end_restores_before_anything_else_is_shown(body: str, code: int, told: bytes) -> None:
    with Terminal(body) as terminal:
        assert terminal.finish() == code
        if b"AFTER" in told:
            assert termios.tcgetattr(terminal.slave) == terminal.settings
            assert told in terminal.written and b"\x1b[?1049l" in terminal.after
            return
        terminal.assert_restored()
        assert told in terminal.after


SECOND_ENDS = """
def on_signal(*_):
    if control.stopping:
        view.restore()
        os._exit(130)
    control.stop("first")
signal.signal(signal.SIGINT, on_signal)
"""


def test_the_second_ctrl_c_ends_at_once_and_restores() -> None:
    with Terminal("[time.sleep(0.1) for _ in range(300)]", before=SECOND_ENDS) as terminal:
        terminal.read_until(FRAME)
        os.write(terminal.master, b"\x03")
        terminal.read_until(b"Ctrl-C again ends at once")
        assert terminal.child.poll() is None
        os.write(terminal.master, b"\x03")
        assert terminal.finish(limit_s=10) == 130
        terminal.assert_restored()
        assert terminal.after == b"\x1b[?1049l"


def test_a_terminal_that_takes_nothing_does_not_keep_the_run_from_ending() -> None:
    with Terminal("[time.sleep(0.1) for _ in range(300)]", before=SECOND_ENDS, width=250, height=100) as terminal:
        terminal.read_until(FRAME)
        time.sleep(5)  # nobody reads: the terminal's buffer is full and a frame hangs
        os.write(terminal.master, b"\x03")
        time.sleep(0.5)
        assert terminal.child.poll() is None
        os.write(terminal.master, b"\x03")
        assert terminal.child.wait(timeout=10) == 130
        assert termios.tcgetattr(terminal.slave) == terminal.settings


def test_escape_codes_of_a_server_do_not_reach_the_terminal() -> None:
    with Terminal("work(1.0)") as terminal:
        terminal.read_until(FRAME)
        assert terminal.finish() == 0
        assert "evil�]0;title��[5mname".encode() in terminal.written
        assert b"\x1b]0;" not in terminal.written and b"\x1b[5m" not in terminal.written


def test_a_failing_view_goes_on_in_plain_lines() -> None:
    broken = "live.frame = lambda *a, **k: 1 / 0"
    with Terminal("work(1.0); view(Note('still here'))", before=broken) as terminal:
        assert terminal.finish() == 0
        terminal.assert_restored()
        assert b"the live view stopped (ZeroDivisionError" in terminal.after and b"still here" in terminal.after


@pytest.mark.parametrize(("term", "width"), [("dumb", 80), ("xterm", 30), ("", 80)])
def test_a_poor_terminal_gets_plain_lines(term: str, width: int) -> None:
    with Terminal("work(0.1)", term=term, width=width) as terminal:
        assert terminal.finish() == 0
        assert b"\x1b" not in terminal.written and b"waiting for the world (at most 1 min)" in terminal.written
        assert termios.tcgetattr(terminal.slave) == terminal.settings
