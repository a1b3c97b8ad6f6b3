"""Starts the embedded engine as a process of its own, and stops it again."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Final
from urllib.parse import urlsplit

from flatout.demo import needs_extra
from flatout.demo.model import ensure_model
from flatout.demo.serve import ALIAS, KEY_VARIABLE, LISTENING, default_threads

PARALLEL: Final = 4
CTX: Final = 16_384
"""Four slots of 4,096 tokens: the `demo` and `quick` suites fit (2,048 + 128), with room to spare."""

START_S: Final = 60.0
TERMINATE_S: Final = 5.0
LOOK_S: Final = 0.05
REQUIRED: Final = ("xllamacpp", "gguf", "tokenizers")


class EngineFailed(RuntimeError):
    """The embedded engine did not start; the message holds its last words."""


@dataclass(slots=True)
class EngineHandle:
    """A running engine. `url` has no path (`http://127.0.0.1:46433`); `command` holds no secret."""

    url: str
    pid: int
    model: str
    model_path: Path
    command: list[str]
    parallel: int
    ctx: int
    threads: int
    _process: subprocess.Popen[bytes]
    _log: IO[bytes]

    def __enter__(self) -> EngineHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self, n_bytes: int = 2_000) -> str:
        """The end of what the engine printed, by `pread`, since the child writes through the same file position."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        start_at = max(0, size - n_bytes)
        return os.pread(self._log.fileno(), size - start_at, start_at).decode(errors="replace")

    def stop(self) -> None:
        """Ends the process: SIGTERM, after 5 s SIGKILL. Does nothing the second time."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TERMINATE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(TERMINATE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._log.close()


def running(
    *,
    parallel: int = PARALLEL,
    ctx: int = CTX,
    threads: int | None = None,
    api_key: str | None = None,
    port: int = 0,
    directory: Path | None = None,
    timeout_s: float = START_S,
) -> EngineHandle:
    """The embedded engine, answering, on 127.0.0.1; a `with` block stops it at its end, and it ends if this process
    dies.

    `ctx` tokens are divided among `parallel` slots. The model is kept in `directory` (the cache, if None). Raises
    EngineMissing without the `engine` extra, EngineFailed where the server does not answer within `timeout_s`, OSError
    where the model cannot be written.
    """
    if ctx < parallel or parallel < 1:
        raise ValueError(f"{parallel} slots cannot share {ctx} tokens of context")
    with needs_extra():
        for package in REQUIRED:
            if find_spec(package) is None:
                raise ImportError(f"no module named {package!r}")
    model_path, threads = ensure_model(directory), threads or default_threads()
    command = [
        sys.executable, "-m", "flatout.demo", "--model", str(model_path), "--port", str(port),
        "--parallel", str(parallel), "--ctx", str(ctx), "--threads", str(threads), "--parent", str(os.getpid()),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    if api_key:
        environment[KEY_VARIABLE] = api_key
    log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment,
        start_new_session=True,  # Ctrl-C in the terminal is for flatout, which then stops the engine
    )  # fmt: skip
    handle = EngineHandle("", process.pid, ALIAS, model_path, command, parallel, ctx, threads, process, log)
    try:
        handle.url = _wait_until_it_answers(handle, timeout_s)
    except BaseException:
        handle.stop()
        raise
    return handle


def _wait_until_it_answers(handle: EngineHandle, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    url = None
    while time.monotonic() < deadline:
        if not handle.is_running():
            raise EngineFailed(f"The embedded engine ended while it started. Its last words:\n{handle.last_words()}")
        url = url or _listening_at(handle)
        if url and _is_ready(url):
            return url
        time.sleep(LOOK_S)
    waited = f"The embedded engine did not answer within {timeout_s:g} s"
    raise EngineFailed(f"{waited}. Its last words:\n{handle.last_words()}")


def _listening_at(handle: EngineHandle) -> str | None:
    lines = handle.last_words(20_000).splitlines()
    return next((line.removeprefix(LISTENING).strip() for line in lines if line.startswith(LISTENING)), None)


def _is_ready(url: str) -> bool:
    """200 from /health, which llama.cpp answers while it loads with 503, and without a key."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
