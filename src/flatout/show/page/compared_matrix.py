"""Sustained decode of two sides: the ratio of each cell as a matrix, and both sides' own matrices beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flatout.compare import CellPair, Compared, Verdict
from flatout.compare.figures import figure
from flatout.flags import MEASURED, Status
from flatout.show import about, numbers
from flatout.show.comparison import cell_name
from flatout.show.page import compared_charts, values
from flatout.show.page import compared_words as words
from flatout.show.page.cells import MOST_SQUARES
from flatout.show.page.compared_words import Facing
from flatout.show.page.heat import Heat
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import clean

VIEWS: Final = (
    ("total", "total_tok_s", "Total tok/s", "tok/s over all requests"),
    ("each", "per_request_tok_s", "Per request", "tok/s of one request, median"),
    ("ttft", "ttft_ms", "TTFT", "ms to the first token, median"),
    ("itl", "itl_ms", "ITL", "ms between tokens, median"),
)
_STACKED: Final = 9
"""More columns than this: the two sides' matrices stand below each other."""
Row = tuple[int | str, str]


@dataclass(frozen=True, slots=True)
class View:
    """One figure of the switch, with the shades for both sides together."""

    key: str
    name: str
    label: str
    unit: str
    heat: Heat


@dataclass(frozen=True, slots=True)
class Grid:
    """Decode cells by context (its `Key.match`, its label) and number of requests."""

    rows: tuple[Row, ...]
    columns: tuple[int, ...]
    cells: dict[tuple[int | str, int], CellPair]


def section(shown: Facing) -> Html | None:
    cells = shown.of("decode")
    if not cells:
        return None
    heading = shown.heading("Sustained decode", "decode")
    grid = _grid(cells)
    if len(grid.rows) * len(grid.columns) > MOST_SQUARES:
        told = f"{len(grid.rows):,} contexts × {len(grid.columns):,} numbers of requests are too many for a matrix; "
        return tag("section", heading, tag("p", told, "the full table has the cells.", class_="warn"))
    views = _views(cells)
    twin = "twin stacked" if len(grid.columns) > _STACKED else "twin"
    return tag(
        "section",
        heading,
        _switch(shown, views),
        shown.heading(f"{shown.letter} / A", down=1),
        words.region(_table(shown, grid, views, "ratio"), f"{shown.letter} / A, sustained decode", more="edge"),
        _caption(shown, views),
        tag("div", [_side(shown, grid, views, side) for side in ("A", shown.letter)], class_=twin),
        tag(
            "p",
            _units(views),
            ". Both sides share one scale of colour: stronger is faster. ± is the 95 % interval.",
            class_="cap",
        ),
        _charts(shown, grid, views),
        class_="facing",
    )


def _grid(cells: Sequence[CellPair]) -> Grid:
    labels: dict[int | str, str] = {}
    for cell in cells:
        labels.setdefault(cell.key.match[1], clean(cell.key.context, 12) or numbers.context(cell.key.tokens))
    ordered = sorted(labels, key=lambda row: (isinstance(row, str), row if isinstance(row, int) else 0))
    found = {(cell.key.match[1], cell.key.concurrency): cell for cell in cells}
    return Grid(
        tuple((row, labels[row]) for row in ordered), tuple(sorted({cell.key.concurrency for cell in cells})), found
    )


def _views(cells: Sequence[CellPair]) -> list[View]:
    """The figures that any cell has on either side; the first one always."""
    made = []
    for key, name, label, unit in VIEWS:
        found = [side.value for cell in cells if (c := cell.figures.get(name)) for side in (c.a, c.b) if side]
        if found or key == "total":
            more = {"more": True, "less": False}.get(figure(name).better or "")
            made.append(View(key, name, label, unit, Heat(found, more=more is not False)))
    return made


