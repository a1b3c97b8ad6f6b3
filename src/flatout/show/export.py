"""A record as rows, one a planned cell: CSV, JSON and Parquet; and by name the formats of other tools.

What is not known is empty (null), never 0, and the figures of a cell whose status shows none are left out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from flatout.record import Cell, DecodeFigures, Distribution, Rate, Record
from flatout.show import about
from flatout.show.bencher import bencher
from flatout.show.github import github_summary
from flatout.show.llama_bench import llama_bench
from flatout.show.localmaxxing import localmaxxing, localmaxxing_missing
from flatout.show.safe import clean

__all__ = [
    "COLUMNS", "ExportError", "bencher", "csv_table", "csv_value", "github_summary", "json_rows", "json_text",
    "llama_bench", "localmaxxing", "localmaxxing_missing", "parquet", "rows",
]  # fmt: skip

Value = str | int | float | bool | None
_TEXT_LIMIT: Final = 4000
_FORMULA: Final = frozenset("=+-@＝＋－＠")
_QUOTE: Final = "'"


class ExportError(Exception):
    """The export cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name with the unit, its type, and its value of a cell that shows numbers (or of any cell,
    where `always`)."""

    name: str
    type: Literal["text", "int", "float", "bool"]
    value: Callable[[Record, Cell], Value]
    always: bool = False


def _main(cell: Cell) -> Rate | None:
    """The cell's rate: prefill tok/s, decode's total tok/s, or a burst's end-to-end tok/s."""
    if cell.prefill is not None:
        return cell.prefill.prefill_tok_s
    if cell.decode is not None:
        return cell.decode.total_tok_s
    return cell.burst.end_to_end_tok_s if cell.burst is not None else None


def _spread(cell: Cell, name: str) -> Distribution | None:
    for part in (cell.decode, cell.burst, cell.prefill):
        if part is not None:
            found = getattr(part, name, None)
            return found if isinstance(found, Distribution) else None
    return None


def _identity(name: str, value: Callable[[Record], Value]) -> Column:
    return Column(name, "text", lambda record, _: value(record), always=True)


def _plan(name: str, kind: Literal["text", "int"], value: Callable[[Cell], Value]) -> Column:
    return Column(name, kind, lambda _, cell: value(cell), always=True)


def _rate_part(name: str, part: str, kind: Literal["text", "int", "float"] = "float") -> Column:
    return Column(name, kind, lambda _, cell: getattr(_main(cell), part, None))


def _spread_part(name: str, spread: str, part: str, kind: Literal["text", "int", "float"] = "float") -> Column:
    return Column(name, kind, lambda _, cell: getattr(_spread(cell, spread), part, None))


def _percentile(name: str, part: str) -> tuple[Column, Column, Column]:
    """A percentile and the ends of its 95 % interval."""
    return (
        _spread_part(f"{name}_{part}", name, part),
        _spread_part(f"{name}_{part}_low", name, f"{part}_low"),
        _spread_part(f"{name}_{part}_high", name, f"{part}_high"),
    )


def _decode(name: str, kind: Literal["text", "int", "float", "bool"], of: Callable[[DecodeFigures], Value]) -> Column:
    return Column(name, kind, lambda _, cell: of(cell.decode) if cell.decode is not None else None)


def _of(name: str, kind: Literal["text", "int", "float"], part: str, inner: str) -> Column:
    return Column(name, kind, lambda _, cell: getattr(getattr(cell, part), inner, None))


def _either(name: str, kind: Literal["int", "float"], of: str) -> Column:
    return Column(name, kind, lambda _, cell: getattr(cell.decode or cell.burst, of, None))


def _measured_s(_: Record, cell: Cell) -> Value:
    if cell.burst is not None:
        return cell.burst.duration_s
    return cell.window.length_s if cell.window is not None else None


def _completed(_: Record, cell: Cell) -> Value:
    if cell.prefill is not None:
        return sum(sample.used for sample in cell.prefill.samples) if cell.prefill.samples else None
    return getattr(cell.decode or cell.burst, "completed", None)


