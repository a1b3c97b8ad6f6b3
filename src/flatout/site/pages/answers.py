"""Bodies with their tags: told to a reader who has them already, and sent compressed to those who take that.

A page of a run is mostly what was drawn once. That part is kept compressed, and only the little around it is made for
each request: gzip's inner format (RFC 1951) lets parts that end in a full flush stand in a row. What is made for one
reader is not compressed together with anything: no length tells what is in it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request, Response

READ: Final = ["GET", "HEAD"]
"""Methods of a page."""
LEAST_BYTES: Final = 2_000
"""Smaller ones gain nothing."""
_GZIP: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""RFC 1952: deflate, no flags, no time, unknown system."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a body, and the same deflated with a full flush at its end."""

    plain: bytes
    deflated: bytes


def piece(plain: bytes, level: int = 6) -> Piece:
    """`level` 0 keeps the bytes as they are within the format."""
    packer = zlib.compressobj(level, wbits=-15)
    return Piece(plain, packer.compress(plain) + packer.flush(zlib.Z_FULL_FLUSH))


def gzipped(pieces: Sequence[Piece]) -> bytes:
    """One gzip member out of pieces."""
    crc, size = 0, 0
    for one in pieces:
        crc = zlib.crc32(one.plain, crc)
        size += len(one.plain)
    end = zlib.compressobj(wbits=-15).flush(zlib.Z_FINISH)
    return b"".join([_GZIP, *(one.deflated for one in pieces), end, struct.pack("<II", crc, size & 0xFFFFFFFF)])


def pack(meta: Mapping[str, str], pieces: Mapping[str, bytes]) -> bytes:
    """Texts and pieces as one file: a line of JSON, then the pieces, plain and deflated."""
    made = {name: piece(plain) for name, plain in pieces.items()}
    lengths = {name: (len(one.plain), len(one.deflated)) for name, one in made.items()}
    head = json.dumps({"meta": dict(meta), "pieces": lengths}).encode()
    return b"".join([head, b"\n", *(part for one in made.values() for part in (one.plain, one.deflated))])


def unpack(packed: bytes) -> tuple[dict[str, str], dict[str, Piece]]:
    """What `pack` took. Raises ValueError, KeyError for anything else."""
    end = packed.index(b"\n")
    head = json.loads(packed[:end])
    at = end + 1
    pieces: dict[str, Piece] = {}
    for name, (plain, deflated) in head["pieces"].items():
        middle, last = at + plain, at + plain + deflated
        pieces[name] = Piece(packed[at:middle], packed[middle:last])
        at = last
    if at != len(packed):
        raise ValueError("the kept page is cut off")
    return head["meta"], pieces


def has_session(request: Request) -> bool:
    """Something is kept for this visitor. A request that was refused early has no session at all."""
    return bool(request.scope.get("session"))


def takes_gzip(request: Request) -> bool:
    """The reader takes gzip (RFC 9110, 12.5.3, without the finer weights)."""
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def whole(
    request: Request,
    body: bytes,
    kind: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    tag: str | None = None,
) -> Response:
    """A body with its tag (default: from its bytes), or 304. Text that is the same for everybody is compressed."""
    shared = not has_session(request) and kind.startswith(("text/", "application/json", "image/svg"))
    zipped = shared and len(body) >= LEAST_BYTES and takes_gzip(request)
    made = lambda: gzipped([piece(body, 4)]) if zipped else body  # noqa: E731
    return _answer(request, tag or _digest([body]), zipped, made, kind, status, headers)


def in_pieces(
    request: Request,
    pieces: Sequence[Piece],
    kind: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    tag: str | None = None,
) -> Response:
    """The same of pieces in a row. What a signed-in person sees is nobody else's to keep."""
    zipped = all(one.deflated for one in pieces) and takes_gzip(request)
    made = lambda: gzipped(pieces) if zipped else b"".join(one.plain for one in pieces)  # noqa: E731
    return _answer(request, tag or _digest(one.plain for one in pieces), zipped, made, kind, status, headers)


def _answer(
    request: Request,
    digest: str,
    zipped: bool,
    made: Callable[[], bytes],
    kind: str,
    status: int,
    headers: Mapping[str, str] | None,
) -> Response:
    """`made`: the body as it is sent, asked for only where the reader has not got it."""
    etag = f'"{digest}{"-z" if zipped else ""}"'
    told = {
        "ETag": etag,
        "Cache-Control": ("private" if has_session(request) else "public") + ", no-cache",
        "Vary": "Cookie, Accept-Encoding",
        **(headers or {}),
    }
    if status == 200 and request.method in ("GET", "HEAD") and matches(request, etag):
        return Response(status_code=304, headers=told)
    return Response(made(), status, told | ({"Content-Encoding": "gzip"} if zipped else {}), kind)


def matches(request: Request, etag: str) -> bool:
    """The reader has this very version (If-None-Match)."""
    asked = request.headers.get("if-none-match", "")
    return etag in [part.strip().removeprefix("W/") for part in asked.split(",")]


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.hexdigest()[:32]
