"""Arrivals that came together: what no reader can tell apart is one arrival."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.measure.trace import Trace

I64 = npt.NDArray[np.int64]

TOGETHER_NS: Final = 500_000


def joined(trace: Trace) -> Trace:
    """The trace with a request's arrivals that came within 0.5 ms after the first of them as one, at the last's time.

    A server that makes several tokens in one step may write them one by one: whether they are then read together hangs
    on how promptly the client, the network and the kernel happen to work, and half of the gaps would be theirs.
    `first_ns` stays that of the first token.
    """
    close = (np.diff(trace.t_ns) <= TOGETHER_NS) & (np.diff(trace.request) == 0)
    if not close.any():
        return trace
    starts = np.concatenate(([True], ~close))
    for row in _later_starts(trace.t_ns, starts):
        starts[row] = True
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(starts)) - 1
    request, t_ns = trace.request[first], trace.t_ns[last]
    previous = np.concatenate(([-1], np.where(np.diff(request) != 0, -1, t_ns[:-1])))
    return Trace(request, t_ns, np.add.reduceat(trace.k, first), previous, trace.before[first], trace.first_ns)


def _later_starts(t_ns: I64, starts: npt.NDArray[np.bool_]) -> list[int]:
    """Rows at which a chain of close arrivals has gone on for longer than TOGETHER_NS since its arrival's first."""
    found = []
    begins = np.flatnonzero(starts)
    ends = np.append(begins[1:], len(starts))
    long = t_ns[ends - 1] - t_ns[begins] > TOGETHER_NS
    for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        since = int(t_ns[begin])
        for row, t in enumerate(t_ns[begin:end].tolist(), begin):
            if t - since > TOGETHER_NS:
                since = t
                found.append(row)
    return found
