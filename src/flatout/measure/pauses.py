"""Whether a window holds as many pauses between requests as the long run does. Pure.

A stream that has written its answer pauses for one TTFT before it writes again. Pauses are no noise: they come once an
answer, as long as the last ones, so what the window holds too few or too many of them can be computed, not only feared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.load.samples import OK, Samples
from flatout.measure.trace import Trace
from flatout.measure.window import decoding_spans, lead_ns, overlap_mean

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

CYCLE_OFF: Final = 0.05
"""How far off the time of an answer may be that is known from its length and the speed only."""
FEW: Final = 3
FEW_OFF: Final = 0.2
"""How far off the mean of fewer than FEW pauses may be: over the square root of their number."""
UNSEEN_OFF: Final = 0.5
"""Likewise where no pause was seen and the launch's shortest TTFT stands for it."""


@dataclass(frozen=True, slots=True)
class PauseShare:
    """`excess`: the window's mean number of decoding streams relative to the long run's, less 1; `deviation`: the
    standard deviation of that. Both 0 where answers come in one piece, or no pause is known of."""

    excess: float = 0.0
    deviation: float = 0.0


def pause_share(trace: Trace, samples: Samples, t0_ns: int, t1_ns: int) -> PauseShare:
    """What the pauses did to the rate of the window [t0, t1).

    Seen from the server there are as many places as streams ever decoded at once; a place is empty from an answer's
    last token to the next answer's first, less its lead, whoever sent it (so that requests which wait for a place
    count as no pause). With a pause of p and a cycle (an answer and its pause) of c, a place decodes 1 - p / c of the
    time in the long run; what the window had is known.
    """
    begin, end = decoding_spans(trace, samples, t1_ns)
    decoding = overlap_mean(begin.astype(np.int64), end.astype(np.int64), t0_ns, t1_ns)
    first, last = _spans(trace, samples, t1_ns)
    places = _peak(first, last)
    if decoding <= 0 or not places:
        return PauseShare()
    pauses, unseen = _pauses(trace, samples, places, t0_ns, t1_ns)
    if not len(pauses) or pauses.mean() <= 0:
        return PauseShare()
    pause = float(pauses.mean())
    cycle, cycle_off = _cycle(trace, samples, pause, t1_ns)
    if cycle <= pause:
        return PauseShare()
    share = pause / cycle
    off = float(np.hypot(_mean_off(pauses, unseen), cycle_off))
    return PauseShare(decoding / (places * (1.0 - share)) - 1.0, share / (1.0 - share) * off)


def _spans(trace: Trace, samples: Samples, t1_ns: int) -> tuple[I64, I64]:
    """First and last token (where still running: never) of every request with a token before t1."""
    last = np.full(samples.requests, -1, dtype=np.int64)
    np.maximum.at(last, trace.request, trace.t_ns)
    has = (trace.first_ns >= 0) & (trace.first_ns < t1_ns)
    over = (samples.end_ns >= 0) & (samples.end_ns < t1_ns)
    return trace.first_ns[has], np.where(over, last, np.iinfo(np.int64).max)[has]


def _peak(first: I64, last: I64) -> int:
    """The most requests that were between their first and their last token at once."""
    if not len(first):
        return 0
    times = np.concatenate((first, last))
    change = np.concatenate((np.ones(len(first), dtype=np.int64), np.full(len(last), -1, dtype=np.int64)))
    order = np.lexsort((change, times))  # at the same moment an end comes first
    return int(np.cumsum(change[order]).max())


def _pauses(trace: Trace, samples: Samples, places: int, t0_ns: int, t1_ns: int) -> tuple[F64, bool]:
    """ns of the pauses that ended in the window; else of those before; else the launch's shortest wait, and True."""
    lead = lead_ns(trace, samples.requests)
    has = (trace.first_ns >= 0) & (trace.first_ns < t1_ns)
    order = np.argsort(trace.first_ns[has], kind="stable")
    first, led = trace.first_ns[has][order], (trace.first_ns - lead)[has][order]
    _, last = _spans(trace, samples, t1_ns)
    ends = np.sort(last[last < np.iinfo(np.int64).max])
    n = min(len(ends), max(0, len(first) - places))
    if n:
        begun, waits = first[places : places + n], np.maximum(led[places : places + n] - ends[:n], 0.0)
        inside = begun >= t0_ns
        return np.asarray(waits[inside] if inside.any() else waits), False
    launch = (samples.round == 0) & (samples.send_ns >= 0) & (trace.first_ns >= 0)
    found = np.maximum(trace.first_ns - samples.send_ns - lead, 0.0)[launch]
    return (found.min(keepdims=True) if len(found) else np.zeros(0)), True


def _mean_off(pauses: F64, unseen: bool) -> float:
    """The relative standard deviation of the pauses' mean."""
    if unseen:
        return UNSEEN_OFF
    n, mean = len(pauses), float(pauses.mean())
    own = float(pauses.std(ddof=1)) / mean if n > 1 else 0.0
    return float(np.hypot(own, FEW_OFF if n < FEW else 0.0) / np.sqrt(n))


def _cycle(trace: Trace, samples: Samples, pause_ns: float, t1_ns: int) -> tuple[float, float]:
    """(ns from one pause of a place to its next, the relative standard deviation of that mean).

    Answers that ended, after the launch's (whose lengths are spread on purpose), tell the lengths; without one, what
    was asked for does, at the speed seen.
    """
    later = ~trace.is_first
    tokens = float(trace.k[later].sum())
    if tokens <= 0:
        return 0.0, 0.0
    token_ns = float((trace.t_ns - trace.previous_ns)[later].sum()) / tokens
    seen = (samples.outcome == OK) & (samples.round > 0) & (trace.first_ns >= 0) & (samples.end_ns < t1_ns)
    last = np.full(samples.requests, -1, dtype=np.int64)
    np.maximum.at(last, trace.request, trace.t_ns)
    answers = (last - trace.first_ns + lead_ns(trace, samples.requests))[seen]
    if len(answers) > 1:
        off = float(answers.std(ddof=1)) / np.sqrt(len(answers))
        return float(answers.mean()) + pause_ns, off / (float(answers.mean()) + pause_ns)
    asked = samples.asked_tokens[samples.asked_tokens > 0]
    return (float(asked.max()) * token_ns + pause_ns, CYCLE_OFF) if len(asked) else (0.0, 0.0)
