"""`--fail-if`: conditions as typed, and which cells break them.

condition  = figure [cells] operator limit [cells]      several: separated by ";"
figure     = total_tok_s | ttft_ms | itl_ms.p99 | …     any of the record's
operator   = < | <= | > | >=
limit      = -3% (B's change from A) | +10 (the change, in the figure's unit) | 5 (B's own value)
cells      = "[" term, … "]"                            all terms must hold
term       = 8k x 1 | 8k-64k x 1-16 | * x 4 | x 4 | 8k | max | prefill | decode | burst | valid
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flatout.compare.figures import figure, measured, read
from flatout.compare.pairs import cells_of, judge
from flatout.compare.result import CellPair, Compared, CompareError, Comparison, Key, Pair, Side, Verdict
from flatout.flags import Status
from flatout.metrics import Metric
from flatout.record import Cell

_LONGEST: Final = 2000
_K: Final = 1024
_CONDITION: Final = re.compile(
    r"(?P<figure>[a-z_][a-z0-9_.]*)\s*(?:\[(?P<before>[^\[\]]*)\]\s*)?(?P<op><=|>=|<|>)\s*"
    r"(?P<sign>[+-]?)\s*(?P<number>\d{1,15}(?:\.\d{1,15})?|\.\d{1,15})\s*(?P<percent>%?)\s*(?:\[(?P<after>[^\[\]]*)\])?"
)
_SIZE: Final = r"(\d{1,10}(?:\.\d{1,10})?)\s*([km]?)"
_RANGE: Final = re.compile(rf"{_SIZE}(?:\s*-\s*{_SIZE})?")
_WORDS: Final = frozenset({"max", "full"})
_PHASES: Final = frozenset({"prefill", "decode", "burst"})
Kind = Literal["percent", "change", "value"]
_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `least` to `most`; or, with `word`, the context of that label."""

    least: int = 0
    most: int = 0
    word: str | None = None

    def holds(self, value: int | None, label: str = "") -> bool:
        if self.word is not None:
            return label.casefold() == self.word
        return value is not None and self.least <= value <= self.most

    def shown(self, *, sizes: bool) -> str:
        """As it is typed; `sizes`: multiples of 1024 as 8k."""
        if self.word is not None:
            return self.word
        ends = [f"{end // _K}k" if sizes and end and end % _K == 0 else str(end) for end in (self.least, self.most)]
        return ends[0] if self.least == self.most else "-".join(ends)


@dataclass(frozen=True, slots=True)
class Where:
    """A cell filter; None lets everything through."""

    context: Span | None = None
    concurrency: Span | None = None
    phase: str | None = None
    valid: bool = False

    def holds(self, cell: CellPair) -> bool:
        key = cell.key
        return (
            (self.phase is None or key.phase == self.phase)
            and (self.context is None or self.context.holds(key.tokens, key.context))
            and (self.concurrency is None or self.concurrency.holds(key.concurrency))
            and (not self.valid or set(cell.a_status) == set(cell.b_status) == {Status.VALID})
        )

    def __str__(self) -> str:
        terms = []
        if self.concurrency is not None:
            context = "*" if self.context is None else self.context.shown(sizes=True)
            terms.append(f"{context} x {self.concurrency.shown(sizes=False)}")
        elif self.context is not None:
            terms.append(self.context.shown(sizes=True))
        terms += [self.phase] if self.phase else []
        terms += ["valid"] if self.valid else []
        return f"[{', '.join(terms)}]" if terms else ""


@dataclass(frozen=True, slots=True)
class Condition:
    """`limit`: a share of one for "percent", else in the figure's unit. `str()` of it parses to it again."""

    figure: Metric
    op: str
    limit: float
    kind: Kind
    where: Where

    def crossed(self, value: float) -> bool:
        return _HOLDS[self.op](value, self.limit)

    def __str__(self) -> str:
        number = self.limit * 100 if self.kind == "percent" else self.limit
        shown = f"{number:.15f}".rstrip("0").rstrip(".")
        sign = "+" if self.kind != "value" and not shown.startswith("-") else ""
        where = f" {self.where}" if str(self.where) else ""
        return f"{self.figure} {self.op} {sign}{shown}{'%' if self.kind == 'percent' else ''}{where}"


