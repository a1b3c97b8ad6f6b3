"""The values that measuring yields. The field that holds one names its unit; missing is None with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RateKind = Literal["within this run", "between repeats"]


@dataclass(frozen=True, slots=True)
class Number:
    """One value, or None with the reason."""

    value: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """A speed with its 95 % interval [low, high].

    `kind` says where the interval comes from; None (with `reason`) where none can be claimed. `n`: independent
    samples behind the interval (batches, requests or repeats). `value` None: not measured, see `reason`.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    kind: RateKind | None = None
    reason: str | None = None
    n: int = 0

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width over the value, or None where there is no interval or the value is 0."""
        if self.value is None or self.low is None or self.high is None or self.value <= 0:
            return None
        return (self.high - self.low) / 2 / self.value


@dataclass(frozen=True, slots=True)
class Histogram:
    """`weights[i]` (requests, or tokens where token-weighted) lie in [edges[i], edges[i+1]); edges log-spaced."""

    edges: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of one latency, in the unit that the holding field names.

    `n`: samples (requests, or gaps between arrivals). `censored`: of them, those known only as a lower bound because
    the request was cut. `reasons`: for each of p50, p90, p99, max, mean that is None (or a lower bound), why.
    [p50_low, p50_high]: 95 % interval of p50, None with `reasons["interval"]`; of p90 and p99 likewise, with
    `reasons["p90_interval"]` and `reasons["p99_interval"]`.
    """

    n: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None
    p50_low: float | None = None
    p50_high: float | None = None
    p90_low: float | None = None
    p90_high: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    censored: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)
    histogram: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: value i belongs to the time `t_s[i]` (seconds since the window opened; bins: their
    middle)."""

    t_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Tokens per sequence and verification step. `kind`: from the counters' difference over the window, or the mean of
    the engine's gauge. `draft_share`: accepted / drafted tokens, where both are counted."""

    length: float | None = None
    kind: Literal["counters", "gauge mean"] | None = None
    draft_share: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """`change`: fitted change over the window, relative to its mean rate. `p`: two-sided, corrected for
    autocorrelation. `detected`: significant and large enough to matter."""

    detected: bool
    change: float
    p: float


@dataclass(frozen=True, slots=True)
class Modes:
    """Two levels of speed: their means (the unit of what was given) and the share of samples on the lower one."""

    low: float
    high: float
    low_share: float


@dataclass(frozen=True, slots=True)
class CountPair:
    """Two counts of the same tokens. `slack`: tokens that `theirs` may exceed `ours` by for a known reason (work done
    after a request was cut)."""

    name: str
    ours: float
    theirs: float
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """A decode cell, recomputable from its samples, polls and window.

    `ttft_of`: whose TTFT: restarts in the window, or (fewer than five) the launch's requests. `request_tok_s`: the
    median over requests of 1/TPOT. `longest_gap_open`: the longest silence had not ended: a lower bound.
    `token_sources`: most used first. `estimated_share`: of the window's tokens, not counted by the server.
    `hidden_reasoning_tokens`: billed but not streamed, in no rate. `own_active`, `own_decoding`, `server_running`,
    `server_waiting`, `kv_use`: time-weighted means. `streams_started`: streams with a token before the window opened.
    `completed`, `failed`, `refused`: requests that ended so in the window; `cut`: open at its end or closed by us in
    it. `prompt_tokens`: least and most that the server counted. `cached_tokens`: mean over the window's restarts.
    `finished`, `asked_mean`, `output_mean`: requests of the whole cell that ended well, tokens asked and got.
    `restart_idle_share`: share of the streams' time between an end and the next send.
    """

    t_open_ns: int
    t_close_ns: int
    window_s: float
    total_tok_s: Rate
    request_tok_s: Rate
    ttft_ms: Distribution
    ttft_of: Literal["restarts", "launch"] | None
    ttft_answer_ms: Distribution | None
    tpot_ms: Distribution
    itl_ms: Distribution
    longest_gap_ms: float | None
    longest_gap_open: bool
    connect_ms: Number
    window_tokens: float
    all_tokens: float
    token_sources: tuple[str, ...]
    estimated_share: float
    hidden_reasoning_tokens: int
    own_active: Number
    own_decoding: Number
    server_running: Number
    server_waiting: Number
    kv_use: Number
    kv_use_max: Number
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
    mean_depth_tokens: Number
    restart_idle_share: float
    acceptance: Acceptance
    preemptions: Number
    drift: Drift | None
    modes: Modes | None
    looping_share: Number
    counts: tuple[CountPair, ...]
    tok_s_series: Series
    running_series: Series
    waiting_series: Series


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One prompt sent alone. `counted`: it is in the median; otherwise `reason` says why not. `estimated`: the server
    counted no prompt tokens, so the rate is made with the length that was asked for."""

    ttft_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    tok_s: float | None
    connect_ms: float | None
    counted: bool
    reason: str | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    """A prefill row. `warm`: samples with too much cached (not counted: redo them); `unverified`: counted samples
    whose cached count the server does not tell; `failed`: without a token. With no cold sample, the rate is that of
    warm ones."""

    tok_s: Rate
    ttft_ms: Distribution
    samples: tuple[PrefillSample, ...]
    counted: int
    warm: int
    unverified: int
    failed: int


@dataclass(frozen=True, slots=True)
class BurstFigures:
    """A fixed number of requests, all sent at once, until all are done. `wall_s`: first send to last end."""

    requests: int
    finished: int
    failed: int
    refused: int
    wall_s: Number
    total_tok_s: Rate
    request_tok_s: Rate
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    longest_gap_ms: float | None
    longest_gap_open: bool
    connect_ms: Number
    tokens: float
    token_sources: tuple[str, ...]
    estimated_share: float
    hidden_reasoning_tokens: int
    own_active: Number
    asked_mean: Number
    output_mean: Number
    looping_share: Number
    counts: tuple[CountPair, ...]
    tok_s_series: Series
