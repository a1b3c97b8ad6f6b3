"""What does each tool report about a server whose speed is known?

    python benchmarks/peers.py [--md] [--tools flatout,aiperf,…] [--scenes clean,stall,…] [--seconds 8]

The server is flatout's rig: 8 streams of 100 tok/s, TTFT 50 ms, with one fault planted a scene. Truth is the rig's own
log of that tool's run (see peer_scenes.known). Every tool gets the same load: 8 at once, answers of 200 tokens, for
about --seconds. A cell is "true → reported (error)"; – is "not reported"; "says" is what the tool itself said of its
figures.

Other tools stand in environments of their own; `sh benchmarks/peers.sh` makes them. Each is looked for in this order,
and skipped with a word where absent:

1. FLATOUT_PEER_AIPERF, FLATOUT_PEER_GUIDELLM, FLATOUT_PEER_LLAMA_BENCHY, FLATOUT_PEER_VLLM: its program, or the folder
   which holds it (for vLLM: its environment's python);
2. .venv-peers/<tool>/bin, for vLLM .venv-vllm/bin;
3. PATH.

They get the rig's own tokenizer, and, where they fetch a text, one from this machine; nothing leaves it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatout
from flatout.rig import running
from peer_env import REPOSITORY, TOOLS, Absent, book, offline, program, tokenizer, version
from peer_scenes import OUTPUT, RATE, SCENES, STREAMS, TTFT_MS, Known, Scene, known, planted

# -- the commands


@dataclass(frozen=True)
class Ask:
    """One run of a tool: `rounds` answers of `output` tokens on each of `streams` streams."""

    url: str
    streams: int
    output: int
    rounds: int
    folder: str
    book_url: str = ""

    @property
    def out(self) -> Path:
        return Path(self.folder) / "out"


def aiperf(ask: Ask) -> list[str]:
    tokenizer(Path(ask.folder))
    return [
        program("aiperf"), "profile", "-m", "rig-model", "--url", ask.url, "--endpoint-type", "chat", "--streaming",
        "--concurrency", str(ask.streams), "--request-count", str(ask.streams * ask.rounds), "--tokenizer", REPOSITORY,
        "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(ask.output), "--extra-inputs",
        "ignore_eos:true", "--ui", "none", "--random-seed", "1", "--artifact-dir", str(ask.out),
    ]  # fmt: skip


def llama_benchy(ask: Ask) -> list[str]:
    return [
        program("llama-benchy"), "--base-url", f"{ask.url}/v1", "--model", "rig-model", "--tokenizer",
        str(tokenizer(Path(ask.folder))), "--pp", "64", "--tg", str(ask.output), "--exact-tg", "--concurrency",
        str(ask.streams), "--runs", str(ask.rounds), "--latency-mode", "none", "--no-warmup", "--skip-coherence",
        "--no-adapt-prompt", "--format", "json", "--save-result", f"{ask.out}.json", "--book-url", ask.book_url,
    ]  # fmt: skip


def guidellm(ask: Ask) -> list[str]:
    # Without its validation: it asks for /health, which not every server has.
    return [
        program("guidellm"), "run", "--backend",
        f"kind=openai_http,target={ask.url},model=rig-model,validate_backend=false", "--profile",
        f"kind=concurrent,streams={ask.streams}", "--constraint", f"kind=max_requests,count={ask.streams * ask.rounds}",
        "--tokenizer", f"kind=hf_auto,model={tokenizer(Path(ask.folder))}", "--data",
        f"kind=synthetic_text,prompt_tokens=64,output_tokens={ask.output}", "--output",
        f"kind=json,path={ask.out}.json", "--disable-console-interactive",
    ]  # fmt: skip


VLLM_BENCH_SERVE = (
    "import argparse; from vllm.benchmarks import serve; parser = argparse.ArgumentParser(); "
    "serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
"""What `vllm bench serve` runs; called so, since that command fails in the CPU build."""


def vllm(ask: Ask) -> list[str]:
    return [
        program("vllm"), "-c", VLLM_BENCH_SERVE, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", ask.url, "--model", "rig-model", "--tokenizer", str(tokenizer(Path(ask.folder))),
        "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", str(ask.output), "--ignore-eos",
        "--num-prompts", str(ask.streams * ask.rounds), "--max-concurrency", str(ask.streams), "--save-result",
        "--result-dir", ask.folder, "--result-filename", "out.json",
    ]  # fmt: skip


COMMANDS: dict[str, Callable[[Ask], list[str]]] = {
    "aiperf": aiperf, "llama-benchy": llama_benchy, "guidellm": guidellm, "vllm": vllm,
}  # fmt: skip


def absent(name: str) -> str | None:
    """Why the tool cannot be used, None if it can."""
    try:
        version(name)
    except Absent as error:
        return str(error)
    return None


def by_time(
    name: str, url: str, streams: int, rate: float, folder: str, book_url: str = ""
) -> Callable[[float], list[str]]:
    """For cost.py: the command of a run of about so many seconds, in answers of three."""

    def made(seconds: float) -> list[str]:
        output = max(32, round(rate * 3))
        return COMMANDS[name](Ask(url, streams, output, max(1, round(seconds / 3)), folder, book_url))

    return made


# -- what they report


@dataclass
class Report:
    """As the tool says it; None: it does not. `says`: its own doubts about its figures."""

    total_tok_s: float | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None
    says: str = ""
    window_ns: tuple[int, int] | None = None


class NoReport(Exception):
    """The tool's export has not the shape that is read here; the message says what is missing."""


