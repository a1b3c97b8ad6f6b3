"""What is drawn of runs: once, and kept, in memory for those who ask often, in files for the next start. All of it can
be drawn again from the records, so a file that cannot be written or read costs time and nothing else.

Of runs that are not public any more nothing is kept; moderators, who may still look at them, have them drawn anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import select

from flatout import __version__
from flatout.run.store import write_beside
from flatout.site.answers import Piece, asset_url, pack, unpack
from flatout.site.drawer import DRAWER, Busy
from flatout.site.errors import Refused, SiteError, Unavailable
from flatout.site.index import Moved, RunRow
from flatout.site.schema import runs
from flatout.site.store import DELETED, HIDDEN, PUBLIC, QUEUED, WITHDRAWN, Store

log: Final = logging.getLogger("flatout.site")
Drawn = tuple[dict[str, str], dict[str, Piece]]
"""What is said of a drawing elsewhere (title, description), and its pieces."""
SHOWN: Final = (PUBLIC, QUEUED)
COMPARISON, SUBJECT, HISTORY, REPEATS, BOARD = "comparison", "subject", "history", "repeats", "board"
OF_MANY: Final = (COMPARISON, SUBJECT, HISTORY, REPEATS, BOARD)
"""Kinds that are drawn of several runs, which their names do not tell."""
MEMORY_BYTES: Final = 96 * 1024 * 1024
FILES_BYTES: Final = 2 * 1024 * 1024 * 1024
SWEEP_EVERY: Final = 200  # files written between two looks at how much there is
FORM: Final = 2  # of what is kept; to be raised when a kept thing's parts change
TIDY_S: Final = 60.0
MOST_WAITING: Final = 100  # runs that wait to be drawn; of more, the oldest are left to their first visitor
AGAIN_S: Final = 0.1
NEWEST: Final = 3  # runs that are drawn as the site starts
MOST_CELLS: Final = 4_000  # of all runs of a comparison together: 4 s of drawing
CELLS_A_COUNT: Final = 400  # so many cells count once towards the limit of comparisons
BUSY: Final = "The site is busy with other pages and comparisons just now. Try again in a few seconds."
_NAME: Final = re.compile(r"[a-z]{1,12}-([0-9a-f]{64})(?:-[0-9a-f]{12})?-[0-9a-f]{12}")


class Few:
    """Only so many go in at a time, those who wait in there included; the others are sent away at once, so that the
    site's threads are left for those who read."""

    def __init__(self, most: int) -> None:
        self._free = threading.BoundedSemaphore(most)

    def __enter__(self) -> None:
        """Raises Unavailable."""
        if not self._free.acquire(blocking=False):
            raise Unavailable(BUSY)

    def __exit__(self, *_: object) -> None:
        self._free.release()


DRAWINGS: Final = Few(8)  # of the site's 40 threads; a run takes 0.3 s
COMPARISONS: Final = Few(3)  # one is made, two wait


