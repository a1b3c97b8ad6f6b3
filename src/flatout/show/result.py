"""The result of a run as a document: who was measured on what, the tables, what the marks mean, how many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from flatout import metrics
from flatout.flags import Status
from flatout.metrics import BY_NAME, SPEED, Metric
from flatout.record import Cell as RecordCell
from flatout.record import Fact, Record
from flatout.show import about, capacity, legend, matrix, numbers
from flatout.show.document import Block, Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.show.safe import clean

PREFILL: Final = "tok/s of a cold prompt, alone on the server"
DECODE: Final = "total tok/s and TTFT p50; columns: requests at once"
BURST: Final = "all requests at once until all are done"
_HEAD_WIDEST: Final = 7  # columns of a name over a column of numbers, before it goes on below
_TTFT: Final = BY_NAME["ttft_ms"]


def result(record: Record, *, path: Path | None = None, wide: bool = False) -> Document:
    """`path`: where the record is. `wide`: also the machine, engine and run in full, every measurement in one table,
    and what was seen for each flag."""
    letter = about.letters(record)
    return [
        *_header(record),
        *(_facts(record) if wide else []),
        *prefill(record, letter),
        *decode(record, letter),
        *burst(record, letter),
        *(_long_table(record, letter) if wide and record.cells else []),
        *_legend(record, every=wide),
        *_notes(record, wide=wide),
        *_capacity(record),
        *([Paragraph(_where(path), term="record", term_style="dim", whole=True)] if path is not None else []),
    ]


def pasted(record: Record) -> Document:
    """The same to be pasted into an issue or a forum."""
    return [*result(record), Paragraph(f"Measured by flatout {record.client.flatout}.")]


def _where(path: Path) -> str:
    """The path from here if it lies below, else whole."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _header(record: Record) -> Document:
    sound = all(cell.status == Status.VALID and not cell.flags for cell in record.cells)
    speculation, ending = about.speculation(record), about.ending(record)
    return [
        Heading(about.title(record)),
        Paragraph(about.subtitle(record)),
        *([Paragraph(f"speculative decoding: {speculation}", "dim")] if speculation else []),
        Paragraph(about.verdict(record), "" if sound else "yellow"),
        *([Paragraph(ending, "bold yellow")] if ending else []),
    ]


# --- Tables -----------------------------------------------------------------------------------------------------------


def prefill(record: Record, letter: Mapping[str, str]) -> Document:
    """Context, prompt tok/s with its interval, TTFT cold, and the warm TTFT of one request for comparison."""
    cells = [cell for cell in record.cells if cell.phase == "prefill"]
    warm = matrix.warm_ttft(record)
    names = ["context", "tok/s", "± 95 %", "TTFT cold", "TTFT warm"]
    rows: list[list[Cell | str]] = []
    for cell in cells:
        warm_ms = warm.get(matrix.row_of(cell))
        cold = _figure(cell, _TTFT) if about.measured(cell) else ""
        warmed = Cell("" if warm_ms is None else numbers.ms(warm_ms), "dim")
        rows.append([_context(*matrix.row_of(cell)), *_speed(cell, letter), cold, warmed, _word(cell)])
    return [Heading("Prefill", PREFILL), _table(names, rows)] if rows else []


def decode(record: Record, letter: Mapping[str, str]) -> Document:
    """Rows are contexts, columns simultaneous requests; a cell has total tok/s, the TTFT's median, and a word."""
    found = matrix.of(record.cells)
    rows = [
        [_context(*row), *(_square(found.cells.get((row, n)), letter) for n in found.columns)] for row in found.rows
    ]
    columns = [Column("context"), *(Column(str(n), style="bold") for n in found.columns)]
    return [Heading("Decode", DECODE), Table(columns, rows, air=True)] if rows else []


