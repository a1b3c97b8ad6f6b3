"""A process beside the site that draws what takes long: pages of runs, comparisons, pictures.

It keeps the site answering while it draws (300 ms of computing for a large run), and a record that makes the drawing
endless or kills it costs that one page, not the site.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from flatout.site.errors import Unavailable

if TYPE_CHECKING:
    from flatout.compare import Comparison
    from flatout.record import Record

log: Final = logging.getLogger("flatout.site")
LONGEST_S: Final = 30.0  # what one drawing may take, the start of the process aside
START_S: Final = 60.0
AHEAD_S: Final = 10.0  # what a drawing that nobody waits for may take; less than a request waits for those before it
WAIT_S: Final = 20.0  # how long a request waits for those before it
MOST_MEMBER_BYTES: Final = 64 * 1024 * 1024
BEHIND: Final = 5  # niceness: how far the drawing process stands back behind the one that answers
MOST_MEMORY_BYTES: Final = 4 * 1024 * 1024 * 1024  # for drawings, beside what the process has when it is ready
MOST_CPU_S: Final = 60.0  # of all threads of the process together, for one drawing
NOT_AGAIN_S: Final = 60.0  # how long what could not be drawn is not tried again; doubled each further time
NOT_AGAIN_MOST_S: Final = 3600.0
MOST_REMEMBERED: Final = 1_000
BUSY: Final = "The site is drawing other pages just now. Try again in a minute."
NOT_NOW: Final = "The site cannot draw pages at the moment. Try again in a minute."
TOO_LONG: Final = "This page takes too long to draw. The record itself can be downloaded; its page cannot be shown."
TOO_LARGE: Final = "This page is too large to draw. The record itself can be downloaded; its page cannot be shown."


class Busy(Exception):
    """Somebody waits for a drawing, or has one made."""


class DrawingFailed(Exception):
    """The work raised; the text is the error's kind and no more."""


class Failures:
    """What could not be drawn, for a time: trying it at every look would leave no time for the other pages."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float, Exception]] = {}

    def check(self, work: str, content: Sequence[Any]) -> None:
        """Raises what was raised last time, while it is not to be tried again."""
        if self._known and (known := self._known.get(_digest(work, content))) and time.monotonic() < known[1]:
            raise type(known[2])(*known[2].args)

    def add(self, work: str, content: Sequence[Any], error: Exception) -> None:
        """Each time that it fails, it rests twice as long."""
        key = _digest(work, content)
        times = self._known.pop(key, (0, 0.0, error))[0]
        rest_s = min(NOT_AGAIN_S * 2.0 ** min(times, 20), NOT_AGAIN_MOST_S)
        self._known[key] = times + 1, time.monotonic() + rest_s, error
        while len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]

    def drop(self, work: str, content: Sequence[Any]) -> None:
        """It could be drawn."""
        if self._known:
            self._known.pop(_digest(work, content), None)


def _digest(work: str, content: Sequence[Any]) -> str:
    return hashlib.sha256(pickle.dumps((work, content))).hexdigest()


class Drawer:
    """One process, one work at a time; started when first needed, anew when it died or was too slow."""

    def __init__(self) -> None:
        self._failures = Failures()
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def draw(self, work: str, *content: Any, ahead: bool = False) -> Any:
        """What the work of that name draws of the content. `ahead`: for nobody in particular; those who wait go first.
        Raises Unavailable: no process could be had, others wait, or it took too long or too much memory, now or a short
        while ago; DrawingFailed; Busy where somebody goes first."""
        if ahead:
            if self._waiting or not self._lock.acquire(blocking=False):
                raise Busy
        else:
            self._wait()
        try:
            self._failures.check(work, content)
            pipe = self._running()
            try:
                drawing = self._ask(pipe, work, content, AHEAD_S if ahead else LONGEST_S)
            except (Unavailable, DrawingFailed) as error:
                if not ahead:
                    self._failures.add(work, content, error)
                raise
            self._failures.drop(work, content)
            return drawing
        finally:
            self._lock.release()

    def _wait(self) -> None:
        with self._count:
            self._waiting += 1
        try:
            if not self._lock.acquire(timeout=WAIT_S):
                raise Unavailable(BUSY)
        finally:
            with self._count:
                self._waiting -= 1

    @property
    def busy(self) -> bool:
        """Somebody waits or has something drawn."""
        return self._waiting > 0 or self._lock.locked()

    def warm(self) -> None:
        """Starts the process, so that the first who asks need not wait for it; quiet where that fails."""
        with suppress(Unavailable), self._lock:
            self._running()

    def close(self) -> None:
        """Ends the process; the next drawing starts another."""
        with self._lock:
            self._end()

    def _ask(self, pipe: Connection, work: str, content: Sequence[Any], longest_s: float) -> Any:
        try:
            pipe.send((work, content))
            if not pipe.poll(longest_s):
                log.warning("drawing %s took over %.0f s and was ended", work, longest_s)
                self._end()
                raise Unavailable(TOO_LONG)
            good, drawing = pipe.recv()
        except (OSError, EOFError) as error:
            log.warning("the drawing process ended while drawing %s", work)
            self._end()
            raise Unavailable(TOO_LONG) from error
        if not good:
            log.warning("drawing %s failed: %s", work, drawing)
            raise Unavailable(TOO_LARGE) if drawing == MemoryError.__name__ else DrawingFailed(drawing)
        return drawing

    def _running(self) -> Connection:
        """The pipe to the process. It is a fresh interpreter: neither a fork of ours, with its threads and locks, nor
        one that runs our program's own script again."""
        if self._pipe is not None and self._process is not None and self._process.poll() is None:
            return self._pipe
        self._end()
        ours, theirs = Pipe()
        number = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flatout.site.drawer", str(number)], pass_fds=(number,), env=_environment(),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            theirs.close()
            self._pipe = ours
            if not ours.poll(START_S):
                raise EOFError
            ours.recv()
        except (OSError, EOFError) as error:
            self._end()
            raise Unavailable(NOT_NOW) from error
        return ours

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


