"""A comparison as one self-contained HTML file: no script at all, nothing to load, and a policy that says so.

Two sides stand beside each other, their ratios as a matrix; of more, all curves share one chart and all figures one
table, each with its difference to the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from flatout.compare import CellPair, Compared, Comparison, Key, Outcome, Pair, Value, Verdict, letter_of
from flatout.compare.figures import KEYS, SHOWN, figure
from flatout.compare.pairs import cells_of, judge
from flatout.flags import MEASURED, Flag, Status
from flatout.metrics import BY_NAME, SPEED
from flatout.record import Record
from flatout.show import about, charts, numbers
from flatout.show.charts import Heat, Large, Line, Ratios, Spot, drawable
from flatout.show.comparison import EQUAL, METHOD, amount, cell_name, crossing_text, data, ratio, sentence
from flatout.show.page import frame, identity, values
from flatout.show.page.legend import DEFINITIONS
from flatout.show.page.tables import MOST_SQUARES
from flatout.show.safe import HARD_SPACE, clean

MOST_SIDES: Final = 13
MOST_CELLS: Final = 2_000
MOST_FURNISHED: Final = 300
"""Cells whose further figures stand in the full table too; of more, only the compared figures do."""
MOST_FILE_BYTES: Final = 4 * 1024 * 1024
MOST_NAMED: Final = 30
MOST_CHARTS: Final = 24
MOST_ROWS: Final = 200
LARGEST: Final = 10**12
STACKED: Final = 6
"""With so many columns, the two sides' matrices stand below each other."""
PHASES: Final = ("decode", "prefill", "burst")
SIGNS: Final[Mapping[Verdict, str]] = {
    Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.SAME: "=", Verdict.UNKNOWN: "?",
}  # fmt: skip
STEPS: Final = (1.03, 1.1, 1.3)
"""Factors at which the colour of a difference grows stronger."""
_EQUAL: Final = 1e-6
_NOTHING, _ENDLESS = 0.0005, 1e6
"""An end of an interval beyond these is no end: one side's own interval reaches 0."""
_WORDS: Final = {Verdict.SAME: "no difference", Verdict.UNKNOWN: "cannot tell"}
_MARKS: Final = {Verdict.FASTER: "up", Verdict.SLOWER: "down"}
VERDICTS: Final = (
    ("up2", Verdict.FASTER, "faster", "The runs tell the two apart, and the later side is the faster one. Of TTFT and "
     "ITL less is faster."),
    ("down2", Verdict.SLOWER, "slower", "The runs tell the two apart, and the later side is the slower one."),
    ("same", Verdict.SAME, "no difference seen", "The runs do not tell the two apart. “Could show” is the smallest "
     "true difference that they would have found in nine of ten cases: below it, nothing was ruled out."),
    ("unknown", Verdict.UNKNOWN, "cannot be told", "A side has no number or no interval; the reason stands there."),
)  # fmt: skip


class View(NamedTuple):
    """A figure of the switch."""

    key: str
    name: str
    label: str
    unit: str


VIEWS: Final = (
    View("total", "total_tok_s", "Total tok/s", "tok/s over all requests"),
    View("each", "per_request_tok_s", "Per request", "tok/s of one request, median"),
    View("ttft", "ttft_ms", "TTFT", "ms to the first token, median"),
    View("itl", "itl_ms", "ITL", "ms between tokens, median"),
)


@dataclass(frozen=True, slots=True)
class Fragment:
    """The comparison's parts, for a larger page that holds them: the sheet's text, and everything that is shown."""

    style: str
    body: Markup


@dataclass(frozen=True, slots=True)
class Row:
    """A cell over all sides. `pairs`: for each side but the first, the cell on both; a cell that only one of the two
    planned has that side's figures, and where neither did there is None. `anchor`: where its figures stand."""

    key: Key
    pairs: tuple[CellPair | None, ...]
    anchor: str

    def status(self, side: int) -> tuple[str, ...]:
        if side:
            pair = self.pairs[side - 1]
            return pair.b_status if pair is not None else ()
        return next((pair.a_status for pair in self.pairs if pair is not None), ())

    def value(self, side: int, name: str) -> Value | None:
        pairs = self.pairs if side == 0 else self.pairs[side - 1 : side]
        found = [pair.figures[name] for pair in pairs if pair is not None and name in pair.figures]
        return (found[0].b if side else found[0].a) if found else None

    @property
    def measured(self) -> bool:
        return any(pair is not None and pair.measured for pair in self.pairs)

    @property
    def changed(self) -> bool:
        return len({frozenset(self.status(side)) for side in range(len(self.pairs) + 1)}) > 1