def burst(record: Record, letter: Mapping[str, str]) -> Document:
    """Bursts: end-to-end tok/s, how long all took, TTFT, time between tokens, completed and failed requests."""
    shown = [BY_NAME[name] for name in ("duration_s", "ttft_ms", "itl_ms", "completed", "failed_requests")]
    names = ["context", "at once", "tok/s", "± 95 %", "took", "TTFT p50", "ITL p50", "done", "failed"]
    rows: list[list[Cell | str]] = []
    for cell in (cell for cell in record.cells if cell.phase == "burst"):
        figures: list[Cell | str] = [_figure(cell, metric) if about.measured(cell) else "" for metric in shown]
        if cell.burst is not None and cell.burst.failed_requests:
            figures[-1] = Cell(str(figures[-1]), "red")
        context = _context(*matrix.row_of(cell))
        rows.append([context, str(cell.concurrency), *_speed(cell, letter), *figures, _word(cell)])
    return [Heading("Burst", BURST), _table(names, rows, keys=2)] if rows else []


def _long_table(record: Record, letter: Mapping[str, str]) -> Document:
    return [Heading("All measurements"), measurements(record, letter)]


def measurements(record: Record, letter: Mapping[str, str]) -> Table:
    """Every planned cell in one table: prefill first, then decode, then bursts, each in the order of the plan."""
    cells = [cell for phase in about.PHASES for cell in record.cells if cell.phase == phase]
    speculative = any(metrics.read(cell, BY_NAME["acceptance_length"]).value is not None for cell in cells)
    shown = [by_phase for by_phase in metrics.columns().values() if _in_long_table(by_phase, speculative)]
    heads = [_stacked(next(iter(by_phase.values()))) for by_phase in shown]
    rows: list[list[Cell | str]] = []
    for cell in cells:
        keys = [cell.phase, _context(*matrix.row_of(cell)), str(cell.concurrency)]
        status = Cell(about.status_word(cell.status), about.style(cell.status), about.marks(cell, letter))
        speed, spread = _interval(cell)
        texts = [_figure(cell, by_phase.get(cell.phase)) for by_phase in shown[1:]]
        rows.append([*keys, status, *map(_faint, (speed, spread, *texts))])
    columns = [Column("phase", "left"), Column("context"), Column("at\nonce"), Column("status", "left")]
    columns += [Column(name) for name in (heads[0], "± 95 %", *heads[1:])]
    return Table(columns, rows, keys=3)


def _context(label: str, tokens: int | None) -> Cell:
    """A context as it was asked for, with its exact length below where the label does not tell it."""
    return Cell(label, "bold", below=f"{tokens:,}" if tokens is not None and label.isalpha() else "")


def _in_long_table(by_phase: Mapping[metrics.Phase, Metric], speculative: bool) -> bool:
    first = next(iter(by_phase.values()))
    return first.shown in ("first", "always") or (speculative and first.name == "acceptance_length")


def _stacked(metric: Metric) -> str:
    """A figure's name on narrow lines, with its unit where the numbers below have none."""
    lines: list[str] = []
    for word in (metric.label + (" ms" if metric.unit == "ms" else "")).split():
        if lines and len(lines[-1]) + 1 + len(word) <= _HEAD_WIDEST:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _table(names: Sequence[str], rows: list[list[Cell | str]], keys: int = 1) -> Table:
    """A list of cells; columns without any text are left out, a last one has the words of cells that are not valid."""
    columns = [*(Column(name) for name in names), Column("", "left")]
    filled = [i for i in range(len(columns)) if any(_filled(row[i]) for row in rows)]
    return Table([columns[i] for i in filled], [[row[i] for i in filled] for row in rows], keys)


def _filled(entry: Cell | str) -> bool:
    return bool(entry if isinstance(entry, str) else entry.text)


def _figure(cell: RecordCell, metric: Metric | None) -> str:
    return numbers.NONE if metric is None else numbers.figure(metric, metrics.read(cell, metric).value)


def _interval(cell: RecordCell) -> tuple[str, str]:
    speed = metrics.read(cell, SPEED[cell.phase])
    return numbers.rate(speed.number), numbers.interval(speed.number, speed.low, speed.high)


def _faint(text: str) -> Cell:
    return Cell(text.removesuffix(" ms"), "dim" if text == numbers.NONE else "")