def dig(content: Any, *path: str | int) -> float | None:
    """The number at `path`, None where there is none (or one that is not finite)."""
    for step in path:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return None
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return float(content) if abs(content) < float("inf") else None


def read_aiperf(content: Any, said: str) -> Report:
    """`profile_export_aiperf.json`. Its doubts about prompts are left out: they come from the rig's small tokenizer."""
    doubts = {
        "requests of another length than asked": dig(content, "osl_mismatch_count", "avg"),
        "% at most between usage and its own count": dig(content, "usage_completion_tokens_diff_pct", "max"),
        "% of the requests failed": dig(content, "request_error_rate", "avg"),
    }
    return Report(
        dig(content, "output_token_throughput", "avg"),
        dig(content, "time_to_first_token", "p50"),
        dig(content, "inter_token_latency", "p50"),
        "; ".join(f"{value:g} {name}" for name, value in doubts.items() if value),
    )


def read_guidellm(content: Any, said: str) -> Report:
    """Its total is over all requests, as it prints it; latencies over those that were completed."""
    bench = _first(content, "benchmarks")
    told = bench.get("warnings")
    doubts = [
        str(w.get("code", w)) if isinstance(w, dict) else str(w) for w in (told if isinstance(told, list) else [])
    ]
    lost = sum(int(dig(bench, "metrics", "request_totals", kind) or 0) for kind in ("errored", "incomplete"))
    return Report(
        dig(bench, "metrics", "output_tokens_per_second", "total", "mean"),
        dig(bench, "metrics", "time_to_first_token_ms", "successful", "percentiles", "p50"),
        dig(bench, "metrics", "inter_token_latency_ms", "successful", "percentiles", "p50"),
        "; ".join(doubts + ([f"{lost} requests errored or incomplete"] if lost else [])),
    )


def read_llama_benchy(content: Any, said: str) -> Report:
    """Its means: it reports no medians. The time between tokens is 1 / its per-request tok/s; it reports none."""
    bench = _first(content, "benchmarks")
    rate = dig(bench, "tg_req_throughput", "mean")
    errors = [line.strip() for line in said.splitlines() if line.startswith("Error")]
    return Report(
        dig(bench, "tg_throughput", "mean"),
        dig(bench, "e2e_ttft", "mean"),
        1000 / rate if rate else None,
        "; ".join(errors[:2]),
    )


def read_vllm(content: Any, said: str) -> Report:
    failed = dig(content, "failed")
    return Report(
        dig(content, "output_throughput"),
        dig(content, "median_ttft_ms"),
        dig(content, "median_itl_ms"),
        f"{failed:g} requests failed" if failed else "",
    )


def _first(content: Any, name: str) -> dict[str, Any]:
    try:
        found = content[name][0]
    except (KeyError, IndexError, TypeError):
        raise NoReport(f"no {name} in its export") from None
    if not isinstance(found, dict):
        raise NoReport(f"{name} in its export hold no object")
    return found


