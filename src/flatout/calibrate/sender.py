"""Starts the senders, each in a process of its own on the rig's cores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from select import select
from typing import Final

from flatout.rig import RigConfig, RigHandle, running
from flatout.rig.handle import RigError

_START_S: Final = 20.0


@contextmanager
def lean(config: RigConfig, *, cores: Collection[int] | None = None) -> Iterator[RigHandle]:
    """The lean sender (`hose`) for the length of a with block. Raises RigError if it does not start."""
    command = [sys.executable, "-m", "flatout.calibrate.hose"]
    if cores:
        command += ["--cores", ",".join(str(core) for core in sorted(cores))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with suppress(BrokenPipeError):
        process.stdin.write(config.to_json().encode())
        process.stdin.close()
    ready = select([process.stdout], [], [], _START_S)[0]
    line = process.stdout.readline() if ready else b""
    if not line.startswith(b"{"):
        process.kill()
        said = process.stderr.read().decode(errors="replace").strip()
        raise RigError(f"the lean sender did not start: {said or f'no word within {_START_S:g} s'}")
    handle = RigHandle(process, json.loads(line)["url"])
    try:
        yield handle
    finally:
        handle.stop()


@contextmanager
def senders(cores: Collection[int] | None) -> Iterator[dict[bool, RigHandle]]:
    """Both senders, by whether it is the lean one; idle until a load comes."""
    with running(RigConfig(dialect="vllm"), cores=cores) as full, lean(RigConfig(), cores=cores) as quick:
        yield {False: full, True: quick}
