from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.load.samples import CUT, REASONING, TOOL, from_rows
from flatout.measure import trace
from flatout.measure.tokens import EVENTS, IDS, PER_BYTE, RETOKENISED, RUNNING, SOURCES, USAGE, count
from tests.measure_samples import MS, Event, Request, S, samples, stream_of


def test_t1_events_are_not_tokens_under_speculative_decoding() -> None:
    """Fault T1: 235 tokens in 78 events must be 235."""
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(np.arange(1, 235), 77, replace=False))
    running = [*cuts.tolist(), 235]
    sizes = np.diff([0, *running])
    events = [Event(i * MS, int(4 * k), n) for i, (k, n) in enumerate(zip(sizes, running, strict=True))]
    by_counts = count(samples([Request(events)]))
    assert by_counts.tokens.tolist() == sizes.tolist()
    assert by_counts.source[0] == RUNNING and not by_counts.estimated[0]
    without = [Event(e.t_ns, e.text_len) for e in events]
    by_usage = count(samples([Request(without, completion=235)]))
    assert by_usage.tokens.sum() == pytest.approx(235) and by_usage.source[0] == USAGE
    last_resort = count(samples([Request(without)]))
    assert last_resort.tokens.sum() == 78
    assert SOURCES[last_resort.source[0]] == "events" and last_resort.estimated[0]


def test_t2_counts_on_events_without_text_are_used() -> None:
    """Fault T2: usage that comes in events of its own, and on the role event, is used."""
    events = [Event(0, 0, 0)]
    for i in range(4):
        events += [Event((2 * i + 1) * MS, 8), Event((2 * i + 2) * MS, 0, 2 * (i + 1))]
    found = count(samples([Request(events)]))
    assert found.source[0] == RUNNING
    assert found.tokens.tolist() == [0, 2, 0, 2, 0, 2, 0, 2, 0]


def test_t2_a_count_in_the_last_event_only_is_usage() -> None:
    events = [Event(i * MS, 4) for i in range(10)] + [Event(11 * MS, 0, 20)]
    found = count(samples([Request(events, completion=20)]))
    assert SOURCES[found.source[0]] == "usage"
    assert found.tokens.tolist() == pytest.approx([2.0] * 10 + [0.0])


def test_t3_the_asked_length_is_never_taken_for_the_answer() -> None:
    """Fault T3: without usage the next source counts, and is flagged."""
    request = stream_of([i * MS for i in range(30)], running=False, asked=4096)
    found = count(samples([request]))
    assert found.tokens.sum() == 30 and found.estimated[0]
    given_tokens = count(samples([request]), retokenised={0: 41})
    assert given_tokens.tokens.sum() == pytest.approx(41)
    assert given_tokens.source[0] == RETOKENISED and given_tokens.estimated[0]


def test_t4_t6_the_servers_count_goes_before_the_text() -> None:
    """Faults T4, T6: with usage there, neither pieces of text nor characters decide."""
    request = stream_of([i * MS for i in range(100)], running=False, bytes_per_token=3, completion=80)
    found = count(samples([request]), retokenised={0: 125})
    assert found.tokens.sum() == pytest.approx(80) and found.source[0] == USAGE


@pytest.mark.parametrize("kind", [REASONING, TOOL])
def test_t5_reasoning_and_tool_text_are_tokens(kind: int) -> None:
    """Fault T5: a reply of reasoning or tool calls only is not zero."""
    events = [Event(i * MS, 4, i + 1, kind=kind) for i in range(20)]
    for known in (events, [Event(e.t_ns, 4, kind=kind) for e in events]):
        assert count(samples([Request(known)])).tokens.sum() == 20


def test_t5_billed_but_hidden_reasoning_stays_outside() -> None:
    request = stream_of([i * MS for i in range(50)], running=False, completion=350, reasoning=300)
    found = count(samples([request]))
    assert found.hidden[0] == 300 and found.tokens.sum() == pytest.approx(50)
    jump = [Event(i * MS, 4, 300 + i + 1) for i in range(50)]
    found = count(samples([Request(jump, completion=350, reasoning=300)]))
    assert found.hidden[0] == 300 and found.tokens.tolist() == [1.0] * 50


