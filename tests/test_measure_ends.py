"""Where a closed-loop window may end: as many pauses inside as the long run has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.measure.pauses import SPEED_OFF, even_ends, pauses_ended


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
    ends = even_ends(firsts, 4096, token_ms / 1e3, pause_s, age_s, wanted, 0.005)
    assert ends == sorted(set(ends)) and wanted[0] <= ends[0] and ends[-1] <= wanted[-1]
    if ends != [wanted[-1]]:
        for end in ends:
            assert abs(long_run_excess(firsts, 4096, token_ms / 1e3, pause_s, age_s, end)) <= 0.006


def test_a_window_does_not_end_before_the_first_pause() -> None:
    """One stream at 251k tokens: 13 s of answer, 1 s of pause. Five seconds would show 7 % too much."""
    ends = even_ends([4096], 4096, 13.0 / 4096, 1.0, 0.1, [5.0, 9.1, 16.5, 30.0], 0.005)
    assert ends[0] == pytest.approx(14.0, abs=0.7)


def test_without_pauses_the_wanted_ends_stand() -> None:
    ends = even_ends([50, 100], 100, 0.01, 0.0, 0.0, [5.0, 10.0], 0.005)
    assert ends == pytest.approx([5.0, 10.0], abs=0.05)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6), st.floats(0.001, 0.1), st.floats(0.01, 2), st.floats(0, 3),
    st.floats(1, 60),
)  # fmt: skip
def test_the_pauses_that_end_in_a_window_are_counted(
    firsts: list[int], token_s: float, pause_s: float, age_s: float, at_s: float
) -> None:
    """Against streams walked through one by one, at the slower speed that the count allows for."""
    slow_s, seen = token_s * SPEED_OFF, 0
    for first in firsts:
        at = first * slow_s + pause_s - age_s
        while at <= at_s:
            seen += at > 0
            at += 400 * slow_s + pause_s
    assert abs(pauses_ended(firsts, 400, token_s, pause_s, age_s, at_s) - seen) <= (1 if seen else 0)
