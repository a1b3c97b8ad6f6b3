"""From the samples and polls of a cell to the record's figures of it, and to what its verdict weighs beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flatout.engines.base import Live
from flatout.load.samples import FAILED, OK, REFUSED, Samples
from flatout.measure import checks, interval, latency, looping, pauses, tokens, trace, trend, window
from flatout.measure.percentile import distribution, with_intervals
from flatout.record import (
    QUANTILES,
    BurstFigures,
    DecodeFigures,
    Distribution,
    PrefillFigures,
    PrefillSample,
    Rate,
    Tokens,
)

LEAST_PREFILLS: Final = 3
_LOOKED_AT: Final = 256
"""Answers checked for loops, evenly chosen."""


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode cell. `counts`: every two counts of the same tokens. `modes`: two levels of speed in the window.
    `own_decoding`: mean number of own requests between first token and end. `restart_idle_share`: share of the
    streams' time between an end and the next send."""

    figures: DecodeFigures
    tokens: Tokens
    counts: tuple[checks.CountPair, ...] = ()
    modes: trend.Modes | None = None
    own_decoding: float | None = None
    restart_idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst; beside its figures what a decode cell's figures hold, too."""

    figures: BurstFigures
    tokens: Tokens
    counts: tuple[checks.CountPair, ...]
    asked_tokens_mean: float | None
    output_tokens_mean: float | None
    cached_tokens_mean: float | None
    looping_share: float | None


def decode(
    samples: Samples,
    *,
    t_open_ns: int,
    t_close_ns: int,
    context_tokens: int,
    live: Sequence[Live] = (),
    retokenised: Mapping[int, int] | None = None,
    looks: int = 1,
    precision: float = 0.01,
    idle_before: Live | None = None,
    idle_after: Live | None = None,
    run_tokens_per_byte: float | None = None,
) -> Decode:
    """A decode cell over the window [t_open, t_close) ns of CLOCK_MONOTONIC.

    `samples`: every request since the launch. `retokenised`: request row -> tokens of its text. `looks`: how many ends
    the window could have had. `precision`: the suite's target; twice that is the least change called drift.
    `idle_before`, `idle_after`: counters while idle, with nothing but `samples` between. `run_tokens_per_byte`: see
    `tokens.count`. Raises ValueError for an empty window.
    """
    if t_close_ns <= t_open_ns:
        raise ValueError("the window must end after it opens")
    t0, t1, seconds = t_open_ns, t_close_ns, (t_close_ns - t_open_ns) / 1e9
    counts = tokens.count(samples, retokenised=retokenised, run_tokens_per_byte=run_tokens_per_byte)
    table = trace.build(samples, counts)
    bins = window.pace_bins(table, samples, t0, t1, interval.BINS)
    bin_s = seconds / interval.BINS
    arrived = window.tokens_between(table, t0, t1)
    paused = pauses.pause_share(table, samples, t0, t1)
    pace = trend.batches(bins / bin_s)
    drift = trend.drift(pace, least_change=2.0 * precision)
    modes = trend.modes(pace, least=3, least_run=3)
    numbers = _numbers(samples, counts, table, context_tokens, live, t0, t1)
    figures = DecodeFigures(
        total_tok_s=interval.rate_interval(bins, bin_s=bin_s, value=arrived / seconds, paused=paused, looks=looks),
        output_tokens=arrived,
        acceptance=window.acceptance(live, t0, t1),
        drift_change=drift.change if drift and drift.detected else None,
        two_modes_tok_s=(modes.low, modes.high) if modes else None,
        tok_s_series=window.rate_series(table, t0, t1),
        running_series=window.gauge_series(live, "running", t0, t1),
        waiting_series=window.gauge_series(live, "waiting", t0, t1),
        reasons={name: reason for name, reason in numbers.items() if isinstance(reason, str)},
        **_known(numbers),
        **_latencies(samples, table, t0, t1),
        **_requests(samples, table, t0, t1),
    )
    pairs = checks.count_pairs(samples, counts, figures.per_request_tok_s.p50, idle_before, idle_after)
    return Decode(
        figures, _tokens(counts, table, pairs, arrived, t0, t1), pairs, modes,
        window.own_decoding(samples, table, t0, t1), window.restart_idle_share(samples, t0, t1),
    )  # fmt: skip


