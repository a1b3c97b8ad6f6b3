"""The result directory: the record and the samples, each written beside and renamed into place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from flatout.load.samples import Samples
from flatout.record import Record, dump


def now_iso() -> str:
    """This moment as ISO 8601 in local time with its UTC offset, milliseconds."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def new_directory(root: Path, model: str, engine: str) -> Path:
    """A fresh `<UTC time>-<model>-<engine>` below `root`; never one that exists. Raises OSError."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{stamp}-{_slug(model)}-{_slug(engine)}"
    root.mkdir(parents=True, exist_ok=True)
    for i in range(1, 1000):
        path = root / (name if i == 1 else f"{name}-{i}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{root} has a thousand directories named {name}")


def _slug(text: str) -> str:
    """The last part of a model's path, in characters that every file system takes."""
    last = text.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:60] or "unknown"


def write_beside(path: Path, data: bytes) -> None:
    """Writes `data` to a file beside `path`, flushes it to the disk, and renames it: whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


class Store:
    """The files of one run."""

    def __init__(self, directory: Path, redact: Callable[[str], str]) -> None:
        self.directory = directory
        self._redact = redact

    def write_record(self, record: Record) -> None:
        write_beside(self.directory / "record.json", dump(record).encode())

    def write_samples(self, cell_id: str, samples: Samples, attempt: int = 0) -> str:
        """Writes a cell's samples (without text) and returns the file's name relative to the record.

        What the server said in errors and as finish reasons is redacted: it may repeat what was sent to it.
        """
        samples = replace(
            samples,
            error_texts=[self._redact(text) for text in samples.error_texts],
            finish_names=[self._redact(name)[:40] for name in samples.finish_names],
            request_ids=[self._redact(name) for name in samples.request_ids],
        )
        name = cell_id.replace("/", "-") + (f".thrown-away-{attempt}" if attempt else "") + ".npz"
        (self.directory / "samples").mkdir(exist_ok=True)
        write_beside(self.directory / "samples" / name, samples.to_bytes())
        return f"samples/{name}"
