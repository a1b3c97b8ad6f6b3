"""Which cells of a record a page shows, and under which addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flatout.record import Cell, Record
from flatout.show import about

MOST_CELLS: Final = 2_000
_ANCHOR: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/._-]{0,59}")
PAGE_IDS: Final = frozenset(
    {"top", "main", "machine", "engine", "run", "launch", "prefill", "decode", "bursts", "scaling", "all", "legend",
     "cells", "more-columns"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """How near a cell came to what its hardware can do: share of the limit (0..1), and which limit binds."""

    share: float
    binds: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as the page shows it. `anchors`: each shown cell's fragment by `id(cell)`; `letters`: footnotes by flag;
    `left_out`: cells that the page does not show; `files`: the page holds its files for download."""

    record: Record
    cells: Sequence[Cell]
    anchors: Mapping[int, str]
    letters: Mapping[str, str]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    left_out: int = 0
    files: bool = True

    def anchor(self, cell: Cell) -> str:
        return self.anchors[id(cell)]

    def of(self, phase: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.phase == phase]


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