def _numbers(
    samples: Samples,
    counts: tokens.TokenCounts,
    table: trace.Trace,
    context_tokens: int,
    live: Sequence[Live],
    t0: int,
    t1: int,
) -> dict[str, float | str]:
    """The figure of that name in the record, or the reason why it is not known."""
    asked, output = _lengths(samples, counts)
    return {
        "active_own_mean": window.own_active(samples, t0, t1),
        "active_server_mean": window.gauge_mean(live, "running", t0, t1),
        "waiting_server_mean": window.gauge_mean(live, "waiting", t0, t1),
        "kv_use_max": window.gauge_max(live, "kv_use", t0, t1),
        "connect_ms": latency.connect_ms(samples),
        "mean_depth_tokens": window.mean_depth(samples, table, context_tokens, t0, t1),
        "cached_tokens_mean": _cached(samples, table, t0, t1),
        "asked_tokens_mean": asked,
        "output_tokens_mean": output,
        "preemptions": window.counter_delta(live, "preemptions_total", t0, t1),
        "looping_share": _loops(samples),
    }


def _latencies(samples: Samples, table: trace.Trace, t0: int, t1: int) -> dict[str, Any]:
    """The latencies of a decode cell by their names in the record."""
    parts = latency.parts(samples, trace.joined(table), t0, t1)
    tpot = latency.tpot(parts, t0, t1)
    gap_ms, gap_open = latency.longest_gap(samples, table, t0, t1)
    return {
        "ttft_ms": latency.ttft(samples, table, t0, t1),
        "ttft_answer_ms": latency.first_answer(samples, t0, t1),
        "tpot_ms": tpot,
        "per_request_tok_s": latency.per_request_tok_s(tpot),
        "itl_ms": latency.itl(parts, t0, t1),
        "longest_gap_ms": gap_ms,
        "longest_gap_open": gap_open,
    }


def _requests(samples: Samples, table: trace.Trace, t0: int, t1: int) -> dict[str, Any]:
    """Counts of requests, and their prompts' lengths, by their names in the record."""
    prompts = samples.prompt_tokens[samples.prompt_tokens >= 0]
    return {
        "streams_started": len(np.unique(samples.stream[(table.first_ns >= 0) & (table.first_ns < t0)])),
        "completed": window.completed(samples, t0, t1),
        "failed_requests": _ended_so(samples, FAILED, t0, t1),
        "rate_limited": _ended_so(samples, REFUSED, t0, t1),
        "prompt_tokens_min": int(prompts.min()) if len(prompts) else None,
        "prompt_tokens_max": int(prompts.max()) if len(prompts) else None,
    }


def prefill(
    samples: Samples, *, prompt_tokens: int | None = None, head_tokens: int = 0, block_tokens: int = 1
) -> PrefillFigures:
    """Figures of cold prompts that were sent one after the other, each alone on the server; one row of `samples` each.

    `prompt_tokens`: used where the server counts none. `head_tokens` + `block_tokens`: what may be cached of a cold
    prompt (the template's head and one cache block). With no cold sample, the rate is that of warm ones.
    """
    table = trace.build(samples, tokens.count(samples))
    allowed = head_tokens + block_tokens
    sent = [
        _prefill_sample(samples, r, int(table.first_ns[r]), prompt_tokens, allowed)
        for r in range(samples.requests)
        if samples.outcome[r] != REFUSED
    ]
    usable = [s for s in sent if s.used] or [s for s in sent if s.prefill_tok_s is not None]
    rates = [s.prefill_tok_s for s in usable if s.prefill_tok_s is not None]
    rate = interval.between_repeats(rates)
    if rate.value is not None and len(rates) < LEAST_PREFILLS:
        rate = Rate(value=rate.value, reason=f"{len(rates)} prompts are too few for an interval", n=len(rates))
    lengths = {s.prompt_tokens for s in sent if s.prompt_tokens is not None}
    return PrefillFigures(
        prefill_tok_s=rate,
        ttft_ms=_cold_ttft([s.ttft_ms for s in usable if s.ttft_ms is not None]),
        prompt_tokens=lengths.pop() if len(lengths) == 1 else None,
        samples=sent,
    )


