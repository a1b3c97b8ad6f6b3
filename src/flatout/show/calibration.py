"""A calibration as a document: truth beside reading, with the error of each figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.calibration import Calibration, Limit, Pair, Point
from flatout.show import numbers
from flatout.show.document import Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.show.safe import clean

HEAD: Final = (
    "known speed", "events/s", "total tok/s", "error", "TTFT p50 ms", "error", "ITL p50 ms", "error", "ITL p99 ms",
    "error", "stamp p50", "stamp p99", "CPU/event", "",
)  # fmt: skip


def document(made: Calibration) -> Document:
    columns = [Column(name, "left" if i in (0, len(HEAD) - 1) else "right") for i, name in enumerate(HEAD)]
    return [
        Heading(f"flatout {made.version}, calibration {made.name}"),
        Paragraph(machine(made), "dim"),
        Table(columns, [[Cell(text, _style(text)) for text in cells(point)] for point in made.points]),
        Paragraph(EXPLAINED, "dim"),
        Items([Item(sentence) for sentence in summary(made)]),
        *(Paragraph(note, term="note", term_style="yellow") for note in made.notes),
    ]


EXPLAINED: Final = (
    "Each figure as it was / as flatout read it, and the error. What was: the sender's own log of what it sent in the "
    "window, and when. "
    "Stamp: time stamp of an event minus the sender's clock just before it sent it. CPU: of the reading process."
)


def machine(made: Calibration) -> str:
    """What it was made on, in one line."""
    key = made.machine
    cores = f"reader on core {_cores(made.load_cores)}, sender on {_cores(made.rig_cores)}" if made.load_cores else ""
    load = f"load average {made.load_average[0]:.1f}" if made.load_average else ""
    facts = (key.cpu or key.architecture, f"{key.cores} cores", key.kernel, f"Python {key.python}", cores, load)
    return ", ".join(fact for fact in facts if fact)


def _cores(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))


def summary(made: Calibration) -> list[str]:
    """What follows from the points, a sentence each."""
    good = sum(point.trusted for point in made.points)
    clock = "the kernel's receive stamps" if made.clock == "kernel" else f"this process's clock ({made.clock_reason})"
    said = [f"{good} of {len(made.points)} known speeds were read rightly, with {clock}; {made.took_s:.0f} s."]
    if made.cpu_us_per_event is not None:
        said.append(f"Reading costs {made.cpu_us_per_event:.1f} µs of CPU an event (64 streams and more).")
    if made.max_events_s is not None:
        most = f"{made.max_events_s:,.0f} events/s"
        said.append(f"One reading process takes {_end(most, made.events_limit)} without changing the result.")
    if made.max_streams is not None:
        said.append(f"It can be trusted up to {_end(f'{made.max_streams:,} streams', made.streams_limit)}.")
    return said


def _end(most: str, limit: Limit) -> str:
    """A limit, and what it is worth."""
    if limit == "client":
        return f"{most} (more was read wrongly)"
    return (
        f"{most} and perhaps more (the sender could not send it)" if limit == "rig" else f"{most} (no more was tried)"
    )


def cells(point: Point) -> tuple[str, ...]:
    """One row's cells, in the order of HEAD."""
    total, ttft, itl, p99 = point.total_tok_s, point.ttft_p50_ms, point.itl_p50_ms, point.itl_p99_ms
    name = clean(point.name) + (" (2nd go)" if point.attempts > 1 else "")
    return (
        name,
        numbers.count(round(point.sent_events_s)),
        _both(numbers.rate(total.truth), numbers.rate(total.reading)),
        _share(total),
        _both(*(numbers.ms(value, fine=True, unit=False) for value in (ttft.truth, ttft.reading))),
        _ms(ttft),
        _both(*(numbers.ms(value, fine=True, unit=False) for value in (itl.truth, itl.reading))),
        _share(itl) if itl.truth and itl.truth > 0.1 else _ms(itl),
        _both(*(numbers.ms(value, fine=True, unit=False) for value in (p99.truth, p99.reading))),
        _share(p99) if p99.truth and p99.truth > 0.1 else _ms(p99),
        _us(point.stamp_p50_us),
        _us(point.stamp_p99_us),
        _us(point.cpu_us_per_event),
        _verdict(point),
    )


def _both(truth: str, reading: str) -> str:
    return f"{truth} / {reading}"


def _verdict(point: Point) -> str:
    if not point.trusted:
        return "not right"
    return "right; the rig fell short" if point.held_by == "rig" else "right"


def _style(cell: str) -> str:
    return "red" if cell == "not right" else "green" if cell == "right" else ""


def _share(pair: Pair) -> str:
    relative = pair.relative
    if relative is None:
        return numbers.NONE
    return "0" if relative == 0 else f"{relative * 100:+.2f} %" if abs(relative) >= 0.00005 else "±<0.01 %"


def _ms(pair: Pair) -> str:
    return numbers.NONE if pair.off is None else f"{pair.off:+.3f} ms"


def _us(value: float | None) -> str:
    return numbers.NONE if value is None else f"{value:,.0f} µs" if value >= 100 else f"{value:.1f} µs"
