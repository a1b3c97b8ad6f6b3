"""What no real measurement gives: said in words, never hidden. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, Literal

from flatout.flags import MEASURED
from flatout.limits import HardwareLimits, hardware_of, known, settings_of
from flatout.record import Cell, Record
from flatout.show import about, numbers

Level = Literal["good", "note", "doubt"]
_SLACK: Final = 1.05
"""Real memory may run a little above its datasheet."""
_LEAST_BYTES: Final = 0.5
"""A parameter's, where the quantization is not known to take more: 4 bits."""
_MOST_GPUS: Final = 16
"""No single stream was seen on more."""
_UNKNOWN_DRAFT: Final = 16.0
_ACTIVE: Final = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(?:\d+x)?(\d+(?:\.\d+)?)b(?![a-z0-9])")
_CLOCK_SLACK_S: Final = 2.0
_AHEAD_S: Final = 300.0
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """`level`: good, note (worth knowing before the figures are used) or doubt (they contradict each other, or no
    measurement gives them). `checked` is False where it could not be looked at; the text says why."""

    name: str
    level: Level
    text: str
    checked: bool = True


def limit(record: Record) -> Check:
    """Decode against the memory's bandwidth. A record holds no model shape: the size is taken from the name (active
    parameters where it tells them), which proves nothing, so it makes a note, and a doubt only beyond any hardware."""
    name = "hardware limit"
    billions = size_in_name(about.model_name(record))
    if billions is None:
        return Check(name, "good", "not checked: a record does not hold the model's shape, and its name tells no size; "
                     "flatout limits does it with the model's files.", checked=False)  # fmt: skip
    found = _fastest(record)
    if found is None:
        return Check(name, "good", "not checked: no sound decode cell, or drafts of unknown length", checked=False)
    cell, steps_s = found
    needed_gb_s = steps_s * billions * _bytes_each(record)
    gpus = settings_of(record).gpus or 1
    hardware = hardware_of(record)
    most = max(known(), key=lambda one: one.bandwidth_gb_s)
    told = (
        f"{about.cell_name(cell)} would read {needed_gb_s:,.0f} GB/s if each step reads the {billions:g} billion "
        "parameters that the model's name tells"
    )
    if needed_gb_s > most.bandwidth_gb_s * _SLACK * _MOST_GPUS:
        return Check(name, "doubt", f"{told}: more than {_MOST_GPUS} of the fastest known ({most.name}) can.")
    if hardware is None:
        return Check(name, "good", "not checked: this hardware's bandwidth is not known here", checked=False)
    return _against(name, told, needed_gb_s, hardware, gpus)


def _against(name: str, told: str, needed_gb_s: float, hardware: HardwareLimits, gpus: int) -> Check:
    there = hardware.bandwidth_gb_s * gpus
    which = f"{gpus} × {hardware.name}" if gpus > 1 else hardware.name
    if needed_gb_s > there * _SLACK:
        return Check(name, "note", f"{told}; {which} has {there:,.0f} GB/s. A mixture of experts reads less; else this "
                     "cannot be.")  # fmt: skip
    return Check(name, "good", f"{told}; {which} has {there:,.0f} GB/s. The size is the name's, not a file's.")


def size_in_name(model: str) -> float | None:
    """Billions of parameters that a model's name tells: the active ones (`30B-A3B` → 3), of several the fewest."""
    low = model.lower().replace("_", "-").rsplit("/", 1)[-1][:200]
    found = [float(text) for text in _ACTIVE.findall(low)] or [float(text) for text in _SIZE.findall(low)]
    sizes = [size for size in found if 0 < size < 10_000]
    return min(sizes) if sizes else None


def _bytes_each(record: Record) -> float:
    told = (about.known(record.model.quantization) or about.known(record.model.dtype) or "").lower()
    if any(word in told for word in ("bf16", "f16", "fp16", "bfloat16", "float16", "half")):
        return 2.0
    return 1.0 if any(word in told for word in ("fp8", "q8", "int8", "w8")) else _LEAST_BYTES


def _fastest(record: Record) -> tuple[Cell, float] | None:
    """The decode cell with most steps a second for one stream, by its interval's lower end."""
    settings = settings_of(record)
    found: list[tuple[float, int, Cell]] = []
    for i, cell in enumerate(record.cells):
        if cell.phase != "decode" or cell.decode is None or cell.status not in MEASURED or cell.concurrency < 1:
            continue
        rate = cell.decode.total_tok_s
        low = rate.low if rate.low is not None else rate.value
        accepted = cell.decode.acceptance.length if cell.decode.acceptance is not None else None
        if accepted is None:
            drafted = settings.draft_tokens
            accepted = (drafted + 1.0 if drafted else _UNKNOWN_DRAFT) if settings.speculative else 1.0
        if low is not None and low > 0:
            found.append((low / cell.concurrency / max(1.0, accepted), -i, cell))
    if not found:
        return None
    steps_s, _, cell = max(found)
    return cell, steps_s