DRAWER: Final = Drawer()
"""The one of this program, however many sites it has open."""


def _environment() -> dict[str, str]:
    """The process finds what this one finds, and gets no setting, which may hold a password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# --- in the process ---------------------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """The process: answers until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the site, which then closes the pipe
    import flatout.show.page
    import flatout.show.page.compared
    import flatout.site.audit  # noqa: F401

    if importlib.util.find_spec("vl_convert") is not None:  # the first picture takes a second, whoever asks for it
        import vl_convert

        vl_convert.svg_to_png('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    _bound_memory()
    with suppress(OSError):
        os.nice(BEHIND)
    pipe.send("ready")
    while True:
        try:
            work, content = pipe.recv()
        except (EOFError, OSError):
            return
        signal.alarm(round(2 * LONGEST_S))  # should the site be gone by then
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + MOST_CPU_S))
        try:
            answer: tuple[bool, Any] = (True, WORKS[work](*content))
        except Exception as error:
            answer = (False, type(error).__name__)
        signal.alarm(0)
        with suppress(OSError):
            pipe.send(answer)


def _bound_memory() -> None:
    """Memory that is written to, not addresses: the pictures' engine reserves 32 GiB of those and uses none of them.
    Beyond it a drawing ends with MemoryError, or the process does. Only Linux tells and counts it so."""
    with suppress(OSError, ValueError, IndexError):
        written_pages = int(Path("/proc/self/statm").read_text().split()[5])
        _limit(resource.RLIMIT_DATA, written_pages * resource.getpagesize() + MOST_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, most: int) -> None:
    """Bounds this process, as far as the system lets it and no bound that it has is tighter."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def run_page(content: bytes, samples: bytes | None, received_us: int) -> dict[str, str]:
    """A record's page in parts: `head`, `rest`, what is said of it elsewhere (`title`, `description`), whether there
    is a `card` (yes or no), and its `checks` (JSON: name, level, text, was it checked at all)."""
    from flatout.show import matrix
    from flatout.show.page import fragment, title, verdict
    from flatout.site import audit

    record = _parsed(content)
    with tempfile.TemporaryDirectory(prefix="flatout-drawing-") as folder:
        page = fragment(record, samples_dir=unpacked(samples, Path(folder)))
    drawable = importlib.util.find_spec("vl_convert") is not None and bool(matrix.of(record.cells).rows)
    checks = [(one.name, one.level, one.text, one.checked) for one in audit.checks(record, received_us=received_us)]
    return {
        "head": str(page.head), "rest": str(page.rest), "title": title(record), "description": verdict(record),
        "card": "yes" if drawable else "no", "checks": json.dumps(checks),
    }  # fmt: skip


def whole_page(content: bytes, samples: bytes | None) -> bytes:
    """The record's page as one file, as `flatout report` writes it."""
    from flatout.show.page import render

    with tempfile.TemporaryDirectory(prefix="flatout-drawing-") as folder:
        return render(_parsed(content), samples_dir=unpacked(samples, Path(folder))).encode()


def card(content: bytes) -> bytes:
    """The picture for links, 1200 × 630; empty where there is nothing to draw or nothing to draw with."""
    from flatout.show.picture import PictureError, png

    try:
        return png(_parsed(content), size="card")
    except PictureError:
        return b""


def comparison(contents: Sequence[bytes], names: Sequence[str]) -> dict[str, str]:
    """The comparison of records in order, the first being the baseline. `error`: why there is none, in words."""
    from flatout.show.page import compared

    result = _compared(contents, names)
    if isinstance(result, str):
        return {"error": result}
    return {"body": str(compared.fragment(result).body), "title": compared.title(result)}


def comparison_data(contents: Sequence[bytes], names: Sequence[str]) -> dict[str, str]:
    """What `flatout compare --json` prints of these records, as `json`; or an `error`."""
    from flatout.show.comparison import data

    result = _compared(contents, names)
    if isinstance(result, str):
        return {"error": result}
    document = data(result)
    del document["fail_if"]
    return {"json": json.dumps(document, allow_nan=False)}


def _compared(contents: Sequence[bytes], names: Sequence[str]) -> Comparison | str:
    from flatout.compare import CompareError, compare

    try:
        return compare([_parsed(content) for content in contents], names=names)
    except CompareError as error:
        return str(error)


def _parsed(content: bytes) -> Record:
    from flatout.record import parse

    return parse(content.decode())


def unpacked(samples: bytes | None, folder: Path) -> Path | None:
    """The samples' files in a folder, by their own names alone; None for none."""
    if samples is None:
        return None
    from flatout.site.samples import member

    with zipfile.ZipFile(io.BytesIO(samples)) as packed:
        for info in packed.infolist():
            name = PurePosixPath(info.filename.replace("\\", "/")).name
            if name.endswith(".npz") and info.file_size <= MOST_MEMBER_BYTES:
                (folder / name).write_bytes(member(packed, info))
    return folder


WORKS: Final[Mapping[str, Callable[..., Any]]] = {
    "run": run_page, "whole": whole_page, "card": card, "comparison": comparison, "data": comparison_data,
}  # fmt: skip


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
