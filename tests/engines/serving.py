"""A real engine out of an environment of its own, on a free port of 127.0.0.1 and always ended; flatout against it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from flatout import record as rec

MODEL_MAKER = Path(__file__).with_name("tiny_model.py")
FLATOUT = Path(sys.executable).with_name("flatout")
LOG_SHOWN_BYTES = 6_000
# numpy's library would otherwise be told to run as on another machine.
LEFT_OUT = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    pid: int
    log: Path
    started_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One `flatout run`, ended. `directory`: of its results; None if there is none."""

    code: int
    output: str
    seconds: float
    directory: Path | None

    @property
    def record(self) -> rec.Record:
        assert self.directory is not None, self.output
        return rec.read(self.directory)


def python_of(variable: str, target: str) -> Path:
    """The engine's Python, out of an environment variable that the Makefile sets. Skips the test without it."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"{variable} names no Python with the engine; run `make {target}`")
    python = Path(named).absolute()  # not resolved: the link's place is what makes it an environment
    assert python.is_file(), f"{variable}={named}: there is no such file; run `make {target}`"
    return python


def make_model(python: Path, directory: Path) -> Path:
    subprocess.run([python, MODEL_MAKER, directory], check=True, timeout=120, env=environment())
    return directory


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without what is meant for our own libraries, and without a way to the model hub."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return kept | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"} | dict(more or {})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path], port: int, log: Path, *, env: Mapping[str, str], limit_s: float
) -> Iterator[Served]:
    """Runs the command until its /v1/models answers, and kills all of it at the end.

    Killed, not asked: these engines do not end on SIGTERM while a stream is open.
    """
    begun = time.monotonic()
    with log.open("wb") as file, leaving_a_core():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment(env), start_new_session=True
        )
    try:
        while not answers(f"http://127.0.0.1:{port}/v1/models"):
            waited_s = time.monotonic() - begun
            if process.poll() is not None:
                pytest.fail(f"the engine ended with code {process.returncode} after {waited_s:.0f} s:\n{tail(log)}")
            if waited_s > limit_s:
                pytest.fail(f"the engine did not answer within {limit_s:.0f} s:\n{tail(log)}")
            time.sleep(0.3)
        yield Served(f"http://127.0.0.1:{port}", process.pid, log, time.monotonic() - begun)
    finally:
        kill(process)


@contextlib.contextmanager
def leaving_a_core() -> Iterator[None]:
    """What is started inside may use all cores but the last: these engines spin on theirs even while they wait."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def answers(url: str) -> bool:
    try:
        with open_url(url, timeout_s=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # URLError is one
        return False


def post(url: str, body: object) -> Any:
    """The open answer; closing it hangs up."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return open_url(request, timeout_s=120)


def bill(url: str, model: str, text: str, max_tokens: int) -> tuple[int, int]:
    """Prompt and completion tokens that the server bills for one user message."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    with post(f"{url}/v1/chat/completions", body) as answer:
        usage = json.load(answer)["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]


def open_url(url: str | urllib.request.Request, timeout_s: float) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=timeout_s)


def kill(process: subprocess.Popen[bytes]) -> None:
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        family = []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(timeout=30)
    psutil.wait_procs(family, timeout=30)


def tail(log: Path) -> str:
    return log.read_bytes()[-LOG_SHOWN_BYTES:].decode("utf-8", "replace")


def flatout_run(
    words: Sequence[str | Path], results: Path, *, limit_s: float, env: Mapping[str, str] | None = None
) -> Run:
    """`flatout run … --plain --results RESULTS` as a user types it. Fails if it does not end in time."""
    command = [str(FLATOUT), "run", *map(str, words), "--plain", "--results", str(results)]
    begun = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(env),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        pytest.fail(f"flatout run did not end within {limit_s:.0f} s:\n{output[-LOG_SHOWN_BYTES:]}")
    made = sorted(path.parent for path in results.glob("*/record.json"))
    assert len(made) <= 1, made
    return Run(process.returncode, output, time.monotonic() - begun, made[0] if made else None)


def assert_measured(run: Run) -> None:
    """Every cell has its figures, and the exit code says what the cells' statuses say.

    A shared machine may disturb a cell; then its status must be doubtful, with the reason.
    """
    told = "\n".join(f"{c.id} {c.status}: {c.reason} {[f.name for f in c.flags]}" for c in run.record.cells)
    for cell in run.record.cells:
        assert cell.status in ("valid", "requests_queued", "doubtful"), f"{told}\n{run.output}"
        assert (cell.status == "doubtful") <= (cell.reason is not None), told
        figure = cell.prefill.prefill_tok_s if cell.prefill else cell.decode.total_tok_s if cell.decode else None
        assert figure is not None and figure.value is not None and figure.value > 0, told
    doubtful = any(cell.status == "doubtful" for cell in run.record.cells)
    assert run.code == (3 if doubtful else 0), f"exit code {run.code}\n{told}\n{run.output}"


def columns(run: Run, cell: rec.Cell) -> dict[str, np.ndarray]:
    """The cell's samples file, as plain columns: read here without flatout's own reader."""
    assert run.directory is not None and cell.samples is not None, (cell.id, cell.status, cell.reason)
    with np.load(run.directory / cell.samples, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def events_in_window(data: Mapping[str, np.ndarray], window: rec.Window) -> int:
    """Arrivals with text inside the window."""
    inside = (data["t_ns"] >= window.open_ns) & (data["t_ns"] < window.close_ns)
    return int((inside & (data["text_len"] > 0)).sum())


def told_tokens_in_window(data: Mapping[str, np.ndarray], window: rec.Window) -> int:
    """Tokens that arrived in the window by the running counts of the events themselves."""
    total = 0
    for start, count in zip(data["arrival_start"], data["arrival_count"], strict=True):
        before = 0
        for row in range(int(start), int(start) + int(count)):
            now = int(data["running_tokens"][row])
            if now > before:
                total += now - before if window.open_ns <= data["t_ns"][row] < window.close_ns else 0
                before = now
    return total


def left_over(before: set[int], words: Sequence[str]) -> list[str]:
    """Command lines of processes that were started since `before` was taken, still run, and hold one of the words."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        new = process.info["pid"] not in before and process.info["status"] != psutil.STATUS_ZOMBIE
        if new and any(word in line for word in words):
            found.append(line)
    return found


def files_with(directory: Path, word: bytes) -> list[str]:
    """Files below the directory whose bytes, or whose decompressed members, hold the word."""
    found = []
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                data += b"".join(archive[name].tobytes() for name in archive.files)
        if word in data:
            found.append(str(path.relative_to(directory)))
    return found