@dataclass(frozen=True, slots=True)
class Shown:
    """A comparison as the page shows it. `left_out`: cells, and `sides_left_out`: sides, that it does not show."""

    comparison: Comparison
    pairs: Sequence[Pair]
    rows: Sequence[Row]
    left_out: int
    sides_left_out: int

    @property
    def letters(self) -> list[str]:
        return [letter_of(0), *(pair.letter for pair in self.pairs)]

    def of(self, phase: str) -> list[Row]:
        return [row for row in self.rows if row.key.phase == phase]


def fragment(comparison: Comparison) -> Fragment:
    """What `render` shows, without a document around it. It needs no script."""
    return Fragment(_style(), frame.fill("comparison.html", **_content(comparison, ())))


def render(comparison: Comparison, outcomes: Sequence[Outcome] = ()) -> str:
    """One self-contained HTML file for a comparison. `outcomes`: what `--fail-if` found, to stand above the numbers.

    Raises nothing for any comparison that `compare` yields; of many sides the first are shown, and it says so.
    """
    body = frame.fill("comparison.html", **_content(comparison, outcomes))
    name = title(comparison)
    records = [clean(record.id, 120) for side in comparison.sides for record in side.records][:40]
    return frame.document(
        "compared.html", style=_style(), body=body, title=name, records=records,
        description=f"{name}: {_sentence(comparison.pairs[0])}",
    )  # fmt: skip


def _style() -> str:
    return frame.asset("page.css") + frame.asset("compared.css")


def choose(comparison: Comparison) -> Shown:
    """The sides and cells that the page shows, each cell once."""
    pairs = comparison.pairs[: MOST_SIDES - 1]
    found: list[dict[tuple[str, int | str, int], CellPair]] = []
    keys: dict[tuple[str, int | str, int], Key] = {}
    for pair in pairs:
        found.append({cell.key.match: cell for cell in pair.cells})
        for key in (*(cell.key for cell in pair.cells), *pair.only_a, *pair.only_b):
            keys.setdefault(key.match, key)
    rows = []
    for at, (match, key) in enumerate(list(keys.items())[:MOST_CELLS]):
        cells = tuple(c.get(match) or _alone(pair, key) for pair, c in zip(pairs, found, strict=True))
        rows.append(Row(key, cells, _anchor(key, at)))
    return Shown(comparison, pairs, rows, len(keys) - len(rows), len(comparison.pairs) - len(pairs))


def _anchor(key: Key, at: int) -> str:
    """`d/8192/4`; by number where the cell's own is no name for a place."""
    if key.tokens is None or not (0 <= key.tokens < LARGEST and 0 <= key.concurrency < LARGEST):
        return f"cell-{at}"
    return f"{key.phase[0]}/{key.tokens}/{key.concurrency}"


def _alone(pair: Pair, key: Key) -> CellPair | None:
    """A cell that only one side planned: its figures on that side, and no verdict."""
    a_status, b_status = (tuple(cell.status for cell in cells_of(side, key)) for side in (pair.a, pair.b))
    if not a_status and not b_status:
        return None
    bare = CellPair(key, a_status, b_status, (), (), {})
    made = {name: judge(pair, [bare], figure(name))[0] for name in SHOWN[key.phase]}
    return CellPair(key, a_status, b_status, (), (), made)