def times(record: Record, received_us: int | None) -> Check:
    """Times of day that contradict each other."""
    wrong = list(_wrong_times(record, (received_us if received_us is not None else time.time_ns() // 1000) / 1e6))
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Check("times", "doubt", "; ".join(wrong[:3]) + more + ".")
    return Check("times", "good", "The run's times fit each other: windows inside the run, one after the other.")


def _wrong_times(record: Record, received_s: float) -> Iterator[str]:
    start, end = _seconds(record.started), _seconds(record.finished)
    if start is not None and start > received_s + _AHEAD_S:
        yield "it began after the site had received it"
    if start is not None and end is not None and end < start - _CLOCK_SLACK_S:
        yield "it finished before it began"
    if end is not None and end > received_s + _AHEAD_S:
        yield "it finished after the site had received it"
    windows: list[tuple[float, float, Cell]] = []
    for cell in record.cells:
        begun, ended = _seconds(cell.started), _seconds(cell.finished)
        if begun is not None and ended is not None and ended < begun - _CLOCK_SLACK_S:
            yield f"{about.cell_name(cell)} finished before it began"
        if cell.window is None or cell.status not in MEASURED:
            continue
        if None not in (begun, ended) and cell.window.length_s > ended - begun + _CLOCK_SLACK_S:  # type: ignore[operator]
            yield f"the window of {about.cell_name(cell)} is longer than the cell took"
        opened = _seconds(cell.window.opened)
        if opened is not None and 0 < cell.window.length_s < 1e6:
            windows.append((opened, opened + cell.window.length_s, cell))
    yield from _overlaps(sorted(windows, key=lambda w: w[:2]), start, end)


def _overlaps(windows: list[tuple[float, float, Cell]], start: float | None, end: float | None) -> Iterator[str]:
    for (_, closed, one), (opened, _, two) in pairwise(windows):
        if opened < closed - _CLOCK_SLACK_S:
            yield f"the windows of {about.cell_name(one)} and {about.cell_name(two)} overlap"
    for opened, closed, cell in windows:
        before = start is not None and opened < start - _CLOCK_SLACK_S
        if before or (end is not None and closed > end + _CLOCK_SLACK_S):
            yield f"the window of {about.cell_name(cell)} lies outside of the run"


def _seconds(stamp: str | None) -> float | None:
    try:
        at = datetime.fromisoformat(stamp) if stamp else None
        if at is None:
            return None
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def copies(record: Record) -> Check:
    """Cells whose figures are equal to the last digit: counts may be, times in milliseconds never."""
    seen: dict[tuple[float, ...], Cell] = {}
    pairs: list[tuple[Cell, Cell]] = []
    for cell in record.cells:
        figures = _figures(cell)
        if figures is None:
            continue
        first = seen.setdefault(figures, cell)
        if first is not cell:
            pairs.append((first, cell))
    if not pairs:
        return Check("repeated figures", "good", "No two cells have the same figures.")
    some = "; ".join(f"{about.cell_name(a)} and {about.cell_name(b)}" for a, b in pairs[:3])
    more = f"; and {numbers.count(len(pairs) - 3)} more" if len(pairs) > 3 else ""
    return Check(
        "repeated figures",
        "doubt",
        f"Rates and times are equal to the last digit in {some}{more}: two measurements never are.",
    )


def _figures(cell: Cell) -> tuple[float, ...] | None:
    """The cell's rate and times, if there are times with so many digits that chance cannot make them equal."""
    if cell.status not in MEASURED:
        return None
    if cell.phase == "decode" and cell.decode is not None:
        d = cell.decode
        found = [d.total_tok_s.value, d.tpot_ms.mean, d.tpot_ms.p50, d.itl_ms.mean, d.itl_ms.p99, d.ttft_ms.p50]
    elif cell.phase == "prefill" and cell.prefill is not None:
        found = [cell.prefill.prefill_tok_s.value, *(s.ttft_ms for s in cell.prefill.samples if s.used)]
    else:
        return None
    times = {value for value in found[1:] if value is not None and _many_digits(value)}
    if found[0] is None or len(times) < 2:
        return None
    return tuple(-1.0 if value is None else value for value in found)


def _many_digits(value: float) -> bool:
    scaled = abs(value * 1e3)
    return math.isfinite(scaled) and abs(scaled - round(scaled)) > _SAME * max(1.0, scaled)
