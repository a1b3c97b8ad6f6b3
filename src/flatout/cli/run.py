"""`flatout run` and `flatout demo`: from what was typed to a record, watched in the terminal. `flatout suites`."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flatout.cli.options import EXIT_OK, UseError, command, cores_of, flag, option, say
from flatout.engines import ENGINES

if TYPE_CHECKING:
    from types import FrameType

    from flatout.run.events import Control, Listener
    from flatout.run.options import Options
    from flatout.suite import Suite

_test: Final = partial(option, panel="What is measured")
_server: Final = partial(option, panel="The server")
_run: Final = partial(option, panel="The run")
"""Options by the panel of the help that they stand in."""
_more_test: Final = partial(_test, hidden=True)
_more_server: Final = partial(_server, hidden=True)
_more_run: Final = partial(_run, hidden=True)
_limits: Final = partial(option, panel="Time-outs and limits", hidden=True)
_load: Final = partial(option, panel="The load", hidden=True)
"""Options that few need: they stand under --help-all."""


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help(), end="")
        raise typer.Exit


@command
def run(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Argument(help="The server, such as http://localhost:8000 or https://host/v1.")
    ] = None,
    help_all: Annotated[
        bool,
        flag("Show all options; most may stand in the suite's file.", "--help-all", callback=_help_all, is_eager=True),
    ] = False,
    suite: Annotated[str, _test("Named suite or TOML file.", "NAME")] = "standard",
    contexts: Annotated[str | None, _test("Context lengths, such as 8k,32k,max.", "LIST")] = None,
    concurrency: Annotated[str | None, _test("Requests at once, such as 1,2,4 or 1-16.", "LIST")] = None,
    prefill: Annotated[str | None, _test("Context lengths for prefill alone, or none.", "LIST")] = None,
    max_output: Annotated[int | None, _test("Tokens of each answer.", "N", min=2)] = None,
    time: Annotated[float | None, _test("Seconds of each window, fixed.", "S", min=0.5)] = None,
    precision: Annotated[
        str | None, _test("End windows early at this 95 % interval, such as 1%, or none.", "P")
    ] = None,
    max_time: Annotated[float | None, _more_test("Longest window, with --precision.", "S", min=0.5)] = None,
    prompts: Annotated[str | None, _test("own (each stream its own context) or shared.", "MODE")] = None,
    requests: Annotated[int | None, _test("Fixed count: so many at once, until all are done.", "N", min=1)] = None,
    temperature: Annotated[float | None, _test("Sampling temperature (default: the server's).", "T", min=0.0)] = None,
    extra_body: Annotated[str, _more_test("JSON object added to each request.", "JSON")] = "{}",
    skip_queued: Annotated[
        bool, _more_test("Leave out cells with more streams than the server runs at once.", "", "--skip-queued")
    ] = False,
    corpus: Annotated[Path | None, _more_test("Make prompts from this text file.", "FILE")] = None,
    tokenizer: Annotated[
        Path | None, _more_test("tokenizer.json to count answers of a server that counts none.", "FILE")
    ] = None,
    seed: Annotated[int, _more_test("Seed of the prompts' text (their beginnings differ in each run).", "N")] = 0,
    ignore_eos: Annotated[
        bool, _more_test("Ask for answers of full length.", "", "--ignore-eos/--no-ignore-eos")
    ] = True,
    warmup: Annotated[bool, _more_test("Begin with a short unmeasured load.", "", "--warmup/--no-warmup")] = True,
    drain: Annotated[bool, _more_test("Make the server idle before each cell.", "", "--drain/--no-drain")] = True,
    launch: Annotated[
        str | None,
        _server("Start this command, measure it, stop it. Without a port in it, the engine's own is asked.", "COMMAND"),
    ] = None,
    model: Annotated[str | None, _server("Model name, if the server has several.", "NAME")] = None,
    engine: Annotated[
        str | None, _server(f"Engine, if it is not recognised rightly: {', '.join(ENGINES)}.", "NAME")
    ] = None,
    api_key_file: Annotated[
        Path | None, _server("File that holds the API key (or FLATOUT_API_KEY, OPENAI_API_KEY).", "FILE")
    ] = None,
    api_key: Annotated[str | None, _more_server("API key, which others on this machine may then see.", "KEY")] = None,
    header: Annotated[list[str] | None, _server("Extra header 'Name: value'; repeatable.", "TEXT")] = None,
    hardware: Annotated[
        str | None, _server("Its hardware, if it is elsewhere: a TOML/JSON file or gpu=…,memory_gb=….", "WHAT")
    ] = None,
    engine_version: Annotated[
        str | None, _more_server("The engine's version, where the server does not tell it.", "TEXT")
    ] = None,
    model_len: Annotated[
        str | None, _more_server("The model's length, where the server does not tell it (32k).", "TOKENS")
    ] = None,
    kv_tokens: Annotated[
        str | None, _more_server("Tokens of KV cache, where the server does not tell them.", "TOKENS")
    ] = None,
    max_running: Annotated[
        int | None, _more_server("Requests that the server runs at once, where it does not tell.", "N", min=1)
    ] = None,
    api: Annotated[
        str, _more_server("chat, completions or auto (chat where the model has a template).", "NAME")
    ] = "auto",
    ca: Annotated[Path | None, _more_server("CA certificates (PEM) to trust for HTTPS.", "FILE")] = None,
    insecure: Annotated[bool, _more_server("Do not check the server's certificate.", "", "--insecure")] = False,
    dry_run: Annotated[bool, _run("Show each cell's need and the cost; generate nothing.", "", "--dry-run")] = False,
    results: Annotated[Path, _run("Where results go.", "FOLDER")] = Path("results"),
    note: Annotated[str | None, _run("A remark for the record.", "TEXT")] = None,
    resume: Annotated[Path | None, _run("Go on with this stopped run's directory.", "FOLDER")] = None,
    max_tokens_total: Annotated[int | None, _run("Token budget of the run, prompts and answers.", "N", min=1)] = None,
    plain: Annotated[bool, _run("Plain lines instead of the live view.", "", "--plain")] = False,
    json_output: Annotated[bool, _run("Print the record's summary as JSON at the end.", "", "--json")] = False,
    per_user: Annotated[
        float, _more_run("Speed for the answer to 'how many at once?', tok/s each.", "RATE", min=0.1)
    ] = 20.0,
    max_concurrency: Annotated[int | None, _limits("Never more than so many at once.", "N", min=1)] = None,
    connect_timeout: Annotated[float, _limits("Seconds to connect.", "S", min=0.1)] = 10.0,
    first_token_timeout: Annotated[
        float, _limits("Silence before the first token (a long prefill is silent).", "S", min=1.0)
    ] = 900.0,
    idle_timeout: Annotated[float, _limits("Silence after the first token.", "S", min=1.0)] = 60.0,
    total_timeout: Annotated[float, _limits("Seconds for one request.", "S", min=1.0)] = 3600.0,
    steady_timeout: Annotated[float, _limits("Seconds for the load to become steady.", "S", min=1.0)] = 300.0,
    drain_timeout: Annotated[float, _limits("Seconds for the server to become idle.", "S", min=1.0)] = 120.0,
    ready_timeout: Annotated[float, _limits("Seconds for --launch to answer.", "S", min=1.0)] = 1800.0,
    load_processes: Annotated[
        int | None, _load("Processes that read streams (default: by the number of streams).", "N", min=1)
    ] = None,
    load_cores: Annotated[str | None, _load("Cores that these may use, such as 1 or 2,3.", "LIST")] = None,
) -> int:
    """Measure a server and record everything about it."""
    given = dict(locals())
    from flatout.suite import read

    chosen, from_file = read(suite)
    given |= {name: value for name, value in from_file.items() if not _is_typed(context, name)}
    options = _options(given, chosen)
    return _dry_run(options) if dry_run else _measure(options, plain=plain, as_json=json_output)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@command
def demo(
    suite: Annotated[str, option("Named suite or a TOML file.", "NAME")] = "demo",
    results: Annotated[Path, option("Where results go.", "FOLDER")] = Path("results"),
    threads: Annotated[int | None, option("Threads of the engine (default: all cores but one).", "N", min=1)] = None,
    plain: Annotated[bool, flag("Plain lines instead of the live view.", "--plain")] = False,
    json_output: Annotated[bool, flag("Print the record's summary as JSON at the end.", "--json")] = False,
) -> int:
    """Measure the embedded engine: llama.cpp with a small random-weight model; no server needed."""
    from importlib.metadata import version

    from flatout.demo.start import running
    from flatout.suite import read

    chosen, from_file = read(suite)
    say(
        "flatout demo: llama.cpp with a small model of Qwen3.5's shape. Its weights are random and its text has no "
        "meaning; its speed on this machine is real."
    )
    longest = max([c for c in (*chosen.prefill, *chosen.decode) if isinstance(c, int)], default=2048)
    slots = max(chosen.concurrency, default=1)
    with running(parallel=slots, ctx=slots * _slot_length(longest + chosen.max_output), threads=threads) as engine:
        defaults = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
        typed = {"url": engine.url, "results": results, "engine_version": f"xllamacpp {version('xllamacpp')}"}
        options = replace(_options(defaults | from_file | typed, chosen), engine_version_source="host", key=None)
        return _measure(options, plain=plain, as_json=json_output, page=True)


def _slot_length(tokens: int) -> int:
    """Room of one slot: llama.cpp wants multiples of 256, and some tokens to spare."""
    return -(-(tokens + 128) // 256) * 256


@command
def suites() -> int:
    """List the named suites and what each measures."""
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


# --- what was typed: every word is checked before anything is started -----------------------------------------------


def _options(given: Mapping[str, Any], suite: Suite) -> Options:
    """The run's options, out of `run`'s parameters by name. Raises UseError, SuiteError, HardwareError."""
    from flatout.load.job import Timeouts
    from flatout.run.options import Options

    _check(given, suite)
    same = {field.name: given[field.name] for field in fields(Options) if field.name in given}
    other = {
        "suite": _changed(suite, given),
        "key": _key(given["api_key"], given["api_key_file"], given["url"]),
        "headers": _headers(given["header"] or []),
        "ca_file": str(given["ca"]) if given["ca"] else None,
        "timeouts": Timeouts(
            given["connect_timeout"], given["first_token_timeout"], given["idle_timeout"], given["total_timeout"]
        ),
        "steady_s": given["steady_timeout"],
        "drain_s": given["drain_timeout"],
        "ready_s": given["ready_timeout"],
        "load_cores": cores_of(given["load_cores"], "--load-cores"),
        "extra_body": _extra_body(given["extra_body"]),
        "model_length": _tokens(given["model_len"]),
        "kv_tokens": _tokens(given["kv_tokens"]),
        "per_user_tok_s": given["per_user"],
        "command": tuple(sys.argv),
    }
    return Options(**same | other)


def _check(given: Mapping[str, Any], suite: Suite) -> None:
    """What was typed fits together, and can be. Raises UseError, HardwareError."""
    from flatout.engines.base import TargetError
    from flatout.engines.endpoint import parse_address
    from flatout.run.describe import check_hardware

    if given["url"] is None and given["launch"] is None:
        if given["resume"] is not None:
            raise UseError(f"--resume needs the options that the run had: {_as_before(given['resume'])}")
        raise UseError("name the server's URL (flatout run http://localhost:8000), or start one with --launch")
    if given["url"] is not None:
        try:
            parse_address(given["url"])
        except TargetError as error:
            raise UseError(str(error)) from error
    check_hardware(given["hardware"])
    for name, choices in (("api", ("auto", "chat", "completions")), ("prompts", ("own", "shared"))):
        if given[name] is not None and given[name] not in choices:
            raise UseError(f"--{name} {given[name]}: it is {', '.join(choices[:-1])} or {choices[-1]}")
    for name in ("ca", "corpus", "tokenizer"):
        if given[name] is not None and not Path(given[name]).is_file():
            raise UseError(f"--{name} {given[name]}: there is no such file")
    if given["requests"] is not None and given["concurrency"]:
        raise UseError("--requests sends that many at once; --concurrency does not go with it")
    if given["max_time"] is not None and not given["precision"] and suite.precision is None:
        raise UseError("--max-time needs --precision: without it a window has one length, --time")
    if given["dry_run"] and given["json_output"]:
        raise UseError("--dry-run prints lines for people; it has no --json")


def _as_before(directory: Path) -> str:
    """The command that goes on with a run, out of its record. Raises RecordError."""
    import shlex

    from flatout import record as rec

    words = rec.read(directory).client.command[1:]
    return shlex.join(["flatout", *words, *([] if "--resume" in words else ["--resume", str(directory)])])


def _changed(suite: Suite, given: Mapping[str, Any]) -> Suite:
    """The suite with what was typed beside it; its name says that something was."""
    from flatout import suite as suites

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
    changes |= {name: given[name] for name in ("max_output", "prompts") if given[name] is not None}
    if given["skip_queued"]:
        changes["skip_queued"] = True
    changed = suites.checked(replace(suite, **changes))
    renamed = changes.keys() - {"prompts"} and changed != suite
    return replace(changed, name=f"{changed.name}*") if renamed else changed


def _tokens(text: str | None) -> int | None:
    from flatout.suite import parse_context

    length = parse_context(text) if text else None
    if isinstance(length, str):
        raise UseError("--model-len and --kv-tokens take a number of tokens, such as 32768 or 32k")
    return length


def _key(typed: str | None, file: Path | None, url: str | None) -> str | None:
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
    from flatout.engines.endpoint import key_from_environment

    return typed or key_from_environment(url, os.environ)[0]


def _headers(typed: list[str]) -> tuple[tuple[str, str], ...]:
    headers = []
    for text in typed:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or any(c in text for c in "\r\n"):
            raise UseError("--header takes 'Name: value'")
        if not name.strip().isascii() or not all(c.isalnum() or c in "-_" for c in name.strip()):
            raise UseError(f"--header: '{name.strip()}' is no name of a header")
        headers.append((name.strip(), value.strip()))
    return tuple(headers)


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


# --- the run, watched -----------------------------------------------------------------------------------------------


def _dry_run(options: Options) -> int:
    """Asks the server for its limits and shows every cell; no request that generates anything is sent."""
    from flatout.run.begin import connected, planned_cells
    from flatout.run.events import Control
    from flatout.show import document, planned

    if options.launch:
        raise UseError("--dry-run asks a running server for its limits; start it first and give its URL")
    with connected(options, lambda _: None, Control()) as server:
        cells, limits, _ = planned_cells(server.target, options)
        engine, model, budget = server.target.adapter.name, server.target.model, options.max_tokens_total
    document.put(planned.document(cells, limits, options.suite, engine=engine, model=model, budget=budget))
    return EXIT_OK


def _measure(options: Options, *, plain: bool, as_json: bool, page: bool = False) -> int:
    """Runs with a live view (or plain lines), prints the tables, writes the page or says how to make it."""
    from flatout.cli.results import print_summary, print_tables, write_page
    from flatout.run import conduct
    from flatout.run.events import Control

    control = Control()
    with _view(control, plain or as_json) as (listener, restore), _signals(control, restore):
        record, directory = conduct.run(options, listener, control)
    if as_json:
        print_summary(record, directory / "record.json")
    else:
        print_tables(record, directory / "record.json", plain=plain, wide=False)
        print(f"page    {write_page(record, directory) if page else f'flatout report {directory}'}")
    return conduct.exit_code(record)


@contextmanager
def _view(control: Control, plain: bool) -> Iterator[tuple[Listener, Callable[[], None]]]:
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]  # either may be closed (2>&-)
    if plain or len(streams) < 2 or not all(s.isatty() for s in streams) or os.environ.get("TERM") == "dumb":
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
