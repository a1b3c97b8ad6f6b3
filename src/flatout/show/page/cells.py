"""Which cells the page shows, under which names, and what stands for each in the figure switch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flatout import metrics
from flatout.record import Cell, Record
from flatout.show import about, capacity
from flatout.show.page import values

MOST_CELLS: Final = 2_000
MOST_SQUARES: Final = 10_000
"""Squares of the matrix, planned or not: a hostile record could ask for as many as cells times cells."""
_ANCHOR: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/._-]{0,59}")
PHASES: Final[Mapping[str, str]] = {"prefill": "Prefill", "decode": "Sustained decode", "burst": "Burst"}


@dataclass(frozen=True, slots=True)
class Limit:
    """How near a cell came to what its hardware can do: share of the limit (0..1), and which limit binds."""

    share: float
    binds: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as the page shows it. `anchors`: each shown cell's fragment by `id(cell)`; `left_out`: cells that the
    page does not show; `files`: the page holds its files for download."""

    record: Record
    cells: Sequence[Cell]
    anchors: Mapping[int, str]
    letters: Mapping[str, str]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    left_out: int = 0
    files: bool = True

    def anchor(self, cell: Cell) -> str:
        return self.anchors[id(cell)]


def choose(record: Record, limits: Mapping[str, Limit] | None, *, files: bool = True) -> Shown:
    """Cells in the order of the phases, with unique fragments (`d/131072/2`)."""
    ordered = [cell for phase in about.PHASES for cell in record.cells if cell.phase == phase]
    cells = ordered[:MOST_CELLS]
    anchors: dict[int, str] = {}
    seen = set(PAGE_IDS)
    for number, cell in enumerate(cells, 1):
        wanted = cell.id if _ANCHOR.fullmatch(cell.id) else f"cell-{number}"
        if wanted in seen:
            wanted = f"{wanted}~{number}"
        seen.add(wanted)
        anchors[id(cell)] = wanted
    return Shown(record, cells, anchors, about.letters(record), limits or {}, len(ordered) - len(cells), files)


PAGE_IDS: Final = frozenset(
    {"top", "machine", "engine", "run", "launch", "prefill", "decode", "bursts", "scaling", "all", "legend", "cells"}
)


@dataclass(frozen=True, slots=True)
class View:
    """One figure of the switch. `value`: what the heat is made from; `more`: is more better; `text`: the number;
    `below`: the small texts under it; `unit` for the caption; `why`: the reason where it is missing."""

    key: str
    label: str
    unit: str
    more: bool
    value: Callable[[Cell], float | None]
    text: Callable[[Cell], str]
    below: Callable[[Cell], Sequence[tuple[str, str]]]
    why: Callable[[Cell], str | None]


def energy_j(cell: Cell) -> float | None:
    return metrics.read(cell, metrics.BY_NAME["energy_per_token_j"]).number


def views(shown: Shown) -> list[View]:
    """The figures that this record has; energy and the hardware's limit only where any cell has them."""
    made = [_total(), _each(), _ttft(), _itl()]
    decode = [cell for cell in shown.cells if cell.decode is not None and about.measured(cell)]
    if any(energy_j(cell) is not None for cell in decode):
        made.append(_energy())
    if any(cell.id in shown.limits for cell in decode):
        made.append(_limit(shown.limits))
    return made


def _total() -> View:
    def below(cell: Cell) -> Sequence[tuple[str, str]]:
        d = cell.decode
        return [] if d is None else [(values.interval(d.total_tok_s), "interval"), (values.ms(d.ttft_ms.p50), "TTFT")]

    return View(
        "total", "Total tok/s", "tok/s in total", True,
        lambda c: c.decode.total_tok_s.value if c.decode else None,
        lambda c: values.rate(c.decode.total_tok_s.value if c.decode else None),
        below,
        lambda c: c.decode.total_tok_s.reason if c.decode else None,
    )  # fmt: skip


def _each() -> View:
    return View(
        "each", "Per request", "tok/s for each request, median", True,
        lambda c: c.decode.per_request_tok_s.p50 if c.decode else None,
        lambda c: values.rate(c.decode.per_request_tok_s.p50 if c.decode else None),
        lambda c: [(values.half(c.decode.per_request_tok_s), "interval")] if c.decode else [],
        lambda c: values.why(c.decode.per_request_tok_s.reasons, "p50") if c.decode else None,
    )  # fmt: skip


def _ttft() -> View:
    return View(
        "ttft", "TTFT", "ms to the first token, median; below it p99", False,
        lambda c: c.decode.ttft_ms.p50 if c.decode else None,
        lambda c: values.ms(c.decode.ttft_ms.p50 if c.decode else None),
        lambda c: [(values.ms(c.decode.ttft_ms.p99), "p99")] if c.decode else [],
        lambda c: values.why(c.decode.ttft_ms.reasons, "p50") if c.decode else None,
    )  # fmt: skip


def _itl() -> View:
    return View(
        "itl", "ITL", "ms between tokens, median; below it p99", False,
        lambda c: c.decode.itl_ms.p50 if c.decode else None,
        lambda c: values.ms(c.decode.itl_ms.p50 if c.decode else None, fine=True),
        lambda c: [(values.ms(c.decode.itl_ms.p99, fine=True), "p99")] if c.decode else [],
        lambda c: values.why(c.decode.itl_ms.reasons, "p50") if c.decode else None,
    )  # fmt: skip


def _energy() -> View:
    def power(cell: Cell) -> Sequence[tuple[str, str]]:
        watts = values.drawable(cell.telemetry.means.get("power_w")) if cell.telemetry else None
        return [] if watts is None else [(values.short(f"{watts:,.0f} W"), "power")]

    return View(
        "energy", "Energy per token", "joules for each output token; below it the mean power", False,
        energy_j, lambda c: values.joule(energy_j(c)), power,
        lambda c: values.why(c.telemetry.reasons, "energy_j", "power_w") if c.telemetry else None,
    )  # fmt: skip


def _limit(limits: Mapping[str, Limit]) -> View:
    return View(
        "limit", "% of limit", "share of what the hardware can do; below it which limit binds", True,
        lambda c: limits[c.id].share if c.id in limits else None,
        lambda c: values.percent(limits[c.id].share if c.id in limits else None),
        lambda c: [(limits[c.id].binds, "limit")] if c.id in limits and limits[c.id].binds else [],
        lambda _: "no limit is known for this cell",
    )  # fmt: skip


def at_once(record: Record) -> tuple[str, list[tuple[str, str]], list[str]]:
    """The question, an answer for each context, and what the signs in them mean."""
    answers = capacity.capacities(record)[:200]
    return capacity.question(record.per_user_tok_s), [(a.context, a.text) for a in answers], capacity.notes(answers)
