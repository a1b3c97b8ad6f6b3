"""One shape for what can be checked: a record's cells, or the rows of a published table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flatout.flags import MEASURED
from flatout.lint.finding import Finding
from flatout.record import Cell, Record

K = 1024
MOST = 10**15
"""Counts are cut here: nothing that large was ever measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell. None: not known. `halves`: half a step of the last digit shown, by field; 0 where a value is exact.

    `rate_tok_s`: total tok/s of decode rows, prompt tok/s of prefill rows. `active`: window mean of what ran on the
    server. `answer_tokens`: tokens of a whole answer; the most that was asked for where the mean is not known.
    `flags`: what the record itself says.
    """

    id: str
    name: str
    phase: str
    label: str
    tokens: int | None
    concurrency: int
    status: str
    rate_tok_s: float | None = None
    low_tok_s: float | None = None
    high_tok_s: float | None = None
    per_request_tok_s: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    tpot_ms: float | None = None
    active: float | None = None
    completed: float | None = None
    failed: float | None = None
    output_tokens: float | None = None
    window_s: float | None = None
    prompt_tokens: tuple[int, int] | None = None
    cached_tokens: float | None = None
    cold_ttft_ms: float | None = None
    max_output: float | None = None
    answer_tokens: float | None = None
    flags: frozenset[str] = frozenset()
    halves: Mapping[str, float] = field(default_factory=dict)

    def half(self, name: str) -> float:
        return self.halves.get(name, 0.0)

    @property
    def measured(self) -> bool:
        return self.status in MEASURED


@dataclass(frozen=True, slots=True)
class Sheet:
    """`source`: a record tells more and rounds nothing, so it is held to more. `max_running`: requests that the server
    runs at once. `findings`: what reading already found."""

    source: Literal["record", "table"]
    rows: tuple[Row, ...]
    max_running: int | None = None
    findings: tuple[Finding, ...] = ()


def cell_name(phase: str, label: str, concurrency: int) -> str:
    """`8K × 4`, `prefill 8K`, `burst 8K × 4`."""
    if phase == "prefill":
        return f"prefill {label[:20]}"
    return ("burst " if phase == "burst" else "") + f"{label[:20]} × {concurrency}"


def cell_id(phase: str, tokens: int | None, label: str, concurrency: int) -> str:
    """A cell's id as in a record: `d/8192/4`, `p/8192`."""
    context = tokens if tokens is not None else label[:20]
    return f"p/{context}" if phase == "prefill" else f"{phase[:1]}/{context}/{concurrency}"


def whole(value: float) -> int:
    """A whole number, with no more than what arithmetic can take."""
    return max(-MOST, min(MOST, round(value)))


def of_record(record: Record) -> Sheet:
    limit = record.room.max_running.value
    running = limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else None
    return Sheet("record", tuple(map(_row, record.cells)), running)


def _known(value: float | None) -> float | None:
    return None if value is None else value if isinstance(value, float) else float(whole(value))


def _row(cell: Cell) -> Row:
    label = cell.context or str(cell.context_tokens)
    tokens = None if cell.context_tokens is None else whole(cell.context_tokens)
    concurrency = whole(cell.concurrency)
    name = cell_name(cell.phase, label, concurrency)
    flags = frozenset(flag.name for flag in cell.flags)
    d, p = cell.decode, cell.prefill
    if cell.phase == "decode" and d is not None:
        prompts = None
        if d.prompt_tokens_min is not None and d.prompt_tokens_max is not None:
            prompts = (whole(d.prompt_tokens_min), whole(d.prompt_tokens_max))
        return Row(
            cell.id, name, cell.phase, label, tokens, concurrency, cell.status, d.total_tok_s.value,
            d.total_tok_s.low, d.total_tok_s.high, d.per_request_tok_s.p50, d.ttft_ms.p50, None, d.tpot_ms.p50,
            d.active_server_mean, _known(d.completed), _known(d.failed_requests), d.output_tokens,
            cell.window.length_s if cell.window is not None else None, prompts, d.cached_tokens_mean, d.cold_ttft_ms,
            float(whole(cell.max_output)), d.output_tokens_mean, flags,
        )  # fmt: skip
    if cell.phase == "prefill" and p is not None:
        asked = None if p.prompt_tokens is None else (whole(p.prompt_tokens), whole(p.prompt_tokens))
        return Row(
            cell.id, name, cell.phase, label, tokens, 1, cell.status, p.prefill_tok_s.value,
            p.prefill_tok_s.low, p.prefill_tok_s.high, None, p.ttft_ms.p50, completed=float(whole(p.ttft_ms.n)),
            prompt_tokens=asked, flags=flags,
        )  # fmt: skip
    return Row(cell.id, name, cell.phase, label, tokens, concurrency, cell.status, flags=flags)
