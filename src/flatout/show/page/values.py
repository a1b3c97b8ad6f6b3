"""Values as the page shows them: the house's numbers, kept short whatever a record holds, and `—` with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from flatout import metrics
from flatout.metrics import Metric, Reading
from flatout.record import Cell, Fact
from flatout.show import numbers
from flatout.show.charts import LONGEST, drawable
from flatout.show.safe import clean

OUT_OF_RANGE: Final = "out of range"


class Value(NamedTuple):
    """A text, or `—` and why there is none."""

    text: str
    reason: str | None = None

    @property
    def known(self) -> bool:
        return self.text != numbers.NONE


def short(text: str) -> str:
    return text if len(text) <= LONGEST else OUT_OF_RANGE


def rate(value: float | None) -> str:
    return short(numbers.rate(value))


def ms(value: float | None, *, fine: bool = False) -> str:
    return short(numbers.ms(value, fine=fine))


def count(value: float | None) -> str:
    if value is None:
        return numbers.NONE
    return OUT_OF_RANGE if drawable(value) is None else short(numbers.count(value))


def seconds(value: float | None) -> str:
    return short(numbers.seconds(value))


def percent(share: float | None) -> str:
    return short(numbers.percent(share))


def tokens(value: float | None) -> str:
    text = count(value)
    return text if text == numbers.NONE else f"{text} tokens"


def read(cell: Cell, metric: Metric) -> Reading:
    """The figure of a cell; that of another phase is no figure of it."""
    return metrics.read(cell, metric)


def figure(cell: Cell, name: str) -> Value:
    """A figure of a cell by its name, as text with its unit."""
    metric = metrics.BY_NAME[name]
    return text(metric, metrics.read(cell, metric))


def text(metric: Metric, reading: Reading, *, unit: bool = True) -> Value:
    shown = numbers.figure(metric, reading.value, unit=unit)
    return Value(shown if isinstance(reading.value, str) else short(shown), reading.reason)


def half(reading: Reading) -> Value:
    """The 95 % interval as its larger half, relative: ±0.4 %."""
    value = reading.value if isinstance(reading.value, int | float) else None
    return Value(numbers.interval(value, reading.low, reading.high), reading.interval_reason or reading.reason)


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
    return short(f"{value:,.6g}") if isinstance(value, float) else clean(value, 300)
