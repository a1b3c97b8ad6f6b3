"""Sustained decode: the matrix of context against simultaneous requests, with the server's room drawn through it."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.flags import Status
from flatout.record import Cell
from flatout.show import about, legend, matrix, numbers
from flatout.show.page import values
from flatout.show.page.cells import MOST_SQUARES, Shown, View, at_once, views
from flatout.show.page.heat import Heat
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import HARD_SPACE, clean

NO_ROOM = (Status.OVER_CAPACITY, Status.OVER_LENGTH)


def section(shown: Shown) -> Html | None:
    found = matrix.of(shown.cells)
    if not found.rows:
        return None
    heading = tag("h2", "Sustained decode", id="decode")
    if len(found.rows) * len(found.columns) > MOST_SQUARES:
        note = f"{len(found.rows):,} contexts × {len(found.columns):,} numbers of requests are too many for a matrix; "
        return tag("section", heading, tag("p", note, "the table of all measurements has the cells.", class_="warn"))
    switch = views(shown)
    return tag(
        "section",
        heading,
        _switch(switch),
        tag(
            "div", _table(shown, found, switch), class_="wide edge", tabindex="0", role="region",
            aria_label="Matrix of sustained decode",
        ),
        _caption(shown, switch),
        _users(shown),
        _notes(shown),
        class_="decode",
    )  # fmt: skip


def _switch(switch: Sequence[View]) -> Html:
    """Works by style sheet alone; each figure is in the page already."""
    made: list[Html] = []
    for view in switch:
        checked = view.key == "total"
        made.append(tag("input", type="radio", name="figure", id=f"fig-{view.key}", value=view.key, checked=checked))
        made.append(tag("label", view.label, for_=f"fig-{view.key}"))
    return tag("fieldset", tag("legend", "Figure in the matrix", class_="vh"), made, class_="switch")


def _table(shown: Shown, found: matrix.Matrix, switch: Sequence[View]) -> Html:
    heats = [
        Heat([view.value(c) for c in found.cells.values() if about.measured(c)], more=view.more) for view in switch
    ]
    limit = _running_limit(shown)
    first_beyond = next((n for n in found.columns if limit is not None and n > limit), None)
    top = tag(
        "tr",
        tag("th", "Context", scope="col", class_="corner"),
        [
            tag("th", f"{n:,}" if n < 10**9 else values.OUT_OF_RANGE, hidden(" at once"), scope="col",
                class_="queue" if n == first_beyond else None)
            for n in found.columns
        ],
    )  # fmt: skip
    rows = []
    for y, row in enumerate(found.rows):
        above = found.rows[y - 1] if y else None
        cells: list[Html] = []
        for x, n in enumerate(found.columns):
            cell = found.cells.get((row, n))
            edges = []
            if x and _room(cell) != _room(left := found.cells.get((row, found.columns[x - 1]))) and cell and left:
                edges.append("el")
            if above and _room(cell) != _room(over := found.cells.get((above, n))) and cell and over:
                edges.append("et")
            if n == first_beyond:
                edges.append("queue")
            cells.append(_square(shown, cell, switch, heats, edges))
        exact = f"{row[1]:,} tokens" if row[1] is not None and row[1] < 10**9 else "length not known"
        rows.append(tag("tr", tag("th", tag("span", row[0], title=exact), scope="row"), cells))
    caption = tag("caption", "Rows are contexts, columns are simultaneous requests", class_="vh")
    return tag("table", caption, tag("thead", top), tag("tbody", rows), class_="matrix")


def _room(cell: Cell | None) -> bool:
    return cell is None or cell.status not in NO_ROOM


def _running_limit(shown: Shown) -> int | None:
    value = shown.record.room.max_running.value
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _square(
    shown: Shown, cell: Cell | None, switch: Sequence[View], heats: Sequence[Heat], edges: Sequence[str]
) -> Html:
    if cell is None:
        return tag("td", tag("span", "not planned", class_="vh"), class_=" ".join(["gap", *edges]))
    place = about.cell_name(cell)
    word = about.status_word(cell.status)
    if not about.measured(cell) or cell.decode is None:
        why = clean(cell.reason or about.status_sentence(cell.status), 300)
        inner = tag("a", tag("span", word), href=f"#{shown.anchor(cell)}", title=why, class_="cell")
        return tag("td", inner, class_=" ".join(["void", f"s-{_known(cell.status)}", *edges]))
    parts: list[Html] = [_layer(shown, cell, view, heat) for view, heat in zip(switch, heats, strict=True)]
    if cell.status != Status.VALID:
        parts.append(tag("span", about.two_lines(cell.status)[0], class_="word"))
    flags = ", ".join(clean(flag.name, 40).replace("_", " ") for flag in cell.flags[:20])
    inner = tag(
        "a", parts, hidden(f"; {place}" + (f"; flags: {flags}" if flags else "")), href=f"#{shown.anchor(cell)}",
        title=f"{place}: {word}" + (f"; {flags}" if flags else ""), class_="cell",
    )  # fmt: skip
    return tag("td", inner, class_=" ".join([f"s-{_known(cell.status)}", *edges]))


def _known(status: str) -> str:
    return status if status in set(Status) else "other"


def _layer(shown: Shown, cell: Cell, view: View, heat: Heat) -> Html:
    """One figure of a square, with its shade; the style sheet shows one of them."""
    step = heat.step(view.value(cell))
    text = view.text(cell)
    number = values.dash(view.why(cell)) if text == numbers.NONE else tag("b", text)
    below = [
        tag("span", hidden(f" {what} "), text, class_=f"u {what}")
        for text, what in view.below(cell)
        if text != numbers.NONE
    ]
    shade = f" h{step}" if step is not None else ""
    return tag("span", number, flag_marks(shown, cell), below, class_=f"v f-{view.key}{shade}")


def flag_marks(shown: Shown, cell: Cell) -> Html | None:
    """Footnote letters of a cell's flags."""
    marks = about.marks(cell, shown.letters)
    if not marks:
        return None
    names = ", ".join(clean(flag.name, 40).replace("_", " ") for flag in cell.flags[:20])
    return tag("sup", tag("span", marks, aria_hidden="true"), class_="fl", title=names)


