"""The hardware's limit beside what was reached, as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.limits import CellReach, HardwareLimits, LimitReport, ModelShape
from flatout.show import about, numbers
from flatout.show.document import Cell, Column, Document, Heading, Item, Items, Paragraph, Table
from flatout.show.safe import clean

BINDING: Final = {"weights": "weights", "kv": "KV cache", "compute": "compute"}
KINDS: Final = {
    "full": "full attention",
    "sliding": "sliding window",
    "latent": "latent (MLA)",
    "linear": "linear state",
}
_MEASURED: Final = ("tok/s", "limit", "reached")
_MODELLED: Final = ("limit", "each", "GB/step")
_ACCEPTANCE: Final = "accept. ≥"


def head(report: LimitReport) -> tuple[str, str]:
    """(the model, the hardware), each on one clean line."""
    return _model(report.shape), _hardware(report.hardware, report.settings.tensor_parallel)


def _model(shape: ModelShape) -> str:
    parts = [f"{shape.params / 1e9:,.2f} B parameters"]
    if shape.active_params < shape.params * 0.9:
        parts.append(f"{shape.active_params / 1e9:,.2f} B active")
    parts.append(f"{shape.weight_bytes / 1e9:,.2f} GB of weights ({clean(shape.quantization, 60)})")
    parts.append("layers: " + ", ".join(f"{count} {KINDS[kind]}" for kind, count in shape.kinds().items()))
    if shape.kv_bytes_per_token:
        parts.append(f"{shape.kv_bytes_per_token / 1024:,.1f} KiB of KV cache a token")
    if shape.state_bytes_per_sequence:
        parts.append(f"{shape.state_bytes_per_sequence / 1e6:,.1f} MB of state a stream")
    return f"{clean(shape.name, 120)}: " + ", ".join(parts)


def _hardware(hardware: HardwareLimits, tensor_parallel: int) -> str:
    parts = [f"{hardware.bandwidth_gb_s:,.0f} GB/s"]
    parts += [f"{value:,.0f} TFLOP/s {name.upper()}" for name, value in hardware.tflops.items()]
    many = f"{tensor_parallel} × " if tensor_parallel > 1 else ""
    return f"{many}{clean(hardware.name, 80)}: {', '.join(parts)} ({clean(hardware.source, 300)})"


def _names(report: LimitReport) -> list[str]:
    """Columns after phase, context, at once."""
    measured = any(cell.point.status for cell in report.cells)
    names = [*(_MEASURED if measured else _MODELLED), "binds"]
    if any(cell.least_acceptance is not None and cell.least_acceptance > 1 for cell in report.cells) or any(
        cell.note for cell in report.cells
    ):
        names.append(_ACCEPTANCE)
    return names


def _values(cell: CellReach, names: Sequence[str]) -> list[str]:
    limit = cell.limit
    each = limit.per_request_tok_s if limit is not None and cell.point.phase != "prefill" else None
    step_gb = limit.bytes_per_step / 1e9 if limit is not None and cell.point.phase != "prefill" else None
    least = cell.least_acceptance
    found = {
        "tok/s": numbers.rate(cell.point.measured_tok_s),
        "limit": numbers.rate(cell.limit_tok_s),
        "reached": numbers.percent(cell.share),
        "each": numbers.rate(each),
        "GB/step": numbers.NONE if step_gb is None else f"{step_gb:,.2f}",
        "binds": numbers.NONE if cell.binding is None else BINDING[cell.binding],
        _ACCEPTANCE: f"{least:.2f}" if least is not None and least > 1 else numbers.NONE,
    }
    return [found[name] for name in names]


def _context(cell: CellReach) -> str:
    return clean(cell.point.context, 12) or numbers.context(cell.point.context_tokens)


def _rows(report: LimitReport) -> list[tuple[CellReach, list[str]]]:
    names = _names(report)
    ordered = [cell for phase in about.PHASES for cell in report.cells if cell.point.phase == phase]
    ordered += [cell for cell in report.cells if cell.point.phase not in about.PHASES]
    return [
        (cell, [clean(cell.point.phase, 20), _context(cell), f"{cell.point.concurrency:,}", *_values(cell, names)])
        for cell in ordered
    ]


def remarks(report: LimitReport) -> list[str]:
    """Sentences below the table: assumptions, then what single cells have to say, the same words said once."""
    said = [f"{text[:1].upper()}{text[1:]}." for text in map(clean, report.assumptions)]
    by_text: dict[str, list[str]] = {}
    for cell in report.cells:
        text = cell.note or (cell.reason if cell.reason != "not measured" else None)
        if text:
            by_text.setdefault(clean(text, 300), []).append(
                about.place(cell.point.phase, _context(cell), cell.point.concurrency)
            )
    return said + [f"{', '.join(cells)}: {text}." for text, cells in by_text.items()]


def document(report: LimitReport) -> Document:
    """Model, hardware, a row for every cell, remarks. What is above the limit is red."""
    names = _names(report)
    at = names.index("reached") if "reached" in names else -1
    rows: list[list[Cell | str]] = []
    for cell, texts in _rows(report):
        above = cell.share is not None and cell.share > 1
        rows.append([Cell(text, "red" if above and i == at + 3 else "") for i, text in enumerate(texts)])
    columns = [
        Column(n, "left" if n in ("phase", "binds") else "right") for n in ("phase", "context", "at once", *names)
    ]
    model, hardware = head(report)
    table = Table(columns, rows, keys=3)
    said = Items([Item(remark) for remark in remarks(report)])
    return [Heading("Limit of the hardware"), Paragraph(hardware), Paragraph(model), table, said]
