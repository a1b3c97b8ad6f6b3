"""What would be sent, to the byte: the record without personal details, and its samples; and the preview that people
read before they are asked."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flatout import record as rec
from flatout.engines.redact import Redactor
from flatout.publish.destination import PublishError
from flatout.record import Fact, Record
from flatout.show import about, numbers
from flatout.show.safe import HARD_SPACE, clean

KEYS_IN_ENVIRONMENT: Final = (
    "FLATOUT_TOKEN",
    "FLATOUT_API_KEY",
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
"""Variables whose values are known to be secret, so they are looked for as they are."""
_PLACEHOLDER: Final = re.compile(r"<redacted>|<address>|<user>|<host>|<email>|\$HOME")
_COUNT: Final = re.compile(r"\[")
_FACT: Final = frozenset({"value", "source", "reason"})
_SHORT_SECRET: Final = 8
_ID_CHARS: Final = 12
_LONGEST: Final = 300
MAX_SAMPLES: Final = 512 * 1024 * 1024
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Change:
    """One text that the redaction changed. `place`: names and numbers with dots between, as in `cells.3.error`;
    `before`: what stood there with everything that was taken out masked; `after`: what will be sent."""

    place: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Preview:
    """`to_send`: the record as canonical JSON, the very bytes whose hash names it on the site."""

    record: Record
    to_send: bytes
    changes: tuple[Change, ...]

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_send).hexdigest()

    @property
    def public_id(self) -> str:
        """The name that any site gives this record."""
        return b32encode(bytes.fromhex(self.content_hash)).decode().lower()[:_ID_CHARS]


def preview(path: Path, redactor: Redactor) -> Preview:
    """The record of a file or result directory as it would be sent.

    Raises RecordError (no record, or a damaged one) and PublishError (still running, or redaction would break it).
    """
    file = rec.find(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise PublishError(f"cannot read {file}: {error.strerror or error}") from error
    return previewed(data, redactor, shown=str(path))


def previewed(data: bytes, redactor: Redactor, *, shown: str) -> Preview:
    """As `preview`, from the record's bytes; `shown`: how its file is called in words."""
    record = rec.parse(data)
    if record.state == "running":
        raise PublishError(
            f"{shown} is a run that has not ended: publish it when it has, or, where it was broken off, go on with it "
            f"(flatout run … --resume {shown})"
        )
    before = json.loads(data)
    after = redacted(before, redactor)
    to_send = json.dumps(after, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        kept = rec.parse(to_send)
    except rec.RecordError as error:
        raise PublishError(
            f"{shown}: with the personal details taken out it is no record any more ({error})"
        ) from error
    return Preview(kept, to_send, tuple(changes(before, after)))


def redacted(content: Any, redactor: Redactor) -> Any:
    """A copy without secrets and personal details. A fact's value is read as what the fact is: `launch_command` as a
    command, `driver` as a version."""
    copy = redactor.tree(content)
    _facts(content, copy, redactor)
    return copy


def _facts(before: Any, after: Any, redactor: Redactor) -> None:
    if isinstance(before, list) and isinstance(after, list):
        for was, now in zip(before, after, strict=False):
            _facts(was, now, redactor)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    for (name, was), now in zip(before.items(), after.values(), strict=False):
        if isinstance(was, dict) and isinstance(now, dict) and "value" in was and was.keys() <= _FACT:
            if isinstance(was["value"], str):
                now["value"] = redactor.tree({name: was["value"]}).popitem()[1]
        else:
            _facts(was, now, redactor)


def redactor(token: str | None, environment: Mapping[str, str]) -> Redactor:
    """The redaction with this machine's home, user and host, and the keys that are known to be secret."""
    known = [environment.get(name, "") for name in KEYS_IN_ENVIRONMENT]
    return Redactor(secrets=[text for text in (token or "", *known) if len(text) >= _SHORT_SECRET])


def changes(before: Any, after: Any, place: str = "") -> Iterator[Change]:
    """Where two JSON trees of one shape differ. Nothing of `before` that is not in `after`, too, is given out."""
    if isinstance(before, dict) and isinstance(after, dict) and len(before) == len(after):
        for (key_before, was), (key, now) in zip(before.items(), after.items(), strict=True):
            here = f"{place}.{key}".removeprefix(".")
            if key_before != key:
                yield Change(f"{here} (the name)", masked(key_before, key), key)
            yield from changes(was, now, here)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (was, now) in enumerate(zip(before, after, strict=True)):
            yield from changes(was, now, f"{place}.{number}".removeprefix("."))
    elif before != after or type(before) is not type(after):
        was_text = before if isinstance(before, str) else json.dumps(before)
        now_text = after if isinstance(after, str) else json.dumps(after)
        yield Change(place, masked(was_text, now_text), now_text)


def masked(before: str, after: str) -> str:
    """`before` with each piece that a placeholder of `after` stands for as `[n characters]`; all of it where the two
    do not go together."""
    kept = _PLACEHOLDER.split(after)
    if len(kept) < 2 or not before.startswith(kept[0]) or not before.endswith(kept[-1]):
        return _count(before)
    shown, at = [kept[0]], len(kept[0])
    end = len(before) - len(kept[-1])
    for number, piece in enumerate(kept[1:], 1):
        last = number == len(kept) - 1
        begin = end if last else before.find(piece, at, end)
        if begin < at:
            return _count(before)
        shown += [_count(before[at:begin]), piece]
        at = begin + len(piece)
    return "".join(shown)


def _count(text: str) -> str:
    return f"[{len(text)} character{'' if len(text) == 1 else 's'}]"


def removed(changes: Sequence[Change], width: int = 400) -> str:
    """The redaction's work as a diff to read: place, what stood there (masked), what is sent instead."""
    if not changes:
        return "Redaction: nothing had to be taken out.\n"
    many = "1 place" if len(changes) == 1 else f"{len(changes)} places"
    lines = [f"Redaction: taken out in {many} (your file stays as it is):"]
    for change in changes:
        lines += [
            f"  {clean(change.place, 200)}",
            f"    - {_around(change.before, _COUNT, width)}",
            f"    + {_around(change.after, _PLACEHOLDER, width)}",
        ]
    return "\n".join(lines) + "\n"


def _around(text: str, mark: str | re.Pattern[str], width: int) -> str:
    """The part of a long text that holds the first change."""
    first = re.search(mark, text)
    begin = max(0, first.start() - width // 2) if first and len(text) > width else 0
    return ("…" if begin else "") + clean(text[begin:], width)


# --- the preview in words -------------------------------------------------------------------------------------------


def preview_text(content: Preview, samples: Packed | None, url: str, name: str | None) -> str:
    """The whole preview. `name`: whose token it is, None: not asked."""
    lines = ["Others will read:"]
    width = max(len(label) for label, _ in read_by_others(content.record))
    lines += [f"  {label:<{width}}  {text}" for label, text in read_by_others(content.record)]
    also = f", and {samples.files} files of samples ({numbers.size(len(samples.data))})" if samples else ""
    lines += [
        "",
        removed(content.changes),
        f"Sent: the record, {len(content.to_send):,} bytes of JSON{also}",
        f"To:   {clean(url, 200)}",
    ]
    if name is not None:
        lines.append(f"As:   {clean(name, 60)}")
    return "\n".join(lines) + "\n"


def read_by_others(record: Record) -> list[tuple[str, str]]:
    """What of a record tells who and where, in full words; the figures are counted, not listed."""
    return [(label, text.replace(HARD_SPACE, " ")) for label, text in _parts(record) if text]


def _parts(record: Record) -> Iterator[tuple[str, str]]:
    yield "run", f"{about.title(record)} · {about.subtitle(record)}"
    yield "cells", about.verdict(record)
    yield "ended", about.ending(record) or ""
    yield "launched by", clean(record.engine.launch_command.value or "", _LONGEST)
    yield "command", clean(" ".join(record.client.command), _LONGEST)
    yield "asked at", clean(record.protocol.url, _LONGEST)
    yield "hardware", _listed(record.hardware.facts)
    same = record.client.machine == record.hardware.facts
    yield "client", "the same machine" if same else _listed(record.client.machine)
    yield "note", clean(record.note or "", _LONGEST)
    for number, warning in enumerate(record.warnings[:5]):
        yield "" if number else "warnings", clean(warning, _LONGEST)
    errors = list(dict.fromkeys(cell.error for cell in record.cells if cell.error))
    for number, error in enumerate(errors[:5]):
        yield "" if number else "errors", clean(error, _LONGEST)


def _listed(facts: dict[str, Fact]) -> str:
    return clean(", ".join(f"{name} {fact.value}" for name, fact in facts.items() if fact.value is not None), 600)


# --- samples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """`files` in the zip, `missing` of those that the record names."""

    data: bytes
    files: int
    missing: int


def pack_samples(record: Record, directory: Path) -> Packed:
    """The samples beside a record. The same files make the same bytes. Raises PublishError."""
    names = sorted({cell.samples for cell in record.cells if cell.samples})
    present = [name for name in names if _inside(name, directory)]
    if not present:
        raise PublishError(
            f"--samples: there are no samples beside the record in {directory}; publish the result directory, or leave "
            "--samples out"
        )
    size = sum((directory / name).stat().st_size for name in present)
    if size > MAX_SAMPLES:
        raise PublishError(f"--samples: they have {size:,} bytes; a site takes far less. Leave --samples out")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # an .npz is compressed already
        for name in present:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), (directory / name).read_bytes())
    return Packed(out.getvalue(), len(present), len(names) - len(present))


def _inside(name: str, directory: Path) -> bool:
    """The record's word for a file is a word: nothing outside its directory is ever sent."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".npz":
        return False
    full = directory / path
    return full.is_file() and full.resolve().is_relative_to(directory.resolve())
