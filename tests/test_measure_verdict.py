"""Can the number be believed? Each flag alone on a cell that is otherwise clean, and the order of statuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from flatout.flags import Flag, Status
from flatout.load.job import SelfCheck
from flatout.measure.cell import Decode
from flatout.measure.checks import CountPair
from flatout.measure.trend import Modes
from flatout.measure.verdict import (
    Given,
    Verdict,
    client_limits,
    contaminated,
    decode_verdict,
    disagreement,
    prefill_verdict,
)
from flatout.record import DecodeFigures, Distribution, PrefillFigures, PrefillSample, Rate, Tokens

CLEAN_CHECK = SelfCheck(
    clock="kernel", clock_reason=None, reads=10_000, late_limit_ns=1_000_000, late_reads=20, merged_reads=3,
    unstamped_reads=0, lag_p50_ns=20_000, lag_p99_ns=900_000, lag_worst_ns=30_000_000, cpu_s=1.0, wall_s=10.0,
    gc_pauses=0, gc_longest_ns=0, realtime_offset_ns=0, realtime_offset_steps=0,
)  # fmt: skip
ONE = Distribution(p50=1.0, n=1)
CLEAN = Decode(
    DecodeFigures(
        total_tok_s=Rate(value=100.0, low=99.6, high=100.4), per_request_tok_s=ONE, ttft_ms=ONE, tpot_ms=ONE,
        itl_ms=ONE, active_own_mean=15.95, output_tokens=10_000.0, streams_started=16, cached_tokens_mean=990.0,
        asked_tokens_mean=512.0, output_tokens_mean=512.0, preemptions=0.0, looping_share=0.0,
    ),
    Tokens(source="usage, tokens per byte", estimated_share=0.0),
    counts=(CountPair("own", 10_000, 10_050),),
    restart_idle_share=0.0005,
)  # fmt: skip
GIVEN = Given(
    16, max_running=64, running=15.9, waiting=0.0, cache_wanted="warm", expected_cached_tokens=1000,
    exact_length_asked=True, self_checks=(CLEAN_CHECK,),
)  # fmt: skip


def judged(**changes: Any) -> Verdict:
    """The clean cell's verdict with changes: of what the run gives, of the cell beside its figures, or of a figure."""
    given = replace(GIVEN, **{k: changes.pop(k) for k in Given.__slots__ if k in changes})
    beside = {k: changes.pop(k) for k in ("counts", "modes", "restart_idle_share") if k in changes}
    share = changes.pop("estimated_share", 0.0)
    tokens = CLEAN.tokens.model_copy(update={"estimated_share": share})
    return decode_verdict(
        replace(CLEAN, figures=CLEAN.figures.model_copy(update=changes), tokens=tokens, **beside), given
    )


def names(verdict: Verdict) -> list[str]:
    return [flag.name for flag in verdict.flags]


def only(flag: Flag, status: Status, words: str, **changes: Any) -> None:
    verdict = judged(**changes)
    assert names(verdict) == [flag]
    assert verdict.status == status
    assert words in verdict.flags[0].detail
    if status == Status.DOUBTFUL:
        assert verdict.reason is not None and words in verdict.reason


def clean(**changes: Any) -> None:
    assert judged(**changes) == Verdict(Status.VALID, [])


def test_a_clean_cell_is_valid_without_a_word() -> None:
    clean()
    nothing = DecodeFigures(total_tok_s=Rate(), per_request_tok_s=ONE, ttft_ms=ONE, tpot_ms=ONE, itl_ms=ONE)
    assert decode_verdict(Decode(nothing, Tokens()), Given(4)) == Verdict(Status.VALID, [])


def test_l4_more_running_than_asked_is_contamination() -> None:
    """Fault L4: 15.4 running for 2 asked; the limit is 5 %."""
    words = "ran 15.40 requests in the mean, 2 were asked"
    only(Flag.CONTAMINATED, Status.DOUBTFUL, words, asked=2, streams_started=2, active_own_mean=2.0, running=15.4)
    assert contaminated(16.81, 16) and not contaminated(16.79, 16) and not contaminated(None, 16)


