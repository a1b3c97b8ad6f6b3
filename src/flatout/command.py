"""What the commands do with what was typed: options out of words, views, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    from flatout.record import Record
    from flatout.run.events import Control, Listener
    from flatout.run.options import Options
    from flatout.suite import Suite

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USE: Final = 2


class UseError(Exception):
    """What was typed cannot be done; the text says what to type instead."""


def guarded(work: Callable[[], int]) -> int:
    """Runs a command and turns every foreseen trouble into one sentence on stderr and an exit code."""
    from flatout.record import RecordError
    from flatout.suite import SuiteError
    from flatout.target.base import TargetError

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
    from flatout.compare import CompareError
    from flatout.engine.missing import EngineMissing
    from flatout.engine.start import EngineFailed
    from flatout.host.hardware import HardwareError
    from flatout.limits import LimitsHardwareError, ShapeError
    from flatout.lint import LintError
    from flatout.load.process import LoadError
    from flatout.reading import ReadingError
    from flatout.run.begin import CorpusError
    from flatout.run.recount import TokenizerError
    from flatout.run.resume import ResumeError
    from flatout.show.export import ExportError
    from flatout.show.picture import PictureError

    return (
        ResumeError, TokenizerError, LoadError, EngineMissing, EngineFailed, CorpusError, HardwareError, CompareError,
        ShapeError, LimitsHardwareError, LintError, ReadingError, ExportError, PictureError,
    )  # fmt: skip


def _sorry(what: object, code: int) -> int:
    print(f"flatout: {what}", file=sys.stderr)
    return code


def run(given: Mapping[str, Any], argv: list[str]) -> int:
    """`flatout run`: from typed words to a record. Raises UseError, SuiteError, TargetError."""
    options = options_of(given, argv)
    if given["dry_run"]:
        return dry_run(options)
    return measure(options, plain=given["plain"], as_json=given["json_output"])


def demo(suite: str, results: Path, threads: int | None, plain: bool, as_json: bool, argv: list[str]) -> int:
    """`flatout demo`: the embedded engine, measured."""
    from importlib.metadata import version as package_version

    from flatout import suite as suites
    from flatout.engine.start import running
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
        return measure(options, plain=plain, as_json=as_json)


def _slot_length(tokens: int) -> int:
    """Room of one slot: llama.cpp wants multiples of 256, and some tokens to spare."""
    return -(-(tokens + 128) // 256) * 256


def measure(options: Options, *, plain: bool, as_json: bool) -> int:
    """Runs with a live view (or plain lines), prints the tables, and returns the exit code."""
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
    return conduct.exit_code(record)


@contextmanager
def _view(control: Control, plain: bool) -> Iterator[tuple[Listener, Callable[[], None]]]:
    if plain or not sys.stderr.isatty() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from flatout.show.plain import PlainView

        yield PlainView(sys.stderr), lambda: None
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

    before = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_tables(record: Record, path: Path, *, plain: bool, wide: bool) -> None:
    from flatout.show import table

    if plain or not sys.stdout.isatty():
        print(table.plain(record, path=path, wide=wide))
        return
    from rich.console import Console

    table.render(record, Console(), path=path, wide=wide)


def show(path: Path, *, md: bool, as_json: bool, plain: bool, wide: bool) -> int:
    """`flatout show`: a record's tables again."""
    from flatout import record as rec

    record, found = rec.read(path), rec.find(path)
    if as_json:
        from flatout.show.summary import summary

        print(json.dumps(summary(record, found), indent=1))
    elif md:
        from flatout.show import markdown

        print(markdown.render(record))
    else:
        _print_tables(record, found, plain=plain, wide=wide)
    return EXIT_OK


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
    from flatout.run.begin import connected, planned_cells
    from flatout.show.planned import text

    if options.launch:
        raise UseError("--dry-run asks a running server for its limits; start it first and give its URL")
    with connected(options, lambda _: None) as server:
        cells, limits, _ = planned_cells(server.target, options)
        print(text(cells, limits, options.suite, engine=server.target.adapter.name, model=server.target.model))
    return EXIT_OK


def options_of(given: Mapping[str, Any], argv: list[str]) -> Options:
    """Options out of what was typed. Raises UseError and SuiteError."""
    from flatout.load.job import Timeouts
    from flatout.run.options import Options
    from flatout.suite import parse_context

    if given["url"] is None and given["launch"] is None:
        if given["resume"] is not None:
            raise UseError(f"--resume needs the options that the run had: {_as_before(given['resume'])}")
        raise UseError("name the server's URL (flatout run http://localhost:8000), or start one with --launch")
    _consistent(given)
    if given["api"] not in ("auto", "chat", "completions"):
        raise UseError(f"--api {given['api']}: it is auto, chat or completions")
    for name in ("ca", "corpus", "tokenizer"):
        if given[name] is not None and not given[name].is_file():
            raise UseError(f"--{name} {given[name]}: there is no such file")
    length = parse_context(given["model_len"]) if given["model_len"] else None
    room = parse_context(given["kv_tokens"]) if given["kv_tokens"] else None
    if isinstance(length, str) or isinstance(room, str):
        raise UseError("--model-len and --kv-tokens take a number of tokens, such as 32768 or 32k")
    return Options(
        url=given["url"],
        launch=given["launch"],
        suite=_suite(given),
        model=given["model"],
        engine=given["engine"],
        engine_version=given["engine_version"],
        api=given["api"],
        key=_key(given["api_key"], given["api_key_file"]),
        headers=_headers(given["header"] or []),
        ca_file=str(given["ca"]) if given["ca"] else None,
        insecure=given["insecure"],
        timeouts=Timeouts(
            given["connect_timeout"], given["first_token_timeout"], given["idle_timeout"], given["total_timeout"]
        ),
        steady_s=given["steady_timeout"],
        drain_s=given["drain_timeout"],
        ready_s=given["ready_timeout"],
        temperature=given["temperature"],
        extra_body=_extra_body(given["extra_body"]),
        ignore_eos=given["ignore_eos"],
        corpus=given["corpus"],
        tokenizer=given["tokenizer"],
        seed=given["seed"],
        requests=given["requests"],
        max_concurrency=given["max_concurrency"],
        max_tokens_total=given["max_tokens_total"],
        model_length=length,
        kv_tokens=room,
        max_running=given["max_running"],
        hardware=given["hardware"],
        per_user_tok_s=given["per_user"],
        warmup=given["warmup"],
        drain=given["drain"],
        results=given["results"],
        resume=given["resume"],
        load_processes=given["load_processes"],
        load_cores=_cores(given["load_cores"]),
        command=tuple(argv),
        note=given["note"],
    )


