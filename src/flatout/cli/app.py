"""The command line: parses, calls, prints; exit codes. Everything heavy is imported where it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout import __version__
from flatout.cli.site import option as _option
from flatout.cli.site import site_app
from flatout.engines import ENGINES
from flatout.show import exports

app = typer.Typer(
    name="flatout",
    help="The speed test for LLM servers: how fast a server reads prompts and writes answers, at every context length "
    "and number of simultaneous requests, and where it runs out of room.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(site_app, name="site")
EXIT_USE = 2
_TEST = "What is measured"
_SERVER = "The server"
_LIMITS = "Limits"
_OUTPUT = "Output"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"flatout {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("run")
def run_command(
    url: Annotated[
        str | None, typer.Argument(help="The server, such as http://localhost:8000 or https://host/v1.")
    ] = None,
    launch: Annotated[str | None, _option("Start this command, measure it, stop it.", panel=_SERVER)] = None,
    model: Annotated[str | None, _option("Model name, if the server has several.", panel=_SERVER)] = None,
    engine: Annotated[
        str | None,
        _option(
            f"Engine, if it is not recognised rightly: {', '.join(ENGINES)}.",
            panel=_SERVER,
        ),
    ] = None,
    engine_version: Annotated[
        str | None, _option("The engine's version, where the server does not tell it.", panel=_SERVER)
    ] = None,
    api: Annotated[
        str, _option("chat, completions or auto (chat where the model has a template).", panel=_SERVER)
    ] = "auto",
    api_key: Annotated[
        str | None, _option("API key (better: --api-key-file, or FLATOUT_API_KEY or OPENAI_API_KEY).", panel=_SERVER)
    ] = None,
    api_key_file: Annotated[Path | None, _option("File that holds the API key.", panel=_SERVER)] = None,
    header: Annotated[list[str] | None, _option("Extra header 'Name: value'; repeatable.", panel=_SERVER)] = None,
    ca: Annotated[Path | None, _option("CA certificates (PEM) to trust for HTTPS.", panel=_SERVER)] = None,
    insecure: Annotated[bool, _option("Do not check the server's certificate.", "--insecure", panel=_SERVER)] = False,
    hardware: Annotated[
        str | None,
        _option("The server's hardware, if it is elsewhere: a TOML/JSON file or gpu=…,memory_gb=….", panel=_SERVER),
    ] = None,
    model_len: Annotated[
        str | None, _option("The model's length, where the server does not tell it (32k).", panel=_SERVER)
    ] = None,
    kv_tokens: Annotated[
        str | None, _option("Tokens of KV cache, where the server does not tell them.", panel=_SERVER)
    ] = None,
    max_running: Annotated[
        int | None, _option("Requests that the server runs at once, where it does not tell.", min=1, panel=_SERVER)
    ] = None,
    suite: Annotated[str, _option("Named suite (see flatout suites) or a TOML file.", panel=_TEST)] = "standard",
    contexts: Annotated[str | None, _option("Context lengths, such as 8k,32k,max (k = 1024).", panel=_TEST)] = None,
    prefill: Annotated[str | None, _option("Context lengths for prefill only, or none.", panel=_TEST)] = None,
    concurrency: Annotated[str | None, _option("Simultaneous requests, such as 1,2,4 or 1-16.", panel=_TEST)] = None,
    time: Annotated[float | None, _option("Seconds of each window, fixed.", min=0.5, panel=_TEST)] = None,
    max_time: Annotated[float | None, _option("Longest window, with --precision.", min=0.5, panel=_TEST)] = None,
    precision: Annotated[
        str | None, _option("End a window early at this 95 % interval, such as 1%; none for fixed.", panel=_TEST)
    ] = None,
    max_output: Annotated[int | None, _option("Tokens of each answer.", min=2, panel=_TEST)] = None,
    requests: Annotated[
        int | None, _option("Fixed-count mode: so many at once, until all are done.", min=1, panel=_TEST)
    ] = None,
    prompts: Annotated[str | None, _option("own (each stream its own context) or shared.", panel=_TEST)] = None,
    corpus: Annotated[Path | None, _option("Make prompts from this text file.", panel=_TEST)] = None,
    tokenizer: Annotated[
        Path | None, _option("tokenizer.json to count answers of a server that counts none.", panel=_TEST)
    ] = None,
    seed: Annotated[int, _option("Seed of the prompts' text (their beginnings differ in each run).", panel=_TEST)] = 0,
    temperature: Annotated[
        float | None, _option("Sampling temperature (default: the server's).", min=0.0, panel=_TEST)
    ] = None,
    extra_body: Annotated[str, _option("JSON object added to each request.", panel=_TEST)] = "{}",
    ignore_eos: Annotated[
        bool, _option("Ask for answers of full length.", "--ignore-eos/--no-ignore-eos", panel=_TEST)
    ] = True,
    warmup: Annotated[bool, _option("Begin with a short unmeasured load.", "--warmup/--no-warmup", panel=_TEST)] = True,
    drain: Annotated[bool, _option("Make the server idle before each cell.", "--drain/--no-drain", panel=_TEST)] = True,
    skip_queued: Annotated[
        bool, _option("Leave out cells with more streams than the server runs at once.", "--skip-queued", panel=_TEST)
    ] = False,
    max_concurrency: Annotated[int | None, _option("Never more than so many at once.", min=1, panel=_LIMITS)] = None,
    max_tokens_total: Annotated[
        int | None, _option("Token budget of the whole run, prompts and answers.", min=1, panel=_LIMITS)
    ] = None,
    connect_timeout: Annotated[float, _option("Seconds to connect.", min=0.1, panel=_LIMITS)] = 10.0,
    first_token_timeout: Annotated[
        float, _option("Seconds of silence before the first token (a long prefill is silent).", min=1.0, panel=_LIMITS)
    ] = 900.0,
    idle_timeout: Annotated[float, _option("Seconds of silence after the first token.", min=1.0, panel=_LIMITS)] = 60.0,
    total_timeout: Annotated[float, _option("Seconds for one request.", min=1.0, panel=_LIMITS)] = 3600.0,
    steady_timeout: Annotated[float, _option("Seconds for the load to become steady.", min=1.0, panel=_LIMITS)] = 300.0,
    drain_timeout: Annotated[float, _option("Seconds for the server to become idle.", min=1.0, panel=_LIMITS)] = 120.0,
    ready_timeout: Annotated[float, _option("Seconds for --launch to answer.", min=1.0, panel=_LIMITS)] = 1800.0,
    load_processes: Annotated[
        int | None, _option("Processes that read streams (default: by the number of streams).", min=1, panel=_LIMITS)
    ] = None,
    load_cores: Annotated[str | None, _option("Cores that these may use, such as 1 or 2,3.", panel=_LIMITS)] = None,
    per_user: Annotated[
        float, _option("Speed for the answer to 'how many at once?', tok/s each.", min=0.1, panel=_OUTPUT)
    ] = 20.0,
    results: Annotated[Path, _option("Where results go.", panel=_OUTPUT)] = Path("results"),
    resume: Annotated[Path | None, _option("Go on with this stopped run's directory.", panel=_OUTPUT)] = None,
    note: Annotated[str | None, _option("A remark for the record.", panel=_OUTPUT)] = None,
    dry_run: Annotated[
        bool, _option("Show the cells, their need, time and tokens; generate nothing.", "--dry-run", panel=_OUTPUT)
    ] = False,
    plain: Annotated[bool, _option("Plain lines instead of the live view.", "--plain", panel=_OUTPUT)] = False,
    json_output: Annotated[
        bool, _option("Print the record's summary as JSON at the end.", "--json", panel=_OUTPUT)
    ] = False,
) -> None:
    """Measure a server and record everything about it."""
    from flatout.cli import command

    given = dict(locals())
    raise typer.Exit(command.guarded(lambda: command.run({k: v for k, v in given.items() if k != "command"}, sys.argv)))


@app.command("demo")
def demo_command(
    suite: Annotated[str, _option("Named suite or a TOML file.")] = "demo",
    results: Annotated[Path, _option("Where results go.")] = Path("results"),
    threads: Annotated[int | None, _option("Threads of the engine (default: all cores but one).", min=1)] = None,
    plain: Annotated[bool, _option("Plain lines instead of the live view.", "--plain")] = False,
    json_output: Annotated[bool, _option("Print the record's summary as JSON at the end.", "--json")] = False,
) -> None:
    """Measure the embedded engine: llama.cpp with a small random-weight model; no server needed."""
    from flatout.cli import command

    raise typer.Exit(command.guarded(lambda: command.demo(suite, results, threads, plain, json_output, sys.argv)))


@app.command("show")
def show_command(
    record: Annotated[Path, typer.Argument(help="A record, or a result directory.")],
    md: Annotated[bool, _option("Markdown, ready to paste.", "--md")] = False,
    json_output: Annotated[bool, _option("The summary as JSON.", "--json")] = False,
    plain: Annotated[bool, _option("No colour, no terminal control.", "--plain")] = False,
    wide: Annotated[bool, _option("All measurements, one row each.", "--all")] = False,
) -> None:
    """Show a record's tables again."""
    from flatout.cli import command

    raise typer.Exit(command.guarded(lambda: command.show(record, md=md, as_json=json_output, plain=plain, wide=wide)))


