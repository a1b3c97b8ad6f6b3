"""The commands that read records and need no server: report, compare, lint, limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flatout.compare import Comparison
    from flatout.limits import HardwareLimits, LimitReport, ModelShape
    from flatout.record import Record
    from flatout.show.page import Limit

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1
STDOUT: Final = Path("-")
_FILES: Final = {"png": "matrix.png", "card": "card.png", "parquet": "cells.parquet"}
"""Forms that go to a file beside the record where no other is named."""


class ReadingError(Exception):
    """What was typed does not go together; the text says what to type instead."""


def report(
    path: Path,
    *,
    output: Path | None,
    made: Mapping[str, Any],
    model: Path | None,
    gpu: str | None,
    bandwidth: float | None,
    tflops: float | None,
) -> int:
    """`flatout report`: the page, or whichever other form `made` asks for. Raises RecordError, ReadingError."""
    from flatout import record as rec

    record, found = rec.read(path), rec.find(path)
    asked = [name for name, value in made.items() if value]
    if len(asked) > 1:
        raise ReadingError(f"one form at a time: --{' or --'.join(asked)}")
    form = asked[0] if asked else "page"
    if form == "format":
        form = str(made["format"])
    if form == "page":
        limits = _page_limits(record, model, gpu, bandwidth, tflops)
        if output == STDOUT:
            return _write(page_text(record, found.parent, limits), output)
        print(write_page(record, found.parent, output, limits))
        return EXIT_OK
    content = _content(record, form, model)
    default = found.with_name(_FILES[form]) if form in _FILES else STDOUT
    return _write(content, output or default)


def write_page(
    record: Record, directory: Path, output: Path | None = None, limits: Mapping[str, Limit] | None = None
) -> Path:
    """Writes the page of the record in `directory` (to `page.html` beside it, or to `output`) and returns where."""
    from flatout.run.store import write_beside

    path = output or directory / "page.html"
    write_beside(path, page_text(record, directory, limits).encode())
    return path


def page_text(record: Record, directory: Path, limits: Mapping[str, Limit] | None = None) -> str:
    from flatout.show.page import render

    return render(record, samples_dir=directory / "samples", limits=limits)


def _write(content: str | bytes, path: Path) -> int:
    """To a file, whose path is printed; `-` is the standard output."""
    from flatout.run.store import write_beside

    data = content.encode() if isinstance(content, str) else content
    if path != STDOUT:
        write_beside(path, data)
        print(path)
    elif isinstance(content, str):
        print(content, end="" if content.endswith("\n") else "\n")
    else:
        sys.stdout.buffer.write(data)
    return EXIT_OK


def _content(record: Record, form: str, model: Path | None) -> str | bytes:
    if form in ("png", "card"):
        from flatout.show.picture import png

        return png(record, size="card" if form == "card" else "full")
    if form == "llama-bench" and model is not None:
        from flatout.limits import model_shape
        from flatout.show.exports import llama_bench

        return llama_bench.write(record, model_shape(model))
    from flatout.show import exports

    return exports.write(record, form)


def _page_limits(
    record: Record, model: Path | None, gpu: str | None, bandwidth: float | None, tflops: float | None
) -> dict[str, Limit] | None:
    """Shares of the hardware's limit for the page, where a model is given."""
    if model is None:
        return None
    from flatout.limits import limits_of, model_shape
    from flatout.show.page import Limit

    found = limits_of(record, model_shape(model), _hardware(record, gpu, bandwidth, tflops))
    return {c.point.id: Limit(share=c.share, binds=c.binding or "") for c in found.cells if c.share is not None}


def _hardware(record: Record | None, gpu: str | None, bandwidth: float | None, tflops: float | None) -> HardwareLimits:
    from flatout.limits import hardware, hardware_of

    if gpu is None and bandwidth is None and record is not None:
        found = hardware_of(record)
        if found is not None:
            return found
        raise ReadingError(
            "the record names no GPU whose limits are known: give --gpu NAME, or --bandwidth and --tflops"
        )
    return hardware(gpu, bandwidth_gb_s=bandwidth, tflops=tflops)


