"""What a comparison yields: sides, and for each side against the first its cells with ratios and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flatout.compare.ratio import Ratio
from flatout.flags import MEASURED
from flatout.record import Cell, Record


class CompareError(Exception):
    """The records cannot be compared, or what was typed says nothing that can be; the text says what to do."""


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference seen"
    UNKNOWN = "cannot be told"


def letter_of(number: int) -> str:
    """A side's letter in every text: A (the first), B, … Z, A1, …"""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


@dataclass(frozen=True, slots=True)
class Key:
    """Which cell: `context` is its label, `tokens` its length (None: not known)."""

    phase: str
    context: str
    tokens: int | None
    concurrency: int

    @property
    def match(self) -> tuple[str, int | str, int]:
        """Equal for the cells of two records that ask the same: by length, by label where it is not known."""
        return self.phase, self.context if self.tokens is None else self.tokens, self.concurrency


@dataclass(frozen=True, slots=True)
class Value:
    """A side's figure: over its runs the geometric mean. [low, high]: the interval of a single run; `runs`: each run's
    value."""

    value: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one cell. `ratio`: B / A. `verdict`: B against A, with `reason` where it cannot be told.
    `least`: the smallest relative difference that these runs would have shown in nine of ten cases, None if none."""

    figure: str
    a: Value | None
    b: Value | None
    ratio: Ratio | None
    verdict: Verdict
    reason: str | None = None
    least: float | None = None


@dataclass(frozen=True, slots=True)
class CellPair:
    """One cell on both sides. `a_status`, `b_status`: one a run, without those that have no such cell. `doubts`: why
    neither verdict of this cell is to be trusted; `notes`: flags that a reader must know."""

    key: Key
    a_status: tuple[str, ...]
    b_status: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    figures: Mapping[str, Compared]

    @property
    def speed(self) -> Compared | None:
        """The cell's first figure: total tok/s, prefill tok/s, or a burst's end-to-end tok/s."""
        return next(iter(self.figures.values()), None)

    @property
    def measured(self) -> bool:
        """Some run of either side measured the cell."""
        return bool(MEASURED & {*self.a_status, *self.b_status})

    @property
    def changed(self) -> bool:
        """The statuses differ."""
        return set(self.a_status) != set(self.b_status)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not equal on both sides. `what`: hardware, engine, version, model, prompts, suite, launch
    command, requests, room or client; `name`: the fact."""

    what: str
    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration: its runs, in order."""

    name: str
    records: tuple[Record, ...]
    cells: tuple[Mapping[tuple[str, int | str, int], Cell], ...]
    """Each run's cells by `Key.match`."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A side (`b`) against the first (`a`). `letter`: the later side's, as its reasons say it; `differences`: what
    else differs; `unknown`: what cannot be shown to be equal; `only_a`, `only_b`: cells that the other side did not
    plan. `mean_ratio`: geometric mean of B / A over the decode cells that are not doubtful, its interval as if
    their errors were independent."""

    a: Side
    b: Side
    cells: tuple[CellPair, ...]
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]
    only_a: tuple[Key, ...]
    only_b: tuple[Key, ...]
    mean_ratio: Ratio | None
    letter: str = "B"

    def count(self, verdict: Verdict, *, figure: str | None = None, doubtful: bool = False) -> int:
        """Measured cells with that verdict on a figure (default: the speed), of the doubtful or of the others."""
        return sum(c.verdict == verdict for c in self._of(figure, doubtful))

    def _of(self, figure: str | None, doubtful: bool) -> Iterable[Compared]:
        for cell in self.cells:
            made = cell.speed if figure is None else cell.figures.get(figure)
            if made is not None and cell.measured and bool(cell.doubts) == doubtful:
                yield made


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides or more; every side after the first is compared with the first. `notes`: what a reader must know."""

    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]