def _content(comparison: Comparison, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    shown = choose(comparison)
    views = [v for v in VIEWS if v.key == "total" or any(_known(shown, row, v.name) for row in shown.of("decode"))]
    content = {
        "head": _head(shown), "gate": [_outcome(outcome) for outcome in outcomes[:MOST_NAMED]],
        "gate_left": max(0, len(outcomes) - MOST_NAMED), "letters": shown.letters, "two": len(shown.pairs) == 1,
        "views": views, "decode": _decode(shown, views), "prefill": _speeds(shown, "prefill"),
        "bursts": _speeds(shown, "burst"), "prefill_charts": _prefill_charts(shown), "changed": _changed(shown),
        "all": _everything(shown), "legend": _legend(shown), "key_mark": charts.key_mark,
        "lines": [line(side, letter, ()) for side, letter in enumerate(shown.letters)],
    }  # fmt: skip
    sections = (
        ("decode", "Sustained decode"), ("prefill", "Prefill"), ("bursts", "Bursts"),
        ("changed", "Statuses that changed"), ("all", "All figures"), ("legend", "Legend"),
    )  # fmt: skip
    return {**content, "links": [(name, word) for name, word in sections if content[name]]}


def _known(shown: Shown, row: Row, name: str) -> bool:
    return any(row.value(side, name) is not None for side in range(len(shown.letters)))


# words


def interval(made: Compared) -> str:
    found = made.ratio
    if found is None or found.low is None or found.high is None:
        return numbers.NONE
    if found.high >= _ENDLESS:
        return f"above {ratio(found.low)}"
    return f"{ratio(found.low)}–{ratio(found.high)}" if found.low >= _NOTHING else f"below {ratio(found.high)}"


def could_show(made: Compared) -> str:
    """The smallest difference that would have been found; `—` where there is no verdict either."""
    if made.least is None:
        return numbers.NONE if made.verdict == Verdict.UNKNOWN else "nothing"
    return numbers.percent(made.least) if made.least < 10 else "over 1,000 %"


def value(name: str, found: Value | None) -> str:
    return numbers.NONE if found is None else values.short(amount(name, found.value))


def spread(found: Value | None) -> str:
    """What is known of a value's precision: ±0.4 %, or `3 runs, spread 0.8 %`; empty where nothing is."""
    if found is None:
        return ""
    if len(found.runs) > 1:
        least = min(found.runs)
        wide = numbers.percent(max(found.runs) / least - 1) if least > 0 else numbers.NONE
        return f"{len(found.runs)} runs, spread {values.short(wide)}"
    return numbers.interval(found.value, found.low, found.high).removeprefix(numbers.NONE)


def why_not(made: Compared) -> str:
    """Why a figure has no verdict, or what its ratio lacks."""
    return clean(made.reason or (made.ratio.reason if made.ratio else None) or "it was not measured", 200)


def statuses(found: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(about.status_word, found))) or "not planned"


def shade(made: Compared) -> str:
    """The class of a verdict's colour: `up2`, `down4`, `same`, `unknown`."""
    if made.verdict == Verdict.SAME:
        return "same"
    found = made.ratio.value if made.ratio is not None else None
    if made.verdict == Verdict.UNKNOWN or found is None or not math.isfinite(found) or found <= 0:
        return "unknown"
    size = max(found, 1 / found)
    return f"{_MARKS[made.verdict]}{1 + sum(size >= step * (1 - _EQUAL) for step in STEPS)}"


def remarks(cell: CellPair, made: Compared) -> str:
    """What stands beside a verdict: doubts always, notes where a difference is claimed."""
    if cell.doubts:
        return clean("doubtful: " + "; ".join(cell.doubts), 160)
    if cell.notes and made.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return clean("; ".join(cell.notes), 160)
    return ""


def label(name: str) -> str:
    """A figure's name as the table of figures has it."""
    return BY_NAME[name].label if name in BY_NAME else name


def _sentence(pair: Pair) -> str:
    return sentence(pair).replace(HARD_SPACE, " ")


# who the sides are


def side_facts(record: Record) -> dict[str, str | None]:
    """What a side may differ in."""
    return {
        "Model": about.model_name(record), "Hardware": about.hardware_name(record),
        "Engine": about.engine_name(record), "Precision": about.precision(record),
        "Speculation": about.speculation(record), "Suite": clean(record.plan.suite, 80),
    }  # fmt: skip