class Kept:
    """Drawn things by kind and by the hash of what they were drawn from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._making: dict[str, threading.Lock] = {}
        self._dropped: set[str] = set()
        self._written = 0

    def get(
        self, kind: str, of: str, make: Callable[[], bytes], *, also: str = "", file: bool = True,
        few: Few | None = None,
    ) -> bytes:  # fmt: skip
        """The thing; made where it is not there yet, once even when many ask. `of`: the SHA-256 in hex of what it is
        drawn from; `also`: the same of a second thing; without `file` it is kept in memory alone; `few`: who may make
        it or wait for it. Raises what `make` raises, and Unavailable where `few` are in already."""
        name = "-".join([kind, of, *([also[:12]] if also else []), version()])
        thing = self.known(name, file=file)
        if thing is not None:
            return thing
        with few or nullcontext(), self._one_at_a_time(name):
            thing = self.known(name, file=file)
            if thing is None:
                thing = make()
                if file:
                    self._to_file(name, thing)
                self._to_memory(name, thing)
        return thing

    def known(self, name: str, *, file: bool = True) -> bytes | None:
        """The thing if it is kept."""
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                return self._held[name]
        if not file:
            return None
        try:
            path = self._folder / name
            thing = path.read_bytes()
            os.utime(path)  # the oldest unused go first
        except OSError:
            return None
        self._to_memory(name, thing)
        return thing

    def forget(self, hashes: Iterable[str]) -> None:
        """Nothing that was drawn from these is kept: their owner wants them gone. What is drawn of several runs goes
        altogether: its names do not tell of which."""
        gone = set(hashes)
        self._forget(lambda name: _of(name) in gone or name.partition("-")[0] in OF_MANY)

    def hashes(self) -> set[str]:
        """What the kept things were drawn from."""
        with self._lock:
            held = {_of(name) for name in self._held}
        return {h for h in held | {_of(path.name) for path in self._files()} if h is not None}

    def sweep(self, most_bytes: int = FILES_BYTES) -> None:
        """Takes away what other versions drew, and the longest unused until the rest fits."""
        left: list[tuple[float, int, Path]] = []
        for path in self._files():
            with suppress(OSError):
                if path.name.endswith(version()):
                    stat = path.stat()
                    left.append((stat.st_mtime, stat.st_size, path))
                else:
                    path.unlink()
        total = sum(size for _, size, _ in left)
        for _, size, path in sorted(left):
            if total <= most_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total -= size

    @contextmanager
    def _one_at_a_time(self, name: str) -> Iterator[None]:
        with self._lock:
            mine = self._making.setdefault(name, threading.Lock())
        try:
            with mine:
                yield
        finally:
            with self._lock:
                self._making.pop(name, None)
                late = name in self._dropped
                self._dropped.discard(name)
            if late:  # it was to be forgotten while it was made
                self._forget(lambda kept: kept == name)

    def _forget(self, goes: Callable[[str], bool]) -> None:
        with self._lock:
            self._dropped.update(name for name in self._making if goes(name))
            for name in [name for name in self._held if goes(name)]:
                self._bytes -= len(self._held.pop(name))
        for path in self._files():
            if goes(path.name):
                with suppress(OSError):
                    path.unlink()

    def _to_memory(self, name: str, thing: bytes) -> None:
        if len(thing) > MEMORY_BYTES // 8:
            return
        with self._lock:
            if name not in self._held:
                self._held[name] = thing
                self._bytes += len(thing)
            while self._bytes > MEMORY_BYTES:
                _, old = self._held.popitem(last=False)
                self._bytes -= len(old)

    def _to_file(self, name: str, thing: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder.stat().st_mode & 0o077:  # made before, or the folder above is everybody's
                self._folder.chmod(0o700)
            write_beside(self._folder / name, thing)
            self._written += 1
            if self._written % SWEEP_EVERY == 1:
                self.sweep()
        except OSError as error:
            log.warning("a drawn page could not be kept: %s", type(error).__name__)

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []


def _of(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def version() -> str:
    """Changes when the same record would be drawn differently."""
    sheets = " ".join(asset_url(name) for name in ("report.css", "compared.css"))
    return hashlib.sha256(f"{__version__} {sheets} {FORM}".encode()).hexdigest()[:12]


class Ahead:
    """Draws runs by their ids before anybody asks, in a thread of its own, the newest first, and only while nobody
    waits for a drawing. What waits is in memory alone: a run that is forgotten here is drawn at the first look."""

    def __init__(self, draw: Callable[[str], object]) -> None:
        """`draw`: of one run by its id; raises Busy where it has to wait."""
        self._draw = draw
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._stopped = False
        self.thread: threading.Thread | None = None

    def add(self, public_id: str) -> None:
        with self._changed:
            self._waiting.append(public_id)
            self._changed.notify()

    def start(self) -> None:
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self.thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends after the drawing that goes on."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self.thread is not None:
            self.thread.join(timeout_s)

    def _run(self) -> None:
        rest_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, rest_s)
                self._changed.wait_for(lambda: self._stopped or len(self._waiting) > 0)
                if self._stopped:
                    return
                public_id = self._waiting.pop()
            rest_s = self._one(public_id)

    def _one(self, public_id: str) -> float:
        """Seconds to rest: half of the time at most is spent here, for publishing and reading need the machine, too."""
        began = time.monotonic()
        try:
            self._draw(public_id)
        except Busy:
            with self._changed:
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(public_id)
            return AGAIN_S
        except SiteError:
            pass  # whoever looks at the run is told then
        except Exception as error:
            log.warning("the page of a run could not be drawn beforehand: %s", type(error).__name__)
        return time.monotonic() - began


class Drawings:
    """The drawings of one site, kept: what leaves the public is forgotten at once, what comes is drawn before anybody
    asks, from `start` to `stop`."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.kept = Kept(folder)
        self.ahead = Ahead(self._draw_ahead)
        self.tidied_s = float("-inf")
        self._store = store
        self._gone: set[str] = set()
        self._lock = threading.Lock()
        store.listeners.append(self._moved)

    def start(self) -> None:
        """The process that draws is at hand, and draws the first runs of the list and what comes from now on."""
        order = (runs.c.started_us.desc(), runs.c.id.desc())
        with suppress(SiteError), self._store.database.read() as conn:  # without them the site works as well
            newest = conn.scalars(select(runs.c.public_id).where(runs.c.state == PUBLIC).order_by(*order).limit(NEWEST))
            for public_id in reversed(list(newest)):
                self.ahead.add(public_id)
        threading.Thread(target=DRAWER.warm, name="warm", daemon=True).start()
        self.ahead.start()

    def stop(self) -> None:
        self.ahead.stop()
        DRAWER.close()

    def run_page(self, row: RunRow) -> Drawn:
        """A run's page in parts, as `drawer.run_page` makes them: the pieces `head` and `rest`, and what is said of it.
        Raises Unavailable, NotFound, Gone."""
        return unpack(self._of_run("run", row, lambda: self._draw_run(row)))

    def whole_page(self, row: RunRow) -> bytes:
        """The run's page as one file. Raises as `run_page`."""
        return self._of_run("whole", row, lambda: DRAWER.draw("whole", *self._files(row)))

    def card(self, row: RunRow) -> bytes:
        """The picture for links; empty where there is none. Raises as `run_page`."""
        return self._of_run("card", row, lambda: DRAWER.draw("card", self._store.content(row.public_id)))

    def comparison(self, rows: Sequence[RunRow], count: Callable[[int], object], *, data: bool = False) -> Drawn:
        """Runs compared, the first being the baseline: the piece `body` (HTML, named by the runs' pages), its `title`;
        with `data` the piece `json`, named by their ids; or an `error` in words. One that is not kept is counted first,
        as so many as it has cells for. Raises as `run_page`, Refused (too large) and what `count` raises."""
        cost = comparison_cost(rows)
        names = [row.public_id if data else f"/r/{row.public_id}" for row in rows]
        work, part = ("data", "json") if data else ("comparison", "body")
        of = hashlib.sha256("\0".join([work, *(row.content_hash for row in rows), *names]).encode()).hexdigest()

        def make() -> bytes:
            count(cost)
            words: dict[str, str] = DRAWER.draw(work, [self._store.content(row.public_id) for row in rows], names)
            return pack(words, {part: words.pop(part, "").encode()})

        return unpack(self._tidy().get(COMPARISON, of, make, file=False, few=COMPARISONS))

    def part(self, kind: str, of: str, make: Callable[[], tuple[dict[str, str], str]]) -> Drawn:
        """Part of a page that is drawn from the database, as the piece `body`, and what is said of it; kept in memory
        under `of`, the digest of all that it is drawn from. Raises what `make` raises."""

        def packed() -> bytes:
            words, body = make()
            return pack(words, {"body": body.encode()})

        return unpack(self._tidy().get(kind, of, packed, file=False))

    def _of_run(self, kind: str, row: RunRow, make: Callable[[], bytes]) -> bytes:
        if row.state in SHOWN:
            return self._tidy().get(kind, row.content_hash, make, also=row.samples_hash or "", few=DRAWINGS)
        with DRAWINGS:
            return make()

    def _draw_run(self, row: RunRow, *, ahead: bool = False) -> bytes:
        words: dict[str, str] = DRAWER.draw("run", *self._files(row), row.received_us, ahead=ahead)
        return pack(words, {part: words.pop(part).encode() for part in ("head", "rest")})

    def _files(self, row: RunRow) -> tuple[bytes, bytes | None]:
        return self._store.content(row.public_id), self._store.samples(row.public_id)

    def _draw_ahead(self, public_id: str) -> None:
        """Raises Busy, and as `run_page`."""
        row = self._store.row(public_id)
        if row.state not in SHOWN:
            return
        if DRAWER.busy:
            raise Busy
        self.kept.get("run", row.content_hash, lambda: self._draw_run(row, ahead=True), also=row.samples_hash or "")

    def _moved(self, run: Moved) -> None:
        if run.state in SHOWN:
            self.ahead.add(run.public_id)
        else:
            self.kept.forget([run.content_hash])

    def _tidy(self) -> Kept:
        """What is kept; without what was drawn of runs that another process of the site took out of the public."""
        with self._lock:
            if time.monotonic() - self.tidied_s < TIDY_S:
                return self.kept
            self.tidied_s = time.monotonic()
        with self._store.database.read() as conn:
            away = runs.c.state.in_((HIDDEN, WITHDRAWN, DELETED))
            gone = set(conn.scalars(select(runs.c.content_hash).where(away)))
        # what was drawn while it went, too; without any, what is drawn of several runs stays
        if hashes := (gone - self._gone) | self.kept.hashes().intersection(gone):
            self.kept.forget(hashes)
        self._gone = gone
        return self.kept


def comparison_cost(rows: Sequence[RunRow]) -> int:
    """As how many comparisons this one counts. Raises Refused: it is too large."""
    cells = sum(row.cells for row in rows)
    if cells > MOST_CELLS:
        raise Refused(
            "r",
            f"these runs have {cells:,} cells together, and {MOST_CELLS:,} are compared here at most. Take fewer runs, "
            "or download the records and use flatout compare",
        )
    return 1 + cells // CELLS_A_COUNT
