from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.load.samples import CUT, FAILED, REFUSED
from flatout.measure import latency
from flatout.measure.percentile import distribution, histogram, quantile
from tests.measure_samples import MS, Event, Request, S, closed_loop, samples, stream_of, table_of


def restart(send: int, ttft: int, number: int, **kwargs: object) -> Request:
    return stream_of([send + ttft], send_ns=send, round=number, **kwargs)  # type: ignore[arg-type]


# ---- weighted, censored quantiles


def naive_quantile(values: list[float], weights: list[int], q: float) -> float:
    """Every value repeated by its weight; the middle between two where q falls exactly between them."""
    many = sorted(v for v, w in zip(values, weights, strict=True) for _ in range(w))
    at = q * len(many)
    if abs(at - round(at)) < 1e-9 and 0 < round(at) < len(many):
        return (many[round(at) - 1] + many[round(at)]) / 2
    return many[min(math.ceil(at), len(many)) - 1]


pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), min_size=1, max_size=40)


@given(pairs, st.sampled_from([0.25, 0.5, 0.9, 0.99]))
def test_quantile_matches_repeating_each_value(raw: list[tuple[int, int]], q: float) -> None:
    values, weights = [float(v) for v, _ in raw], [w for _, w in raw]
    found = quantile(np.array(values), np.array(weights, dtype=float), np.zeros(len(raw), dtype=bool), q)
    assert found is not None and not found[1]
    assert found[0] == pytest.approx(naive_quantile(values, weights, q))


@given(pairs, st.sampled_from([0.5, 0.9]), st.integers(0, 39))
def test_quantile_properties(raw: list[tuple[int, int]], q: float, at: int) -> None:
    """Within the values; scaling weights, splitting one and the order change nothing; equals numpy's median."""
    values = np.array([v for v, _ in raw], dtype=float)
    weights = np.array([w for _, w in raw], dtype=float)
    none = np.zeros(len(raw), dtype=bool)
    plain = quantile(values, weights, none, q)
    assert plain is not None and values.min() <= plain[0] <= values.max()
    assert quantile(values, weights * 7.5, none, q) == pytest.approx(plain)
    assert quantile(values[::-1], weights[::-1], none, q) == pytest.approx(plain)
    i = at % len(raw)
    split_w = np.append(weights, weights[i] / 2)
    split_w[i] /= 2
    assert quantile(np.append(values, values[i]), split_w, np.zeros(len(raw) + 1, dtype=bool), q) == pytest.approx(
        plain
    )
    median = quantile(values, np.ones(len(values)), none, 0.5)
    assert median is not None and median[0] == pytest.approx(float(np.median(values)))


def naive_kaplan_meier(values: list[int], cut: list[bool], q: float) -> float | None:
    survival = 1.0
    for v in sorted({x for x, c in zip(values, cut, strict=True) if not c}):
        at_risk = sum(x >= v for x in values)
        ended = sum(x == v and not c for x, c in zip(values, cut, strict=True))
        survival *= 1 - ended / at_risk
        if survival <= 1 - q + 1e-9:
            return float(v) if survival < 1 - q - 1e-9 else None  # None: exactly on the step
    return math.inf


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=30), st.sampled_from([0.5, 0.9]))
def test_censored_quantile_matches_a_naive_kaplan_meier(raw: list[tuple[int, bool]], q: float) -> None:
    values, cut = [v for v, _ in raw], [c for _, c in raw]
    naive = naive_kaplan_meier(values, cut, q)
    found = quantile(np.array(values, dtype=float), np.ones(len(raw)), np.array(cut), q)
    assert found is not None
    if naive is None:
        return
    if math.isinf(naive):
        assert found == (max(values), True)
    else:
        assert found == (naive, False)


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=60), st.integers(1, 30))
def test_m12_cut_requests_never_make_a_percentile_shorter(values: list[int], cut_count: int) -> None:
    """Fault M12: adding waits that were cut after everything else can only raise the percentile, or hide it."""
    data = np.array(values, dtype=float)
    plain = quantile(data, np.ones(len(data)), np.zeros(len(data), dtype=bool), 0.5)
    more = np.append(data, np.full(cut_count, 1001.0))
    cut = np.append(np.zeros(len(data), dtype=bool), np.ones(cut_count, dtype=bool))
    found = quantile(more, np.ones(len(more)), cut, 0.5)
    assert plain is not None and found is not None
    assert found[0] >= plain[0]


