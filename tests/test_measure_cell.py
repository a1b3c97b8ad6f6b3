from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.engines.base import Live
from flatout.flags import Flag, Status
from flatout.load.samples import CUT, FAILED, REFUSED, Samples
from flatout.measure.cell import (
    burst_facts,
    burst_figures,
    decode_facts,
    decode_figures,
    prefill_facts,
    prefill_figures,
)
from flatout.measure.figures import DecodeFigures, Distribution
from flatout.measure.verdict import decode_verdict, prefill_verdict
from tests.measure_samples import MS, Event, Request, S, closed_loop, samples, stream_of


def figures(found: Samples, t0: int = 2 * S, t1: int = 9 * S, **kwargs: object) -> DecodeFigures:
    return decode_figures(found, t_open_ns=t0, t_close_ns=t1, context_tokens=1000, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("streams", "rate", "k"), [(1, 400, 1), (16, 200, 1), (16, 200, 4), (64, 100, 1), (64, 100, 4)]
)
@pytest.mark.parametrize("in_step", [True, False])
def test_known_speeds_are_read_back(streams: int, rate: int, k: int, in_step: bool) -> None:
    """Streams of `rate` tokens/s with long outputs and a 10 ms TTFT: the reading is the schedule."""
    output, ttft = 4 * rate, 10 * MS
    gap = k * S // rate
    found = closed_loop(
        np.random.default_rng(7), streams=streams, gap_ns=gap, ttft_ns=ttft, output=output, per_event=k,
        in_step=in_step, seconds=9.5,
    )  # fmt: skip
    made = figures(found)
    truth = streams * output / ((output // k - 1) * gap + ttft + 1000) * S
    assert made.total_tok_s.value == pytest.approx(truth, rel=0.003)
    assert made.total_tok_s.low is not None and made.total_tok_s.high is not None
    assert made.total_tok_s.low * 0.999 <= truth <= made.total_tok_s.high * 1.001
    assert made.ttft_ms.p50 == pytest.approx(10.0)
    assert made.itl_ms.p50 == pytest.approx(1000 / rate)
    assert made.request_tok_s.value == pytest.approx(rate)
    assert made.own_active.value == pytest.approx(streams, rel=1e-3)
    assert made.token_sources == ("running counts",) and made.estimated_share == 0
    verdict = decode_verdict(decode_facts(made, asked_concurrency=streams))
    assert verdict.status == Status.VALID
    assert verdict.notes == ()


def test_clean_cells_raise_no_false_alarm() -> None:
    """Forty cells of all sorts; restarts, lumps and jitter are no drift, no second level and no disagreement."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        streams, k = int(rng.choice([1, 2, 4, 16])), int(rng.choice([1, 4]))
        found = closed_loop(
            rng, streams=streams, gap_ns=int(rng.choice([5, 10, 25])) * MS, per_event=k, seconds=9.5,
            output=int(rng.choice([128, 256, 512])), jitter=float(rng.choice([0, 0.05, 0.2])),
            in_step=bool(rng.integers(2)),
        )  # fmt: skip
        verdict = decode_verdict(decode_facts(figures(found), asked_concurrency=streams))
        assert (verdict.status, verdict.notes) == (Status.VALID, ())


def test_m10_a_hang_makes_the_server_slower_never_faster() -> None:
    """Fault M10: the window is fixed; it does not end at the last arrival."""
    whole = samples([stream_of([i * 10 * MS for i in range(1000)], stream=s, outcome=CUT) for s in range(4)])
    hung = samples(
        [stream_of([i * 10 * MS for i in range(500)], stream=s, outcome=CUT, end_ns=10 * S) for s in range(4)]
    )
    good, bad = figures(whole), figures(hung)
    assert good.total_tok_s.value == pytest.approx(400.0)
    assert bad.total_tok_s.value == pytest.approx(400.0 * 3 / 7)
    assert bad.longest_gap_ms == pytest.approx(4010.0) and bad.longest_gap_open
    assert Flag.DRIFTING in decode_verdict(decode_facts(bad, asked_concurrency=4)).flags


def test_l1_m11_ramp_and_drain_stay_outside() -> None:
    """Faults L1, M11: only arrivals of the window count, over the window's own length."""
    found = samples(
        [stream_of([*range(0, 2 * S, 100 * MS), *range(2 * S, 9 * S, 10 * MS)], outcome=CUT, end_ns=20 * S)]
    )
    assert figures(found).total_tok_s.value == pytest.approx(100.0)


def test_l2_the_streams_that_had_started_are_counted() -> None:
    late = [stream_of([i * 10 * MS for i in range(900)], stream=0)]
    late += [stream_of([5 * S + i * 10 * MS for i in range(400)], stream=s) for s in range(1, 4)]
    made = figures(samples(late))
    assert made.streams_started == 1
    assert decode_verdict(decode_facts(made, asked_concurrency=4)).status == Status.NO_STEADY_STATE


def test_l3_the_launch_burst_is_not_the_ttft_of_restarts() -> None:
    """Fault L3: launches at 900 ms, restarts at 50 ms; with restarts in the window theirs counts."""
    found = closed_loop(np.random.default_rng(0), streams=8, seconds=9.5)
    launch = found.round == 0
    found.send_ns[launch] -= 850 * MS
    made = figures(found)
    assert made.ttft_of == "restarts" and made.ttft_ms.p50 == pytest.approx(50.0)


def test_l5_s5_failed_refused_and_cut_requests_are_counted_apart() -> None:
    found = samples(
        [
            stream_of([3 * S], stream=0),
            Request(stream=1, send_ns=3 * S, end_ns=4 * S, outcome=FAILED),
            Request(stream=2, send_ns=3 * S, end_ns=4 * S, outcome=REFUSED),
            stream_of([3 * S], stream=3, outcome=CUT, end_ns=9 * S),
            stream_of([S], stream=4, outcome=FAILED, end_ns=S),
        ]
    )
    made = figures(found)
    assert (made.completed, made.failed, made.refused, made.cut) == (1, 1, 1, 1)


def test_gauges_counters_and_series() -> None:
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    live = [Live(i * S, running=4.0, waiting=0.0, kv_use=0.1 * i, preemptions_total=float(i // 5)) for i in range(10)]
    made = figures(found, live=live)
    assert made.server_running.value == pytest.approx(4.0) and made.kv_use_max.value == pytest.approx(0.8)
    assert made.preemptions.value == 1.0
    assert made.prompt_tokens == (1000, 1000) and made.cached_tokens.value == 990
    assert made.mean_depth_tokens.value == pytest.approx(1050, abs=5)
    assert len(made.running_series.values) == 7 and 0 < len(made.tok_s_series.values) <= 120
    blind = figures(found)
    assert blind.server_running.value is None and blind.server_running.reason


def test_s7_other_traffic_is_in_the_counters_not_in_the_rate() -> None:
    """Fault S7: own tokens come from own streams; the server's counter shows the rest."""
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    own = figures(found).all_tokens
    ends = {"idle_before": Live(0, generated_total=500.0)}
    clean = figures(found, **ends, idle_after=Live(20 * S, generated_total=500.0 + own + 40))
    other = figures(found, **ends, idle_after=Live(20 * S, generated_total=500.0 + 2 * own))
    assert clean.total_tok_s == other.total_tok_s
    assert decode_verdict(decode_facts(clean, asked_concurrency=4)).notes == ()
    assert decode_verdict(decode_facts(other, asked_concurrency=4)).flags == (Flag.COUNTERS_DISAGREE,)


def test_t7_asked_and_real_length() -> None:
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    found.asked_tokens[:] = 400
    made = figures(found)
    verdict = decode_verdict(decode_facts(made, asked_concurrency=4, exact_length_asked=True))
    assert verdict.flags == (Flag.EARLY_STOP,)


def test_tokens_of_cut_requests_are_flagged_with_their_share() -> None:
    found = closed_loop(np.random.default_rng(0), running=False, seconds=9.5)
    made = figures(found)
    assert made.token_sources == ("usage", "tokens per byte") and 0 < made.estimated_share < 0.3
    assert decode_verdict(decode_facts(made, asked_concurrency=4)).flags == (Flag.TOKENS_ESTIMATED,)


def test_s8_looping_answers_make_the_cell_doubtful() -> None:
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    found.texts = ["I can not. " * 50 for _ in range(found.requests)]
    verdict = decode_verdict(decode_facts(figures(found), asked_concurrency=4))
    assert verdict.flags == (Flag.LOOPING,) and verdict.status == Status.DOUBTFUL


def test_an_empty_cell_has_reasons_and_no_zeros() -> None:
    made = figures(Samples.empty())
    assert made.total_tok_s.low is None and made.total_tok_s.reason
    assert made.request_tok_s.value is None and made.request_tok_s.reason
    assert made.ttft_ms.p50 is None and made.ttft_of is None and made.itl_ms.reasons["p50"]
    assert made.longest_gap_ms is None and made.drift is None and made.prompt_tokens is None
    assert made.mean_depth_tokens.reason and made.output_mean.reason
    with pytest.raises(ValueError, match="must end after it opens"):
        figures(Samples.empty(), 5 * S, 5 * S)


def close(a: DecodeFigures, b: DecodeFigures) -> None:
    assert a.total_tok_s.value == pytest.approx(b.total_tok_s.value)
    assert a.total_tok_s.low == pytest.approx(b.total_tok_s.low)
    assert a.itl_ms.p50 == pytest.approx(b.itl_ms.p50) and a.itl_ms.p90 == pytest.approx(b.itl_ms.p90)
    assert a.ttft_ms.p50 == pytest.approx(b.ttft_ms.p50) and a.tpot_ms.p50 == pytest.approx(b.tpot_ms.p50)
    assert a.longest_gap_ms == pytest.approx(b.longest_gap_ms)
    assert a.mean_depth_tokens.value == pytest.approx(b.mean_depth_tokens.value)
    assert a.own_active.value == pytest.approx(b.own_active.value)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.0, 0.2, 0.8]), st.randoms())
def test_renaming_streams_and_reordering_requests_changes_nothing(
    seed: int, n: int, jitter: float, random: object
) -> None:
    found = closed_loop(np.random.default_rng(seed), streams=n, jitter=jitter, seconds=4.0)
    order = np.random.default_rng(seed + 1).permutation(found.requests)
    columns = {}
    for name in Samples.__dataclass_fields__:
        value = getattr(found, name)
        if isinstance(value, np.ndarray) and len(value) == found.requests and name not in ("t_ns", "kind", "text_len"):
            columns[name] = value[order]
        else:
            columns[name] = value
    for name in ("running_tokens", "id_tokens", "t_ns", "text_len", "kind"):
        columns[name] = getattr(found, name)
    moved = Samples(**columns)
    moved.stream = (n - 1 - moved.stream).astype(np.int32)
    close(figures(found, S, 4 * S), figures(moved, S, 4 * S))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 10**14))
