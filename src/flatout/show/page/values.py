"""Values as the page shows them: the house's numbers, kept short whatever a record holds, and `—` with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from flatout.record import Distribution, Fact, Rate
from flatout.show import numbers
from flatout.show.page.html import Html, hidden, tag
from flatout.show.safe import clean

LONGEST: Final = 16
OUT_OF_RANGE: Final = "out of range"
LARGEST: Final = 1e15
"""A larger number is no measurement; the drawings leave it out."""


def drawable(value: float | int | None) -> float | None:
    """The value as a float that can be drawn, or None: missing, not finite, or absurdly large."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def short(text: str) -> str:
    return text if len(text) <= LONGEST else OUT_OF_RANGE


def rate(value: float | None) -> str:
    return short(numbers.rate(value))


def ms(value: float | None, *, fine: bool = False, unit: bool = True) -> str:
    return short(numbers.ms(value, fine=fine, unit=unit))


def count(value: float | None) -> str:
    return short(_safely(value))


def _safely(value: float | None) -> str:
    return numbers.NONE if value is None else OUT_OF_RANGE if drawable(value) is None else numbers.count(value)


def mean(value: float | None) -> str:
    return short(numbers.mean(value))


def seconds(value: float | None) -> str:
    return short(numbers.seconds(value))


def percent(share: float | None) -> str:
    return short(numbers.percent(share))


def joule(value: float | None) -> str:
    return short(numbers.joule(drawable(value)))


def interval(found: Rate) -> str:
    return numbers.interval(found.value, found.low, found.high)


def half(found: Distribution) -> str:
    """The interval of a median, relative: ±0.4 %."""
    return numbers.interval(found.p50, found.p50_low, found.p50_high)


def dash(reason: str | None) -> Html:
    """`—`, with why on hover and in the text."""
    why = clean(reason, 300) if reason else "no reason is recorded"
    return tag("span", numbers.NONE, hidden(f" ({why})"), class_="no", title=why)


def shown(text: str, reason: str | None) -> Html:
    """The text, or a dash with its reason where it is one."""
    return dash(reason) if text == numbers.NONE else tag("span", text)


def why(reasons: Mapping[str, str], *names: str) -> str | None:
    """The first reason that is given for one of these names."""
    return next((reasons[name] for name in names if name in reasons), None)


def fact_text(fact: Fact) -> str | None:
    """A fact's value as text; None where it is not known."""
    value = fact.value
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if abs(value) < 10_000 else count(value)
    if isinstance(value, float):
        return short(f"{value:,.6g}")
    return clean(value, 300)
