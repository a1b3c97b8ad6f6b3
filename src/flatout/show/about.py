"""What a record says in words: who was measured on what, how it went, and which mark stands for which flag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from flatout.flags import MEASURED, SENTENCES, Flag, Status
from flatout.record import Cell, Fact, Record
from flatout.show import numbers
from flatout.show.safe import HARD_SPACE, clean

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    Status.NO_STEADY_STATE: ("not", "steady"),
    Status.OVER_CAPACITY: ("over", "capacity"),
    Status.OVER_LENGTH: ("over", "length"),
    Status.NOT_RUN: ("not run", ""),
    Status.REQUESTS_QUEUED: ("queued", ""),
}
STYLES: Final[Mapping[str, str]] = {
    Status.VALID: "",
    Status.REQUESTS_QUEUED: "cyan",
    Status.DOUBTFUL: "yellow",
    Status.NO_STEADY_STATE: "yellow",
    Status.FAILED: "red",
}
"""Colours of statuses; those not named here are no news and stay dim."""
PHASES: Final = ("prefill", "decode", "burst")
_ORDER: Final = [str(flag) for flag in Flag]
_LETTERS: Final = "abcdefghijklmnoprstuvwxyz"  # no q: it has no superscript


def known(fact: Fact | None) -> str | None:
    """A fact's value as clean text, or None."""
    if fact is None or fact.value is None or fact.value == "":
        return None
    return clean(fact.value)


def model_name(record: Record) -> str:
    """The model's own name, else the name it is served as."""
    return known(record.model.id) or known(record.model.served_as) or "model not known"


def engine_name(record: Record) -> str:
    name = known(record.engine.name) or "engine not known"
    version = known(record.engine.version)
    return f"{name} {version}" if version else name


def precision(record: Record) -> str | None:
    """The weights' quantization, or their type where they are not quantized."""
    return known(record.model.quantization) or known(record.model.dtype)


def hardware_name(record: Record) -> str:
    """The server's accelerator and its memory, or its CPU; says so where the hardware is only typed or not known."""
    if record.hardware.describes == "client only":
        return "hardware not known"
    facts = record.hardware.facts
    gpu = _first(facts, "gpu", "gpu_model", "gpu_name", "gpus")
    if gpu:
        many = _first(facts, "gpu_count", "gpus_count")
        name = gpu if many in (None, "1") else f"{many} × {gpu}"
        memory = _memory(facts)
        name += f" {memory}" if memory else ""
    else:
        name = _first(facts, "cpu", "cpu_model", "name", "type") or "hardware not known"
        cores = _first(facts, "cores", "logical_cores")
        name += f", {cores} cores" if cores else ""
    return name + (" (as typed)" if record.hardware.describes == "server, as typed" and facts else "")


def _first(facts: Mapping[str, Fact], *names: str) -> str | None:
    return next((text for text in (known(facts.get(name)) for name in names) if text), None)


def _memory(facts: Mapping[str, Fact]) -> str | None:
    """One GPU's memory, from whichever of its names the record has."""
    for name in ("gpu_memory", "vram", "memory"):
        for ending, unit in (("_gb", "GB"), ("_gib", "GiB"), ("", "")):
            found = facts.get(name + ending)
            if text := known(found):
                value = found.value if found is not None else None
                return f"{f'{value:.0f}' if isinstance(value, float) and value >= 10 else text} {unit}".strip()
        fact = facts.get(f"{name}_bytes")
        if fact is not None and isinstance(fact.value, int | float):
            return f"{fact.value / 2**30:,.0f} GiB"
    return None


def moment(stamp: str | None) -> str | None:
    """An ISO time as `2026-11-30 02:41 +00:00`; the clean text itself where it is no ISO time."""
    if not stamp:
        return None
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return clean(stamp, 40)
    offset = at.strftime("%z")
    return at.strftime("%Y-%m-%d %H:%M") + (f" {offset[:3]}:{offset[3:5]}" if offset else "")


def title(record: Record) -> str:
    return f"{model_name(record)} on {hardware_name(record)}"


def subtitle(record: Record) -> str:
    """Engine and version, precision, suite, date. Contains HARD_SPACE, for `wrap`."""
    parts = [engine_name(record), precision(record), clean(record.plan.suite), moment(record.started)]
    return " · ".join(part.replace(" ", HARD_SPACE) for part in parts if part)


