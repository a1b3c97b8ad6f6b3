"""How the load process itself fares: reading lag, late and merged reads, pauses, collections, CPU. Kept compactly."""

from __future__ import annotations

import gc
import time
from array import array
from bisect import bisect_right, insort
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

import numpy as np

from flatout.load.clock import Clock
from flatout.load.job import LAG_BIN_NS, SelfCheck
from flatout.load.samples import I64
from flatout.load.system import Priority

LATE_LIMIT_NS: Final = 2_000_000
MERGE_LAG_NS: Final = 100_000
"""A read that is this prompt cannot have kept an earlier event of its stream waiting for long."""
NOTED_TOGETHER: Final = 16_384
"""Reads whose lags are taken down at one time: numpy costs as much for a few as for many."""
_PER_OCTAVE: Final = 16  # lag histogram: 1/16 octave, 4.4 % a bucket
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


class Watch:
    """Self-check of one job. Collections are off while it runs; any that happens all the same is logged."""

    def __init__(self, clock: Clock) -> None:
        self.reads = 0
        self.late = 0
        self.merged = 0
        self.unstamped = 0
        self.worst_ns = -1
        self.pauses = Pauses()
        self._stamps = array("q")
        self._lags = array("i")
        self.priority: Priority = "normal"
        self._clock = clock
        self._steps_before = clock.steps
        self._histogram = np.zeros(40 * _PER_OCTAVE, dtype=np.int64)
        self._bins = np.full(600, -1, dtype=np.int64)
        self._begin_ns = monotonic_ns()
        self._cpu_begin_s = time.process_time()
        self._end_ns: int | None = None
        self._cpu_end_s = 0.0
        self._gc_begin_ns = 0
        self._gc_pauses = 0
        self._gc_longest_ns = 0

    def begin(self) -> None:
        """Starts counting (at the launch); freezes what exists and switches collection off."""
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.callbacks.append(self._on_gc)
        self._begin_ns = monotonic_ns()
        self._cpu_begin_s = time.process_time()

    def end(self) -> None:
        """Stops counting; what the process does from here on (decoding, sending) is no part of the job."""
        if self._end_ns is not None:
            return
        self._end_ns = monotonic_ns()
        self._cpu_end_s = time.process_time()
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
            gc.enable()
            gc.unfreeze()

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_begin_ns = monotonic_ns()
        elif self._end_ns is None:
            self._gc_pauses += 1
            self._gc_longest_ns = max(self._gc_longest_ns, monotonic_ns() - self._gc_begin_ns)

    def note(self, stamps: array[int], lags: array[int]) -> None:
        """Reads with their lags in ns; a lag of -1 is a read without a kernel stamp."""
        self._stamps += stamps
        self._lags += lags
        if len(self._stamps) >= NOTED_TOGETHER:
            self._take_notes()

    def _take_notes(self) -> None:
        t_ns = np.array(self._stamps, dtype=np.int64)
        lag_ns = np.array(self._lags, dtype=np.int64)
        del self._stamps[:], self._lags[:]
        self.reads += len(t_ns)
        known = lag_ns >= 0
        self.unstamped += int((~known).sum())
        t_ns, lag_ns = t_ns[known], lag_ns[known]
        if not len(t_ns):
            return
        self.late += int((lag_ns > LATE_LIMIT_NS).sum())
        self.worst_ns = max(self.worst_ns, int(lag_ns.max()))
        buckets = (np.log2(lag_ns + 1) * _PER_OCTAVE).astype(np.int64)
        self._histogram += np.bincount(buckets, minlength=len(self._histogram))
        self._note_bins(t_ns, lag_ns)

    def _note_bins(self, t_ns: I64, lag_ns: I64) -> None:
        bins = np.maximum((t_ns + lag_ns - self._begin_ns) // LAG_BIN_NS, 0)
        last = int(bins.max())
        if last >= len(self._bins):
            grown = np.full(max(last + 1, 2 * len(self._bins)), -1, dtype=np.int64)
            grown[: len(self._bins)] = self._bins
            self._bins = grown
        np.maximum.at(self._bins, bins, lag_ns)

    def note_merged(self, arrivals: array[int], stamps: array[int], lags: array[int]) -> None:
        """Counts reads that brought more events with content than this request's reads usually do, and that were not
        prompt: events of one read share a stamp, and theirs might have differed. A server that always writes several
        at once is not meant. `arrivals`: stamp of each event; `stamps`, `lags`: of each read."""
        if len(arrivals) == len(set(arrivals)):
            return
        times, events = np.unique(np.array(arrivals, dtype=np.int64), return_counts=True)
        usual = max(1, int(np.median(events)))
        more = events > usual
        times, extra = times[more], events[more] - usual
        if not len(times):
            return
        read_ns, lag_ns = np.array(stamps, dtype=np.int64), np.array(lags, dtype=np.int64)
        self.merged += int((lag_ns[np.isin(read_ns, times)] > MERGE_LAG_NS).sum())
        self.pauses.note_merged(times, extra)

    def note_pause(self, begin_ns: int, end_ns: int) -> None:
        """The process looked at no socket from one time to the other, PAUSE_NS longer than it meant to."""
        if self._end_ns is None:
            self.pauses.add(begin_ns, end_ns)

    def _lag_at(self, share: float) -> int | None:
        total = int(self._histogram.sum())
        if not total:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._histogram), share * total))
        return round(2 ** ((bucket + 0.5) / _PER_OCTAVE) - 1)

    def report(self) -> SelfCheck:
        self._take_notes()
        filled = np.nonzero(self._bins >= 0)[0]
        end_ns = self._end_ns or monotonic_ns()
        return SelfCheck(
            clock=self._clock.kind,
            clock_reason=self._clock.reason,
            reads=self.reads,
            late_limit_ns=LATE_LIMIT_NS,
            late_reads=self.late,
            merged_reads=self.merged,
            unstamped_reads=self.unstamped if self._clock.kind == "kernel" else 0,
            lag_p50_ns=self._lag_at(0.5),
            lag_p99_ns=self._lag_at(0.99),
            lag_worst_ns=self.worst_ns if self.worst_ns >= 0 else None,
            cpu_s=(self._cpu_end_s if self._end_ns else time.process_time()) - self._cpu_begin_s,
            wall_s=(end_ns - self._begin_ns) / 1e9,
            gc_pauses=self._gc_pauses,
            gc_longest_ns=self._gc_longest_ns,
            realtime_offset_ns=self._clock.offset_ns,
            realtime_offset_steps=self._clock.steps - self._steps_before,
            priority=self.priority,
            pauses=self.pauses.count,
            pauses_total_ns=self.pauses.total_ns,
            pause_t_ns=tuple(p.begin_ns for p in self.pauses.kept),
            pause_ns=tuple(p.end_ns - p.begin_ns for p in self.pauses.kept),
            pause_merged=tuple(p.merged for p in self.pauses.kept),
            lag_t_ns=tuple(self._begin_ns + int(i) * LAG_BIN_NS for i in filled),
            lag_max_ns=tuple(int(v) for v in self._bins[filled]),
        )
