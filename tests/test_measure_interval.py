from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks import coverage
from hypothesis import given
from hypothesis import strategies as st

from flatout.measure import interval
from flatout.measure.interval import (
    LEAST_TOKENS,
    batch_interval,
    between_repeats,
    early_end,
    least_independent,
    order_interval,
    quantile_intervals,
    rate_interval,
    section_interval,
)
from flatout.measure.pauses import expected_deviation
from flatout.measure.percentile import quantile
from flatout.measure.student import beta_inc, t_cdf, t_quantile
from flatout.measure.trend import batches, drift, few_switches, modes

# Tables of Student's t (two-sided 95 % and others), to the digits that tables print.
KNOWN_T = [
    (0.975, 1, 12.7062047362), (0.975, 2, 4.3026527297), (0.975, 4, 2.7764451052), (0.975, 10, 2.2281388520),
    (0.975, 30, 2.0422724563), (0.975, 1000, 1.9623390808), (0.995, 5, 4.0321429836), (0.999, 3, 10.2145318524),
    (0.9, 7, 1.4149239277), (0.025, 10, -2.2281388520), (0.5, 3, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("p", "df", "value"), KNOWN_T)
def test_t_quantile_matches_the_tables(p: float, df: float, value: float) -> None:
    assert t_quantile(p, df) == pytest.approx(value, rel=1e-9, abs=1e-12)


@given(st.floats(0.001, 0.999), st.floats(0.5, 500))
def test_t_quantile_inverts_the_distribution(p: float, df: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


def test_t_quantile_refuses_nonsense() -> None:
    for p, df in ((0.0, 3), (1.0, 3), (0.5, 0)):
        with pytest.raises(ValueError, match="no t quantile"):
            t_quantile(p, df)


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.01, 0.99))
def test_beta_inc_is_the_binomial_sum(n: int, k: int, x: float) -> None:
    k = min(k, n - 1)
    naive = sum(math.comb(n, i) * x**i * (1 - x) ** (n - i) for i in range(k + 1, n + 1))
    assert beta_inc(k + 1, n - k, x) == pytest.approx(naive, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "least", "most", "claimed"),
    [
        ("independent gaps (Poisson)", 0.92, 0.985, (0.98, 0.98, 0.98)),
        ("steps, 10 %", 0.92, 0.99, (0.98, 0.98, 0.0)),
        ("steps, autocorrelated 0.5", 0.91, 0.985, (0.98, 0.9, 0.0)),
        ("speculative, 1-5 tokens", 0.92, 0.99, (0.8, 0.8, 0.8)),
        ("gaps and common stalls, 3 %", 0.9, 0.995, (0.98, 0.9, 0.0)),
        ("fast and slow phases", 0.92, 0.995, (0.3, 0.3, 0.0)),
        ("two modes, 10 steps", 0.9, 0.995, (0.3, 0.3, 0.0)),
        ("restarts, fixed length", 0.92, 1.0, (0.98, 0.98, 0.98)),
        ("restarts, varied length", 0.92, 1.0, (0.98, 0.98, 0.98)),
        ("regular steps", 0.95, 1.0, (1.0, 1.0, 0.0)),
        ("regular, streams apart", 0.95, 1.0, (1.0, 1.0, 1.0)),
    ],
)
def test_95_percent_means_95_percent(name: str, least: float, most: float, claimed: tuple[float, ...]) -> None:
    """200 traces through the whole path; 95 % ± 3 standard errors of that many (benchmarks/coverage.py has more).
    `claimed`: the least share of traces in which p50, p90 and p99 of the time between tokens have an interval."""
    rate, itl = coverage.fixed_window(coverage.KINDS[name], np.random.default_rng(11), 200, 8.0)
    assert rate.claims >= 0.85 * 200
    assert least <= rate.coverage <= most
    for score, share in zip(itl, claimed, strict=True):
        assert score.claims >= share * 200
        assert score.claims < 30 or score.coverage >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / score.claims)


