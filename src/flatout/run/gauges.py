"""Reads the server's gauges while load runs, in a thread of the conductor's process (never of the load's)."""

from __future__ import annotations

import threading
from typing import Final

from flatout.engines.base import Live
from flatout.engines.generic import Adapter

FASTEST_S: Final = 0.1
SLOWEST_S: Final = 1.0


def interval_s(window_s: float) -> float:
    """How often to look: 40 times a window, between 0.1 and 1 s. A look costs the server a few milliseconds of one
    core (vLLM's page of metrics has 50 kB), so that it stays below a hundredth of its time at the usual lengths."""
    return min(SLOWEST_S, max(FASTEST_S, window_s / 40))


class Poller:
    """Context manager: from entry to exit `adapter.live()` is read every `every_s`; the readings stand in `points`."""

    def __init__(self, adapter: Adapter, every_s: float, *, on: bool = True) -> None:
        self.points: list[Live] = []
        self.error: str | None = None
        self._adapter = adapter
        self._on = on
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gauges", daemon=True)

    def __enter__(self) -> Poller:
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)

    @property
    def latest(self) -> Live | None:
        return self.points[-1] if self.points else None

    def since(self, t_ns: int) -> list[Live]:
        return [p for p in self.points if p.t_ns >= t_ns]

    def _work(self) -> None:
        while not self._end.is_set():
            try:
                point = self._adapter.live()
                if point is not None:
                    self.points.append(point)
            except Exception as error:  # whatever a server's page does to an adapter, the next look is made
                self.error = str(error)
            self._end.wait(self._every_s)