def _speed(cell: RecordCell, letter: Mapping[str, str]) -> tuple[Cell, Cell]:
    """The rate with its marks and its interval; the status' words in the rate's place where there is no number."""
    if not about.measured(cell) or metrics.read(cell, SPEED[cell.phase]).holder is None:
        return Cell(about.status_word(cell.status), about.style(cell.status)), Cell("")
    rate, spread = _interval(cell)
    return Cell(rate, _style(cell), about.marks(cell, letter)), Cell(spread, "dim")


def _word(cell: RecordCell) -> Cell:
    told = about.measured(cell) and cell.status != Status.VALID
    return Cell(about.status_word(cell.status) if told else "", about.style(cell.status))


def _square(cell: RecordCell | None, letter: Mapping[str, str]) -> Cell | str:
    if cell is None:
        return ""
    words, style = about.two_lines(cell.status), about.style(cell.status)
    if not about.measured(cell) or cell.decode is None:
        return Cell(words[0], style, word=words[1], word_style=style)
    word = "" if cell.status == Status.VALID else words[0]
    return Cell(_interval(cell)[0], _style(cell), about.marks(cell, letter), _figure(cell, _TTFT), word, style)


def _style(cell: RecordCell) -> str:
    return "bold" if cell.status == Status.VALID else f"bold {about.style(cell.status)}"


# --- Below the tables -------------------------------------------------------------------------------------------------


def _legend(record: Record, *, every: bool) -> Document:
    """`a contaminated  sentence`, below it the cells and what was seen there; then the statuses and their reasons."""
    flags = [Item(e.sentence, e.term, e.letter, _details(e, every=every)) for e in legend.flags(record)]
    statuses = [
        Item(e.sentence, e.term, "", _details(e, every=_in_full(e.name, every)), _term_style(e.name))
        for e in legend.statuses(record)
    ]
    return [Items(items) for items in (flags, statuses) if items]


def _term_style(status: str) -> str:
    style = about.style(status)
    return f"bold {style}" if style != "dim" else "bold"


def _in_full(status: str, every: bool) -> bool:
    """A failure's words are always all shown; the arithmetic of cells without room never is: one stands for all."""
    return status == Status.FAILED or (every and status not in (Status.OVER_CAPACITY, Status.OVER_LENGTH))


def _details(entry: legend.Entry, *, every: bool) -> list[str]:
    shown = entry.details if every or len(entry.details) <= legend.DETAILS else ()
    # details name their cells themselves; how many really ran stands only here
    lines = [entry.where] if entry.where and (not shown or entry.name == Status.REQUESTS_QUEUED) else []
    lines += [f"{names}: {text}" for names, text in shown]
    if not shown and entry.details:
        names, text = entry.details[0]
        lines.append(f"such as {names}: {text}")
    return lines


def _notes(record: Record, *, wide: bool) -> Document:
    launched = legend.launch_ttft(record)
    blocks: list[Block] = [Paragraph(f"{legend.LAUNCHED} {about.cell_names(launched)}", "dim")] if launched else []
    missing = [Item(f"{text} ({names})") for names, text in legend.missing(record)] if wide else []
    blocks += [Items(missing)] if missing else []
    return [*blocks, *(Paragraph(text, term="note", term_style="yellow") for text in record.warnings)]


def _capacity(record: Record) -> Document:
    """The one-line answer for the users at once, and what its signs mean."""
    answers = capacity.capacities(record)
    if not answers:
        return []
    text = " · ".join(f"{answer.context}: {answer.text}" for answer in answers)
    notes = "; ".join(capacity.notes(answers))
    answer = Paragraph(text, term=capacity.question(record.per_user_tok_s))
    return [answer, *([Paragraph(notes, "dim")] if notes else [])]


# --- Facts ------------------------------------------------------------------------------------------------------------