def test_l6_more_streams_than_the_limit_are_queued_with_how_many_ran() -> None:
    """Fault L6: the row says 64, the server runs 9 and 55 wait."""
    full = {"asked": 64, "max_running": 9, "active_own_mean": 63.9, "running": 9.0, "waiting": 55.0}
    verdict = judged(**full, streams_started=64)
    assert verdict.status == Status.REQUESTS_QUEUED and verdict.flags == []
    assert "runs 9 at once; 9.0 really ran" in (verdict.reason or "")
    unknown = judged(**full | {"max_running": None, "streams_started": 12})
    assert unknown.status == Status.REQUESTS_QUEUED and "55.0 of 64 requests waited" in (unknown.reason or "")
    clean(waiting=0.49)
    assert judged(waiting=0.5).status == Status.REQUESTS_QUEUED
    assert judged(max_running=8, running=20.0, waiting=8.0).status == Status.DOUBTFUL, "a doubt goes before the queue"


def test_l2_not_all_streams_decoding_is_no_number() -> None:
    """Fault L2: measured while one of N streams is decoding."""
    verdict = judged(streams_started=1)
    assert verdict.status == Status.NO_STEADY_STATE and "only 1 of 16" in (verdict.reason or "")


def test_l5_fewer_in_flight_than_asked_is_said() -> None:
    """Fault L5: workers die and the concurrency drops in silence."""
    verdict = judged(active_own_mean=12.0, failed_requests=4, rate_limited=2)
    assert names(verdict) == [Flag.UNDERFILLED] and verdict.status == Status.VALID
    assert "4 requests failed" in (verdict.reason or "") and "2 requests were refused" in (verdict.reason or "")


def test_s7_counters_that_disagree() -> None:
    """Fault S7: other traffic is found out, work after a cut is not."""
    only(Flag.COUNTERS_DISAGREE, Status.DOUBTFUL, "own: ", counts=(CountPair("own", 10_000, 12_000),))
    assert disagreement(CountPair("own", 10_000, 10_100, slack=0)) is None
    assert disagreement(CountPair("own", 10_000, 10_150, slack=0)) is not None
    assert disagreement(CountPair("own", 10_000, 10_150, slack=100)) is None
    assert disagreement(CountPair("own", 10_000, 9_000, slack=500)) is not None
    assert disagreement(CountPair("own", 64, 66)) is None


COLD = {"cache_wanted": "cold", "expected_cached_tokens": 20}
FLAGGED: list[tuple[dict[str, Any], Flag, str]] = [
    ({"running": 10.0}, Flag.UNDERFILLED, "ran 10.00 in the mean"),
    ({"cached_tokens_mean": 100.0}, Flag.CACHE_COLD, "100 prompt tokens were cached"),
    ({**COLD, "cached_tokens_mean": 900.0}, Flag.CACHE_WARM, "at most 20 may be"),
    ({**COLD, "cached_tokens_mean": None}, Flag.COLD_UNVERIFIED, "does not tell"),
    ({"looping_share": 0.5}, Flag.LOOPING, "50% of the answers repeat"),
    ({"throttle_reasons": ("thermal", "thermal", "power cap")}, Flag.THROTTLED, "thermal, power cap"),
    ({"preemptions": 3.0}, Flag.PREEMPTED, "3 requests"),
    ({"estimated_share": 0.25}, Flag.TOKENS_ESTIMATED, "25.0% of the tokens are estimated (sources: usage, tokens"),
    ({"total_tok_s": Rate(value=1.0, reason="too short")}, Flag.LOW_SAMPLES, "too short"),
    ({"total_tok_s": Rate(value=1.0, low=0.8, high=1.2)}, Flag.LOW_SAMPLES, "±20%"),
    ({"ttft_ms": Distribution(reasons={"p50": "none"})}, Flag.LOW_SAMPLES, "TTFT has no median: none"),
    ({"itl_ms": Distribution()}, Flag.LOW_SAMPLES, "the time between tokens has no median: no sample"),
    ({"restart_idle_share": 0.05}, Flag.CLIENT_LIMITED, "5.0% of the time"),
]
DOUBTFUL = (Flag.CACHE_WARM, Flag.LOOPING, Flag.CLIENT_LIMITED)


@pytest.mark.parametrize(("changes", "flag", "words"), FLAGGED)
def test_each_flag_alone(changes: dict[str, Any], flag: Flag, words: str) -> None:
    only(flag, Status.DOUBTFUL if flag in DOUBTFUL else Status.VALID, words, **changes)