def _cold_ttft(times_ms: Sequence[float]) -> Distribution:
    """TTFT of prompts, each alone on the server, with p50's interval as the rate's: Student's, of three or more."""
    whose = "cold prompts, alone on the server"
    times = distribution(times_ms, empty="no prompt was answered with a token", what="prompts", whose=whose)
    ends: dict[str, tuple[float, float] | str] = {
        name: interval.order_interval(times_ms, q) or f"needs {interval.least_independent(q)} prompts, has {times.n}"
        for name, q in QUANTILES.items()
    }
    middle = interval.between_repeats(times_ms)
    if times.n < LEAST_PREFILLS or middle.low is None or middle.high is None:
        ends["p50"] = f"needs {LEAST_PREFILLS} prompts, has {times.n}"
    else:
        ends["p50"] = (middle.low, middle.high)
    return with_intervals(times, ends)


def _prefill_sample(samples: Samples, r: int, first_ns: int, typed: int | None, allowed: int) -> PrefillSample:
    counted = int(samples.prompt_tokens[r]) if samples.prompt_tokens[r] >= 0 else None
    prompt = typed if counted is None else counted
    cached = int(samples.cached_tokens[r]) if samples.cached_tokens[r] >= 0 else None
    ttft_ns = first_ns - int(samples.send_ns[r])
    answered = first_ns >= 0 and samples.outcome[r] != FAILED
    rate, used, note = None, False, None
    if not answered:
        error = int(samples.error[r])
        note = samples.error_texts[error] if error >= 0 else "no token came"
    elif prompt is None:
        note = "the length of the prompt is not known"
    elif ttft_ns <= 0:
        note = "the first token came before the request"
    else:
        rate = max(prompt - (cached or 0), 0) / (ttft_ns / 1e9)
        used = cached is None or cached <= allowed
        if not used:
            note = f"{cached} of {prompt} tokens were cached, at most {allowed} may be"
        elif counted is None:
            note = f"the server counts no prompt tokens: the rate is made with the {prompt} that were asked for"
    return PrefillSample(
        prompt_tokens=counted, cached_tokens=cached, ttft_ms=ttft_ns / 1e6 if answered else None, prefill_tok_s=rate,
        used=used, note=note,
    )  # fmt: skip


def burst(samples: Samples, *, rate_limited: int = 0, retokenised: Mapping[int, int] | None = None) -> Burst:
    """A fixed number of requests, all sent at once, from the first send to the last end.

    End-to-end rate = tokens / (last end - first send): the ramp and the drain are part of it, by definition.
    `rate_limited`: requests that were refused and sent again.
    """
    counts = tokens.count(samples, retokenised=retokenised)
    table = trace.build(samples, counts)
    ran = (samples.outcome != REFUSED) & (samples.send_ns >= 0)
    t0 = int(samples.send_ns[ran].min()) if ran.any() else 0
    t1 = int(max(samples.end_ns[ran].max(initial=0), table.t_ns.max(initial=0)))
    duration_s = (t1 - t0) / 1e9 if t1 > t0 and ran.any() else None
    t1 = max(t1, t0 + 1) + 1  # the last arrival is inside
    total = float(counts.tokens.sum())
    parts = latency.parts(samples, trace.joined(table), t0, t1)
    tpot = latency.tpot(parts, t0, t1)
    rate = Rate(reason="no request ended")
    if duration_s is not None:
        rate = Rate(value=total / duration_s, reason="a burst is one sample: repeat it for an interval", n=1)
    asked, output = _lengths(samples, counts)
    cached = samples.cached_tokens[samples.cached_tokens >= 0]
    beside = _known(
        {
            "asked_tokens_mean": asked,
            "output_tokens_mean": output,
            "cached_tokens_mean": float(cached.mean()) if len(cached) else "no request reported a cached count",
            "looping_share": _loops(samples),
        }
    )
    return Burst(
        BurstFigures(
            end_to_end_tok_s=rate,
            per_request_tok_s=latency.per_request_tok_s(tpot),
            duration_s=duration_s,
            ttft_ms=latency.all_ttft(samples, table),
            tpot_ms=tpot,
            itl_ms=latency.itl(parts, t0, t1),
            completed=int((samples.outcome == OK).sum()),
            failed_requests=int((samples.outcome == FAILED).sum()),
            rate_limited=rate_limited,
            output_tokens=total,
            longest_gap_ms=latency.longest_gap(samples, table, t0, t1)[0],
        ),
        Tokens(source=_sources(counts), in_window=total, estimated_share=_estimated_share(counts, table, t0, t1)),
        checks.count_pairs(samples, counts, None, None, None),
        **beside,
    )


