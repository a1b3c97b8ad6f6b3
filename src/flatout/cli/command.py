"""What the commands do with what was typed: options out of words, views, signals, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    from flatout.record import Record
    from flatout.run.events import Control, Listener
    from flatout.run.options import Options

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USE: Final = 2


def guarded(work: Callable[[], int]) -> int:
    """Runs a command and turns every foreseen trouble into one sentence on stderr and an exit code."""
    from flatout.cli.typed import UseError
    from flatout.engines.base import TargetError
    from flatout.record import RecordError
    from flatout.suite import SuiteError

    try:
        return work()
    except (UseError, SuiteError, RecordError) as error:
        return _sorry(error, EXIT_USE)
    except TargetError as error:
        return _sorry(error, EXIT_FAILED if error.kind != "model" else EXIT_USE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _sorry("stopped before anything was measured", EXIT_FAILED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _sorry(f"{error.strerror or error}{where}", EXIT_FAILED)
    except Exception as error:
        known = _known_trouble()
        if isinstance(error, known):
            return _sorry(error, EXIT_USE)
        raise


def _known_trouble() -> tuple[type[Exception], ...]:
    """Errors of the heavy rooms, imported only when something went wrong."""
    from flatout.calibrate.conduct import CalibrationError
    from flatout.cli.hosting import HostingError
    from flatout.cli.reading import ReadingError
    from flatout.compare import CompareError
    from flatout.demo.missing import EngineMissing
    from flatout.demo.start import EngineFailed
    from flatout.host.hardware import HardwareError
    from flatout.limits import LimitsHardwareError, ShapeError
    from flatout.lint import LintError
    from flatout.load.process import LoadError
    from flatout.publish.errors import PublishError
    from flatout.rig.handle import RigError
    from flatout.run.begin import CorpusError, ResumeError
    from flatout.run.prompts import TokenizerError
    from flatout.show.exports import ExportError
    from flatout.show.picture import PictureError
    from flatout.site.errors import SiteError

    return (
        ResumeError, TokenizerError, LoadError, EngineMissing, EngineFailed, CorpusError, HardwareError, CompareError,
        CalibrationError, RigError, ShapeError, LimitsHardwareError, LintError, ReadingError, ExportError, PictureError,
        HostingError, PublishError, SiteError,
    )  # fmt: skip


def _sorry(what: object, code: int) -> int:
    print(f"flatout: {what}", file=sys.stderr)
    return code


def run(given: Mapping[str, Any], argv: list[str]) -> int:
    """`flatout run`: from typed words to a record. Raises UseError, SuiteError, TargetError."""
    from flatout.cli.typed import options_of

    options = options_of(given, argv)
    if given["dry_run"]:
        return dry_run(options)
    return measure(options, plain=given["plain"], as_json=given["json_output"])


def demo(suite: str, results: Path, threads: int | None, plain: bool, as_json: bool, argv: list[str]) -> int:
    """`flatout demo`: the embedded engine, measured."""
    from importlib.metadata import version as package_version

    from flatout import suite as suites
    from flatout.demo.start import running
    from flatout.run.options import Options

    chosen = suites.load(suite)
    print(
        "flatout demo: llama.cpp with a small model of Qwen3.5's shape. Its weights are random and its text has no "
        "meaning; its speed on this machine is real.",
        file=sys.stderr,
    )
    longest = max([c for c in (*chosen.prefill, *chosen.decode) if isinstance(c, int)], default=2048)
    slots = max(chosen.concurrency, default=1)
    with running(parallel=slots, ctx=slots * _slot_length(longest + chosen.max_output), threads=threads) as engine:
        options = Options(
            url=engine.url,
            suite=chosen,
            results=results,
            command=tuple(argv),
            engine_version=f"xllamacpp {package_version('xllamacpp')}",
            engine_version_source="host",
        )
        return measure(options, plain=plain, as_json=as_json, page=True)


def _slot_length(tokens: int) -> int:
    """Room of one slot: llama.cpp wants multiples of 256, and some tokens to spare."""
    return -(-(tokens + 128) // 256) * 256


def measure(options: Options, *, plain: bool, as_json: bool, page: bool = False) -> int:
    """Runs with a live view (or plain lines), prints the tables (and writes the page), and returns the exit code."""
    from flatout.run import conduct
    from flatout.run.events import Control

    control = Control()
    with _view(control, plain or as_json) as (listener, restore), _signals(control, restore):
        record, directory = conduct.run(options, listener, control)
    if as_json:
        from flatout.show.summary import summary

        print(json.dumps(summary(record, directory / "record.json"), indent=1))
    else:
        _print_tables(record, directory / "record.json", plain=plain, wide=False)
        _page(record, directory, made=page)
    return conduct.exit_code(record)


def _page(record: Record, directory: Path, *, made: bool) -> None:
    """Writes the page and says where it is, or says how to make it."""
    if not made:
        print(f"page    flatout report {directory}")
        return
    from flatout.cli.reading import write_page

    print(f"page    {write_page(record, directory)}")


@contextmanager
def _view(control: Control, plain: bool) -> Iterator[tuple[Listener, Callable[[], None]]]:
    there = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]  # either may be closed (2>&-)
    if plain or len(there) < 2 or not all(s.isatty() for s in there) or os.environ.get("TERM") == "dumb":
        from flatout.show.plain import PlainView

        yield PlainView(sys.stderr if sys.stderr is not None else io.StringIO()), lambda: None
        return
    from rich.console import Console

    from flatout.show.live import LiveView

    with LiveView(control, Console()) as view:
        yield view, view.restore


@contextmanager
def _signals(control: Control, restore: Callable[[], None]) -> Iterator[None]:
    """First Ctrl-C (or SIGTERM): stop gracefully with a partial record. Second: end at once, terminal restored."""

    def on_signal(number: int, _: FrameType | None) -> None:
        if control.stopping:
            restore()
            os._exit(130)
        control.stop("stopped by the user" if number == signal.SIGINT else "the process was told to end")

    before = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_tables(record: Record, path: Path, *, plain: bool, wide: bool) -> None:
    from flatout.show import document, result

    document.put(result.result(record, path=path, wide=wide), plain=plain)


def show(path: Path, *, md: bool, as_json: bool, plain: bool, wide: bool) -> int:
    """`flatout show`: a record's tables again."""
    from flatout import record as rec

    record, found = rec.read(path), rec.find(path)
    if as_json:
        from flatout.show.summary import summary

        print(json.dumps(summary(record, found), indent=1))
    elif md:
        from flatout.show.exports import md as markdown

        print(markdown.write(record))
    else:
        _print_tables(record, found, plain=plain, wide=wide)
    return EXIT_OK


