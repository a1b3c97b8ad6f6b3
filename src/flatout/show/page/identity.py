"""Who was measured: the head with the numbers that people ask for first, then machine, engine, run and commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flatout import metrics
from flatout.flags import Status
from flatout.record import Cell, Fact, Record
from flatout.show import about, capacity, numbers
from flatout.show.charts import drawable
from flatout.show.page import values
from flatout.show.page.shown import Shown
from flatout.show.page.values import Value
from flatout.show.safe import HARD_SPACE, clean

SOUND: Final = (Status.VALID, Status.REQUESTS_QUEUED)
SOURCES: Final[Mapping[str, str]] = {
    "typed": "typed in by hand, not checked",
    "server": "the server's own answer",
    "host": "read from the machine",
    "derived": "worked out from other values",
}
_HARDWARE: Final = ("type", "gpu", "gpu_count", "gpu_memory_gb", "gpu_memory_gib", "gpu_memory_bytes", "vram_gb", "os")
"""What the section begins with, in the order that published pages have; the machine's other facts follow."""
_LABELS: Final[Mapping[str, str]] = {
    "gpu": "GPU", "gpu_count": "GPUs", "gpu_memory_gb": "VRAM", "gpu_memory_gib": "VRAM", "gpu_memory_bytes": "VRAM",
    "vram_gb": "VRAM", "os": "OS", "cpu": "CPU", "ram_gb": "RAM", "gpu_driver": "GPU driver", "wsl": "WSL",
}  # fmt: skip
_UNITS: Final[Mapping[str, str]] = {
    "_bytes": "", "_gb": "GB", "_gib": "GiB", "_mib": "MiB", "_w": "W", "_mhz": "MHz", "_c": "°C", "_percent": "%",
    "_j": "J",
}  # fmt: skip
_KINDS: Final[Mapping[str, str]] = {
    "discrete_gpu": "Discrete GPU", "discrete GPU": "Discrete GPU", "unified_memory": "Unified memory",
    "cpu_only": "CPU only",
}  # fmt: skip
MOST_FACTS: Final = 60
Row = tuple[str, Fact]


# the head


class First(NamedTuple):
    """A headline number: what it is, the number and its unit, and where it was reached (link, words)."""

    label: str
    number: str
    unit: str
    anchor: str
    below: str


def verdict(record: Record) -> str:
    """`33 of 48 cells measured, 2 doubtful`."""
    return about.verdict(record).replace(HARD_SPACE, " ")


def model(record: Record) -> str:
    """The model without its owner's name, which stands in the run."""
    name = about.model_name(record)
    return name.rsplit("/", 1)[-1] or name


def title(record: Record) -> str:
    return f"{model(record)} on {about.hardware_name(record)}"


def head(shown: Shown) -> dict[str, Any]:
    """What the template of the head places."""
    record = shown.record
    sub = [about.engine_name(record), about.precision(record), about.speculation(record)]
    return {
        "model": model(record), "hardware": about.hardware_name(record),
        "sub": " · ".join(part for part in sub if part), "what": what(record),
        "moment": about.moment(record.started) or "no date", "started": clean(record.started, 40),
        "verdict": verdict(record), "ending": about.ending(record),
        "warnings": [clean(text, 1000) for text in record.warnings[:20]],
        "note": clean(record.note, 1000) if record.note else None,
        "cells": len(shown.cells), "left_out": shown.left_out, "firsts": firsts(shown),
    }  # fmt: skip


def what(record: Record) -> str:
    """`6 contexts (8K–251K) × 8 concurrency levels (1–128) · prefill at 8K, 16K`."""
    decode, prefill, burst = (
        list(dict.fromkeys(about.context(cell) for cell in record.cells if cell.phase == phase))
        for phase in ("decode", "prefill", "burst")
    )
    parts = []
    if decode:
        levels = sorted({cell.concurrency for cell in record.cells if cell.phase == "decode"})
        parts.append(
            f"{len(decode)} context{'s' if len(decode) != 1 else ''} ({_ends(decode)}) × {len(levels)} "
            f"concurrency level{'s' if len(levels) != 1 else ''} ({_ends([values.count(n) for n in levels])})"
        )
    if prefill:
        parts.append("prefill at " + ", ".join(prefill[:24]) + (" …" if len(prefill) > 24 else ""))
    if burst:
        parts.append("bursts at " + ", ".join(burst[:24]))
    return " · ".join(parts) or "no cell was planned"


def _ends(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}–{labels[-1]}"


def firsts(shown: Shown) -> list[First]:
    """One request alone, the most that the system gave, the fastest prefill, and how many users it takes."""
    decode = shown.of("decode")
    found = [
        _best(shown, "One request alone", [c for c in decode if c.concurrency == 1]),
        _best(shown, "All requests together, at most", [c for c in decode if c.concurrency > 1]),
        _best(shown, "Burst, at most", shown.of("burst")),
        _best(shown, "Prefill, at most", shown.of("prefill")),
        _users(shown.record),
    ]
    return [one for one in found if one is not None]


