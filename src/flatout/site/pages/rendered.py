"""What was drawn once is kept: in memory for those who ask often, in files for the next start. All of it can be drawn
again from the records, so a file that cannot be written or read costs time and nothing else."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from flatout import __version__
from flatout.run.store import write_beside
from flatout.site.pages.templating import asset_url

log: Final = logging.getLogger("flatout.site")
COMPARISON: Final = "comparison"
SUBJECT: Final = "subject"
HISTORY: Final = "history"
REPEATS: Final = "repeats"
BOARD: Final = "board"
OF_MANY: Final = (COMPARISON, SUBJECT, HISTORY, REPEATS, BOARD)
"""Kinds that are drawn of several runs, which their names do not tell."""
MEMORY_BYTES: Final = 96 * 1024 * 1024
FILES_BYTES: Final = 2 * 1024 * 1024 * 1024
SWEEP_EVERY: Final = 200
"""Files written between two looks at how much there is."""
FORM: Final = 1
"""Of what is kept; to be raised when a kept thing's parts change."""
_NAME: Final = re.compile(r"[a-z]{1,12}-([0-9a-f]{64})(?:-[0-9a-f]{12})?-[0-9a-f]{12}")


class Rendered:
    """Drawn things by kind and by the hash of what they were drawn from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._making: dict[str, threading.Lock] = {}
        self._dropped: set[str] = set()
        self._written = 0

    def known(self, kind: str, of: str, *, also: str = "", file: bool = True) -> bytes | None:
        """The thing if it is kept, as for `get`: nobody waits for what others have drawn."""
        name = _name(kind, of, also)
        found = self._from_memory(name)
        if found is None and file:
            found = self._from_file(name)
            if found is not None:
                self._to_memory(name, found)
        return found

    def get(self, kind: str, of: str, make: Callable[[], bytes], *, also: str = "", file: bool = True) -> bytes:
        """The thing; made where it is not there yet, once even when many ask. `of`: the SHA-256 in hex of what it is
        drawn from; `also`: the same of a second thing; without `file` it is kept in memory alone. Raises what `make`
        raises."""
        name = _name(kind, of, also)
        known = self._from_memory(name)
        if known is not None:
            return known
        with self._lock:
            mine = self._making.setdefault(name, threading.Lock())
        try:
            with mine:
                known = self._from_memory(name)
                if known is None:
                    known = self._from_file(name) if file else None
                    if known is None:
                        known = make()
                        if file:
                            self._to_file(name, known)
                    self._to_memory(name, known)
                return known
        finally:
            with self._lock:
                self._making.pop(name, None)
                late = name in self._dropped
                self._dropped.discard(name)
            if late:  # it was to be forgotten while it was made
                self._forget(lambda kept: kept == name)

    def forget(self, hashes: Iterable[str]) -> None:
        """Nothing that was drawn from these is kept: their owner wants them gone. What is drawn of several runs goes
        altogether: its names do not tell of which."""
        gone = set(hashes)
        self._forget(lambda name: _of(name) in gone or name.partition("-")[0] in OF_MANY)

    def _forget(self, goes: Callable[[str], bool]) -> None:
        with self._lock:
            self._dropped.update(name for name in self._making if goes(name))
            for name in [name for name in self._held if goes(name)]:
                self._bytes -= len(self._held.pop(name))
        for path in self._files():
            if goes(path.name):
                with suppress(OSError):
                    path.unlink()

    def hashes(self) -> set[str]:
        """What the kept things were drawn from."""
        with self._lock:
            held = {_of(name) for name in self._held}
        return {h for h in held | {_of(path.name) for path in self._files()} if h is not None}

    def _from_memory(self, name: str) -> bytes | None:
        with self._lock:
            found = self._held.get(name)
            if found is not None:
                self._held.move_to_end(name)
            return found

    def _to_memory(self, name: str, made: bytes) -> None:
        if len(made) > MEMORY_BYTES // 8:
            return
        with self._lock:
            if name not in self._held:
                self._held[name] = made
                self._bytes += len(made)
            while self._bytes > MEMORY_BYTES:
                _, old = self._held.popitem(last=False)
                self._bytes -= len(old)

    def _from_file(self, name: str) -> bytes | None:
        try:
            path = self._folder / name
            found = path.read_bytes()
            os.utime(path)  # the oldest unused go first
            return found
        except OSError:
            return None

    def _to_file(self, name: str, made: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder.stat().st_mode & 0o077:  # made before, or the folder above is everybody's
                self._folder.chmod(0o700)
            write_beside(self._folder / name, made)
            self._written += 1
            if self._written % SWEEP_EVERY == 1:
                self.sweep()
        except OSError as error:
            log.warning("a drawn page could not be kept: %s", type(error).__name__)

    def sweep(self, most_bytes: int = FILES_BYTES) -> None:
        """Takes away what other versions drew, and the longest unused until the rest fits."""
        left: list[tuple[float, int, Path]] = []
        for path in self._files():
            with suppress(OSError):
                if not path.name.endswith(version()):
                    path.unlink()
                    continue
                stat = path.stat()
                left.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in left)
        for _, size, path in sorted(left):
            if total <= most_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total -= size

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []


def _name(kind: str, of: str, also: str) -> str:
    return f"{kind}-{of}-{also[:12]}-{version()}" if also else f"{kind}-{of}-{version()}"


def _of(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def version() -> str:
    """Changes when the same record would be drawn differently."""
    sheets = " ".join(asset_url(name) for name in ("report.css", "compared.css"))
    return hashlib.sha256(f"{__version__} {sheets} {FORM}".encode()).hexdigest()[:12]
