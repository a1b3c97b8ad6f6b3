"""Numbers as text: the forms that users read, and that no form loses or invents precision."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.show import numbers

POSITIVE = st.floats(min_value=1e-4, max_value=1e12, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"), (37_100.0, "37.1K"), (10_000.0, "10.0K"), (9_999.6, "10.0K"), (9_999.4, "9,999"),
        (4_657.1, "4,657"), (999.96, "1,000"), (999.94, "999.9"), (454.2, "454.2"), (99.96, "100.0"), (5.51, "5.51"),
        (0.84, "0.84"), (0.0123, "0.012"), (0.0, "0.00"), (1_250_000.0, "1.25M"), (math.nan, "—"), (math.inf, "—"),
    ],
)  # fmt: skip
def test_rate(value: float | None, text: str) -> None:
    assert numbers.rate(value) == text


@pytest.mark.parametrize(
    ("value", "fine", "text"),
    [
        (None, False, "—"), (2_325.0, False, "2,325 ms"), (86.0, False, "86 ms"), (2.2, False, "2.2 ms"),
        (0.84, False, "0.84 ms"), (9.96, False, "10 ms"), (0.996, False, "1.0 ms"), (0.004, False, "0.0040 ms"),
        (0.375, True, "0.375 ms"),
        (15.34, True, "15.3 ms"), (2.204, True, "2.20 ms"), (9.996, True, "10.0 ms"), (123.4, True, "123 ms"),
    ],
)  # fmt: skip
def test_ms(value: float | None, fine: bool, text: str) -> None:
    assert numbers.ms(value, fine=fine) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"), (0.0, "0 s"), (45.0, "45 s"), (59.6, "1 min"), (80.0, "1 min 20 s"), (3_599.7, "1 h"),
        (3_600.0, "1 h"), (7_500.0, "2 h 5 min"), (-3.0, "0 s"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(
    ("tokens", "text"), [(None, "—"), (8192, "8K"), (257_024, "251K"), (256, "256"), (1000, "1,000"), (1025, "1,025")]
)
def test_context(tokens: int | None, text: str) -> None:
    assert numbers.context(tokens) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (512.0, "512 B"), (1536.0, "1.5 KiB"), (24 * 2.0**30, "24.0 GiB"), (2.0**60, "1,024.0 PiB")],
)
def test_size(value: float | None, text: str) -> None:
    assert numbers.size(value) == text


def test_interval() -> None:
    assert numbers.interval(100.0, 99.6, 100.3) == "±0.4 %"
    assert numbers.interval(100.0, 88.0, 102.0) == "±12 %"  # the larger half
    assert numbers.interval(100.0, 99.999, 100.001) == "±<0.1 %"
    for missing in ((None, 1.0, 2.0), (1.0, None, 2.0), (1.0, 0.5, None), (0.0, 0.0, 0.0)):
        assert numbers.interval(*missing) == "—"


def test_counts() -> None:
    assert (numbers.count(13_625), numbers.count(2.4), numbers.count(3.0), numbers.count(None)) == (
        "13,625",
        "2.4",
        "3",
        "—",
    )
    assert numbers.mean(31.2) == "31.2"


def read(text: str) -> float:
    """The number back from its text."""
    found = re.fullmatch(r"(-?[\d,]+(?:\.\d+)?)([KM]?)", text)
    assert found, text
    return float(found[1].replace(",", "")) * {"": 1.0, "K": 1e3, "M": 1e6}[found[2]]


@given(POSITIVE)
def test_rate_is_right_to_its_digits(value: float) -> None:
    text = numbers.rate(value)
    assert abs(read(text) - value) <= max((0.051 if value < 1 else 0.005) * value, 1e-9)
    assert not 0.01 <= value < 1e9 or len(text) <= 6


@given(POSITIVE, st.booleans())
def test_ms_is_right_to_its_digits(value: float, fine: bool) -> None:
    text = numbers.ms(value, fine=fine, unit=False)
    assert abs(read(text) - value) <= (0.0051 if fine else 0.0505) * value + 1e-9


@given(st.floats(min_value=0, max_value=1e12), st.floats(min_value=1.0, max_value=2.0))
def test_rate_never_turns_an_order_around(value: float, factor: float) -> None:
    assert read(numbers.rate(value)) <= read(numbers.rate(value * factor)) + 1e-9


@given(st.floats() | st.none())
def test_every_float_has_a_text(value: float | None) -> None:
    made = [numbers.rate(value), numbers.ms(value), numbers.seconds(value), numbers.duration(value)]
    made += [numbers.size(value), numbers.percent(value), numbers.count(value), numbers.mean(value)]
    for text in made:
        assert text and text.isprintable() and "nan" not in text and "inf" not in text


@given(st.floats(min_value=0, max_value=1e9))
def test_durations_round_and_read_back(seconds: float) -> None:
    text = numbers.duration(seconds)
    parts = {unit: int(n) for n, unit in re.findall(r"(\d+) (h|min|s)", text)}
    assert parts.get("s", 0) < 60 and parts.get("min", 0) < 60
    total = parts.get("h", 0) * 3600 + parts.get("min", 0) * 60 + parts.get("s", 0)
    assert abs(total - seconds) <= (31 if "h" in parts else 0.51)
