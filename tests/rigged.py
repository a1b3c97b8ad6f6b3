"""A run of flatout against the rig, and the rig's own log beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.seed_truth import server_status

from flatout.demo.start import EngineHandle
from flatout.load.samples import Samples
from flatout.record import Cell, Record
from flatout.rig import RigConfig, RigHandle, Truth, running
from flatout.run import conduct
from flatout.run.events import Control, Event
from flatout.run.options import Options
from flatout.suite import SUITES, Suite

QUICK: Suite = replace(
    SUITES["demo"], name="test", prefill=(), decode=(256,), concurrency=(1,), time_s=1.0, min_time_s=1.0
)


class Run:
    """One run and what came of it."""

    def __init__(self, record: Record, directory: Path, truth: Truth | None, events: list[Event]) -> None:
        self.record = record
        self.directory = directory
        self._truth = truth
        self.events = events

    @property
    def truth(self) -> Truth:
        """The rig's log (only where the server was a rig, and lives)."""
        assert self._truth is not None
        return self._truth

    def cell(self, cell_id: str) -> Cell:
        return next(c for c in self.record.cells if c.id == cell_id)

    def samples(self, cell_id: str) -> Samples:
        name = self.cell(cell_id).samples
        assert name is not None
        return Samples.read(self.directory / name)


def suite(**changes: Any) -> Suite:
    """The small test suite with changes."""
    return replace(QUICK, **changes)


def flags(cell: Cell) -> list[str]:
    return [flag.name for flag in cell.flags]


def when(kind: type[Event], text: str, act: Callable[[], object]) -> Callable[[Event], None]:
    """A listener that acts once, at the first event of a kind whose text holds these words."""
    heard: list[Event] = []

    def hear(event: Event) -> None:
        if not heard and isinstance(event, kind) and text in getattr(event, "text", ""):
            heard.append(event)
            act()

    return hear


def measure(
    server: RigHandle | EngineHandle,
    results: Path,
    control: Control | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    **options: Any,
) -> Run:
    """flatout's own path from options to record, in this process, without a view; `on_event` hears what goes on."""
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        on_event(event)

    defaults = {"url": server.url, "results": results, "suite": QUICK, "warmup": False, "drain_s": 20.0}
    made = Options(**defaults | options)
    record, directory = conduct.run(made, hear, control or Control())
    truth = server.log() if isinstance(server, RigHandle) and server.alive() else None
    return Run(record, directory, truth, events)


def total_is_the_logs(run: Run, cell_id: str, within: float) -> bool:
    """Whether the cell's total is that of the rig's log. An event that was sent less than 50 µs before one of the
    window's borders may have arrived on either side of it."""
    cell, border_ns = run.cell(cell_id), 50_000
    assert cell.window is not None and cell.decode is not None and cell.decode.total_tok_s.value is not None
    t0, t1 = cell.window.open_ns, cell.window.close_ns
    fewest, most = run.truth.tokens_between(t0, t1 - border_ns), run.truth.tokens_between(t0 - border_ns, t1)
    tokens = cell.decode.total_tok_s.value * (t1 - t0) / 1e9
    return fewest * (1 - within) <= tokens <= most * (1 + within)


def status(cell: Cell) -> str:
    """The cell's status without what this machine did to the reader: a doubt for `client_limited` alone is true here,
    and says nothing of the server, which a test of the server's statuses is about."""
    return server_status(cell, max_running=cell.concurrency, disturbed=False)


@contextmanager
def rig(knobs: Mapping[str, Any]) -> Iterator[RigHandle]:
    """A rig in a process of its own, on the first core."""
    with running(RigConfig.from_dict({"model_len": 8192, "ttft_ms": 20.0, **knobs}), cores={0}) as handle:
        yield handle
