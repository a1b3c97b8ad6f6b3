from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.engines.base import Live
from flatout.flags import Flag, Status
from flatout.load.samples import CUT, FAILED, REFUSED, Samples
from flatout.measure import cell
from flatout.measure.cell import Decode
from flatout.measure.latency import RESTARTS
from flatout.measure.verdict import Given, Verdict, burst_verdict, decode_verdict, prefill_verdict
from flatout.record import DecodeFigures, Distribution, PrefillFigures
from tests.measure_samples import MS, Event, Request, S, closed_loop, samples, stream_of


def decode(arrivals: Samples, t0: int = 2 * S, t1: int = 9 * S, **kwargs: object) -> Decode:
    return cell.decode(arrivals, t_open_ns=t0, t_close_ns=t1, context_tokens=1000, **kwargs)  # type: ignore[arg-type]


def figures(arrivals: Samples, t0: int = 2 * S, t1: int = 9 * S, **kwargs: object) -> DecodeFigures:
    return decode(arrivals, t0, t1, **kwargs).figures


def judged(made: Decode, asked: int = 4, **given: Any) -> Verdict:
    """With the server's running and waiting requests as its gauges have them."""
    ran, waited = made.figures.active_server_mean, made.figures.waiting_server_mean
    return decode_verdict(made, Given(asked, running=ran, waiting=waited, **given))


