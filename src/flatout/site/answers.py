"""Bodies with their tags: told to a reader who has them already, and sent compressed to those who take that; and the
files that never change under their address.

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
from functools import cache
from importlib import resources
from typing import Final

from fastapi import Request, Response

READ: Final = ["GET", "HEAD"]
"""Methods of a page."""
LEAST_BYTES: Final = 2_000
"""Smaller ones gain nothing."""
_GZIP: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""RFC 1952: deflate, no flags, no time, unknown system."""
_ASSETS: Final[Mapping[str, tuple[str, str, str]]] = {
    "report.css": ("flatout.show.page", "page.css", "text/css; charset=utf-8"),
    "compared.css": ("flatout.show.page", "compared.css", "text/css; charset=utf-8"),
    "site.css": ("flatout.site.static", "site.css", "text/css; charset=utf-8"),
    "icon.svg": ("flatout.site.static", "icon.svg", "image/svg+xml"),
}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """A static file and its media type; None where there is none of that name."""
    if name not in _ASSETS:
        return None
    folder, file, kind = _ASSETS[name]
    return resources.files(folder).joinpath(file).read_bytes(), kind


@cache
def asset_url(name: str) -> str:
    """Its address, which changes with its content, so that it may be kept for good."""
    file = asset(name)
    assert file is not None, name
    return f"/static/{name}?v={hashlib.sha256(file[0]).hexdigest()[:12]}"


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


def pack(words: Mapping[str, str], pieces: Mapping[str, bytes]) -> bytes:
    """Texts and pieces as one file: a line of JSON, then the pieces, plain and deflated."""
    packed = {name: piece(plain) for name, plain in pieces.items()}
    lengths = {name: (len(one.plain), len(one.deflated)) for name, one in packed.items()}
    head = json.dumps({"words": dict(words), "pieces": lengths}).encode()
    return b"".join([head, b"\n", *(part for one in packed.values() for part in (one.plain, one.deflated))])


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
    return head["words"], pieces


def whole(
    request: Request, body: bytes, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None,
    tag: str | None = None,
) -> Response:  # fmt: skip
    """A body with its tag (default: from its bytes), or 304. Text that is the same for everybody is compressed."""
    shared = not _has_session(request) and kind.startswith(("text/", "application/json", "image/svg"))
    zipped = shared and len(body) >= LEAST_BYTES and _takes_gzip(request)
    make = (lambda: gzipped([piece(body, 4)])) if zipped else (lambda: body)
    return _answer(request, tag or _digest([body]), zipped, make, kind, status, headers)


def in_pieces(
    request: Request, pieces: Sequence[Piece], kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The same of pieces in a row. What a signed-in person sees is nobody else's to keep."""
    zipped = all(one.deflated for one in pieces) and _takes_gzip(request)
    make = (lambda: gzipped(pieces)) if zipped else (lambda: b"".join(one.plain for one in pieces))
    return _answer(request, _digest(one.plain for one in pieces), zipped, make, kind, status, headers)


def _answer(
    request: Request, digest: str, zipped: bool, make: Callable[[], bytes], kind: str, status: int,
    headers: Mapping[str, str] | None,
) -> Response:  # fmt: skip
    """`make`: the body as it is sent, asked for only where the reader has not got it."""
    etag = f'"{digest}{"-z" if zipped else ""}"'
    sent = {
        "ETag": etag,
        "Cache-Control": ("private" if _has_session(request) else "public") + ", no-cache",
        "Vary": "Cookie, Accept-Encoding",
        **(headers or {}),
    }
    if status == 200 and request.method in READ and matches(request, etag):
        return Response(status_code=304, headers=sent)
    return Response(make(), status, sent | ({"Content-Encoding": "gzip"} if zipped else {}), kind)


def matches(request: Request, etag: str) -> bool:
    """The reader has this very version (If-None-Match)."""
    known = request.headers.get("if-none-match", "")
    return etag in [part.strip().removeprefix("W/") for part in known.split(",")]


def _has_session(request: Request) -> bool:
    """Something is kept for this visitor. A request that was refused early has no session at all."""
    return bool(request.scope.get("session"))


def _takes_gzip(request: Request) -> bool:
    """The reader takes gzip (RFC 9110, 12.5.3, without the finer weights)."""
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:32]
