"""The engine's own time: it stands still while a stall lasts, so everything due then comes as much later."""

from __future__ import annotations

from heapq import heappop, heappush

from flatout.rig.truth import Log


class EngineClock:
    """Engine ns = real ns less all stalls so far. Stalls may be set for later; they take effect as their time comes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.offset_ns = 0  # all stalls that have begun
        self._frozen_ns = 0  # engine time while frozen
        self._frozen_until_ns = 0  # real
        self._planned: list[tuple[int, int]] = []

    def plan(self, start_ns: int, for_ns: int) -> None:
        """Silence from real `start_ns` on."""
        heappush(self._planned, (start_ns, for_ns))

    def clear(self, log: Log) -> None:
        """Forget stalls that have not begun; write into a new log."""
        self._planned.clear()
        self._log = log

    def _apply(self, now_ns: int) -> None:
        while self._planned and self._planned[0][0] <= now_ns:
            start_ns, for_ns = heappop(self._planned)
            start_ns = max(start_ns, self._frozen_until_ns)  # a stall inside a stall follows it
            self._frozen_ns = start_ns - self.offset_ns
            self._frozen_until_ns = start_ns + for_ns
            self.offset_ns += for_ns
            self._log.stall_ns.extend((start_ns, start_ns + for_ns))

    def engine_ns(self, real_ns: int) -> int:
        self._apply(real_ns)
        return self._frozen_ns if real_ns < self._frozen_until_ns else real_ns - self.offset_ns

    def real_ns(self, engine_ns: int, now_ns: int) -> int:
        """When an engine time comes, by the stalls that have begun by `now_ns`."""
        self._apply(now_ns)
        return engine_ns + self.offset_ns

    def wake_ns(self, engine_ns: int) -> int:
        """When to look again: that time, or the start of a stall if one comes before."""
        due_ns = engine_ns + self.offset_ns
        return min(due_ns, self._planned[0][0]) if self._planned else due_ns