@pytest.mark.parametrize("name", ["drifting by 10 %", "the same, both levels seen"])
def test_what_a_window_cannot_tell_is_not_claimed(name: str) -> None:
    """The percentiles of a speed that drifts, or that changes between two levels as slowly as the window is long."""
    _, itl = coverage.fixed_window(coverage.KINDS[name], np.random.default_rng(7), 100, 20.0)
    assert all(score.claims <= 10 for score in itl)


@pytest.mark.parametrize(
    ("name", "claimed"),
    [
        ("independent waits", (0.98, 0.98, 0.3)),
        ("waits in groups of five", (0.9, 0.5, 0.0)),
        ("waits that wander, 0.8", (0.9, 0.5, 0.0)),
    ],
)
def test_ttft_intervals_hold_the_truth(name: str, claimed: tuple[float, ...]) -> None:
    for score, share in zip(
        coverage.waits(coverage.WAITS[name], np.random.default_rng(2), 200, 600), claimed, strict=True
    ):
        assert score.claims >= share * 200
        assert score.claims < 30 or score.coverage >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / score.claims)


def test_requests_that_waited_for_each_other_have_no_interval() -> None:
    launch = coverage.WAITS["a launch, one after the other"]
    assert [score.claims for score in coverage.waits(launch, np.random.default_rng(0), 50, 120)] == [0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), min_size=60, max_size=400),
    st.sampled_from([0.5, 0.9]),
)
def test_a_quantiles_interval_holds_it_and_is_made_of_the_values(raw: list[tuple[int, int]], q: float) -> None:
    values, weights = (np.array(x, dtype=float) for x in zip(*raw, strict=True))
    where = np.arange(len(raw)) * 32 // len(raw)
    (found,) = quantile_intervals(values, weights, where, 32, [q], what="gaps")
    if isinstance(found, str):
        assert "independent" in found or "wandered" in found
        return
    made = quantile(values, weights, np.zeros(len(raw), dtype=bool), q)
    assert made is not None and found[0] <= made[0] + 0.5 and found[1] >= made[0] - 0.5
    assert found[0] in values and found[1] in values


