"""The tables of figures: prefill and bursts by context, the matrix of sustained decode, and all measurements."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from flatout import metrics
from flatout.flags import Status
from flatout.metrics import BY_NAME, SPEED, Metric, Phase
from flatout.record import Cell, Record
from flatout.show import about, capacity, legend, matrix, numbers
from flatout.show.charts import Heat, drawable
from flatout.show.exports import csv
from flatout.show.page import values
from flatout.show.page.frame import held_file
from flatout.show.page.shown import Shown
from flatout.show.page.values import Value
from flatout.show.rows import json_text, rows
from flatout.show.safe import HARD_SPACE, clean

MOST_SQUARES: Final = 10_000
"""Squares of the matrix, planned or not: a hostile record could ask for as many as cells times cells."""
MOST_RECORD_BYTES: Final = 8 * 1024 * 1024
"""A record that is larger is not put into its page."""
NO_ROOM: Final = (Status.OVER_CAPACITY, Status.OVER_LENGTH)


def known_status(status: str) -> str:
    """The name of a class for a known status; one for all others."""
    return f"s-{status}" if status in set(Status) else "s-other"


class Marks(NamedTuple):
    """The flags of a cell: footnote letters, and their names."""

    letters: str
    names: str


def marks(shown: Shown, cell: Cell) -> Marks:
    names = ", ".join(clean(flag.name, 40).replace("_", " ") for flag in cell.flags[:20])
    return Marks(about.marks(cell, shown.letters), names)


# prefill and bursts


class ListRow(NamedTuple):
    """One cell of a list. `speed`: its number, shaded by `heat`; `before`, `after`: the columns around it."""

    anchor: str
    name: str
    spoken: str
    before: list[Value]
    speed: Value
    heat: int | None
    marks: Marks
    after: list[Value]
    status: str
    valid: bool


class Listing(NamedTuple):
    """A table with a row a cell. `narrow`: columns that a phone leaves out."""

    title: str
    anchor: str
    caption: str
    heads: list[str]
    narrow: frozenset[str]
    rows: list[ListRow]


def prefill(shown: Shown) -> Listing | None:
    warm = matrix.warm_ttft(shown.record)

    def after(cell: Cell) -> list[Value]:
        warm_ms = Value(values.ms(warm.get(matrix.row_of(cell))), "no decode cell with one request at this context")
        return [_interval(cell), values.figure(cell, "ttft_ms"), warm_ms, values.figure(cell, "completed")]

    return _listing(
        shown, "prefill", "Prefill", "prefill",
        "Prompt tokens per second by context length, a cold prompt alone on the server; K = 1024 for contexts, 1000 "
        "for rates. TTFT warm: one request whose context is in the prefix cache.",
        ["Context", "tok/s", "± 95 %", "TTFT cold", "TTFT warm", "Prompts", "Status"], lambda _: [], after,
    )  # fmt: skip


def bursts(shown: Shown) -> Listing | None:
    names = ("duration_s", "ttft_ms", "itl_ms", "completed", "failed_requests")
    return _listing(
        shown, "burst", "Bursts", "bursts",
        "All requests at once until all are done: output tokens from the first send to the last end.",
        ["Context", "Requests at once", "tok/s", "± 95 %", "Took", "TTFT", "Time between tokens", "Completed", "Failed",
         "Status"],
        lambda cell: [Value(values.count(cell.concurrency))],
        lambda cell: [_interval(cell), *(values.figure(cell, name) for name in names)],
    )  # fmt: skip


def _listing(
    shown: Shown, phase: Phase, title: str, anchor: str, caption: str, heads: list[str],
    before: Callable[[Cell], list[Value]], after: Callable[[Cell], list[Value]],
) -> Listing | None:  # fmt: skip
    cells = shown.of(phase)
    speeds = [metrics.read(cell, SPEED[phase]) for cell in cells]
    heat = Heat([number(speed.value) for speed in speeds], more=True)
    rows = [
        ListRow(
            shown.anchor(cell), about.context(cell), about.cell_name(cell), before(cell),
            values.text(SPEED[phase], speed), heat.step(number(speed.value)), marks(shown, cell), after(cell),
            about.status_word(cell.status), cell.status == Status.VALID,
        )
        for cell, speed in zip(cells, speeds, strict=True)
    ]  # fmt: skip
    return Listing(title, anchor, caption, heads, frozenset({"Prompts"}), rows) if rows else None


def _interval(cell: Cell) -> Value:
    return values.half(metrics.read(cell, SPEED[cell.phase]))


def number(value: metrics.Value) -> float | None:
    return None if isinstance(value, str) else value


# the matrix of sustained decode


class View(NamedTuple):
    """One figure of the switch. `read`: the number that is shaded, its text, and small texts below it (what, text)."""

    key: str
    label: str
    unit: str
    more: bool
    read: Callable[[Cell], tuple[float | None, Value, list[tuple[str, str]]]]


class Layer(NamedTuple):
    """One figure of a square."""

    key: str
    heat: int | None
    value: Value
    below: list[tuple[str, str]]


class Square(NamedTuple):
    """A cell of the matrix. `kinds`: its classes; `word`: its status where that is no plain number; `layers`: its
    figures, none where it has no numbers."""

    kinds: str
    anchor: str
    title: str
    place: str
    word: str
    marks: Marks
    layers: list[Layer]


def views(shown: Shown) -> list[View]:
    """The figures that this record has; energy and the hardware's limit only where any cell has them."""
    made = [
        _view("total", "Total tok/s", "tok/s in total", "total_tok_s", lambda c: [
            ("interval", _interval(c).text), ("TTFT", _word(values.figure(c, "ttft_ms"), "TTFT"))]),
        _view("each", "Per request", "tok/s for each request, median", "per_request_tok_s", lambda c: [
            ("interval", values.half(metrics.read(c, BY_NAME["per_request_tok_s"])).text)]),
        _view("ttft", "TTFT", "ms to the first token, median; below it p99", "ttft_ms", lambda c: [
            ("p99", _word(values.figure(c, "ttft_ms.p99"), "p99"))]),
        _view("itl", "ITL", "ms between tokens, median; below it p99", "itl_ms", lambda c: [
            ("p99", _word(values.figure(c, "itl_ms.p99"), "p99"))]),
    ]  # fmt: skip
    measured = [cell for cell in shown.of("decode") if about.measured(cell)]
    if any(metrics.read(cell, BY_NAME["energy_per_token_j"]).value is not None for cell in measured):
        unit = "joules for each output token; below it the mean power"
        made.append(_view("energy", "Energy per token", unit, "energy_per_token_j", _power))
    if any(cell.id in shown.limits for cell in measured):
        made.append(_limit(shown))
    return made