def fail_if(text: str) -> tuple[Condition, ...]:
    """Conditions out of what was typed. Raises CompareError with what is wrong and how it is written."""
    if len(text) > _LONGEST:
        raise CompareError(f"--fail-if takes at most {_LONGEST:,} characters")
    parts = [part.strip() for part in text.split(";")]
    made = tuple(_condition(part) for part in parts if part)
    if not made:
        raise CompareError("--fail-if needs a condition, such as 'total_tok_s < -3%'")
    return made


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise CompareError(
            f"--fail-if: '{text[:80]}' is no condition; write a figure, an operator and a limit, such as "
            "'total_tok_s < -3%', 'ttft_ms > +10% [8k x 1]' or 'itl_ms.p99 > 5'"
        )
    if found["before"] is not None and found["after"] is not None:
        raise CompareError(f"--fail-if: '{text[:80]}' names cells twice; one [...] is enough")
    number = float(found["sign"] + found["number"])
    kind: Kind = "percent" if found["percent"] else "change" if found["sign"] else "value"
    cells = found["before"] if found["before"] is not None else found["after"]
    limit = number / 100 if kind == "percent" else number
    return Condition(figure(found["figure"]), found["op"], limit, kind, _where(cells))


def _where(text: str | None) -> Where:
    made: dict[str, Span | str | bool] = {}
    for term in (text or "").split(","):
        word = " ".join(term.casefold().replace("×", "x").split())
        if word in ("", "*") and text is not None and text.strip() not in ("", "*"):
            raise CompareError(f"--fail-if: a term is empty in [{text[:80]}]")
        if word in ("", "*"):
            continue
        for name, value in _term(word).items():
            if name in made:
                raise CompareError(f"--fail-if: [{(text or '')[:80]}] says two things of the {name}")
            made[name] = value
    return Where(**made)  # type: ignore[arg-type]


def _term(word: str) -> dict[str, Span | str | bool]:
    if word in _PHASES:
        return {"phase": word}
    if word == "valid":
        return {"valid": True}
    split = re.fullmatch(r"(?P<context>[^x]*?(?:max)?)\s*x\s*(?P<count>[^x]+)", word)
    context, count = (split["context"], split["count"]) if split else (word, "*")
    made: dict[str, Span | str | bool] = {}
    if context.strip() not in ("", "*"):
        made["context"] = Span(word=context) if context in _WORDS else _span(context, word, sizes=True)
    if count.strip() != "*":
        made["concurrency"] = _span(count, word, sizes=False)
    return made


def _span(text: str, word: str, *, sizes: bool) -> Span:
    found = _RANGE.fullmatch(text.strip())
    if found is None or (not sizes and (found[2] or found[4])):
        raise CompareError(
            f"--fail-if: '{word[:80]}' names no cells; write context x requests, such as 8k x 1, 8k-64k x 1-16, * x 4, "
            "or prefill, decode, burst, valid"
        )
    least = _tokens(found[1], found[2], word)
    most = _tokens(found[3], found[4], word) if found[3] else least
    if least > most:
        raise CompareError(f"--fail-if: the range '{text[:40]}' ends before it begins")
    return Span(least, most)


def _tokens(number: str, unit: str, word: str) -> int:
    tokens = float(number) * {"k": _K, "m": _K * _K, "": 1}[unit]
    if tokens != round(tokens):
        raise CompareError(f"--fail-if: '{number}{unit}' in '{word[:80]}' is no whole number")
    return round(tokens)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One cell that crossed a limit. `found`: what was held against it (a share of one for "percent"; None where B has
    no number), with `why`."""

    key: Key
    a: float | None
    b: float | None
    found: float | None
    why: str
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One condition for one side. `broken`: cells that break it. `undecided`: the measured change is beyond the limit,
    but these runs cannot tell it from none (or B lacks the figure). `checked`: cells that the condition applies to."""

    condition: Condition
    side: str
    broken: tuple[Crossing, ...]
    undecided: tuple[Crossing, ...]
    checked: int

    @property
    def failed(self) -> bool:
        """A condition that applies to no cell fails too: a gate that checks nothing must not look shut."""
        return bool(self.broken) or not self.checked


