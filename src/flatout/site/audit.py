"""What speaks for a run's figures and what against: every check with its outcome in words. Pure, from a record alone.

Nothing is hidden for what is found here. A doubt is a contradiction, or what no measurement gives; a note is what a
reader must know before the figures are used.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, Literal

from flatout.flags import DOUBTFUL_FLAGS, MEASURED, Flag, Status
from flatout.limits import HardwareLimits, hardware_of, known, settings_of
from flatout.lint import Finding, LintError, lint
from flatout.lint.finding import TITLES
from flatout.record import Cell, Fact, Record
from flatout.show import about, numbers
from flatout.show.safe import clean

_MOST: Final = 3
"""Examples that a sentence names."""


Level = Literal["good", "note", "doubt"]
_SLACK: Final = 1.05
"""Real memory may run a little above its datasheet."""
_LEAST_BYTES: Final = 0.5
"""A parameter's, where the quantization is not known to take more: 4 bits."""
_MOST_GPUS: Final = 16
"""No single stream was seen on more."""
_UNKNOWN_DRAFT: Final = 16.0
_ACTIVE: Final = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(?:\d+x)?(\d+(?:\.\d+)?)b(?![a-z0-9])")
_CLOCK_SLACK_S: Final = 2.0
_AHEAD_S: Final = 300.0
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """`level`: good, note (worth knowing before the figures are used) or doubt (they contradict each other, or no
    measurement gives them). `checked` is False where it could not be looked at; the text says why."""

    name: str
    level: Level
    text: str
    checked: bool = True


def _good(name: str, text: str) -> Check:
    return Check(name, "good", text)


def _note(name: str, text: str) -> Check:
    return Check(name, "note", text)


def _doubt(name: str, text: str) -> Check:
    return Check(name, "doubt", text)


def _unchecked(name: str, text: str) -> Check:
    return Check(name, "good", f"not checked: {text}", checked=False)


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
        _limit(record),
        _isolation(record),
        _other_doubts(record),
        _again(record),
        _counts(record),
        _prompts(record),
        _self_check(record),
        _calibration(record),
        _times(record, received_us),
        _copies(record),
        _provenance(record),
        _server(record),
    ]


def trust(record: Record, received_us: int) -> tuple[str, int]:
    """(good, notes or doubtful; number of notes and doubts)."""
    bad = [check.level for check in checks(record, received_us=received_us) if check.level != "good"]
    return ("doubtful" if "doubt" in bad else "notes" if bad else "good"), len(bad)


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
        yield _good("consistency", "The figures fit each other: rates, times, tokens and requests of every cell.")
    for rule in dict.fromkeys(one.rule for one in grave):
        same = [one for one in grave if one.rule == rule]
        level = _doubt if any(one.severity == "error" for one in same) else _note
        yield level("consistency", _told(rule, same))


def _told(rule: str, found: Sequence[Finding]) -> str:
    some = "; ".join(
        f"{clean(f.cell, 60)}: {clean(f.what, 200)}" if f.cell else clean(f.what, 200) for f in found[:_MOST]
    )
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"{TITLES.get(rule, rule)}: {some}{more}. {found[0].why}"


def _isolation(record: Record) -> Check:
    hit = _flagged(record, Flag.CONTAMINATED)
    if hit:
        text = f"The server ran more requests than the test sent in {_named(hit)}: {_these(hit)}"
        return _note("isolation", f"{text} doubtful and not ranked.")
    told = [c for c in record.cells if c.decode is not None and c.decode.active_server_mean is not None]
    if told:
        return _good("isolation", "The server ran no more requests than were sent, by its own count.")
    text = "the server tells no count of what it runs (flatout then sends a probe before each cell)"
    return _unchecked("isolation", text)


def _other_doubts(record: Record) -> Check:
    hit = [
        cell
        for cell in record.cells
        if cell.status == Status.DOUBTFUL and not any(flag.name == Flag.CONTAMINATED for flag in cell.flags)
    ]
    if not hit:
        return _good("doubtful cells", "No cell is doubtful for another reason.")
    names = Counter(f.name for cell in hit for f in cell.flags if f.name in DOUBTFUL_FLAGS)
    why = ", ".join(f"{clean(name, 40).replace('_', ' ')} ({count})" for name, count in names.most_common(5))
    return _note("doubtful cells", f"{_named(hit)}: {why or 'no flag says why'}; {_these(hit)} not ranked.")