def test_a_shift_in_time_changes_nothing(seed: int, shift: int) -> None:
    found = closed_loop(np.random.default_rng(seed), jitter=0.3, seconds=4.0)
    a = figures(found, S, 4 * S)
    for name in ("send_ns", "end_ns", "t_ns", "first_token_ns"):
        setattr(found, name, getattr(found, name) + shift)
    close(a, figures(found, S + shift, 4 * S + shift))


# ---- prefill


def cold(ttft_ms: int, prompt: int = 8000, cached: int = 0, **kwargs: object) -> Request:
    return stream_of([ttft_ms * MS, ttft_ms * MS + MS], prompt=prompt, cached=cached, **kwargs)  # type: ignore[arg-type]


def test_prefill_is_uncached_tokens_over_ttft_median_of_cold_ones() -> None:
    made = prefill_figures(samples([cold(800), cold(1000, cached=16), cold(1600)]), head_tokens=10, block_tokens=16)
    assert [s.tok_s for s in made.samples] == pytest.approx([10_000, 7984, 5000])
    assert made.tok_s.value == pytest.approx(7984) and made.tok_s.kind == "between repeats"
    assert made.ttft_ms.p50 == pytest.approx(1000)
    assert prefill_verdict(prefill_facts(made)).status == Status.VALID


