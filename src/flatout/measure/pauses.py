"""Whether a window holds as many pauses between requests as the long run does, and when it may end so that it does.

A stream that has written its answer pauses for one TTFT before it writes again. Pauses are no noise: they come once an
answer, as long as the last ones, so what a window holds too few or too many of can be computed. One that ends before
the first restart holds no pause at all, and shows up to TTFT / cycle too much (10 % at 256k tokens); its own scatter
cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.load.samples import OK, Samples
from flatout.measure.trace import Trace
from flatout.measure.window import decoding_spans, lead_ns, overlap_mean

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

LENGTH_OFF: Final = 0.05
"""How far off an answer's time may be that is taken from what was asked for, before any answer ended; and PACE_OFF
where answers ended as long as they were asked to be."""
PACE_OFF: Final = 0.01
FEW: Final = 3
FEW_OFF: Final = (0.02, 0.2)
"""How far off fewer than FEW pauses may be, over the square root of their number: as far as they are from the nearest
TTFT of the launch, within these limits."""
UNSEEN_OFF: Final = 0.5
"""Likewise where no pause was seen and the launch's shortest TTFT stands for it."""
SPEED_OFF: Final = 1.05
"""An end of the window must also do if the streams are this much slower than they seemed."""
GRID: Final = 400
"""Times that are looked at for an end."""


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
    pauses, launch = _pauses(trace, samples, places, t0_ns, t1_ns), _launch_waits(trace, samples)
    off = _mean_off(pauses, launch)
    if not len(pauses):
        pauses, off = launch, UNSEEN_OFF
        pauses = pauses.min(keepdims=True) if len(pauses) else pauses
    pause = float(pauses.mean()) if len(pauses) else 0.0
    if pause <= 0:
        return PauseShare()
    cycle, cycle_off = _cycle(trace, samples, pause, t1_ns)
    if cycle <= pause:
        return PauseShare()
    share = pause / cycle
    return PauseShare(
        decoding / (places * (1.0 - share)) - 1.0, share / (1.0 - share) * float(np.hypot(off, cycle_off))
    )


def expected_deviation(share: float, pauses: int) -> float:
    """What `PauseShare.deviation` will be in a steady load, where a place pauses for `share` of the time and the window
    holds so many pauses."""
    few = FEW_OFF[0] / math.sqrt(pauses) if 0 < pauses < FEW else 0.0
    off = math.hypot(few, PACE_OFF) if pauses else UNSEEN_OFF
    return share / (1.0 - share) * off if share < 1.0 else math.inf


def _spans(trace: Trace, samples: Samples, t1_ns: int) -> tuple[I64, I64]:
    """First and last token (where still running: never) of every request with a token before t1."""
    has = (trace.first_ns >= 0) & (trace.first_ns < t1_ns)
    over = (samples.end_ns >= 0) & (samples.end_ns < t1_ns)
    return trace.first_ns[has], np.where(over, trace.last_ns, np.iinfo(np.int64).max)[has]


def _peak(first: I64, last: I64) -> int:
    """The most requests that were between their first and their last token at once."""
    if not len(first):
        return 0
    times = np.concatenate((first, last))
    change = np.concatenate((np.ones(len(first), dtype=np.int64), np.full(len(last), -1, dtype=np.int64)))
    order = np.lexsort((change, times))  # at the same moment an end comes first
    return int(np.cumsum(change[order]).max())


def _pauses(trace: Trace, samples: Samples, places: int, t0_ns: int, t1_ns: int) -> F64:
    """ns of the pauses that ended in the window; else of those before."""
    lead = lead_ns(trace, samples.requests)
    has = (trace.first_ns >= 0) & (trace.first_ns < t1_ns)
    order = np.argsort(trace.first_ns[has], kind="stable")
    first, led = trace.first_ns[has][order], (trace.first_ns - lead)[has][order]
    _, last = _spans(trace, samples, t1_ns)
    ends = np.sort(last[last < np.iinfo(np.int64).max])
    n = min(len(ends), max(0, len(first) - places))
    begun, waits = first[places : places + n], np.maximum(led[places : places + n] - ends[:n], 0.0)
    inside = begun >= t0_ns
    return np.asarray(waits[inside] if inside.any() else waits)


def _launch_waits(trace: Trace, samples: Samples) -> F64:
    """ns from send to first token, less its lead, of the launch's requests."""
    launch = (samples.round == 0) & (samples.send_ns >= 0) & (trace.first_ns >= 0)
    lead = lead_ns(trace, samples.requests)
    return np.asarray(np.maximum(trace.first_ns - samples.send_ns - lead, 0.0)[launch])


