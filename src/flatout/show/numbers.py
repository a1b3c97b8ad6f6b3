"""Numbers as text: short, with their unit, `—` for what is not known. K is 1000 for rates and 1024 for contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from flatout.metrics import Digits, Metric, Value

NONE: Final = "—"
MINUTE_S: Final = 60
HOUR_S: Final = 3600


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _small(value: float, digits: int) -> str:
    """0 <= value < 1 with so many significant digits: 0.84, 0.012; 0.00 below a millionth."""
    if value < 1e-6:
        return "0.00"
    return f"{value:.{digits - 1 - math.floor(math.log10(value))}f}"


def rate(value: float | None) -> str:
    """Tokens per second without the unit: 37.1K from 10,000 up (K = 1000, then M), 4,657, 454.2, 4.54."""
    if value is None or not _known(value):
        return NONE
    if value < 0:
        return "-" + rate(-value)
    # the next form begins where this one would round up to a wider number
    if value >= 9_995_000:
        return f"{value / 1e6:,.1f}M"
    if value >= 999_950:
        return f"{value / 1e6:.2f}M"
    if value >= 9_999.5:
        return f"{value / 1e3:.1f}K"
    if value >= 999.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else _small(value, 2)


def count(value: float | None) -> str:
    """A whole number with thousands: 13,625; one decimal where it is small and not whole: 2.4."""
    if value is None or not _known(value):
        return NONE
    if value != round(value) and abs(value) < 99.95:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def mean(value: float | None) -> str:
    """A mean count with one decimal: 31.2."""
    return f"{value:,.1f}" if value is not None and _known(value) else NONE


def context(tokens: int | None) -> str:
    """A context length, K = 1024: 8K, 251K; 1,000 where it is no multiple of 1024."""
    if tokens is None:
        return NONE
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def ms(value: float | None, *, fine: bool = False, unit: bool = True) -> str:
    """Milliseconds: 2,325 ms, 86 ms, 2.2 ms, 0.84 ms. `fine`: three significant digits up to 100 (15.3, 2.20, 0.375),
    for times between tokens, where 2 % must show."""
    if value is None or not _known(value):
        return NONE
    return _ms(value, fine) + (" ms" if unit else "")


def _ms(value: float, fine: bool) -> str:
    if value < 0:
        return "-" + _ms(-value, fine)
    if value >= (99.95 if fine else 9.95):
        return f"{value:,.0f}"
    if value >= (9.995 if fine else 0.995):
        return f"{value:.1f}"
    if not fine:
        return _small(value, 2)
    return f"{value:.2f}" if value >= 1 else _small(value, 3)


def seconds(value: float | None) -> str:
    """A measured length of time in seconds: 30.0 s."""
    return f"{value:,.1f} s" if value is not None and _known(value) else NONE


def duration(seconds: float | None) -> str:
    """A length of time as people say it: 45 s, 1 min 20 s, 2 h 5 min."""
    if seconds is None or not _known(seconds):
        return NONE
    whole = round(max(0.0, seconds))
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min" + (f" {whole % MINUTE_S} s" if whole % MINUTE_S else "")
    minutes = round(whole / MINUTE_S)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def size(value: float | None) -> str:
    """Bytes with a binary unit: 512 B, 1.5 MiB, 24.0 GiB."""
    if value is None or not _known(value):
        return NONE
    if value < 0:
        return "-" + size(-value)
    if value < 1024:
        return f"{value:.0f} B" if round(value) < 1024 else "1.0 KiB"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:,.1f} PiB"


def percent(share: float | None) -> str:
    """A share of one: 43 %, 0.4 %."""
    if share is None or not _known(share * 100):
        return NONE
    points = share * 100
    return f"{points:.0f} %" if abs(points) >= 9.95 or points == 0 else f"{points:.1f} %"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A 95 % interval as its larger half, relative to the value: ±0.4 %."""
    if value is None or low is None or high is None or not all(map(_known, (value, low, high))) or value <= 0:
        return NONE
    half = max(high - value, value - low, 0.0) / value
    if half < 0.0005:
        return "±<0.1 %"
    return f"±{percent(half)}" if half < 10 else "±>999 %"


def joule(value: float | None) -> str:
    """Joules: 1.24 J, 12.4 J; millijoules below a tenth."""
    if value is None or not _known(value):
        return NONE
    if 0 <= value < 0.1:
        return f"{value * 1000:.3g} mJ"
    return f"{value:,.0f} J" if abs(value) >= 100 else f"{value:.3g} J"


_WRITERS: Final[Mapping[Digits, Callable[[float | None], str]]] = {
    "rate": rate,
    "ms": lambda value: ms(value, unit=False),
    "fine_ms": lambda value: ms(value, fine=True, unit=False),
    "count": lambda value: count(None if value is None or not math.isfinite(value) else round(value)),
    "mean": mean,
    "seconds": seconds,
    "share": percent,
    "joule": joule,
    "ratio": lambda value: f"{value:.2f}" if value is not None and _known(value) else NONE,
}


def figure(metric: Metric, value: Value, *, unit: bool = True) -> str:
    """A figure's value as the table of figures wants it written. `unit`: milliseconds with theirs."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or metric.digits == "plain":
        return str(value)
    text = _WRITERS[metric.digits](value)
    return f"{text} ms" if unit and metric.digits in ("ms", "fine_ms") and text != NONE else text
