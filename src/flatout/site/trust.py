"""What speaks for a run's figures and what against: every check with its outcome in words. Pure, from a record alone.

Nothing is hidden for what is found here. A doubt is a contradiction, or what no measurement gives; a note is what a
reader must know before the figures are used. `suspicion` looks for what does not fit a real measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flatout.flags import DOUBTFUL_FLAGS, MEASURED, Flag, Status
from flatout.lint import Finding, LintError, lint
from flatout.lint.finding import TITLES
from flatout.record import Cell, Fact, Record
from flatout.show import about, numbers
from flatout.show.safe import clean
from flatout.site import suspicion
from flatout.site.suspicion import Check

__all__ = ["Check", "Origin", "checks", "origins"]

_MOST: Final = 3
"""Examples that a sentence names."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A field that identifies what was measured. `source`: typed (by who measured), server, host, derived; None where
    it is not known, with `reason`."""

    field: str
    value: str | None
    source: str | None
    reason: str | None


def checks(record: Record, *, received_us: int | None = None) -> list[Check]:
    """Every check of a run, those of its figures first. `received_us`: when the site got it; None: now."""
    return [
        *_consistency(record),
        suspicion.limit(record),
        _isolation(record),
        _other_doubts(record),
        _again(record),
        _counts(record),
        _prompts(record),
        _self_check(record),
        _calibration(record),
        suspicion.times(record, received_us),
        suspicion.copies(record),
        _provenance(record),
        _server(record),
    ]


def origins(record: Record) -> list[Origin]:
    """Where each field came from, in the order of a record."""
    return [
        Origin(
            name, about.known(fact), fact.source if about.known(fact) else None, clean(fact.reason or "", 300) or None
        )
        for name, fact in _facts(record)
    ]


def _facts(record: Record) -> Iterator[tuple[str, Fact]]:
    for room, fields in (
        ("model", ("id", "served_as", "revision", "quantization", "dtype")),
        ("engine", ("name", "version", "commit", "build", "backend", "repository", "launch_command",
                    "speculative_method", "draft_model", "draft_length")),
        ("room", ("model_length", "kv_tokens", "max_running")),
    ):  # fmt: skip
        for name in fields:
            yield f"{room}: {name.replace('_', ' ')}", getattr(getattr(record, room), name)
    for name, fact in record.hardware.facts.items():
        yield f"hardware: {clean(name, 60).replace('_', ' ')}", fact


def _consistency(record: Record) -> Iterator[Check]:
    try:
        found = lint(record)
    except LintError as error:
        yield Check("consistency", "note", f"not checked: {clean(error, 200)}", checked=False)
        return
    grave = [one for one in found if one.severity != "note"]
    if not grave:
        yield Check(
            "consistency", "good", "The figures fit each other: rates, times, tokens and requests of every cell."
        )
    for rule in dict.fromkeys(one.rule for one in grave):
        same = [one for one in grave if one.rule == rule]
        level = "doubt" if any(one.severity == "error" for one in same) else "note"
        yield Check("consistency", "doubt" if level == "doubt" else "note", _told(rule, same))


def _told(rule: str, found: Sequence[Finding]) -> str:
    some = "; ".join(
        f"{clean(f.cell, 60)}: {clean(f.what, 200)}" if f.cell else clean(f.what, 200) for f in found[:_MOST]
    )
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"{TITLES.get(rule, rule)}: {some}{more}. {found[0].why}"


def _isolation(record: Record) -> Check:
    hit = _flagged(record, Flag.CONTAMINATED)
    if hit:
        return Check(
            "isolation", "note",
            f"The server ran more requests than the test sent in {_named(hit)}: {_these(hit)} doubtful and not ranked.",
        )  # fmt: skip
    told = [c for c in record.cells if c.decode is not None and c.decode.active_server_mean is not None]
    if told:
        return Check("isolation", "good", "The server ran no more requests than were sent, by its own count.")
    text = "not checked: the server tells no count of what it runs (flatout then sends a probe before each cell)"
    return Check("isolation", "good", text, checked=False)


def _other_doubts(record: Record) -> Check:
    hit = [
        cell
        for cell in record.cells
        if cell.status == Status.DOUBTFUL and not any(flag.name == Flag.CONTAMINATED for flag in cell.flags)
    ]
    if not hit:
        return Check("doubtful cells", "good", "No cell is doubtful for another reason.")
    names = Counter(f.name for cell in hit for f in cell.flags if f.name in DOUBTFUL_FLAGS)
    why = ", ".join(f"{clean(name, 40).replace('_', ' ')} ({count})" for name, count in names.most_common(5))
    return Check(
        "doubtful cells", "note", f"{_named(hit)}: {why or 'no flag says why'}; {_these(hit)} not ranked."
    )  # fmt: skip


def _again(record: Record) -> Check:
    redone = [cell for cell in record.cells if cell.attempts]
    if not redone:
        return Check("redone cells", "good", "No cell had to be measured again.")
    why = clean(redone[0].attempts[-1].reason, 160)
    text = f"{_named(redone)} measured again, the last go counts; the one before was thrown away: {why}"
    return Check("redone cells", "good", text)


def _counts(record: Record) -> Check:
    differ, guessed = _flagged(record, Flag.COUNTERS_DISAGREE), _flagged(record, Flag.TOKENS_ESTIMATED)
    if differ:
        return Check("token counts", "note", f"Counts from two sources differ by over 1 % in {_named(differ)}.")
    sources = Counter(clean(c.tokens.source, 60) for c in record.cells if c.tokens is not None and c.tokens.source)
    told = "; ".join(f"{source} in {_cells(count)}" for source, count in sources.most_common(_MOST))
    if guessed:
        text = f"Part of the tokens was not counted by the server in {_named(guessed)}: tokens there are estimates."
        return Check("token counts", "note", text)
    if not told:
        return Check("token counts", "note", "The record does not say where its token counts came from.")
    compared = sum(c.tokens is not None and c.tokens.server_total is not None for c in record.cells)
    both = f" The server's own counters agree in {_cells(compared)}." if compared else ""
    return Check("token counts", "good", f"Counted from: {told}.{both}")


def _prompts(record: Record) -> Check:
    exact, note = record.prompts.exact, clean(record.prompts.note or "", 200)
    if exact:
        return Check("prompts", "good", "Prompts are exactly as long as their labels, by the server's own count.")
    cold = _flagged(record, Flag.COLD_UNVERIFIED)
    if exact is None:
        return Check("prompts", "note", f"Whether prompts are as long as their labels is not known. {note}".strip())
    more = f" In {_named(cold)} nothing proves that the prompt was cold." if cold else ""
    return Check("prompts", "note", f"Prompts were fitted to their labels, not exact. {note}".strip() + more)


def _self_check(record: Record) -> Check:
    limited = _flagged(record, Flag.CLIENT_LIMITED)
    measured = [cell for cell in record.cells if cell.status in MEASURED]
    unwatched = [cell for cell in measured if cell.self_check is None]
    if limited:
        text = f"The measuring machine may have been too slow in {_named(limited)}: {_these(limited)} not ranked."
        return Check("self-check", "note", text)
    if not measured:
        return Check("self-check", "good", "not checked: nothing was measured", checked=False)
    if unwatched:
        return Check("self-check", "note", f"The client did not watch itself in {_named(unwatched)}.")
    worst = max((c.self_check.lag_worst_ms or 0.0 for c in measured if c.self_check is not None), default=0.0)
    clock = clean(record.client.stamp_clock, 60)
    return Check(
        "self-check", "good", f"The client watched itself in every cell and never limited it; stamps by the {clock} "
        f"clock, worst lag {numbers.ms(worst) if worst else numbers.NONE}.",
    )  # fmt: skip


def _calibration(record: Record) -> Check:
    name = record.client.calibration
    if name:
        return Check("calibration", "good", f"The client was calibrated against known speeds: {clean(name, 120)}.")
    return Check("calibration", "note", "The client was not calibrated (flatout calibrate).")


def _provenance(record: Record) -> Check:
    typed = [one for one in origins(record) if one.source == "typed"]
    if record.hardware.describes == "client only":
        return Check(
            "hardware", "note", "The hardware is that of the measuring machine; the server's own is not known."
        )  # fmt: skip
    if not typed:
        return Check(
            "provenance", "good", "Nothing that identifies the run was typed by hand: server and host told it."
        )
    named = ", ".join(f"{one.field} = {one.value}" for one in typed[:6])
    more = f" and {len(typed) - 6} more" if len(typed) > 6 else ""
    return Check(
        "provenance", "note", f"Typed by hand, not told by the server or its machine: {clean(named, 400)}{more}."
    )


def _server(record: Record) -> Check:
    unknown = [
        name
        for name, fact in (
            ("model", record.model.id),
            ("precision", record.model.quantization if about.known(record.model.quantization) else record.model.dtype),
            ("engine", record.engine.name),
            ("engine version", record.engine.version),
            ("launch command", record.engine.launch_command),
        )
        if about.known(fact) is None
    ]
    if not record.engine.adapter_verified:
        unknown.append("whether the engine's adapter works: it was never checked with the real engine")
    if unknown:
        return Check("identity", "note", f"Not known: {', '.join(unknown)}.")
    return Check("identity", "good", "Model, precision, engine, version and launch command are known.")


def _flagged(record: Record, flag: Flag) -> list[Cell]:
    return [cell for cell in record.cells if any(one.name == flag for one in cell.flags)]


def _named(cells: Sequence[Cell]) -> str:
    some = ", ".join(about.cell_name(cell) for cell in cells[:_MOST])
    return some if len(cells) <= _MOST else f"{some} and {_cells(len(cells) - _MOST)} more"


def _these(cells: Sequence[Cell]) -> str:
    return "it is" if len(cells) == 1 else "they are"


def _cells(count: int) -> str:
    return f"{count:,} cell" + ("" if count == 1 else "s")