def _mean_off(pauses: F64, launch: F64) -> float:
    """The relative standard deviation of the pauses' mean: their own, where there are few also what else is known."""
    n, mean = len(pauses), float(pauses.mean()) if len(pauses) else 0.0
    if mean <= 0:
        return 0.0
    own = float(pauses.std(ddof=1)) / mean if n > 1 else 0.0
    few = np.clip(np.abs(launch / mean - 1.0).min(), *FEW_OFF) if len(launch) else FEW_OFF[1]
    return float(np.hypot(own, few if n < FEW else 0.0) / np.sqrt(n))


def _cycle(trace: Trace, samples: Samples, pause_ns: float, t1_ns: int) -> tuple[float, float]:
    """(ns from one pause of a place to its next, the relative standard deviation of that mean).

    Answers that ended, after the launch's (whose lengths are spread on purpose), tell the lengths; before there are
    any, what was asked for does, at the speed seen, as far as the launch's answers became as long as they should.
    """
    later = ~trace.is_first
    tokens = float(trace.k[later].sum())
    if tokens <= 0:
        return 0.0, 0.0
    token_ns = float((trace.t_ns - trace.previous_ns)[later].sum()) / tokens
    seen = (samples.outcome == OK) & (samples.round > 0) & (trace.first_ns >= 0) & (samples.end_ns < t1_ns)
    answers = (trace.last_ns - trace.first_ns + lead_ns(trace, samples.requests))[seen]
    if len(answers) > 1:
        off = float(answers.std(ddof=1)) / np.sqrt(len(answers))
        return float(answers.mean()) + pause_ns, off / (float(answers.mean()) + pause_ns)
    asked = samples.asked_tokens
    if not (asked > 0).any():
        return 0.0, 0.0
    done = (samples.outcome == OK) & (asked > 0) & (trace.first_ns >= 0)
    got = np.bincount(trace.request, trace.k, samples.requests)[done] / asked[done]
    reached = float(got.mean()) if len(got) else 1.0
    off = float(np.hypot(PACE_OFF, got.std(ddof=1) / np.sqrt(len(got)))) if len(got) > 1 else LENGTH_OFF
    return float(asked.max()) * reached * token_ns + pause_ns, off


def even_ends(
    first_tokens: Sequence[int],
    most_tokens: int,
    token_s: float,
    pause_s: float,
    age_s: float,
    wanted_s: Sequence[float],
    within: float,
) -> list[float]:
    """Ends of a window near `wanted_s` (ascending; never beyond the last) with the long run's share of pauses.

    `first_tokens`: lengths of the first round, one a stream; `most_tokens`: of each later round. `token_s`: between two
    tokens of a stream, `pause_s`: between two answers of it, `age_s`: since the streams' first tokens. `within`: the
    largest relative distance of the window's decoding time from the long run's. Where no end is even, `wanted_s`'s
    last stands alone: the longest window is the best there is.
    """
    longest = wanted_s[-1]
    grid = np.linspace(wanted_s[0], longest, GRID)
    even = np.ones(GRID, dtype=np.bool_)
    for factor in (1.0, SPEED_OFF):
        even &= np.abs(_excess(grid, first_tokens, most_tokens, token_s * factor, pause_s, age_s)) <= within
    ends = [float(grid[even][np.searchsorted(grid[even], at)]) for at in wanted_s if (grid[even] >= at).any()]
    if not ends:
        return [longest]
    return sorted(set(ends) | {float(grid[even][-1])})


def pauses_ended(
    first_tokens: Sequence[int], most_tokens: int, token_s: float, pause_s: float, age_s: float, at_s: float
) -> int:
    """How many pauses end in a window of `at_s`, even if the streams are a little slower than they seemed."""
    begin = _begin(at_s, first_tokens, most_tokens, token_s * SPEED_OFF, pause_s, age_s) + pause_s
    return int(((begin > 0) & (begin <= at_s)).sum())


def _begin(
    longest_s: float, firsts: Sequence[int], most: int, token_s: float, pause_s: float, age_s: float
) -> npt.NDArray[np.float64]:
    """When the pauses begin, in seconds since the window opened, up to `longest_s` at least."""
    cycle = most * token_s + pause_s
    rounds = np.arange(int((longest_s + age_s) / cycle) + 2) * cycle
    return np.asarray((np.asarray(firsts, dtype=np.float64)[:, None] * token_s + rounds).ravel() - age_s)


def _excess(
    at: npt.NDArray[np.float64], firsts: Sequence[int], most: int, token_s: float, pause_s: float, age_s: float
) -> npt.NDArray[np.float64]:
    """(n,) decoding time of windows of `at` seconds relative to the long run's, less 1."""
    cycle = most * token_s + pause_s
    begin = _begin(float(at[-1]), firsts, most, token_s, pause_s, age_s)
    paused = np.clip(np.minimum(at[:, None], begin + pause_s) - np.maximum(begin, 0.0), 0.0, None).sum(axis=1)
    return np.asarray((1.0 - paused / (len(firsts) * at)) / (1.0 - pause_s / cycle) - 1.0)