def test_t5_streamed_reasoning_is_not_hidden() -> None:
    shown = [Event(i * MS, 4, kind=REASONING) for i in range(30)] + [Event((30 + i) * MS, 4) for i in range(20)]
    found = count(samples([Request(shown, completion=50, reasoning=30)]))
    assert found.hidden[0] == 0 and found.tokens.sum() == pytest.approx(50)
    inline = stream_of([i * MS for i in range(50)], running=False, completion=50, reasoning=30)
    assert count(samples([inline])).hidden[0] == 0
    tagged = Request(
        [Event(i * MS, 16) for i in range(13)], completion=50, reasoning=30, text="<think>a</think>" + "b " * 90
    )
    assert count(samples([tagged])).hidden[0] == 0


def test_t8_all_choices_count() -> None:
    """Fault T8: with several choices the events' own counts are of one choice each; usage sums them."""
    events = [Event(i * MS, 4, i // 2 + 1) for i in range(40)]
    found = count(samples([Request(events, choices=2, completion=40)]))
    assert found.tokens.sum() == pytest.approx(40) and found.source[0] == USAGE


def test_partial_utf8_events_are_tokens_at_their_time() -> None:
    events = [Event(0, 4, 1), Event(MS, 0, 2), Event(2 * MS, 4, 3), Event(3 * MS, 4, 4)]
    assert count(samples([Request(events)])).tokens.tolist() == [1, 1, 1, 1]
    by_ids = [Event(0, 4, ids=1), Event(MS, 0, ids=1), Event(2 * MS, 4, ids=3)]
    found = count(samples([Request(by_ids)]))
    assert found.source[0] == IDS and found.tokens.tolist() == [1, 1, 3]


def test_counts_before_the_first_text_belong_to_it() -> None:
    events = [Event(0, 0, 1), Event(5 * MS, 4, 2), Event(6 * MS, 4, 3)]
    found = count(samples([Request(events)]))
    assert found.tokens.tolist() == [0, 2, 1]


def test_the_closing_events_token_belongs_to_the_last_text() -> None:
    events = [Event(0, 4, 1), Event(MS, 4, 2), Event(9 * MS, 0, 3)]
    assert count(samples([Request(events)])).tokens.tolist() == [1, 2, 0]
    billed = count(samples([Request(events[:2], completion=3)]))
    assert billed.tokens.tolist() == [1, 2]


def test_counts_that_fall_or_repeat_take_nothing_away() -> None:
    events = [Event(i * MS, 4, n) for i, n in enumerate([1, 2, 2, 1, 5, 5])]
    assert count(samples([Request(events)])).tokens.sum() == 5


def test_a_cut_request_takes_the_cells_tokens_per_byte() -> None:
    done = stream_of([i * MS for i in range(50)], running=False, bytes_per_token=5, completion=50)
    cut = stream_of([i * MS for i in range(20)], running=False, bytes_per_token=5, outcome=CUT, stream=1)
    found = count(samples([done, cut]), retokenised={1: 33})
    assert SOURCES[found.source[1]] == "tokens per byte" and found.estimated.tolist() == [False, True]
    assert found.tokens[50:].sum() == pytest.approx(20)
    alone = count(samples([cut]), retokenised={0: 33})
    assert alone.source[0] == RETOKENISED and alone.tokens.sum() == pytest.approx(33)
    assert count(samples([cut])).source[0] == EVENTS


def test_one_token_events_of_unequal_words_get_one_token_each() -> None:
    rng = np.random.default_rng(1)
    events = [Event(i * MS, int(n)) for i, n in enumerate(rng.integers(1, 8, 200))]
    found = count(samples([Request(events, completion=200)]))
    assert np.allclose(found.tokens, 1.0, atol=0.15)


def test_a_lump_after_a_stall_gets_its_tokens() -> None:
    events = [Event(i * MS, 4) for i in range(50)] + [Event(S, 400)]
    found = count(samples([Request(events, completion=150)]))
    assert found.tokens[-1] == pytest.approx(100, rel=0.2)


def test_the_first_event_alone_then_eight_tokens() -> None:
    """vLLM's and SGLang's stream interval of 8: first token alone."""
    events = [Event(0, 4)] + [Event(i * MS, 32) for i in range(1, 64)]
    found = count(samples([Request(events, completion=1 + 63 * 8)]))
    assert found.tokens[0] == pytest.approx(1.0)
    assert np.allclose(found.tokens[1:], 8.0)


def test_disagreeing_sources_are_kept_for_the_verdict() -> None:
    events = [Event(i * MS, 4, i + 1, ids=2) for i in range(10)]
    found = count(samples([Request(events, completion=15)]))
    assert found.usage_pair == (10.0, 15.0)
    assert found.ids_pair == (10.0, 20.0)


def test_m1_role_only_and_empty_events_are_no_first_token() -> None:
    """Fault M1: TTFT ends at the first generated content."""
    table = samples([Request([Event(5 * MS, 0, 0), Event(6 * MS, 0), Event(214 * MS, 4, 1)])])
    assert trace.build(table, count(table)).first_ns.tolist() == [214 * MS]
    ids_only = samples([Request([Event(5 * MS, 0, 0), Event(100 * MS, 0, ids=1), Event(214 * MS, 4, ids=1)])])
    assert trace.build(ids_only, count(ids_only)).first_ns.tolist() == [100 * MS]
    silent = samples([Request([Event(5 * MS, 0, 1), Event(7 * MS, 0, 2)])])
    assert trace.build(silent, count(silent)).first_ns.tolist() == [5 * MS]


def test_no_arrivals_at_all() -> None:
    for table in (samples([Request(completion=10), Request()]), from_rows([], [])):
        found = count(table)
        assert found.tokens.sum() == 0 and (found.source == -1).all()
        assert len(trace.build(table, found).t_ns) == 0


events_strategy = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.booleans()), min_size=1, max_size=30)