def _view(key: str, label: str, unit: str, name: str, below: Callable[[Cell], list[tuple[str, str]]]) -> View:
    metric = BY_NAME[name]

    def read(cell: Cell) -> tuple[float | None, Value, list[tuple[str, str]]]:
        reading = metrics.read(cell, metric)
        return number(reading.value), values.text(metric, reading), below(cell)

    return View(key, label, unit, metric.better == "more", read)


def _word(value: Value, word: str) -> str:
    """A figure with its name, so that it can stand alone: `86 ms TTFT`, `p99 12.1 ms`."""
    if not value.known:
        return numbers.NONE
    return f"{value.text} {word}" if word == "TTFT" else f"{word} {value.text}"


def _power(cell: Cell) -> list[tuple[str, str]]:
    watts = drawable(cell.telemetry.means.get("power_w")) if cell.telemetry else None
    return [] if watts is None else [("power", values.short(f"{watts:,.0f} W"))]


def _limit(shown: Shown) -> View:
    def read(cell: Cell) -> tuple[float | None, Value, list[tuple[str, str]]]:
        limit = shown.limits.get(cell.id)
        if limit is None:
            return None, Value(numbers.NONE, "no limit is known for this cell"), []
        return limit.share, Value(values.percent(limit.share)), [("limit", limit.binds)]

    return View("limit", "% of limit", "share of what the hardware can do; below it which limit binds", True, read)


