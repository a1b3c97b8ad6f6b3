"""The preview for people: what others will read, what was taken out, how much, where to and as whom."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.publish.preview import Preview, removed
from flatout.record import Fact, Record
from flatout.show import about, numbers
from flatout.show.safe import HARD_SPACE, clean

_LONGEST = 300


def preview_text(made: Preview, samples: tuple[int, int] | None, url: str, name: str | None) -> str:
    """The whole preview. `samples`: number of files and bytes of their zip; `name`: whose token it is, None: not
    asked."""
    lines = ["Others will read:"]
    width = max(len(label) for label, _ in read_by_others(made.record))
    lines += [f"  {label:<{width}}  {text}" for label, text in read_by_others(made.record)]
    also = f", and {samples[0]} files of samples ({numbers.size(samples[1])})" if samples else ""
    lines += [
        "",
        removed(made.changes),
        f"Sent: the record, {len(made.to_send):,} bytes of JSON{also}",
        f"To:   {clean(url, 200)}",
    ]
    if name is not None:
        lines.append(f"As:   {clean(name, 60)}")
    return "\n".join(lines) + "\n"


def read_by_others(record: Record) -> list[tuple[str, str]]:
    """What of a record tells who and where, in full words; the figures are counted, not listed."""
    return [(label, text.replace(HARD_SPACE, " ")) for label, text in _parts(record) if text]


def _parts(record: Record) -> Iterator[tuple[str, str]]:
    yield "run", f"{about.title(record)} · {about.subtitle(record)}"
    yield "cells", about.verdict(record)
    yield "ended", about.ending(record) or ""
    yield "launched by", _fact(record.engine.launch_command)
    yield "command", clean(" ".join(record.client.command), _LONGEST)
    yield "asked at", clean(record.protocol.url, _LONGEST)
    yield "hardware", _facts(record.hardware.facts)
    same = record.client.machine == record.hardware.facts
    yield "client", "the same machine" if same else _facts(record.client.machine)
    yield "note", clean(record.note or "", _LONGEST)
    for number, warning in enumerate(record.warnings[:5]):
        yield "" if number else "warnings", clean(warning, _LONGEST)
    errors = list(dict.fromkeys(cell.error for cell in record.cells if cell.error))
    for number, error in enumerate(errors[:5]):
        yield "" if number else "errors", clean(error, _LONGEST)


def _fact(fact: Fact) -> str:
    return "" if fact.value is None else clean(fact.value, _LONGEST)


def _facts(facts: dict[str, Fact]) -> str:
    return clean(", ".join(f"{name} {fact.value}" for name, fact in facts.items() if fact.value is not None), 600)
