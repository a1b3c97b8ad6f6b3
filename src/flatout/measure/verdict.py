"""Can the number be believed? Facts about a cell in, its status and flags out; every threshold stands here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from flatout.flags import DOUBTFUL_FLAGS, Flag, Status
from flatout.load.job import SelfCheck
from flatout.measure.figures import CountPair, Drift, Modes

CONTAMINATED_BY: Final = 1.05
"""Window mean of running over asked (DESIGN, "Isolation")."""
QUEUED_FROM: Final = 0.5
"""Window mean of waiting requests (DESIGN, "Room")."""
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
LEAST_PREFILLS: Final = 3

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
class Note:
    """One flag of one cell, with a sentence that holds its figures."""

    flag: Flag
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason`: why the status is not `valid`, or what else a reader must know; None if there is nothing to say."""

    status: Status
    notes: tuple[Note, ...] = ()
    reason: str | None = None

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(note.flag for note in self.notes)


@dataclass(frozen=True, slots=True)
class DecodeFacts:
    """What is known about a decode cell; None is unknown. Units in the names; means are over the window.

    `tok_s_half_width`: half the 95 % interval relative to the rate. `throttle_reasons`: of the sensors, in the window.
    `restarts`: streams ask again when a request ends (not so in a burst). `unsteady_reason`: why the load did not
    become steady. `exact_length_asked`: the server was told to ignore the end
    token. `expected_cached_tokens`: what the warm-up saw (wanted warm), or what may be cached at most (wanted cold).
    """

    asked_concurrency: int
    max_running: int | None = None
    window_tokens: float | None = None
    streams_started: int | None = None
    own_active: float | None = None
    server_running: float | None = None
    server_waiting: float | None = None
    failed: int = 0
    refused: int = 0
    restarts: bool = True
    cache_wanted: Literal["warm", "cold"] | None = None
    cached_tokens: float | None = None
    expected_cached_tokens: int | None = None
    exact_length_asked: bool = False
    finished: int = 0
    asked_mean_tokens: float | None = None
    output_mean_tokens: float | None = None
    tok_s_half_width: float | None = None
    tok_s_reason: str | None = None
    missing_latency: str | None = None
    restart_idle_share: float | None = None
    self_checks: tuple[SelfCheck, ...] = ()
    throttle_reasons: tuple[str, ...] = ()
    drift: Drift | None = None
    modes: Modes | None = None
    preemptions: float | None = None
    estimated_share: float = 0.0
    token_sources: tuple[str, ...] = ()
    counts: tuple[CountPair, ...] = ()
    looping_share: float | None = None
    error: str | None = None
    unsteady_reason: str | None = None


@dataclass(frozen=True, slots=True)
class PrefillFacts:
    """What is known about a prefill row; see PrefillFigures."""

    counted: int
    warm: int
    unverified: int
    failed: int
    measured: bool
    cached_most: int | None = None
    tok_s_half_width: float | None = None
    self_checks: tuple[SelfCheck, ...] = ()
    throttle_reasons: tuple[str, ...] = ()
    estimated_share: float = 0.0
    error: str | None = None


def contaminated(server_running_mean: float | None, asked: int) -> bool:
    """Whether the server ran over 5 % more requests than asked, in the mean over the window."""
    return server_running_mean is not None and server_running_mean > CONTAMINATED_BY * asked


def decode_verdict(facts: DecodeFacts) -> Verdict:
    """Status and flags of a decode cell, or of a burst."""
    notes = tuple(_decode_notes(facts))
    if facts.error is not None:
        return Verdict(Status.FAILED, notes, facts.error)
    if facts.unsteady_reason is not None:
        return Verdict(Status.NO_STEADY_STATE, notes, facts.unsteady_reason)
    running = _can_run(facts)
    if facts.streams_started is not None and facts.streams_started < running:
        late = f"only {facts.streams_started} of {running} streams had a token when the window opened"
        return Verdict(Status.NO_STEADY_STATE, notes, late)
    if facts.window_tokens is not None and facts.window_tokens <= 0:
        return Verdict(Status.FAILED, notes, "not one token arrived in the window")
    troubles = _troubles(facts)
    doubts = [note.detail for note in notes if note.flag in DOUBTFUL_FLAGS]
    if doubts:
        return Verdict(Status.DOUBTFUL, notes, "; ".join(doubts + troubles))
    queued = _queued(facts)
    if queued:
        return Verdict(Status.REQUESTS_QUEUED, notes, "; ".join([queued, *troubles]))
    return Verdict(Status.VALID, notes, "; ".join(troubles) or None)


