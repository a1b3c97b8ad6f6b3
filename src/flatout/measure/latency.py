"""Whose latency, and how long: TTFT, TPOT, time between tokens and the longest silence. All in the window [t0, t1) ns.

Fault M12: a request that the window's end cuts is not dropped but known to have waited at least so long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.load.samples import OK, REFUSED, Samples
from flatout.measure.interval import (
    BINS,
    WANDERED,
    least_independent,
    order_interval,
    quantile_intervals,
    rarely,
    section_interval,
)
from flatout.measure.percentile import distribution, quantile, with_intervals
from flatout.measure.trace import Trace
from flatout.measure.trend import drift, few_switches
from flatout.record import QUANTILES, Distribution

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LEAST_RESTARTS: Final = 5
LEAST_TOKENS: Final = 16
RESTARTS: Final = "requests sent after the launch"
LAUNCH: Final = "the launch's own requests"
"""Whose TTFT a decode cell tells."""
_LEAST_TO_JUDGE = 24  # requests in whose order a dependence can be seen: two to each of the fewest batches
_TOGETHER = "the waits depend on each other, as of requests that were sent together"
_LEAST_DRIFT = 0.02
_BIN_GAPS = 2.0  # usual gaps to a bin: an empty bin would hide that its neighbours are alike
_SECTIONS = 32
_SECTION_GAPS = 8  # gaps that a section of the window needs for its own median
_MS = 1e-6


End = tuple[float, float] | str
"""An interval, or why there is none."""
Ends = dict[str, End]
"""By the percentile's name."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of requests inside the window, where they hold >= 16 tokens. Shapes: P parts, G gaps.

    `tpot_ms`, `cut` (P): cut where only a lower bound is known. `gap_ms` (per token), `gap_tokens`, `gap_end_ns`,
    `gap_part` (row of its part), `gap_cut` (G).
    """

    tpot_ms: F64
    cut: Mask
    gap_ms: F64
    gap_tokens: F64
    gap_end_ns: I64
    gap_part: I64
    gap_cut: Mask


def ttft(samples: Samples, trace: Trace, t0_ns: int, t1_ns: int) -> Distribution:
    """TTFT = first token - send of the requests sent after the launch (their stream's round > 0) whose first token
    falls in the window; with fewer than five of them, of the launch's own requests. Requests still without a token at
    the window's end, sent in it after the launch, count as censored."""
    ran = (samples.outcome != REFUSED) & (samples.send_ns >= 0)
    restarts = ran & (samples.round > 0)
    came = restarts & (trace.first_ns >= t0_ns) & (trace.first_ns < t1_ns)
    if came.sum() >= LEAST_RESTARTS:
        waiting = restarts & _still_waiting(samples, trace, t0_ns, t1_ns)
        return _ttft_of(samples, trace, came, waiting, t1_ns, RESTARTS)
    launch = ran & (samples.round == 0)
    came = launch & (trace.first_ns >= 0) & (trace.first_ns < t1_ns)
    waiting = launch & _still_waiting(samples, trace, t0_ns, t1_ns)
    if not came.any() and not waiting.any():
        return distribution((), empty="no first token came")
    return _ttft_of(samples, trace, came, waiting, t1_ns, LAUNCH)


def first_answer(samples: Samples, t0_ns: int, t1_ns: int) -> Distribution | None:
    """Time from send to the first token that is not reasoning, of the requests for which that
    falls in the window. None where no request reasoned: it is the TTFT then."""
    answered = samples.first_answer_ns >= 0
    if not bool((answered & (samples.first_answer_ns > samples.first_token_ns)).any()):
        return None
    inside = answered & (samples.first_answer_ns >= t0_ns) & (samples.first_answer_ns < t1_ns)
    values = (samples.first_answer_ns - samples.send_ns)[inside].astype(np.float64) * _MS
    times = distribution(values, empty="no answer began in the window")
    return with_intervals(
        times, _over_requests(values, np.zeros(len(values), np.bool_), samples.first_answer_ns[inside])
    )


def _still_waiting(samples: Samples, trace: Trace, t0_ns: int, t1_ns: int) -> Mask:
    """In flight in the window, and without a token when the window or the request ended. An empty answer that ended
    well waited for nothing, and an HTTP error is no wait."""
    in_window = (samples.send_ns < t1_ns) & ((samples.end_ns < 0) | (samples.end_ns >= t0_ns))
    gave_up = (trace.first_ns < 0) & (samples.outcome != OK) & (samples.http_status < 400)
    return np.asarray(in_window & (gave_up | (trace.first_ns >= t1_ns)))


def _ttft_of(samples: Samples, trace: Trace, came: Mask, waiting: Mask, t1_ns: int, whose: str) -> Distribution:
    ends = np.where(samples.end_ns < 0, t1_ns, np.minimum(samples.end_ns, t1_ns))
    values = np.concatenate((trace.first_ns[came] - samples.send_ns[came], (ends - samples.send_ns)[waiting])) * _MS
    cut = np.concatenate((np.zeros(int(came.sum()), dtype=np.bool_), np.ones(int(waiting.sum()), dtype=np.bool_)))
    when = np.concatenate((trace.first_ns[came], ends[waiting]))
    times = distribution(values, censored=cut, empty="no first token came in the window", whose=whose)
    return with_intervals(times, _over_requests(values, cut, when))


def _over_requests(values: F64, cut: Mask, when_ns: I64) -> Ends:
    """Intervals of percentiles over requests, which came at `when_ns`: with the dependence that shows in their order in
    time; as if they were independent where they are too few for that."""
    n = len(values)
    if n < _LEAST_TO_JUDGE:
        return {name: _by_order(values, cut, q) for name, q in QUANTILES.items()}
    order = np.empty(n, dtype=np.int64)
    order[np.argsort(when_ns, kind="stable")] = np.arange(n)
    count = min(n, BINS)

    def judged(v: F64) -> list[End]:
        return quantile_intervals(v, np.ones(n), order * count // n, count, list(QUANTILES.values()), what="requests")

    ends = [_TOGETHER if end == WANDERED else end for end in _two_ended(values, cut, judged)]
    return dict(zip(QUANTILES, ends, strict=True))


def _by_order(values: F64, cut: Mask, q: float) -> End:
    few = f"needs {least_independent(q)} requests, has {len(values)}"
    return _two_ended(values, cut, lambda v: [order_interval(v, q) or few])[0]


def _two_ended(values: F64, cut: Mask, intervals: Callable[[F64], list[End]]) -> list[End]:
    """Intervals of values of which some were cut: lower ends take those at what they waited, upper ones as endless."""
    low = intervals(values)
    if not cut.any():
        return low
    ends: list[End] = []
    for a, b in zip(low, intervals(np.where(cut, np.inf, values)), strict=True):
        if isinstance(a, str) or isinstance(b, str):
            ends.append(a if isinstance(a, str) else b)
        else:
            endless = "too many were cut before they showed how long they last"
            ends.append((a[0], b[1]) if np.isfinite(b[1]) else endless)
    return ends


def all_ttft(samples: Samples, trace: Trace) -> Distribution:
    """TTFT of every request that got a token; those that ended without one count as censored."""
    ran = (samples.outcome != REFUSED) & (samples.send_ns >= 0)
    came = ran & (trace.first_ns >= 0)
    waiting = ran & (trace.first_ns < 0) & (samples.end_ns >= 0)
    until_ns = int(samples.end_ns.max(initial=0))
    return _ttft_of(samples, trace, came, waiting, until_ns, "all requests, sent at once and cold")


def parts(samples: Samples, trace: Trace, t0_ns: int, t1_ns: int) -> Parts:
    """TPOT and gaps of each request's part inside the window.

    TPOT = (last - first) / (n - tokens in the first arrival). A gap g before an arrival of k tokens counts k times as
    g / k. A silence at the end of a part whose request goes on, longer than each gap before it, is a censored gap of
    the part's mean tokens, and TPOT counts it as if the next arrival came as it ends: a lower bound.
    """
    seen = np.flatnonzero((trace.t_ns >= t0_ns) & (trace.t_ns < t1_ns))
    t, k, owner = trace.t_ns[seen], trace.k[seen], trace.request[seen]
    start = np.flatnonzero(np.concatenate(([True], np.diff(owner) != 0))) if len(seen) else np.zeros(0, dtype=np.int64)
    stop = np.append(start[1:], len(owner)).astype(np.int64)[: len(start)]
    tokens = np.add.reduceat(k, start) if len(start) else np.zeros(0)
    enough = (tokens >= LEAST_TOKENS - 1e-6) & (stop - start >= 2)
    start, stop, tokens = start[enough], stop[enough], tokens[enough]
    if not len(start):
        no, none, ints = np.zeros(0), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
        return Parts(no, none, no, no, ints, ints, none)
    rows = np.concatenate([np.arange(a + 1, b) for a, b in zip(start.tolist(), stop.tolist(), strict=True)])
    part = np.repeat(np.arange(len(start)), stop - start - 1)
    gap = (t[rows] - t[rows - 1]) * _MS
    longest = np.maximum.reduceat(gap, np.concatenate(([0], np.cumsum(stop - start - 1)[:-1])))
    rest, span = tokens - k[start], (t[stop - 1] - t[start]) * _MS
    usual = rest / (stop - start - 1)
    tail = _open_silence(samples, owner[start], t[stop - 1], t1_ns) * _MS
    hangs = tail > longest
    tpot_ms = np.where(hangs, np.maximum(span / rest, (span + tail) / (rest + usual)), span / rest)
    return Parts(
        tpot_ms,
        hangs,
        np.concatenate((gap / k[rows], (tail / usual)[hangs])),
        np.concatenate((k[rows], usual[hangs])),
        np.concatenate((t[rows], t[stop - 1][hangs] + (tail[hangs] / _MS).astype(np.int64))),
        np.concatenate((part, np.flatnonzero(hangs))),
        np.concatenate((np.zeros(len(rows), dtype=np.bool_), np.ones(int(hangs.sum()), dtype=np.bool_))),
    )


def _open_silence(samples: Samples, request: I64, last_ns: I64, t1_ns: int) -> I64:
    """ns from each request's last arrival in the window to the window's end, or to the request's own end if it was
    cut or failed before; 0 where it ended well before."""
    end = samples.end_ns[request]
    outcome = samples.outcome[request]
    until = np.where((end < 0) | (end > t1_ns), t1_ns, end)
    ended_well = (outcome == OK) & (end >= 0) & (end < t1_ns)
    return np.where(ended_well, 0, np.maximum(until - last_ns, 0))


def itl(inside: Parts, t0_ns: int, t1_ns: int) -> Distribution:
    """Token-weighted time between tokens, ms per token, with intervals that allow for gaps which depend on each other
    (those of one engine step, of one slow moment)."""
    result = distribution(
        inside.gap_ms,
        weights=inside.gap_tokens,
        censored=inside.gap_cut,
        empty=f"no request had {LEAST_TOKENS} tokens in the window",
        what="gaps",
    )
    if result.p50 is None:
        return result
    sections = []
    for mine in _sections(inside, t0_ns, t1_ns):
        middle = quantile(inside.gap_ms[mine], inside.gap_tokens[mine], inside.gap_cut[mine], 0.5)
        if middle is not None and not middle[1]:
            sections.append(middle[0])
    unsteady = _unsteady(sections)
    if unsteady:
        return with_intervals(result, dict.fromkeys(QUANTILES, unsteady))
    usual_ns = float(np.median(inside.gap_ms * inside.gap_tokens)) / _MS
    count = int(np.clip((t1_ns - t0_ns) / max(_BIN_GAPS * usual_ns, 1.0), 1, BINS))
    where = ((inside.gap_end_ns - t0_ns) * count // max(t1_ns - t0_ns, 1)).clip(0, count - 1)

    def judged(v: F64) -> list[End]:
        return quantile_intervals(v, inside.gap_tokens, where, count, list(QUANTILES.values()), what="gaps")

    return with_intervals(result, dict(zip(QUANTILES, _two_ended(inside.gap_ms, inside.gap_cut, judged), strict=True)))


def _unsteady(sections: Sequence[float]) -> str | None:
    """Why the window cannot tell the long run's percentiles: it drifted, or changed rarely between two levels."""
    switches = few_switches(sections)
    if switches is not None:
        return rarely(switches)
    change = drift(np.asarray(sections), least_change=_LEAST_DRIFT)
    if change is not None and change.detected:
        return f"the speed drifted (the time between tokens changed by {change.change:+.1%} over the window)"
    return None


def _sections(inside: Parts, t0_ns: int, t1_ns: int) -> list[Mask]:
    """The gaps that end in each of 32 sections of the window, where there are at least 8."""
    where = ((inside.gap_end_ns - t0_ns) * _SECTIONS // max(t1_ns - t0_ns, 1)).clip(0, _SECTIONS - 1)
    return [mine for s in range(_SECTIONS) if (mine := where == s).sum() >= _SECTION_GAPS]


def tpot(inside: Parts, t0_ns: int, t1_ns: int) -> Distribution:
    """TPOT over requests (one value each), ms. Requests that run together share the server's good and bad moments: the
    interval of p50 is the wider of that over requests and that over 32 sections of the window, and those of p90 and
    p99, over requests, take the sections' share in squares."""
    result = distribution(
        inside.tpot_ms, censored=inside.cut, empty=f"no request had {LEAST_TOKENS} tokens in the window"
    )
    if result.p50 is None:
        return result
    sections = []
    parts_count = len(inside.tpot_ms)
    for mine in _sections(inside, t0_ns, t1_ns):
        time = np.bincount(inside.gap_part[mine], inside.gap_ms[mine] * inside.gap_tokens[mine], parts_count)
        tokens = np.bincount(inside.gap_part[mine], inside.gap_tokens[mine], parts_count)
        sections.append(float(np.median(time[tokens > 0] / tokens[tokens > 0])))
    pace = _unsteady(sections) or section_interval(sections, centre=result.p50) or "too few tokens for an interval"
    if isinstance(pace, str):
        return with_intervals(result, dict.fromkeys(QUANTILES, pace))
    below, above = (result.p50 - pace[0]) / result.p50, (pace[1] - result.p50) / result.p50
    ends: Ends = {}
    for name, q in QUANTILES.items():
        own, value = _by_order(inside.tpot_ms, inside.cut, q), getattr(result, name)
        if name == "p50":
            ends[name] = pace if isinstance(own, str) else (min(pace[0], own[0]), max(pace[1], own[1]))
        elif isinstance(own, str) or value is None:
            ends[name] = own
        else:
            low, high = 1.0 - own[0] / value, own[1] / value - 1.0
            ends[name] = (value * (1.0 - math.hypot(low, below)), value * (1.0 + math.hypot(high, above)))
    return with_intervals(result, ends)


def per_request_tok_s(times: Distribution) -> Distribution:
    """Per-request tok/s = 1 / TPOT, the median over requests (the reciprocal of the median of TPOT)."""
    if times.p50 is None or times.p50 <= 0:
        return Distribution(reasons={"p50": times.reasons.get("p50", "the answers came in one piece")})
    if times.p50_low is None or times.p50_high is None or times.p50_low <= 0:
        reason = times.reasons.get("interval", "its interval reaches 0")
        return Distribution(p50=1e3 / times.p50, n=times.n, reasons={"interval": reason})
    return Distribution(p50=1e3 / times.p50, p50_low=1e3 / times.p50_high, p50_high=1e3 / times.p50_low, n=times.n)


def longest_gap(samples: Samples, trace: Trace, t0_ns: int, t1_ns: int) -> tuple[float | None, bool]:
    """The longest silence of any decoding request, ms, clipped to the window, and whether it is still open (a lower
    bound: it began before or lasted beyond the window, or ended with the request). Every request counts, also those
    with few tokens."""
    begin = np.maximum(trace.previous_ns, t0_ns)
    end = np.minimum(trace.t_ns, t1_ns)
    length = np.where(trace.is_first | (end <= begin), -1, end - begin)
    clipped = (trace.previous_ns < t0_ns) | (trace.t_ns > t1_ns)
    last = (
        np.flatnonzero(np.concatenate((np.diff(trace.request) != 0, [True]))) if len(trace.t_ns) else np.zeros(0, int)
    )
    last = last[trace.t_ns[last] < t1_ns]
    ends = samples.end_ns[trace.request[last]]
    since = np.maximum(trace.t_ns[last], t0_ns)
    tail = np.where((ends >= 0) & (ends < t0_ns), 0, _open_silence(samples, trace.request[last], since, t1_ns))
    closed_ns, open_ns = int(length.max(initial=-1)), int(tail.max(initial=0))
    if max(closed_ns, open_ns) <= 0:
        return None, False
    if open_ns > closed_ns:
        return open_ns * _MS, True
    return closed_ns * _MS, bool(clipped[int(np.argmax(length))])


def connect_ms(samples: Samples) -> float | str:
    """Median of TCP and TLS set-up, outside TTFT (fault M2); or the reason why there is none."""
    opened = samples.connect_ns[samples.connect_ns >= 0]
    if not len(opened):
        return "no connection was opened for a request: all were open before"
    return float(np.median(opened)) * _MS