def names(verdict: Verdict) -> list[str]:
    return [flag.name for flag in verdict.flags]


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
    whole = decode(found)
    made = whole.figures
    truth = streams * output / ((output // k - 1) * gap + ttft + 1000) * S
    assert made.total_tok_s.value == pytest.approx(truth, rel=0.003)
    assert made.total_tok_s.low is not None and made.total_tok_s.high is not None
    assert made.total_tok_s.low * 0.999 <= truth <= made.total_tok_s.high * 1.001
    assert made.ttft_ms.p50 == pytest.approx(10.0)
    assert made.itl_ms.p50 == pytest.approx(1000 / rate)
    assert made.per_request_tok_s.p50 == pytest.approx(rate)
    assert made.active_own_mean == pytest.approx(streams, rel=1e-3)
    assert whole.tokens.source == "running counts" and whole.tokens.estimated_share == 0
    assert judged(whole, streams) == Verdict(Status.VALID, [])


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
        assert judged(decode(found), streams) == Verdict(Status.VALID, [])


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
    assert Flag.DRIFTING in names(judged(decode(hung)))


def test_l1_m11_ramp_and_drain_stay_outside() -> None:
    """Faults L1, M11: only arrivals of the window count, over the window's own length."""
    found = samples(
        [stream_of([*range(0, 2 * S, 100 * MS), *range(2 * S, 9 * S, 10 * MS)], outcome=CUT, end_ns=20 * S)]
    )
    assert figures(found).total_tok_s.value == pytest.approx(100.0)


def test_l3_the_launch_burst_is_not_the_ttft_of_restarts() -> None:
    """Fault L3: launches at 900 ms, restarts at 50 ms; with restarts in the window theirs counts."""
    found = closed_loop(np.random.default_rng(0), streams=8, seconds=9.5)
    launch = found.round == 0
    found.send_ns[launch] -= 850 * MS
    made = figures(found)
    assert made.ttft_ms.whose == RESTARTS and made.ttft_ms.p50 == pytest.approx(50.0)


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
    assert (made.completed, made.failed_requests, made.rate_limited) == (1, 1, 1)


def test_gauges_counters_and_series() -> None:
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    live = [Live(i * S, running=4.0, waiting=0.0, kv_use=0.1 * i, preemptions_total=float(i // 5)) for i in range(10)]
    made = figures(found, live=live)
    assert made.active_server_mean == pytest.approx(4.0) and made.kv_use_max == pytest.approx(0.8)
    assert made.preemptions == 1.0
    assert made.prompt_tokens_min == made.prompt_tokens_max == 1000 and made.cached_tokens_mean == 990
    assert made.mean_depth_tokens == pytest.approx(1050, abs=5)
    assert made.running_series is not None and len(made.running_series.values) == 7
    assert made.tok_s_series is not None and 0 < len(made.tok_s_series.values) <= 120
    blind = figures(found)
    assert blind.active_server_mean is None and blind.reasons["active_server_mean"] and blind.running_series is None


def test_s7_other_traffic_is_in_the_counters_not_in_the_rate() -> None:
    """Fault S7: own tokens come from own streams; the server's counter shows the rest."""
    found = closed_loop(np.random.default_rng(0), seconds=9.5)
    own = decode(found).tokens.own_total
    assert own is not None
    ends = {"idle_before": Live(0, generated_total=500.0)}
    clean = decode(found, **ends, idle_after=Live(20 * S, generated_total=500.0 + own + 40))
    other = decode(found, **ends, idle_after=Live(20 * S, generated_total=500.0 + 2 * own))
    assert clean.figures.total_tok_s == other.figures.total_tok_s
    assert names(judged(clean)) == [] and names(judged(other)) == [Flag.COUNTERS_DISAGREE]


def test_what_the_samples_show_reaches_the_verdict() -> None:
    """Streams that started late, short answers, tokens that nobody counted, answers that repeat themselves."""
    late = [stream_of([i * 10 * MS for i in range(900)], stream=0)]
    late += [stream_of([5 * S + i * 10 * MS for i in range(400)], stream=s) for s in range(1, 4)]
    assert judged(decode(samples(late))).status == Status.NO_STEADY_STATE
    short, looping = (closed_loop(np.random.default_rng(0), seconds=9.5) for _ in range(2))
    short.asked_tokens[:] = 400
    looping.texts = ["I can not. " * 50 for _ in range(looping.requests)]
    uncounted = decode(closed_loop(np.random.default_rng(0), running=False, seconds=9.5))
    assert uncounted.tokens.source == "usage, tokens per byte" and 0 < (uncounted.tokens.estimated_share or 0.0) < 0.3
    assert names(judged(decode(short), exact_length_asked=True)) == [Flag.EARLY_STOP]
    assert names(judged(decode(looping))) == [Flag.LOOPING]
    assert names(judged(uncounted)) == [Flag.TOKENS_ESTIMATED]


def test_an_empty_cell_has_reasons_and_no_zeros() -> None:
    made = figures(Samples.empty())
    assert made.total_tok_s.low is None and made.total_tok_s.reason
    assert made.per_request_tok_s.p50 is None and made.per_request_tok_s.reasons["p50"]
    assert made.ttft_ms.p50 is None and made.ttft_ms.whose is None and made.itl_ms.reasons["p50"]
    assert made.longest_gap_ms is None and made.drift_change is None and made.prompt_tokens_min is None
    assert {"mean_depth_tokens", "output_tokens_mean"} <= set(made.reasons) and made.tok_s_series is None
    with pytest.raises(ValueError, match="must end after it opens"):
        figures(Samples.empty(), 5 * S, 5 * S)


def close(a: DecodeFigures, b: DecodeFigures) -> None:
    assert a.total_tok_s.value == pytest.approx(b.total_tok_s.value)
    assert a.total_tok_s.low == pytest.approx(b.total_tok_s.low)
    assert a.itl_ms.p50 == pytest.approx(b.itl_ms.p50) and a.itl_ms.p90 == pytest.approx(b.itl_ms.p90)
    assert a.ttft_ms.p50 == pytest.approx(b.ttft_ms.p50) and a.tpot_ms.p50 == pytest.approx(b.tpot_ms.p50)
    assert a.longest_gap_ms == pytest.approx(b.longest_gap_ms)
    assert a.mean_depth_tokens == pytest.approx(b.mean_depth_tokens)
    assert a.active_own_mean == pytest.approx(b.active_own_mean)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.0, 0.2, 0.8]), st.randoms())
def test_renaming_streams_and_reordering_requests_changes_nothing(
    seed: int, n: int, jitter: float, random: object
) -> None:
    found = closed_loop(np.random.default_rng(seed), streams=n, jitter=jitter, seconds=4.0)
    order = np.random.default_rng(seed + 1).permutation(found.requests)
    of_arrivals = ("t_ns", "kind", "text_len", "running_tokens", "id_tokens")
    columns = {name: getattr(found, name) for name in Samples.__dataclass_fields__}
    for name, value in columns.items():
        if isinstance(value, np.ndarray) and len(value) == found.requests and name not in of_arrivals:
            columns[name] = value[order]
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


def prefill(requests: list[Request], errors: list[str] | None = None, **kwargs: Any) -> tuple[PrefillFigures, Verdict]:
    made = cell.prefill(samples(requests, errors), **kwargs)
    return made, prefill_verdict(made, Given(1))


def test_prefill_is_uncached_tokens_over_ttft_median_of_cold_ones() -> None:
    made, verdict = prefill([cold(800), cold(1000, cached=16), cold(1600)], head_tokens=10, block_tokens=16)
    assert [s.prefill_tok_s for s in made.samples] == pytest.approx([10_000, 7984, 5000])
    assert made.prefill_tok_s.value == pytest.approx(7984) and made.prefill_tok_s.interval == "between repeats"
    assert made.ttft_ms.p50 == pytest.approx(1000) and made.prompt_tokens == 8000
    assert verdict.status == Status.VALID


def test_c1_warm_prompts_are_not_counted() -> None:
    """Fault C1: a warm server makes prefill look many times faster; the cached count finds it out."""
    made, _ = prefill([cold(800), cold(20, cached=7990), cold(810), cold(790)], block_tokens=16)
    assert [s.used for s in made.samples] == [True, False, True, True]
    assert made.prefill_tok_s.value == pytest.approx(10_000)
    assert made.samples[1].note == "7990 of 8000 tokens were cached, at most 16 may be"
    all_warm, verdict = prefill([cold(20, cached=7990) for _ in range(3)], block_tokens=16)
    assert all_warm.prefill_tok_s.value is not None and verdict.status == Status.DOUBTFUL
    assert Flag.CACHE_WARM in names(verdict)


def test_prefill_without_counts_and_with_failures() -> None:
    unknown, verdict = prefill([cold(800, prompt=-1, cached=-1)] * 3, prompt_tokens=4000)
    assert unknown.prefill_tok_s.value == pytest.approx(5000) and unknown.prompt_tokens is None
    assert names(verdict) == [Flag.COLD_UNVERIFIED, Flag.TOKENS_ESTIMATED]
    no_length, _ = prefill([cold(800, prompt=-1)])
    assert no_length.prefill_tok_s.value is None and "length of the prompt" in (no_length.samples[0].note or "")
    failed, verdict = prefill([Request(end_ns=S, outcome=FAILED, error=0)], ["HTTP 500: no memory"])
    assert failed.samples[0].ttft_ms is None and failed.samples[0].note == "HTTP 500: no memory"
    assert failed.prefill_tok_s.value is None and failed.prefill_tok_s.reason and verdict.status == Status.FAILED


def test_one_prefill_has_no_interval() -> None:
    rate = prefill([cold(800), cold(810)])[0].prefill_tok_s
    assert rate.value is not None and rate.low is None and "too few" in (rate.reason or "")


def test_m1_prefill_ends_at_the_first_content() -> None:
    made, _ = prefill([Request([Event(5 * MS, 0, 0), Event(214 * MS, 4, 1)], prompt=214, cached=0)])
    assert made.samples[0].prefill_tok_s == pytest.approx(1000)


def test_cold_ttft_has_the_interval_that_its_prompts_allow() -> None:
    def of(times_ms: list[float]) -> Distribution:
        starts = [i * 10 * S for i in range(len(times_ms))]
        ones = [stream_of([at + round(t * MS)], send_ns=at) for at, t in zip(starts, times_ms, strict=True)]
        return prefill(ones, prompt_tokens=1000)[0].ttft_ms

    three = of([99.0, 100.0, 101.0])
    assert three.p50 == pytest.approx(100.0) and three.p50_low is not None and three.p50_high is not None
    assert three.p50_high - 100.0 == pytest.approx(4.3026527297 / 3**0.5, rel=1e-6)
    assert "interval" not in three.reasons
    two = of([99.0, 101.0])
    assert two.p50_low is None and two.reasons["interval"] == "needs 3 prompts, has 2"
    ten = of([100.0 + i for i in range(10)])
    assert ten.p90 is not None and ten.p90_low is None and ten.reasons["p90_interval"] == "needs 36 prompts, has 10"


# ---- burst


def test_burst_rate_is_from_the_first_send_to_the_last_end() -> None:
    requests = [stream_of([S + i * 10 * MS for i in range(100 * (s + 1))], stream=s, send_ns=s) for s in range(4)]
    whole = cell.burst(samples(requests))
    made = whole.figures
    assert made.duration_s == pytest.approx(1 + 399 * 0.01)
    assert made.output_tokens == 1000 and made.end_to_end_tok_s.value == pytest.approx(1000 / 4.99)
    assert made.end_to_end_tok_s.low is None and "one sample" in (made.end_to_end_tok_s.reason or "")
    assert made.ttft_ms.n == 4 and made.ttft_ms.p50 == pytest.approx(1000)
    assert made.per_request_tok_s.p50 == pytest.approx(100) and made.completed == 4
    assert burst_verdict(whole, Given(4)).status == Status.VALID


def test_burst_with_failures_and_with_nothing() -> None:
    requests = [stream_of([S + i * 10 * MS for i in range(50)], stream=s) for s in range(3)]
    requests.append(Request(stream=3, end_ns=20 * S, outcome=FAILED))
    made = cell.burst(samples(requests), rate_limited=2)
    assert made.figures.failed_requests == 1 and made.figures.ttft_ms.censored == 1
    reason = burst_verdict(made, Given(4)).reason or ""
    assert "1 of 4 requests failed" in reason and "2 requests were refused" in reason
    empty = cell.burst(Samples.empty())
    assert empty.figures.end_to_end_tok_s.value is None and empty.figures.duration_s is None
    assert burst_verdict(empty, Given(4)).status == Status.FAILED
