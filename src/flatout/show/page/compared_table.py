"""The tables of a comparison: prefill, bursts, statuses that changed, and every figure of every cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from flatout.compare import CellPair, Compared, Comparison
from flatout.compare.figures import SHOWN, figure
from flatout.compare.pairs import cells_of, judge
from flatout.show import numbers
from flatout.show.comparison import cell_name, data
from flatout.show.page import compared_charts
from flatout.show.page import compared_words as words
from flatout.show.page.compared_words import Facing
from flatout.show.page.frame import held_file
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import clean

MOST_ROWS: Final = 200
MOST_FURNISHED: Final = 300
"""Cells whose further figures stand in the full table too; of more, only the compared figures do."""
MOST_FILE_BYTES: Final = 4 * 1024 * 1024


def prefill(shown: Facing) -> Html | None:
    cells = shown.of("prefill")
    if not cells:
        return None
    told = (
        "A cold prompt alone on the server: prompt tokens per second, and the time to its first token. K = 1024 for "
        "contexts, 1000 for rates."
    )
    return tag(
        "section",
        shown.heading("Prefill", "prefill"),
        words.region(_speeds(shown, cells, told), f"Prefill, {shown.letter} against A"),
        compared_charts.prefill(cells, shown.letter),
    )


def bursts(shown: Facing) -> Html | None:
    cells = shown.of("burst")
    if not cells:
        return None
    told = (
        "A fixed number of requests, all sent at once: output tokens over the time from the first send to the last end."
    )
    return tag(
        "section",
        shown.heading("Bursts", "bursts"),
        words.region(_speeds(shown, cells, told), f"Bursts, {shown.letter} against A"),
    )


def _speeds(shown: Facing, cells: Sequence[CellPair], told: str) -> Html:
    """The cells of one phase: speed, then TTFT, each side by side with its ratio and verdict."""
    phase = cells[0].key.phase
    names = (SHOWN[phase][0], "ttft_ms")
    letter = shown.letter
    groups = [tag("th", words.LABELS[name], scope="colgroup", colspan=4, class_="l group") for name in names]
    heads = ["A", letter, f"{letter} / A", "Verdict"]
    top = [
        tag("tr", tag("td", rowspan=2), groups),
        tag("tr", [tag("th", head, scope="col", class_="l" if head == "Verdict" else None) for _ in names
                   for head in heads]),
    ]  # fmt: skip
    rows = []
    for cell in cells[:MOST_ROWS]:
        name = cell_name(cell.key).removeprefix(f"{phase} ")
        link = tag("a", name, hidden(f": all figures of {cell_name(cell.key)}"), href=f"#{shown.anchor(cell)}")
        parts = [_four(cell, cell.figures.get(figure_name)) for figure_name in names]
        rows.append(tag("tr", tag("th", link, scope="row"), parts))
    left = len(cells) - MOST_ROWS
    more = f" {left:,} more cells stand in the full table." if left > 0 else ""
    caption = tag("caption", told, more, class_="cap")
    return tag("table", caption, tag("thead", top), tag("tbody", rows), class_="list speeds")


def _four(cell: CellPair, made: Compared | None) -> Html:
    if made is None:
        return tag("td", "—", colspan=4, class_="l no")
    between, least, remark = words.interval(made), words.could_show(made), words.remarks(cell, made)
    return join(
        tag("td", _with_spread(cell, made, first=True), class_="first"),
        tag("td", _with_spread(cell, made, first=False)),
        tag("td", words.dash(made, words.ratio(made.ratio.value if made.ratio else None)), _below(between), class_="n"),
        tag(
            "td",
            words.pill(cell, made),
            _below(f"could show {least}" if least != numbers.NONE else least),
            _below(remark),
            class_="l",
        ),
    )


def _below(text: str | None) -> Html | None:
    return tag("span", text, class_="remark") if text and text != numbers.NONE else None


def _with_spread(cell: CellPair, made: Compared, *, first: bool) -> Html:
    found, status = (made.a, cell.a_status) if first else (made.b, cell.b_status)
    if found is None:
        return tag("span", words.statuses(status), class_="no")
    return join(words.value(made.figure, found), _below(words.spread(found)))


def changes(shown: Facing) -> Html | None:
    """Cells whose status is another on either side, with the reasons, and those that one side did not plan."""
    changed = [cell for cell in shown.cells if cell.changed]
    if not changed:
        return None
    letter = shown.letter
    rows = []
    for cell in changed[:MOST_ROWS]:
        name = tag("a", cell_name(cell.key), href=f"#{shown.anchor(cell)}")
        both = [
            tag("td", words.statuses(status), _reason(shown, cell, first=first), class_="l")
            for first, status in ((True, cell.a_status), (False, cell.b_status))
        ]
        rows.append(tag("tr", tag("th", name, scope="row"), both))
    top = tag("tr", tag("th", "Cell", scope="col"), [tag("th", s, scope="col", class_="l") for s in ("A", letter)])
    caption = tag("caption", "Cells whose status is not the same on both sides", class_="vh")
    table = tag("table", caption, tag("thead", top), tag("tbody", rows), class_="list changed")
    left = len(changed) - MOST_ROWS
    more = tag("p", f"{left:,} more stand in the full table.", class_="soft") if left > 0 else None
    heading = shown.heading("Statuses that changed", "changed")
    return tag("section", heading, words.region(table, f"Statuses that changed, {letter}"), more)


def _reason(shown: Facing, cell: CellPair, *, first: bool) -> Html | None:
    side = shown.pair.a if first else shown.pair.b
    told = next((c.reason or c.error for c in cells_of(side, cell.key) if c.reason or c.error), None)
    flags = dict.fromkeys(f.name.replace("_", " ") for c in cells_of(side, cell.key) for f in c.flags[:20])
    text = clean(told, 200) if told else clean(", ".join(flags), 200)
    return tag("span", text, class_="remark") if text else None


def full(shown: Facing, comparison: Comparison | None) -> Html:
    """Every figure of every cell, folded; `comparison`: what stands in the file to download, None for none."""
    figures = {phase: _figures(shown, phase) for phase in words.PHASES}
    bodies = [_body(shown, cell, figures) for phase in words.PHASES for cell in shown.of(phase)]
    letter = shown.letter
    heads = ["Cell", "Figure", "A", "±", letter, "±", f"{letter} / A", "95 % interval", "Verdict", "Could show"]
    left = {"Cell", "Figure", "Verdict"}
    top = tag("tr", [tag("th", head, scope="col", class_="l" if head in left else None) for head in heads])
    table = tag("table", tag("caption", "Every figure of every cell", class_="vh"), tag("thead", top), bodies,
                class_="all figures")  # fmt: skip
    rows = sum(len(found) for phase in words.PHASES for found in figures[phase].values())
    summary = f"{rows:,} figures of {len(shown.cells):,} cells"
    missing = tag("p", f"{shown.left_out:,} more cells are too many for a page; --json has them.", class_="warn")
    return tag(
        "section",
        shown.heading("All figures", "all"),
        missing if shown.left_out else None,
        tag("p", _file(comparison), class_="files") if comparison is not None else None,
        tag(
            "details",
            tag("summary", summary),
            words.region(table, f"Every figure of every cell, {letter}", more="edge"),
            class_="every",
        ),
    )


def _figures(shown: Facing, phase: str) -> Mapping[int, Sequence[Compared]]:
    """What each cell of a phase has to show, by `id(cell)`: the compared figures, then those further ones that
    either side has. A figure is judged over the cells together, as everywhere."""
    cells = shown.of(phase)
    found: dict[int, list[Compared]] = {id(cell): list(cell.figures.values()) for cell in cells}
    measured = [cell for cell in cells if cell.measured][:MOST_FURNISHED]
    for name in words.MORE[phase]:
        for cell, made in zip(measured, judge(shown.pair, measured, figure(name)), strict=True):
            if made.a is not None or made.b is not None:
                found[id(cell)].append(made)
    return found


def _body(shown: Facing, cell: CellPair, figures: Mapping[str, Mapping[int, Sequence[Compared]]]) -> Html:
    made = figures[cell.key.phase][id(cell)] if cell.measured else ()
    name = cell_name(cell.key)
    a, b = words.statuses(cell.a_status), words.statuses(cell.b_status)
    state = a if a == b else f"{a} → {b}"
    told = [text for text in (state, clean("; ".join((*cell.doubts, *cell.notes)), 160)) if text]
    head = tag("th", name, tag("span", "; ".join(told), class_="remark"), scope="rowgroup", class_="l",
               rowspan=max(1, len(made)))  # fmt: skip
    if not made:
        row = tag("tr", head, tag("td", "no figure on either side", colspan=9, class_="l no"))
        return tag("tbody", row, id=shown.anchor(cell), class_="off")
    rows = []
    for number, one in enumerate(made):
        rows.append(tag("tr", head if number == 0 else None, _cells(cell, one)))
    return tag("tbody", rows, id=shown.anchor(cell))


def _cells(cell: CellPair, made: Compared) -> Html:
    found = made.ratio
    return join(
        tag("th", words.LABELS.get(made.figure, made.figure), scope="row", class_="l"),
        tag("td", words.value(made.figure, made.a)),
        tag("td", _quiet(words.spread(made.a)), class_="soft"),
        tag("td", words.value(made.figure, made.b)),
        tag("td", _quiet(words.spread(made.b)), class_="soft"),
        tag("td", words.dash(made, words.ratio(found.value if found else None)), class_="n"),
        tag("td", words.dash(made, words.interval(made)), class_="soft"),
        tag("td", words.pill(cell, made), class_="l"),
        tag("td", words.dash(made, words.could_show(made)), class_="soft"),
    )


def _quiet(text: str) -> str:
    return "" if text == numbers.NONE else text


def _file(comparison: Comparison) -> Html:
    """A link that holds its file itself: it needs no script and no network."""
    content = json.dumps(data(comparison), indent=1).encode()
    if len(content) > MOST_FILE_BYTES:
        return join("The comparison as data is too large for this page: flatout compare --json has it.")
    link = held_file("JSON", "flatout-comparison.json", "application/json", content)
    return join("Download the comparison as ", link, ".")