def side_names(comparison: Comparison) -> list[str]:
    """Each side by what differs: its model, machine and engine, else its options, its date, or where it came from."""
    firsts = [side.records[0] for side in comparison.sides]
    facts = [side_facts(record) | {"Model": identity.model(record)} for record in firsts]
    differing = [name for name in facts[0] if len({fact[name] for fact in facts}) > 1]
    parts = [[fact[name] or f"no {name.lower()}" for name in differing[:2]] for fact in facts]
    if differing[:2] == ["Model", "Hardware"]:
        return [" on ".join(part) for part in parts]
    if not differing:
        options = [_options(comparison.pairs[0], first=True), *(_options(p, first=False) for p in comparison.pairs)]
        moments = [about.moment(record.started) or "" for record in firsts]
        telling = next((found for found in (options, moments) if len({*found}) == len(found)), None)
        return telling or [clean(side.name, 80) for side in comparison.sides]
    return [", ".join(part) for part in parts]


def _options(pair: Pair, *, first: bool) -> str:
    """The launch options of a side that are not the other's."""
    found = [clean(d.a if first else d.b, 60) for d in pair.differences if d.what == "launch command"]
    return " ".join(found[:2]) or numbers.NONE


def title(comparison: Comparison) -> str:
    """The sides in their order, by what differs: `sglang 0.5.6 against sglang 0.5.7`."""
    first, *others = side_names(comparison)
    return f"{first} against {others[0] if len(others) == 1 else f'{len(others)} others'}"


def _kicker(comparison: Comparison) -> str:
    runs, sides = sum(len(side.records) for side in comparison.sides), len(comparison.sides)
    if runs == sides:
        return "Comparison of two runs" if runs == 2 else f"Comparison of {runs} runs"
    return f"Comparison of {sides} configurations in {runs} runs"


def _head(shown: Shown) -> dict[str, Any]:
    comparison = shown.comparison
    firsts = [side.records[0] for side in comparison.sides]
    facts = [side_facts(record) for record in firsts]
    shared = [text for name in facts[0] if len({f[name] for f in facts}) == 1 and (text := facts[0][name])]
    sides = comparison.sides[:MOST_SIDES]
    rows = [
        (name, [(fact[name] or "not known", fact[name] != facts[0][name]) for fact in facts[: len(sides)]])
        for name in facts[0]
        if len({fact[name] for fact in facts}) > 1
    ]
    begun = [[about.moment(side.records[at].started) for at in (0, -1)] for side in sides]
    cells = [identity.verdict(side.records[0]) for side in sides]
    of_runs: dict[str, list[str]] = {
        "Measured": [f"{a}" if a == b else f"{a} to {b}" for a, b in begun],
        "Runs": [str(len(side.records)) if len(side.records) > 1 else "" for side in sides],
        "Cells": [t if len(s.records) == 1 else f"{t} in the first run" for t, s in zip(cells, sides, strict=True)],
        "From": [clean(side.name, 200) for side in sides],
    }
    rows += [(name, [(text or numbers.NONE, False) for text in found]) for name, found in of_runs.items() if any(found)]
    names = side_names(comparison)
    return {
        "kicker": _kicker(comparison), "title": title(comparison), "shared": " · ".join(shared), "sides": rows,
        "names": list(zip(shown.letters, names, strict=False)), "sides_left": shown.sides_left_out,
        "pairs": [_summary(pair) for pair in shown.pairs],
        "notes": [clean(note, 1000) for note in comparison.notes[:MOST_NAMED]], "differ": _differences(shown),
        "unknown": list(dict.fromkeys(clean(text, 300) for pair in shown.pairs for text in pair.unknown))[:MOST_ROWS],
        "equal": EQUAL,
    }  # fmt: skip


def _summary(pair: Pair) -> dict[str, Any]:
    """The verdict at a look: counts, and the mean ratio of decode with its interval."""
    mean = pair.mean_ratio
    ends = "" if mean is None or mean.low is None or mean.high is None else f"{ratio(mean.low)}–{ratio(mean.high)}"
    return {
        "letter": pair.letter, "sentence": _sentence(pair),
        "counts": [(str(v), SIGNS[v], _MARKS.get(v, ""), pair.count(v)) for v in Verdict],
        "doubtful": sum(pair.count(verdict, doubtful=True) for verdict in Verdict),
        "mean": None if mean is None else (ratio(mean.value), ends),
    }  # fmt: skip


