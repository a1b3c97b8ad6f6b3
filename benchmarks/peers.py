"""What does each tool report about a server whose speed is known?

    python benchmarks/peers.py [--tools flatout,aiperf,llama-benchy] [--scenes clean,stall] [--seconds 8]

The server is flatout's rig: 8 streams of 100 tok/s, TTFT 50 ms, with one fault planted a row. Truth is the rig's own
log: total tok/s = tokens sent while all 8 requests ran, after each had a first token, over that time (with the work of
others planted: what the server does without it; for flatout, over the window that it names); TTFT p50 and ITL p50 over
the tool's own requests. Other tools stand in environments of their own:

    FLATOUT_PEER_AIPERF=…/bin  FLATOUT_PEER_LLAMA_BENCHY=…/bin  FLATOUT_PEER_GUIDELLM=…/bin  FLATOUT_PEER_VLLM=…/bin

and are skipped with a word where absent. They get the rig's own tokenizer, and, where they
fetch a text, one from this machine; nothing leaves it. A figure is shown as reported, with its error; – is
"not reported". "flagged": the tool itself said that the figure cannot be trusted.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flatout.rig import RigConfig, RigHandle, Truth, running
from flatout.rig.tokens import Ring, pieces
from flatout.rig.truth import SENT

STREAMS, RATE, TTFT_MS, OUTPUT = 8, 100.0, 50.0, 200
TOOLS = {
    "aiperf": ("FLATOUT_PEER_AIPERF", "aiperf"),
    "llama-benchy": ("FLATOUT_PEER_LLAMA_BENCHY", "llama-benchy"),
    "guidellm": ("FLATOUT_PEER_GUIDELLM", "guidellm"),
    "vllm": ("FLATOUT_PEER_VLLM", "vllm"),
}


class Absent(Exception):
    """The tool is not there."""


def absent(name: str) -> str | None:
    """Why the tool cannot be used, None if it can."""
    try:
        program(name)
    except Absent as error:
        return str(error)
    return None


def program(name: str) -> str:
    """The tool's program. Raises Absent."""
    if name not in TOOLS:
        raise Absent(f"no such tool is known here ({', '.join(TOOLS)})")
    variable, file = TOOLS[name]
    folder = os.environ.get(variable)
    if not folder:
        raise Absent(f"not installed ({variable} names no environment)")
    found = Path(folder) / file
    if not found.is_file():
        raise Absent(f"{variable} names {folder}, which has no {file}")
    return str(found)


# -- what the tools need to run without a network


REPOSITORY = "flatout/words"
PIECE = r" ?[^\W\d_]{1,6}|\d{1,3}| ?[^\w\s]{1,3}|_{1,4}|\s{1,8}"  # as flatout.rig.tokens cuts text