def calibrate(quick: bool, rig_cores: str | None, load_cores: str | None, form: str) -> int:
    """`flatout calibrate`: known speeds, read on this machine. Exit code 0 if every reading is right, else 3."""
    from flatout.calibrate.conduct import calibrate as measured
    from flatout.cli.typed import cores_of
    from flatout.run.conduct import EXIT_DOUBT
    from flatout.show import calibration as shown
    from flatout.show import document

    def listener(event: object) -> None:
        if type(event).__name__ == "Doing":
            print(f"  {event.text}", file=sys.stderr)  # type: ignore[attr-defined]

    made = measured(
        listener,
        rig_cores=cores_of(rig_cores, "--rig-cores"),
        load_cores=cores_of(load_cores, "--load-cores"),
        quick=quick,
    )
    if form == "json":
        print(made.model_dump_json(indent=1))
    else:
        document.put(shown.document(made), md=form == "md", plain=form == "plain", width=160)
    known = [point for point in made.points if point.kind in ("scale", "shape")]  # the others search for the limit
    return EXIT_OK if all(point.trusted for point in known) else EXIT_DOUBT


def suites() -> int:
    """`flatout suites`: what each named suite measures."""
    from flatout.suite import DEFAULT, SUITES, label

    for suite in SUITES.values():
        print(f"{suite.label}{'  (default)' if suite.name == DEFAULT else ''}\n  {suite.about}")
        print(f"  prefill  {', '.join(label(c if isinstance(c, int) else None, c) for c in suite.prefill)}")
        print(f"  decode   {', '.join(label(c if isinstance(c, int) else None, c) for c in suite.decode)}")
        print(f"  at once  {', '.join(map(str, suite.concurrency))}")
        window = f"{suite.time_s:g} s"
        if suite.precision is not None:
            window = f"{suite.min_time_s:g} to {suite.time_s:g} s, ends at ±{suite.precision:.0%}"
        print(f"  window   {window}; {suite.max_output:,} tokens an answer; {suite.prompts} contexts\n")
    print("K = 1024 tokens; max = model length - answer - 64, in whole K; full = model length - 64.")
    return EXIT_OK


def rig(words: list[str]) -> int:
    """`flatout rig`: a server of exactly known speed, until Ctrl-C."""
    from flatout.rig.command import main

    return main(words)


def dry_run(options: Options) -> int:
    """`--dry-run`: asks the server for its limits, shows every cell; no request that generates anything is sent."""
    from flatout.cli.typed import UseError
    from flatout.run.begin import connected, planned_cells
    from flatout.run.events import Control
    from flatout.show import document, planned

    if options.launch:
        raise UseError("--dry-run asks a running server for its limits; start it first and give its URL")
    with connected(options, lambda _: None, Control()) as server:
        cells, limits, _ = planned_cells(server.target, options)
        plan = planned.document(
            cells, limits, options.suite, engine=server.target.adapter.name, model=server.target.model,
            budget=options.max_tokens_total,
        )  # fmt: skip
    document.put(plan)
    return EXIT_OK
