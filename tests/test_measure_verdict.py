from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from flatout.flags import Flag, Status
from flatout.load.job import SelfCheck
from flatout.measure.figures import CountPair, Drift, Modes
from flatout.measure.verdict import (
    DecodeFacts,
    PrefillFacts,
    client_limits,
    contaminated,
    decode_verdict,
    disagreement,
    prefill_verdict,
)

CLEAN_CHECK = SelfCheck(
    clock="kernel", clock_reason=None, reads=10_000, late_limit_ns=1_000_000, late_reads=20, merged_reads=3,
    unstamped_reads=0, lag_p50_ns=20_000, lag_p99_ns=900_000, lag_worst_ns=30_000_000, cpu_s=1.0, wall_s=10.0,
    gc_pauses=0, gc_longest_ns=0, realtime_offset_ns=0, realtime_offset_steps=0,
)  # fmt: skip

CLEAN = DecodeFacts(
    asked_concurrency=16,
    max_running=64,
    window_tokens=10_000.0,
    streams_started=16,
    own_active=15.95,
    server_running=15.9,
    server_waiting=0.0,
    cache_wanted="warm",
    cached_tokens=990.0,
    expected_cached_tokens=1000,
    exact_length_asked=True,
    finished=40,
    asked_mean_tokens=512.0,
    output_mean_tokens=512.0,
    tok_s_half_width=0.004,
    restart_idle_share=0.0005,
    self_checks=(CLEAN_CHECK,),
    preemptions=0.0,
    counts=(CountPair("own", 10_000, 10_050),),
    looping_share=0.0,
)


def only(flag: Flag, status: Status, facts: DecodeFacts, words: str) -> None:
    verdict = decode_verdict(facts)
    assert verdict.flags == (flag,)
    assert verdict.status == status
    assert words in verdict.notes[0].detail
    if status == Status.DOUBTFUL:
        assert verdict.reason is not None and words in verdict.reason


def test_a_clean_cell_is_valid_without_a_word() -> None:
    verdict = decode_verdict(CLEAN)
    assert (verdict.status, verdict.notes, verdict.reason) == (Status.VALID, (), None)


def test_nothing_known_raises_no_flag() -> None:
    assert decode_verdict(DecodeFacts(asked_concurrency=4)).status == Status.VALID


def test_l4_more_running_than_asked_is_contamination() -> None:
    """Fault L4: 15.4 running for 2 asked; the limit is 5 %."""
    worst = replace(CLEAN, asked_concurrency=2, streams_started=2, own_active=2.0, server_running=15.4)
    only(Flag.CONTAMINATED, Status.DOUBTFUL, worst, "ran 15.40 requests in the mean, 2 were asked")
    assert contaminated(16.81, 16) and not contaminated(16.79, 16) and not contaminated(None, 16)


def test_l6_more_streams_than_the_limit_are_queued_with_how_many_ran() -> None:
    """Fault L6: the row says 64, the server runs 9 and 55 wait."""
    facts = replace(
        CLEAN, asked_concurrency=64, max_running=9, streams_started=64, own_active=63.9, server_running=9.0,
        server_waiting=55.0,
    )  # fmt: skip
    verdict = decode_verdict(facts)
    assert verdict.status == Status.REQUESTS_QUEUED and verdict.notes == ()
    assert "runs 9 at once; 9.0 really ran" in (verdict.reason or "")
    unknown = decode_verdict(replace(facts, max_running=None, streams_started=12))
    assert unknown.status == Status.REQUESTS_QUEUED and "55.0 of 64 requests waited" in (unknown.reason or "")
    assert decode_verdict(replace(CLEAN, server_waiting=0.49)).status == Status.VALID
    assert decode_verdict(replace(CLEAN, server_waiting=0.5)).status == Status.REQUESTS_QUEUED


def test_a_doubt_goes_before_the_queue() -> None:
    facts = replace(CLEAN, max_running=8, server_running=20.0, server_waiting=8.0)
    assert decode_verdict(facts).status == Status.DOUBTFUL


def test_l2_not_all_streams_decoding_is_no_number() -> None:
    """Fault L2: measured while one of N streams is decoding."""
    verdict = decode_verdict(replace(CLEAN, streams_started=1))
    assert verdict.status == Status.NO_STEADY_STATE and "only 1 of 16" in (verdict.reason or "")
    waited = decode_verdict(replace(CLEAN, unsteady_reason="3 of 16 streams had no token after 60 s"))
    assert waited.status == Status.NO_STEADY_STATE and waited.reason == "3 of 16 streams had no token after 60 s"


def test_l5_fewer_in_flight_than_asked_is_said() -> None:
    """Fault L5: workers die and the concurrency drops in silence."""
    verdict = decode_verdict(replace(CLEAN, own_active=12.0, failed=4, refused=2))
    assert verdict.flags == (Flag.UNDERFILLED,) and verdict.status == Status.VALID
    assert "4 requests failed" in (verdict.reason or "") and "2 requests were refused" in (verdict.reason or "")
    only(Flag.UNDERFILLED, Status.VALID, replace(CLEAN, server_running=10.0), "ran 10.00 in the mean")


def test_l7_l8_drift_and_two_modes_are_named() -> None:
    only(Flag.DRIFTING, Status.VALID, replace(CLEAN, drift=Drift(True, -0.12, 1e-6)), "-12.0%")
    only(Flag.DRIFTING, Status.VALID, replace(CLEAN, modes=Modes(64.0, 100.0, 1 / 3)), "64 tok/s (33% of the time)")
    assert decode_verdict(replace(CLEAN, drift=Drift(False, -0.12, 0.3))).notes == ()