def prefill_verdict(facts: PrefillFacts) -> Verdict:
    """Status and flags of a prefill row."""
    notes: list[Note] = []
    if facts.warm and facts.counted < LEAST_PREFILLS:
        most = "" if facts.cached_most is None else f" (up to {facts.cached_most} tokens)"
        notes.append(Note(Flag.CACHE_WARM, f"{facts.warm} prompts were partly cached{most} although never sent before"))
    if facts.unverified:
        notes.append(Note(Flag.COLD_UNVERIFIED, f"{facts.unverified} prompts came back without a cached count"))
    if facts.tok_s_half_width is not None and facts.tok_s_half_width > WIDE_PREFILL:
        notes.append(Note(Flag.LOW_SAMPLES, f"prefill tok/s is known to ±{facts.tok_s_half_width:.0%} only"))
    elif facts.counted < LEAST_PREFILLS:
        notes.append(Note(Flag.LOW_SAMPLES, f"{facts.counted} cold prompts were measured, {LEAST_PREFILLS} are wanted"))
    if facts.estimated_share > 0:
        text = f"{facts.estimated_share:.0%} of the prompts were not counted by the server"
        notes.append(Note(Flag.TOKENS_ESTIMATED, f"{text}: their rate is made with the length that was asked for"))
    client = [text for check in facts.self_checks for text in client_limits(check)]
    if client:
        notes.append(Note(Flag.CLIENT_LIMITED, "; ".join(dict.fromkeys(client))))
    if facts.throttle_reasons:
        notes.append(_throttled(facts.throttle_reasons))
    kept = tuple(notes)
    if facts.error is not None:
        return Verdict(Status.FAILED, kept, facts.error)
    if not facts.measured:
        return Verdict(Status.FAILED, kept, "no prompt was answered with a token")
    failed = f"{facts.failed} prompts failed" if facts.failed else None
    doubts = [note.detail for note in kept if note.flag in DOUBTFUL_FLAGS]
    if doubts:
        return Verdict(Status.DOUBTFUL, kept, "; ".join(doubts + ([failed] if failed else [])))
    return Verdict(Status.VALID, kept, failed)


def _can_run(facts: DecodeFacts) -> int:
    """Requests that the server can run of those asked: its limit or, where it does not tell one but lets requests wait,
    what it ran."""
    limit = facts.max_running
    if limit is None and (facts.server_waiting or 0.0) >= QUEUED_FROM and facts.server_running is not None:
        limit = int(facts.server_running)
    return facts.asked_concurrency if limit is None else min(facts.asked_concurrency, limit)


def _queued(facts: DecodeFacts) -> str | None:
    ran = "" if facts.server_running is None else f"; {facts.server_running:.1f} really ran"
    if facts.max_running is not None and facts.asked_concurrency > facts.max_running:
        return f"{facts.asked_concurrency} requests were sent, the server runs {facts.max_running} at once{ran}"
    if facts.server_waiting is not None and facts.server_waiting >= QUEUED_FROM:
        return f"{facts.server_waiting:.1f} of {facts.asked_concurrency} requests waited in the mean{ran}"
    return None


def _troubles(facts: DecodeFacts) -> list[str]:
    """Fault L5: what was sent again because it failed is said, never hidden."""
    found = []
    if facts.failed and facts.restarts:
        found.append(f"{facts.failed} requests failed in the window and their streams started again")
    elif facts.failed:
        found.append(f"{facts.failed} of {facts.asked_concurrency} requests failed")
    if facts.refused:
        found.append(f"{facts.refused} requests were refused (429 or 503) and sent again")
    return found


def _decode_notes(facts: DecodeFacts) -> Iterator[Note]:
    if contaminated(facts.server_running, facts.asked_concurrency):
        more = f"the server ran {facts.server_running:.2f} requests in the mean, {facts.asked_concurrency} were asked"
        yield Note(Flag.CONTAMINATED, more)
    yield from _fill_notes(facts)
    yield from _cache_notes(facts)
    yield from _length_notes(facts)
    yield from _sample_notes(facts)
    client = [text for check in facts.self_checks for text in client_limits(check)]
    if facts.restart_idle_share is not None and facts.restart_idle_share > RESTART_IDLE:
        client.append(f"streams waited {facts.restart_idle_share:.1%} of the time for the client to send again")
    if client:
        yield Note(Flag.CLIENT_LIMITED, "; ".join(dict.fromkeys(client)))
    if facts.throttle_reasons:
        yield _throttled(facts.throttle_reasons)
    yield from _change_notes(facts)
    if facts.preemptions:
        yield Note(Flag.PREEMPTED, f"{facts.preemptions:.0f} requests were preempted in the window")
    if facts.estimated_share > 0:
        named = ", ".join(facts.token_sources)
        yield Note(Flag.TOKENS_ESTIMATED, f"{facts.estimated_share:.1%} of the tokens are estimated (sources: {named})")
    differing = [text for pair in facts.counts if (text := disagreement(pair))]
    if differing:
        yield Note(Flag.COUNTERS_DISAGREE, "; ".join(differing))
    if facts.looping_share is not None and facts.looping_share >= LOOPING_FROM:
        yield Note(Flag.LOOPING, f"{facts.looping_share:.0%} of the answers repeat one piece word for word")