def test_percentiles_without_enough_samples_say_so() -> None:
    few = distribution([1.0, 2.0, 3.0])
    assert few.p50 == 2.0 and few.p90 is None and few.p99 is None
    assert few.reasons["p90"] == "needs 10 requests, has 3"
    assert few.reasons["p99"] == "needs 100 requests, has 3"
    assert distribution(range(1, 101)).p99 is not None
    nothing = distribution([], empty="nobody came")
    assert nothing.p50 is None and nothing.reasons["p50"] == "nobody came"


@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_histogram_holds_all_weight_in_at_most_40_bins(values: list[float]) -> None:
    bins = histogram(np.array(values), np.full(len(values), 2.0))
    assert (bins is not None) == any(v > 0 for v in values)
    if bins is not None:
        assert len(bins.counts) <= 40 and len(bins.edges) == len(bins.counts) + 1
        assert sum(bins.counts) == pytest.approx(2.0 * len(values))
        assert bins.edges == sorted(bins.edges)


# ---- TTFT


def test_ttft_is_of_the_restarts_whose_first_token_falls_in_the_window() -> None:
    requests = [restart(0, 900 * MS, 0)]  # the launch
    requests += [restart(i * S, 100 * MS + i * MS, i) for i in range(1, 8)]
    found = samples(requests)
    result = latency.ttft(found, table_of(found), 2 * S, 8 * S)
    assert result.whose == latency.RESTARTS and result.n == 6
    assert result.p50 == pytest.approx(104.5)
    assert result.p50_low is not None and result.p50_low <= 104.5 <= (result.p50_high or 0)


def test_ttft_of_fewer_than_five_restarts_is_the_launchs_own() -> None:
    requests = [restart(0, 900 * MS, 0, stream=s) for s in range(3)]
    requests += [restart(i * S, 100 * MS, i) for i in range(1, 5)]
    found = samples(requests)
    result = latency.ttft(found, table_of(found), 2 * S, 8 * S)
    assert result.whose == latency.LAUNCH and result.p50 == pytest.approx(900) and result.n == 3
    assert "interval" in result.reasons


def test_percentiles_without_an_interval_say_why() -> None:
    requests = [restart(i * S, 100 * MS + i * MS, i) for i in range(1, 21)]
    result = latency.ttft(samples(requests), table_of(samples(requests)), S, 30 * S)
    assert result.p90 is not None and result.p90_low is None and result.p99 is None
    assert result.p50_low is not None and "interval" not in result.reasons
    assert result.reasons["p90_interval"] == "needs 36 requests, has 20" and "p99_interval" not in result.reasons


def test_all_percentiles_of_many_gaps_have_intervals_that_hold_them() -> None:
    found = closed_loop(np.random.default_rng(4), streams=8, gap_ns=10 * MS, jitter=0.2, seconds=12.0)
    for made in (
        latency.itl(latency.parts(found, table_of(found), S, 12 * S), S, 12 * S),
        latency.tpot(latency.parts(found, table_of(found), S, 12 * S), S, 12 * S),
        latency.ttft(found, table_of(found), S, 12 * S),
    ):
        for name in ("p50", "p90", "p99"):
            value, low, high = (getattr(made, f"{name}{end}") for end in ("", "_low", "_high"))
            key = "interval" if name == "p50" else f"{name}_interval"
            assert (value is None) == (name in made.reasons)
            if low is None or high is None:
                assert value is None or key in made.reasons
            else:
                assert 0 <= low <= value <= high and key not in made.reasons
    itl = latency.itl(latency.parts(found, table_of(found), S, 12 * S), S, 12 * S)
    assert itl.p99_low is not None and itl.p99_high is not None and itl.p99_high < 1.1 * itl.p99_low


def test_a_hang_leaves_p99_without_an_upper_end() -> None:
    requests = [stream_of([i * 10 * MS for i in range(500)], stream=s) for s in range(7)]
    requests += [
        stream_of([i * 10 * MS for i in range(20)], stream=s, outcome=CUT, end_ns=5 * S) for s in range(7, 107)
    ]
    found = samples(requests)
    result = latency.itl(latency.parts(found, table_of(found), 0, 5 * S), 0, 5 * S)
    assert result.censored == 100 and result.p50_high is not None
    assert result.p99 is None or (result.p99_high is None and "p99_interval" in result.reasons)