def test_t7_early_stop_compares_asked_and_real_length() -> None:
    """Fault T7: ignore_eos dropped by the server, short answers."""
    facts = replace(CLEAN, output_mean_tokens=300.0)
    only(Flag.EARLY_STOP, Status.VALID, facts, "after 300 of 512 tokens in the mean, although told")
    only(Flag.EARLY_STOP, Status.VALID, replace(facts, exact_length_asked=False), "the model's own end token")
    assert decode_verdict(replace(CLEAN, output_mean_tokens=510.0)).notes == ()


def test_s7_counters_that_disagree() -> None:
    """Fault S7: other traffic is found out, work after a cut is not."""
    only(Flag.COUNTERS_DISAGREE, Status.DOUBTFUL, replace(CLEAN, counts=(CountPair("own", 10_000, 12_000),)), "own: ")
    assert disagreement(CountPair("own", 10_000, 10_100, slack=0)) is None
    assert disagreement(CountPair("own", 10_000, 10_150, slack=0)) is not None
    assert disagreement(CountPair("own", 10_000, 10_150, slack=100)) is None
    assert disagreement(CountPair("own", 10_000, 9_000, slack=500)) is not None
    assert disagreement(CountPair("own", 64, 66)) is None


def test_s8_looping() -> None:
    only(Flag.LOOPING, Status.DOUBTFUL, replace(CLEAN, looping_share=0.5), "50% of the answers repeat")
    assert decode_verdict(replace(CLEAN, looping_share=0.05)).notes == ()


def test_caches() -> None:
    only(Flag.CACHE_COLD, Status.VALID, replace(CLEAN, cached_tokens=100.0), "100 prompt tokens were cached")
    cold = replace(CLEAN, cache_wanted="cold", expected_cached_tokens=20, cached_tokens=10.0)
    assert decode_verdict(cold).notes == ()
    only(Flag.CACHE_WARM, Status.DOUBTFUL, replace(cold, cached_tokens=900.0), "at most 20 may be")
    only(Flag.COLD_UNVERIFIED, Status.VALID, replace(cold, cached_tokens=None), "does not tell")


@pytest.mark.parametrize(
    ("change", "flag", "words"),
    [
        ({"throttle_reasons": ("thermal", "thermal", "power cap")}, Flag.THROTTLED, "thermal, power cap"),
        ({"preemptions": 3.0}, Flag.PREEMPTED, "3 requests"),
        ({"estimated_share": 0.25, "token_sources": ("usage", "tokens per byte")}, Flag.TOKENS_ESTIMATED, "25.0%"),
        ({"tok_s_half_width": None, "tok_s_reason": "too short"}, Flag.LOW_SAMPLES, "too short"),
        ({"tok_s_half_width": 0.2}, Flag.LOW_SAMPLES, "±20%"),
        ({"missing_latency": "TTFT has no median: none"}, Flag.LOW_SAMPLES, "TTFT"),
    ],
)
def test_informing_flags(change: dict[str, object], flag: Flag, words: str) -> None:
    only(flag, Status.VALID, replace(CLEAN, **change), words)  # type: ignore[arg-type]


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
    only(Flag.CLIENT_LIMITED, Status.DOUBTFUL, replace(CLEAN, self_checks=(CLEAN_CHECK, check)), words)


def test_late_reads_alone_do_not_move_kernel_stamps() -> None:
    check = msgspec.structs.replace(CLEAN_CHECK, late_reads=9000, gc_pauses=5, gc_longest_ns=80_000_000)
    assert client_limits(check) == []
    only(Flag.CLIENT_LIMITED, Status.DOUBTFUL, replace(CLEAN, restart_idle_share=0.05), "5.0% of the time")


def test_s3_s5_a_failure_is_failed_with_its_words() -> None:
    verdict = decode_verdict(replace(CLEAN, error="HTTP 500: out of memory", preemptions=1.0))
    assert verdict.status == Status.FAILED and verdict.reason == "HTTP 500: out of memory"
    assert verdict.flags == (Flag.PREEMPTED,)
    silent = decode_verdict(replace(CLEAN, window_tokens=0.0))
    assert silent.status == Status.FAILED and "not one token" in (silent.reason or "")


def test_prefill_verdicts() -> None:
    good = PrefillFacts(counted=3, warm=0, unverified=0, failed=0, measured=True, self_checks=(CLEAN_CHECK,))
    assert prefill_verdict(good).status == Status.VALID and prefill_verdict(good).notes == ()
    redone = prefill_verdict(replace(good, warm=1))
    assert redone.notes == ()
    warm = prefill_verdict(replace(good, counted=0, warm=3, cached_most=900))
    assert warm.status == Status.DOUBTFUL and warm.flags == (Flag.CACHE_WARM, Flag.LOW_SAMPLES)
    assert "up to 900 tokens" in warm.notes[0].detail
    assert prefill_verdict(replace(good, unverified=3)).flags == (Flag.COLD_UNVERIFIED,)
    assert prefill_verdict(replace(good, counted=2, failed=1)).reason == "1 prompts failed"
    assert prefill_verdict(replace(good, counted=0, measured=False)).status == Status.FAILED
    assert prefill_verdict(replace(good, error="refused")).reason == "refused"
    limited = replace(good, self_checks=(msgspec.structs.replace(CLEAN_CHECK, cpu_s=10.0),), throttle_reasons=("heat",))
    assert prefill_verdict(limited).flags == (Flag.CLIENT_LIMITED, Flag.THROTTLED)
    assert prefill_verdict(limited).status == Status.DOUBTFUL