def decode(shown: Shown) -> dict[str, Any] | None:
    """What the template of the matrix places; without `rows` where it is too large to be one."""
    found = matrix.of(shown.cells)
    if not found.rows:
        return None
    if len(found.rows) * len(found.columns) > MOST_SQUARES:
        return {"too_many": f"{len(found.rows):,} contexts × {len(found.columns):,} numbers of requests"}
    switch = views(shown)
    heats = [
        Heat([view.read(c)[0] for c in found.cells.values() if about.measured(c)], more=view.more) for view in switch
    ]
    limit = _running_limit(shown.record)
    beyond = next((n for n in found.columns if limit is not None and n > limit), None)
    rows = []
    for y, row in enumerate(found.rows):
        exact = f"{row[1]:,} tokens" if row[1] is not None and row[1] < 10**9 else "length not known"
        squares = []
        for x, n in enumerate(found.columns):
            cell = found.cells.get((row, n))
            left = found.cells.get((row, found.columns[x - 1])) if x else cell
            above = found.cells.get((found.rows[y - 1], n)) if y else cell
            edges = [_edge("el", cell, left), _edge("et", cell, above), "queue" if n == beyond else ""]
            squares.append(_square(shown, cell, switch, heats, " ".join(filter(None, edges))))
        rows.append((row[0], exact, squares))
    decode_cells = found.cells.values()
    kv = shown.record.room.kv_tokens.value
    answers = capacity.capacities(shown.record)[:200]
    return {
        "switch": switch, "columns": [(values.count(n), n == beyond) for n in found.columns], "rows": rows,
        "no_room": any(c.status in NO_ROOM for c in decode_cells),
        "kv": values.count(kv) if isinstance(kv, int) and not isinstance(kv, bool) else None,
        "limit": values.count(limit) if beyond is not None else None,
        "question": capacity.question(shown.record.per_user_tok_s),
        "answers": [(a.context, a.text) for a in answers], "signs": "; ".join(capacity.notes(answers)),
        "flags": notes(legend.flags(shown.record)), "statuses": notes(legend.statuses(shown.record)),
    }  # fmt: skip


def _edge(kind: str, cell: Cell | None, other: Cell | None) -> str:
    """A line between a cell that the server has room for and one that it has not."""
    differ = cell is not None and other is not None and (cell.status in NO_ROOM) != (other.status in NO_ROOM)
    return kind if differ else ""


def _running_limit(record: Record) -> int | None:
    value = record.room.max_running.value
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _square(
    shown: Shown, cell: Cell | None, switch: Sequence[View], heats: Sequence[Heat], edges: str
) -> Square | None:
    if cell is None:
        return None
    place, word, flags = about.cell_name(cell), about.status_word(cell.status), marks(shown, cell)
    kind = f"{known_status(cell.status)} {edges}".strip()
    if not about.measured(cell) or cell.decode is None:
        why = clean(cell.reason or about.status_sentence(cell.status), 300)
        return Square(f"void {kind}", shown.anchor(cell), why, place, word, flags, [])
    layers = []
    for view, heat in zip(switch, heats, strict=True):
        number_, text, below = view.read(cell)
        known = [(what, part) for what, part in below if part and part != numbers.NONE]
        layers.append(Layer(view.key, heat.step(number_), text, known))
    title = f"{place}: {word}" + (f"; {flags.names}" if flags.names else "")
    mark = "" if cell.status == Status.VALID else about.two_lines(cell.status)[0]
    return Square(kind, shown.anchor(cell), title, place, mark, flags, layers)


class Note(NamedTuple):
    """A flag or status that occurs: its footnote letter, word, sentence, and the cells that have it."""

    letter: str
    term: str
    sentence: str
    where: str


def notes(entries: Sequence[legend.Entry]) -> list[Note]:
    return [Note(entry.letter, entry.term, entry.sentence, _cut(entry.where)) for entry in entries]


def _cut(text: str) -> str:
    shown = text.replace(HARD_SPACE, " ")
    return shown if len(shown) <= 400 else shown[:400].rsplit(",", 1)[0] + " …"


# all measurements