def _again(record: Record) -> Check:
    redone = [cell for cell in record.cells if cell.attempts]
    if not redone:
        return _good("redone cells", "No cell had to be measured again.")
    why = clean(redone[0].attempts[-1].reason, 160)
    text = f"{_named(redone)} measured again, the last go counts; the one before was thrown away: {why}"
    return _good("redone cells", text)


def _counts(record: Record) -> Check:
    differ, guessed = _flagged(record, Flag.COUNTERS_DISAGREE), _flagged(record, Flag.TOKENS_ESTIMATED)
    if differ:
        return _note("token counts", f"Counts from two sources differ by over 1 % in {_named(differ)}.")
    sources = Counter(clean(c.tokens.source, 60) for c in record.cells if c.tokens is not None and c.tokens.source)
    told = "; ".join(f"{source} in {_cells(count)}" for source, count in sources.most_common(_MOST))
    if guessed:
        text = f"Part of the tokens was not counted by the server in {_named(guessed)}: tokens there are estimates."
        return _note("token counts", text)
    if not told:
        return _note("token counts", "The record does not say where its token counts came from.")
    compared = sum(c.tokens is not None and c.tokens.server_total is not None for c in record.cells)
    both = f" The server's own counters agree in {_cells(compared)}." if compared else ""
    return _good("token counts", f"Counted from: {told}.{both}")


def _prompts(record: Record) -> Check:
    exact, note = record.prompts.exact, clean(record.prompts.note or "", 200)
    if exact:
        return _good("prompts", "Prompts are exactly as long as their labels, by the server's own count.")
    cold = _flagged(record, Flag.COLD_UNVERIFIED)
    if exact is None:
        return _note("prompts", f"Whether prompts are as long as their labels is not known. {note}".strip())
    more = f" In {_named(cold)} nothing proves that the prompt was cold." if cold else ""
    return _note("prompts", f"Prompts were fitted to their labels, not exact. {note}".strip() + more)


def _self_check(record: Record) -> Check:
    limited = _flagged(record, Flag.CLIENT_LIMITED)
    measured = [cell for cell in record.cells if cell.status in MEASURED]
    unwatched = [cell for cell in measured if cell.self_check is None]
    if limited:
        text = f"The measuring machine may have been too slow in {_named(limited)}: {_these(limited)} not ranked."
        return _note("self-check", text)
    if not measured:
        return _unchecked("self-check", "nothing was measured")
    if unwatched:
        return _note("self-check", f"The client did not watch itself in {_named(unwatched)}.")
    worst = max((c.self_check.lag_worst_ms or 0.0 for c in measured if c.self_check is not None), default=0.0)
    clock = clean(record.client.stamp_clock, 60)
    return _good(
        "self-check",
        f"The client watched itself in every cell and never limited it; stamps by the {clock} "
        f"clock, worst lag {numbers.ms(worst) if worst else numbers.NONE}.",
    )


def _calibration(record: Record) -> Check:
    name = record.client.calibration
    if name:
        return _good("calibration", f"The client was calibrated against known speeds: {clean(name, 120)}.")
    return _note("calibration", "The client was not calibrated (flatout calibrate).")


def _provenance(record: Record) -> Check:
    typed = [one for one in origins(record) if one.source == "typed"]
    if record.hardware.describes == "client only":
        return _note("hardware", "The hardware is that of the measuring machine; the server's own is not known.")
    if not typed:
        return _good("provenance", "Nothing that identifies the run was typed by hand: server and host told it.")
    named = ", ".join(f"{one.field} = {one.value}" for one in typed[:6])
    more = f" and {len(typed) - 6} more" if len(typed) > 6 else ""
    return _note("provenance", f"Typed by hand, not told by the server or its machine: {clean(named, 400)}{more}.")


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
        return _note("identity", f"Not known: {', '.join(unknown)}.")
    return _good("identity", "Model, precision, engine, version and launch command are known.")


def _flagged(record: Record, flag: Flag) -> list[Cell]:
    return [cell for cell in record.cells if any(one.name == flag for one in cell.flags)]


