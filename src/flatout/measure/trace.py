"""The token arrivals of a cell as one table: the form in which throughput and latency read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.load.samples import Samples
from flatout.measure.tokens import TokenCounts, arrival_requests, content

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

TOGETHER_NS: Final = 500_000
"""What came so close together no reader can tell apart: it is one arrival (see `joined`)."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals that carried tokens, ordered by request, then time; arrivals of one request at one instant are one row.

    Shapes: K rows. `request`: row in the samples. `t_ns`: when. `k`: tokens. `previous_ns`: the request's arrival
    before, -1 for its first. `before`: tokens of the request before this row. `first_ns` (R requests): the first
    token (docs/definitions.md), -1 if none came.
    """

    request: I64
    t_ns: I64
    k: F64
    previous_ns: I64
    before: F64
    first_ns: I64

    @property
    def is_first(self) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = self.previous_ns < 0
        return mask

    @property
    def last_ns(self) -> I64:
        """(R,) the last arrival of each request, -1 if none came."""
        last = np.full(len(self.first_ns), -1, dtype=np.int64)
        last[self.request] = self.t_ns  # in order of time: the last one stays
        return last


def build(samples: Samples, counts: TokenCounts) -> Trace:
    """The trace of `samples` with the tokens that `count` found."""
    rows, owner = arrival_requests(samples)
    first_ns = _first_tokens(samples, rows, owner, counts)
    k = counts.tokens[rows]
    keep = k > 0
    rows, owner, k = rows[keep], owner[keep], k[keep]
    t_ns = samples.t_ns[rows]
    order = np.lexsort((t_ns, owner))
    owner, t_ns, k = owner[order], t_ns[order], k[order]
    if not len(owner):
        none = np.zeros(0, dtype=np.int64)
        return Trace(none, none, np.zeros(0), none, np.zeros(0), first_ns)
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(owner) != 0) | (np.diff(t_ns) != 0))))
    owner, t_ns, k = owner[starts], t_ns[starts], np.add.reduceat(k, starts)
    new_request = np.concatenate(([True], np.diff(owner) != 0))
    previous = np.where(new_request, -1, np.concatenate(([-1], t_ns[:-1])))
    running = np.cumsum(k) - k
    before = running - running[np.flatnonzero(new_request)][np.cumsum(new_request) - 1]
    return Trace(owner, t_ns, k, previous, before, first_ns)


def _first_tokens(samples: Samples, rows: I64, owner: I64, counts: TokenCounts) -> I64:
    """Earliest content arrival of each request; where every event was empty but counted, the earliest counted one."""
    far = np.iinfo(np.int64).max
    first_ns = np.full(samples.requests, far, dtype=np.int64)
    is_content = content(samples)[rows]
    np.minimum.at(first_ns, owner[is_content], samples.t_ns[rows[is_content]])
    counted = (counts.tokens[rows] > 0) & (first_ns[owner] == far)
    np.minimum.at(first_ns, owner[counted], samples.t_ns[rows[counted]])
    return np.where(first_ns == far, -1, first_ns)


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
    later = []
    begins = np.flatnonzero(starts)
    ends = np.append(begins[1:], len(starts))
    long = t_ns[ends - 1] - t_ns[begins] > TOGETHER_NS
    for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        since = int(t_ns[begin])
        for row, t in enumerate(t_ns[begin:end].tolist(), begin):
            if t - since > TOGETHER_NS:
                since = t
                later.append(row)
    return later
