"""The entry points: samples and polls of a cell in, its figures and the facts for its verdict out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from flatout.engines.base import Live
from flatout.load.job import SelfCheck
from flatout.load.samples import CUT, FAILED, OK, REFUSED, Samples
from flatout.measure import checks, interval, latency, looping, pauses, tokens, trace, trend, window
from flatout.measure.arrivals import joined
from flatout.measure.figures import (
    Acceptance,
    BurstFigures,
    DecodeFigures,
    Distribution,
    Number,
    PrefillFigures,
    PrefillSample,
    Rate,
    Series,
)
from flatout.measure.percentile import distribution, with_intervals
from flatout.measure.verdict import LEAST_PREFILLS, DecodeFacts, PrefillFacts

I64 = npt.NDArray[np.int64]

_LOOKED_AT: Final = 256
"""Answers checked for loops, evenly chosen."""


def decode_figures(
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
) -> DecodeFigures:
    """Figures of a decode cell over the window [t_open, t_close) ns of CLOCK_MONOTONIC.

    `samples`: every request since the launch. `retokenised`: request row -> tokens of its text. `looks`: how many ends
    the window could have had. `precision`: the suite's target; twice that is the least change called drift.
    `idle_before`, `idle_after`: counters while idle, with nothing but `samples` between. `run_tokens_per_byte`: see
    `tokens.count`. Raises ValueError for an empty
    window.
    """
    if t_close_ns <= t_open_ns:
        raise ValueError("the window must end after it opens")
    t0, t1 = t_open_ns, t_close_ns
    seconds = (t1 - t0) / 1e9
    counts = tokens.count(samples, retokenised=retokenised, run_tokens_per_byte=run_tokens_per_byte)
    table = trace.build(samples, counts)
    bins = window.pace_bins(table, samples, t0, t1, interval.BINS)
    paused = pauses.pause_share(table, samples, t0, t1)
    bin_s = seconds / interval.BINS
    arrived = window.tokens_between(table, t0, t1)
    total = interval.rate_interval(bins, bin_s=bin_s, value=arrived / seconds, paused=paused, looks=looks)
    pace = trend.batches(bins / bin_s)
    speeds = _speeds(samples, table, t0, t1)
    return DecodeFigures(
        t_open_ns=t0,
        t_close_ns=t1,
        window_s=seconds,
        total_tok_s=total,
        window_tokens=arrived,
        all_tokens=float(counts.tokens.sum()),
        token_sources=_sources(counts),
        estimated_share=_estimated_share(counts, table, t0, t1),
        hidden_reasoning_tokens=int(counts.hidden.sum()),
        mean_depth_tokens=window.mean_depth(samples, table, context_tokens, t0, t1),
        drift=trend.drift(pace, least_change=2.0 * precision),
        modes=trend.modes(pace, least=3, least_run=3),
        looping_share=_loops(samples),
        counts=checks.count_pairs(samples, counts, speeds["request_tok_s"].value, idle_before, idle_after),
        tok_s_series=window.rate_series(table, t0, t1),
        **speeds,
        **_requests(samples, counts, table, t0, t1),
        **_server(live, t0, t1),
    )


class _Speeds(TypedDict):
    ttft_answer_ms: Distribution | None
    ttft_ms: Distribution
    ttft_of: Literal["restarts", "launch"] | None
    tpot_ms: Distribution
    itl_ms: Distribution
    request_tok_s: Rate
    longest_gap_ms: float | None
    longest_gap_open: bool
    connect_ms: Number


def _speeds(samples: Samples, table: trace.Trace, t0: int, t1: int) -> _Speeds:
    parts = latency.parts(samples, joined(table), t0, t1)
    ttft, ttft_of = latency.ttft(samples, table, t0, t1)
    answer = latency.first_answer(samples, t0, t1)
    tpot = latency.tpot(parts, t0, t1)
    gap_ms, gap_open = latency.longest_gap(samples, table, t0, t1)
    return _Speeds(
        ttft_ms=ttft,
        ttft_of=ttft_of,
        ttft_answer_ms=answer,
        tpot_ms=tpot,
        itl_ms=latency.itl(parts, t0, t1),
        request_tok_s=latency.request_rate(tpot),
        longest_gap_ms=gap_ms,
        longest_gap_open=gap_open,
        connect_ms=latency.connect_ms(samples),
    )


class _Requests(TypedDict):
    own_active: Number
    own_decoding: Number
    streams_started: int
    completed: int
    failed: int
    refused: int
    cut: int
    prompt_tokens: tuple[int, int] | None
    cached_tokens: Number
    finished: int
    asked_mean: Number
    output_mean: Number
    restart_idle_share: float


def _requests(samples: Samples, counts: tokens.TokenCounts, table: trace.Trace, t0: int, t1: int) -> _Requests:
    asked, output = _lengths(samples, counts)
    return _Requests(
        own_active=Number(window.own_active(samples, t0, t1)),
        own_decoding=Number(window.own_decoding(samples, table, t0, t1)),
        streams_started=len(np.unique(samples.stream[(table.first_ns >= 0) & (table.first_ns < t0)])),
        completed=window.completed(samples, t0, t1),
        failed=_ended_so(samples, FAILED, t0, t1),
        refused=_ended_so(samples, REFUSED, t0, t1),
        cut=_open_at_end(samples, t0, t1),
        prompt_tokens=_span(samples.prompt_tokens),
        cached_tokens=_cached(samples, table, t0, t1),
        finished=int((samples.outcome == OK).sum()),
        asked_mean=asked,
        output_mean=output,
        restart_idle_share=window.restart_idle_share(samples, t0, t1),
    )


class _Server(TypedDict):
    server_running: Number
    server_waiting: Number
    kv_use: Number
    kv_use_max: Number
    acceptance: Acceptance
    preemptions: Number
    running_series: Series
    waiting_series: Series


def _server(live: Sequence[Live], t0: int, t1: int) -> _Server:
    return _Server(
        server_running=window.gauge_mean(live, "running", t0, t1),
        server_waiting=window.gauge_mean(live, "waiting", t0, t1),
        kv_use=window.gauge_mean(live, "kv_use", t0, t1),
        kv_use_max=window.gauge_max(live, "kv_use", t0, t1),
        acceptance=window.acceptance(live, t0, t1),
        preemptions=window.counter_delta(live, "preemptions_total", t0, t1),
        running_series=window.gauge_series(live, "running", t0, t1),
        waiting_series=window.gauge_series(live, "waiting", t0, t1),
    )


def prefill_figures(
    samples: Samples,
    *,
    prompt_tokens: int | None = None,
    head_tokens: int = 0,
    block_tokens: int = 1,
    retokenised: Mapping[int, int] | None = None,
) -> PrefillFigures:
    """Figures of cold prompts that were sent one after the other, each alone on the server; one row of `samples` each.

    Prefill tok/s = (prompt - cached) / TTFT (DESIGN's table). `prompt_tokens`: used where the server counts none.
    `head_tokens` + `block_tokens`: what may be cached of a cold prompt (the template's head and one cache block).
    """
    table = trace.build(samples, tokens.count(samples, retokenised=retokenised))
    rows = [r for r in range(samples.requests) if samples.outcome[r] != REFUSED]
    found = [
        _prefill_sample(samples, r, int(table.first_ns[r]), prompt_tokens, head_tokens + block_tokens) for r in rows
    ]
    cold = [s for s in found if s.counted]
    usable = cold or [s for s in found if s.tok_s is not None]
    rates = [s.tok_s for s in usable if s.tok_s is not None]
    rate = interval.between_repeats(rates)
    if rate.value is not None and len(rates) < LEAST_PREFILLS:
        rate = Rate(rate.value, reason=f"{len(rates)} prompts are too few for an interval", n=len(rates))
    return PrefillFigures(
        tok_s=rate,
        ttft_ms=_cold_ttft([s.ttft_ms for s in usable if s.ttft_ms is not None]),
        samples=tuple(found),
        counted=len(cold),
        warm=sum(1 for s in found if s.tok_s is not None and not s.counted),
        unverified=sum(1 for s in cold if s.cached_tokens is None),
        failed=sum(1 for s in found if s.ttft_ms is None),
    )


def _cold_ttft(times_ms: Sequence[float]) -> Distribution:
    """TTFT of prompts, each alone on the server, with p50's interval as the rate's: Student's, of three or more."""
    found = distribution(times_ms, empty="no prompt was answered with a token", what="prompts")
    middle = interval.between_repeats(times_ms)
    ends: dict[str, tuple[float, float] | str] = {
        name: order or f"needs {interval.least_independent(q)} prompts, has {found.n}"
        for name, q in zip(latency.NAMES, latency.QUANTILES, strict=True)
        for order in [interval.order_interval(times_ms, q)]
    }
    if found.n < LEAST_PREFILLS or middle.low is None or middle.high is None:
        ends["p50"] = f"needs {LEAST_PREFILLS} prompts, has {found.n}"
    else:
        ends["p50"] = (middle.low, middle.high)
    return with_intervals(found, ends)


def _prefill_sample(samples: Samples, r: int, first_ns: int, typed: int | None, allowed: int) -> PrefillSample:
    connect = float(samples.connect_ns[r]) / 1e6 if samples.connect_ns[r] >= 0 else None
    told = int(samples.prompt_tokens[r])
    prompt = told if told >= 0 else typed
    cached = int(samples.cached_tokens[r]) if samples.cached_tokens[r] >= 0 else None
    if first_ns < 0 or samples.outcome[r] == FAILED:
        error = int(samples.error[r])
        words = samples.error_texts[error] if error >= 0 else "no token came"
        return PrefillSample(None, prompt if told >= 0 else None, cached, None, connect, False, words)
    ttft_ns = first_ns - int(samples.send_ns[r])
    if prompt is None or ttft_ns <= 0:
        reason = (
            "the length of the prompt is not known" if prompt is None else "the first token came before the request"
        )
        return PrefillSample(ttft_ns / 1e6, prompt, cached, None, connect, False, reason)
    rate = max(prompt - (cached or 0), 0) / (ttft_ns / 1e9)
    if cached is not None and cached > allowed:
        reason = f"{cached} of {prompt} tokens were cached, at most {allowed} may be"
        return PrefillSample(ttft_ns / 1e6, prompt, cached, rate, connect, False, reason)
    if told < 0:
        reason = f"the server counts no prompt tokens: the rate is made with the {prompt} that were asked for"
        return PrefillSample(ttft_ns / 1e6, None, cached, rate, connect, True, reason, estimated=True)
    return PrefillSample(ttft_ns / 1e6, prompt, cached, rate, connect, True)


def burst_figures(samples: Samples, *, retokenised: Mapping[int, int] | None = None) -> BurstFigures:
    """Figures of a fixed number of requests, all sent at once, from the first send to the last end.

    End-to-end rate = tokens / (last end - first send): the ramp and the drain are part of it, by definition.
    """
    counts = tokens.count(samples, retokenised=retokenised)
    table = trace.build(samples, counts)
    ran = (samples.outcome != REFUSED) & (samples.send_ns >= 0)
    t0 = int(samples.send_ns[ran].min()) if ran.any() else 0
    t1 = int(max(samples.end_ns[ran].max(initial=0), table.t_ns.max(initial=0)))
    span = t1 > t0 and bool(ran.any())
    t1 = max(t1, t0 + 1)
    found = float(counts.tokens.sum())
    parts = latency.parts(samples, joined(table), t0, t1 + 1)
    tpot = latency.tpot(parts, t0, t1 + 1)
    gap_ms, gap_open = latency.longest_gap(samples, table, t0, t1 + 1)
    asked, output = _lengths(samples, counts)
    one = "a burst is one sample: repeat it for an interval"
    return BurstFigures(
        requests=int(ran.sum()),
        finished=int((samples.outcome == OK).sum()),
        failed=int((samples.outcome == FAILED).sum()),
        refused=int((samples.outcome == REFUSED).sum()),
        wall_s=Number((t1 - t0) / 1e9) if span else Number(None, "no request was sent"),
        total_tok_s=Rate(found / ((t1 - t0) / 1e9), reason=one, n=1) if span else Rate(None, reason="no request ended"),
        request_tok_s=latency.request_rate(tpot),
        ttft_ms=latency.all_ttft(samples, table),
        tpot_ms=tpot,
        itl_ms=latency.itl(parts, t0, t1 + 1),
        longest_gap_ms=gap_ms,
        longest_gap_open=gap_open,
        connect_ms=latency.connect_ms(samples),
        tokens=found,
        token_sources=_sources(counts),
        estimated_share=_estimated_share(counts, table, t0, t1 + 1),
        hidden_reasoning_tokens=int(counts.hidden.sum()),
        own_active=Number(window.own_active(samples, t0, t1)) if span else Number(None, "no request was sent"),
        asked_mean=asked,
        output_mean=output,
        looping_share=_loops(samples),
        counts=checks.count_pairs(samples, counts, None, None, None),
        tok_s_series=window.rate_series(table, t0, t1 + 1),
    )


def decode_facts(
    figures: DecodeFigures,
    *,
    asked_concurrency: int,
    max_running: int | None = None,
    cache_wanted: Literal["warm", "cold"] | None = None,
    expected_cached_tokens: int | None = None,
    exact_length_asked: bool = False,
    self_checks: Sequence[SelfCheck] = (),
    throttle_reasons: Sequence[str] = (),
    error: str | None = None,
    unsteady_reason: str | None = None,
) -> DecodeFacts:
    """The facts that `decode_verdict` weighs, from a cell's figures and what only the run knows."""
    return DecodeFacts(
        asked_concurrency=asked_concurrency,
        max_running=max_running,
        window_tokens=figures.window_tokens,
        streams_started=figures.streams_started,
        own_active=figures.own_active.value,
        server_running=figures.server_running.value,
        server_waiting=figures.server_waiting.value,
        failed=figures.failed,
        refused=figures.refused,
        cache_wanted=cache_wanted,
        cached_tokens=figures.cached_tokens.value,
        expected_cached_tokens=expected_cached_tokens,
        exact_length_asked=exact_length_asked,
        finished=figures.finished,
        asked_mean_tokens=figures.asked_mean.value,
        output_mean_tokens=figures.output_mean.value,
        tok_s_half_width=figures.total_tok_s.relative_half_width,
        tok_s_reason=figures.total_tok_s.reason,
        missing_latency=_missing_latency(figures.ttft_ms, figures.itl_ms),
        restart_idle_share=figures.restart_idle_share,
        self_checks=tuple(self_checks),
        throttle_reasons=tuple(throttle_reasons),
        drift=figures.drift,
        modes=figures.modes,
        preemptions=figures.preemptions.value,
        estimated_share=figures.estimated_share,
        token_sources=figures.token_sources,
        counts=figures.counts,
        looping_share=figures.looping_share.value,
        error=error,
        unsteady_reason=unsteady_reason,
    )


def prefill_facts(
    figures: PrefillFigures,
    *,
    self_checks: Sequence[SelfCheck] = (),
    throttle_reasons: Sequence[str] = (),
    error: str | None = None,
) -> PrefillFacts:
    """The facts that `prefill_verdict` weighs."""
    warm = [s.cached_tokens for s in figures.samples if not s.counted and s.cached_tokens is not None]
    return PrefillFacts(
        counted=figures.counted,
        warm=figures.warm,
        unverified=figures.unverified,
        failed=figures.failed,
        measured=figures.tok_s.value is not None,
        cached_most=max(warm, default=None),
        tok_s_half_width=figures.tok_s.relative_half_width,
        estimated_share=_share([s.estimated for s in figures.samples if s.counted]),
        self_checks=tuple(self_checks),
        throttle_reasons=tuple(throttle_reasons),
        error=error,
    )


def burst_facts(
    figures: BurstFigures,
    *,
    exact_length_asked: bool = False,
    self_checks: Sequence[SelfCheck] = (),
    throttle_reasons: Sequence[str] = (),
    error: str | None = None,
) -> DecodeFacts:
    """The facts that `decode_verdict` weighs for a burst: nothing about steadiness, which a burst does not claim."""
    return DecodeFacts(
        asked_concurrency=figures.requests,
        window_tokens=figures.tokens,
        failed=figures.failed,
        refused=figures.refused,
        exact_length_asked=exact_length_asked,
        finished=figures.finished,
        asked_mean_tokens=figures.asked_mean.value,
        output_mean_tokens=figures.output_mean.value,
        missing_latency=_missing_latency(figures.ttft_ms, figures.itl_ms),
        self_checks=tuple(self_checks),
        throttle_reasons=tuple(throttle_reasons),
        estimated_share=figures.estimated_share,
        token_sources=figures.token_sources,
        counts=figures.counts,
        looping_share=figures.looping_share.value,
        error=error,
    )


def _share(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks) if marks else 0.0


def _missing_latency(ttft: Distribution, itl: Distribution) -> str | None:
    if ttft.p50 is None:
        return f"TTFT has no median: {ttft.reasons.get('p50', 'no sample')}"
    if itl.p50 is None:
        return f"the time between tokens has no median: {itl.reasons.get('p50', 'no sample')}"
    return None


def _sources(counts: tokens.TokenCounts) -> tuple[str, ...]:
    used = Counter(int(s) for s in counts.source if s >= 0)
    return tuple(tokens.SOURCES[s] for s, _ in used.most_common())


def _estimated_share(counts: tokens.TokenCounts, table: trace.Trace, t0_ns: int, t1_ns: int) -> float:
    inside = (table.t_ns >= t0_ns) & (table.t_ns < t1_ns)
    total = float(table.k[inside].sum())
    return float(table.k[inside & counts.estimated[table.request]].sum()) / total if total > 0 else 0.0


def _ended_so(samples: Samples, outcome: int, t0_ns: int, t1_ns: int) -> int:
    return int(((samples.outcome == outcome) & (samples.end_ns >= t0_ns) & (samples.end_ns < t1_ns)).sum())


def _open_at_end(samples: Samples, t0_ns: int, t1_ns: int) -> int:
    sent = (samples.send_ns >= 0) & (samples.send_ns < t1_ns) & (samples.outcome != REFUSED)
    closed_by_us = (samples.outcome == CUT) & (samples.end_ns >= t0_ns) & (samples.end_ns < t1_ns)
    return int((sent & ((samples.end_ns < 0) | (samples.end_ns >= t1_ns) | closed_by_us)).sum())


def _span(values: npt.NDArray[np.int32]) -> tuple[int, int] | None:
    told = values[values >= 0]
    return (int(told.min()), int(told.max())) if len(told) else None


def _cached(samples: Samples, table: trace.Trace, t0_ns: int, t1_ns: int) -> Number:
    """Mean cached count of the requests sent after the launch whose first token fell in the window, else of all in
    it."""
    seen = (table.first_ns >= t0_ns) & (table.first_ns < t1_ns) & (samples.cached_tokens >= 0)
    if not seen.any():
        return Number(None, "no request that began in the window reported a cached count")
    later = seen & (samples.round > 0)
    return Number(float(samples.cached_tokens[later if later.any() else seen].mean()))


def _lengths(samples: Samples, counts: tokens.TokenCounts) -> tuple[Number, Number]:
    """Mean tokens asked and really generated (with hidden reasoning) over the requests that ended well."""
    done = (samples.outcome == OK) & (samples.asked_tokens > 0)
    if not done.any():
        return Number(None, "no request ended"), Number(None, "no request ended")
    rows, owner = tokens.arrival_requests(samples)
    own = np.bincount(owner, counts.tokens[rows], samples.requests) + counts.hidden
    return Number(float(samples.asked_tokens[done].mean())), Number(float(own[done].mean()))


def _loops(samples: Samples) -> Number:
    if samples.texts is None:
        return Number(None, "the texts were not kept")
    step = max(1, len(samples.texts) // _LOOKED_AT)
    return looping.looping_share(samples.texts[::step])