def _named(cells: Sequence[Cell]) -> str:
    some = ", ".join(about.cell_name(cell) for cell in cells[:_MOST])
    return some if len(cells) <= _MOST else f"{some} and {_cells(len(cells) - _MOST)} more"


def _these(cells: Sequence[Cell]) -> str:
    return "it is" if len(cells) == 1 else "they are"


def _cells(count: int) -> str:
    return f"{count:,} cell" + ("" if count == 1 else "s")


def _limit(record: Record) -> Check:
    """Decode against the memory's bandwidth. A record holds no model shape: the size is taken from the name (active
    parameters where it tells them), which proves nothing, so it makes a note, and a doubt only beyond any hardware."""
    name = "hardware limit"
    billions = size_in_name(about.model_name(record))
    if billions is None:
        text = "a record does not hold the model's shape, and its name tells no size; "
        return _unchecked(name, text + "flatout limits does it with the model's files.")
    found = _fastest(record)
    if found is None:
        return _unchecked(name, "no sound decode cell, or drafts of unknown length")
    cell, steps_s = found
    needed_gb_s = steps_s * billions * _bytes_each(record)
    gpus = settings_of(record).gpus or 1
    hardware = hardware_of(record)
    most = max(known(), key=lambda one: one.bandwidth_gb_s)
    told = (
        f"{about.cell_name(cell)} would read {needed_gb_s:,.0f} GB/s if each step reads the {billions:g} billion "
        "parameters that the model's name tells"
    )
    if needed_gb_s > most.bandwidth_gb_s * _SLACK * _MOST_GPUS:
        return _doubt(name, f"{told}: more than {_MOST_GPUS} of the fastest known ({most.name}) can.")
    if hardware is None:
        return _unchecked(name, "this hardware's bandwidth is not known here")
    return _against(name, told, needed_gb_s, hardware, gpus)


def _against(name: str, told: str, needed_gb_s: float, hardware: HardwareLimits, gpus: int) -> Check:
    there = hardware.bandwidth_gb_s * gpus
    which = f"{gpus} × {hardware.name}" if gpus > 1 else hardware.name
    if needed_gb_s > there * _SLACK:
        return _note(
            name, f"{told}; {which} has {there:,.0f} GB/s. A mixture of experts reads less; else this cannot be."
        )
    return _good(name, f"{told}; {which} has {there:,.0f} GB/s. The size is the name's, not a file's.")


def size_in_name(model: str) -> float | None:
    """Billions of parameters that a model's name tells: the active ones (`30B-A3B` → 3), of several the fewest."""
    low = model.lower().replace("_", "-").rsplit("/", 1)[-1][:200]
    found = [float(text) for text in _ACTIVE.findall(low)] or [float(text) for text in _SIZE.findall(low)]
    sizes = [size for size in found if 0 < size < 10_000]
    return min(sizes) if sizes else None


def _bytes_each(record: Record) -> float:
    told = (about.known(record.model.quantization) or about.known(record.model.dtype) or "").lower()
    if any(word in told for word in ("bf16", "f16", "fp16", "bfloat16", "float16", "half")):
        return 2.0
    return 1.0 if any(word in told for word in ("fp8", "q8", "int8", "w8")) else _LEAST_BYTES


def _fastest(record: Record) -> tuple[Cell, float] | None:
    """The decode cell with most steps a second for one stream, by its interval's lower end."""
    settings = settings_of(record)
    found: list[tuple[float, int, Cell]] = []
    for i, cell in enumerate(record.cells):
        if cell.phase != "decode" or cell.decode is None or cell.status not in MEASURED or cell.concurrency < 1:
            continue
        rate = cell.decode.total_tok_s
        low = rate.low if rate.low is not None else rate.value
        accepted = cell.decode.acceptance.length if cell.decode.acceptance is not None else None
        if accepted is None:
            drafted = settings.draft_tokens
            accepted = (drafted + 1.0 if drafted else _UNKNOWN_DRAFT) if settings.speculative else 1.0
        if low is not None and low > 0:
            found.append((low / cell.concurrency / max(1.0, accepted), -i, cell))
    if not found:
        return None
    steps_s, _, cell = max(found)
    return cell, steps_s


