"""All measurements as rows: one definition of every column, for the table in the page and for its CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flatout.record import Cell, Distribution, Record
from flatout.show import about, numbers
from flatout.show.page import values
from flatout.show.page.cells import PHASES, energy_j
from flatout.show.safe import clean

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `name`: in files, with its unit; `head`: in the page; `get`: the record's own value; `text`: as
    shown; `why`: the reason where it is missing. `always`: in the page even where no cell has it."""

    name: str
    head: str
    get: Callable[[Cell], Value]
    text: Callable[[Value], str]
    why: Callable[[Cell], str | None] = lambda cell: None
    always: bool = True


def _number(form: Callable[[float | None], str]) -> Callable[[Value], str]:
    return lambda value: form(None if isinstance(value, str) else value)


def _word(value: Value) -> str:
    return numbers.NONE if value in (None, "") else str(value)


_RATE: Final = _number(values.rate)
_MS: Final = _number(values.ms)
_FINE: Final = _number(lambda value: values.ms(value, fine=True))
_COUNT: Final = _number(values.count)
_OUTPUT: Final = _number(lambda value: values.count(None if value is None else round(value)))
_MEAN: Final = _number(values.mean)
_SECONDS: Final = _number(values.seconds)
_PERCENT: Final = _number(values.percent)
_JOULE: Final = _number(values.joule)
_LENGTH: Final = _number(lambda value: values.short(f"{value:.2f}") if value is not None else numbers.NONE)


def _figure(cell: Cell, decode: str, burst: str | None = None, prefill: str | None = None) -> Value:
    """A field of the cell's figures by its path (`ttft_ms.p50`), for whichever phase it has; None if not measured."""
    if not about.measured(cell):
        return None
    for figures, path in ((cell.decode, decode), (cell.burst, burst), (cell.prefill, prefill)):
        if figures is not None:
            found: object = figures if path else None
            for part in path.split(".") if path else ():
                found = getattr(found, part, None)
            return found if isinstance(found, str | int | float) else None
    return None


def _of(decode: str, burst: str | None = None, prefill: str | None = None) -> Callable[[Cell], Value]:
    return lambda cell: _figure(cell, decode, burst, prefill)


def _reason(field: str, which: str = "p50") -> Callable[[Cell], str | None]:
    """Why a figure is missing: the distribution's own reason, the rate's, or that of the cell."""

    def look(cell: Cell) -> str | None:
        if not about.measured(cell):
            return cell.reason or about.status_sentence(cell.status)
        figures = cell.decode or cell.burst or cell.prefill
        found = getattr(figures, field, None)
        if isinstance(found, Distribution):
            return values.why(found.reasons, which)
        reason = getattr(found, "reason", None)
        if isinstance(reason, str):
            return reason
        if cell.decode is not None and field in cell.decode.reasons:
            return cell.decode.reasons[field]
        return "a prefill cell has no such figure" if cell.phase == "prefill" else None

    return look


def _interval(cell: Cell) -> Value:
    """Half the 95 % interval over the value."""
    if not about.measured(cell):
        return None
    rate = (
        cell.decode.total_tok_s if cell.decode is not None
        else cell.burst.end_to_end_tok_s if cell.burst is not None
        else cell.prefill.prefill_tok_s if cell.prefill is not None
        else None
    )  # fmt: skip
    if rate is None or rate.value is None or rate.low is None or rate.high is None or rate.value <= 0:
        return None
    return values.drawable(max(rate.high - rate.value, rate.value - rate.low, 0.0) / rate.value)


def _spread(value: Value) -> str:
    if value is None or isinstance(value, str):
        return numbers.NONE
    return numbers.interval(1.0, 1.0 - value, 1.0 + value)


def _completed(cell: Cell) -> Value:
    if cell.prefill is not None and about.measured(cell):
        return sum(sample.used for sample in cell.prefill.samples) or None
    return _figure(cell, "completed", "completed")


def _measured_s(cell: Cell) -> Value:
    if not about.measured(cell):
        return None
    if cell.burst is not None:
        return cell.burst.duration_s
    return cell.window.length_s if cell.window is not None else None


def _flags(cell: Cell) -> Value:
    return " ".join(clean(flag.name, 40) for flag in cell.flags)


def _acceptance(cell: Cell) -> Value:
    if cell.decode is None or cell.decode.acceptance is None or not about.measured(cell):
        return None
    return cell.decode.acceptance.length


def _energy(cell: Cell) -> Value:
    return energy_j(cell) if about.measured(cell) else None