COLUMNS: Final[tuple[Column, ...]] = (
    _identity("run", lambda r: r.id),
    _identity("started", lambda r: r.started),
    _identity("model", about.model_name),
    _identity("engine", lambda r: about.known(r.engine.name)),
    _identity("engine_version", lambda r: about.known(r.engine.version)),
    _identity("quantization", about.precision),
    _identity("hardware", about.hardware_name),
    _identity("suite", lambda r: r.plan.suite),
    _plan("cell", "text", lambda c: c.id),
    _plan("phase", "text", lambda c: c.phase),
    _plan("context", "text", lambda c: c.context),
    _plan("context_tokens", "int", lambda c: c.context_tokens),
    _plan("concurrency", "int", lambda c: c.concurrency),
    _plan("max_output_tokens", "int", lambda c: c.max_output),
    _plan("need_tokens", "int", lambda c: c.need_tokens),
    _plan("status", "text", lambda c: c.status),
    _plan("flags", "text", lambda c: " ".join(dict.fromkeys(flag.name for flag in c.flags)) or None),
    _plan("reason", "text", lambda c: c.reason),
    _plan("error", "text", lambda c: c.error),
    _rate_part("total_tok_s", "value"),
    _rate_part("total_low_tok_s", "low"),
    _rate_part("total_high_tok_s", "high"),
    _rate_part("interval", "interval", "text"),
    _rate_part("interval_n", "n", "int"),
    *_percentile("per_request_tok_s", "p50"),
    *_percentile("ttft_ms", "p50"),
    *_percentile("ttft_ms", "p90"),
    *_percentile("ttft_ms", "p99"),
    _spread_part("ttft_ms_max", "ttft_ms", "max"),
    _spread_part("ttft_n", "ttft_ms", "n", "int"),
    _spread_part("ttft_whose", "ttft_ms", "whose", "text"),
    _decode("cold_ttft_ms", "float", lambda d: d.cold_ttft_ms),
    _spread_part("ttft_answer_ms_p50", "ttft_answer_ms", "p50"),
    *_percentile("tpot_ms", "p50"),
    *_percentile("tpot_ms", "p90"),
    *_percentile("tpot_ms", "p99"),
    *_percentile("itl_ms", "p50"),
    *_percentile("itl_ms", "p90"),
    *_percentile("itl_ms", "p99"),
    _either("longest_gap_ms", "float", "longest_gap_ms"),
    _decode("longest_gap_open", "bool", lambda d: None if d.longest_gap_ms is None else d.longest_gap_open),
    _decode("connect_ms", "float", lambda d: d.connect_ms),
    _decode("active_client_mean", "float", lambda d: d.active_own_mean),
    _decode("active_server_mean", "float", lambda d: d.active_server_mean),
    _decode("waiting_server_mean", "float", lambda d: d.waiting_server_mean),
    _decode("kv_use_max", "float", lambda d: d.kv_use_max),
    Column("completed", "int", _completed),
    _either("failed_requests", "int", "failed_requests"),
    _either("rate_limited", "int", "rate_limited"),
    _either("output_tokens", "float", "output_tokens"),
    Column("measured_s", "float", _measured_s),
    _decode("mean_depth_tokens", "float", lambda d: d.mean_depth_tokens),
    Column("prompt_tokens", "int", lambda _, c: c.prefill.prompt_tokens if c.prefill is not None else None),
    _decode("prompt_tokens_min", "int", lambda d: d.prompt_tokens_min),
    _decode("prompt_tokens_max", "int", lambda d: d.prompt_tokens_max),
    _decode("cached_tokens_mean", "float", lambda d: d.cached_tokens_mean),
    _decode("asked_tokens_mean", "float", lambda d: d.asked_tokens_mean),
    _decode("output_tokens_mean", "float", lambda d: d.output_tokens_mean),
    _decode("acceptance_length", "float", lambda d: d.acceptance.length if d.acceptance is not None else None),
    _decode("acceptance_how", "text", lambda d: d.acceptance.how if d.acceptance is not None else None),
    _decode("draft_share", "float", lambda d: d.acceptance.draft_share if d.acceptance is not None else None),
    _decode("preemptions", "float", lambda d: d.preemptions),
    _decode("streams_started", "int", lambda d: d.streams_started),
    _decode("looping_share", "float", lambda d: d.looping_share),
    _decode("drift_change", "float", lambda d: d.drift_change),
    _of("token_source", "text", "tokens", "source"),
    _of("tokens_estimated_share", "float", "tokens", "estimated_share"),
    _of("reasoning_unstreamed_tokens", "int", "tokens", "reasoning_unstreamed"),
    _of("steady_after_s", "float", "window", "steady_after_s"),
    _of("window_ended_by", "text", "window", "ended_by"),
    _of("client_clock", "text", "self_check", "clock"),
    _of("client_lag_ms_p99", "float", "self_check", "lag_p99_ms"),
    _of("client_cpu_share", "float", "self_check", "cpu_share"),
    _of("energy_j", "float", "telemetry", "energy_j"),
    _plan("cell_started", "text", lambda c: c.started),
    _plan("cell_finished", "text", lambda c: c.finished),
    _plan("order", "int", lambda c: c.order),
    _plan("attempts_redone", "int", lambda c: len(c.attempts)),
)  # fmt: skip