def _caption(shown: Shown, switch: Sequence[View]) -> Html:
    room = shown.record.room
    told = [
        join([tag("span", view.unit[:1].upper() + view.unit[1:], class_=f"v f-{view.key} inline") for view in switch]),
        "; below total: its 95 % interval, then TTFT. Rows are context length (K = 1024), columns are simultaneous "
        "requests; stronger colour is faster. A number opens its cell.",
    ]
    if any(not _room(cell) for cell in shown.cells if cell.phase == "decode"):
        kv = values.fact_text(room.kv_tokens)
        size = (
            f": {values.count(room.kv_tokens.value)} KV tokens" if kv and isinstance(room.kv_tokens.value, int) else ""
        )
        told.append(join(" ", tag("span", "", class_="key-room", aria_hidden="true"),
                         f" The thick line is where the server's room ends{size}."))  # fmt: skip
    limit = _running_limit(shown)
    if limit is not None and any(c.concurrency > limit for c in shown.cells if c.phase == "decode"):
        told.append(join(" ", tag("span", "", class_="key-queue", aria_hidden="true"),
                         f" Right of the dotted line requests wait: the server runs {values.count(limit)} "
                         "at once."))  # fmt: skip
    return tag("p", told, class_="cap")


def _users(shown: Shown) -> Html | None:
    question, answers, notes = at_once(shown.record)
    if not answers:
        return None
    pairs = [tag("div", tag("dt", context), tag("dd", text)) for context, text in answers]
    return tag("div", tag("h3", question), tag("dl", pairs, class_="users"),
               tag("p", "; ".join(notes) + ".", class_="cap") if notes else None, class_="atonce")  # fmt: skip


def _notes(shown: Shown) -> Html | None:
    """Flags and statuses that occur in the record, in a sentence each, right under the matrix."""
    flags = [
        tag("li", tag("sup", entry.letter), " ", tag("b", entry.term), f": {entry.sentence} ",
            tag("span", _names(entry.where), class_="soft"))
        for entry in legend.flags(shown.record)
    ]  # fmt: skip
    statuses = [tag("li", tag("b", entry.term), f": {entry.sentence}") for entry in legend.statuses(shown.record)]
    made = [*statuses, *flags]
    return tag("ul", made, class_="notes") if made else None


def _names(text: str) -> str:
    shown = text.replace(HARD_SPACE, " ")
    return shown if len(shown) <= 400 else shown[:400].rsplit(",", 1)[0] + " …"