def _differences(shown: Shown) -> list[tuple[str, list[str]]]:
    """What is not equal besides the speed: (fact, each side's value; empty where it is as A's)."""
    found: dict[str, list[str]] = {}
    for at, pair in enumerate(shown.pairs, 1):
        for d in pair.differences[:MOST_ROWS]:
            name = d.what if d.name in (d.what, "options") else f"{d.what}: {clean(d.name, 60)}"
            texts = found.setdefault(name, [""] * len(shown.letters))
            texts[0], texts[at] = clean(d.a, 400), clean(d.b, 400)
    return list(found.items())[:MOST_ROWS]


def _outcome(outcome: Outcome) -> dict[str, Any]:
    """What `--fail-if` asked, and which cells broke it."""
    told = f"{len(outcome.broken)} broken, {len(outcome.undecided)} undecided of {outcome.checked} cells"
    found = [("broken", crossing) for crossing in outcome.broken] + [("undecided", c) for c in outcome.undecided]
    return {
        "failed": outcome.failed, "condition": clean(str(outcome.condition), 400), "side": clean(outcome.side, 80),
        "told": told if outcome.checked else "no cell has this figure and matches: nothing was checked",
        "cells": [f"{kind}: {crossing_text(outcome, crossing)}" for kind, crossing in found[:MOST_NAMED]],
        "left": max(0, len(found) - MOST_NAMED),
    }  # fmt: skip


# sustained decode


class Judged(NamedTuple):
    """A figure of a cell in words. `value`, `spread`: the side's own; the others: against the first side's. `shade`:
    the class of its colour; `word`: the verdict's; `doubt`: it stands under a doubt."""

    value: str
    spread: str
    ratio: str
    interval: str
    shade: str
    sign: str
    word: str
    least: str
    why: str
    remark: str
    doubt: bool
    title: str