def rows(record: Record) -> list[dict[str, Value]]:
    """Every planned cell with all columns, in the plan's order; texts are clean, what is not known is None."""
    return [_row(record, cell) for cell in record.cells]


def _row(record: Record, cell: Cell) -> dict[str, Value]:
    shown = about.measured(cell)
    found: dict[str, Value] = {}
    for column in COLUMNS:
        value = column.value(record, cell) if shown or column.always else None
        if value is not None and column.type == "text":
            value = clean(value, _TEXT_LIMIT)
        elif value is not None and column.type == "float":
            value = float(value)
        found[column.name] = value
    return found


def csv_table(record: Record) -> str:
    """The rows as CSV (RFC 4180, lines end in LF), numbers in full precision. A text that a spreadsheet would take for
    a formula begins with an apostrophe (as does one that has one of its own), so that it stays text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in COLUMNS])
    for row in rows(record):
        writer.writerow([_csv(value) for value in row.values()])
    return out.getvalue()


def _csv(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _QUOTE + value if value[:1] in _FORMULA or value[:1] == _QUOTE else value
    return repr(value)


def csv_value(name: str, text: str) -> Value:
    """What one field of `csv_table` stood for: the way back. Raises ValueError for a number that is none."""
    kind = next(column.type for column in COLUMNS if column.name == name)
    if text == "":
        return None
    if kind == "text":
        return text[1:] if text[0] == _QUOTE else text
    if kind == "bool":
        return text == "true"
    return int(text) if kind == "int" else float(text)


def json_rows(record: Record) -> list[dict[str, Value]]:
    """The rows for JSON: the same columns, null for what is not known."""
    return rows(record)


def json_text(content: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> str:
    """JSON text of an export, ending in a newline; nothing in it ends a script element of a page it is put into."""
    plain = dict(content) if isinstance(content, Mapping) else list(content)
    made = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
    return made.replace("</", "<\\/") + "\n"


def parquet(record: Record) -> bytes:
    """The rows as a Parquet file with one type a column. Raises ExportError: pyarrow is missing, or a number in the
    record does not fit 64 bits."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow: pip install 'flatout[parquet]', or write CSV (--csv)") from error
    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(column.name, types[column.type]) for column in COLUMNS])
    found = rows(record)
    try:
        table = pa.Table.from_pylist(found, schema=schema)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise ExportError(f"a number in the record does not fit a Parquet column ({str(error)[:120]})") from error
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"flatout": "cells/1", "run": clean(record.id)}), out)
    return out.getvalue()