def test_l7_l8_drift_and_two_modes_are_named() -> None:
    only(Flag.DRIFTING, Status.VALID, "-12.0%", drift_change=-0.12)
    only(Flag.DRIFTING, Status.VALID, "64 tok/s (33% of the time)", modes=Modes(64.0, 100.0, 1 / 3))


def test_t7_early_stop_compares_asked_and_real_length() -> None:
    """Fault T7: ignore_eos dropped by the server, short answers."""
    words = "after 300 of 512 tokens in the mean, although told"
    only(Flag.EARLY_STOP, Status.VALID, words, output_tokens_mean=300.0)
    words = "the model's own end token"
    only(Flag.EARLY_STOP, Status.VALID, words, output_tokens_mean=300.0, exact_length_asked=False)


def test_what_is_within_the_limits_raises_no_flag() -> None:
    clean(output_tokens_mean=510.0)
    clean(looping_share=0.05)
    clean(**COLD, cached_tokens_mean=10.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu_s": 9.9}, "used 99% of its core"),
        ({"lag_p99_ns": 300_000_000}, "300 ms late"),
        ({"lag_max_ns": (10, 2_000_000_000)}, "2000 ms late"),
        ({"merged_reads": 500}, "5.0% of the reads took events together"),
        ({"unstamped_reads": 500}, "no kernel stamp"),
        ({"realtime_offset_steps": 1}, "wall clock"),
        ({"clock": "user", "gc_longest_ns": 80_000_000}, "80 ms"),
    ],
)
def test_m4_m6_the_client_is_the_bottleneck(change: dict[str, object], words: str) -> None:
    """Faults M4, M6: the client's own trouble makes the cell doubtful, with the figure."""
    check = msgspec.structs.replace(CLEAN_CHECK, **change)
    assert len(client_limits(check)) == 1
    only(Flag.CLIENT_LIMITED, Status.DOUBTFUL, words, self_checks=(CLEAN_CHECK, check))


def test_late_reads_alone_do_not_move_kernel_stamps() -> None:
    assert (
        client_limits(msgspec.structs.replace(CLEAN_CHECK, late_reads=9000, gc_pauses=5, gc_longest_ns=8 * 10**7)) == []
    )


def test_s3_s5_a_failure_is_failed_with_its_words() -> None:
    verdict = judged(error="HTTP 500: out of memory", preemptions=1.0)
    assert verdict.status == Status.FAILED and verdict.reason == "HTTP 500: out of memory"
    assert names(verdict) == [Flag.PREEMPTED]
    silent = judged(output_tokens=0.0)
    assert silent.status == Status.FAILED and "not one token" in (silent.reason or "")


def test_prefill_verdicts() -> None:
    def of(cold: int = 3, warm: int = 0, failed: int = 0, cached: int | None = 0, **given: Any) -> Verdict:
        def sample(used: bool, ttft: float | None, cached: int | None) -> PrefillSample:
            speed = None if ttft is None else 1.0
            return PrefillSample(prompt_tokens=9, cached_tokens=cached, ttft_ms=ttft, prefill_tok_s=speed, used=used)

        samples = [sample(True, 1.0, cached)] * cold + [sample(False, 1.0, 900)] * warm
        rate = Rate(value=1.0 if samples else None)
        figures = PrefillFigures(
            prefill_tok_s=rate, ttft_ms=ONE, samples=samples + [sample(False, None, None)] * failed
        )
        return prefill_verdict(figures, Given(1, self_checks=given.pop("self_checks", (CLEAN_CHECK,)), **given))

    assert of() == of(warm=1) == Verdict(Status.VALID, []), "a warm prompt that was redone is no trouble"
    warm = of(cold=0, warm=3)
    assert warm.status == Status.DOUBTFUL and names(warm) == [Flag.CACHE_WARM, Flag.LOW_SAMPLES]
    assert "up to 900 tokens" in warm.flags[0].detail
    assert names(of(cached=None)) == [Flag.COLD_UNVERIFIED]
    assert of(cold=2, failed=1).reason == "1 prompts failed"
    assert of(cold=0, failed=1).status == Status.FAILED and of(error="refused").reason == "refused"
    full = msgspec.structs.replace(CLEAN_CHECK, cpu_s=10.0)
    limited = of(self_checks=(full,), throttle_reasons=("heat",))
    assert names(limited) == [Flag.CLIENT_LIMITED, Flag.THROTTLED] and limited.status == Status.DOUBTFUL
