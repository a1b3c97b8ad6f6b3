"""Local results, picked up by themselves: every directory below `results/` whose record is complete."""

from __future__ import annotations

import logging
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from flatout.record import Record
from flatout.show.safe import clean
from flatout.site import reasons
from flatout.site.errors import Refused, SiteError, Unavailable
from flatout.site.intake import take
from flatout.site.samples import pack, take_samples
from flatout.site.schema import runs, takes
from flatout.site.store import PUBLIC, QUEUED, Store

if TYPE_CHECKING:
    from flatout.site.settings import Settings

EVERY_S: Final = 5.0
WHO: Final = "site"
_REASON_CHARS: Final = 500
_log: Final = logging.getLogger("flatout.site")


def pick_up(store: Store, results_dir: Path) -> list[str]:
    """Publishes the records in `results_dir/*/record.json` that are new or changed; returns the public ids of new runs.

    Each directory is looked at again only when its record's size or time changes. One that cannot be taken (broken,
    still running, a secret in it) is written down in `takes` with its reason. A changed record takes the place of the
    run from the same directory. Raises Unavailable.
    """
    made: list[str] = []
    with store.database.read() as conn:
        seen = {row.origin: row.stamp for row in conn.execute(sa.select(takes.c.origin, takes.c.stamp))}
    for path in sorted(results_dir.glob("*/record.json")):
        origin = clean(path.parent.name, 300)
        try:
            about = path.stat()
        except OSError:  # moved away in the meantime
            continue
        stamp = f"{about.st_size}-{about.st_mtime_ns}"
        if seen.get(origin) == stamp:
            continue
        reason: str | None = None
        try:
            new = _take(store, path, origin)
            made += [new] if new else []
        except Unavailable:
            raise
        except (SiteError, OSError) as error:
            reason = clean(error, _REASON_CHARS)
        _note(store, origin, stamp, reason)
    return made


def _take(store: Store, path: Path, origin: str) -> str | None:
    """The new run's public id; None where the site had the record already."""
    limit = store.settings.max_record_bytes
    body = _read(path, limit)
    if body is None:
        raise Refused("the record", f"it has over {limit:,} bytes: more than is taken", too_large=True)
    local = replace(store.settings, max_body_bytes=limit)
    taken = take(body, gzipped=False, settings=local)
    with store.database.read() as conn:
        old = conn.scalar(
            sa.select(runs.c.public_id)
            .where(runs.c.origin == origin, runs.c.state.in_((PUBLIC, QUEUED)), runs.c.account_id.is_(None))
            .order_by(runs.c.id.desc())
            .limit(1)
        )
    found = store.publish(
        taken,
        account_id=None,
        who=WHO,
        samples=_samples(path.parent, taken.record, store.settings),
        replaces=old if old != taken.public_id else None,
        origin=origin,
    )
    return found.public_id if found.created else None


def _samples(directory: Path, record: Record, settings: Settings) -> bytes | None:
    """The zip of the samples that the cells name, where they are there, sound, and not too large."""
    files: dict[str, bytes] = {}
    room = settings.max_samples_bytes
    for name in sorted({cell.samples for cell in record.cells if cell.samples}):
        path = directory / "samples" / name.removeprefix("samples/")
        if path.parent != directory / "samples" or path.suffix != ".npz":
            continue
        try:
            data = _read(path, room)
        except (OSError, Refused):  # a record without some of its samples is a record all the same
            continue
        if data is None:
            _log.warning("the samples in %s are left out: they are larger than is taken", directory.name)
            return None
        room -= len(data)
        files[f"samples/{path.name}"] = data
    try:
        return take_samples(pack(files), record, settings) if files else None
    except Refused as error:
        _log.warning("the samples in %s are left out: %s", directory.name, error)
        return None


def _read(path: Path, most: int) -> bytes | None:
    """The file, or None if it has more bytes. A link to a file is one; nothing else is waited for or read without end.

    Raises Refused for a pipe, a device or the like, OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Refused("the record", f"{path.name} is no file, but a pipe or a device: nothing was read")
        data = file.read(most + 1)
    return data if len(data) <= most else None


def _note(store: Store, origin: str, stamp: str, outcome: str | None) -> None:
    with store.database.write() as conn:
        told = {"stamp": stamp, "outcome": outcome}
        if not conn.execute(sa.update(takes).where(takes.c.origin == origin).values(told)).rowcount:
            conn.execute(sa.insert(takes).values(origin=origin, **told))


class Watcher:
    """Looks into a directory every five seconds, in a thread of its own, until it is stopped."""

    def __init__(self, store: Store, results_dir: Path, every_s: float = EVERY_S) -> None:
        self._store = store
        self._results_dir = results_dir
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flatout results", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Waits for the look that goes on."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        said = ""
        while not self._stopped.is_set():
            try:
                pick_up(self._store, self._results_dir)
                said = ""
            except Exception as error:  # whatever it is, the next look may go well: a full disk, a database away
                words = reasons.told(error, reasons.secrets_of(self._store.settings))
                if words != said:
                    _log.error("results in %s were not picked up: %s", self._results_dir, words)
                said = words
            self._stopped.wait(self._every_s)
