"""A table like llama-bench's, one row a test, for issues and forums where people know how to read that one."""

from __future__ import annotations

from flatout import metrics
from flatout.flags import Status
from flatout.limits.shape import ModelShape
from flatout.record import Cell, Record
from flatout.show import about, document, numbers
from flatout.show.document import Column, Paragraph, Table


def write(record: Record, shape: ModelShape | None = None) -> str:
    """Markdown: model, size and parameters (where the model's shape is given), backend, test, t/s.

    Tests are named as llama-bench names them: pp8192 (a prompt of so many tokens), tg128 @ d8192 (up to 128 tokens at
    that depth), x 4 for four streams (their sum). ± is the larger half of the 95 % interval. Every
    planned cell has its row.
    """
    size = [f"{shape.weight_bytes / 1024**3:,.2f} GiB", f"{shape.params / 1e9:,.2f} B"] if shape else []
    columns = [Column("model", "left"), *(Column(name) for name in ("size", "params")[: len(size)]),
               Column("backend", "left"), Column("test"), Column("t/s")]  # fmt: skip
    rows = [[_model(record), *size, _backend(record), _test(cell), _result(cell)] for cell in record.cells]
    build = f"build: {about.engine_name(record)} · {about.hardware_name(record)} · flatout {record.client.flatout}"
    note = "t/s of tests with x N is the sum over N streams; ± is the larger half of the 95 % interval."
    return document.markdown([Table(columns, rows, aligned=True), Paragraph(build), Paragraph(note)]) + "\n"


def _model(record: Record) -> str:
    return " ".join(part for part in (about.model_name(record), about.precision(record)) if part)


def _backend(record: Record) -> str:
    return about.known(record.engine.backend) or about.known(record.engine.name) or numbers.NONE


def _test(cell: Cell) -> str:
    tokens = str(cell.context_tokens) if cell.context_tokens is not None else about.context(cell)
    many = f" x {cell.concurrency}" if cell.concurrency > 1 else ""
    if cell.phase == "prefill":
        return f"pp{tokens}"
    if cell.phase == "burst":
        return f"pp{tokens}+tg{cell.max_output}{many}"
    return f"tg{cell.max_output} @ d{tokens}{many}"


def _result(cell: Cell) -> str:
    speed = metrics.read(cell, metrics.SPEED[cell.phase])
    if speed.number is None:
        return about.status_word(cell.status)
    text = f"{speed.number:.2f}"
    if speed.half is not None:
        text += f" ± {speed.half * speed.number:.2f}"
    return text if cell.status == Status.VALID else f"{text} ({about.status_word(cell.status)})"
