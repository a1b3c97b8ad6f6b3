"""Files by the SHA-256 of what is in them: records and samples. A file is there whole, or not at all."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from flatout.site.errors import NotFound, SiteError, Unavailable

RECORDS: Final = "records"
SAMPLES: Final = "samples"
_ENDINGS: Final = {RECORDS: ".json.gz", SAMPLES: ".zip"}
_KIND: Final = re.compile(r"[a-z]{1,20}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
ANSWER_S: Final = 60.0
"""A store elsewhere has answered by then, or it does not answer: left alone, S3's client would try for minutes."""
MOST_UNPACKED_BYTES: Final = 1024 * 1024 * 1024
"""No more is ever unpacked of one file: a record may have as much at the most, whatever the settings are."""
_FULL: Final = (
    "the site's files cannot be {done} at the moment, so nothing was changed; try again in a minute. The operator "
    "finds the reason in the site's log: a full disk, or a store that does not answer"
)
_DAMAGED: Final = "the file {name}… is damaged: the operator must restore it from a backup"


class Blobs:
    """Content-addressed files below one place: a directory, or what fsspec opens (`s3://bucket/folder`).

    Kinds whose ending is `.gz` are kept compressed; the hash is always that of the data itself.
    """

    def __init__(self, files: Any | None, root: str) -> None:
        """`files`: one of fsspec's file systems; None for a directory, where our own writing survives a power cut."""
        self._files = files
        self._root = root
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str) -> Blobs:
        """Raises SiteError for a place that cannot be used: an unknown kind of URL, a part that is not installed."""
        if "://" not in url or url.startswith("file://"):
            root = Path(url.removeprefix("file://")).absolute()
            try:
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise SiteError(
                    f"the directory for files cannot be made: {root} ({error.strerror or error})"
                ) from error
            return cls(None, str(root))
        import fsspec  # type: ignore[import-untyped]

        try:
            # no lists from before: another process of the site may have put a file, or deleted it
            files, root_name = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError, OSError) as error:
            scheme = url.partition("://")[0][:20]
            raise SiteError(f"files at {scheme}:// cannot be used: {type(error).__name__}: {error}") from error
        return cls(files, root_name.rstrip("/"))

    def put(self, kind: str, data: bytes) -> str:
        """Keeps `data`; returns its SHA-256 in hex. The same data again is the same file. Raises Unavailable."""
        name = hashlib.sha256(data).hexdigest()
        path = self._path(kind, name)
        packed = gzip.compress(data, 6, mtime=0) if path.endswith(".gz") else data
        with _told("written", missing=True):
            if self._files is not None:
                self._ask("pipe_file", path, packed)
            elif not self._renewed(Path(path), len(packed)):
                _write(Path(path), packed)
        return name

    def _ask(self, what: str, *given: Any) -> Any:
        """What fsspec's method of that name answers, within ANSWER_S where the store is one across a network."""
        files: Any = self._files
        awaited = getattr(files, f"_{what}", None) if getattr(files, "async_impl", False) else None
        if awaited is None:
            return getattr(files, what)(*given)
        from fsspec.asyn import sync  # type: ignore[import-untyped]

        return sync(files.loop, awaited, *given, timeout=ANSWER_S)

    def _renewed(self, path: Path, size: int) -> bool:
        """Whether the file is there; then it is as new for `sweep`: its run is not in the database yet."""
        with self._lock:
            there = path.is_file() and path.stat().st_size == size
            if there:
                os.utime(path)
            return there

    def get(self, kind: str, name: str) -> bytes:
        """What was put. Raises NotFound, and Unavailable where it cannot be read or is no longer what was put."""
        return self.unpacked(kind, name, self.raw(kind, name))

    def unpacked(self, kind: str, name: str, packed: bytes, most_bytes: int = MOST_UNPACKED_BYTES) -> bytes:
        """The data in a file as it lies there. Raises Unavailable if it is not what has that hash, or makes more than
        `most_bytes` when it is unpacked, of which no more are made."""
        try:
            data = _gunzip(packed, most_bytes) if self._path(kind, name).endswith(".gz") else packed
        except (ValueError, zlib.error) as error:
            raise Unavailable(_DAMAGED.format(name=name[:12])) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise Unavailable(_DAMAGED.format(name=name[:12]))
        return data

    def raw(self, kind: str, name: str) -> bytes:
        """The file as it lies there (records: gzip), not checked. Raises NotFound and Unavailable."""
        path = self._path(kind, name)
        try:
            with _told("read"):
                return bytes(self._ask("cat_file", path)) if self._files is not None else Path(path).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {name[:12]}…") from error

    def has(self, kind: str, name: str) -> bool:
        path = self._path(kind, name)
        with _told("read"):
            return bool(self._ask("exists", path)) if self._files is not None else Path(path).is_file()

    def delete(self, kind: str, name: str) -> None:
        """One that is not there is deleted already. Raises Unavailable."""
        path = self._path(kind, name)
        with self._lock, _told("deleted"), contextlib.suppress(FileNotFoundError):
            self._unlink(path)

    def sweep(self, keep: Callable[[str, str], bool], older_than_s: float) -> int:
        """Deletes files that nobody needs: of an age, and not `keep(kind, hash)`; returns how many.

        Those are left by a publish that ended between its files and its row in the database. Raises Unavailable.
        """
        gone = 0
        for kind, name, path in list(self._walk()):
            if self._age(path) <= older_than_s or (name is not None and keep(kind, name)):
                continue
            with self._lock, _told("deleted"), contextlib.suppress(FileNotFoundError):
                if self._age(path) > older_than_s:  # put again in the meantime: then it is young
                    self._unlink(path)
                    gone += 1
        return gone

    def _unlink(self, path: str) -> None:
        if self._files is not None:
            self._ask("rm_file", path)
        else:
            Path(path).unlink()

    def _path(self, kind: str, name: str) -> str:
        if not _KIND.fullmatch(kind) or not _HASH.fullmatch(name):
            raise NotFound("there is no such file")
        return f"{self._root}/{kind}/{name[:2]}/{name}{_ENDINGS.get(kind, '')}"

    def _walk(self) -> Iterator[tuple[str, str | None, str]]:
        """(kind, hash or None for what is no file of ours, path); half-written ones have no hash."""
        with _told("read"):
            if self._files is None:
                paths = [str(p) for p in Path(self._root).glob("*/*/*") if p.is_file()]
            else:
                paths = [str(p) for p in self._ask("find", self._root)]
        for path in paths:
            parts = path.rsplit("/", 3)
            name = parts[-1].partition(".")[0]
            yield parts[-3], name if _HASH.fullmatch(name) and not parts[-1].endswith(".part") else None, path

    def _age(self, path: str) -> float:
        """Seconds since it was written; 0 where nobody knows, so that it stays."""
        try:
            if self._files is None:
                return time.time() - Path(path).stat().st_mtime
            written = self._ask("modified", path)
            return time.time() - float(written.timestamp())
        except (OSError, NotImplementedError, AttributeError, KeyError):
            return 0.0


def _gunzip(packed: bytes, most_bytes: int) -> bytes:
    """One gzip stream and nothing behind it, no further than to the limit. Raises ValueError, zlib.error."""
    unpack = zlib.decompressobj(wbits=31)
    data = unpack.decompress(packed, most_bytes + 1)
    if not unpack.eof or unpack.unused_data or len(data) > most_bytes:
        raise ValueError("cut off, too large, or with something behind it")
    return data


def _write(path: Path, data: bytes) -> None:
    """Beside, flushed to the disk, renamed, and the rename flushed too."""
    fresh = not path.parent.is_dir()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        # for the site alone: among them are runs that are not public
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    for directory in (path.parent, *([path.parent.parent, path.parent.parent.parent] if fresh else [])):
        _flush(directory)


def _flush(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _told(done: str, *, missing: bool = False) -> Iterator[None]:
    """Whatever a store may raise as Unavailable, without its text; FileNotFoundError passes unless `missing`."""
    try:
        yield
    except SiteError:
        raise
    except Exception as error:  # each store of fsspec has errors of its own
        if isinstance(error, FileNotFoundError) and not missing:
            raise
        raise Unavailable(_FULL.format(done=done)) from error