_HARDWARE = "The hardware's limit"
_Model = Annotated[
    Path | None, _option("config.json, GGUF file, or a directory with one, for the hardware's limit.", panel=_HARDWARE)
]
_Gpu = Annotated[str | None, _option("The GPU's name, if not the record's own.", panel=_HARDWARE)]
_Bandwidth = Annotated[float | None, _option("Memory bandwidth in GB/s.", min=0.1, panel=_HARDWARE)]
_Tflops = Annotated[float | None, _option("Peak in 10^12 dense 16-bit operations/s.", min=0.01, panel=_HARDWARE)]


def _form(md: bool, json_output: bool) -> str:
    return "json" if json_output else "md" if md else "text"


@app.command("report")
def report_command(
    record: Annotated[Path, typer.Argument(help="A record, or a result directory.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: page.html beside the record).")
    ] = None,
    png: Annotated[bool, _option("The matrix as a picture.", "--png")] = False,
    card: Annotated[bool, _option("The matrix as a picture of 1200 x 630, for posts.", "--card")] = False,
    md: Annotated[bool, _option("Tables in Markdown.", "--md")] = False,
    csv: Annotated[bool, _option("Every planned cell as CSV.", "--csv")] = False,
    json_output: Annotated[bool, _option("Every planned cell as JSON rows.", "--json")] = False,
    parquet: Annotated[
        bool, _option("Every planned cell as Parquet (needs the extra 'parquet').", "--parquet")
    ] = False,
    format_: Annotated[str | None, _option(f"One of {', '.join(exports.formats())}.", "--format")] = None,
    model: _Model = None,
    gpu: _Gpu = None,
    bandwidth: _Bandwidth = None,
    tflops: _Tflops = None,
) -> None:
    """Make the page of a record, one self-contained HTML file; or a picture, a table, an export."""
    from flatout.cli import command, reading

    made = {
        "png": png, "card": card, "md": md, "csv": csv, "json": json_output, "parquet": parquet, "format": format_,
    }  # fmt: skip
    work = lambda: reading.report(  # noqa: E731
        record, output=output, made=made, model=model, gpu=gpu, bandwidth=bandwidth, tflops=tflops
    )
    raise typer.Exit(command.guarded(work))


