"""Rates at both ends of all floats, which anybody may publish: rankings, histories and reproductions bear them."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flatout.compare.ratio import estimate
from flatout.site import boards, history, reproductions

VALUES = st.one_of(
    st.sampled_from([5e-324, 1e-308, 1e-300, 1.0, 1e300, 1e304, 1e308, sys.float_info.max]),
    st.floats(min_value=5e-324, allow_infinity=False),
)


@st.composite
def rates(draw: st.DrawFn) -> tuple[float, float | None, float | None]:
    """A value with any interval that holds it, or none."""
    value = draw(VALUES)
    low = draw(st.one_of(st.none(), st.just(0.0), st.floats(0.0, value)))
    high = draw(st.one_of(st.none(), st.floats(value, allow_infinity=False)))
    return value, low, high


FALL = [(1e308, 0.9e308, 1.1e308)] * 4 + [(1e-308, 1e-308, 1.1e-308)] * 4


@settings(max_examples=300, deadline=None)
@given(st.lists(rates(), min_size=1, max_size=8))
@example(FALL)
def test_what_is_pooled_is_a_number(found: list[tuple[float, float | None, float | None]]) -> None:
    pooled = boards.pool([one for one in (estimate(*rate) for rate in found) if one is not None])
    assert pooled is not None and 0 < pooled.value < math.inf
    assert pooled.high is None or (math.isfinite(pooled.high) and pooled.low is not None)


@settings(max_examples=300, deadline=None)
@given(st.lists(rates(), min_size=1, max_size=8))
@example(FALL)
def test_a_ranking_of_anything_has_places(found: list[tuple[float, float | None, float | None]]) -> None:
    rows = [boards.Pooled(value, low, high, 1) for value, low, high in sorted(found, key=lambda rate: -rate[0])]
    places = boards.places(rows)
    assert places[0] == 1 and places == sorted(places)
    led = boards.lead(rows[0], rows[-1])
    assert 0 < led.value < math.inf and (led.low is None or led.low <= led.value)


@settings(max_examples=150, deadline=None)
@given(st.lists(rates(), min_size=4, max_size=12))
@example(FALL)
@example(FALL[::-1])
def test_a_history_of_anything_is_told(found: list[tuple[float, float | None, float | None]]) -> None:
    made = history.change_points([history.Dated(n, *rate, public_id=f"{n}") for n, rate in enumerate(found)])
    for shift in made:
        assert 0 < shift.change.value < math.inf and shift.change.p is not None


def test_the_widest_fall_is_a_shift() -> None:
    (shift,) = history.change_points([history.Dated(n, *rate, public_id=f"{n}") for n, rate in enumerate(FALL)])
    assert shift.index == 4 and shift.change.value < 1e-300


@settings(max_examples=150, deadline=None)
@given(rates(), st.lists(rates(), min_size=1, max_size=4))
@example(FALL[0], FALL[4:])
def test_anything_agrees_or_not(
    mine: tuple[float, float | None, float | None], others: list[tuple[float, float | None, float | None]]
) -> None:
    def cell(rate: tuple[float, float | None, float | None]) -> SimpleNamespace:
        return SimpleNamespace(rate_tok_s=rate[0], rate_low=rate[1], rate_high=rate[2])

    key = ("prefill", 8192, 1)
    (made,) = reproductions.agree({key: cell(mine)}, [{key: cell(other)} for other in others])
    assert 0 < made.difference.value < math.inf