READERS: dict[str, tuple[str, Callable[[Any, str], Report]]] = {
    "aiperf": ("out/**/profile_export_aiperf.json", read_aiperf),
    "guidellm": ("out.json", read_guidellm),
    "llama-benchy": ("out.json", read_llama_benchy),
    "vllm": ("out.json", read_vllm),
}
"""The export, below the run's folder, and what reads it (with what the tool printed)."""


def read(name: str, folder: Path, said: str) -> Report:
    """What the tool exported into `folder`. Raises NoReport."""
    pattern, reader = READERS[name]
    found = next(folder.glob(pattern), None)
    if found is None:
        raise NoReport("no export was written")
    try:
        return reader(json.loads(found.read_text()), said)
    except ValueError as error:
        raise NoReport(f"its export is no JSON: {error}") from None


def last_words(said: str, length: int = 240) -> str:
    """The end of what a tool printed, on one line, cut at the front."""
    words = " ".join(said.split())
    return words if len(words) <= length else "… " + words[-length:]


def bounded(words: list[str], timeout_s: float, **how: Any) -> tuple[int | None, str]:
    """Exit code (None: it was ended after `timeout_s`, with all that it started) and what was printed."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True, **how)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)
        said.seek(0)
        return code, said.read().decode(errors="replace")


def run_tool(name: str, ask: Ask, timeout_s: float) -> Report:
    """Raises NoReport, with the tool's last words."""
    code, said = bounded(COMMANDS[name](ask), timeout_s, env=offline(ask.folder), cwd=ask.folder)
    end = f"did not end within {timeout_s:.0f} s" if code is None else f"exit {code}"
    try:
        return read(name, Path(ask.folder), said)
    except NoReport as error:
        raise NoReport(f"{error} ({end}): {last_words(said)}") from None


def run_flatout(ask: Ask, seconds: float) -> Report:
    """Raises NoReport."""
    words = [
        sys.executable, "-m", "flatout", "run", ask.url, "--contexts", "256", "--prefill", "none", "--concurrency",
        str(ask.streams), "--time", str(seconds), "--max-output", str(ask.output), "--no-warmup", "--plain",
        "--results", str(ask.out),
    ]  # fmt: skip
    code, said = bounded(words, seconds + 200)
    found = next(ask.out.rglob("record.json"), None)
    if found is None:
        raise NoReport(f"no record (exit {code}): {last_words(said)}")
    return read_flatout(json.loads(found.read_text()))


def read_flatout(record: Any) -> Report:
    cell = next(c for c in record["cells"] if c["phase"] == "decode")
    flags = ", ".join(flag["name"].replace("_", " ") for flag in cell["flags"])
    if not cell["decode"]:
        raise NoReport(f"{cell['status']}: {cell['reason']}")
    words = [cell["status"].replace("_", " ")] if cell["status"] != "valid" else []
    return Report(
        dig(cell, "decode", "total_tok_s", "value"),
        dig(cell, "decode", "ttft_ms", "p50"),
        dig(cell, "decode", "itl_ms", "p50"),
        ": ".join([*words, flags] if flags else words),
        (cell["window"]["open_ns"], cell["window"]["close_ns"]),
    )


# -- the table


FIGURES = {"total_tok_s": ("total tok/s", 1), "ttft_p50_ms": ("TTFT p50 ms", 1), "itl_p50_ms": ("ITL p50 ms", 2)}
OFF = 5.0  # in % or ms: printed bold beyond it
DEFINITIONS = (
    f"**Bold**: off by over {OFF:g} % or {OFF:g} ms. One run each.",
    "Total: true is what was sent over the steady part of the run. AIPerf, GuideLLM and vllm bench serve divide all "
    "tokens by the whole run, start and end included; llama-benchy leaves prefills and pauses out, "
    "and averages its batches.",
    "TTFT: true is from the request's arrival at the server, reported from the tool's own send. llama-benchy has means "
    "only.",
    "ITL: true, and flatout's, weigh tokens; AIPerf's and GuideLLM's are means of a request; vllm bench serve's are "
    "gaps between events; llama-benchy reports none: 1 / its tok/s per request.",
    "Left over: true is what the server does for the tool's requests alone.",
)


