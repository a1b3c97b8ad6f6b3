"""Records in, a Comparison out: sides, cells, ratios, verdicts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from flatout.compare import configuration
from flatout.compare.figures import SHOWN, SPEED, Figure, figure, read
from flatout.compare.ratio import Estimate, Ratio, least_shown, level_of, ratio
from flatout.compare.result import CellPair, Compared, CompareError, Comparison, Key, Pair, Side, Value, Verdict
from flatout.flags import DOUBTFUL_FLAGS, MEASURED, Flag, Status
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
    return Comparison(made, tuple(_pair(made[0], other) for other in made[1:]), tuple(dict.fromkeys(notes)))


def _sides(records: Sequence[Record], notes: list[str]) -> list[int]:
    if len(records) == 2:
        return [0, 1]
    keys = [configuration.pool_key(record) for record in records]
    if len(set(keys)) > 1:
        seen = list(dict.fromkeys(keys))
        return [seen.index(key) for key in keys]
    notes.append(
        "All runs have the same configuration, so each is compared with the first. To compare sets of repeats, put each "
        "set into a directory of its own and name the directories."
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


def _pair(a: Side, b: Side) -> Pair:
    ours, theirs = _keys(a), _keys(b)
    shared = [key for match, key in ours.items() if match in theirs]
    cells = [_cell_pair(a, b, key) for key in shared]
    families = sorted({SPEED.get(phase, "") for phase in SHOWN} | {name for names in SHOWN.values() for name in names})
    figures: dict[tuple[str, int | str, int], dict[str, Compared]] = {key.match: {} for key in shared}
    for name in families:
        wanted = figure(name)
        mine = [c for c in cells if name in SHOWN[c.key.phase]]
        for cell, made in zip(mine, judge(a, b, mine, wanted), strict=True):
            figures[cell.key.match][name] = made
    done = [_with(c, {n: figures[c.key.match][n] for n in SHOWN[c.key.phase]}) for c in cells]
    done = _speeds_together(done)
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
    )


def _with(cell: CellPair, figures: Mapping[str, Compared]) -> CellPair:
    return CellPair(cell.key, cell.a_status, cell.b_status, cell.doubts, cell.notes, figures)


def _keys(side: Side) -> dict[tuple[str, int | str, int], Key]:
    return {match: key_of(cell) for cells in side.cells for match, cell in cells.items()}


def _cell_pair(a: Side, b: Side, key: Key) -> CellPair:
    ours, theirs = (cells_of(side, key) for side in (a, b))
    doubts = [*_doubts(ours, "A", len(a.records)), *_doubts(theirs, "B", len(b.records))]
    notes = [*_notes(ours, "A"), *_notes(theirs, "B")]
    a_status, b_status = (tuple(cell.status for cell in cells) for cells in (ours, theirs))
    if {Status.REQUESTS_QUEUED} & {*a_status} != {Status.REQUESTS_QUEUED} & {*b_status}:
        notes.append("requests queued on one side only")
    return CellPair(key, a_status, b_status, tuple(doubts), tuple(notes), {})


def cells_of(side: Side, key: Key) -> list[Cell]:
    """That cell in each run of a side that has it."""
    return [cells[key.match] for cells in side.cells if key.match in cells]


def _doubts(cells: Sequence[Cell], side: str, runs: int) -> Iterable[str]:
    doubtful = [c for c in cells if c.status == Status.DOUBTFUL or any(f.name in DOUBTFUL_FLAGS for f in c.flags)]
    if doubtful:
        names = dict.fromkeys(f.name.replace("_", " ") for c in doubtful for f in c.flags if f.name in DOUBTFUL_FLAGS)
        share = f" in {len(doubtful)} of {runs} runs" if runs > 1 else ""
        yield f"{side} {', '.join(names) or 'doubtful'}{share}"


def _notes(cells: Sequence[Cell], side: str) -> Iterable[str]:
    names = dict.fromkeys(f.name.replace("_", " ") for c in cells for f in c.flags if f.name in _TELLING)
    if names and any(c.status in MEASURED for c in cells):
        yield f"{side} {', '.join(names)}"


def judge(a: Side, b: Side, cells: Sequence[CellPair], wanted: Figure) -> list[Compared]:
    """One figure of all cells, judged as one family; doubtful cells are a family of their own, so that what is wrong
    with them touches no other."""
    made = [_compared(a, b, cell.key, wanted) for cell in cells]
    for doubtful in (False, True):
        at = [i for i, cell in enumerate(cells) if bool(cell.doubts) == doubtful]
        for i, done in zip(at, _judged([made[i] for i in at]), strict=True):
            made[i] = done
    return made


def _compared(a: Side, b: Side, key: Key, wanted: Figure) -> Compared:
    ours, theirs = (_values(side, key, wanted) for side in (a, b))
    x, y = (_value(found) for found, _ in (ours, theirs))
    for name, (found, why) in (("A", ours), ("B", theirs)):
        if not found:
            return Compared(str(wanted), x, y, None, Verdict.UNKNOWN, f"{name}: {why}")
    made = ratio(ours[0], theirs[0])
    return Compared(str(wanted), x, y, made, Verdict.UNKNOWN, made.reason)


def _values(side: Side, key: Key, wanted: Figure) -> tuple[list[Estimate], str]:
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
    middle = math.exp(math.fsum(math.log(v) for v in runs) / len(runs))
    if len(found) > 1 or found[0].below is None or found[0].above is None:
        return Value(middle, None, None, runs)
    alone = ratio([Estimate(1.0, 0.0, 0.0)], found)
    return Value(runs[0], alone.low, alone.high, runs)


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
    more = figure(name).more_is_faster
    if more is None:
        return Verdict.UNKNOWN
    return Verdict.FASTER if (made.value > 1) == more else Verdict.SLOWER


def _speeds_together(cells: Sequence[CellPair]) -> list[CellPair]:
    """The cells' speeds, whatever their phase, as one family: what the verdict on two runs is made of."""
    done = list(cells)
    for doubtful in (False, True):
        at = [i for i, c in enumerate(cells) if bool(c.doubts) == doubtful and c.speed is not None]
        judged = _judged([speed for i in at if (speed := cells[i].speed) is not None])
        for i, made in zip(at, judged, strict=True):
            done[i] = _with(cells[i], {**cells[i].figures, made.figure: made})
    return done


def _mean_ratio(cells: Sequence[CellPair]) -> float | None:
    logs = [
        math.log(c.speed.ratio.value)
        for c in cells
        if c.key.phase == "decode" and not c.doubts and c.speed is not None and c.speed.ratio is not None
    ]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
