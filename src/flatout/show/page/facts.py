"""Hardware, engine, run and launch command: what was measured on what, each value with where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flatout.record import Fact, Record
from flatout.show import about, numbers
from flatout.show.page import values
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import clean

Row = tuple[str, Fact]

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
_UNITS: Final[Mapping[str, str]] = {"_gb": "GB", "_gib": "GiB", "_mib": "MiB", "_w": "W", "_mhz": "MHz", "_c": "°C"}
_KINDS: Final[Mapping[str, str]] = {
    "discrete_gpu": "Discrete GPU", "discrete GPU": "Discrete GPU", "unified_memory": "Unified memory",
    "cpu_only": "CPU only",
}  # fmt: skip
MOST: Final = 60


def sections(record: Record) -> Html:
    """The three lists side by side, then the commands."""
    hardware, more = _hardware(record)
    unknown = record.hardware.describes == "client only"
    note = None
    if unknown:
        note = "The server's machine is not known. This is the client's:"
    elif record.hardware.describes == "server, as typed":
        note = "As typed for the server, not checked:"
    return join(
        tag(
            "div",
            _section("machine", "Hardware", hardware, more, note),
            _section("engine", "Engine", _engine(record), _engine_more(record)),
            _section("run", "Run", _run(record), _run_more(record)),
            class_="facts",
        ),
        _launch(record),
    )


def _section(anchor: str, title: str, rows: Sequence[Row], more: Sequence[Row], note: str | None = None) -> Html:
    rest = None
    if more:
        rest = tag("details", tag("summary", f"{len(more)} more"), _list(more))
    text = tag("p", note, class_="soft") if note else None
    return tag("section", tag("h2", title, id=anchor), text, _list(rows), rest, _unknown([*rows, *more]))


def _unknown(rows: Sequence[Row]) -> Html | None:
    """Why values are missing, in text; values that are missing for the same reason together."""
    told: dict[str, list[str]] = {}
    for label, fact in rows:
        if values.fact_text(fact) is None:
            told.setdefault(clean(fact.reason, 300) if fact.reason else "no reason is recorded", []).append(label)
    if not told:
        return None
    many = sum(map(len, told.values()))
    items = [tag("li", tag("b", ", ".join(labels)), f": {reason}") for reason, labels in told.items()]
    return tag(
        "details",
        tag("summary", f"Why {many} {'is' if many == 1 else 'are'} not known"),
        tag("ul", items, class_="notes"),
    )


def _list(rows: Sequence[Row]) -> Html:
    return tag("dl", [tag("div", tag("dt", label), tag("dd", value(fact))) for label, fact in rows])


def value(fact: Fact) -> Html:
    """The value and its quiet mark; a dash with the reason in its place."""
    text = values.fact_text(fact)
    if text is None:
        return values.dash(fact.reason)
    return join(text, _mark(fact.source))


def _mark(source: str | None) -> Html | None:
    if source is None:
        return None
    return join(" ", tag("span", hidden("source: "), source, class_="src", title=SOURCES.get(source, "")))


def _hardware(record: Record) -> tuple[list[Row], list[Row]]:
    facts = dict(list(record.hardware.facts.items())[:MOST])
    order: list[str] = [key for key in _HARDWARE if key in facts]
    rest = [key for key in facts if key not in order]
    # a machine without a GPU is its processor
    early = [key for key in ("cpu", "ram_gb") if key in rest and not about.known(facts.get("gpu"))]
    order = order[:1] + early + order[1:]
    return [_hardware_row(k, facts[k]) for k in order], [_hardware_row(k, facts[k]) for k in rest if k not in early]


def _hardware_row(key: str, fact: Fact) -> Row:
    name = clean(key, 60)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    label = _LABELS.get(name)
    if label is None:
        stem = next((name.removesuffix(end) for end in ("_bytes", *_UNITS) if name.endswith(end)), name)
        label = stem.replace("_", " ").replace("gpu", "GPU").replace("cpu", "CPU").replace("ram", "RAM")
        label = label[:1].upper() + label[1:]
    found = fact.value
    if isinstance(found, bool) or found is None:
        return label, fact
    if name.endswith("_bytes") and isinstance(found, int | float) and values.drawable(found) is not None:
        return label, fact.model_copy(update={"value": numbers.size(float(found))})
    if isinstance(found, str):
        return label, fact.model_copy(update={"value": _KINDS.get(found, found)})
    text = values.fact_text(fact)
    return label, fact.model_copy(update={"value": f"{text} {unit}".strip()})


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
        ("Weights' type", record.model.dtype),
        ("Longest request", _tokens(room.model_length)), ("KV cache", _tokens(room.kv_tokens)),
        ("Running at once, at most", room.max_running), ("Speculative decoding", engine.speculative_method),
        ("Draft model", engine.draft_model), ("Draft length", engine.draft_length),
        ("Read through", _plain(adapter)),
    ]  # fmt: skip


def _tokens(fact: Fact) -> Fact:
    text = values.fact_text(fact)
    if text is None or not isinstance(fact.value, int) or isinstance(fact.value, bool):
        return fact
    return fact.model_copy(update={"value": f"{values.count(fact.value)} tokens"})


def _plain(text: str | None, reason: str | None = None) -> Fact:
    """A value that flatout itself knows: it needs no mark."""
    return Fact(value=text, reason=reason) if text and text != numbers.NONE else Fact(reason=reason)


def _run(record: Record) -> list[Row]:
    plan, model = record.plan, record.model
    bursts = any(cell.phase == "burst" for cell in record.cells)
    decode = any(cell.phase == "decode" for cell in record.cells)
    test = " and ".join(w for w in ("Fixed duration" if decode else "", "fixed count" if bursts else "") if w)
    window = f"{values.seconds(plan.time_s)}"
    if plan.precision is not None and values.drawable(plan.precision) is not None:
        window = f"At most {window}, less once within ±{values.percent(plan.precision)}"
    samples = plan.prefill_samples
    return [
        ("Served model", model.served_as), ("Revision", model.revision),
        ("Benchmark tool", _plain(f"flatout {clean(record.client.flatout, 40)}")),
        ("Decode test", _plain(test[:1].upper() + test[1:], "no decode cell was planned")),
        ("Prefill mode", _plain(f"Cold prompts alone on the server, {samples} for each context")),
        ("Time per measurement", _plain(window)),
        ("Max output", _plain(f"{values.count(plan.max_output)} tokens")),
    ]  # fmt: skip


def _run_more(record: Record) -> list[Row]:
    plan, prompts, protocol, client = record.plan, record.prompts, record.protocol, record.client
    sampling = ", ".join(f"{clean(k, 40)} {clean(v, 60)}" for k, v in list(protocol.sampling.items())[:12])
    dropped = "; ".join(f"{clean(name, 40)} ({clean(words, 100)})" for name, words in protocol.dropped[:12])
    ignored = "; ".join(f"{clean(name, 40)} ({clean(words, 100)})" for name, words in protocol.ignored[:12])
    spent = ", ".join(f"{values.count(n)} {clean(k, 20)}" for k, n in list(record.tokens_spent.items())[:8])
    length = "as long as their label says" if prompts.exact else "see each cell for their length"
    rows = [
        ("Model", record.model.id),
        ("Suite", _plain(clean(plan.suite, 80))),
        ("Started", _plain(about.moment(record.started))),
        ("Finished", _plain(about.moment(record.finished), "the run has no end")),
        (
            "Prompts",
            _plain(f"{clean(prompts.mode, 40)} contexts, {clean(prompts.source, 80)}, seed {prompts.seed}; {length}"),
        ),
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


def _launch(record: Record) -> Html:
    """The server's command line and ours, to be copied."""
    fact = record.engine.launch_command
    command = clean(fact.value, 8000) if fact.value else None
    blocks: list[Html] = []
    if command:
        blocks.append(_command("launch-command", "Launch command", command, _mark(fact.source)))
    else:
        blocks.append(tag("p", "Launch command: ", values.dash(fact.reason), " ",
                          tag("span", clean(fact.reason, 200) if fact.reason else "", class_="soft")))  # fmt: skip
    ours = clean(_shell(record.client.command), 4000)
    if ours:
        blocks.append(_command("own-command", "Measured with", ours, None))
    heading = tag("h2", "Launch command", id="launch", class_=None if not command else "vh")
    return tag("section", heading, blocks, class_="launch")


def _command(anchor: str, title: str, command: str, mark: Html | None) -> Html:
    """The text itself has no copy of its own in the page: the button takes it from here."""
    button = tag("button", "Copy", type="button", class_="copy js", data_copy=anchor, aria_label=f"Copy: {title}")
    head = tag("div", tag("h3", title, mark), button, class_="cmdhead")
    return tag("div", head, tag("pre", tag("code", command, id=anchor), tabindex="0", role="region", aria_label=title),
               class_="cmd")  # fmt: skip


def _shell(words: Sequence[str]) -> str:
    """One line that a shell reads back as these words; the program by its name."""
    import shlex

    short = [word.rsplit("/", 1)[-1] if number == 0 else word for number, word in enumerate(words[:200])]
    return shlex.join(clean(word, 500) for word in short)
