"""The samples that come with a record: a zip of one .npz a cell, opened without believing anything that it says.

Nothing of what was sent is kept as it came: arrays are read in steps, checked, and written anew, so that no byte stays
that is not a number of an array or a word that was looked through.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from flatout.record import Record
from flatout.site import rescan
from flatout.site.errors import Refused

if TYPE_CHECKING:
    from flatout.site.settings import Settings

REQUESTS: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(kind)
    for kind, names in (
        ("int64", "send_ns connect_ns first_byte_ns first_token_ns first_answer_ns last_token_ns end_ns text_bytes"),
        ("int64", "arrival_start"),
        ("int32", "stream round http_status asked_tokens prompt_tokens cached_tokens completion_tokens"),
        ("int32", "reasoning_tokens choices error arrival_count"),
        ("int8", "outcome finish"),
    )
    for name in names.split()
}
"""The columns of the table of requests, as the load writes them."""
ARRIVALS: Final[Mapping[str, np.dtype[Any]]] = {
    "t_ns": np.dtype("int64"),
    "running_tokens": np.dtype("int32"),
    "id_tokens": np.dtype("int32"),
    "text_len": np.dtype("int32"),
    "kind": np.dtype("int8"),
}
MOST_REQUESTS: Final = 1_000_000
"""Rows of one file's table of requests."""
MOST_ARRIVALS: Final = 50_000_000
_MOST_FILES: Final = 80_000
_MOST_ARRAYS: Final = 60
_MOST_META_BYTES: Final = 8 * 1024 * 1024
_MOST_WORDS_BYTES: Final = 16 * 1024 * 1024
"""The server's words of all files together: looking through a megabyte takes up to a second."""
_MOST_TEXT_CHARS: Final = 20_000
_UNPACKED_TIMES: Final = 8
"""How much larger the arrays may be than what is sent: integers pack well, but not a thousandfold."""
_STEP: Final = 256 * 1024
_LEVEL: Final = 2  # of zlib, as flatout packs its samples: the same file comes out as it went in
_FILE: Final = re.compile(r"samples/[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.npz")
_META_FILE: Final = "meta.npy"
_COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {f"{name}.npy": kind for name, kind in {**REQUESTS, **ARRIVALS}.items()}
_ENTRY: Final = b"PK\x01\x02"
_ENDED: Final = (1980, 1, 1, 0, 0, 0)
_META: Final = frozenset({"finish_names", "error_texts", "request_ids"})
_AT_ONCE: Final = 200
_BROKEN: Final = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError,
    NotImplementedError, RuntimeError, OverflowError, IndexError, UnicodeError, TypeError, SyntaxError, MemoryError,
)  # fmt: skip


def take_samples(body: bytes, record: Record, settings: Settings) -> bytes:
    """A zip made anew from the one that was sent: the same arrays, and nothing else that it held.

    Raises Refused where it is too large, no zip, has files that no cell names, arrays of anything but the whole numbers
    that samples have, tables that do not fit together, generated text, or secrets and personal details in the server's
    words.
    """
    limit = settings.max_samples_bytes
    if len(body) > limit:
        raise Refused("samples", f"the zip has {len(body):,} bytes; at most {limit:,} are taken here", too_large=True)
    wanted = {cell.samples for cell in record.cells if cell.samples}
    files = _files(body, wanted, limit)
    room = _Room(limit * _UNPACKED_TIMES, _MOST_WORDS_BYTES)
    size = 0
    for name in files:
        files[name] = _anew(name, files[name], room)
        size += len(files[name])
        if size > limit:
            raise Refused("samples", f"they have over {limit:,} bytes when they are packed anew", too_large=True)
    return pack(files)


def pack(files: Mapping[str, bytes]) -> bytes:
    """One zip of the files by name; equal files make equal bytes. An .npz is compressed already."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _ENDED), files[name])
    return out.getvalue()


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """As many bytes of a file in a zip as it claims to have, and never more in memory, whatever is packed in it.

    `ZipFile.read` unpacks all that is there before it looks at the claim. Raises what `zipfile` raises.
    """
    with archive.open(info) as file:
        return _exactly(file, info.file_size)


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Raises EOFError where there is less, ValueError where there is more."""
    parts: list[bytes] = []
    left = size
    while left > 0:
        part = file.read(min(left, _STEP))
        if not part:
            raise EOFError("less than it claims")
        parts.append(part)
        left -= len(part)
    if file.read(1):
        raise ValueError("more than it claims")
    return b"".join(parts)


class _Room:
    """What may still be unpacked, over all files."""

    def __init__(self, array_bytes: int, word_bytes: int) -> None:
        self.array_bytes = array_bytes
        self.word_bytes = word_bytes


def _files(body: bytes, wanted: set[str], limit: int) -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    if body.count(_ENTRY) > _MOST_FILES:
        raise Refused("samples", f"the zip has over {_MOST_FILES:,} entries", too_large=True)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            room = limit
            for info in archive.infolist():
                if info.filename not in wanted or not _FILE.fullmatch(info.filename) or info.filename in made:
                    raise Refused(
                        "samples", f"no cell of the record names '{rescan.shown(info.filename)}', or it is there twice"
                    )
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise Refused("samples", "the zip is packed in a way that is not taken: use deflate")
                if info.file_size > room:
                    raise Refused("samples", "the zip is larger unpacked than is taken here", too_large=True)
                made[info.filename] = member(archive, info)
                room -= info.file_size
    except _BROKEN as error:
        raise Refused("samples", "this is no zip that can be read, or it was damaged on the way") from error
    return made