def test_tpot_of_streams_in_step_is_no_surer_than_their_common_pace() -> None:
    """Eight streams in step at a pace that wanders have eight equal TPOTs: that they agree proves nothing."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(900)
    for i in range(1, len(x)):
        x[i] = 0.9 * x[i - 1] + 0.44 * x[i]
    times = (np.cumsum(10 * MS * (1 + 0.1 * x)).astype(int) + S).tolist()
    found = samples([stream_of(times, stream=s) for s in range(8)])
    made = latency.tpot(latency.parts(found, table_of(found), S, 9 * S), S, 9 * S)
    assert made.p50 is not None and made.p50_low is not None and made.p50_high is not None
    assert made.p50_high - made.p50_low > 0.01 * made.p50


def test_m12_requests_still_waiting_are_censored() -> None:
    """Fault M12: five quick ones came, twenty wait: the median is not the quick ones'."""
    requests = [restart(i * S, 10 * MS, i) for i in range(1, 6)]
    requests += [Request(send_ns=S, stream=s, round=1, end_ns=10 * S, outcome=CUT) for s in range(1, 21)]
    found = samples(requests)
    result = latency.ttft(found, table_of(found), S, 10 * S)
    assert result.whose == latency.RESTARTS and result.censored == 20 and result.n == 25
    assert result.p50 is None and "20 of 25 requests were cut" in result.reasons["p50"]


def test_an_error_is_no_wait_but_a_time_out_is() -> None:
    requests = [restart(i * S, 10 * MS, i) for i in range(1, 7)]
    requests.append(Request(send_ns=2 * S, round=1, stream=1, end_ns=2 * S + MS, outcome=FAILED, http_status=500))
    requests.append(Request(send_ns=2 * S, round=1, stream=2, end_ns=9 * S, outcome=FAILED))
    requests.append(Request(send_ns=2 * S, round=1, stream=3, end_ns=9 * S, outcome=REFUSED, http_status=429))
    found = samples(requests)
    result = latency.ttft(found, table_of(found), S, 10 * S)
    assert result.n == 7 and result.censored == 1 and result.max is None


def test_m2_connect_time_is_apart() -> None:
    found = samples([stream_of([10 * MS], connect_ns=3 * MS), stream_of([10 * MS], connect_ns=5 * MS, stream=1)])
    assert latency.connect_ms(found) == pytest.approx(4.0)
    result = latency.ttft(found, table_of(found), 0, S)
    assert result.p50 == pytest.approx(10.0)
    assert isinstance(latency.connect_ms(samples([stream_of([MS])])), str)


# ---- TPOT and ITL


def test_tpot_leaves_the_first_arrivals_tokens_out() -> None:
    """4 tokens every 40 ms: (last - first) / (n - 4) = 10 ms."""
    found = samples([stream_of([i * 40 * MS for i in range(20)], per_event=4)])
    parts = latency.parts(found, table_of(found), 0, S)
    assert parts.tpot_ms.tolist() == pytest.approx([10.0])
    assert latency.itl(parts, 0, S).p50 == pytest.approx(10.0)


def test_itl_is_token_weighted() -> None:
    """30 gaps of 10 ms with one token, 10 gaps of 20 ms with 8: by tokens the second kind is the usual one."""
    t, total, events = 0, 1, [Event(0, 4, 1)]
    for gap, k, times in ((10, 1, 30), (20, 8, 10)):
        for _ in range(times):
            t, total = t + gap * MS, total + k
            events.append(Event(t, 4 * k, total))
    found = samples([Request(events)])
    result = latency.itl(latency.parts(found, table_of(found), 0, S), 0, S)
    assert result.p50 == pytest.approx(20 / 8) and result.p90 == pytest.approx(10.0)


def test_parts_are_clipped_to_the_window_and_need_16_tokens() -> None:
    times = [i * 10 * MS for i in range(100)] + [S + i * 30 * MS for i in range(40)]
    found = samples([stream_of(times), stream_of(times[:15], stream=1)])
    parts = latency.parts(found, table_of(found), S, 3 * S)
    assert parts.tpot_ms.tolist() == pytest.approx([30.0])
    assert len(latency.parts(found, table_of(found), 0, 150 * MS).tpot_ms) == 0
    assert len(latency.parts(found, table_of(found), 0, 151 * MS).tpot_ms) == 1


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=20, max_size=60))
def test_parts_match_a_naive_walk(raw: list[tuple[int, int]]) -> None:
    t, total, events = 0, 0, []
    for gap, k in raw:
        t, total = t + gap * MS, total + k
        events.append(Event(t, 4 * k, total))
    found = samples([Request(events)])
    parts = latency.parts(found, table_of(found), 0, 10 * S)
    assert parts.tpot_ms.tolist() == pytest.approx([(t - raw[0][0] * MS) / MS / (total - raw[0][1])])
    assert parts.gap_ms.tolist() == pytest.approx([g / k for g, k in raw[1:]])
    assert parts.gap_tokens.tolist() == [k for _, k in raw[1:]]