def _as_before(directory: Path) -> str:
    """The command that goes on with a run, out of its record. Raises RecordError."""
    import shlex

    from flatout import record as rec

    words = rec.read(directory).client.command[1:]
    return shlex.join(["flatout", *words, *([] if "--resume" in words else ["--resume", str(directory)])])


def _consistent(given: Mapping[str, Any]) -> None:
    """What was typed fits together, before anything is started. Raises UseError, HardwareError."""
    from flatout.run.describe import check_hardware
    from flatout.target.base import TargetError
    from flatout.target.endpoint import parse_address

    if given["url"] is not None:
        try:
            parse_address(given["url"])
        except TargetError as error:
            raise UseError(str(error)) from error
    check_hardware(given["hardware"])
    if given["requests"] is not None and given["concurrency"]:
        raise UseError("--requests sends that many at once; --concurrency does not go with it")
    if given["max_time"] is not None and not given["precision"] and given["suite"] in ("demo", "quick"):
        raise UseError("--max-time needs --precision: without it a window has one length, --time")
    if given["dry_run"] and given["json_output"]:
        raise UseError("--dry-run prints lines for people; it has no --json")


def _suite(given: Mapping[str, Any]) -> Suite:
    from flatout import suite as suites

    chosen = suites.load(given["suite"])
    changes: dict[str, Any] = {}
    if given["contexts"] is not None:
        changes["prefill"] = changes["decode"] = suites.parse_contexts(given["contexts"])
    if given["prefill"]:
        changes["prefill"] = () if given["prefill"] == "none" else suites.parse_contexts(given["prefill"])
    if given["concurrency"]:
        changes["concurrency"] = suites.parse_concurrency(given["concurrency"])
    if given["max_time"] is not None:
        changes["time_s"] = given["max_time"]
    if given["precision"]:
        changes["precision"] = None if given["precision"] == "none" else suites.parse_precision(given["precision"])
    if given["time"] is not None:
        if given["max_time"] is not None or changes.get("precision") is not None:
            raise UseError("--time fixes the window; for an early end give --precision with --max-time instead")
        changes |= {"time_s": given["time"], "min_time_s": given["time"], "precision": None}
    if given["max_output"] is not None:
        changes["max_output"] = given["max_output"]
    if given["prompts"]:
        if given["prompts"] not in ("own", "shared"):
            raise UseError(f"--prompts {given['prompts']}: it is own or shared")
        changes["prompts"] = given["prompts"]
    if given["skip_queued"]:
        changes["skip_queued"] = True
    made = suites.checked(replace(chosen, **changes))
    if any(name not in ("prompts",) for name in changes) and made != chosen:
        made = replace(made, name=f"{made.name}*")
    return made


def _key(typed: str | None, file: Path | None) -> str | None:
    if typed and file:
        raise UseError("give either --api-key or --api-key-file")
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UseError(f"--api-key-file {file}: cannot be read ({error})") from error
        if not key or "\n" in key:
            raise UseError(f"--api-key-file {file}: it must hold one line, the key")
        return key
    return typed or os.environ.get("FLATOUT_API_KEY") or os.environ.get("OPENAI_API_KEY") or None


def _headers(typed: list[str]) -> tuple[tuple[str, str], ...]:
    made = []
    for text in typed:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or any(c in text for c in "\r\n"):
            raise UseError("--header takes 'Name: value'")
        if not name.strip().isascii() or not all(c.isalnum() or c in "-_" for c in name.strip()):
            raise UseError(f"--header: '{name.strip()}' is no name of a header")
        made.append((name.strip(), value.strip()))
    return tuple(made)


def _extra_body(text: str) -> str:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UseError(f"--extra-body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UseError("--extra-body takes a JSON object, such as '{\"top_p\": 0.9}'")
    several = [n for n in ("n", "best_of") if content.get(n) not in (None, 1)]
    if several:
        raise UseError(f"--extra-body: {several[0]} > 1 makes one request several answers; use --concurrency for that")
    taken = [n for n in ("stream", "messages", "prompt", "model") if n in content]
    if taken:
        raise UseError(f"--extra-body: '{taken[0]}' is flatout's own to set")
    return json.dumps(content)


def _cores(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        cores = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UseError("--load-cores takes numbers, such as 1 or 2,3") from None
    have = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    if not set(cores) <= have:
        raise UseError(f"--load-cores {text}: this process may use {', '.join(map(str, sorted(have)))}")
    return cores
