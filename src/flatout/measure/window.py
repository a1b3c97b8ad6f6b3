"""What happened between two moments: tokens, requests in flight, gauges and counters. The window is [t0, t1) in ns.

Where a figure can be missing, the function returns it or the reason why it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.engines.base import Live
from flatout.load.samples import OK, REFUSED, Samples
from flatout.measure.trace import Trace
from flatout.record import Acceptance, Series

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

CHART_POINTS: Final = 120


def tokens_between(trace: Trace, t0_ns: int, t1_ns: int) -> float:
    """Tokens that arrived in [t0, t1): the numerator of `total_tok_s`."""
    return float(trace.k[_in(trace, t0_ns, t1_ns)].sum())


def smooth_bins(trace: Trace, samples: Samples, t0_ns: int, t1_ns: int, bins: int) -> F64:
    """(bins,) tokens generated per equal bin of the window.

    An engine step delivers a lump, so raw bins beat against the step, and the window's edges cut lumps. Here each
    arrival's tokens are spread evenly over the gap since the request's arrival before, the first's over its lead (see
    `lead_ns`); an answer in one piece stays a point. A regular server has equal bins, however its steps fall.
    """
    start, stop, mass = _gaps(trace, samples, t1_ns)
    edges = np.linspace(0.0, (t1_ns - t0_ns) / 1e9, bins + 1)
    spread = np.diff(_spread_until(edges, (start - t0_ns) / 1e9, (stop - t0_ns) / 1e9, mass))
    single = trace.is_first & (mean_gap_ns(trace, samples.requests)[trace.request] <= 0) & _in(trace, t0_ns, t1_ns)
    points, _ = np.histogram((trace.t_ns[single] - t0_ns) / 1e9, edges, weights=trace.k[single])
    return np.asarray(np.maximum(spread + points, 0.0))


def mean_gap_ns(trace: Trace, requests: int) -> F64:
    """(R,) mean time between a request's arrivals; 0 where it has fewer than two."""
    later = ~trace.is_first
    total = np.bincount(trace.request[later], (trace.t_ns - trace.previous_ns)[later], requests)
    count = np.bincount(trace.request[later], minlength=requests)
    return np.asarray(total / np.maximum(count, 1))


def lead_ns(trace: Trace, requests: int) -> F64:
    """(R,) the time that a request's first arrival took to be decoded: its mean gap, or as much of it as the first
    arrival's tokens are of a later one's (engines send the prefill's token alone, then several a step)."""
    later = ~trace.is_first
    count = np.bincount(trace.request[later], minlength=requests)
    usual = np.bincount(trace.request[later], trace.k[later], requests) / np.maximum(count, 1)
    first = np.bincount(trace.request[~later], trace.k[~later], requests)
    share = np.where(usual > 0, np.minimum(first / np.maximum(usual, 1e-9), 1.0), 1.0)
    return np.asarray(mean_gap_ns(trace, requests) * share)


def _gaps(trace: Trace, samples: Samples, t1_ns: int) -> tuple[F64, F64, F64]:
    """Begin, end and tokens of each gap that ends in an arrival. A stream that the window's end cuts gets one more gap
    of its own mean length and tokens (one only, so that a hang shows as a loss)."""
    usual = mean_gap_ns(trace, samples.requests)[trace.request]
    kept = usual > 0
    lead = lead_ns(trace, samples.requests)[trace.request]
    start = np.where(trace.is_first, trace.t_ns - lead, trace.previous_ns)[kept]
    stop, mass, owner, usual = trace.t_ns[kept].astype(float), trace.k[kept], trace.request[kept], usual[kept]
    if not len(start):
        return start, stop, mass
    last = np.flatnonzero(np.concatenate((np.diff(owner) != 0, [True])))
    first = np.concatenate(([0], last[:-1] + 1))
    rows = owner[last]
    cut = (samples.outcome[rows] != OK) & ((samples.end_ns[rows] < 0) | (samples.end_ns[rows] >= t1_ns))
    cut &= stop[last] < t1_ns
    mean_mass = np.add.reduceat(mass, first) / (last - first + 1)
    start_ = np.concatenate((start, stop[last][cut]))
    stop_ = np.concatenate((stop, (stop[last] + usual[last])[cut]))
    return start_, stop_, np.concatenate((mass, mean_mass[cut]))


def pace_bins(trace: Trace, samples: Samples, t0_ns: int, t1_ns: int, bins: int) -> F64:
    """Like `smooth_bins`, but at the window's mean number of decoding streams: (n <= bins,), with the same mean.

    A stream that waits for its next first token does not decode; its pause is no change of the server's pace (see
    `pauses`). Bins in which less than a fifth of the usual number decoded are left out; where answers come in one
    piece, nothing tells when they were decoded, and the bins stay as they are.
    """
    mass = smooth_bins(trace, samples, t0_ns, t1_ns, bins)
    begin, end = decoding_spans(trace, samples, t1_ns)
    edges = np.linspace(0.0, (t1_ns - t0_ns) / 1e9, bins + 1)
    one = np.ones(len(begin))
    until = _ramps(edges, np.sort((begin - t0_ns) / 1e9), one) - _ramps(edges, np.sort((end - t0_ns) / 1e9), one)
    active = np.diff(until) / edges[1]
    usual = float(active.mean())
    single = trace.is_first & (mean_gap_ns(trace, samples.requests)[trace.request] <= 0)
    points = float(trace.k[single & _in(trace, t0_ns, t1_ns)].sum())
    busy = active > 0.2 * usual
    if usual <= 0 or points > 0.02 * mass.sum() or mass[busy].sum() <= 0:
        return mass
    pace = mass[busy] / active[busy]
    return np.asarray(pace * (float(mass.mean()) / float(pace.mean())))


