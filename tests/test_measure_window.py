"""What happened in a window: tokens, bins, pauses, gauges; what came together; where a window may end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engines.base import Live
from flatout.load.samples import CUT, FAILED, OK, REFUSED, Samples
from flatout.measure import pauses, trace, window
from flatout.measure.cell import decode
from flatout.measure.interval import rate_interval
from tests.measure_samples import MS, Event, Request, S, closed_loop, samples, stream_of, table_of


def test_tokens_between_is_half_open() -> None:
    table = table_of(samples([stream_of([S, 2 * S, 3 * S])]))
    assert window.tokens_between(table, S, 3 * S) == 2
    assert window.tokens_between(table, S, 3 * S + 1) == 3


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 9)), min_size=1, max_size=60), st.integers(0, 1000))
def test_tokens_between_matches_a_naive_sum_and_adds_up(raw: list[tuple[int, int]], middle: int) -> None:
    raw.sort()
    total = 0
    events = [Event(t, 4 * k, total := total + k) for t, k in raw]
    table = table_of(samples([Request(events)]))
    naive = sum(k for t, k in raw if 0 <= t < middle)
    assert window.tokens_between(table, 0, middle) == pytest.approx(naive)
    rest = window.tokens_between(table, middle, 1001)
    assert window.tokens_between(table, 0, middle) + rest == pytest.approx(total)


def test_regular_steps_give_equal_bins_whatever_the_step() -> None:
    """Bins of 10 ms beat against steps of 23 ms; spread over their gaps the tokens do not."""
    for step in (7 * MS, 23 * MS, 90 * MS):
        found = samples([stream_of(list(range(0, 12 * S, step)), stream=i) for i in range(3)])
        bins = window.smooth_bins(table_of(found), found, S, 10 * S, 256)
        assert np.allclose(bins, bins.mean())
        assert bins.sum() / 9 == pytest.approx(3 * S / step)


def test_smooth_bins_match_a_naive_spread() -> None:
    found = closed_loop(np.random.default_rng(3), jitter=0.4, per_event=3, seconds=4.0)
    table = table_of(found)
    t0, t1, n = S, 3 * S, 64
    edges = np.linspace(t0, t1, n + 1)
    naive = np.zeros(n)
    usual = window.mean_gap_ns(table, found.requests)
    for request, t, k, before in zip(table.request, table.t_ns, table.k, table.previous_ns, strict=True):
        if before < 0:
            before = t - usual[request]
        part = np.clip(edges, before, t) - before
        naive += np.diff(part) / (t - before) * k
    assert np.allclose(window.smooth_bins(table, found, t0, t1, n), naive, atol=1e-6)


def test_a_cut_stream_fills_its_last_gap_but_a_hang_does_not() -> None:
    times = list(range(0, 5 * S, 500 * MS))
    cut = samples([stream_of(times, end_ns=5 * S, outcome=CUT)])
    bins = window.smooth_bins(table_of(cut), cut, 0, 5 * S, 100)
    assert bins[-3] == pytest.approx(bins[50])
    hung = samples([stream_of(times[:4], end_ns=5 * S, outcome=CUT)])
    bins = window.smooth_bins(table_of(hung), hung, 0, 5 * S, 100)
    assert bins[50:].sum() == 0


def test_own_active_counts_time_in_flight() -> None:
    """Two requests of half the window each are one in the mean; a refused one never ran; an open one runs on."""
    found = samples(
        [
            Request(send_ns=0, end_ns=5 * S),
            Request(send_ns=5 * S, end_ns=10 * S),
            Request(send_ns=2 * S, end_ns=3 * S, outcome=REFUSED),
            Request(send_ns=8 * S, end_ns=-1, outcome=CUT),
        ]
    )
    assert window.own_active(found, 0, 10 * S) == pytest.approx(1.2)
    assert window.own_active(found, 2 * S, 4 * S) == pytest.approx(1.0)


def test_mean_gap() -> None:
    found = samples([stream_of([S, 2 * S, 5 * S]), stream_of([S], stream=1)])
    assert window.mean_gap_ns(table_of(found), 2).tolist() == [2 * S, 0]


def test_restarts_are_no_change_of_pace() -> None:
    """One stream of 100 tokens/s that pauses 0.3 s for each prefill: an even pace at the window's mean rate."""
    found = closed_loop(np.random.default_rng(0), streams=1, gap_ns=10 * MS, ttft_ns=310 * MS, seconds=10.0)
    table = table_of(found)
    bins = window.pace_bins(table, found, S, 9 * S, 256)
    assert len(bins) < 256 and np.allclose(bins, bins.mean(), rtol=1e-4)
    assert bins.mean() == pytest.approx(window.smooth_bins(table, found, S, 9 * S, 256).mean())
    assert np.ptp(window.smooth_bins(table, found, S, 9 * S, 256)) > 0.2


