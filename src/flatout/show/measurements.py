"""All measurements in one long table, and everything else that a published page tells: machine, engine, run."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from flatout import metrics
from flatout.record import Cell, Fact, Record
from flatout.show import about, numbers
from flatout.show.layout import Box, Column, Line, box, grid, line, padded, paragraph
from flatout.show.safe import clean

KEYS = (("", "phase"), ("", "context"), ("at", "once"), ("", "status"))
SHORT = {
    "total_tok_s": ("total", "tok/s"), "per_request_tok_s_p50": ("each", "tok/s"), "ttft_ms_p50": ("TTFT", "p50 ms"),
    "itl_ms_p50": ("ITL", "p50 ms"), "itl_ms_p99": ("ITL", "p99 ms"), "active_client_mean": ("active", "client"),
    "active_server_mean": ("active", "server"), "completed": ("com-", "pleted"), "output_tokens": ("output", "tokens"),
    "measured_s": ("measured", "for"),
}  # fmt: skip
"""Names of the columns on two lines, as narrow as their numbers."""
HEAD = (*KEYS, SHORT["total_tok_s"], ("", "± 95 %"), *list(SHORT.values())[1:])
ACCEPTANCE = ("accept.", "length")
"""Only where a cell has it: tokens per sequence and verification step of speculative decoding."""


def cells_of(cell: Cell) -> list[str]:
    """The figures of a cell as texts, one for each column of HEAD after the status; `—` for what is not known."""
    texts: list[str] = []
    columns = metrics.columns()
    for name in SHORT:
        metric = columns[name].get(cell.phase)
        reading = metrics.read(cell, metric) if metric is not None else metrics.Reading()
        texts.append(numbers.figure(metric, reading.value, unit=False) if metric is not None else numbers.NONE)
        if name == "total_tok_s":
            texts.append(numbers.interval(reading.number, reading.low, reading.high))
    return texts


def lines(record: Record, letter: Mapping[str, str], width: int) -> list[Line]:
    """The long table: prefill first, then decode, then bursts, each in the order of the plan."""
    cells = [cell for phase in about.PHASES for cell in record.cells if cell.phase == phase]
    if not cells:
        return []
    speculative = any(_acceptance(cell) is not None for cell in cells)
    names = (*HEAD, ACCEPTANCE) if speculative else HEAD
    rows: list[list[Box]] = []
    for cell in cells:
        marks = about.marks(cell, letter)
        status = line(
            (about.status_word(cell.status), about.style(cell.status)), (f" {marks}" if marks else "", "magenta")
        )
        texts = cells_of(cell) + ([_acceptance(cell) or numbers.NONE] if speculative else [])
        keys = [box(cell.phase), box((about.context(cell), "bold")), box(str(cell.concurrency)), (status,)]
        rows.append(keys + [box((text, "dim" if text == numbers.NONE else "")) for text in texts])
    head = [box(*((part, "dim") for part in name if part)) for name in names]
    columns = [Column("left" if name[1] in ("phase", "status") else "right") for name in names]
    return grid(head, rows, columns, width=width, keys=3)


def _acceptance(cell: Cell) -> str | None:
    found = cell.decode.acceptance if cell.decode is not None and about.measured(cell) else None
    return f"{found.length:.2f}" if found is not None and found.length is not None else None


def _fact(fact: Fact) -> str:
    text = about.known(fact)
    if text is not None:
        return text + (" (as typed)" if fact.source == "typed" else "")
    return numbers.NONE + (f" ({clean(fact.reason, 120)})" if fact.reason else "")


def facts(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    """Named groups of (name, text): the machine, the engine, the model, the run; texts are clean."""
    unknown = record.hardware.describes == "client only"
    machine = "Machine (the client's; the server's is not known)" if unknown else "Machine"
    return [
        (machine, [_machine(name, fact) for name, fact in record.hardware.facts.items()]),
        ("Engine", _engine(record)),
        ("Model", _model(record)),
        ("Run", _run(record)),
    ]


def _engine(record: Record) -> list[tuple[str, str]]:
    engine = record.engine
    return [
        ("engine", _fact(engine.name)),
        ("version", _fact(engine.version)),
        ("commit", _fact(engine.commit)),
        ("build", _fact(engine.build)),
        ("backend", _fact(engine.backend)),
        ("repository", _fact(engine.repository)),
        ("speculative decoding", about.speculation(record) or _fact(engine.speculative_method)),
        ("launch command", _launch(engine.launch_command)),
    ]


def _model(record: Record) -> list[tuple[str, str]]:
    model, room = record.model, record.room
    return [
        ("model", _fact(model.id)),
        ("served as", _fact(model.served_as)),
        ("revision", _fact(model.revision)),
        ("quantization", _fact(model.quantization)),
        ("type", _fact(model.dtype)),
        ("longest request", _tokens(room.model_length)),
        ("KV cache", _tokens(room.kv_tokens)),
        ("running at once", _fact(room.max_running)),
    ]


def _run(record: Record) -> list[tuple[str, str]]:
    plan, prompts, client = record.plan, record.prompts, record.client
    length = numbers.seconds(plan.time_s)
    if plan.precision is not None:
        length = (
            f"up to {length}, less once within ±{plan.precision * 100:g} %, at least {numbers.seconds(plan.min_time_s)}"
        )
    dropped = ", ".join(clean(name, 40) for name, _ in record.protocol.dropped)
    return [
        ("suite", clean(plan.suite)),
        ("started", about.moment(record.started) or numbers.NONE),
        ("finished", about.moment(record.finished) or numbers.NONE),
        ("each measurement", length),
        ("output", f"up to {plan.max_output:,} tokens"),
        ("prompts", f"{clean(prompts.mode, 40)}, {clean(prompts.source, 80)}, seed {prompts.seed}"),
        ("interface", clean(record.protocol.api, 60)),
        *([("fields refused", dropped)] if dropped else []),
        *([("note", clean(record.note))] if record.note else []),
        ("measured by", f"flatout {clean(client.flatout, 40)}, clock: {clean(client.stamp_clock, 60)}"),
    ]


def _launch(fact: Fact) -> str:
    return clean(fact.value, 4000) if fact.value else _fact(fact)


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


_ACRONYMS = frozenset({"gpu", "cpu", "os", "ram", "vram", "kv", "cuda", "rocm", "pcie", "numa", "mig", "id"})
_UNITS = {
    "_w": "W", "_c": "°C", "_mhz": "MHz", "_bytes": "bytes", "_gb": "GB", "_gib": "GiB", "_mib": "MiB",
    "_percent": "%",
}  # fmt: skip


def fact_lines(record: Record, width: int) -> list[Line]:
    """The groups of facts, one fact a line."""
    made: list[Line] = []
    groups = [(name, pairs) for name, pairs in facts(record) if pairs]
    wide = max([cell_len(name) for _, pairs in groups for name, _ in pairs], default=0)
    for name, pairs in groups:
        if made:
            made.append(())
        made.append(line((name, "bold")))
        for key, text in pairs:
            made += paragraph(text, width, first=line((f"  {padded(key, wide)}  ", "dim")))
    return made
