"""A small process between flatout and the server that it starts, so that nothing is left behind however flatout ends.

Run as `python supervise.py GRACE_S -- COMMAND…`. Its standard input is a pipe from flatout: on a byte from it (a
normal stop), or when it closes (a crash, kill -9), the server and all that it started are ended: SIGTERM to its process
group, then SIGKILL. Standard output carries one line, the server's process id; the server's own output goes to standard
error. Only a kill -9 of this process itself leaves the server running.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped, unused-ignore]

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1


def supervise(command: list[str], grace_s: float) -> int:
    """Starts `command`, waits until it ends or the pipe closes, and returns its exit code (negative: its signal)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_quietly)
    _adopt_orphans()
    log = sys.stderr.fileno()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    print(child.pid, flush=True)
    try:
        while child.poll() is None and not _pipe_closed():
            pass
    except _Ended:
        pass
    finally:
        _end_all(child, grace_s)
    return child.returncode


class _Ended(Exception):
    """The supervisor itself was told to end."""


def _end_quietly(number: int, frame: object) -> None:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise _Ended


def _pipe_closed() -> bool:
    """Waits a moment; True once flatout's end of the pipe is gone, or anything came through it: the word to stop.

    A process that flatout has forked may hold the pipe open after it, so that closing alone would not do.
    """
    ready, _, _ = select.select([0], [], [], _POLL_S)
    return bool(ready)


def _adopt_orphans() -> None:
    """On Linux: processes that leave the server's group or lose their parent become children of this process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_all(child: subprocess.Popen[bytes], grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    _signal_group(child.pid, signal.SIGTERM)
    for process in _below():
        with contextlib.suppress(psutil.Error):
            process.terminate()
    # A server with an open stream may never end by itself.
    while time.monotonic() < deadline and (child.poll() is None or _below()):
        time.sleep(_POLL_S)
    _signal_group(child.pid, signal.SIGKILL)
    end = time.monotonic() + 10.0
    while (left := _below()) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_POLL_S)
        time.sleep(_POLL_S / 2)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _below() -> list[psutil.Process]:
    """Every process below this one that still runs; ended ones among its own children are taken off the list."""
    try:
        found = psutil.Process().children(recursive=True)
    except psutil.Error:
        return []
    running = []
    for process in found:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
            else:
                running.append(process)
        except psutil.Error:
            continue
    return running


if __name__ == "__main__":
    code = supervise(sys.argv[3:], float(sys.argv[1]))
    sys.exit(code if code >= 0 else 128 - code)