def test_a_slower_pace_is_seen_through_the_pauses() -> None:
    times = [*range(0, 5 * S, 10 * MS), *range(5 * S, 10 * S, 20 * MS)]
    found = samples([stream_of(times[i : i + 50], send_ns=times[i] - MS, round=i) for i in range(0, len(times), 50)])
    bins = window.pace_bins(table_of(found), found, S, 9 * S, 64)
    assert bins[:28].mean() == pytest.approx(2 * bins[-28:].mean(), rel=0.05)


def test_a_first_event_with_fewer_tokens_is_no_slower_moment() -> None:
    """4 tokens every 40 ms, but one alone with the first event of each answer: a quarter of the usual gap's work."""
    requests, t = [], 0
    for number in range(12):
        running = np.cumsum([1, *[4] * 24])
        events = [Event(t + i * 40 * MS, 4 * (4 if i else 1), int(n)) for i, n in enumerate(running)]
        requests.append(Request(events, send_ns=t - 15 * MS, round=number))
        t = events[-1].t_ns + 15 * MS
    found = samples(requests)
    bins = window.pace_bins(table_of(found), found, S, 9 * S, 256)
    assert np.allclose(bins, bins.mean(), rtol=0.01)


def test_answers_in_one_piece_keep_their_bins() -> None:
    found = samples([stream_of([i * 100 * MS], per_event=64, stream=i % 4, round=i // 4) for i in range(100)])
    table = table_of(found)
    bins = window.pace_bins(table, found, S, 9 * S, 64)
    assert len(bins) == 64 and bins.sum() == pytest.approx(window.tokens_between(table, S, 9 * S))


def paused(
    rng: np.random.Generator, window_s: float, streams: int, ttft_ms: int, output: int, varied: float, before: int
) -> tuple[Samples, int, int]:
    """Streams that answer in `output` tokens (± `varied` of it) of 20 ms, each begun anywhere in a cycle; the window
    opens after `before` cycles."""
    cycle = ttft_ms * MS + (output - 1) * 20 * MS
    t0 = 100 * S + before * cycle
    t1, requests = t0 + int(window_s * S), []
    for stream in range(streams):
        t, number = 100 * S - int(rng.integers(0, cycle)), 0
        while t < t1:
            length = max(4, round(output * (1 + varied * rng.uniform(-1, 1))))
            times = [t + ttft_ms * MS + i * 20 * MS for i in range(length)]
            kept = [x for x in times if x < t1]
            done = len(kept) == length
            made = stream_of(kept, send_ns=t, stream=stream, round=number, asked=output, end_ns=min(times[-1], t1))
            made.outcome = OK if done else CUT
            requests.append(made)
            t, number = times[-1], number + 1
    return samples(requests), t0, t1


@pytest.mark.parametrize(
    ("window_s", "streams", "output", "varied"),
    [
        (9.92, 1, 100, 0.0),  # four whole cycles of 2.48 s: it hardly matters where the window opens
        (11.2, 1, 100, 0.0),  # four and a half: it matters most
        (11.2, 4, 100, 0.0),
        (12.5, 4, 100, 0.3),
        (6.0, 4, 600, 0.0),  # half a cycle: most windows hold no pause
    ],
)
def test_what_the_pauses_did_to_a_window_is_known(window_s: float, streams: int, output: int, varied: float) -> None:
    """Brute force: 150 windows that open anywhere in the pattern; each tells how far it is off the long run."""
    rng = np.random.default_rng(5)
    left, spread, held = [], [], 0
    mean_answer_s = (output - 1 if not varied else np.mean([round(output * (1 + varied * u)) for u in
                                                            np.linspace(-1, 1, 2001)]) - 1) * 0.02  # fmt: skip
    pause_s = 0.5 - 0.02
    truth = streams * (1 - pause_s / (mean_answer_s + 0.02 + pause_s))
    for _ in range(150):
        found, t0, t1 = paused(rng, window_s, streams, 500, output, varied, 3)
        table = table_of(found)
        begin, end = window.decoding_spans(table, found, t1)
        decoding = window.overlap_mean(begin.astype(np.int64), end.astype(np.int64), t0, t1)
        made = pauses.pause_share(table, found, t0, t1)
        off = decoding / (1 + made.excess) / truth - 1
        spread.append(decoding / truth - 1)
        left.append(off)
        held += abs(off) <= 1.96 * made.deviation + 1e-3
    assert held >= 0.93 * 150
    assert np.std(left) < max(0.7 * np.std(spread), 2e-3), "most of what chance did is taken out"


def test_a_window_without_a_pause_does_not_say_that_there_is_none() -> None:
    """One stream of 3,000 tokens of 20 ms (a minute), a TTFT of 1.02 s, ten seconds of it: the long run has a pause of
    1 s in each 61, this window has none."""
    found = samples([stream_of(list(range(102 * 10 * MS, 60 * S, 20 * MS)), asked=3000, outcome=CUT, end_ns=60 * S)])
    made = pauses.pause_share(table_of(found), found, 20 * S, 30 * S)
    assert made.excess == pytest.approx(1 / 60, rel=0.02) and made.deviation == pytest.approx(0.5 / 60, rel=0.05)
    rate = rate_interval(np.full(256, 10.0), bin_s=0.1, paused=made)
    assert rate.low is not None and rate.low < 100 * 60 / 61 and rate.high is not None and rate.high >= 100.0


def test_requests_that_wait_for_a_place_are_no_pause() -> None:
    """Eight streams on a server that runs four: every place is filled again at once."""
    requests, free, asked = [], [0, 0, 0, 0], dict.fromkeys(range(8), 0)
    for number in range(80):
        stream = min(asked, key=lambda i: (asked[i], i))
        place = free.index(min(free))
        begin = max(free[place], asked[stream]) + 30 * MS
        times = [begin + i * 10 * MS for i in range(100 if number > 3 else 25 * (number + 1))]
        requests.append(stream_of(times, send_ns=asked[stream], stream=stream, round=number // 8, asked=100))
        free[place] = asked[stream] = times[-1]
    found = samples(requests)
    for t0 in range(3 * S, 8 * S, S // 2):
        made = pauses.pause_share(table_of(found), found, t0, t0 + 5 * S)
        assert abs(made.excess) < 0.02 and made.deviation < 0.01


def test_without_pauses_there_is_no_deviation() -> None:
    at_once = samples([stream_of(list(range(0, 10 * S, 10 * MS)))])
    assert pauses.pause_share(table_of(at_once), at_once, S, 9 * S) == pauses.PauseShare()
    in_one = samples([stream_of([i * 100 * MS], per_event=64, round=i) for i in range(100)])
    assert pauses.pause_share(table_of(in_one), in_one, S, 9 * S) == pauses.PauseShare()


def test_completed_needs_a_finish_reason_inside_the_window() -> None:
    found = samples(
        [
            Request(end_ns=1 * S),
            Request(end_ns=2 * S),
            Request(end_ns=3 * S),
            Request(end_ns=2 * S, outcome=FAILED),
            Request(end_ns=2 * S, outcome=CUT),
        ]
    )
    assert window.completed(found, 2 * S, 3 * S) == 1


def test_restart_idle_share() -> None:
    found = samples(
        [
            stream_of([S], send_ns=0, end_ns=4 * S),
            stream_of([6 * S], send_ns=5 * S, end_ns=10 * S, round=1),
            stream_of([S], send_ns=0, end_ns=10 * S, stream=1),
        ]
    )
    assert window.restart_idle_share(found, 0, 10 * S) == pytest.approx(1 / 20)


def test_mean_depth_weights_by_time() -> None:
    """100 prompt tokens; one token stands for 1 s, a second for 3 s."""
    found = samples([stream_of([S, 2 * S], send_ns=0, end_ns=5 * S, prompt=100)])
    depth = window.mean_depth(found, table_of(found), 7, 0, 5 * S)
    assert depth == pytest.approx((101 * 1 + 102 * 3) / 4)
    untold = samples([stream_of([S, 2 * S], send_ns=0, end_ns=5 * S)])
    assert window.mean_depth(untold, table_of(untold), 7, 0, 5 * S) == pytest.approx((8 + 9 * 3) / 4)
    assert isinstance(window.mean_depth(untold, table_of(untold), 7, 6 * S, 7 * S), str)


def test_gauge_mean_is_weighted_by_time() -> None:
    polls = [Live(0, running=100.0), Live(1 * S, running=2.0), Live(2 * S, running=2.0), Live(9 * S, running=16.0)]
    mean = window.gauge_mean(polls, "running", S, 10 * S)
    assert mean == pytest.approx((0.5 * 2 + 4 * 2 + 4.5 * 16) / 9)


def test_gauge_of_nothing_has_a_reason() -> None:
    assert "does not tell" in str(window.gauge_mean([], "running", 0, S))
    assert "no poll" in str(window.gauge_mean([Live(5 * S, running=1.0)], "running", 0, S))


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 50), min_size=1, max_size=30))
def test_gauge_mean_matches_a_naive_nearest_poll(raw: dict[int, int]) -> None:
    polls = [Live(t * MS, waiting=float(v)) for t, v in raw.items()]
    mean = window.gauge_mean(polls, "waiting", 0, 100 * MS)
    assert not isinstance(mean, str)
    grid = [(i + 0.5) / 10 for i in range(1000)]
    nearest = [min(raw, key=lambda t: (abs(t - x), t)) for x in grid]
    assert mean == pytest.approx(sum(raw[t] for t in nearest) / 1000, abs=0.6)
    assert min(raw.values()) - 1e-9 <= mean <= max(raw.values()) + 1e-9


def test_s6_acceptance_is_the_counters_difference() -> None:
    """Fault S6: neither the gauge's last value nor the totals since the server's start."""
    polls = [
        Live(0, drafts_total=1000.0, drafted_total=4000.0, accepted_total=0.0, accept_length=9.0),
        Live(1 * S, drafts_total=2000.0, drafted_total=8000.0, accepted_total=100.0, accept_length=9.0),
        Live(2 * S, drafts_total=2100.0, drafted_total=8400.0, accepted_total=350.0, accept_length=9.0),
        Live(3 * S, drafts_total=2200.0, drafted_total=8800.0, accepted_total=400.0, accept_length=9.0),
    ]
    found = window.acceptance(polls, S, 4 * S)
    assert found.how == "counters" and found.length == pytest.approx(1 + 300 / 200)
    assert found.draft_share == pytest.approx(300 / 800)


def test_s6_a_gauge_is_averaged_and_labelled() -> None:
    polls = [Live(t * S, accept_length=v) for t, v in ((0, 1.0), (1, 3.0), (2, 5.0))]
    found = window.acceptance(polls, S, 3 * S)
    assert found.how == "gauge mean" and found.length == pytest.approx((0.5 * 3 + 1.5 * 5) / 2)
    assert window.acceptance([Live(0)], 0, S).reason
    idle = [Live(0, drafts_total=5.0, accepted_total=3.0), Live(S, drafts_total=5.0, accepted_total=3.0)]
    none = window.acceptance(idle, 0, 2 * S)
    assert none.length is None and "no verification step" in (none.reason or "")


def test_a_counter_that_falls_is_no_difference() -> None:
    polls = [Live(0, preemptions_total=7.0), Live(S, preemptions_total=0.0)]
    assert "backwards" in str(window.counter_delta(polls, "preemptions_total", 0, 2 * S))
    assert "fewer than two polls" in str(window.counter_delta(polls[:1], "preemptions_total", 0, 2 * S))


def test_series_hold_all_tokens_and_few_points() -> None:
    found = closed_loop(np.random.default_rng(1), seconds=6.0)
    table = table_of(found)
    series = window.rate_series(table, S, 5 * S)
    assert series is not None and 10 <= len(series.values) <= window.CHART_POINTS
    assert sum(v or 0.0 for v in series.values) * 4 / len(series.values) == pytest.approx(
        window.tokens_between(table, S, 5 * S)
    )
    polls = [Live(i * MS, running=float(i)) for i in range(5000)]
    many = window.gauge_series(polls, "running", 0, 5 * S)
    assert many is not None and len(many.values) <= window.CHART_POINTS


# ---- arrivals that came together


GAPS = st.lists(
    st.lists(st.sampled_from([0, 1, 20_000, 300_000, trace.TOGETHER_NS, trace.TOGETHER_NS + 1, 5 * MS]), max_size=30)
)


@given(GAPS)
def test_joined_matches_a_naive_walk(requests: list[list[int]]) -> None:
    made = samples([stream_of(np.cumsum([MS, *gaps]).tolist(), send_ns=0, stream=i) for i, gaps in enumerate(requests)])
    whole = table_of(made)
    found = trace.joined(whole)
    expected: list[tuple[int, int, float]] = []
    begun = -1
    for request, t, k in zip(whole.request.tolist(), whole.t_ns.tolist(), whole.k.tolist(), strict=True):
        if expected and expected[-1][0] == request and t - begun <= trace.TOGETHER_NS:
            expected[-1] = (request, t, expected[-1][2] + k)
        else:
            expected.append((request, t, k))
            begun = t
    assert list(zip(found.request.tolist(), found.t_ns.tolist(), found.k.tolist(), strict=True)) == expected
    assert (found.first_ns == whole.first_ns).all()
    for i in range(len(expected)):
        first = i == 0 or expected[i - 1][0] != expected[i][0]
        assert found.previous_ns[i] == (-1 if first else expected[i - 1][1])
        assert found.before[i] == (0.0 if first else found.before[i - 1] + found.k[i - 1])


@pytest.mark.parametrize("read", [(0, 15, 30, 45), (45, 45, 45, 45), (0, 30, 30, 45), (15, 15, 45, 45)])
def test_a_burst_read_in_any_way_gives_the_same_figures(read: tuple[int, ...]) -> None:
    """Four tokens a step of 20 ms, sent 15 us apart. `read`: the stamps that a client gave them, in us."""
    times = [step * 20 * MS + us * 1000 for step in range(1, 200) for us in read]
    made = samples([stream_of(times, send_ns=0, end_ns=5 * S)])
    figures = decode(made, t_open_ns=MS, t_close_ns=4 * S, context_tokens=0).figures
    assert figures.itl_ms.p50 == pytest.approx(5.0, rel=0.001)
    assert figures.itl_ms.p99 == pytest.approx(5.0, rel=0.001)
    assert figures.tpot_ms.p50 == pytest.approx(5.0, rel=0.001)
    assert figures.total_tok_s.value == pytest.approx(199 * 4 / 3.999, rel=0.001)


def test_a_stream_faster_than_that_keeps_its_speed() -> None:
    made = samples([stream_of([MS + i * 200_000 for i in range(20_000)], send_ns=0, end_ns=5 * S)])
    figures = decode(made, t_open_ns=10 * MS, t_close_ns=3 * S, context_tokens=0).figures
    assert figures.itl_ms.p50 == pytest.approx(0.2) and figures.tpot_ms.p50 == pytest.approx(0.2, rel=0.001)


def test_the_first_token_keeps_its_time() -> None:
    made = samples([Request(stream_of([20 * MS, 20 * MS + 100_000, 30 * MS]).events, send_ns=0)])
    assert trace.joined(table_of(made)).first_ns.tolist() == [20 * MS]


# ---- where a window may end


def long_run_excess(firsts: list[int], most: int, token_s: float, pause_s: float, age_s: float, at_s: float) -> float:
    """Decoding time of a window by walking through it, against the long run's."""
    step = at_s / 20_000
    t = age_s + (np.arange(20_000) + 0.5) * step
    cycle = most * token_s + pause_s
    decoding = 0.0
    for first in firsts:
        since = t - first * token_s
        decoding += float(((since < 0) | (np.mod(since, cycle) >= pause_s)).mean())
    return decoding / len(firsts) / (most * token_s / cycle) - 1


@given(
    streams=st.integers(1, 16), token_ms=st.floats(1.0, 8.0), pause_s=st.floats(0.05, 4.0), age_s=st.floats(0.0, 1.0)
)
def test_each_end_has_the_long_runs_share_of_pauses(
    streams: int, token_ms: float, pause_s: float, age_s: float
) -> None:
    firsts = [round(i * 4096 / streams) for i in range(1, streams + 1)]
    wanted = [5.0, 9.1, 16.5, 30.0]
    ends = pauses.even_ends(firsts, 4096, token_ms / 1e3, pause_s, age_s, wanted, 0.005)
    assert ends == sorted(set(ends)) and wanted[0] <= ends[0] and ends[-1] <= wanted[-1]
    if ends != [wanted[-1]]:
        for end in ends:
            assert abs(long_run_excess(firsts, 4096, token_ms / 1e3, pause_s, age_s, end)) <= 0.006


def test_a_window_does_not_end_before_the_first_pause() -> None:
    """One stream at 251k tokens: 13 s of answer, 1 s of pause. Five seconds would show 7 % too much."""
    ends = pauses.even_ends([4096], 4096, 13.0 / 4096, 1.0, 0.1, [5.0, 9.1, 16.5, 30.0], 0.005)
    assert ends[0] == pytest.approx(14.0, abs=0.7)


def test_without_pauses_the_wanted_ends_stand() -> None:
    ends = pauses.even_ends([50, 100], 100, 0.01, 0.0, 0.0, [5.0, 10.0], 0.005)
    assert ends == pytest.approx([5.0, 10.0], abs=0.05)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6), st.floats(0.001, 0.1), st.floats(0.01, 2), st.floats(0, 3),
    st.floats(1, 60),
)  # fmt: skip
def test_the_pauses_that_end_in_a_window_are_counted(
    firsts: list[int], token_s: float, pause_s: float, age_s: float, at_s: float
) -> None:
    """Against streams walked through one by one, at the slower speed that the count allows for."""
    slow_s, seen = token_s * pauses.SPEED_OFF, 0
    for first in firsts:
        at = first * slow_s + pause_s - age_s
        while at <= at_s:
            seen += at > 0
            at += 400 * slow_s + pause_s
    assert abs(pauses.pauses_ended(firsts, 400, token_s, pause_s, age_s, at_s) - seen) <= (1 if seen else 0)