def tokenizer(folder: Path) -> Path:
    """The rig's tokenizer as files that transformers reads. They lie where the Hugging Face cache would
    keep REPOSITORY, for tools that take no path."""
    cached = folder / "hf" / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    made = cached / "snapshots" / ("0" * 40)
    made.mkdir(parents=True, exist_ok=True)
    (cached / "refs").mkdir(exist_ok=True)
    (cached / "refs" / "main").write_text("0" * 40)
    words = sorted(set(pieces(text())))
    vocabulary = {"[UNK]": 0} | {word: i + 1 for i, word in enumerate(words)}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": PIECE}, "behavior": "Isolated", "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (made / "tokenizer.json").write_text(json.dumps(content))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 1_000_000}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    (made / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return made


def text(tokens: int = 30_000) -> str:
    ring = Ring.of_sentences(7)
    return "".join(json.loads(b'"%b"' % ring.text(at, 1000)) for at in range(0, tokens, 1000))


@contextmanager
def book() -> Iterator[str]:
    """The URL of a text on this machine, for tools that fetch one."""
    data = text().encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/book.txt"
    finally:
        server.shutdown()


def offline(folder: str) -> dict[str, str]:
    """An environment in which nothing is fetched and nothing of the user's is written."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/hf", "TRANSFORMERS_OFFLINE": "1", "HOME": folder,
        "XDG_CACHE_HOME": f"{folder}/.cache",
        "NO_PROXY": "*", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200",
    }  # fmt: skip


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
    return [
        program("guidellm"), "benchmark", "run", "--target", ask.url, "--model", "rig-model", "--profile",
        "concurrent", "--rate", str(ask.streams), "--max-requests", str(ask.streams * ask.rounds), "--processor",
        str(tokenizer(Path(ask.folder))), "--data", f"prompt_tokens=64,output_tokens={ask.output}", "--output-dir",
        str(ask.out), "--outputs", "json",
    ]  # fmt: skip


def vllm(ask: Ask) -> list[str]:
    return [
        program("vllm"), "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", ask.url, "--model", "rig-model", "--tokenizer", str(tokenizer(Path(ask.folder))),
        "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", str(ask.output), "--ignore-eos",
        "--num-prompts", str(ask.streams * ask.rounds), "--max-concurrency", str(ask.streams), "--save-result",
        "--result-dir", ask.folder, "--result-filename", "out.json",
    ]  # fmt: skip


COMMANDS: dict[str, Callable[[Ask], list[str]]] = {
    "aiperf": aiperf, "llama-benchy": llama_benchy, "guidellm": guidellm, "vllm": vllm,
}  # fmt: skip


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
    """As the tool says it; None: it does not."""

    total_tok_s: float | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None
    flagged: str = ""
    window_ns: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)


def _dig(content: Any, *path: str | int) -> float | None:
    for step in path:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return None
    return float(content) if isinstance(content, int | float) else None


def read_aiperf(ask: Ask) -> Report:
    content = json.loads(next(ask.out.rglob("profile_export_aiperf.json")).read_text())
    return Report(
        _dig(content, "output_token_throughput", "avg"),
        _dig(content, "time_to_first_token", "p50"),
        _dig(content, "inter_token_latency", "p50"),
    )


def read_llama_benchy(ask: Ask) -> Report:
    """Its means: it reports no medians. Its TTFT is to the first token, without the latency that it takes off."""
    content = json.loads(Path(f"{ask.out}.json").read_text())
    row = content["benchmarks"][0]
    ttft = _dig(row, "e2e_ttft", "mean")
    rate = _dig(row, "tg_req_throughput", "mean")
    return Report(_dig(row, "tg_throughput", "mean"), ttft, 1000 / rate if rate else None)


def read_guidellm(ask: Ask) -> Report:
    content = json.loads(next(ask.out.rglob("*.json")).read_text())
    found = content["benchmarks"][0]["metrics"]
    return Report(
        _dig(found, "output_tokens_per_second", "successful", "mean"),
        _dig(found, "time_to_first_token_ms", "successful", "percentiles", "p50"),
        _dig(found, "inter_token_latency_ms", "successful", "percentiles", "p50"),
    )


def read_vllm(ask: Ask) -> Report:
    content = json.loads((Path(ask.folder) / "out.json").read_text())
    return Report(_dig(content, "output_throughput"), _dig(content, "median_ttft_ms"), _dig(content, "median_itl_ms"))


READERS: dict[str, Callable[[Ask], Report]] = {
    "aiperf": read_aiperf, "llama-benchy": read_llama_benchy, "guidellm": read_guidellm, "vllm": read_vllm,
}  # fmt: skip


def run_flatout(ask: Ask, seconds: float) -> Report:
    words = [
        sys.executable, "-m", "flatout", "run", ask.url, "--contexts", "256", "--prefill", "none", "--concurrency",
        str(ask.streams), "--time", str(seconds), "--max-output", str(ask.output), "--no-warmup", "--plain",
        "--results", str(ask.out),
    ]  # fmt: skip
    subprocess.run(words, capture_output=True, timeout=seconds + 120)
    record = json.loads(next(ask.out.rglob("record.json")).read_text())
    cell = next(c for c in record["cells"] if c["phase"] == "decode")
    found = cell["decode"] or {}
    flags = ", ".join(flag["name"].replace("_", " ") for flag in cell["flags"])
    if not found:
        return Report(flagged=f"{cell['status']}: {cell['reason']}")
    return Report(
        _dig(found, "total_tok_s", "value"), _dig(found, "ttft_ms", "p50"), _dig(found, "itl_ms", "p50"),
        f"{cell['status']}: {flags}" if flags and cell["status"] != "valid" else flags,
        (cell["window"]["open_ns"], cell["window"]["close_ns"]),
    )  # fmt: skip


def run_tool(name: str, ask: Ask, timeout_s: float) -> Report:
    done = subprocess.run(
        COMMANDS[name](ask), capture_output=True, timeout=timeout_s, env=offline(ask.folder), cwd=ask.folder
    )
    try:
        return READERS[name](ask)
    except (OSError, StopIteration, ValueError, LookupError) as error:
        said = (done.stderr or done.stdout)[-300:].decode(errors="replace").strip()
        return Report(notes=[f"{name} reported nothing ({type(error).__name__}; exit {done.returncode}): {said}"])


# -- the scenes


@dataclass(frozen=True)
class Scene:
    about: str
    knobs: dict[str, Any] = field(default_factory=dict)
    stall_s: float = 0.0
    plant: dict[str, Any] | None = None


SCENES = {
    "clean": Scene("nothing planted"),
    "stall": Scene("the server is silent for 2 s", stall_s=2.0),
    "leftover": Scene(
        "8 requests left over from before",
        {"capacity_tok_s": STREAMS * RATE},
        plant={"requests": 8, "tokens": 1500, "context": 256},
    ),
    "four": Scene("4 tokens an event, usage only at the end", {"tokens_per_event": 4}),
    "role": Scene("the role's event comes at once", {"role_event": "at_once"}),
}


@dataclass(frozen=True)
class Known:
    """What really was, by the rig's log."""

    total_tok_s: float
    ttft_p50_ms: float
    itl_p50_ms: float


def known(truth: Truth, window_ns: tuple[int, int] | None) -> Known:
    """See the module's text. Requests of another length (probes) are not the tool's measured ones."""
    mine = np.flatnonzero((truth.max_tokens >= OUTPUT // STREAMS) & np.array([r != "leftover" for r in truth.reason]))
    mine = np.array([i for i in mine if truth.sent_tokens[i] > 0], dtype=np.int64)
    start, end = truth.arrival_ns[mine], np.where(truth.end_ns[mine] < 0, truth.taken_ns, truth.end_ns[mine])
    edges = np.unique(np.concatenate((start, end, truth.first_ns[mine])))
    middle = (edges[1:] + edges[:-1]) / 2
    counts = ((start[None, :] <= middle[:, None]) & (end[None, :] > middle[:, None])).sum(axis=1)
    begun = np.sort(truth.first_ns[mine])[STREAMS - 1]  # all of the launch have a token: the ramp is over
    full = (counts == STREAMS) & (edges[:-1] >= begun)
    seconds = float(np.diff(edges)[full].sum()) / 1e9
    sent = np.isin(truth.event_request, mine) & ((truth.event_flags & SENT) > 0)
    which = np.clip(np.searchsorted(edges, truth.event_ns[sent], side="right") - 1, 0, len(full) - 1)
    tokens = float(truth.event_tokens[sent][full[which]].sum())
    total = truth.tok_s(*window_ns) if window_ns else tokens / seconds
    itl = truth.itl_ms(*(window_ns or (int(start.min()), int(end.max()))))
    return Known(total, float(np.median(truth.ttft_ms()[mine])), float(np.median(itl)))


@contextmanager
def planted(rig: RigHandle, scene: Scene, seconds: float) -> Iterator[None]:
    """Plants the scene's fault: left-over work now, a silence once the tool's load has begun."""
    if scene.plant:
        rig.control(plant=scene.plant)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            log = rig.log()
            long_ones = (log.max_tokens >= OUTPUT // 4) & (log.sent_tokens > OUTPUT // 2)
            if int(long_ones.sum()) >= STREAMS:
                rig.control(stall_now_s=scene.stall_s)
                return

    thread = threading.Thread(target=watch, daemon=True)
    if scene.stall_s:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if scene.stall_s:
            thread.join(5.0)


def compare(name: str, scene: Scene, seconds: float, cores: set[int]) -> tuple[Known, Report]:
    config = RigConfig.from_dict({"dialect": "vllm", "ttft_ms": TTFT_MS, "decode_tok_s": RATE, **scene.knobs})
    rounds = max(2, round(seconds / (OUTPUT / RATE)))
    with tempfile.TemporaryDirectory() as folder, book() as book_url, running(config, cores=cores) as rig:
        ask = Ask(rig.url, STREAMS, OUTPUT, rounds, folder, book_url)
        with planted(rig, scene, seconds):
            report = run_flatout(ask, seconds) if name == "flatout" else run_tool(name, ask, seconds + 180)
        return known(rig.log(), report.window_ns), report


def shown(value: float | None, true: float, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f} ({(value / true - 1) * 100:+.1f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default="flatout,aiperf,llama-benchy,guidellm,vllm")
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rig-core", type=int, default=0)
    args = parser.parse_args()
    tools = []
    for name in args.tools.split(","):
        why = None if name == "flatout" else absent(name)
        if why is None:
            tools.append(name)
        else:
            print(f"{name}: skipped, {why}\n")
    print(f"{STREAMS} streams of {RATE:g} tok/s; load average {os.getloadavg()[0]:.1f}\n")
    figures = ("total tok/s", "TTFT p50 ms", "ITL p50 ms")
    print(f"| planted | tool | {' | '.join(f'{name}, true | reported' for name in figures)} | flagged |")
    print("|---|---|---|---|---|---|---|---|---|")
    remarks = []
    for key in args.scenes.split(","):
        scene = SCENES[key]
        for name in tools:
            true, report = compare(name, scene, args.seconds, {args.rig_core})
            total = STREAMS * RATE if scene.plant else true.total_tok_s
            itl = 1000.0 / RATE if scene.plant else true.itl_p50_ms
            cells = (
                scene.about, name, f"{total:.1f}", shown(report.total_tok_s, total, 1), f"{true.ttft_p50_ms:.1f}",
                shown(report.ttft_p50_ms, true.ttft_p50_ms, 1), f"{itl:.2f}", shown(report.itl_p50_ms, itl, 2),
                report.flagged or "no",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)
            remarks += report.notes
    for remark in remarks:
        print(f"\n- {remark}")


if __name__ == "__main__":
    main()