def test_c1_warm_prompts_are_not_counted() -> None:
    """Fault C1: a warm server makes prefill look many times faster; the cached count finds it out."""
    made = prefill_figures(samples([cold(800), cold(20, cached=7990), cold(810), cold(790)]), block_tokens=16)
    assert made.counted == 3 and made.warm == 1 and made.tok_s.value == pytest.approx(10_000)
    assert made.samples[1].reason == "7990 of 8000 tokens were cached, at most 16 may be"
    all_warm = prefill_figures(samples([cold(20, cached=7990) for _ in range(3)]), block_tokens=16)
    verdict = prefill_verdict(prefill_facts(all_warm))
    assert all_warm.tok_s.value is not None and verdict.status == Status.DOUBTFUL
    assert Flag.CACHE_WARM in verdict.flags


def test_prefill_without_counts_and_with_failures() -> None:
    unknown = prefill_figures(samples([cold(800, prompt=-1, cached=-1)] * 3), prompt_tokens=4000)
    assert unknown.tok_s.value == pytest.approx(5000) and unknown.unverified == 3
    assert prefill_verdict(prefill_facts(unknown)).flags == (Flag.COLD_UNVERIFIED, Flag.TOKENS_ESTIMATED)
    no_length = prefill_figures(samples([cold(800, prompt=-1)]))
    assert no_length.tok_s.value is None and "length of the prompt" in (no_length.samples[0].reason or "")
    broken = samples([Request(end_ns=S, outcome=FAILED, error=0)], ["HTTP 500: no memory"])
    failed = prefill_figures(broken)
    assert failed.failed == 1 and failed.samples[0].reason == "HTTP 500: no memory"
    assert failed.tok_s.value is None and failed.tok_s.reason
    assert prefill_verdict(prefill_facts(failed)).status == Status.FAILED