def _switch(shown: Facing, views: Sequence[View]) -> Html:
    """Works by style sheet alone; every figure is in the page already."""
    made: list[Html] = []
    for view in views:
        place = shown.place(f"fig-{view.key}")
        made.append(tag("input", type="radio", name=f"figure-{shown.letter}", id=place, value=view.key,
                        checked=view.key == "total"))  # fmt: skip
        made.append(tag("label", view.label, for_=place))
    legend = tag("legend", "Figure in the matrices and charts", class_="vh")
    return tag("fieldset", legend, made, class_="switch")


def _table(shown: Facing, grid: Grid, views: Sequence[View], what: str) -> Html:
    top = tag(
        "tr",
        tag("th", "Context", scope="col", class_="corner"),
        [tag("th", values.short(f"{n:,}"), hidden(" at once"), scope="col") for n in grid.columns],
    )
    rows = []
    for row, label in grid.rows:
        exact = f"{row:,} tokens" if isinstance(row, int) and row < words.LARGEST else "length not known"
        squares = [_square(shown, grid.cells.get((row, n)), views, what) for n in grid.columns]
        rows.append(tag("tr", tag("th", tag("span", label, title=exact), scope="row"), squares))
    named = f"{shown.letter} / A" if what == "ratio" else f"Side {what}"
    caption = tag("caption", f"{named}: rows are contexts, columns are simultaneous requests", class_="vh")
    return tag("table", caption, tag("thead", top), tag("tbody", rows), class_=f"matrix {_kind(what)}")


def _kind(what: str) -> str:
    return "ratios" if what == "ratio" else "own"


def _square(shown: Facing, cell: CellPair | None, views: Sequence[View], what: str) -> Html:
    if cell is None:
        return tag("td", tag("span", "not planned", class_="vh"), class_="gap")
    if what != "ratio":
        return _own(cell, views, first=what == "A")
    place = cell_name(cell.key)
    if not cell.measured:
        same = set(cell.a_status) == set(cell.b_status)
        told = words.statuses(cell.a_status) if same else f"A {words.statuses(cell.a_status)}"
        told += "" if same else f", {shown.letter} {words.statuses(cell.b_status)}"
        inner = tag("a", tag("span", told), hidden(f"; {place}"), href=f"#{shown.anchor(cell)}", class_="cell")
        return tag("td", inner, class_="void")
    layers = [_ratio(shown, cell, view) for view in views]
    inner = tag("a", layers, hidden(f"; {place}, all figures"), href=f"#{shown.anchor(cell)}", class_="cell")
    return tag("td", inner)


def _ratio(shown: Facing, cell: CellPair, view: View) -> Html:
    """One figure's ratio in a square: number, interval, verdict in a word, and what it stands under."""
    made = cell.figures.get(view.name)
    kind = f"v g-{view.key}"
    if made is None:
        return tag("span", "not measured", class_=f"{kind} unknown")
    doubt = tag("span", "◆ doubtful", class_="u mark") if cell.doubts else None
    told = {
        "class_": f"{kind} {words.shade(made)}" + (" doubt" if cell.doubts else ""),
        "title": _title(shown, cell, made),
    }
    sign = words.sign(made.verdict)
    if made.ratio is None:
        return tag("span", tag("span", sign, f" {words.why_not(made)}", class_="u"), doubt, **told)
    between, least = words.interval(made), words.could_show(made)
    small = [tag("span", hidden(" 95 % interval "), between, class_="u")] if between != numbers.NONE else []
    if made.verdict == Verdict.UNKNOWN:
        small.append(tag("span", words.why_not(made), class_="u why"))
    word = {Verdict.SAME: "no difference", Verdict.UNKNOWN: "cannot tell"}.get(made.verdict, str(made.verdict))
    small.append(tag("span", sign, f" {word}", class_="u mark"))
    if made.verdict == Verdict.SAME and least != numbers.NONE:
        small.append(tag("span", f"could show {least}", class_="u"))
    return tag("span", tag("b", words.ratio(made.ratio.value)), small, doubt, **told)