@pytest.mark.parametrize(("told", "used"), [(36.0, 36.0), (50.0, 36.0), (54.0, 36.0), (72.0, 54.0), (1000.0, 982.0)])
def test_a_number_that_is_just_enough_is_not_taken_at_its_word(
    told: float, used: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p90 needs 36 independent samples; an estimate says so above all in the windows in which it is too high."""
    monkeypatch.setattr(interval._Ordered, "independent", lambda self, value: told)
    values = np.arange(100_000.0)
    (found,) = quantile_intervals(values, np.ones(100_000), np.arange(100_000) // 1000, 100, [0.9], what="gaps")
    shares = interval._fractions(used, 0.9)
    assert shares is not None and found == pytest.approx(tuple(100_000 * s for s in shares), abs=2)


def test_copies_of_one_step_count_once() -> None:
    """Eight streams that get their token in the same step tell no more than one stream does."""
    steps = np.random.default_rng(1).exponential(20.0, 1000)
    where = np.arange(1000) * 256 // 1000
    (one,) = quantile_intervals(steps, np.ones(1000), where, 256, [0.9], what="gaps")
    (eight,) = quantile_intervals(np.repeat(steps, 8), np.ones(8000), np.repeat(where, 8), 256, [0.9], what="gaps")
    assert not isinstance(one, str) and not isinstance(eight, str)
    assert eight[1] - eight[0] == pytest.approx(one[1] - one[0], rel=0.15)


def test_a_percentile_needs_enough_independent_samples() -> None:
    assert [least_independent(q) for q in (0.5, 0.9, 0.99)] == [6, 36, 368]
    values = np.random.default_rng(0).exponential(size=300)
    p50, p90, p99 = quantile_intervals(values, np.ones(300), np.arange(300) * 64 // 300, 64, [0.5, 0.9, 0.99], what="x")
    assert not isinstance(p50, str) and not isinstance(p90, str)
    assert isinstance(p99, str) and p99.startswith("needs 368 independent x: it has about ")


def test_intervals_that_allow_for_looks_hold_at_the_early_end() -> None:
    kind = coverage.KINDS["independent gaps, 10 %"]
    score, mean_s = coverage.adaptive_window(kind, np.random.default_rng(3), 200, [2.5, 5.0, 7.5, 10.0], 0.01)
    assert score.coverage >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200)
    assert mean_s < 9.0


def test_looks_widen_the_interval() -> None:
    bins = np.random.default_rng(0).poisson(100, 256).astype(float)
    one, four = rate_interval(bins, bin_s=0.1), rate_interval(bins, bin_s=0.1, looks=4)
    assert one.value == four.value
    assert (four.relative_half_width or 0) > 1.15 * (one.relative_half_width or 1)


def test_pauses_of_few_streams_do_not_keep_a_window_open() -> None:
    """Two streams of 500 events/s that pause for 0.3 s once in 3 s: a hole in the counts, none in the pace."""
    decoding = np.full(1000, 2.0)
    for begin in (120, 270, 420, 570, 720, 870):
        decoding[begin : begin + 30] -= 1
    counts = decoding * 5
    assert not early_end(counts.tolist(), 0.01, 0.01, 0, 3)
    assert early_end(counts.tolist(), 0.01, 0.01, 0, 3, decoding.tolist())
    assert not early_end(counts.tolist(), 0.01, 0.01, 0, 3, decoding.tolist(), expected_deviation(0.1, 0))
    assert early_end(counts.tolist(), 0.01, 0.01, 0, 3, decoding.tolist(), expected_deviation(0.1, 6))
    slower = counts * np.where(np.arange(1000) < 500, 1.0, 0.9)
    assert not early_end(slower.tolist(), 0.01, 0.01, 0, 3, decoding.tolist())


def test_early_end_only_at_planned_looks() -> None:
    noisy = np.random.default_rng(0).exponential(10, 500).tolist()
    assert not early_end(noisy, 0.02, 0.01, 0, 3)
    assert early_end(noisy, 0.02, 0.01, 2, 3), "the last look always ends it"
    assert early_end([10.0] * 500, 0.02, 0.01, 0, 3)
    assert not early_end([], 0.02, 0.01, 0, 3)
    assert not early_end([0.0] * 500, 0.02, 0.01, 0, 3)
    with pytest.raises(ValueError, match="not planned"):
        early_end(noisy, 0.02, 0.01, 3, 3)


def test_engine_steps_do_not_pass_for_noise() -> None:
    """64 streams in lumps every 23 ms seen in bins of 20 ms: 0, 64, 64, 0, ... is a constant rate."""
    edges = np.arange(0, 6.0 + 1e-9, 0.02)
    counts, _ = np.histogram(np.repeat(np.arange(0, 6.0, 0.023), 64), edges)
    assert early_end(counts.tolist(), 0.02, 0.01, 0, 3)


def test_a_window_that_is_too_short_says_so() -> None:
    few = rate_interval(np.ones(8), bin_s=1.0)
    assert few.value == 1.0 and few.low is None and f"fewer than {LEAST_TOKENS}" in (few.reason or "")
    short = rate_interval(np.full(8, 100.0), bin_s=1.0)
    assert short.low is None and "too short" in (short.reason or "")
    wandering = rate_interval(np.linspace(1, 100, 256), bin_s=1.0)
    assert wandering.low is None and "wandered" in (wandering.reason or "")


@given(st.lists(st.floats(0, 1e6), min_size=12, max_size=300))
def test_an_interval_holds_its_own_mean(values: list[float]) -> None:
    found = batch_interval(np.array(values))
    if not isinstance(found, str):
        assert found[0] >= -1e-9 and found[1] >= -1e-9 and math.isfinite(found[0]) and math.isfinite(found[1])
    rate = rate_interval(np.array(values), bin_s=0.5)
    if rate.low is not None and rate.high is not None and rate.value is not None:
        assert rate.low <= rate.value * (1 + 1e-9) and rate.value <= rate.high * (1 + 1e-9)


def test_order_interval_of_the_median() -> None:
    """n = 10: ranks 2 and 9, coverage 97.9 % (table in David and Nagaraja); n = 5 cannot reach 95 %."""
    assert order_interval([float(i) for i in range(1, 11)], 0.5) == (2.0, 9.0)
    assert order_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.5) is None
    assert order_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5) == (1.0, 6.0)


@pytest.mark.parametrize("n", [7, 20, 60])
def test_order_interval_covers(n: int) -> None:
    rng, hits = np.random.default_rng(n), 0
    for _ in range(600):
        ends = order_interval(rng.exponential(size=n), 0.5)
        hits += ends is not None and ends[0] <= math.log(2) <= ends[1]
    assert hits / 600 >= 0.925


def test_section_interval() -> None:
    assert section_interval([1.0] * 5, centre=1.0) is None
    low, high = section_interval(np.random.default_rng(1).normal(10, 1, 32).tolist(), centre=10.0) or (0.0, 0.0)
    assert 9 < low < 10 < high < 11


def test_between_repeats() -> None:
    found = between_repeats([99.0, 100.0, 101.0])
    assert found.value == 100.0 and found.interval == "between repeats" and found.n == 3
    assert (found.high or 0) - 100 == pytest.approx(4.3026527297 / math.sqrt(3), rel=1e-9)
    assert between_repeats([5.0]).low is None and between_repeats([]).value is None


def test_drift_is_named_and_noise_is_not() -> None:
    shares = {name: (drifts, levels) for name, drifts, levels in coverage.changes(np.random.default_rng(2), 200)}
    assert shares["steady"] == (pytest.approx(0.0, abs=0.01), 0.0)
    assert shares["ramp of 10 %"][0] > 0.95
    assert shares["36 % slower for a third"][1] == 1.0


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_autocorrelated_noise_is_no_drift(phi: float) -> None:
    """A plain Mann-Kendall test calls a third of such series a trend at phi = 0.9."""
    rng, named = np.random.default_rng(4), 0
    for _ in range(300):
        noise, x = rng.standard_normal(256), np.zeros(256)
        for i in range(1, 256):
            x[i] = phi * x[i - 1] + math.sqrt(1 - phi * phi) * noise[i]
        found = drift(100 + 10 * x, least_change=0.02)
        named += found is not None and found.detected
    assert named / 300 <= 0.02


def test_a_small_drift_is_below_interest() -> None:
    found = drift(np.linspace(100, 101, 256), least_change=0.02)
    assert found is not None and found.p < 1e-6 and not found.detected
    assert drift(np.ones(8), least_change=0.02) is None
    assert drift(np.zeros(256), least_change=0.02) is None


def test_l8_two_modes_are_named_not_averaged() -> None:
    """Fault L8: 33 clean runs and 3 stalled at -36 %."""
    rng = np.random.default_rng(0)
    runs = [*(100 + rng.standard_normal(33)), *(64 + rng.standard_normal(3))]
    found = modes(runs)
    assert found is not None and found.low == pytest.approx(64, abs=2) and found.low_share == pytest.approx(3 / 36)
    assert modes(100 + rng.standard_normal(36)) is None
    assert modes([100.0] * 36) is None


def test_levels_that_alternate_are_no_levels() -> None:
    slower = np.where(np.arange(32) < 16, 40.0, 20.0)
    found = modes(slower, least=3, least_run=3)
    assert found is not None and (found.low, found.high, found.low_share) == (20.0, 40.0, 0.5)
    assert modes([100.0, 50.0] * 16, least=3, least_run=3) is None
    assert modes([100.0, 50.0] * 16, least=3) is not None


def test_few_switches_between_levels_are_counted() -> None:
    levels = np.repeat([40.0, 20.0, 40.0, 20.0], 8)
    assert few_switches(levels) == 3
    assert few_switches([40.0, 20.0] * 16) is None, "often enough to tell how much time each takes"
    assert few_switches(np.full(32, 40.0)) is None and few_switches([40.0, 20.0]) is None
    told = rate_interval(np.repeat(levels, 8), bin_s=0.1)
    assert told.low is None and "two levels, 3 times only" in (told.reason or "")
    assert "once only" in (rate_interval(np.repeat(levels[8:24], 16), bin_s=0.1).reason or "")


@given(st.integers(0, 10_000))
def test_one_mode_is_one_mode(seed: int) -> None:
    assert modes(batches(np.random.default_rng(seed).normal(100, 15, 256)), least=3) is None