def test_one_prefill_has_no_interval() -> None:
    made = prefill_figures(samples([cold(800), cold(810)]))
    assert made.tok_s.value is not None and made.tok_s.low is None and "too few" in (made.tok_s.reason or "")


def test_m1_prefill_ends_at_the_first_content() -> None:
    found = samples([Request([Event(5 * MS, 0, 0), Event(214 * MS, 4, 1)], prompt=214, cached=0)])
    assert prefill_figures(found).samples[0].tok_s == pytest.approx(1000)


# ---- burst


def test_burst_rate_is_from_the_first_send_to_the_last_end() -> None:
    requests = [stream_of([S + i * 10 * MS for i in range(100 * (s + 1))], stream=s, send_ns=s) for s in range(4)]
    made = burst_figures(samples(requests))
    assert made.wall_s.value == pytest.approx(1 + 399 * 0.01)
    assert made.tokens == 1000 and made.total_tok_s.value == pytest.approx(1000 / 4.99)
    assert made.total_tok_s.low is None and "one sample" in (made.total_tok_s.reason or "")
    assert made.ttft_ms.n == 4 and made.ttft_ms.p50 == pytest.approx(1000)
    assert made.request_tok_s.value == pytest.approx(100) and made.finished == 4
    assert decode_verdict(burst_facts(made)).status == Status.VALID


def test_burst_with_failures_and_with_nothing() -> None:
    requests = [stream_of([S + i * 10 * MS for i in range(50)], stream=s) for s in range(3)]
    requests.append(Request(stream=3, end_ns=20 * S, outcome=FAILED))
    made = burst_figures(samples(requests))
    assert made.failed == 1 and made.ttft_ms.censored == 1
    assert "1 requests failed" in (decode_verdict(burst_facts(made)).reason or "")
    empty = burst_figures(Samples.empty())
    assert empty.total_tok_s.value is None and empty.wall_s.reason
    assert decode_verdict(burst_facts(empty)).status == Status.FAILED


def test_cold_ttft_has_the_interval_that_its_prompts_allow() -> None:
    def of(times_ms: list[float]) -> Distribution:
        found = [
            stream_of([i * 10 * S + round(t * MS)], send_ns=i * 10 * S, stream=i, prompt=1000, cached=0)
            for i, t in enumerate(times_ms)
        ]
        return prefill_figures(samples(found)).ttft_ms

    three = of([99.0, 100.0, 101.0])
    assert three.p50 == pytest.approx(100.0) and three.p50_low is not None and three.p50_high is not None
    assert three.p50_high - 100.0 == pytest.approx(4.3026527297 / 3**0.5, rel=1e-6)
    assert "interval" not in three.reasons
    two = of([99.0, 101.0])
    assert two.p50_low is None and two.reasons["interval"] == "needs 3 prompts, has 2"
    ten = of([100.0 + i for i in range(10)])
    assert ten.p90 is not None and ten.p90_low is None and ten.reasons["p90_interval"] == "needs 36 prompts, has 10"
