"""The samples that come with a record: a zip of one .npz a cell, opened without believing anything that it says."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flatout.record import Record
from flatout.site import rescan
from flatout.site.errors import Refused

if TYPE_CHECKING:
    from flatout.site.settings import Settings

_MOST_FILES: Final = 80_000
_MOST_ARRAYS: Final = 60
_MOST_META_BYTES: Final = 8 * 1024 * 1024
_UNPACKED_TIMES: Final = 8
"""How much larger the arrays may be than what is sent: integers pack well, but not a thousandfold."""
_FILE: Final = re.compile(r"samples/[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.npz")
_ARRAY: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\.npy")
_ENTRY: Final = b"PK\x01\x02"
_ENDED: Final = (1980, 1, 1, 0, 0, 0)
_META: Final = frozenset({"finish_names", "error_texts", "request_ids"})
_AT_ONCE: Final = 200
_BROKEN: Final = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError,
    NotImplementedError, RuntimeError, OverflowError, IndexError, UnicodeError,
)  # fmt: skip


def take_samples(body: bytes, record: Record, settings: Settings) -> bytes:
    """A zip made anew from the one that was sent: the same files, and nothing else that it held.

    Raises Refused where it is too large, no zip, has files that no cell names, arrays of anything but whole numbers,
    generated text, or secrets and personal details in the server's words.
    """
    limit = settings.max_samples_bytes
    if len(body) > limit:
        raise Refused("samples", f"the zip has {len(body):,} bytes; at most {limit:,} are taken here", too_large=True)
    wanted = {cell.samples for cell in record.cells if cell.samples}
    files = _files(body, wanted, limit)
    room = limit * _UNPACKED_TIMES
    for name, data in files.items():
        room -= _checked(name, data, room)
    return pack(files)


def pack(files: Mapping[str, bytes]) -> bytes:
    """One zip of the files by name; equal files make equal bytes. An .npz is compressed already."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _ENDED), files[name])
    return out.getvalue()


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
                made[info.filename] = _member(archive, info, room)
                room -= info.file_size
    except _BROKEN as error:
        raise Refused("samples", "this is no zip that can be read, or it was damaged on the way") from error
    return made


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, room: int) -> bytes:
    """Raises Refused where it is larger than there is room, by its own word; more than that is never read."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused("samples", "the zip is packed in a way that is not taken: use deflate")
    if info.file_size > room:
        raise Refused("samples", "the zip is larger unpacked than is taken here", too_large=True)
    return archive.read(info)


def _checked(name: str, data: bytes, room: int) -> int:
    """The bytes of the arrays in one .npz."""
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_ARRAYS or len({entry.filename for entry in entries}) != len(entries):
                raise Refused(name, "it holds too many arrays, or one twice")
            for entry in entries:
                if not _ARRAY.fullmatch(entry.filename):
                    raise Refused(name, "it holds something that is no array of samples")
                total += entry.file_size
                if total > room or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise Refused(name, "its arrays are larger unpacked than is taken here", too_large=True)
                _array(archive, entry, name)
    except _BROKEN as error:
        raise Refused(name, "it is no file of samples, or it was damaged on the way") from error
    return total


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> None:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise Refused(name, "an array in it is of an unknown kind")
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        if kind.kind not in "iu" or len(shape) != 1:
            raise Refused(name, "an array in it does not hold whole numbers")
        if entry.filename == "meta.npy":
            if entry.file_size > _MOST_META_BYTES:
                raise Refused(name, "the server's words in it are too long", too_large=True)
            _meta(json.loads(file.read()), name)


def _meta(meta: Any, name: str) -> None:
    """What the server said: its errors, its finish reasons, its ids for requests."""
    if not isinstance(meta, dict) or not meta.keys() <= _META:
        raise Refused(name, "it holds more than samples do; generated text is not taken")
    for key, texts in meta.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refused(name, "it is no file of samples, or it was damaged on the way")
        at = _leak(texts)
        if at is not None:
            raise Refused(
                f"{name}.{key}.{at}",
                "what the server said here holds a secret or a personal detail. Nothing was kept: publish without "
                "samples, or with `flatout publish`",
            )


def _leak(texts: Sequence[str]) -> int | None:
    """Which text would be redacted. Many short ones are looked through together, which is as sure and much faster."""
    for begin in range(0, len(texts), _AT_ONCE):
        some = [text[:2000] for text in texts[begin : begin + _AT_ONCE]]
        whole = "\n".join(some)
        if rescan.redacted(whole) != whole:
            return next((begin + i for i, text in enumerate(some) if rescan.redacted(text) != text), begin)
    return None