@app.command("compare")
def compare_command(
    paths: Annotated[list[Path], typer.Argument(help="Two or more records, or directories (of repeats, too).")],
    fail_if: Annotated[
        list[str] | None, _option("Exit with 1 if this holds, such as 'total_tok_s < -3%'; repeatable.", "--fail-if")
    ] = None,
    md: Annotated[bool, _option("Markdown, ready to paste.", "--md")] = False,
    json_output: Annotated[bool, _option("As JSON.", "--json")] = False,
    every: Annotated[bool, _option("Every figure of every cell.", "--all")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the comparison as a page (HTML) to this file.")
    ] = None,
) -> None:
    """Compare runs cell by cell: faster, slower, or no difference seen."""
    from flatout.cli import command, reading

    form = _form(md, json_output)
    work = lambda: reading.compare(paths, fail_if=fail_if or [], form=form, every=every, output=output)  # noqa: E731
    raise typer.Exit(command.guarded(work))


@app.command("lint")
def lint_command(
    path: Annotated[Path, typer.Argument(help="A record, or a published table as CSV or JSON.")],
    md: Annotated[bool, _option("Markdown, ready to paste.", "--md")] = False,
    json_output: Annotated[bool, _option("As JSON.", "--json")] = False,
    model: _Model = None,
    gpu: _Gpu = None,
    bandwidth: _Bandwidth = None,
    tflops: _Tflops = None,
) -> None:
    """Check whether a record or a published table agrees with itself. Exit code 1 if not."""
    from flatout.cli import command, reading

    form = _form(md, json_output)
    work = lambda: reading.lint(path, form=form, model=model, gpu=gpu, bandwidth=bandwidth, tflops=tflops)  # noqa: E731
    raise typer.Exit(command.guarded(work))