def _known(numbers: Mapping[str, float | str]) -> dict[str, Any]:
    """Every number by its name; None where there is a reason instead."""
    return {name: None if isinstance(value, str) else value for name, value in numbers.items()}


def _tokens(
    counts: tokens.TokenCounts,
    table: trace.Trace,
    pairs: Sequence[checks.CountPair],
    arrived: float,
    t0_ns: int,
    t1_ns: int,
) -> Tokens:
    by_server = next((p for p in pairs if "server" in p.name), None)
    return Tokens(
        source=_sources(counts),
        in_window=arrived,
        estimated_share=_estimated_share(counts, table, t0_ns, t1_ns),
        reasoning_unstreamed=int(counts.hidden.sum()) or None,
        own_total=by_server.ours if by_server else float(counts.tokens.sum()),
        server_total=by_server.theirs if by_server else None,
        reason=None if by_server else "the server has no counter of generated tokens that could be read when idle",
    )


def _sources(counts: tokens.TokenCounts) -> str | None:
    """The sources in words, the most used first."""
    used = Counter(int(s) for s in counts.source if s >= 0)
    return ", ".join(tokens.SOURCES[s] for s, _ in used.most_common()) or None


def _estimated_share(counts: tokens.TokenCounts, table: trace.Trace, t0_ns: int, t1_ns: int) -> float:
    """Of the window's tokens, the share that was not counted by the server."""
    inside = (table.t_ns >= t0_ns) & (table.t_ns < t1_ns)
    total = float(table.k[inside].sum())
    return float(table.k[inside & counts.estimated[table.request]].sum()) / total if total > 0 else 0.0


def _ended_so(samples: Samples, outcome: int, t0_ns: int, t1_ns: int) -> int:
    return int(((samples.outcome == outcome) & (samples.end_ns >= t0_ns) & (samples.end_ns < t1_ns)).sum())


def _cached(samples: Samples, table: trace.Trace, t0_ns: int, t1_ns: int) -> float | str:
    """Mean cached count of the requests sent after the launch whose first token fell in the window, else of all in
    it."""
    seen = (table.first_ns >= t0_ns) & (table.first_ns < t1_ns) & (samples.cached_tokens >= 0)
    if not seen.any():
        return "no request that began in the window reported a cached count"
    later = seen & (samples.round > 0)
    return float(samples.cached_tokens[later if later.any() else seen].mean())


def _lengths(samples: Samples, counts: tokens.TokenCounts) -> tuple[float | str, float | str]:
    """Mean tokens asked and really generated (with hidden reasoning) over the requests that ended well."""
    done = (samples.outcome == OK) & (samples.asked_tokens > 0)
    if not done.any():
        return "no request ended", "no request ended"
    rows, owner = tokens.arrival_requests(samples)
    own = np.bincount(owner, counts.tokens[rows], samples.requests) + counts.hidden
    return float(samples.asked_tokens[done].mean()), float(own[done].mean())


def _loops(samples: Samples) -> float | str:
    if samples.texts is None:
        return "the texts were not kept"
    step = max(1, len(samples.texts) // _LOOKED_AT)
    return looping.looping_share(samples.texts[::step])
