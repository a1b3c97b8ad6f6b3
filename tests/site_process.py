"""`flatout site` as a user starts it: a process of its own on a free port."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

COMMAND = (sys.executable, "-m", "flatout")
START_S = 60.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """One without the settings and tokens of whoever runs the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    return {
        **kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home / "share"),
        "TERM": "dumb", "NO_COLOR": "1", **more,
    }  # fmt: skip


def flatout(env: Mapping[str, str], *typed: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command of flatout, without a terminal."""
    return subprocess.run(
        [*COMMAND, *map(str, typed)],
        capture_output=True, text=True, timeout=120, check=False, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL,
    )  # fmt: skip


class SiteProcess:
    """A running site. `url` as it printed it; `lines` what it said so far."""

    def __init__(self, env: Mapping[str, str], *typed: object, cwd: Path) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*COMMAND, "site", *map(str, typed)], env=dict(env), cwd=cwd, text=True, stderr=subprocess.PIPE,
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._new: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url = re.sub(r"^flatout site\s+", "", self.wait_for("flatout site"))
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._new.put(line.rstrip("\n"))
        self._new.put(None)

    def wait_for(self, text: str, within_s: float = START_S) -> str:
        """The first line, said before or from now on, that holds `text`."""
        for line in self.lines:
            if text in line:
                return line
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0:
            try:
                line = self._new.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the site never said {text!r}:\n" + "\n".join(self.lines))

    def end(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        """Tells it to end and returns its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=within_s)
        self._reader.join(timeout=10)
        while not self._new.empty():
            if (line := self._new.get()) is not None:
                self.lines.append(line)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def __enter__(self) -> SiteProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