@app.command("limits")
def limits_command(
    path: Annotated[Path | None, typer.Argument(help="A record, or a published table as JSON.")] = None,
    model: _Model = None,
    gpu: _Gpu = None,
    bandwidth: _Bandwidth = None,
    tflops: _Tflops = None,
    weight_bits: Annotated[
        float | None, _option("Bits of one weight, where the config does not say.", min=0.5, panel=_HARDWARE)
    ] = None,
    contexts: Annotated[str, _option("Contexts, where there is no record.")] = "8k,32k,128k",
    concurrency: Annotated[str, _option("Simultaneous requests, where there is no record.")] = "1-32",
    md: Annotated[bool, _option("Markdown, ready to paste.", "--md")] = False,
) -> None:
    """Show what the hardware allows at most, and which share of it was reached."""
    from flatout.cli import command, reading

    work = lambda: reading.limits(  # noqa: E731
        path, model=model, gpu=gpu, bandwidth=bandwidth, tflops=tflops, weight_bits=weight_bits, contexts=contexts,
        concurrency=concurrency, md=md,
    )  # fmt: skip
    raise typer.Exit(command.guarded(work))


@app.command("calibrate")
def calibrate_command(
    quick: Annotated[bool, _option("Half a minute instead of a minute and three quarters.", "--quick")] = False,
    rig_cores: Annotated[str | None, _option("Cores of the server of known speed, such as 0.")] = None,
    load_cores: Annotated[str | None, _option("Cores of the process that reads, such as 1.")] = None,
    md: Annotated[bool, _option("Markdown, ready to paste.", "--md")] = False,
    json_output: Annotated[bool, _option("As JSON.", "--json")] = False,
    plain: Annotated[bool, _option("No colour, no terminal control.", "--plain")] = False,
) -> None:
    """Measure known speeds on this machine: truth beside reading, and how far this machine can be trusted."""
    from flatout.cli import command

    form = "plain" if plain and not (md or json_output) else _form(md, json_output)
    work = lambda: command.calibrate(quick, rig_cores, load_cores, form)  # noqa: E731
    raise typer.Exit(command.guarded(work))


@app.command("publish")
def publish_command(
    record: Annotated[Path, typer.Argument(help="A record, or a result directory.")],
    to: Annotated[
        str | None, _option("The site (default: FLATOUT_SITE, else http://127.0.0.1:8321).", "--to", metavar="URL")
    ] = None,
    token_file: Annotated[
        Path | None, _option("File with the token (default: FLATOUT_TOKEN, else ~/.config/flatout/token).")
    ] = None,
    samples: Annotated[bool, _option("Send the samples, too: each request's stamps.", "--samples")] = False,
    replaces: Annotated[str | None, _option("A run of yours that this one corrects.", metavar="ID")] = None,
    yes: Annotated[bool, _option("Do not ask.", "--yes", "-y")] = False,
    dry_run: Annotated[bool, _option("Show what would be sent; ask and send nothing.", "--dry-run")] = False,
    json_output: Annotated[
        bool, _option("The answer as JSON; with --dry-run, the JSON that would be sent.", "--json")
    ] = False,
    insecure_http: Annotated[
        bool, _option("Send the token over plain HTTP to another machine.", "--insecure-http")
    ] = False,
) -> None:
    """Publish a run: shows exactly what will be sent, asks, and prints the link."""
    from flatout.cli import command, hosting

    work = lambda: hosting.publish(  # noqa: E731
        record, to=to, token_file=token_file, samples=samples, replaces=replaces, yes=yes, dry_run=dry_run,
        as_json=json_output, insecure_http=insecure_http,
    )  # fmt: skip
    raise typer.Exit(command.guarded(work))


@app.command("suites")
def suites_command() -> None:
    """List the named suites and what each measures."""
    from flatout.cli import command

    raise typer.Exit(command.guarded(command.suites))


@app.command("rig", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def rig_command(context: typer.Context) -> None:
    """Run a server of exactly known speed (flatout rig --help lists its knobs)."""
    from flatout.cli import command

    raise typer.Exit(command.guarded(lambda: command.rig(context.args)))


def main() -> None:
    """Entry point."""
    app()
