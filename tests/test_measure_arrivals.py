"""Arrivals that came together count as one, however promptly the client read them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.measure import trace
from flatout.measure.cell import decode
from flatout.measure.tokens import count
from flatout.measure.trace import TOGETHER_NS, joined
from tests.measure_samples import MS, Request, S, samples, stream_of

GAPS = st.lists(st.lists(st.sampled_from([0, 1, 20_000, 300_000, TOGETHER_NS, TOGETHER_NS + 1, 5 * MS]), max_size=30))


@given(GAPS)
def test_joined_matches_a_naive_walk(requests: list[list[int]]) -> None:
    made = samples([stream_of(np.cumsum([MS, *gaps]).tolist(), send_ns=0, stream=i) for i, gaps in enumerate(requests)])
    whole = trace.build(made, count(made))
    found = joined(whole)
    expected: list[tuple[int, int, float]] = []
    begun = -1
    for request, t, k in zip(whole.request.tolist(), whole.t_ns.tolist(), whole.k.tolist(), strict=True):
        if expected and expected[-1][0] == request and t - begun <= TOGETHER_NS:
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
    assert joined(trace.build(made, count(made))).first_ns.tolist() == [20 * MS]