def _best(shown: Shown, label: str, cells: Iterable[Cell]) -> First | None:
    """The fastest sound cell; doubtful numbers are no headline."""
    read = ((metrics.read(c, metrics.SPEED[c.phase]).value, c) for c in cells if c.status in SOUND)
    scored = [(v, c) for value, c in read if isinstance(value, int | float) and (v := drawable(value)) is not None]
    if not scored:
        return None
    number, cell = max(scored, key=lambda pair: pair[0])
    at = f"at {about.context(cell)}" + (f" × {cell.concurrency}" if cell.phase != "prefill" else "")
    return First(label, values.rate(number), "tok/s", shown.anchor(cell), at)


def _users(record: Record) -> First | None:
    answers = [a for a in capacity.capacities(record) if a.text not in ("—", "?")]
    if not answers:
        return None
    below = "; ".join(f"{a.context}: {a.text}" for a in answers[1:4])
    label = f"At once at ≥ {record.per_user_tok_s:g} tok/s each"
    return First(label, answers[0].text, f"at {answers[0].context}", "", below)


# the facts


class Section(NamedTuple):
    """One list of facts. `source`: where all of them come from unless a row says otherwise; rows: (label, value, the
    row's own source); `unknown`: (labels, why their values are missing)."""

    anchor: str
    title: str
    note: str | None
    source: str | None
    rows: list[tuple[str, Value, str | None]]
    more: list[tuple[str, Value, str | None]]
    unknown: list[tuple[str, str]]


class Command(NamedTuple):
    """A command line to be copied. `source`: of the server's own."""

    anchor: str
    title: str
    text: str
    source: str | None


def sections(record: Record) -> list[Section]:
    """Hardware, engine and run."""
    hardware, more = _hardware(record)
    notes = {
        "client only": "The server's machine is not known. This is the client's:",
        "server, as typed": "As typed for the server, not checked:",
    }
    return [
        _section("machine", "Hardware", hardware, more, notes.get(record.hardware.describes)),
        _section("engine", "Engine", _engine(record), _engine_more(record)),
        _section("run", "Run", _run(record), _run_more(record)),
    ]


def _section(anchor: str, title: str, rows: Sequence[Row], more: Sequence[Row], note: str | None = None) -> Section:
    """The source that most values share is said once; only the others carry theirs."""
    sources = Counter(fact.source for _, fact in (*rows, *more) if fact.source and fact.value is not None)
    common = sources.most_common(1)[0][0] if sources else None
    unknown: dict[str, list[str]] = {}
    for label, fact in (*rows, *more):
        if values.fact_text(fact) is None:
            reason = clean(fact.reason, 300) if fact.reason else "no reason is recorded"
            unknown.setdefault(reason, []).append(label)

    def told(found: Sequence[Row]) -> list[tuple[str, Value, str | None]]:
        return [
            (label, Value(values.fact_text(f) or numbers.NONE, f.reason), f.source if f.source != common else None)
            for label, f in found
        ]

    missing = [(", ".join(labels), reason) for reason, labels in unknown.items()]
    return Section(anchor, title, note, common, told(rows), told(more), missing)


def _hardware(record: Record) -> tuple[list[Row], list[Row]]:
    facts = dict(list(record.hardware.facts.items())[:MOST_FACTS])
    order: list[str] = [key for key in _HARDWARE if key in facts]
    # a machine without a GPU is its processor
    if not about.known(facts.get("gpu")):
        order[1:1] = [key for key in ("cpu", "ram_gb") if key in facts]
    rest = [key for key in facts if key not in order]
    return [_hardware_row(k, facts[k]) for k in order], [_hardware_row(k, facts[k]) for k in rest]


def _hardware_row(key: str, fact: Fact) -> Row:
    name = clean(key, 60)
    label = _LABELS.get(name) or fact_label(name)
    value = fact.value
    if isinstance(value, bool) or value is None:
        return label, fact
    if isinstance(value, str):
        return label, fact.model_copy(update={"value": _KINDS.get(value, value)})
    if name.endswith("_bytes") and drawable(value) is not None:
        return label, fact.model_copy(update={"value": numbers.size(float(value))})
    return label, fact.model_copy(update={"value": f"{values.fact_text(fact)} {unit_of(name)}".strip()})


def unit_of(name: str) -> str:
    """The unit in a name: `W` of `power_limit_w`."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def fact_label(name: str) -> str:
    """`sm_clock_mhz` → `SM clock`: a fact's name without its unit."""
    words = clean(name, 60)
    words = next((words.removesuffix(end) for end in _UNITS if words.endswith(end)), words).replace("_", " ")
    for small, large in (("gpu", "GPU"), ("cpu", "CPU"), ("sm ", "SM "), ("ram", "RAM"), ("kv ", "KV ")):
        words = words.replace(small, large)
    return words[:1].upper() + words[1:]


