"""Can the number be believed? A cell's figures in, its status and flags out; every threshold stands here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flatout import record
from flatout.flags import DOUBTFUL_FLAGS, Flag, Status
from flatout.load.job import SelfCheck
from flatout.measure.cell import LEAST_PREFILLS, Burst, Decode
from flatout.measure.checks import CountPair

CONTAMINATED_BY: Final = 1.05
"""Window mean of running over asked (docs/definitions.md, "Isolation")."""
QUEUED_FROM: Final = 0.5
"""Window mean of waiting requests (docs/definitions.md, "Room")."""
OWN_FILL: Final = 0.95
SERVER_FILL: Final = 0.75
"""Lower than the client's: the server does not count a request while it is parsed, tokenised, prefilled (some) or
handed back, which is a good part of a short answer's time."""
EARLY_STOP_SHARE: Final = 0.01
COUNTS_DIFFER: Final = 0.01
_COUNT_GRAIN = 3.0
"""Tokens that two counts may always differ by: an end token, a first token, one in flight."""
WARM_SHARE: Final = 0.9
"""Of the tokens that the warm-up saw cached."""
LOOPING_FROM: Final = 0.1
WIDE_INTERVAL: Final = 0.05
WIDE_PREFILL: Final = 0.1
"""Of a median of few prompts, whose interval is wide even where they agree."""

# The client could have changed the number if ...
CPU_FULL: Final = 0.95  # ... its one thread had no time left (share of a core over the job),
MERGED_SHARE: Final = 0.02  # ... it read so late that events that came apart share a stamp,
LAG_P99_NS: Final = 250_000_000  # ... it read so late that the server's sends may have blocked on a full socket buffer,
LAG_WORST_NS: Final = 1_000_000_000
USER_PAUSE_NS: Final = 20_000_000  # ... it paused while its own clock made the stamps (no kernel stamps),
PAUSED_SHARE: Final = 0.002  # ... it stood still for so much of the window that joined stamps move p99 (see below),
PAUSE_NS: Final = 50_000_000  # ... or once for so long that it may be the longest gap,
UNSTAMPED_SHARE: Final = 0.01  # ... reads without a kernel stamp are mixed with stamped ones,
RESTART_IDLE: Final = 0.01  # ... or its streams idled between requests.


