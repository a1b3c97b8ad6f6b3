"""What comes in from anywhere: bytes in, a record that can be kept out, or Refused with the place and the reason.

Cheap limits come first and the deep parts last: size, unpacked size, number of values, JSON, number of cells, the
record's schema, what the database can hold, and at the end the search for secrets.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from flatout.record import FORMAT, Record
from flatout.show.safe import clean
from flatout.site import rescan
from flatout.site.errors import Refused
from flatout.site.index import RunFacts, run_facts
from flatout.site.samples import take_samples

if TYPE_CHECKING:
    from flatout.site.settings import Settings

__all__ = ["Taken", "canonical_bytes", "public_id_of", "take", "take_samples"]

MOST_CELLS: Final = 2_000
MOST_VALUES: Final = 1_000_000
MOST_OBJECTS: Final = 200_000
MOST_DEEP: Final = 40
MOST_TEXT_CHARS: Final = 20_000
MOST_TEXT_TOTAL_CHARS: Final = 1_000_000
LARGEST_INT: Final = 2**63 - 1
_STEP: Final = 256 * 1024
_PUBLIC_ID_CHARS: Final = 12


@dataclass(frozen=True, slots=True)
class Taken:
    """`canonical`: the content as the site keeps and serves it; `content_hash`: its SHA-256 in hex; `public_id`: the
    beginning of the hash in base32, for links; `facts`: what the database holds of it."""

    record: Record
    canonical: bytes
    content_hash: str
    public_id: str
    facts: RunFacts


def take(body: bytes, *, gzipped: bool, settings: Settings) -> Taken:
    """A record as it was sent, checked and made canonical. Raises Refused, and nothing else whatever the bytes are."""
    if len(body) > settings.max_body_bytes:
        raise _too_large("the body", len(body), settings.max_body_bytes)
    if gzipped:
        body = _unpacked(body, settings.max_record_bytes)
    elif len(body) > settings.max_record_bytes:
        raise _too_large("the record", len(body), settings.max_record_bytes)
    content = _content(body)
    taken = _taken(content)
    found = rescan.leaks(content)
    if found:
        more = "" if len(found) == 1 else f" (and {len(found) - 1} more: {', '.join(one.place for one in found[1:6])})"
        raise Refused(
            found[0].place,
            f"{found[0].what} stands here{more}. Nothing was kept. Publish with `flatout publish`, which takes such "
            "things out and shows what is left; a secret that was sent should be replaced at once",
        )
    return taken


def take_again(canonical: bytes) -> Taken:
    """A record that was taken before, from the file that the site kept of it. Raises Refused as `take`, but for what
    redaction finds today: its rules may have been others then."""
    return _taken(_content(canonical))


def _taken(content: dict[str, Any]) -> Taken:
    _shallow(content)
    record = _record(content)
    canonical = canonical_bytes(content)
    digest = hashlib.sha256(canonical).hexdigest()
    return Taken(record, canonical, digest, public_id_of(digest), run_facts(record))


def canonical_bytes(content: dict[str, Any]) -> bytes:
    """JSON with sorted keys, without spaces, in UTF-8: equal content is equal bytes. Raises Refused for text that is
    not Unicode and numbers that JSON does not have."""
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except UnicodeEncodeError as error:
        raise Refused("the record", "a text in it is not Unicode (half of a surrogate pair)") from error
    except (ValueError, RecursionError) as error:
        raise Refused("the record", "a number in it is larger than any float, or it is nested too deeply") from error


def public_id_of(content_hash: str) -> str:
    """The name in links: 12 characters of base32, 60 bits of the hash."""
    return base64.b32encode(bytes.fromhex(content_hash)).decode().lower()[:_PUBLIC_ID_CHARS]


def _too_large(what: str, size: int | None, limit: int) -> Refused:
    has = f"it has {size:,} bytes" if size is not None else "it is larger unpacked than it may be"
    return Refused(what, f"{has}; at most {limit:,} are taken here", too_large=True)


def _unpacked(body: bytes, limit: int) -> bytes:
    """gzip, in steps: a bomb ends at the limit."""
    unpack = zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    size = 0
    rest = body
    try:
        while rest and not unpack.eof:
            part = unpack.decompress(rest, _STEP)
            rest = unpack.unconsumed_tail
            size += len(part)
            if size > limit:
                raise _too_large("the record", None, limit)
            parts.append(part)
    except zlib.error as error:
        raise Refused("the body", "it is said to be gzip and is not, or it was damaged on the way") from error
    if not unpack.eof:
        raise Refused("the body", "the gzip data is cut off: send it again")
    if unpack.unused_data:
        raise Refused("the body", "there is something behind the gzip data: send one gzip stream")
    return b"".join(parts)


def _content(body: bytes) -> dict[str, Any]:
    """The JSON object in the bytes, with limits on how much it makes in memory."""
    if body.count(b"{") + body.count(b"[") > MOST_OBJECTS or body.count(b",") > MOST_VALUES:
        raise Refused("the record", f"it holds over {MOST_VALUES:,} values: no run is that large", too_large=True)
    try:
        content = json.loads(body.decode(), parse_constant=_constant, object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        raise Refused("the record", "it is not UTF-8 text") from error
    except RecursionError as error:
        raise Refused("the record", f"it is nested over {MOST_DEEP} levels deep") from error
    except ValueError as error:
        raise Refused("the record", f"it is not JSON: {clean(error, 120)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), str):
        raise Refused("format", "this is JSON but no flatout record: it has no 'format'")
    if content["format"] != FORMAT:
        said = rescan.shown(content["format"])
        raise Refused("format", f"the record's format is '{said}'; this site takes '{FORMAT}'")
    cells = content.get("cells")
    if isinstance(cells, list) and len(cells) > MOST_CELLS:
        raise Refused("cells", f"there are {len(cells):,} cells; at most {MOST_CELLS:,} are taken", too_large=True)
    return content


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number that JSON has")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _shallow(content: dict[str, Any]) -> None:
    """No deeper than 40 levels, no number beyond 64 bits, no text that is longer than any of ours."""
    level: list[Any] = [content]
    keys: set[str] = set()
    text_chars = 0
    for _ in range(MOST_DEEP):
        below: list[Any] = []
        for item in level:
            values = list(item.values()) if isinstance(item, dict) else item
            if isinstance(item, dict):
                keys.update(item)
            kinds = set(map(type, values))
            if int in kinds and any(type(v) is int and abs(v) > LARGEST_INT for v in values):
                raise Refused("the record", "a whole number in it does not fit in 64 bits")
            if str in kinds:
                text_chars += _texts([v for v in values if type(v) is str])
            if dict in kinds or list in kinds:
                below += [v for v in values if type(v) is dict or type(v) is list]
        if text_chars + _texts(keys) > MOST_TEXT_TOTAL_CHARS:
            raise Refused("the record", f"it holds over {MOST_TEXT_TOTAL_CHARS:,} characters of text", too_large=True)
        if not below:
            return
        level = below
    raise Refused("the record", f"it is nested over {MOST_DEEP} levels deep")


def _texts(texts: Collection[str]) -> int:
    lengths = list(map(len, texts))
    if lengths and max(lengths) > MOST_TEXT_CHARS:
        raise Refused("the record", f"a text in it is over {MOST_TEXT_CHARS:,} characters long", too_large=True)
    return sum(lengths)


def _record(content: dict[str, Any]) -> Record:
    try:
        record = Record.model_validate(content)
    except (ValidationError, RecursionError, OverflowError) as error:
        if not isinstance(error, ValidationError):
            raise Refused("the record", "a number or its nesting is beyond all bounds") from error
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(rescan.shown(str(part)) for part in first["loc"]) or "the record"
        count = error.error_count()
        more = f" ({count} places in all)" if count > 1 else ""
        raise Refused(place, f"the record is damaged here: {clean(first['msg'], 200)}{more}") from error
    ids: set[str] = set()
    files: set[str] = set()
    for number, cell in enumerate(record.cells):
        if cell.id in ids:
            raise Refused(f"cells.{number}.id", "another cell has the same id")
        ids.add(cell.id)
        if cell.samples is not None:
            if cell.samples in files:
                raise Refused(f"cells.{number}.samples", "another cell names the same file of samples")
            files.add(cell.samples)
    if record.state == "running":
        raise Refused("state", "the run is not over: publish it when it has ended, or go on with --resume")
    return record