def _fill_notes(facts: DecodeFacts) -> Iterator[Note]:
    asked = facts.asked_concurrency
    if facts.own_active is not None and facts.own_active < OWN_FILL * asked:
        yield Note(Flag.UNDERFILLED, f"{facts.own_active:.2f} requests were in flight in the mean, {asked} were asked")
    elif (
        facts.server_running is not None
        and facts.server_running < SERVER_FILL * _can_run(facts)
        and (facts.server_waiting is None or facts.server_waiting < QUEUED_FROM)
    ):
        yield Note(
            Flag.UNDERFILLED, f"the server ran {facts.server_running:.2f} in the mean, it could run {_can_run(facts)}"
        )


def _cache_notes(facts: DecodeFacts) -> Iterator[Note]:
    cached, expected = facts.cached_tokens, facts.expected_cached_tokens
    if facts.cache_wanted == "warm" and cached is not None and expected and cached < WARM_SHARE * expected:
        yield Note(Flag.CACHE_COLD, f"{cached:.0f} prompt tokens were cached in the mean, {expected} after warming")
    if facts.cache_wanted == "cold" and cached is None:
        yield Note(Flag.COLD_UNVERIFIED, "the server does not tell how much of the prompts was cached")
    elif facts.cache_wanted == "cold" and cached is not None and cached > (expected or 0):
        yield Note(
            Flag.CACHE_WARM, f"{cached:.0f} prompt tokens were cached in the mean, at most {expected or 0} may be"
        )


def _length_notes(facts: DecodeFacts) -> Iterator[Note]:
    """Fault T7: the asked and the real length, over the requests that ended well."""
    asked, got = facts.asked_mean_tokens, facts.output_mean_tokens
    if not facts.finished or asked is None or got is None or got >= (1.0 - EARLY_STOP_SHARE) * asked:
        return
    told = "although told to ignore the end token" if facts.exact_length_asked else "at the model's own end token"
    yield Note(Flag.EARLY_STOP, f"answers ended after {got:.0f} of {asked:.0f} tokens in the mean, {told}")


def _sample_notes(facts: DecodeFacts) -> Iterator[Note]:
    if facts.tok_s_half_width is None and facts.tok_s_reason is not None:
        yield Note(Flag.LOW_SAMPLES, f"total tok/s has no interval: {facts.tok_s_reason}")
    elif facts.tok_s_half_width is not None and facts.tok_s_half_width > WIDE_INTERVAL:
        yield Note(Flag.LOW_SAMPLES, f"total tok/s is known to ±{facts.tok_s_half_width:.0%} only")
    elif facts.missing_latency is not None:
        yield Note(Flag.LOW_SAMPLES, facts.missing_latency)


def _change_notes(facts: DecodeFacts) -> Iterator[Note]:
    if facts.modes is not None:
        low, high, share = facts.modes.low, facts.modes.high, facts.modes.low_share
        text = f"the speed switched between two levels, {low:.4g} tok/s ({share:.0%} of the time) and {high:.4g} tok/s"
        yield Note(Flag.DRIFTING, text)
    elif facts.drift is not None and facts.drift.detected:
        yield Note(Flag.DRIFTING, f"the speed changed by {facts.drift.change:+.1%} over the window")


def _throttled(reasons: tuple[str, ...]) -> Note:
    return Note(Flag.THROTTLED, f"the hardware reported: {', '.join(dict.fromkeys(reasons))}")


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
    found = _pauses(check)
    if check.wall_s > 0 and check.cpu_s / check.wall_s > CPU_FULL:
        found.append(f"the reading process used {check.cpu_s / check.wall_s:.0%} of its core")
    if check.lag_p99_ns is not None and check.lag_p99_ns > LAG_P99_NS:
        found.append(f"1 % of the reads were over {check.lag_p99_ns / 1e6:.0f} ms late")
    worst = max(check.lag_max_ns, default=check.lag_worst_ns or 0)
    if worst > LAG_WORST_NS:
        found.append(f"a read in the window was {worst / 1e6:.0f} ms late")
    if check.clock == "kernel":
        if check.reads and check.merged_reads / check.reads > MERGED_SHARE:
            found.append(f"{check.merged_reads / check.reads:.1%} of the reads took events together that came apart")
        if check.reads and check.unstamped_reads / check.reads > UNSTAMPED_SHARE:
            found.append(f"{check.unstamped_reads / check.reads:.1%} of the reads had no kernel stamp")
        if check.realtime_offset_steps:
            found.append(f"the wall clock was set {check.realtime_offset_steps} times, which moves kernel stamps")
    elif check.gc_longest_ns > USER_PAUSE_NS:
        found.append(f"a garbage collection paused reading for {check.gc_longest_ns / 1e6:.0f} ms")
    return found


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