def _in(trace: Trace, t0_ns: int, t1_ns: int) -> npt.NDArray[np.bool_]:
    return np.asarray((trace.t_ns >= t0_ns) & (trace.t_ns < t1_ns))


def decoding_spans(trace: Trace, samples: Samples, t1_ns: int) -> tuple[F64, F64]:
    """Begin (one lead before the first token) and end (the last token; where cut, the cut) of decoding, of every
    request with at least two arrivals."""
    usual = mean_gap_ns(trace, samples.requests)
    rows = np.flatnonzero(usual > 0)
    last = trace.last_ns
    first = np.full(samples.requests, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, trace.request, trace.t_ns)
    ends = np.where(samples.end_ns < 0, t1_ns, samples.end_ns)
    end = np.where(samples.outcome == OK, last, np.maximum(ends, last))
    return (first - lead_ns(trace, samples.requests))[rows], end[rows].astype(float)


def _spread_until(at: F64, a: F64, b: F64, mass: F64) -> F64:
    """Spread tokens up to each time of `at` (sorted): sum over gaps of mass * clip((t - a) / (b - a), 0, 1)."""
    slope = mass / (b - a)
    up, down = np.argsort(a), np.argsort(b)
    return _ramps(at, a[up], slope[up]) - _ramps(at, b[down], slope[down])


def _ramps(at: F64, begin: F64, slope: F64) -> F64:
    s = np.concatenate(([0.0], np.cumsum(slope)))
    sa = np.concatenate(([0.0], np.cumsum(slope * begin)))
    i = np.searchsorted(begin, at)
    return np.asarray(s[i] * at - sa[i])


def overlap_mean(begin_ns: I64, end_ns: I64, t0_ns: int, t1_ns: int) -> float:
    """Time-weighted mean count of intervals [begin, end) over the window; end -1: still open. Shapes: (n,)."""
    end = np.where(end_ns < 0, t1_ns, end_ns)
    overlap = np.minimum(end, t1_ns) - np.maximum(begin_ns, t0_ns)
    return float(np.maximum(overlap, 0).sum()) / (t1_ns - t0_ns)


def own_active(samples: Samples, t0_ns: int, t1_ns: int) -> float:
    """Time-weighted mean of the client's own requests in flight: from send to end; refused ones never ran."""
    ran = (samples.outcome != REFUSED) & (samples.send_ns >= 0)
    return overlap_mean(samples.send_ns[ran], samples.end_ns[ran], t0_ns, t1_ns)


def own_decoding(samples: Samples, trace: Trace, t0_ns: int, t1_ns: int) -> float:
    """Time-weighted mean of requests between their first token and their end."""
    ran = trace.first_ns >= 0
    return overlap_mean(trace.first_ns[ran], samples.end_ns[ran], t0_ns, t1_ns)


def completed(samples: Samples, t0_ns: int, t1_ns: int) -> int:
    """Requests that ended, with a finish reason, inside the window."""
    done = (samples.outcome == OK) & (samples.finish >= 0) & (samples.end_ns >= t0_ns) & (samples.end_ns < t1_ns)
    return int(done.sum())


def restart_idle_share(samples: Samples, t0_ns: int, t1_ns: int) -> float:
    """Share of the streams' time in the window between a request's end and the same stream's next send."""
    order = np.lexsort((samples.send_ns, samples.stream))
    stream, send, end = samples.stream[order], samples.send_ns[order], samples.end_ns[order]
    streams = len(np.unique(stream))
    follows = (np.diff(stream) == 0) & (samples.outcome[order][:-1] == OK)
    if not streams:
        return 0.0
    return overlap_mean(end[:-1][follows], send[1:][follows], t0_ns, t1_ns) / streams


def mean_depth(samples: Samples, trace: Trace, context_tokens: int, t0_ns: int, t1_ns: int) -> float | str:
    """Time-weighted mean of (prompt + output so far) per decoding request; `context_tokens` where the server counts no
    prompt tokens."""
    if not len(trace.t_ns):
        return "no token arrived"
    last = np.concatenate((np.diff(trace.request) != 0, [True]))
    ends = samples.end_ns[trace.request]
    until = np.where(last, np.where(ends < 0, t1_ns, ends), np.concatenate((trace.t_ns[1:], [t1_ns])))
    weight = np.maximum(np.minimum(until, t1_ns) - np.maximum(trace.t_ns, t0_ns), 0).astype(float)
    prompt = samples.prompt_tokens[trace.request].astype(float)
    depth = np.where(prompt >= 0, prompt, context_tokens) + trace.before + trace.k
    if weight.sum() <= 0:
        return "no request was decoding in the window"
    return float((weight * depth).sum() / weight.sum())


