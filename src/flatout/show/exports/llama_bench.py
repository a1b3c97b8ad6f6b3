"""A table like llama-bench's, one row a test, for issues and forums where people know how to read that one."""

from __future__ import annotations

from flatout import metrics
from flatout.flags import Status
from flatout.limits.shape import ModelShape
from flatout.record import Cell, Record
from flatout.show import about, numbers
from flatout.show.markdown import escape


def write(record: Record, shape: ModelShape | None = None) -> str:
    """Markdown: model, size and parameters (where the model's shape is given), backend, test, t/s.

    Tests are named as llama-bench names them: pp8192 (a prompt of so many tokens), tg128 @ d8192 (up to 128 tokens at
    that depth), x 4 for four streams (their sum). ± is the larger half of the 95 % interval. Every
    planned cell has its row.
    """
    head = ["model", *(["size", "params"] if shape else []), "backend", "test", "t/s"]
    left = {"model", "backend"}
    fixed = [escape(_model(record), 120), *(_size(shape) if shape else []), escape(_backend(record), 60)]
    table = [[*fixed, _test(cell), _result(cell)] for cell in record.cells]
    wide = [max(len(row[i]) for row in [head, *table]) for i in range(len(head))]
    lines = [_line([_cell(name, wide[i], name in left) for i, name in enumerate(head)])]
    lines.append(_line(["-" * wide[i] if name in left else "-" * (wide[i] - 1) + ":" for i, name in enumerate(head)]))
    for row in table:
        lines.append(_line([_cell(text, wide[i], head[i] in left) for i, text in enumerate(row)]))
    build = f"{about.engine_name(record)} · {about.hardware_name(record)} · flatout {record.client.flatout}"
    note = "t/s of tests with x N is the sum over N streams; ± is the larger half of the 95 % interval."
    return "\n".join(lines) + f"\n\nbuild: {escape(build, 400)}\n\n{note}\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str, wide: int, left: bool) -> str:
    return text.ljust(wide) if left else text.rjust(wide)


def _model(record: Record) -> str:
    return " ".join(part for part in (about.model_name(record), about.precision(record)) if part)


def _size(shape: ModelShape) -> list[str]:
    return [f"{shape.weight_bytes / 1024**3:,.2f} GiB", f"{shape.params / 1e9:,.2f} B"]


def _backend(record: Record) -> str:
    return about.known(record.engine.backend) or about.known(record.engine.name) or numbers.NONE


def _test(cell: Cell) -> str:
    tokens = str(cell.context_tokens) if cell.context_tokens is not None else escape(about.context(cell))
    many = f" x {cell.concurrency}" if cell.concurrency > 1 else ""
    if cell.phase == "prefill":
        return f"pp{tokens}"
    if cell.phase == "burst":
        return f"pp{tokens}+tg{cell.max_output}{many}"
    return f"tg{cell.max_output} @ d{tokens}{many}"


def _result(cell: Cell) -> str:
    speed = metrics.read(cell, metrics.SPEED[cell.phase])
    if speed.number is None:
        return escape(about.status_word(cell.status))
    text = f"{speed.number:.2f}"
    if speed.half is not None:
        text += f" ± {speed.half * speed.number:.2f}"
    return text if cell.status == Status.VALID else f"{text} ({escape(about.status_word(cell.status))})"