def compare(
    paths: Sequence[Path], *, fail_if: Sequence[str], form: str, every: bool, output: Path | None = None
) -> int:
    """`flatout compare`: cell by cell with verdicts; exit code 1 if a condition of `--fail-if` is broken."""
    from flatout.compare import check, read_sides
    from flatout.compare import compare as compared
    from flatout.compare import fail_if as conditions_of

    conditions = [c for text in fail_if for c in conditions_of(text)]
    records, sides, names = read_sides(paths)
    comparison = compared(records, sides=sides, names=names)
    outcomes = check(comparison, conditions) if conditions else []
    if output is not None:
        from flatout.show.page import compared as page

        _write(page.render(comparison, outcomes), output)
    else:
        _print_comparison(comparison, outcomes, form, every)
    return EXIT_FOUND if any(outcome.failed for outcome in outcomes) else EXIT_OK


def _print_comparison(comparison: Comparison, outcomes: list[Any], form: str, every: bool) -> None:
    from flatout.show import comparison as shown
    from flatout.show import document

    if form == "json":
        print(json.dumps(shown.data(comparison, outcomes), indent=1))
        return
    document.put(shown.document(comparison, outcomes, every=every), md=form == "md")


def lint(
    path: Path, *, form: str, model: Path | None, gpu: str | None, bandwidth: float | None, tflops: float | None
) -> int:
    """`flatout lint`: what in a record or a published table does not agree with itself. Exit code 1 if anything."""
    from flatout.lint import lint as linted
    from flatout.lint import read
    from flatout.record import Record
    from flatout.show import document
    from flatout.show import findings as shown

    given = read(path)
    limits = None
    if model is not None:
        found = _limits(path, model, gpu, bandwidth, tflops, record=given if isinstance(given, Record) else None)
        limits = {c.point.id: c.limit_tok_s for c in found.cells if c.limit_tok_s is not None}
    found_list = linted(given, limits=limits)
    if form == "json":
        print(json.dumps(shown.data(found_list), indent=1))
    else:
        document.put(shown.document(found_list), md=form == "md")
    return EXIT_FOUND if found_list else EXIT_OK


def limits(
    path: Path | None,
    *,
    model: Path | None,
    gpu: str | None,
    bandwidth: float | None,
    tflops: float | None,
    weight_bits: float | None,
    contexts: str,
    concurrency: str,
    md: bool,
) -> int:
    """`flatout limits`: what the hardware allows at most, and which share of it was reached."""
    from flatout.limits import limits_for, model_shape
    from flatout.show import ceiling, document
    from flatout.suite import parse_concurrency, parse_contexts

    if model is None:
        raise ReadingError("give --model: a Hugging Face config.json, a GGUF file, or a directory with one of them")
    shape = model_shape(model, weight_bits=weight_bits)
    if path is not None:
        found = _limits(path, model, gpu, bandwidth, tflops, shape=shape)
    else:
        lengths = [c for c in parse_contexts(contexts) if isinstance(c, int)]
        found = limits_for(shape, _hardware(None, gpu, bandwidth, tflops), lengths, parse_concurrency(concurrency))
    document.put(ceiling.document(found), md=md)
    return EXIT_OK


def _limits(
    path: Path,
    model: Path,
    gpu: str | None,
    bandwidth: float | None,
    tflops: float | None,
    *,
    record: Record | None = None,
    shape: ModelShape | None = None,
) -> LimitReport:
    """Limits of a record, or of a published table (JSON)."""
    from flatout import record as rec
    from flatout.limits import limits_of, limits_of_page, model_shape

    shape = shape or model_shape(model)
    if record is None and path.is_file() and path.suffix == ".json":
        content = _json(path)
        if isinstance(content, dict) and "format" not in content and "cells" in content:
            told = content.get("hardware")
            name = gpu or (told.get("gpu") if isinstance(told, dict) else None)
            return limits_of_page(content, shape, _hardware(None, name, bandwidth, tflops))
    record = record or rec.read(path)
    return limits_of(record, shape, _hardware(record, gpu, bandwidth, tflops))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