def check(comparison: Comparison, conditions: Sequence[Condition]) -> list[Outcome]:
    """Every condition on every side after the first.

    A relative change breaks a condition where it crosses the limit and the comparison shows a difference; where the
    figure has no interval, or no change at all would cross the limit too, the numbers alone decide. A cell that was
    measured on side A and has no number on side B breaks every condition that applies to it.
    """
    return [_outcome(pair, condition) for pair in comparison.pairs for condition in conditions]


def _outcome(pair: Pair, condition: Condition) -> Outcome:
    cells = [
        cell
        for cell in pair.cells
        if condition.where.holds(cell)
        and cell.key.phase in condition.figure.at
        and (_was_measured(pair.a, cell.key) or (condition.kind == "value" and _was_measured(pair.b, cell.key)))
    ]
    broken: list[Crossing] = []
    undecided: list[Crossing] = []
    for cell, made in zip(cells, judge(pair, cells, condition.figure), strict=True):
        crossing, shown = _crossing(pair, cell, made, condition)
        if crossing is not None:
            (broken if shown else undecided).append(crossing)
    return Outcome(condition, pair.b.name, tuple(broken), tuple(undecided), len(cells))


def _was_measured(side: Side, key: Key) -> bool:
    return any(measured(cell) for cell in cells_of(side, key))


def _crossing(pair: Pair, cell: CellPair, made: Compared, condition: Condition) -> tuple[Crossing | None, bool]:
    """(the crossing if there is one, whether it breaks the condition)."""
    a, b = (_middle(cells_of(side, cell.key), condition.figure) for side in (pair.a, pair.b))
    if not _was_measured(pair.b, cell.key):
        status = ", ".join(dict.fromkeys(s.replace("_", " ") for s in cell.b_status))
        return Crossing(
            cell.key, a, None, None, f"measured on side A, {status} on side {pair.letter}", cell.doubts
        ), True
    if condition.kind == "value":
        if b is None:
            return Crossing(
                cell.key, a, None, None, made.reason or f"{pair.letter} has no such figure", cell.doubts
            ), False
        crossing = Crossing(cell.key, a, b, b, f"{pair.letter}'s own value", cell.doubts)
        return (crossing, True) if condition.crossed(b) else (None, False)
    if a is None or b is None or (condition.kind == "percent" and a <= 0):
        return Crossing(cell.key, a, b, None, made.reason or "A has nothing to compare with", cell.doubts), False
    relative = made.ratio.value - 1 if made.ratio is not None else b / a - 1 if a > 0 else 0.0
    found = relative if condition.kind == "percent" else b - a
    if not condition.crossed(found):
        return None, False
    if made.ratio is None or made.ratio.p is None:
        return Crossing(cell.key, a, b, found, "the figure has no interval: the numbers alone", cell.doubts), True
    if condition.crossed(0.0):
        return Crossing(cell.key, a, b, found, "no change at all would break it too", cell.doubts), True
    if made.verdict == Verdict.SAME:
        return Crossing(cell.key, a, b, found, "these runs cannot tell it from no change", cell.doubts), False
    return Crossing(cell.key, a, b, found, "the difference is shown", cell.doubts), True


def _middle(cells: Sequence[Cell], wanted: Metric) -> float | None:
    """Mean over the runs that have the figure."""
    values = [value for value in (read(cell, wanted)[0] for cell in cells) if value is not None]
    made = math.fsum(values) / len(values) if values else math.nan
    return made if math.isfinite(made) else None
