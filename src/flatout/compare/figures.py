"""Figures of a cell by their name in the record: what there is, which way is faster, and its value with interval."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from flatout.compare.ratio import Estimate, estimate, of_samples
from flatout.compare.result import CompareError
from flatout.flags import MEASURED
from flatout.record import BurstFigures, Cell, DecodeFigures, Distribution, PrefillFigures, Rate

SPEED: Final = {"decode": "total_tok_s", "prefill": "prefill_tok_s", "burst": "end_to_end_tok_s"}
"""The figure that is a cell's speed."""
SHOWN: Final = {
    "decode": ("total_tok_s", "per_request_tok_s", "ttft_ms", "itl_ms"),
    "prefill": ("prefill_tok_s", "ttft_ms"),
    "burst": ("end_to_end_tok_s", "per_request_tok_s", "ttft_ms", "itl_ms"),
}
PARTS: Final = ("p50", "p90", "p99", "max", "mean")
_MOST: Final = 1e18
_ALSO: Final = ("acceptance.length", "energy_j")


@dataclass(frozen=True, slots=True)
class Figure:
    """`part`: which of a distribution; None for a rate or a plain number."""

    name: str
    part: str | None

    def __str__(self) -> str:
        return self.name if self.part in (None, "p50") else f"{self.name}.{self.part}"

    @property
    def more_is_faster(self) -> bool | None:
        """None where neither way is faster."""
        if self.name.endswith("_tok_s"):
            return True
        return False if self.name.endswith(("_ms", "duration_s")) else None


@cache
def names() -> dict[str, bool]:
    """Every figure's name, and whether it is a distribution: all rates, distributions and numbers of the record's
    cells."""
    found: dict[str, bool] = {}
    for model in (DecodeFigures, PrefillFigures, BurstFigures):
        for name, field in model.model_fields.items():
            kind = field.annotation
            if kind in (Distribution, Distribution | None):
                found[name] = True
            elif kind in (Rate, int, float, int | None, float | None):
                found[name] = False
    return {**found, **dict.fromkeys(_ALSO, False)}


def figure(text: str) -> Figure:
    """`total_tok_s`, `itl_ms`, `itl_ms.p99` → a Figure. Raises CompareError for what is none."""
    known = names()
    if text in known:
        return Figure(text, "p50" if known[text] else None)
    name, _, part = text.rpartition(".")
    if known.get(name) and part in PARTS:
        return Figure(name, part)
    near = difflib.get_close_matches(text, [*known, *(f"{n}.{p}" for n, d in known.items() if d for p in PARTS)], 3)
    raise CompareError(
        f"'{text}' is no figure of a record"
        + (f"; did you mean {', '.join(near)}?" if near else "; such as total_tok_s, ttft_ms or itl_ms.p99")
    )


def measured(cell: Cell) -> bool:
    return cell.status in MEASURED


def read(cell: Cell, wanted: Figure) -> tuple[float | None, Estimate | None, str | None]:
    """(value, the value with its interval, why there is none) of one cell. The Estimate is None for what is no
    positive number."""
    if not measured(cell):
        return None, None, cell.status.replace("_", " ")
    found, reason = _held(cell, wanted.name)
    if isinstance(found, Rate):
        between = found.interval == "between repeats"
        made = estimate(found.value, found.low, found.high, n=found.n, between=between, reason=found.reason)
        return found.value, made, found.reason
    if isinstance(found, Distribution):
        return _of_distribution(cell, found, wanted)
    if found is None:
        return None, None, reason or "it was not measured"
    number = float(max(-_MOST, min(_MOST, found)))
    return number, _plain(number), None


def _plain(value: float) -> Estimate | None:
    return Estimate(value, reason="it has no interval") if math.isfinite(value) and value > 0 else None


def _held(cell: Cell, name: str) -> tuple[Rate | Distribution | int | float | None, str | None]:
    made: Any = cell.decode or cell.prefill or cell.burst
    if name == "acceptance.length":
        held = cell.decode.acceptance if cell.decode is not None else None
        return (held.length, held.reason) if held is not None else (None, None)
    if name == "energy_j":
        machine = cell.telemetry
        return (machine.energy_j, machine.reasons.get("energy_j")) if machine is not None else (None, None)
    if made is None or name not in type(made).model_fields:
        return None, f"a {cell.phase} cell has none"
    reasons: dict[str, str] = getattr(made, "reasons", {})
    return getattr(made, name), reasons.get(name)


def _of_distribution(
    cell: Cell, found: Distribution, wanted: Figure
) -> tuple[float | None, Estimate | None, str | None]:
    part = wanted.part or "p50"
    value: float | None = getattr(found, part)
    why = found.reasons.get(part)
    if value is None:
        return None, None, why or "there were too few samples"
    if part not in ("p50", "p90", "p99"):
        return value, _plain(value), None
    if part == "p50" and cell.phase == "prefill" and cell.prefill is not None:
        times = [s.ttft_ms for s in cell.prefill.samples if s.used and s.ttft_ms is not None]
        if times:  # Student's, with its degrees of freedom, which the interval alone does not tell
            return value, of_samples(value, times), None
    low, high = getattr(found, f"{part}_low"), getattr(found, f"{part}_high")
    reason = found.reasons.get("interval" if part == "p50" else f"{part}_interval")
    return value, estimate(value, low, high, reason=reason or f"{found.n} samples give it no interval"), why


def applies(cell: Cell, wanted: Figure) -> bool:
    """Whether cells of that phase can have the figure at all."""
    if wanted.name == "acceptance.length":
        return cell.phase == "decode"
    if wanted.name == "energy_j":
        return True
    if cell.phase == "decode":
        return wanted.name in DecodeFigures.model_fields
    return wanted.name in (PrefillFigures if cell.phase == "prefill" else BurstFigures).model_fields
