"""The end of the page: definitions, the watch on the client, and the run in its real order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from flatout.metrics import METRICS
from flatout.record import Cell, Record
from flatout.show import about, charts, numbers
from flatout.show import legend as terms
from flatout.show.charts import Small, drawable
from flatout.show.page import values
from flatout.show.page.panels import name
from flatout.show.page.shown import Shown
from flatout.show.page.tables import notes
from flatout.show.safe import clean

DEFINITIONS: Final = (
    *((m.label.removesuffix(" p50"), m.definition) for m in METRICS
      if (m.shown in ("first", "if known") and m.name.endswith("_p50")) or (m.shown == "first" and "_p" not in m.name)),
    ("± 95 %", "The larger half of the 95 % interval: batches within the window, or the spread between repeats."),
)  # fmt: skip
"""(figure, what it means), from the table of figures; docs/definitions.md has them in full."""
TOKENS: Final = (
    "Tokens are counted, best first, from running counts in the events, token ids, the usage at a request's end, a "
    "tokenizer over the whole text, or the events themselves; each cell names which."
)
_KINDS: Final = {"prefill": "pre", "decode": "dec", "burst": "bur"}


def section(shown: Shown) -> dict[str, Any]:
    """What the template places."""
    record = shown.record
    counts = Counter(status for cell in shown.cells for status in {cell.status, *(flag.name for flag in cell.flags)})
    sources = Counter(clean(c.tokens.source, 80) for c in record.cells if c.tokens is not None and c.tokens.source)
    used = "; ".join(f"{word} in {n:,} cell{'s' if n != 1 else ''}" for word, n in sources.most_common(8))
    statuses, flags = terms.statuses(record), terms.flags(record)
    return {
        "statuses": [(note, counts[entry.name]) for note, entry in zip(notes(statuses), statuses, strict=True)],
        "flags": [(note, counts[entry.name]) for note, entry in zip(notes(flags), flags, strict=True)],
        "definitions": DEFINITIONS, "tokens": TOKENS,
        "used": f"Here: {used}." if used else "This record does not name its source.", "watch": _watch(shown),
        "warmups": _warmups(record), "timeline": _timeline(shown), "order": _order_rows(shown),
    }  # fmt: skip


def _watch(shown: Shown) -> str:
    """What flatout saw of itself while it measured."""
    client = shown.record.client
    told = f"Arrivals are stamped by: {clean(client.stamp_clock, 80)}"
    told += f" ({clean(client.stamp_clock_reason, 200)})" if client.stamp_clock_reason else ""
    told += f". Calibrated: {clean(client.calibration, 120)}. " if client.calibration else (
        ". This client was not calibrated (flatout calibrate). "
    )  # fmt: skip
    checks = [cell.self_check for cell in shown.cells if cell.self_check is not None]
    if not checks:
        return told + "This record holds no watch on the client."
    lags = [lag for c in checks if (lag := drawable(c.lag_worst_ms)) is not None]
    shares = [share for c in checks if (share := drawable(c.cpu_share)) is not None]
    return told + (
        f"{values.count(sum(c.late_reads for c in checks))} of {values.count(sum(c.reads for c in checks))} reads came "
        f"later than {values.ms(checks[0].late_limit_ms)}; the worst lag of the reading loop was "
        f"{values.ms(max(lags, default=None))}, the client used at most {values.percent(max(shares, default=None))} of "
        f"a core, the clock was set {values.count(sum(c.clock_steps for c in checks))} times. Where this could have "
        "changed a number, its cell is flagged client limited."
    )


def _warmups(record: Record) -> list[str]:
    made = []
    for warmup in record.warmups[:20]:
        speeds = ", ".join(values.rate(value) for value in warmup.speeds[:12]) or numbers.NONE
        how = "until the speed repeated" if warmup.repeats else "its speed did not repeat"
        note = f" ({clean(warmup.note, 100)})" if warmup.note else ""
        made.append(f"{clean(warmup.what, 120)}: {speeds} {clean(warmup.unit, 40)}{note}, {how}")
    return made


# the run in its real order


class Step(NamedTuple):
    """A cell as it came: link, when it began after the run's start, how long it took, how it ended."""

    anchor: str
    name: str
    after: str
    took: str
    status: str


def _order(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that were begun, as they were."""
    begun = [cell for cell in cells if cell.order is not None or cell.started]
    return sorted(begun, key=lambda cell: (cell.order if cell.order is not None else 10**9, cell.started or ""))


def _seconds(stamp: str | None) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else None
    except (ValueError, OverflowError, OSError):
        return None


def _order_rows(shown: Shown) -> list[Step]:
    begin = _seconds(shown.record.started)
    rows = []
    for cell in _order(shown.cells):
        start, stop = _seconds(cell.started), _seconds(cell.finished)
        after = start - begin if start is not None and begin is not None else None
        took = stop - start if start is not None and stop is not None else None
        again = f", after {len(cell.attempts)} thrown away" if cell.attempts else ""
        rows.append(Step(
            shown.anchor(cell), name(cell), values.short(numbers.duration(after)), values.seconds(took),
            about.status_word(cell.status) + again,
        ))  # fmt: skip
    return rows


def _timeline(shown: Shown) -> Small | None:
    """A bar a cell over the whole run."""
    cells = _order(shown.cells)
    times = [(_seconds(cell.started), _seconds(cell.finished), _KINDS[cell.phase]) for cell in cells]
    known = [(a, b, kind) for a, b, kind in times if a is not None and b is not None]
    begin, end = _seconds(shown.record.started), _seconds(shown.record.finished)
    last = end if end is not None else max((b for _, b, _ in known), default=None)
    if begin is None or last is None or last <= begin or not known:
        return None
    total, span = numbers.duration(last - begin), last - begin
    bars = [((a - begin) / span, (b - begin) / span, kind) for a, b, kind in known]
    svg = charts.strips([bars], f"{len(bars)} cells over the run of {total}")
    return Small("The run", svg, "0 s", total, key="pale: prefill; strong: decode")
