"""What stands under the tables: flags and statuses in one sentence each, why cells are empty, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flatout import metrics
from flatout.flags import MEASURED, Status
from flatout.metrics import BY_NAME
from flatout.record import Cell, Distribution, Record
from flatout.show import about, numbers
from flatout.show.safe import HARD_SPACE, clean

LAUNCHED: Final = "TTFT is that of the first requests, launched together, where fewer than five followed in the window:"
DETAILS: Final = 2
"""Details of a flag and reasons of a status that stand in the short legend; the wide one has all."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One term with its sentence, the cells that have it, and what was seen there (cells' names, text).

    `name` is the flag's or status' own; `where` names the cells, empty where the matrix shows them well enough."""

    name: str
    term: str
    letter: str
    sentence: str
    where: str
    details: tuple[tuple[str, str], ...]


def flags(record: Record) -> list[Entry]:
    """Every flag that occurs, in the order of its letters; details are what was seen in each cell."""
    entries = []
    for name, letter in about.letters(record).items():
        cells = [cell for cell in record.cells if any(flag.name == name for flag in cell.flags)]
        seen = [(cell, flag.detail) for cell in cells for flag in cell.flags if flag.name == name]
        term = clean(name, 40).replace("_", " ")
        entries.append(Entry(name, term, letter, about.flag_sentence(name), about.cell_names(cells), grouped(seen)))
    return entries


def statuses(record: Record) -> list[Entry]:
    """Every status but `valid` that occurs, in the order of the table of statuses; details are reasons and errors."""
    order = [str(status) for status in Status if status != Status.VALID]
    found = {cell.status for cell in record.cells} - {Status.VALID}
    entries = []
    for name in sorted(found, key=lambda s: (order.index(s) if s in order else len(order), s)):
        cells = [cell for cell in record.cells if cell.status == name]
        seen = [(cell, ": ".join(dict.fromkeys(filter(None, (cell.reason, cell.error))))) for cell in cells]
        # why a doubtful cell is doubtful stands with its flags
        reasons = () if name == Status.DOUBTFUL else grouped(seen)
        entries.append(
            Entry(name, about.status_word(name), "", about.status_sentence(name), _where(name, cells), reasons)
        )
    return entries


def _where(status: str, cells: Sequence[Cell]) -> str:
    if status in (Status.DOUBTFUL, Status.OVER_CAPACITY, Status.OVER_LENGTH):
        return ""
    if status == Status.REQUESTS_QUEUED:
        return ", ".join(about.cell_names([cell]) + _really_ran(cell) for cell in cells)
    return about.cell_names(cells)


def _really_ran(cell: Cell) -> str:
    """How many requests really ran in a cell where some waited, if the server tells."""
    running = cell.decode.active_server_mean if cell.decode is not None else None
    return "" if running is None else f"{HARD_SPACE}({numbers.mean(running)}{HARD_SPACE}ran)"


def grouped(seen: Iterable[tuple[Cell, str]]) -> tuple[tuple[str, str], ...]:
    """Cells that say the same, together: (their names, the text), in order; empty texts are left out."""
    groups: dict[str, list[Cell]] = {}
    for cell, text in seen:
        if text:
            groups.setdefault(clean(text), []).append(cell)
    return tuple((about.cell_names(cells), text) for text, cells in groups.items())


def missing(record: Record) -> tuple[tuple[str, str], ...]:
    """Why a measured cell lacks a figure of the long table: (cells, `ITL p99: too few samples`)."""
    seen: list[tuple[Cell, str]] = []
    for cell in record.cells:
        if cell.status not in MEASURED:
            continue
        for key in ("per_request_tok_s", "ttft_ms", "itl_ms", "itl_ms.p99"):
            reading = metrics.read(cell, BY_NAME[key])
            if reading.value is None and cell.phase in BY_NAME[key].at and isinstance(reading.holder, Distribution):
                seen.append((cell, f"{BY_NAME[key].label}: {reading.reason}"))
        speed = metrics.read(cell, metrics.SPEED[cell.phase])
        if speed.interval_reason and (speed.value is None or speed.low is None):
            seen.append((cell, f"{'tok/s' if speed.value is None else '± 95 %'}: {speed.interval_reason}"))
    return grouped(seen)


def launch_ttft(record: Record) -> list[Cell]:
    """Cells whose TTFT is not that of later requests but, for want of them, that of the launch's own."""
    return [c for c in record.cells if c.decode is not None and c.decode.ttft_ms.whose == "the launch's own requests"]
