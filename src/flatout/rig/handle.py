"""The rig in a process of its own, as tests and `flatout calibrate` use it."""

from __future__ import annotations

import contextlib
import json
import select
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from http.client import HTTPException
from typing import Any

from flatout.rig.config import RigConfig
from flatout.rig.truth import Truth

_START_S = 20.0
_STOP_S = 5.0
_CALL_S = 30.0
_OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),
    # Our own child on loopback: whose certificate it is does not matter here.
    urllib.request.HTTPSHandler(context=ssl._create_unverified_context()),
)


class RigError(RuntimeError):
    """The rig did not start, or refused a call; the message says why."""


class RigHandle:
    """A running rig. `url` has no path; append "/v1" as for any server."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        request = urllib.request.Request(self.url + path, data=body or None, method=method)
        try:
            with _OPENER.open(request, timeout=_CALL_S) as answer:
                data: bytes = answer.read()
                return data
        except urllib.error.HTTPError as error:
            text = error.read()[:500].decode(errors="replace")
            raise RigError(f"the rig answered {error.code} to {path}: {text}") from error
        except (OSError, HTTPException) as error:
            raise RigError(f"the rig does not answer {path}: {error}{self._last_words()}") from error

    def _last_words(self) -> str:
        if self.alive() or self._process.stderr is None:
            return ""
        stderr = self._process.stderr.read().decode(errors="replace").strip()
        return f" (its process ended with {self._process.returncode}{': ' + stderr[-500:] if stderr else ''})"

    def log(self) -> Truth:
        """The truth since start or the last reset."""
        return Truth.from_npz(self._call("GET", "/rig/log"))

    def control(self, **changes: Any) -> RigConfig:
        """Change knobs live; also stall_now_s=…, plant={"requests": 4, "tokens": 2000, "context": 8192}."""
        data = self._call("POST", "/rig/control", json.dumps(changes).encode())
        return RigConfig.from_dict(json.loads(data))

    def reset(self) -> None:
        """Begin a new log."""
        self._call("POST", "/rig/reset")

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process; waits at most 5 s before it is killed."""
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def start(config: RigConfig, *, cores: Collection[int] | None = None, lean: bool = False) -> RigHandle:
    """Start a rig process (`lean`: the lean sender), pinned to `cores` if given, and wait until its port is open.
    Raises RigError."""
    command = [sys.executable, "-m", "flatout.rig", *(["--lean"] if lean else [])]
    if cores:
        command += ["--cores", ",".join(str(core) for core in sorted(cores))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(config.to_json().encode())
        process.stdin.close()
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline() if ready else b""
    if not line.startswith(b"{"):
        process.kill()
        words = process.stderr.read().decode(errors="replace").strip()
        raise RigError(f"the rig did not start: {words or f'no word within {_START_S:g} s'}")
    return RigHandle(process, json.loads(line)["url"])


@contextlib.contextmanager
def running(config: RigConfig, *, cores: Collection[int] | None = None, lean: bool = False) -> Iterator[RigHandle]:
    """A rig for the length of a with block. Raises RigError if it does not start."""
    handle = start(config, cores=cores, lean=lean)
    try:
        yield handle
    finally:
        handle.stop()