def _anew(name: str, data: bytes, room: _Room) -> bytes:
    """One .npz, read in steps and written again."""
    out = io.BytesIO()
    rows: dict[str, int] = {}
    meta: dict[str, list[str]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
            made.compresslevel = _LEVEL
            entries = archive.infolist()
            if len(entries) > _MOST_ARRAYS or len({entry.filename for entry in entries}) != len(entries):
                raise Refused(name, "it holds too many arrays, or one twice")
            for entry in entries:
                if entry.filename != _META_FILE and entry.filename not in _COLUMNS:
                    raise Refused(name, "it holds something that is no array of samples")
                room.array_bytes -= entry.file_size
                if room.array_bytes < 0 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise Refused(name, "its arrays are larger unpacked than is taken here", too_large=True)
                if entry.filename == _META_FILE:
                    meta = _words(archive, entry, made, name, room)
                else:
                    rows[entry.filename.removesuffix(".npy")] = _column(archive, entry, made, name)
    except _BROKEN as error:
        raise Refused(name, "it is no file of samples, or it was damaged on the way") from error
    _fit(name, rows, len(meta.get("request_ids", [])))
    return out.getvalue()


def _fit(name: str, rows: Mapping[str, int], ids: int) -> None:
    """Columns of one table are of one length, and no table is larger than any run's."""
    for columns, most in ((REQUESTS, MOST_REQUESTS), (ARRIVALS, MOST_ARRIVALS)):
        found = {rows[column] for column in columns if column in rows}
        if len(found) > 1:
            raise Refused(name, "its columns do not fit together: they are of different lengths")
        if found and max(found) > most:
            raise Refused(name, f"it holds over {most:,} rows: no cell has so many", too_large=True)
    requests = next((rows[column] for column in REQUESTS if column in rows), None)
    if requests is not None and ids > requests:
        raise Refused(name, "it holds more ids of requests than requests")


def _header(file: IO[bytes], size: int, kind: np.dtype[Any], name: str) -> int:
    """How many numbers follow in an array's file of that size: exactly as many as fill it."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise Refused(name, "an array in it is of an unknown kind")
    shape, _, found = np.lib.format.read_array_header_1_0(file)
    if found != kind or len(shape) != 1 or isinstance(shape[0], bool) or shape[0] < 0:
        raise Refused(name, "an array in it does not hold the whole numbers that samples have")
    if file.tell() + shape[0] * kind.itemsize != size:
        raise Refused(name, "an array in it is longer or shorter than it claims")
    return int(shape[0])


def _column(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, made: zipfile.ZipFile, name: str) -> int:
    """Copies an array in steps, under a header of our own; returns its length."""
    kind = _COLUMNS[entry.filename]
    with archive.open(entry) as file:
        count = _header(file, entry.file_size, kind, name)
        with made.open(entry.filename, "w", force_zip64=True) as out:
            _write_header(out, kind, count)
            left = count * kind.itemsize
            while left > 0:
                part = file.read(min(left, _STEP))
                if not part:
                    raise EOFError("less than it claims")
                out.write(part)
                left -= len(part)
            if file.read(1):  # and at the end the checksum is compared
                raise ValueError("more than it claims")
    return count


def _write_header(out: IO[bytes], kind: np.dtype[Any], count: int) -> None:
    told = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, told)


def _words(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, made: zipfile.ZipFile, name: str, room: _Room
) -> dict[str, list[str]]:
    """What the server said: its errors, its finish reasons, its ids for requests. Looked through, and written anew."""
    room.word_bytes -= entry.file_size
    if entry.file_size > _MOST_META_BYTES or room.word_bytes < 0:
        raise Refused(name, "the server's words in it are too long", too_large=True)
    kind = np.dtype(np.uint8)
    with archive.open(entry) as file:
        count = _header(file, entry.file_size, kind, name)
        meta = json.loads(_exactly(file, count))
    checked = _meta(meta, name)
    text = json.dumps(checked).encode()
    with made.open(entry.filename, "w", force_zip64=True) as out:
        _write_header(out, kind, len(text))
        out.write(text)
    return checked


def _meta(meta: Any, name: str) -> dict[str, list[str]]:
    if not isinstance(meta, dict) or not meta.keys() <= _META:
        raise Refused(name, "it holds more than samples do; generated text is not taken")
    for key, texts in meta.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refused(name, "it is no file of samples, or it was damaged on the way")
        if max(map(len, texts), default=0) > _MOST_TEXT_CHARS:
            raise Refused(f"{name}.{key}", f"a text in it is over {_MOST_TEXT_CHARS:,} characters long", too_large=True)
        at = _leak(texts)
        if at is not None:
            raise Refused(
                f"{name}.{key}.{at}",
                "what the server said here holds a secret or a personal detail. Nothing was kept: publish without "
                "samples, or with `flatout publish`",
            )
    return meta


def _leak(texts: Sequence[str]) -> int | None:
    """Which text would be redacted. Many short ones are looked through together, which is as sure and much faster."""
    for begin in range(0, len(texts), _AT_ONCE):
        some = texts[begin : begin + _AT_ONCE]
        whole = "\n".join(some)
        if rescan.redacted(whole) != whole:
            return next((begin + i for i, text in enumerate(some) if rescan.redacted(text) != text), begin)
    return None
