"""The commands that read results and need no server: show, report, compare, lint, limits."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flatout.cli.options import EXIT_OK, STDOUT, Json, Markdown, Plain, UseError, command, flag, option
from flatout.show import exports

if TYPE_CHECKING:
    from flatout.limits import HardwareLimits, LimitReport, ModelShape
    from flatout.record import Record
    from flatout.show.page import Limit

EXIT_FOUND: Final = 1
_FILES: Final = {"png": "matrix.png", "card": "card.png", "parquet": "cells.parquet"}
"""Forms that go to a file beside the record where no other is named."""

_HARDWARE: Final = "The hardware's limit"
Result = Annotated[Path, typer.Argument(help="A record, or a result directory.")]
Output = Annotated[Path | None, option("File to write, - for the standard output.", "FILE", "--output", "-o")]
Model = Annotated[
    Path | None, option("config.json, GGUF file, or a directory with one, for the hardware's limit.", panel=_HARDWARE)
]
Gpu = Annotated[str | None, option("The GPU's name, if not the record's own.", panel=_HARDWARE)]
Bandwidth = Annotated[float | None, option("Memory bandwidth in GB/s.", min=0.1, panel=_HARDWARE)]
Tflops = Annotated[float | None, option("Peak in 10^12 dense 16-bit operations/s.", min=0.01, panel=_HARDWARE)]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What was typed about the hardware's limit."""

    model: Path | None
    gpu: str | None
    bandwidth: float | None
    tflops: float | None
    weight_bits: float | None = None

    def shape(self) -> ModelShape:
        from flatout.limits import model_shape

        if self.model is None:
            raise UseError("give --model: a Hugging Face config.json, a GGUF file, or a directory with one of them")
        return model_shape(self.model, weight_bits=self.weight_bits)

    def hardware(self, record: Record | None = None, gpu: str | None = None) -> HardwareLimits:
        """Of the card that was typed, else of the record's or `gpu`. Raises UseError where there is neither."""
        from flatout.limits import hardware, hardware_of

        if self.gpu is None and self.bandwidth is None and record is not None:
            known = hardware_of(record)
            if known is None:
                raise UseError(
                    "the record names no GPU whose limits are known: give --gpu NAME, or --bandwidth and --tflops"
                )
            return known
        return hardware(self.gpu or gpu, bandwidth_gb_s=self.bandwidth, tflops=self.tflops)

    def of_record(self, record: Record) -> LimitReport:
        from flatout.limits import limits_of

        return limits_of(record, self.shape(), self.hardware(record))

    def of_file(self, path: Path) -> LimitReport:
        """Limits of a record, or of a published table (JSON)."""
        from flatout import record as rec
        from flatout.limits import limits_of_page

        table = _json(path) if path.is_file() and path.suffix == ".json" else None
        if isinstance(table, dict) and "format" not in table and "cells" in table:
            named = table.get("hardware")
            gpu = named.get("gpu") if isinstance(named, dict) else None
            return limits_of_page(table, self.shape(), self.hardware(gpu=gpu))
        return self.of_record(rec.read(path))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None


# --- show and report ------------------------------------------------------------------------------------------------


@command
def show(
    record: Result,
    md: Markdown = False,
    json_output: Annotated[bool, flag("The summary as JSON.", "--json")] = False,
    plain: Plain = False,
    wide: Annotated[bool, flag("All measurements, one row each.", "--all")] = False,
) -> int:
    """Show a record's tables again."""
    from flatout import record as rec

    content, path = rec.read(record), rec.find(record)
    if json_output:
        print_summary(content, path)
    elif md:
        from flatout.show.exports import md as markdown

        print(markdown.write(content))
    else:
        print_tables(content, path, plain=plain, wide=wide)
    return EXIT_OK


def print_summary(record: Record, path: Path) -> None:
    from flatout.show.summary import summary

    print(json.dumps(summary(record, path), indent=1))


def print_tables(record: Record, path: Path, *, plain: bool, wide: bool) -> None:
    from flatout.show import document, result

    document.put(result.result(record, path=path, wide=wide), plain=plain)


@command
def report(
    record: Result,
    output: Output = None,
    png: Annotated[bool, flag("The matrix as a picture.", "--png")] = False,
    card: Annotated[bool, flag("The matrix as a picture of 1200 x 630, for posts.", "--card")] = False,
    md: Annotated[bool, flag("Tables in Markdown.", "--md")] = False,
    csv: Annotated[bool, flag("Every planned cell as CSV.", "--csv")] = False,
    json_output: Annotated[bool, flag("Every planned cell as JSON rows.", "--json")] = False,
    parquet: Annotated[bool, flag("Every planned cell as Parquet (needs the extra 'parquet').", "--parquet")] = False,
    form: Annotated[str | None, option(f"One of {', '.join(exports.formats())}.", "NAME", "--format")] = None,
    model: Model = None,
    gpu: Gpu = None,
    bandwidth: Bandwidth = None,
    tflops: Tflops = None,
) -> int:
    """Make the page of a record, one self-contained HTML file; or a picture, a table, an export."""
    from flatout import record as rec

    typed = {"png": png, "card": card, "md": md, "csv": csv, "json": json_output, "parquet": parquet, "format": form}
    forms = [name for name, wanted in typed.items() if wanted]
    if len(forms) > 1:
        raise UseError(f"one form at a time: --{' or --'.join(forms)}")
    content, path = rec.read(record), rec.find(record)
    ceiling = Ceiling(model, gpu, bandwidth, tflops)
    if not forms:
        _write(_page(content, path.parent, _shares(content, ceiling)), output or path.with_name("page.html"))
    else:
        name = form or forms[0]
        default = path.with_name(_FILES[name]) if name in _FILES else STDOUT
        _write(_export(content, name, ceiling), output or default)
    return EXIT_OK


