"""`python -m flatout.demo`: llama.cpp's HTTP server in this process, until told to stop or its parent is gone."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flatout.demo import EngineMissing, needs_extra

ALIAS: Final = "flatout-demo"
KEY_VARIABLE: Final = "FLATOUT_ENGINE_API_KEY"
LISTENING: Final = "flatout-engine listening on "
PARENT_LOOK_S: Final = 0.5
CACHE_RAM_MIB: Final = 1024
"""Room for contexts that have left their slot (about 5 MiB each); llama.cpp's own limit is 8 GiB."""


def default_threads() -> int:
    """All cores but one, which the load generator needs; 1 at least."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flatout.demo", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file; default: the random model in the cache")
    parser.add_argument("--port", type=int, default=0, help="port of 127.0.0.1; 0: any free one, printed")
    parser.add_argument("--parallel", type=int, default=4, help="slots: requests that run at once")
    parser.add_argument("--ctx", type=int, default=16_384, help="tokens of context, divided among the slots")
    parser.add_argument("--threads", type=int, default=default_threads(), help="default: all cores but one")
    parser.add_argument("--api-key", default=os.environ.get(KEY_VARIABLE), help=f"better given by ${KEY_VARIABLE}")
    parser.add_argument("--parent", type=int, help="end when this process is no longer the parent, or stdin closes")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; 1 with a sentence on stderr where it cannot start."""
    options = parse(argv)
    if options.parent is not None:
        threading.Thread(target=_end_with_parent, args=(options.parent,), daemon=True).start()
    try:
        server = _server(options)
    except (EngineMissing, OSError, RuntimeError, ValueError) as error:
        print(f"flatout.demo: {error}", file=sys.stderr)
        return 1
    # The server's own end waits for open streams; nothing here is worth waiting for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    print(f"{LISTENING}{server.listening_address}", flush=True)
    threading.Event().wait()
    return 0


def _server(options: argparse.Namespace) -> Any:
    with needs_extra():
        import xllamacpp
    from flatout.demo.model import ensure_model

    model: Path = options.model or ensure_model()
    if not model.is_file():
        raise ValueError(f"there is no model file {model}")
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {ALIAS}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.use_jinja = True
    params.ui = False
    params.cache_ram_mib = CACHE_RAM_MIB
    params.api_keys = [options.api_key] if options.api_key else []
    return xllamacpp.Server(params)


def _end_with_parent(parent: int) -> None:
    """Ends the process as soon as the parent is gone.

    The pipe on stdin closes at that moment; the look at the parent's id is for the case that a fork of the parent
    keeps the pipe open. (Linux's PR_SET_PDEATHSIG would end the server with the *thread* that started it.)
    """
    try:
        while os.getppid() == parent:
            readable, _, _ = select.select([0], [], [], PARENT_LOOK_S)
            if readable and not os.read(0, 1024):
                break
    finally:  # also where stdin cannot be watched: better no server than one that nobody stops
        os._exit(0)
