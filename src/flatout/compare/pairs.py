"""Records in, a Comparison out: sides, cells, ratios, verdicts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from flatout.compare import configuration
from flatout.compare.figures import SHOWN, SPEED, figure, read
from flatout.compare.ratio import Estimate, Ratio, least_shown, level_of, ratio, together
from flatout.compare.result import (
    CellPair,
    Compared,
    CompareError,
    Comparison,
    Key,
    Pair,
    Side,
    Value,
    Verdict,
    letter_of,
)
from flatout.flags import DOUBTFUL_FLAGS, MEASURED, Flag, Status
from flatout.metrics import Metric
from flatout.record import Cell, Record

MOST_CELLS: Final = 20_000
MOST_RECORDS: Final = 200
_TELLING: Final = frozenset(
    {Flag.THROTTLED, Flag.DRIFTING, Flag.PREEMPTED, Flag.UNDERFILLED, Flag.EARLY_STOP, Flag.TOKENS_ESTIMATED}
    | {Flag.CACHE_COLD, Flag.COLD_UNVERIFIED}
)
"""Flags that explain a difference without making it doubtful."""


def compare(
    records: Sequence[Record], *, sides: Sequence[int] | None = None, names: Sequence[str] | None = None
) -> Comparison:
    """The comparison of two records or more. Raises CompareError: too few, too many cells.

    `sides`: each record's side (0 is the baseline), runs of one side being its repeats. Without it, two records are
    two sides, and of more the runs of one configuration are one (`configuration.pool_key`), in order of appearance.
    `names`: each record's name.
    """
    if len(records) < 2:
        raise CompareError("a comparison needs two records or more: flatout compare A B")
    if len(records) > MOST_RECORDS or sum(len(r.cells) for r in records) > MOST_CELLS:
        raise CompareError(f"at most {MOST_RECORDS} records and {MOST_CELLS:,} cells can be compared at once")
    notes: list[str] = []
    numbers = list(sides) if sides is not None else _sides(records, notes)
    if len(numbers) != len(records) or len(set(numbers)) < 2:
        raise CompareError("all records are on one side: there is nothing to compare them with")
    told = list(names) if names is not None else [record.id for record in records]
    order = sorted(set(numbers)) if sides is not None else list(dict.fromkeys(numbers))
    made = tuple(
        _side([(r, n) for r, n, mine in zip(records, told, numbers, strict=True) if mine == number], notes)
        for number in order
    )
    notes += _about_repeats(made)
    return Comparison(
        made, tuple(_pair(made[0], b, letter_of(at)) for at, b in enumerate(made[1:], 1)), tuple(dict.fromkeys(notes))
    )


def _sides(records: Sequence[Record], notes: list[str]) -> list[int]:
    if len(records) == 2:
        return [0, 1]
    keys = [configuration.pool_key(record) for record in records]
    if len(set(keys)) > 1:
        seen = list(dict.fromkeys(keys))
        return [seen.index(key) for key in keys]
    notes.append(
        "All runs have the same configuration, so each is compared with the first. To compare sets of repeats, put "
        "each set into a directory of its own and name the directories."
    )
    return list(range(len(records)))


def _side(runs: Sequence[tuple[Record, str]], notes: list[str]) -> Side:
    names = list(dict.fromkeys(name for _, name in runs))
    name = names[0] if len(runs) == 1 else f"{names[0]} and {len(runs) - 1} more"
    if len({configuration.pool_key(record) for record, _ in runs}) > 1:
        notes.append(f"The runs of {name} are not of one configuration: their spread includes what differs.")
    maps = []
    for record, _ in runs:
        by_key: dict[tuple[str, int | str, int], Cell] = {}
        for cell in record.cells:
            by_key.setdefault(key_of(cell).match, cell)
        if len(by_key) < len(record.cells):
            notes.append(f"{name} has cells twice: only the first of each counts.")
        maps.append(by_key)
        if record.state != "finished":
            notes.append(f"A run of {name} did not end well ({record.state}): cells may be missing.")
    return Side(name, tuple(record for record, _ in runs), tuple(maps))


def _about_repeats(sides: Sequence[Side]) -> list[str]:
    most = max(len(side.records) for side in sides)
    if most == 1:
        return [
            "Each side is one run: the intervals tell how well that run was measured, not how much two starts of one "
            "server differ. Measure each side three times or more where that matters."
        ]
    if most == 2:
        return ["Two runs tell little of the spread between runs, so intervals are wide: three or more are better."]
    return []


def key_of(cell: Cell) -> Key:
    return Key(cell.phase, cell.context, cell.context_tokens, cell.concurrency)


def _pair(a: Side, b: Side, letter: str) -> Pair:
    ours, theirs = _keys(a), _keys(b)
    shared = [key for match, key in ours.items() if match in theirs]
    done = _all_judged(a, b, [_cell_pair(a, b, key, letter) for key in shared], letter)
    found, unknown = configuration.differences(a.records[0], b.records[0])
    return Pair(
        a,
        b,
        tuple(done),
        found,
        unknown,
        tuple(key for match, key in ours.items() if match not in theirs),
        tuple(key for match, key in theirs.items() if match not in ours),
        _mean_ratio(done),
        letter,
    )


def _keys(side: Side) -> dict[tuple[str, int | str, int], Key]:
    return {match: key_of(cell) for cells in side.cells for match, cell in cells.items()}


def _cell_pair(a: Side, b: Side, key: Key, letter: str) -> CellPair:
    ours, theirs = (cells_of(side, key) for side in (a, b))
    doubts = _both(_doubts(ours, len(a.records)), _doubts(theirs, len(b.records)), letter)
    notes = _both(_notes(ours), _notes(theirs), letter)
    a_status, b_status = (tuple(cell.status for cell in cells) for cells in (ours, theirs))
    if {Status.REQUESTS_QUEUED} & {*a_status} != {Status.REQUESTS_QUEUED} & {*b_status}:
        notes.append("requests queued on one side only")
    return CellPair(key, a_status, b_status, tuple(doubts), tuple(notes), {})


def cells_of(side: Side, key: Key) -> list[Cell]:
    """That cell in each run of a side that has it."""
    return [cells[key.match] for cells in side.cells if key.match in cells]


def _both(a: str | None, b: str | None, letter: str) -> list[str]:
    """What is said of either side, once where it is the same."""
    if a and a == b:
        return [f"both {a}"]
    return [f"{name} {told}" for name, told in (("A", a), (letter, b)) if told]


def _doubts(cells: Sequence[Cell], runs: int) -> str | None:
    doubtful = [c for c in cells if c.status == Status.DOUBTFUL or any(f.name in DOUBTFUL_FLAGS for f in c.flags)]
    if not doubtful:
        return None
    names = dict.fromkeys(f.name.replace("_", " ") for c in doubtful for f in c.flags if f.name in DOUBTFUL_FLAGS)
    return (", ".join(names) or "doubtful") + (f" in {len(doubtful)} of {runs} runs" if runs > 1 else "")


def _notes(cells: Sequence[Cell]) -> str | None:
    names = dict.fromkeys(f.name.replace("_", " ") for c in cells for f in c.flags if f.name in _TELLING)
    return ", ".join(names) if any(c.status in MEASURED for c in cells) and names else None


def _all_judged(a: Side, b: Side, cells: Sequence[CellPair], letter: str) -> list[CellPair]:
    """The cells with their shown figures. The cells' speeds, whatever their phase, are one family: they are what the
    verdict on two runs is made of. Every other figure is a family of its own."""
    made = [{name: _compared(a, b, cell.key, figure(name), letter) for name in SHOWN[cell.key.phase]} for cell in cells]
    for family in ("", *dict.fromkeys(name for names in SHOWN.values() for name in names[1:])):
        names = [family or SPEED[cell.key.phase] for cell in cells]
        at = [i for i, name in enumerate(names) if name in made[i]]
        for i, done in zip(at, _judged_apart([made[i][names[i]] for i in at], [cells[i] for i in at]), strict=True):
            made[i][names[i]] = done
    return [CellPair(c.key, c.a_status, c.b_status, c.doubts, c.notes, m) for c, m in zip(cells, made, strict=True)]


def judge(pair: Pair, cells: Sequence[CellPair], wanted: Metric) -> list[Compared]:
    """One figure of some cells of a pair: as it stands in the comparison, else judged as one family."""
    if all(wanted.key in cell.figures for cell in cells):
        return [cell.figures[wanted.key] for cell in cells]
    return _judged_apart([_compared(pair.a, pair.b, cell.key, wanted, pair.letter) for cell in cells], cells)


def _judged_apart(family: Sequence[Compared], cells: Sequence[CellPair]) -> list[Compared]:
    """Doubtful cells are a family of their own, so that what is wrong with them touches no other."""
    made = list(family)
    for doubtful in (False, True):
        at = [i for i, cell in enumerate(cells) if bool(cell.doubts) == doubtful]
        for i, done in zip(at, _judged([made[i] for i in at]), strict=True):
            made[i] = done
    return made


def _compared(a: Side, b: Side, key: Key, wanted: Metric, letter: str) -> Compared:
    ours, theirs = (_values(side, key, wanted) for side in (a, b))
    x, y = (_value(found) for found, _ in (ours, theirs))
    for name, (found, why) in (("A", ours), (letter, theirs)):
        if not found:
            return Compared(wanted.key, x, y, None, Verdict.UNKNOWN, f"{name}: {why}")
    made = ratio(ours[0], theirs[0])
    return Compared(wanted.key, x, y, made, Verdict.UNKNOWN, made.reason)


def _values(side: Side, key: Key, wanted: Metric) -> tuple[list[Estimate], str]:
    found: list[Estimate] = []
    why = "the cell is not in the plan"
    for cell in cells_of(side, key):
        value, made, reason = read(cell, wanted)
        if made is not None:
            found.append(made)
        else:
            why = reason or ("it is not above 0" if value is not None else "it was not measured")
    return found, why


def _value(found: Sequence[Estimate]) -> Value | None:
    if not found:
        return None
    runs = tuple(e.value for e in found)
    if len(found) == 1:
        return Value(runs[0], found[0].low, found[0].high, runs)
    return Value(math.exp(math.fsum(math.log(v) for v in runs) / len(runs)), None, None, runs)


def _judged(family: Sequence[Compared]) -> list[Compared]:
    """Verdicts, with the level that many cells demand."""
    chances = [c.ratio.p for c in family if c.ratio is not None and c.ratio.p is not None]
    shown, next_one = level_of(chances)
    return [_verdict(c, shown, next_one) for c in family]


def _verdict(c: Compared, shown: float, next_one: float) -> Compared:
    made = c.ratio
    if made is None or made.p is None:
        return c
    differs = made.p <= shown
    least = least_shown(made, shown if differs else next_one)
    return Compared(c.figure, c.a, c.b, made, _word(c.figure, made) if differs else Verdict.SAME, None, least)


def _word(name: str, made: Ratio) -> Verdict:
    better = figure(name).better
    if better is None:
        return Verdict.UNKNOWN
    return Verdict.FASTER if (made.value > 1) == (better == "more") else Verdict.SLOWER


def _mean_ratio(cells: Sequence[CellPair]) -> Ratio | None:
    found = [
        c.speed.ratio
        for c in cells
        if c.key.phase == "decode" and not c.doubts and c.speed is not None and c.speed.ratio is not None
    ]
    return together(found) if len(found) > 1 else None