_KEYS: Final = (
    Column("phase", "Phase", lambda c: c.phase, lambda v: PHASES.get(str(v), str(v))),
    Column("context", "Context", about.context, _word),
    Column("concurrency", "Requests at once", lambda c: c.concurrency, _COUNT),
    Column("status", "Status", lambda c: clean(c.status, 40), lambda v: about.status_word(str(v)).capitalize()),
)
_SEED: Final = (
    Column("total_tok_s", "Total tok/s",
           _of("total_tok_s.value", "end_to_end_tok_s.value", "prefill_tok_s.value"), _RATE, _reason("total_tok_s")),
    Column("total_tok_s_interval", "± 95 %", _interval, _spread, _reason("total_tok_s")),
    Column("per_request_tok_s", "Per request tok/s",
           _of("per_request_tok_s.p50", "per_request_tok_s.p50"), _RATE, _reason("per_request_tok_s")),
    Column("ttft_p50_ms", "TTFT", _of("ttft_ms.p50", "ttft_ms.p50", "ttft_ms.p50"), _MS, _reason("ttft_ms")),
    Column("itl_p50_ms", "Time between tokens", _of("itl_ms.p50", "itl_ms.p50"), _FINE, _reason("itl_ms")),
    Column("active_own_mean", "Average active, client", _of("active_own_mean"), _MEAN, _reason("active_own_mean")),
    Column("active_server_mean", "Average active, server", _of("active_server_mean"), _MEAN,
           _reason("active_server_mean")),
    Column("completed", "Completed requests", _completed, _COUNT, _reason("completed")),
    Column("output_tokens", "Output tokens", _of("output_tokens", "output_tokens"), _OUTPUT, _reason("output_tokens")),
    Column("measured_s", "Measured for", _measured_s, _SECONDS, _reason("window")),
)  # fmt: skip
"""The columns that published pages have, in their order; average active in two, and the interval beside its rate."""
_OURS: Final = (
    Column("flags", "Flags", _flags, lambda v: _word(v).replace("_", " "), lambda _: "no flag"),
    Column("ttft_cold_ms", "TTFT cold", _of("cold_ttft_ms", None, "ttft_ms.p50"), _MS, _reason("cold_ttft_ms"), False),
    Column("ttft_p99_ms", "TTFT p99", _of("ttft_ms.p99", "ttft_ms.p99", "ttft_ms.p99"), _MS, _reason("ttft_ms", "p99")),
    Column("tpot_p50_ms", "TPOT", _of("tpot_ms.p50", "tpot_ms.p50"), _FINE, _reason("tpot_ms"), False),
    Column("itl_p90_ms", "ITL p90", _of("itl_ms.p90", "itl_ms.p90"), _FINE, _reason("itl_ms", "p90"), False),
    Column("itl_p99_ms", "ITL p99", _of("itl_ms.p99", "itl_ms.p99"), _FINE, _reason("itl_ms", "p99")),
    Column("longest_gap_ms", "Longest gap", _of("longest_gap_ms", "longest_gap_ms"), _MS, _reason("longest_gap_ms"),
           False),
    Column("waiting_server_mean", "Average waiting", _of("waiting_server_mean"), _MEAN, _reason("waiting_server_mean"),
           False),
    Column("failed_requests", "Failed requests", _of("failed_requests", "failed_requests"), _COUNT,
           _reason("failed_requests"), False),
    Column("mean_depth_tokens", "Mean depth", _of("mean_depth_tokens"), _OUTPUT, _reason("mean_depth_tokens"), False),
    Column("kv_use_max", "KV in use", _of("kv_use_max"), _PERCENT, _reason("kv_use_max"), False),
    Column("acceptance_length", "Acceptance length", _acceptance, _LENGTH, _reason("acceptance"), False),
    Column("energy_per_token_j", "Energy per token", _energy, _JOULE, _reason("energy"), False),
    Column("token_source", "Tokens counted by",
           lambda c: clean(c.tokens.source, 60) if c.tokens and c.tokens.source else None, _word,
           _reason("tokens"), False),
)  # fmt: skip
_FILES_ONLY: Final = (
    Column("id", "", lambda c: clean(c.id, 60), _word),
    Column("context_tokens", "", lambda c: c.context_tokens, _COUNT),
    Column("total_tok_s_low", "", _of("total_tok_s.low", "end_to_end_tok_s.low", "prefill_tok_s.low"), _RATE),
    Column("total_tok_s_high", "", _of("total_tok_s.high", "end_to_end_tok_s.high", "prefill_tok_s.high"), _RATE),
    Column("need_tokens", "", lambda c: c.need_tokens, _COUNT),
    Column("started", "", lambda c: clean(c.started, 40) if c.started else None, _word),
    Column("reason", "", lambda c: clean(c.reason, 500) if c.reason else None, _word),
    Column("error", "", lambda c: clean(c.error, 500) if c.error else None, _word),
)
IN_PAGE: Final[Sequence[Column]] = (*_KEYS, *_SEED, *_OURS)
IN_FILES: Final[Sequence[Column]] = (*IN_PAGE, *_FILES_ONLY)


def columns(cells: Sequence[Cell]) -> list[Column]:
    """The columns that the page shows for these cells."""
    return [c for c in IN_PAGE if c.always or any(c.get(cell) not in (None, 0) for cell in cells)]


def table(cells: Sequence[Cell]) -> list[dict[str, Value]]:
    """Every cell with the record's own values, in full precision; null where there is none."""
    return [{column.name: column.get(cell) for column in IN_FILES} for cell in cells]


def to_csv(cells: Sequence[Cell]) -> str:
    """The table as CSV (RFC 4180). A text that a spreadsheet would take for a formula begins with an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow([column.name for column in IN_FILES])
    for row in table(cells):
        writer.writerow([_guarded(value) for value in row.values()])
    return buffer.getvalue()


def _guarded(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def to_json(record: Record, cells: Sequence[Cell], identity: Mapping[str, str | None]) -> str:
    """The table as JSON, with what it was measured on."""
    content = {"format": "flatout-table/1", "id": clean(record.id, 120), **identity, "cells": table(cells)}
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=str)