def compare(name: str, scene: Scene, seconds: float, cores: set[int]) -> tuple[Known, Report | str]:
    """One run: what was, and what the tool reports, or why it reports nothing."""
    rounds = max(2, round(seconds / (OUTPUT / RATE)))
    with tempfile.TemporaryDirectory() as folder, book() as book_url, running(scene.config(), cores=cores) as rig:
        ask = Ask(rig.url, STREAMS, OUTPUT, rounds, folder, book_url)
        report: Report | str
        with planted(rig, scene):
            try:
                report = run_flatout(ask, seconds) if name == "flatout" else run_tool(name, ask, seconds + 180)
            except NoReport as error:
                return known(rig.log(), scene), str(error)
        return known(rig.log(), scene, report.window_ns), report


def shown(figure: str, true: float | None, reported: float | None) -> str:
    """ "true → reported (error)"; the error of TTFT in ms, of the others in %."""
    digits = FIGURES[figure][1]
    if true is None or reported is None:
        return "–" if true is None else f"{true:.{digits}f} → –"
    off = reported - true if figure == "ttft_p50_ms" else (reported / true - 1) * 100
    error = f"{round(off, 1) + 0.0:+.1f} {'ms' if figure == 'ttft_p50_ms' else '%'}"
    mark = "**" if abs(off) > OFF else ""
    return f"{true:.{digits}f} → {mark}{reported:.{digits}f} ({error}){mark}"


def scene_rows(scene: Scene, found: Mapping[str, tuple[Known, Report | str]], remarks: list[str]) -> list[list[str]]:
    """One row a figure, one column a tool; and what each says. Words of tools that report nothing go to `remarks`."""
    rows: list[list[str]] = []
    for figure, (title, _) in FIGURES.items():
        cells = []
        for true, report in found.values():
            reported = None if isinstance(report, str) else getattr(report, figure)
            cells.append(shown(figure, getattr(true, figure), reported))
        rows.append([scene.about if not rows else "", title, *cells])
    says = []
    for name, (_, report) in found.items():
        if isinstance(report, str):
            remarks.append(f"{name}, {scene.about}: {report}")
            says.append(f"reports nothing [{len(remarks)}]")
        else:
            says.append(report.says or "nothing")
    return [*rows, ["", "says", *says]]


def laid_out(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in (head, *rows)
    )


def present(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Versions of the tools that are there, and why the others are not."""
    versions, missing = {}, {}
    for name in names:
        try:
            versions[name] = flatout.__version__ if name == "flatout" else version(name)
        except Absent as error:
            missing[name] = str(error)
    return versions, missing


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--md", action="store_true", help="print a Markdown table")
    parser.add_argument("--tools", default=",".join(["flatout", *TOOLS]))
    parser.add_argument("--scenes", default=",".join(SCENES), help=f"of {', '.join(SCENES)}")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rig-core", type=int, default=0)
    args = parser.parse_args(words)
    scenes = args.scenes.split(",")
    if unknown := [key for key in scenes if key not in SCENES]:
        parser.error(f"no such scene: {', '.join(unknown)}")
    versions, missing = present(args.tools.split(","))
    titles = {name: TOOLS[name].title if name in TOOLS else name for name in (*versions, *missing)}
    begun, load = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), os.getloadavg()[0]
    rows: list[list[str]] = []
    remarks: list[str] = []
    for key in scenes:
        found = {}
        for name in versions:
            print(f"{key}: {name} …", file=sys.stderr, flush=True)
            found[titles[name]] = compare(name, SCENES[key], args.seconds, {args.rig_core})
        rows += scene_rows(SCENES[key], found, remarks)
    head = ["planted", "true → reported", *(f"{titles[name]} {told}" for name, told in versions.items())]
    print(f"{begun}; {STREAMS} streams of {RATE:g} tok/s, TTFT {TTFT_MS:g} ms; {os.cpu_count()} cores, load average "
          f"{load:.1f} before, {os.getloadavg()[0]:.1f} after\n")  # fmt: skip
    print(laid_out(head, rows, args.md) + "\n")
    for i, remark in enumerate(remarks, start=1):
        print(f"[{i}] {remark}")
    for name, why in missing.items():
        print(f"{titles[name]}: skipped, {why}")
    print("\n".join(f"- {line}" if args.md else line for line in DEFINITIONS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