HEADS: Final[Mapping[str, str]] = {
    "per_request_tok_s_p50": "Per request tok/s", "ttft_ms_p50": "TTFT", "itl_ms_p50": "Time between tokens",
}  # fmt: skip
"""Medians under the names that published pages have; the others are named as in the table of figures."""
PHASE_WORDS: Final[Mapping[str, str]] = {"prefill": "Prefill", "decode": "Decode", "burst": "Burst"}


class Column(NamedTuple):
    """A column of the long table. `extra`: it stands behind "more columns"; `by_phase`: its figure."""

    head: str
    extra: bool
    by_phase: Mapping[Phase, Metric]


class Entry(NamedTuple):
    """A figure in the long table. `number`: what it is sorted by; `half`: the interval of a speed."""

    value: Value
    number: str | None
    half: str | None


def columns(cells: Sequence[Cell]) -> list[Column]:
    """The columns that a page shows for these cells: those of published pages, then the others that any cell has."""
    first, more = [], []
    for name, by_phase in metrics.columns().items():
        shown = {metric.shown for metric in by_phase.values()}
        label = HEADS.get(name) or by_phase.get("decode", next(iter(by_phase.values()))).label
        head = label[:1].upper() + label[1:]
        if "first" in shown:
            first.append(Column(head, False, by_phase))
        elif "always" in shown or ("if known" in shown and any(_reading(c, by_phase).value for c in cells)):
            more.append(Column(head, True, by_phase))
    return [*first, *more]


def _reading(cell: Cell, by_phase: Mapping[Phase, Metric]) -> metrics.Reading:
    metric = by_phase.get(cell.phase)
    return metrics.read(cell, metric) if metric is not None else metrics.read(cell, next(iter(by_phase.values())))


def _entry(cell: Cell, column: Column) -> Entry:
    reading = _reading(cell, column.by_phase)
    metric = column.by_phase.get(cell.phase, next(iter(column.by_phase.values())))
    sort = drawable(number(reading.value))
    half = values.half(reading).text if metric is SPEED[cell.phase] and reading.half is not None else None
    return Entry(values.text(metric, reading), None if sort is None else f"{sort:.10g}", half)


def everything(shown: Shown) -> dict[str, Any]:
    """What the template of the long table places."""
    heads = columns(shown.cells)
    lines = []
    for cell in shown.cells:
        tokens = cell.context_tokens
        lines.append({
            "phase": PHASE_WORDS[cell.phase], "context": about.context(cell), "anchor": shown.anchor(cell),
            "tokens": tokens if tokens is not None and tokens < 10**15 else None, "place": about.cell_name(cell),
            "concurrency": values.count(cell.concurrency), "measured": about.measured(cell),
            "status": about.status_word(cell.status).capitalize(),
            "why": clean(cell.reason, 300) if cell.reason else None,
            "flags": marks(shown, cell).names, "entries": [_entry(cell, column) for column in heads],
        })  # fmt: skip
    return {
        "heads": heads, "rows": lines, "extra": sum(column.extra for column in heads),
        "missing": [(text, clean(names, 300)) for names, text in legend.missing(shown.record)[:60]],
        "files": files(shown) if shown.files else [],
    }  # fmt: skip


def files(shown: Shown) -> list[tuple[str, str, Markup]]:
    """What the page holds for download: (word, file name, address)."""
    record = shown.record
    name = file_name(record)
    made = [
        ("CSV", f"{name}.csv", held_file("text/csv;charset=utf-8", csv.write(record, shown.cells).encode())),
        ("JSON", f"{name}.json", held_file("application/json", json_text(rows(record, shown.cells)).encode())),
    ]
    whole = record.model_dump_json().encode()
    if len(whole) <= MOST_RECORD_BYTES:
        packed = held_file("application/gzip", gzip.compress(whole, 9, mtime=0))
        made.append(("the whole record (JSON, gzip)", f"{name}.record.json.gz", packed))
    return made


def file_name(record: Record) -> str:
    """A name for files made from the record that every system takes."""
    words = (
        about.known(record.model.served_as) or about.model_name(record), about.known(record.engine.name) or "",
        record.id,
    )  # fmt: skip
    made = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-._")[:48] for word in words)
    return re.sub(r"-{2,}", "-", made).strip("-._") or "flatout"