def inside(points: Sequence[Live], t0_ns: int, t1_ns: int) -> list[Live]:
    """The polls of the window, in order of time."""
    return sorted((p for p in points if t0_ns <= p.t_ns < t1_ns), key=lambda p: p.t_ns)


def gauge(points: Sequence[Live], name: str, t0_ns: int, t1_ns: int) -> tuple[I64, F64]:
    """Times and values of one gauge in the window."""
    readings = [(p.t_ns, value) for p in inside(points, t0_ns, t1_ns) if (value := getattr(p, name)) is not None]
    return np.array([t for t, _ in readings], dtype=np.int64), np.array([v for _, v in readings], dtype=np.float64)


def gauge_mean(points: Sequence[Live], name: str, t0_ns: int, t1_ns: int) -> float | str:
    """Time-weighted mean of a gauge: each poll stands for the part of the window that is nearest to it."""
    t, values = gauge(points, name, t0_ns, t1_ns)
    if not len(t):
        return _no_gauge(points, name)
    borders = np.concatenate(([t0_ns], (t[1:] + t[:-1]) / 2.0, [t1_ns]))
    return float((np.diff(borders) * values).sum() / (t1_ns - t0_ns))


def gauge_max(points: Sequence[Live], name: str, t0_ns: int, t1_ns: int) -> float | str:
    """Largest poll of a gauge in the window."""
    _, values = gauge(points, name, t0_ns, t1_ns)
    return float(values.max()) if len(values) else _no_gauge(points, name)


def _no_gauge(points: Sequence[Live], name: str) -> str:
    if any(getattr(p, name) is not None for p in points):
        return "no poll of the server fell in the window"
    return f"the server does not tell ({name})"


def counter_delta(points: Sequence[Live], name: str, t0_ns: int, t1_ns: int) -> float | str:
    """Growth of a counter between the first and last poll of the window (fault S6: never its last value)."""
    _, values = gauge(points, name, t0_ns, t1_ns)
    if len(values) < 2:
        has_counter = any(getattr(p, name) is not None for p in points)
        return "fewer than two polls fell in the window" if has_counter else f"the server does not tell ({name})"
    if bool((np.diff(values) < 0).any()):
        return f"the counter {name} went backwards: the server restarted or another one answered"
    return float(values[-1] - values[0])


def acceptance(points: Sequence[Live], t0_ns: int, t1_ns: int) -> Acceptance:
    """Acceptance length 1 + (accepted) / (drafts) from counters, else the mean of the engine's gauge."""
    polls = [p for p in points if p.drafts_total is not None and p.accepted_total is not None]
    drafts, accepted = (counter_delta(polls, name, t0_ns, t1_ns) for name in ("drafts_total", "accepted_total"))
    if not isinstance(drafts, str) and not isinstance(accepted, str) and drafts > 0:
        drafted = counter_delta(polls, "drafted_total", t0_ns, t1_ns)
        share = accepted / drafted if not isinstance(drafted, str) and drafted else None
        return Acceptance(length=1.0 + accepted / drafts, how="counters", draft_share=share)
    mean = gauge_mean(points, "accept_length", t0_ns, t1_ns)
    if not isinstance(mean, str):
        return Acceptance(length=mean, how="gauge mean")
    if polls and drafts == 0:
        return Acceptance(reason="no verification step in the window: the server does not speculate")
    return Acceptance(reason=drafts if polls and isinstance(drafts, str) else "the server tells no draft counts")


def rate_series(trace: Trace, t0_ns: int, t1_ns: int) -> Series | None:
    """Arrived tokens/s over the window: at most CHART_POINTS equal bins of at least four usual gaps each; None if no
    token came."""
    seen = _in(trace, t0_ns, t1_ns)
    if not seen.any():
        return None
    gaps = (trace.t_ns - trace.previous_ns)[seen & ~trace.is_first]
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    bins = CHART_POINTS if usual <= 0 else int(np.clip((t1_ns - t0_ns) / (4.0 * usual), 10, CHART_POINTS))
    edges = np.linspace(0.0, (t1_ns - t0_ns) / 1e9, bins + 1)
    tokens, _ = np.histogram((trace.t_ns[seen] - t0_ns) / 1e9, edges, weights=trace.k[seen])
    width = edges[1]
    return Series(t_s=(edges[:-1] + width / 2).tolist(), values=(tokens / width).tolist())


def gauge_series(points: Sequence[Live], name: str, t0_ns: int, t1_ns: int) -> Series | None:
    """A gauge's polls in the window; where there are more than CHART_POINTS, evenly chosen ones; None without any."""
    t, values = gauge(points, name, t0_ns, t1_ns)
    if len(t) > CHART_POINTS:
        chosen = np.unique(np.linspace(0, len(t) - 1, CHART_POINTS).round().astype(int))
        t, values = t[chosen], values[chosen]
    return Series(t_s=((t - t0_ns) / 1e9).tolist(), values=values.tolist()) if len(t) else None