def _judged(cell: CellPair, made: Compared) -> Judged:
    least = could_show(made)
    parts = (
        f"{cell_name(cell.key)}: A {value(made.figure, made.a)}", value(made.figure, made.b), str(made.verdict),
        f"could show {least}" if least != numbers.NONE else "", remarks(cell, made),
    )  # fmt: skip
    return Judged(
        value(made.figure, made.b), spread(made.b), ratio(made.ratio.value if made.ratio else None), interval(made),
        shade(made), SIGNS[made.verdict], _WORDS.get(made.verdict, str(made.verdict)), least,
        why_not(made) if made.verdict == Verdict.UNKNOWN else "", remarks(cell, made), bool(cell.doubts),
        "; ".join(part for part in parts if part),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grid:
    """Decode cells by context (its `Key.match`) and number of requests; rows: (context, its label)."""

    rows: list[tuple[int | str, str]]
    columns: list[int]
    cells: dict[tuple[int | str, int], Row]


def _grid(rows: Sequence[Row]) -> Grid:
    labels: dict[int | str, str] = {}
    for row in rows:
        labels.setdefault(row.key.match[1], clean(row.key.context, 12) or numbers.context(row.key.tokens))
    ordered = sorted(labels, key=lambda name: (isinstance(name, str), name if isinstance(name, int) else 0))
    cells = {(row.key.match[1], row.key.concurrency): row for row in rows}
    return Grid([(name, labels[name]) for name in ordered], sorted({row.key.concurrency for row in rows}), cells)


def _decode(shown: Shown, views: Sequence[View]) -> dict[str, Any] | None:
    rows = shown.of("decode")
    if not rows:
        return None
    grid = _grid(rows)
    if len(grid.rows) * len(grid.columns) > MOST_SQUARES:
        return {"too_many": f"{len(grid.rows):,} contexts × {len(grid.columns):,} numbers of requests"}
    content = {"charts": [(view, _overlays(shown, grid, view)) for view in views]}
    if len(shown.pairs) > 1:
        return {**content, "tables": [(view, _table(shown, rows, (view.name,))) for view in views]}
    sides = range(2)
    heats = [
        Heat([v.value for row in rows for s in sides if (v := row.value(s, view.name))],
             more=BY_NAME[view.name].better != "less")
        for view in views
    ]  # fmt: skip
    return {
        **content, "columns": [values.short(f"{n:,}") for n in grid.columns], "ratios": _matrix(grid, views, _ratio),
        "stacked": len(grid.columns) >= STACKED,
        "twins": [
            (letter, name, _matrix(grid, views, lambda row, v, s=side: _own(row, v, heats, s)))
            for side, (letter, name) in enumerate(zip(shown.letters, side_names(shown.comparison), strict=True))
        ],
    }  # fmt: skip


def _matrix(grid: Grid, views: Sequence[View], square: Any) -> list[tuple[str, str, list[Any]]]:
    """Rows of a matrix: (label, exact length, its squares; None where nothing was planned)."""
    made = []
    for name, text in grid.rows:
        exact = f"{name:,} tokens" if isinstance(name, int) and name < LARGEST else "length not known"
        cells = [grid.cells.get((name, n)) for n in grid.columns]
        made.append((text, exact, [square(row, views) if row is not None else None for row in cells]))
    return made


def _ratio(row: Row, views: Sequence[View]) -> dict[str, Any]:
    """A square of B / A: for each figure what is judged, or its statuses where neither side has numbers."""
    cell = row.pairs[0]
    if cell is None or not cell.measured:
        a, b = (statuses(row.status(side)) for side in (0, 1))
        return {"anchor": row.anchor, "place": cell_name(row.key), "void": a if a == b else f"A {a}, B {b}"}
    layers = [(v.key, _judged(cell, cell.figures[v.name]) if v.name in cell.figures else None) for v in views]
    return {"anchor": row.anchor, "place": cell_name(row.key), "void": "", "layers": layers}


def _own(row: Row, views: Sequence[View], heats: Sequence[Heat], side: int) -> dict[str, Any]:
    """A square of one side's own matrix."""
    status = row.status(side)
    if not MEASURED & {*status}:
        return {"void": statuses(status)}
    found = [row.value(side, view.name) for view in views]
    layers = [
        (view.key, heat.step(v.value) if v else None, value(view.name, v), spread(v))
        for view, heat, v in zip(views, heats, found, strict=True)
    ]
    word = ", ".join(dict.fromkeys(about.two_lines(s)[0] for s in status if s != Status.VALID))
    return {"void": "", "word": word, "doubtful": Status.DOUBTFUL in status, "layers": layers}


# charts


def line(side: int, letter: str, spots: Sequence[Spot | None]) -> Line:
    """A side's line: the first is quiet and dashed, neighbours among the others differ much in colour."""
    made = charts.line_of(side - 1, letter, spots)
    return replace(made, kind=f"k-{(side - 1) * 5 % 12}") if side else replace(made, kind="base", shape=1)


def _overlays(shown: Shown, grid: Grid, view: View) -> list[Large]:
    """For each context all sides' curves over the number of requests, and their ratios to the first below."""
    made = []
    for name, text in grid.rows[:MOST_CHARTS]:
        rows = [row for n in grid.columns if (row := grid.cells.get((name, n))) is not None]
        chart = overlay(
            shown.letters, [(row.key.concurrency, row) for row in rows], view.name, text, "requests at once"
        )
        made += [chart] if chart is not None else []
    return made


def _prefill_charts(shown: Shown) -> list[Large]:
    rows = [(row.key.tokens, row) for row in sorted(shown.of("prefill"), key=lambda r: r.key.tokens or 0)]
    found = (
        overlay(shown.letters, rows, name, text, "context")
        for name, text in (("prefill_tok_s", "Prefill rate by context"), ("ttft_ms", "TTFT cold by context"))
    )
    return [chart for chart in found if chart is not None]


def overlay(
    letters: Sequence[str], rows: Sequence[tuple[int | None, Row]], name: str, title: str, x: str
) -> Large | None:
    """One chart of a figure; None for fewer than two places on its axis."""
    lines = []
    for side, letter in enumerate(letters):
        spots = []
        for at, row in rows[: charts.MOST_SPOTS]:
            v = row.value(side, name)
            sound = Status.DOUBTFUL not in row.status(side)
            spots.append(charts.spot(at, v.value, v.low, v.high, sound) if v is not None else None)
        lines.append(line(side, letter, spots))
    marks = [
        mark
        for side in range(1, len(letters))
        for at, row in rows[: charts.MOST_SPOTS]
        if (mark := _mark(at, row.pairs[side - 1], name, side if len(letters) > 2 else None)) is not None
    ]
    labels = {float(at): clean(row.key.context, 12) for at, row in rows if drawable(at) is not None and at is not None}
    heading = f"{letters[1]} / A" if len(letters) == 2 else "ratio to A"
    return charts.plot(
        lines, title, x, BY_NAME[name].unit, log_y=False, ratios=Ratios(heading, marks),
        labels=labels if x == "context" else None,
    )  # fmt: skip


def _mark(at: int | None, cell: CellPair | None, name: str, side: int | None) -> tuple[str, str, Spot] | None:
    """A ratio in the strip: coloured by its verdict, or by its side where there are several."""
    made = cell.figures.get(name) if cell is not None else None
    x, found = drawable(at), made.ratio if made is not None else None
    y = drawable(found.value) if found is not None else None
    if cell is None or made is None or found is None or x is None or x <= 0 or y is None or y <= 0:
        return None
    verdict = _MARKS.get(made.verdict, "same")
    kind = f"v-{verdict}" if side is None else line(side, "", ()).kind
    sound = not cell.doubts and made.verdict != Verdict.UNKNOWN
    return kind, verdict, Spot(x, y, found.low, found.high, sound)


# tables


class Cells(NamedTuple):
    """A cell in a table of differences: for each figure the first side's value, then every other side's."""

    anchor: str
    name: str
    figures: list[tuple[str, str, list[Judged | str]]]


def _speeds(shown: Shown, phase: str) -> dict[str, Any] | None:
    rows = shown.of(phase)
    speed = SPEED[phase]  # type: ignore[index]
    return _table(shown, rows, (speed.key, "ttft_ms")) if rows else None


def _table(shown: Shown, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Figures of the cells of one phase: each side's value with its difference to the first."""
    made = []
    measured = [row for row in rows if row.measured]
    for row in measured[:MOST_ROWS]:
        figures = []
        for name in names:
            first = row.value(0, name)
            text = value(name, first) if first is not None else statuses(row.status(0))
            figures.append((text, spread(first), [_other(row, side, name) for side in range(1, len(shown.letters))]))
        made.append(Cells(row.anchor, cell_name(row.key).removeprefix(f"{row.key.phase} "), figures))
    return {
        "groups": [label(name) for name in names], "rows": made, "left": max(0, len(measured) - MOST_ROWS),
        "empty": len(rows) - len(measured),
    }  # fmt: skip


def _other(row: Row, side: int, name: str) -> Judged | str:
    """A side's figure against the first's; its status where it has none."""
    cell = row.pairs[side - 1]
    if cell is None or name not in cell.figures:
        return statuses(row.status(side))
    made = _judged(cell, cell.figures[name])
    return made if made.value != numbers.NONE else made._replace(value=statuses(row.status(side)))


def _changed(shown: Shown) -> dict[str, Any] | None:
    """Cells whose status is not the same on all sides, with the reasons."""
    changed = [row for row in shown.rows if row.changed]
    rows = [
        (row.anchor, cell_name(row.key),
         [(statuses(row.status(side)), _reason(shown, row, side)) for side in range(len(shown.letters))])
        for row in changed[:MOST_ROWS]
    ]  # fmt: skip
    return {"rows": rows, "left": max(0, len(changed) - MOST_ROWS)} if rows else None


def _reason(shown: Shown, row: Row, side: int) -> str:
    cells = cells_of(shown.pairs[0].a if side == 0 else shown.pairs[side - 1].b, row.key)
    told = next((c.reason or c.error for c in cells if c.reason or c.error), None)
    flags = dict.fromkeys(f.name.replace("_", " ") for c in cells for f in c.flags[:20])
    return clean(told, 200) if told else clean(", ".join(flags), 200)


def further(phase: str) -> list[str]:
    """Figures of the full table besides those that every comparison judges."""
    found = (
        key
        for key, metric in KEYS.items()
        if phase in metric.at
        and (metric.shown in ("first", "always", "if known") or metric.unit == "J" or key.endswith((".p90", ".p99")))
    )
    return [key for key in found if key not in SHOWN[phase]]


def _everything(shown: Shown) -> dict[str, Any]:
    """Every figure of every cell: (label, the first side's value and spread, each other side's)."""
    bodies = []
    for phase in PHASES:
        rows = shown.of(phase)
        figures = _all_figures(shown, phase, rows)
        for row in rows:
            doubts = dict.fromkeys(text for pair in row.pairs if pair for text in (*pair.doubts, *pair.notes))
            states = [statuses(row.status(side)) for side in range(len(shown.letters))]
            state = states[0] if len({*states}) == 1 else " → ".join(states)
            remark = "; ".join(filter(None, (state, clean("; ".join(doubts), 160))))
            lines = [
                (label(name), value(name, first), spread(first),
                 [_judged(pair, made) if pair is not None and made is not None else None for pair, made in others])
                for name, first, others in figures.get(row.anchor, [])
            ]  # fmt: skip
            bodies.append((row.anchor, cell_name(row.key), remark, lines))
    return {
        "bodies": bodies, "figures": sum(len(lines) for *_, lines in bodies), "cells": len(shown.rows),
        "left_out": shown.left_out, "file": _file(shown.comparison),
    }  # fmt: skip


Others = list[tuple[CellPair | None, Compared | None]]


def _all_figures(shown: Shown, phase: str, rows: Sequence[Row]) -> dict[str, list[tuple[str, Value | None, Others]]]:
    """By cell: each figure with the first side's value and what is judged of every other side. Further figures are
    judged over the cells together, as everywhere."""
    found: dict[str, list[tuple[str, Value | None, Others]]] = {row.anchor: [] for row in rows}
    measured = [row for row in rows if row.measured]
    for name in SHOWN[phase]:
        for row in measured:
            others = [(pair, pair.figures.get(name) if pair is not None else None) for pair in row.pairs]
            if any(made is not None for _, made in others):
                found[row.anchor].append((name, row.value(0, name), others))
    for name in further(phase):
        columns = []
        for at, pair in enumerate(shown.pairs):
            cells = [cell for row in measured[:MOST_FURNISHED] if (cell := row.pairs[at]) is not None]
            columns.append(dict(zip(map(id, cells), judge(pair, cells, figure(name)), strict=True)))
        for row in measured[:MOST_FURNISHED]:
            others = [(pair, columns[at].get(id(pair)) if pair else None) for at, pair in enumerate(row.pairs)]
            if any(made is not None and (made.a or made.b) for _, made in others):
                first = next((made.a for _, made in others if made is not None), None)
                found[row.anchor].append((name, first, others))
    return found


def _file(comparison: Comparison) -> Markup | None:
    """The comparison as data, held by its link; None where it is too large for a page."""
    content = json.dumps(data(comparison), indent=1).encode()
    return frame.held_file("application/json", content) if len(content) <= MOST_FILE_BYTES else None


def _legend(shown: Shown) -> dict[str, Any]:
    """Verdicts, and the statuses and flags that occur, in a sentence each."""
    states = {status for row in shown.rows for side in range(len(shown.letters)) for status in row.status(side)}
    cells = (cell for side in shown.comparison.sides for record in side.records for cell in record.cells)
    flags = {flag.name for cell in cells for flag in cell.flags}
    used: Iterable[tuple[str, str]] = (
        *((about.status_word(s), about.status_sentence(s)) for s in Status if s in states),
        *((f.replace("_", " "), about.flag_sentence(f)) for f in Flag if f in flags),
    )
    return {
        "verdicts": [(kind, SIGNS[verdict], word, text) for kind, verdict, word, text in VERDICTS],
        "used": list(used), "method": METHOD, "steps": ", ".join(f"{(step - 1) * 100:.0f} %" for step in STEPS),
        "definitions": DEFINITIONS[:6],
    }  # fmt: skip