def _facts(record: Record) -> Document:
    """The machine, the engine, the model, the run."""
    unknown = record.hardware.describes == "client only"
    machine = "Machine (the client's; the server's is not known)" if unknown else "Machine"
    groups = [
        (machine, [_machine(name, fact) for name, fact in record.hardware.facts.items()]),
        ("Engine", _engine(record)),
        ("Model", _model(record)),
        ("Run", _run(record)),
    ]
    blocks: list[Block] = []
    for name, pairs in groups:
        if pairs:
            blocks += [Heading(name), Items([Item(text, key, style="dim") for key, text in pairs])]
    return blocks


def _fact(fact: Fact) -> str:
    text = about.known(fact)
    if text is not None:
        return text + (" (as typed)" if fact.source == "typed" else "")
    return numbers.NONE + (f" ({clean(fact.reason, 120)})" if fact.reason else "")


def _engine(record: Record) -> list[tuple[str, str]]:
    engine = record.engine
    command = engine.launch_command
    names = ("name", "version", "commit", "build", "backend", "repository")
    return [
        *(("engine" if name == "name" else name, _fact(getattr(engine, name))) for name in names),
        ("speculative decoding", about.speculation(record) or _fact(engine.speculative_method)),
        ("launch command", str(command.value) if command.value else _fact(command)),
    ]


def _model(record: Record) -> list[tuple[str, str]]:
    model, room = record.model, record.room
    return [
        ("model", _fact(model.id)), ("served as", _fact(model.served_as)), ("revision", _fact(model.revision)),
        ("quantization", _fact(model.quantization)), ("type", _fact(model.dtype)),
        ("longest request", _tokens(room.model_length)), ("KV cache", _tokens(room.kv_tokens)),
        ("running at once", _fact(room.max_running)),
    ]  # fmt: skip


def _run(record: Record) -> list[tuple[str, str]]:
    plan, prompts, client = record.plan, record.prompts, record.client
    length = numbers.seconds(plan.time_s)
    if plan.precision is not None:
        least = numbers.seconds(plan.min_time_s)
        length = f"up to {length}, less once within ±{plan.precision * 100:g} %, at least {least}"
    dropped = ", ".join(clean(name, 40) for name, _ in record.protocol.dropped)
    return [
        ("suite", plan.suite),
        ("started", about.moment(record.started) or numbers.NONE),
        ("finished", about.moment(record.finished) or numbers.NONE),
        ("each measurement", length),
        ("output", f"up to {plan.max_output:,} tokens"),
        ("prompts", f"{clean(prompts.mode, 40)}, {clean(prompts.source, 80)}, seed {prompts.seed}"),
        ("interface", clean(record.protocol.api, 60)),
        *([("fields refused", dropped)] if dropped else []),
        *([("note", record.note)] if record.note else []),
        ("measured by", f"flatout {clean(client.flatout, 40)}, clock: {clean(client.stamp_clock, 60)}"),
    ]


def _tokens(fact: Fact) -> str:
    value = fact.value
    return f"{value:,} tokens" if isinstance(value, int) and not isinstance(value, bool) else _fact(fact)


def _machine(name: str, fact: Fact) -> tuple[str, str]:
    if name.endswith("_bytes") and isinstance(fact.value, int | float):
        return _words(name.removesuffix("_bytes")), numbers.size(float(fact.value))
    text = _fact(fact)
    return _words(name), _spelled(text) if name == "type" else text


def _spelled(name: str) -> str:
    """`discrete_gpu` → `discrete GPU`."""
    return " ".join(word.upper() if word in _ACRONYMS else word for word in clean(name, 200).replace("_", " ").split())


def _words(name: str) -> str:
    """`power_limit_w` → `power limit (W)`: a fact's name with its unit."""
    found = next(((name[: -len(end)], f" ({unit})") for end, unit in _UNITS.items() if name.endswith(end)), (name, ""))
    return _spelled(found[0]) + found[1]


_ACRONYMS: Final = frozenset({"gpu", "cpu", "os", "ram", "vram", "kv", "cuda", "rocm", "pcie", "numa", "mig", "id"})
_UNITS: Final = {
    "_w": "W", "_c": "°C", "_mhz": "MHz", "_bytes": "bytes", "_gb": "GB", "_gib": "GiB", "_mib": "MiB",
    "_percent": "%",
}  # fmt: skip