def _times(record: Record, received_us: int | None) -> Check:
    """Times of day that contradict each other."""
    wrong = list(_wrong_times(record, (received_us if received_us is not None else time.time_ns() // 1000) / 1e6))
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return _doubt("times", "; ".join(wrong[:3]) + more + ".")
    return _good("times", "The run's times fit each other: windows inside the run, one after the other.")


def _wrong_times(record: Record, received_s: float) -> Iterator[str]:
    start, end = _seconds(record.started), _seconds(record.finished)
    if start is not None and start > received_s + _AHEAD_S:
        yield "it began after the site had received it"
    if start is not None and end is not None and end < start - _CLOCK_SLACK_S:
        yield "it finished before it began"
    if end is not None and end > received_s + _AHEAD_S:
        yield "it finished after the site had received it"
    windows: list[tuple[float, float, Cell]] = []
    for cell in record.cells:
        begun, ended = _seconds(cell.started), _seconds(cell.finished)
        if begun is not None and ended is not None and ended < begun - _CLOCK_SLACK_S:
            yield f"{about.cell_name(cell)} finished before it began"
        if cell.window is None or cell.status not in MEASURED:
            continue
        if None not in (begun, ended) and cell.window.length_s > ended - begun + _CLOCK_SLACK_S:  # type: ignore[operator]
            yield f"the window of {about.cell_name(cell)} is longer than the cell took"
        opened = _seconds(cell.window.opened)
        if opened is not None and 0 < cell.window.length_s < 1e6:
            windows.append((opened, opened + cell.window.length_s, cell))
    yield from _overlaps(sorted(windows, key=lambda w: w[:2]), start, end)


def _overlaps(windows: list[tuple[float, float, Cell]], start: float | None, end: float | None) -> Iterator[str]:
    for (_, closed, one), (opened, _, two) in pairwise(windows):
        if opened < closed - _CLOCK_SLACK_S:
            yield f"the windows of {about.cell_name(one)} and {about.cell_name(two)} overlap"
    for opened, closed, cell in windows:
        before = start is not None and opened < start - _CLOCK_SLACK_S
        if before or (end is not None and closed > end + _CLOCK_SLACK_S):
            yield f"the window of {about.cell_name(cell)} lies outside of the run"


def _seconds(stamp: str | None) -> float | None:
    try:
        at = datetime.fromisoformat(stamp) if stamp else None
        if at is None:
            return None
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _copies(record: Record) -> Check:
    """Cells whose figures are equal to the last digit: counts may be, times in milliseconds never."""
    seen: dict[tuple[float, ...], Cell] = {}
    pairs: list[tuple[Cell, Cell]] = []
    for cell in record.cells:
        figures = _figures(cell)
        if figures is None:
            continue
        first = seen.setdefault(figures, cell)
        if first is not cell:
            pairs.append((first, cell))
    if not pairs:
        return _good("repeated figures", "No two cells have the same figures.")
    some = "; ".join(f"{about.cell_name(a)} and {about.cell_name(b)}" for a, b in pairs[:3])
    more = f"; and {numbers.count(len(pairs) - 3)} more" if len(pairs) > 3 else ""
    return _doubt(
        "repeated figures", f"Rates and times are equal to the last digit in {some}{more}: two measurements never are."
    )


def _figures(cell: Cell) -> tuple[float, ...] | None:
    """The cell's rate and times, if there are times with so many digits that chance cannot make them equal."""
    if cell.status not in MEASURED:
        return None
    if cell.phase == "decode" and cell.decode is not None:
        d = cell.decode
        found = [d.total_tok_s.value, d.tpot_ms.mean, d.tpot_ms.p50, d.itl_ms.mean, d.itl_ms.p99, d.ttft_ms.p50]
    elif cell.phase == "prefill" and cell.prefill is not None:
        found = [cell.prefill.prefill_tok_s.value, *(s.ttft_ms for s in cell.prefill.samples if s.used)]
    else:
        return None
    times = {value for value in found[1:] if value is not None and _many_digits(value)}
    if found[0] is None or len(times) < 2:
        return None
    return tuple(-1.0 if value is None else value for value in found)


def _many_digits(value: float) -> bool:
    scaled = abs(value * 1e3)
    return math.isfinite(scaled) and abs(scaled - round(scaled)) > _SAME * max(1.0, scaled)
