"""How many at once at ≥ X tok/s each? Per context, from the median per-request rate, and no more than was tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flatout.flags import Flag, Status
from flatout.record import Cell, Record
from flatout.show import about


@dataclass(frozen=True, slots=True)
class Capacity:
    """One context's answer. Counts are numbers of simultaneous requests; None: there is no such count.

    `met`: the largest tested count at which each request gets the rate, with no smaller one that misses it.
    `met_tok_s`: the median per-request rate there. `missed`: the smallest larger tested count that misses it; where
    requests queued, how many really ran.
    `queued`: a count beyond `met` whose running requests get the rate while others wait; `queued_running`: how many
    really ran (mean), where known. `doubtful`: a count beyond `met` that would meet it, but is doubtful.
    `stopped_by`: where nothing was missed, the status of the next larger planned count, None at the plan's end.
    """

    context: str
    context_tokens: int | None
    met: int | None = None
    met_tok_s: float | None = None
    missed: int | None = None
    missed_tok_s: float | None = None
    queued: int | None = None
    queued_running: float | None = None
    doubtful: int | None = None
    stopped_by: str | None = None

    @property
    def text(self) -> str:
        """`8–15`: met at 8, missed at 16. `8`: met at 8, missed at 9. `≥16`: the largest that could be tested. `0`:
        one request alone misses it. `<4`: the smallest count tested misses it. `?`: only doubtful or queued numbers;
        `—`: nothing was measured."""
        mark = "?" if self.doubtful is not None else ""
        if self.met is None:
            if self.missed is None:
                return "?" if self.doubtful is not None or self.queued is not None else "—"
            return "0" if self.missed == 1 else f"<{self.missed}"
        if self.missed is None:
            return f"≥{self.met}{mark}"
        return (f"{self.met}" if self.missed == self.met + 1 else f"{self.met}–{self.missed - 1}") + mark


def capacities(record: Record) -> list[Capacity]:
    """An answer for every context of the decode matrix, in the order of the plan."""
    return of_cells(record.cells, record.per_user_tok_s)


def of_cells(cells: Iterable[Cell], wanted_tok_s: float) -> list[Capacity]:
    """The same for some cells."""
    rows: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        if cell.phase == "decode":
            rows.setdefault((about.context(cell), cell.context_tokens), []).append(cell)
    return [_of_row(label, tokens, row, wanted_tok_s) for (label, tokens), row in rows.items()]


def _of_row(label: str, tokens: int | None, cells: Sequence[Cell], wanted_tok_s: float) -> Capacity:
    """Counts upwards and stops at the first sound cell that misses: a larger one that meets it again is luck."""
    met: Cell | None = None
    missed: Cell | None = None
    queued: Cell | None = None
    doubtful: Cell | None = None
    stopped_by: str | None = None
    for cell in sorted(cells, key=lambda c: c.concurrency):
        each_tok_s = _each_tok_s(cell)
        if each_tok_s is None:
            stopped_by = stopped_by or cell.status
            continue
        enough = each_tok_s >= wanted_tok_s
        if cell.status == Status.DOUBTFUL or any(flag.name == Flag.UNDERFILLED for flag in cell.flags):
            doubtful = cell if enough else doubtful
        elif not enough:
            missed = cell
            break
        elif cell.status == Status.REQUESTS_QUEUED:
            queued = queued or cell
        else:
            met, stopped_by = cell, None
    beyond = met.concurrency if met else 0
    queue = queued if queued and queued.concurrency > beyond else None
    unsure = doubtful if doubtful and doubtful.concurrency > beyond else None
    return Capacity(
        context=label,
        context_tokens=tokens,
        met=met.concurrency if met else None,
        met_tok_s=_each_tok_s(met) if met else None,
        missed=max(beyond + 1, _ran_at_once(missed)) if missed else None,
        missed_tok_s=_each_tok_s(missed) if missed else None,
        queued=queue.concurrency if queue else None,
        queued_running=queue.decode.active_server_mean if queue and queue.decode else None,
        doubtful=unsure.concurrency if unsure else None,
        stopped_by=None if missed else stopped_by,
    )


def _each_tok_s(cell: Cell) -> float | None:
    """The cell's median per-request rate; None where it was not measured."""
    return cell.decode.per_request_tok_s.p50 if cell.decode is not None and about.measured(cell) else None


def _ran_at_once(cell: Cell) -> int:
    """How many requests the cell's rate is one of: as many as asked, or as really ran where requests queued."""
    running = cell.decode.active_server_mean if cell.decode is not None else None
    if cell.status != Status.REQUESTS_QUEUED or running is None:
        return cell.concurrency
    return min(cell.concurrency, max(1, round(running)))


def question(wanted_tok_s: float) -> str:
    return f"How many at once at ≥ {wanted_tok_s:g} tok/s each?"


def notes(answers: Sequence[Capacity]) -> list[str]:
    """What the short forms mean, only for those that occur."""
    told: list[str] = []
    span = next((a for a in answers if a.met is not None and a.missed is not None and a.missed > a.met + 1), None)
    if span is not None and span.missed is not None:
        told.append(f"{span.met}–{span.missed - 1}: met at {span.met}, missed at {span.missed}, not tested between")
    if any(a.met is not None and a.missed is None for a in answers):
        told.append("≥: met at the largest count with a sound number")
    below = next((a for a in answers if a.met is None and a.missed not in (None, 1)), None)
    if below is not None:
        told.append(f"{below.text}: missed at the smallest count tested")
    queued = [a for a in answers if a.queued is not None]
    if queued:
        told.append("beyond it requests queue at " + ", ".join(f"{a.context} × {a.queued}{_ran(a)}" for a in queued))
    if any(a.doubtful is not None for a in answers):
        where = ", ".join(f"{a.context} × {a.doubtful}" for a in answers if a.doubtful is not None)
        told.append(f"?: {where} would meet it, but the number is doubtful")
    return told


def _ran(answer: Capacity) -> str:
    return f" ({answer.queued_running:.1f} ran)" if answer.queued_running is not None else ""