def write_page(record: Record, directory: Path) -> Path:
    """Writes the page of the record in `directory` beside it and returns where."""
    from flatout.run.store import write_beside

    path = directory / "page.html"
    write_beside(path, _page(record, directory, None).encode())
    return path


def _page(record: Record, directory: Path, limits: dict[str, Limit] | None) -> str:
    from flatout.show.page import render

    return render(record, samples_dir=directory / "samples", limits=limits)


def _shares(record: Record, ceiling: Ceiling) -> dict[str, Limit] | None:
    """Shares of the hardware's limit for the page, where a model is given."""
    if ceiling.model is None:
        return None
    from flatout.show.page import Limit

    cells = ceiling.of_record(record).cells
    return {c.point.id: Limit(share=c.share, binds=c.binding or "") for c in cells if c.share is not None}


def _export(record: Record, name: str, ceiling: Ceiling) -> str | bytes:
    if name in ("png", "card"):
        from flatout.show.picture import png

        return png(record, size="card" if name == "card" else "full")
    if name == "llama-bench" and ceiling.model is not None:
        from flatout.show.exports import llama_bench

        return llama_bench.write(record, ceiling.shape())
    return exports.write(record, name)


def _write(content: str | bytes, path: Path) -> None:
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


# --- compare, lint and limits ---------------------------------------------------------------------------------------


@command
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Two or more records, or directories (of repeats, too).")],
    fail_if: Annotated[
        list[str] | None,
        option("Exit with 1 if this holds, such as 'total_tok_s < -3%'; repeatable.", "CONDITION", "--fail-if"),
    ] = None,
    md: Markdown = False,
    json_output: Json = False,
    every: Annotated[bool, flag("Every figure of every cell.", "--all")] = False,
    output: Annotated[
        Path | None,
        option("Write it as a page (HTML) to this file, - for the standard output.", "FILE", "--output", "-o"),
    ] = None,
) -> int:
    """Compare runs cell by cell: faster, slower, or no difference seen."""
    from flatout.compare import check, read_sides
    from flatout.compare import compare as compared
    from flatout.compare import fail_if as conditions_of
    from flatout.show import comparison as shown
    from flatout.show import document

    conditions = [c for text in fail_if or [] for c in conditions_of(text)]
    records, sides, names = read_sides(paths)
    comparison = compared(records, sides=sides, names=names)
    outcomes = check(comparison, conditions) if conditions else []
    if output is not None:
        from flatout.show.page import compared as page

        _write(page.render(comparison, outcomes), output)
    elif json_output:
        print(json.dumps(shown.data(comparison, outcomes), indent=1))
    else:
        document.put(shown.document(comparison, outcomes, every=every), md=md)
    return EXIT_FOUND if any(outcome.failed for outcome in outcomes) else EXIT_OK


@command
def lint(
    path: Annotated[Path, typer.Argument(help="A record, or a published table as CSV or JSON.")],
    md: Markdown = False,
    json_output: Json = False,
    model: Model = None,
    gpu: Gpu = None,
    bandwidth: Bandwidth = None,
    tflops: Tflops = None,
) -> int:
    """Check whether a record or a published table agrees with itself. Exit code 1 if not."""
    from flatout.lint import lint as linted
    from flatout.lint import read
    from flatout.record import Record
    from flatout.show import document
    from flatout.show import findings as shown

    content, limits = read(path), None
    if model is not None:
        ceiling = Ceiling(model, gpu, bandwidth, tflops)
        of = ceiling.of_record(content) if isinstance(content, Record) else ceiling.of_file(path)
        limits = {c.point.id: c.limit_tok_s for c in of.cells if c.limit_tok_s is not None}
    findings = linted(content, limits=limits)
    if json_output:
        print(json.dumps(shown.data(findings), indent=1))
    else:
        document.put(shown.document(findings), md=md)
    return EXIT_FOUND if findings else EXIT_OK


@command
def limits(
    path: Annotated[Path | None, typer.Argument(help="A record, or a published table as JSON.")] = None,
    model: Model = None,
    gpu: Gpu = None,
    bandwidth: Bandwidth = None,
    tflops: Tflops = None,
    weight_bits: Annotated[
        float | None, option("Bits of one weight, where the config does not say.", min=0.5, panel=_HARDWARE)
    ] = None,
    contexts: Annotated[str, option("Contexts, where there is no record.")] = "8k,32k,128k",
    concurrency: Annotated[str, option("Simultaneous requests, where there is no record.")] = "1-32",
    md: Markdown = False,
) -> int:
    """Show what the hardware allows at most, and which share of it was reached."""
    from flatout.limits import limits_for
    from flatout.show import ceiling as shown
    from flatout.show import document
    from flatout.suite import parse_concurrency, parse_contexts

    typed = Ceiling(model, gpu, bandwidth, tflops, weight_bits)
    if path is not None:
        report = typed.of_file(path)
    else:
        lengths = [c for c in parse_contexts(contexts) if isinstance(c, int)]
        report = limits_for(typed.shape(), typed.hardware(), lengths, parse_concurrency(concurrency))
    document.put(shown.document(report), md=md)
    return EXIT_OK