def _title(shown: Facing, cell: CellPair, made: Compared) -> str:
    least = words.could_show(made)
    parts = [
        f"{cell_name(cell.key)}: A {words.value(made.figure, made.a)}",
        f"{shown.letter} {words.value(made.figure, made.b)}",
        str(made.verdict),
        f"could show {least}" if least != numbers.NONE else "",
        words.remarks(cell, made) or "",
    ]
    return "; ".join(part for part in parts if part)


def _side(shown: Facing, grid: Grid, views: Sequence[View], side: str) -> Html:
    table = _table(shown, grid, views, side)
    who = shown.pair.a if side == "A" else shown.pair.b
    name = about.engine_name(who.records[0])
    heading = shown.heading(f"{side} · {name}", down=1)
    return tag("div", heading, words.region(table, f"{side}, sustained decode, against {shown.letter}", more="edge"))


def _own(cell: CellPair, views: Sequence[View], *, first: bool) -> Html:
    status = cell.a_status if first else cell.b_status
    if not MEASURED & {*status}:
        return tag("td", tag("span", words.statuses(status), class_="cell"), class_="void")
    word = ", ".join(dict.fromkeys(about.two_lines(s)[0] for s in status if s != Status.VALID))
    mark = tag("span", word, class_="u mark") if word else None
    layers = []
    for view in views:
        made = cell.figures.get(view.name)
        found = (made.a if first else made.b) if made is not None else None
        if made is None or found is None:
            layers.append(tag("span", values.dash(None), mark, class_=f"v g-{view.key}"))
            continue
        step = view.heat.step(found.value)
        precision = words.spread(found)
        below = tag("span", precision, class_="u") if precision != numbers.NONE else None
        layers.append(
            tag("span", tag("b", words.value(view.name, found).removesuffix(" ms")), below, mark,
                class_=f"v g-{view.key}" + (f" h{step}" if step is not None else ""))
        )  # fmt: skip
    doubtful = " s-doubtful" if Status.DOUBTFUL in status else ""
    return tag("td", tag("span", layers, class_="cell"), class_=f"own{doubtful}")


def _units(views: Sequence[View]) -> list[Html]:
    return [tag("span", f"{view.label} ({view.unit})", class_=f"inline g-{view.key}") for view in views]


def _caption(shown: Facing, views: Sequence[View]) -> Html:
    least = " ".join(
        f"{words.SIGNS[v]} {word}" for v, word in ((Verdict.FASTER, "faster,"), (Verdict.SLOWER, "slower,"))
    )
    return tag(
        "p", _units(views), f": {shown.letter} / A, its 95 % interval, and the verdict on {shown.letter}: {least} "
        f"{words.SIGNS[Verdict.SAME]} no difference seen, with the smallest true difference that these runs could have "
        f"shown, {words.SIGNS[Verdict.UNKNOWN]} cannot be told. Of times less is faster. Stronger colour is a larger "
        "difference. A square leads to all figures of its cell.", class_="cap",
    )  # fmt: skip


def _charts(shown: Facing, grid: Grid, views: Sequence[View]) -> Html | None:
    """For each context both sides' curves over the number of requests, and their ratio below."""
    layers = []
    for view in views:
        made = []
        for row, label in grid.rows[: compared_charts.MOST_CHARTS]:
            cells = [cell for n in grid.columns if (cell := grid.cells.get((row, n))) is not None]
            spots = compared_charts.spots(cells, view.name, lambda cell: cell.key.concurrency)
            chart = compared_charts.draw(spots, view.name, label, shown.letter, "requests at once")
            made += [chart] if chart is not None else []
        if made:
            layers.append(tag("div", made, class_=f"charts three g-{view.key}"))
    if not layers:
        return None
    titles = [tag("span", view.label, class_=f"inline g-{view.key}") for view in views]
    heading = tag(f"h{shown.level + 1}", "Scaling: ", join(titles), id=shown.place("scaling"))
    return tag("div", heading, compared_charts.key(shown.letter), layers, class_="overlaid")