@given(st.integers(0, 30))
def test_splitting_an_arrival_in_two_at_once_changes_nothing(at: int) -> None:
    whole = [Event(i * 7 * MS, 8, 2 * (i + 1)) for i in range(31)]
    split = []
    for i, e in enumerate(whole):
        split += [Event(e.t_ns, 4, e.running - 1), Event(e.t_ns, 4, e.running)] if i == at else [e]
    a, b = samples([Request(whole)]), samples([Request(split)])
    pa, pb = latency.parts(a, table_of(a), 0, S), latency.parts(b, table_of(b), 0, S)
    assert pa.tpot_ms.tolist() == pytest.approx(pb.tpot_ms.tolist())
    assert pa.gap_ms.tolist() == pytest.approx(pb.gap_ms.tolist())
    assert latency.longest_gap(a, table_of(a), 0, S) == latency.longest_gap(b, table_of(b), 0, S)


def test_m12_a_hang_is_in_tpot_and_itl_as_a_lower_bound() -> None:
    """Fault M12: 20 tokens in 0.2 s, then silence for 10 s until the window ends."""
    found = samples([stream_of([i * 10 * MS for i in range(20)], outcome=CUT, end_ns=10 * S)])
    parts = latency.parts(found, table_of(found), 0, 10 * S)
    assert parts.cut.tolist() == [True]
    assert parts.tpot_ms[0] == pytest.approx(10_000 / 20, rel=0.01)
    result = latency.itl(parts, 0, 10 * S)
    assert result.censored == 1 and result.max is None
    assert latency.longest_gap(found, table_of(found), 0, 10 * S) == (pytest.approx(9810.0), True)


def test_a_usual_cut_changes_neither_tpot_nor_itl() -> None:
    found = samples([stream_of([i * 10 * MS for i in range(100)], outcome=CUT, end_ns=995 * MS)])
    parts = latency.parts(found, table_of(found), 0, 995 * MS)
    assert not parts.cut.any() and parts.tpot_ms.tolist() == pytest.approx([10.0])


def test_longest_gap_is_clipped_to_the_window_and_sees_short_requests() -> None:
    found = samples([stream_of([0, S, 4 * S, 4 * S + MS]), stream_of([0, 2 * S], stream=1)])
    table = table_of(found)
    assert latency.longest_gap(found, table, 0, 5 * S) == (pytest.approx(3000.0), False)
    assert latency.longest_gap(found, table, 2 * S, 5 * S) == (pytest.approx(2000.0), True)
    assert latency.longest_gap(found, table, 0, 5 * S // 2) == (pytest.approx(2000.0), False)
    assert latency.longest_gap(found, table, 10 * S, 11 * S) == (None, False)


def test_a_request_that_ended_well_is_not_silent_after_its_end() -> None:
    found = samples([stream_of([i * 10 * MS for i in range(20)])])
    assert latency.longest_gap(found, table_of(found), 0, 10 * S) == (pytest.approx(10.0), False)


def test_request_rate_is_the_reciprocal_of_the_median_tpot() -> None:
    found = closed_loop(np.random.default_rng(0), streams=3, gap_ns=25 * MS, seconds=12.0)
    parts = latency.parts(found, table_of(found), S, 12 * S)
    rate = latency.per_request_tok_s(latency.tpot(parts, S, 12 * S))
    assert rate.p50 == pytest.approx(40.0)
    assert rate.p50_low == pytest.approx(40.0, rel=1e-6) and rate.p50_high == pytest.approx(40.0, rel=1e-6)
    silent = samples([Request()])
    in_one = latency.per_request_tok_s(latency.tpot(latency.parts(silent, table_of(silent), 0, S), 0, S))
    assert in_one.p50 is None and in_one.reasons["p50"]