@dataclass(frozen=True, slots=True)
class Given:
    """What the run knows of a cell beside its figures; None is unknown.

    `running`, `waiting`: means of the server's requests in the window. `expected_cached_tokens`: what the warm-up saw
    (wanted warm), or what may be cached at most (wanted cold). `exact_length_asked`: the server was told to ignore the
    end token. `throttle_reasons`: of the sensors, in the window. `error`: what broke the cell off.
    """

    asked: int
    max_running: int | None = None
    running: float | None = None
    waiting: float | None = None
    cache_wanted: Literal["warm", "cold"] | None = None
    expected_cached_tokens: int | None = None
    exact_length_asked: bool = False
    self_checks: Sequence[SelfCheck] = ()
    throttle_reasons: Sequence[str] = ()
    error: str | None = None

    @property
    def can_run(self) -> int:
        """Requests that the server can run of those asked: its limit or, where it does not tell one but lets requests
        wait, what it ran."""
        limit = self.max_running
        if limit is None and self.running is not None and self.waiting is not None and self.waiting >= QUEUED_FROM:
            limit = int(self.running)
        return self.asked if limit is None else min(self.asked, limit)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason`: why the status is not `valid`, or what else a reader must know; None if there is nothing to say."""

    status: Status
    flags: list[record.Flag]
    reason: str | None = None


def contaminated(server_running_mean: float | None, asked: int) -> bool:
    """Whether the server ran over 5 % more requests than asked, in the mean over the window."""
    return server_running_mean is not None and server_running_mean > CONTAMINATED_BY * asked


def decode_verdict(cell: Decode, given: Given) -> Verdict:
    """Status and flags of a decode cell."""
    figures = cell.figures
    flags = [
        *_fill_flags(figures.active_own_mean, given),
        *_cache_flags(figures.cached_tokens_mean, given),
        *_length_flags(figures.asked_tokens_mean, figures.output_tokens_mean, given),
        *_sample_flags(figures),
        *_machine_flags(given, cell.restart_idle_share),
        *_change_flags(cell),
        *_token_flags(cell.tokens, cell.counts, figures.looping_share),
    ]
    if given.error is None and figures.streams_started is not None and figures.streams_started < given.can_run:
        late = f"only {figures.streams_started} of {given.can_run} streams had a token when the window opened"
        return Verdict(Status.NO_STEADY_STATE, flags, late)
    # What was sent again because it failed is said, never hidden (fault L5).
    failed, refused = figures.failed_requests, figures.rate_limited
    troubles = [f"{failed} requests failed in the window and their streams started again"] if failed else []
    return _weighed(flags, given, figures.output_tokens, troubles, refused)


def burst_verdict(cell: Burst, given: Given) -> Verdict:
    """Status and flags of a burst, which claims no steady state."""
    figures = cell.figures
    flags = [
        *_cache_flags(cell.cached_tokens_mean, given),
        *_length_flags(cell.asked_tokens_mean, cell.output_tokens_mean, given),
        *_latency_flags(figures),
        *_machine_flags(given),
        *_token_flags(cell.tokens, cell.counts, cell.looping_share),
    ]
    failed = figures.failed_requests
    troubles = [f"{failed} of {given.asked} requests failed"] if failed else []
    return _weighed(flags, given, figures.output_tokens, troubles, figures.rate_limited)


def prefill_verdict(figures: record.PrefillFigures, given: Given) -> Verdict:
    """Status and flags of a prefill row."""
    flags = [*_cold_flags(figures), *_machine_flags(given)]
    if given.error is not None:
        return Verdict(Status.FAILED, flags, given.error)
    if figures.prefill_tok_s.value is None:
        return Verdict(Status.FAILED, flags, "no prompt was answered with a token")
    failed = sum(s.ttft_ms is None for s in figures.samples)
    troubles = [f"{failed} prompts failed"] if failed else []
    return _doubtful(flags, troubles) or Verdict(Status.VALID, flags, "; ".join(troubles) or None)


def _weighed(
    flags: list[record.Flag], given: Given, tokens: float | None, troubles: list[str], refused: int
) -> Verdict:
    """The status that flags, errors and waiting requests make. `tokens`: that arrived in the window."""
    if given.error is not None:
        return Verdict(Status.FAILED, flags, given.error)
    if tokens is not None and tokens <= 0:
        return Verdict(Status.FAILED, flags, "not one token arrived in the window")
    if refused:
        troubles = [*troubles, f"{refused} requests were refused (429 or 503) and sent again"]
    queued = _queued(given)
    if queued:
        return _doubtful(flags, troubles) or Verdict(Status.REQUESTS_QUEUED, flags, "; ".join([queued, *troubles]))
    return _doubtful(flags, troubles) or Verdict(Status.VALID, flags, "; ".join(troubles) or None)


def _doubtful(flags: list[record.Flag], troubles: list[str]) -> Verdict | None:
    doubts = [flag.detail for flag in flags if flag.name in DOUBTFUL_FLAGS]
    return Verdict(Status.DOUBTFUL, flags, "; ".join(doubts + troubles)) if doubts else None


def _queued(given: Given) -> str | None:
    ran = "" if given.running is None else f"; {given.running:.1f} really ran"
    if given.max_running is not None and given.asked > given.max_running:
        return f"{given.asked} requests were sent, the server runs {given.max_running} at once{ran}"
    if given.waiting is not None and given.waiting >= QUEUED_FROM:
        return f"{given.waiting:.1f} of {given.asked} requests waited in the mean{ran}"
    return None


def _flag(name: Flag, detail: str) -> record.Flag:
    return record.Flag(name=str(name), detail=detail)


def _cold_flags(figures: record.PrefillFigures) -> Iterator[record.Flag]:
    cold = [s for s in figures.samples if s.used]
    warm = [s for s in figures.samples if s.prefill_tok_s is not None and not s.used]
    if warm and len(cold) < LEAST_PREFILLS:
        cached = [s.cached_tokens for s in warm if s.cached_tokens is not None]
        most = f" (up to {max(cached)} tokens)" if cached else ""
        yield _flag(Flag.CACHE_WARM, f"{len(warm)} prompts were partly cached{most} although never sent before")
    unverified = sum(s.cached_tokens is None for s in cold)
    if unverified:
        yield _flag(Flag.COLD_UNVERIFIED, f"{unverified} prompts came back without a cached count")
    half = figures.prefill_tok_s.relative_half_width
    if half is not None and half > WIDE_PREFILL:
        yield _flag(Flag.LOW_SAMPLES, f"prefill tok/s is known to ±{half:.0%} only")
    elif len(cold) < LEAST_PREFILLS:
        yield _flag(Flag.LOW_SAMPLES, f"{len(cold)} cold prompts were measured, {LEAST_PREFILLS} are wanted")
    uncounted = sum(s.prompt_tokens is None for s in cold)
    if uncounted:
        text = f"{uncounted / len(cold):.0%} of the prompts were not counted by the server"
        yield _flag(Flag.TOKENS_ESTIMATED, f"{text}: their rate is made with the length that was asked for")


def _fill_flags(own: float | None, given: Given) -> Iterator[record.Flag]:
    asked, ran = given.asked, given.running
    if contaminated(ran, asked):
        yield _flag(Flag.CONTAMINATED, f"the server ran {ran:.2f} requests in the mean, {asked} were asked")
    if own is not None and own < OWN_FILL * asked:
        yield _flag(Flag.UNDERFILLED, f"{own:.2f} requests were in flight in the mean, {asked} were asked")
    elif ran is not None and ran < SERVER_FILL * given.can_run and (given.waiting or 0.0) < QUEUED_FROM:
        yield _flag(Flag.UNDERFILLED, f"the server ran {ran:.2f} in the mean, it could run {given.can_run}")


def _cache_flags(cached: float | None, given: Given) -> Iterator[record.Flag]:
    expected = given.expected_cached_tokens or 0
    if given.cache_wanted == "warm" and cached is not None and cached < WARM_SHARE * expected:
        yield _flag(Flag.CACHE_COLD, f"{cached:.0f} prompt tokens were cached in the mean, {expected} after warming")
    if given.cache_wanted == "cold" and cached is None:
        yield _flag(Flag.COLD_UNVERIFIED, "the server does not tell how much of the prompts was cached")
    elif given.cache_wanted == "cold" and cached is not None and cached > expected:
        yield _flag(Flag.CACHE_WARM, f"{cached:.0f} prompt tokens were cached in the mean, at most {expected} may be")


def _length_flags(asked: float | None, got: float | None, given: Given) -> Iterator[record.Flag]:
    """Fault T7: the asked and the real length, over the requests that ended well."""
    if asked is None or got is None or got >= (1.0 - EARLY_STOP_SHARE) * asked:
        return
    why = "although told to ignore the end token" if given.exact_length_asked else "at the model's own end token"
    yield _flag(Flag.EARLY_STOP, f"answers ended after {got:.0f} of {asked:.0f} tokens in the mean, {why}")


def _sample_flags(figures: record.DecodeFigures) -> Iterator[record.Flag]:
    rate = figures.total_tok_s
    half = rate.relative_half_width
    if half is None and rate.reason is not None:
        yield _flag(Flag.LOW_SAMPLES, f"total tok/s has no interval: {rate.reason}")
    elif half is not None and half > WIDE_INTERVAL:
        yield _flag(Flag.LOW_SAMPLES, f"total tok/s is known to ±{half:.0%} only")
    else:
        yield from _latency_flags(figures)


def _latency_flags(figures: record.DecodeFigures | record.BurstFigures) -> Iterator[record.Flag]:
    for name, times in (("TTFT", figures.ttft_ms), ("the time between tokens", figures.itl_ms)):
        if times.p50 is None:
            yield _flag(Flag.LOW_SAMPLES, f"{name} has no median: {times.reasons.get('p50', 'no sample')}")
            return


def _machine_flags(given: Given, restart_idle_share: float | None = None) -> Iterator[record.Flag]:
    client = [text for check in given.self_checks for text in client_limits(check)]
    if restart_idle_share is not None and restart_idle_share > RESTART_IDLE:
        client.append(f"streams waited {restart_idle_share:.1%} of the time for the client to send again")
    if client:
        yield _flag(Flag.CLIENT_LIMITED, "; ".join(dict.fromkeys(client)))
    if given.throttle_reasons:
        yield _flag(Flag.THROTTLED, f"the hardware reported: {', '.join(dict.fromkeys(given.throttle_reasons))}")


def _change_flags(cell: Decode) -> Iterator[record.Flag]:
    change, preempted = cell.figures.drift_change, cell.figures.preemptions
    if cell.modes is not None:
        low, high, share = cell.modes.low, cell.modes.high, cell.modes.low_share
        text = f"the speed switched between two levels, {low:.4g} tok/s ({share:.0%} of the time) and {high:.4g} tok/s"
        yield _flag(Flag.DRIFTING, text)
    elif change is not None:
        yield _flag(Flag.DRIFTING, f"the speed changed by {change:+.1%} over the window")
    if preempted:
        yield _flag(Flag.PREEMPTED, f"{preempted:.0f} requests were preempted in the window")


def _token_flags(
    tokens: record.Tokens, counts: Sequence[CountPair], looping_share: float | None
) -> Iterator[record.Flag]:
    if tokens.estimated_share:
        share = f"{tokens.estimated_share:.1%} of the tokens are estimated"
        yield _flag(Flag.TOKENS_ESTIMATED, f"{share} (sources: {tokens.source or ''})")
    differing = [text for pair in counts if (text := disagreement(pair))]
    if differing:
        yield _flag(Flag.COUNTERS_DISAGREE, "; ".join(differing))
    if looping_share is not None and looping_share >= LOOPING_FROM:
        yield _flag(Flag.LOOPING, f"{looping_share:.0%} of the answers repeat one piece word for word")


def disagreement(pair: CountPair) -> str | None:
    """A sentence if the two counts differ by over 1 % (and three tokens), beyond the known slack; else None."""
    low, high = pair.theirs - pair.slack, pair.theirs
    off = max(pair.ours - high, low - pair.ours, 0.0)
    if off <= max(COUNTS_DIFFER * max(pair.ours, pair.theirs), _COUNT_GRAIN):
        return None
    share = off / max(pair.ours, pair.theirs)
    return f"{pair.name}: {pair.ours:.0f} against {pair.theirs:.0f} tokens ({share:.1%} apart)"


def client_limits(check: SelfCheck) -> list[str]:
    """What about the load process could have changed the number, one sentence each.

    With kernel stamps a late read moves no stamp; it counts once events share one, or the server may have had to wait.
    """
    limits = _pauses(check)
    if check.wall_s > 0 and check.cpu_s / check.wall_s > CPU_FULL:
        limits.append(f"the reading process used {check.cpu_s / check.wall_s:.0%} of its core")
    if check.lag_p99_ns is not None and check.lag_p99_ns > LAG_P99_NS:
        limits.append(f"1 % of the reads were over {check.lag_p99_ns / 1e6:.0f} ms late")
    worst = max(check.lag_max_ns, default=check.lag_worst_ns or 0)
    if worst > LAG_WORST_NS:
        limits.append(f"a read in the window was {worst / 1e6:.0f} ms late")
    if check.clock == "kernel":
        if check.reads and check.merged_reads / check.reads > MERGED_SHARE:
            limits.append(f"{check.merged_reads / check.reads:.1%} of the reads took events together that came apart")
        if check.reads and check.unstamped_reads / check.reads > UNSTAMPED_SHARE:
            limits.append(f"{check.unstamped_reads / check.reads:.1%} of the reads had no kernel stamp")
        if check.realtime_offset_steps:
            limits.append(f"the wall clock was set {check.realtime_offset_steps} times, which moves kernel stamps")
    elif check.gc_longest_ns > USER_PAUSE_NS:
        limits.append(f"a garbage collection paused reading for {check.gc_longest_ns / 1e6:.0f} ms")
    return limits


def _pauses(check: SelfCheck) -> list[str]:
    """With kernel stamps a pause moves a stamp only where a request's several events waited in it: they share that of
    the last, and their gaps become one mean. So a share s of the time moves ranks by s at most (p99 at 0.2 %: to one
    between 98.8 and 99.2), the rate by s where the pause lies over the window's border, and p50 by too little to tell.
    """
    kernel = check.clock == "kernel"
    listed = list(zip(check.pause_ns, check.pause_merged, strict=True))
    harmful = [(length, merged) for length, merged in listed if merged or not kernel]
    unlisted_ns = check.pauses_total_ns - sum(check.pause_ns)
    total_ns = unlisted_ns + sum(length for length, _ in harmful)
    longest_ns = max((length for length, _ in harmful), default=0)
    span_s = check.watched_s or check.wall_s
    if not total_ns or span_s <= 0 or (total_ns / 1e9 / span_s <= PAUSED_SHARE and longest_ns < PAUSE_NS):
        return []
    times = len(harmful) + check.pauses - len(listed)
    joined = sum(merged for _, merged in harmful)
    what = f"{joined} events took the time of a later one" if kernel else "what came in it was stamped late"
    return [
        f"the reading process stood still {times} times, for {total_ns / 1e6:.0f} ms of {span_s:.1f} s "
        f"({longest_ns / 1e6:.0f} ms at the longest), and {what}: give it a core that nothing else uses (--load-cores)"
    ]