def _engine(record: Record) -> list[Row]:
    engine, model = record.engine, record.model
    return [
        ("Engine", engine.name), ("Version", engine.version), ("Quantization", model.quantization),
        ("Backend", engine.backend), ("Repository", engine.repository), ("Build", engine.build),
        ("Commit", engine.commit),
    ]  # fmt: skip


def _engine_more(record: Record) -> list[Row]:
    engine, room = record.engine, record.room
    adapter = clean(engine.adapter, 40) + ("" if engine.adapter_verified else " (not verified)")
    return [
        ("Weights' type", record.model.dtype), ("Longest request", _tokens(room.model_length)),
        ("KV cache", _tokens(room.kv_tokens)), ("Running at once, at most", room.max_running),
        ("Speculative decoding", engine.speculative_method), ("Draft model", engine.draft_model),
        ("Draft length", engine.draft_length), ("Read through", _plain(adapter)),
    ]  # fmt: skip


def _tokens(fact: Fact) -> Fact:
    value = fact.value
    if not isinstance(value, int) or isinstance(value, bool):
        return fact
    return fact.model_copy(update={"value": values.tokens(value)})


def _plain(text: str | None, reason: str | None = None) -> Fact:
    """A value that flatout itself knows: it needs no mark."""
    return Fact(value=text, reason=reason) if text and text != numbers.NONE else Fact(reason=reason)


def _run(record: Record) -> list[Row]:
    plan, model = record.plan, record.model
    phases = {cell.phase for cell in record.cells}
    test = " and ".join(
        word for word, phase in (("fixed duration", "decode"), ("fixed count", "burst")) if phase in phases
    )
    window = values.seconds(plan.time_s)
    if drawable(plan.precision) is not None:
        window = f"At most {window}, less once within ±{values.percent(plan.precision)}"
    return [
        ("Served model", model.served_as), ("Revision", model.revision),
        ("Benchmark tool", _plain(f"flatout {clean(record.client.flatout, 40)}")),
        ("Decode test", _plain(test[:1].upper() + test[1:], "no decode cell was planned")),
        ("Prefill mode", _plain(f"Cold prompts alone on the server, {plan.prefill_samples} for each context")),
        ("Time per measurement", _plain(window)),
        ("Max output", _plain(values.tokens(plan.max_output))),
    ]  # fmt: skip


def _run_more(record: Record) -> list[Row]:
    plan, prompts, protocol, client = record.plan, record.prompts, record.protocol, record.client
    sampling = ", ".join(f"{clean(k, 40)} {clean(v, 60)}" for k, v in list(protocol.sampling.items())[:12])
    dropped, ignored = (
        "; ".join(f"{clean(name, 40)} ({clean(words, 100)})" for name, words in found[:12])
        for found in (protocol.dropped, protocol.ignored)
    )
    spent = ", ".join(f"{values.count(n)} {clean(k, 20)}" for k, n in list(record.tokens_spent.items())[:8])
    length = "as long as their label says" if prompts.exact else "see each cell for their length"
    told = f"{clean(prompts.mode, 40)} contexts, {clean(prompts.source, 80)}, seed {prompts.seed}; {length}"
    rows = [
        ("Model", record.model.id),
        ("Suite", _plain(clean(plan.suite, 80))),
        ("Started", _plain(about.moment(record.started))),
        ("Finished", _plain(about.moment(record.finished), "the run has no end")),
        ("Prompts", _plain(told)),
        ("Sampling", _plain(sampling, "the server's defaults")),
        ("Interface", _plain(f"{clean(protocol.api, 60)} at {clean(protocol.url, 120)}")),
        ("Prompts counted by", _plain(clean(protocol.prompt_count, 80) if protocol.prompt_count else None)),
        ("Clock", _plain(clean(client.stamp_clock, 80))),
        ("Load processes", _plain(values.count(client.load_processes))),
        ("Fields refused", _plain(dropped)),
        ("Fields ignored", _plain(ignored)),
        ("Tokens spent", _plain(spent)),
        ("Plan's fingerprint", _plain(clean(plan.fingerprint, 60))),
        ("Run", _plain(clean(record.id, 80))),
    ]
    return [(label, fact) for label, fact in rows if fact.value is not None or fact.reason]


def commands(record: Record) -> list[Command]:
    """The server's command line and ours."""
    fact = record.engine.launch_command
    made = []
    if fact.value:
        made.append(Command("launch-command", "Launch command", clean(fact.value, 8000), fact.source))
    # one line that a shell reads back as these words; the program by its name
    words = [
        word.rsplit("/", 1)[-1] if number == 0 else word for number, word in enumerate(record.client.command[:200])
    ]
    ours = clean(shlex.join(clean(word, 500) for word in words), 4000)
    return [*made, Command("own-command", "Measured with", ours, None)] if ours else made
