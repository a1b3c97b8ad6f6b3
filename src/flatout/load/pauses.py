"""Times at which the load process looked at no socket, though it meant to: others had its core, or it was stopped."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Final

from flatout.load.samples import I64

PAUSE_NS: Final = 5_000_000
"""Longer than any turn of the loop, and shorter than what moves a figure (see `measure.verdict`)."""
KEPT: Final = 64
AFTER_NS: Final = 5_000_000
"""What is read so soon after a pause may have waited in it together with something earlier."""


@dataclass(slots=True, order=True)
class Pause:
    """`merged`: events that took the stamp of a later one, because both were read after the pause."""

    begin_ns: int
    end_ns: int
    merged: int = 0


class Pauses:
    """`kept`: the longest ones, in order of time. `count`, `total_ns`: of all."""

    def __init__(self) -> None:
        self.kept: list[Pause] = []
        self.count = 0
        self.total_ns = 0

    def add(self, begin_ns: int, end_ns: int) -> None:
        self.count += 1
        self.total_ns += end_ns - begin_ns
        insort(self.kept, Pause(begin_ns, end_ns))
        if len(self.kept) > KEPT:
            self.kept.remove(min(self.kept, key=lambda p: p.end_ns - p.begin_ns))

    def note_merged(self, stamps: I64, extra: I64) -> None:
        """Reads of one request that brought `extra` events more than usual, by their stamps in ns. Shapes: R."""
        if not self.kept:
            return
        begins = [p.begin_ns for p in self.kept]
        for t_ns, more in zip(stamps.tolist(), extra.tolist(), strict=True):
            at = bisect_right(begins, t_ns) - 1
            if at >= 0 and t_ns <= self.kept[at].end_ns + AFTER_NS:
                self.kept[at].merged += more