@given(events_strategy)
def test_running_counts_keep_the_total_and_match_a_naive_walk(raw: list[tuple[int, int, bool]]) -> None:
    """Sum of tokens = the last count, whatever events carry text or counts; where all do, plain differences."""
    running, events = 0, []
    for i, (text, step, told) in enumerate(raw):
        running += step
        events.append(Event(i * MS, text, running if told else -1))
    if sum(e.running > 0 for e in events) < max(2, len(events)):
        return
    found = count(samples([Request(events)]))
    assert found.source[0] == RUNNING
    assert (found.tokens >= 0).all()
    assert found.tokens.sum() == pytest.approx(max(e.running for e in events))
    if all(e.text_len for e in events) and all(step for _, step, _ in raw):
        assert found.tokens.tolist() == [step for _, step, _ in raw]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 500))
def test_spread_usage_keeps_the_total(lengths: list[int], total: int) -> None:
    found = count(samples([Request([Event(i * MS, n) for i, n in enumerate(lengths)], completion=total)]))
    assert found.tokens.sum() == pytest.approx(total)
    assert (found.tokens >= 0).all()
    if any(lengths):
        assert found.tokens[[n == 0 for n in lengths]].sum() == 0


@given(st.permutations(range(6)))
def test_the_order_of_requests_changes_nothing(order: list[int]) -> None:
    requests = [
        stream_of([i * MS for i in range(5 * (r + 1))], running=r % 2 == 0, completion=-1 if r == 3 else 5 * (r + 1))
        for r in range(6)
    ]
    plain, moved = count(samples(requests)), count(samples([requests[i] for i in order]))
    table = samples([requests[i] for i in order])
    for new, old in enumerate(order):
        assert moved.source[new] == plain.source[old]
        a, b = table.arrivals_of(new), samples(requests).arrivals_of(old)
        assert np.allclose(moved.tokens[a], plain.tokens[b])


def test_per_byte_is_named() -> None:
    assert SOURCES[PER_BYTE] == "tokens per byte"