def speculation(record: Record) -> str | None:
    """The speculative decoding in use, or None where there is none or it is not known."""
    method = known(record.engine.speculative_method)
    if not method or method.lower() == "none":
        return None
    draft, length = known(record.engine.draft_model), known(record.engine.draft_length)
    return method + (f", draft {draft}" if draft else "") + (f", {length} tokens a draft" if length else "")


def measured(cell: Cell) -> bool:
    """True where the cell shows numbers."""
    return cell.status in MEASURED


def verdict(record: Record) -> str:
    """`33 of 48 cells measured, 2 flagged`, with every other number that a reader must know; contains HARD_SPACE.
    Doubtful cells are flagged by definition and counted apart."""
    cells = record.cells
    parts = [f"{sum(map(measured, cells))} of {len(cells)} cells measured"]
    counts = (
        (sum(measured(c) and bool(c.flags) and c.status != Status.DOUBTFUL for c in cells), "flagged"),
        (_with(cells, Status.DOUBTFUL), "doubtful"),
        (_with(cells, Status.REQUESTS_QUEUED), "queued"),
        (_with(cells, Status.FAILED), "failed"),
        (_with(cells, Status.NO_STEADY_STATE), "not steady"),
    )
    parts += [f"{count} {word}".replace(" ", HARD_SPACE) for count, word in counts if count]
    return ", ".join(parts)


def _with(cells: Iterable[Cell], status: str) -> int:
    return sum(cell.status == status for cell in cells)


def ending(record: Record) -> str | None:
    """Why the record is not that of a whole run; None where it is."""
    if record.state == "finished":
        return None
    words = {
        "running": "still running, or broken off without a word: go on with --resume",
        "interrupted": "interrupted before the end: go on with --resume",
        "failed": "the run failed",
    }[record.state]
    return words + (f" ({clean(record.state_reason)})" if record.state_reason else "")


def status_word(status: str) -> str:
    """`over capacity`, for tables: the status without underscores."""
    return clean(status, 40).replace("_", " ")


def two_lines(status: str) -> tuple[str, str]:
    """The status in a matrix cell, on two short lines (the second may be empty)."""
    return _WORDS.get(status, (status_word(status), ""))


def style(status: str) -> str:
    return STYLES.get(status, "dim")


def context(cell: Cell) -> str:
    label = clean(cell.context, 12)
    return f"{int(label):,}" if label.isdecimal() else label or numbers.context(cell.context_tokens)


def place(phase: str, context: str, concurrency: int) -> str:
    """`8K × 4`, `prefill 8K`, `burst 8K × 4`."""
    return f"prefill {context}" if phase == "prefill" else f"{'burst ' * (phase == 'burst')}{context} × {concurrency}"


def cell_name(cell: Cell) -> str:
    return place(cell.phase, context(cell), cell.concurrency)


def cell_names(cells: Iterable[Cell]) -> str:
    """Many cells in few words: `prefill 8K, 16K; 8K × 32, 64; 16K × 64`. Contains HARD_SPACE, for `wrap`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.phase == "prefill":
            groups.setdefault(("prefill ", ""), []).append(context(cell))
        else:
            before = ("burst " if cell.phase == "burst" else "") + context(cell) + " × "
            groups.setdefault((before, cell.phase), []).append(str(cell.concurrency))
    named = "; ".join(before + ", ".join(dict.fromkeys(parts)) for (before, _), parts in groups.items())
    return named.replace(" × ", f"{HARD_SPACE}×{HARD_SPACE}")


def flag_sentence(name: str) -> str:
    try:
        return SENTENCES[Flag(name)]
    except ValueError:
        return "A flag that this version of flatout does not know."


def status_sentence(name: str) -> str:
    try:
        return SENTENCES[Status(name)]
    except ValueError:
        return "A status that this version of flatout does not know."


def letters(record: Record) -> dict[str, str]:
    """Flag → its footnote letter, for the flags that occur, in the order of the table of flags."""
    found = {flag.name for cell in record.cells for flag in cell.flags}
    ordered = sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return {name: _LETTERS[i] if i < len(_LETTERS) else "+" for i, name in enumerate(ordered)}


def marks(cell: Cell, letter: Mapping[str, str]) -> str:
    """The cell's footnote letters, in order, each once."""
    return "".join(sorted({letter[flag.name] for flag in cell.flags if flag.name in letter}))
