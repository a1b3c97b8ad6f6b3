"""What the conductor tells whoever listens, and what a listener may ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flatout.record import Cell, Record


@dataclass(frozen=True, slots=True)
class Doing:
    """What runs now. `wait_for`: what is waited for, and `until_s` the most seconds it may take (None: not a wait).

    `cell_id`: the cell it is for, None for the run's own steps. `share_done`: 0..1 of the whole run, by time.
    `left_s`: estimated seconds to the end of the run, None while it cannot be told.
    """

    text: str
    cell_id: str | None = None
    wait_for: str | None = None
    until_s: float | None = None
    share_done: float | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The server is known and the plan is made: the record with every planned cell in it."""

    record: Record
    directory: Path


@dataclass(frozen=True, slots=True)
class CellDone:
    """A cell has its status (measured or not)."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Gauges:
    """A reading while a cell runs: the server's gauges (None where it has none), the load's state, the machine.

    `tok_s`: the speed since the last reading, None where it is not known how many tokens an event has.
    `machine`: latest telemetry by name with unit, such as `cpu_percent`, `gpu_power_w`.
    """

    cell_id: str | None
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    in_flight: int | None = None
    asked: int | None = None
    events_s: float | None = None
    tok_s: float | None = None
    machine: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """Something a user should know now; `level` is info or warning."""

    text: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over and everything is written."""

    record: Record
    directory: Path


Event = Doing | Started | CellDone | Gauges | Note | Finished
Listener = Callable[[Event], None]


class Control:
    """What a listener may ask: `skip()` the cell that runs, `stop()` the run gracefully. Safe from any thread."""

    def __init__(self) -> None:
        self._skip = threading.Event()
        self._stop = threading.Event()
        self.stop_reason: str | None = None

    def skip(self) -> None:
        self._skip.set()

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def take_skip(self) -> bool:
        """True once after each `skip()`."""
        if self._skip.is_set():
            self._skip.clear()
            return True
        return False

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not past a stop."""
        self._stop.wait(seconds)
