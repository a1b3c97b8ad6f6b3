"""What would be sent, to the byte, and what the redaction took out of it: shown before anybody is asked."""

from __future__ import annotations

import hashlib
import json
from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flatout import record as rec
from flatout.engines.redact import Redactor
from flatout.publish.errors import PublishError
from flatout.record import Record
from flatout.show.safe import clean

KEYS_IN_ENVIRONMENT: Final = (
    "FLATOUT_TOKEN",
    "FLATOUT_API_KEY",
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
"""Variables whose values are known to be secret, so they are looked for as they are."""
_PLACEHOLDERS: Final = ("<redacted>", "<address>", "<user>", "<host>", "<email>", "$HOME")
_FACT: Final = frozenset({"value", "source", "reason"})
_SHORT_SECRET: Final = 8
_ID_CHARS: Final = 12


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
    found = rec.find(path)
    try:
        data = found.read_bytes()
    except OSError as error:
        raise PublishError(f"cannot read {found}: {error.strerror or error}") from error
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
    made = redactor.tree(content)
    _facts(content, made, redactor)
    return made


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
    kept = _between_placeholders(after)
    if len(kept) < 2 or not before.startswith(kept[0]) or not before.endswith(kept[-1]):
        return _count(before)
    shown, at = [kept[0]], len(kept[0])
    end = len(before) - len(kept[-1])
    for number, piece in enumerate(kept[1:], 1):
        last = number == len(kept) - 1
        found = end if last else before.find(piece, at, end)
        if found < at:
            return _count(before)
        shown += [_count(before[at:found]), piece]
        at = found + len(piece)
    return "".join(shown)


def _between_placeholders(text: str) -> list[str]:
    pieces = [text]
    for mark in _PLACEHOLDERS:
        pieces = [part for piece in pieces for part in piece.split(mark)]
    return pieces


def _count(text: str) -> str:
    return f"[{len(text)} character{'' if len(text) == 1 else 's'}]"


def removed(found: Sequence[Change], width: int = 400) -> str:
    """The redaction's work as a diff to read: place, what stood there (masked), what is sent instead."""
    if not found:
        return "Redaction: nothing had to be taken out.\n"
    many = "1 place" if len(found) == 1 else f"{len(found)} places"
    lines = [f"Redaction: taken out in {many} (your file stays as it is):"]
    for change in found:
        lines += [
            f"  {clean(change.place, 200)}",
            f"    - {_around(change.before, '[', width)}",
            f"    + {_around(change.after, None, width)}",
        ]
    return "\n".join(lines) + "\n"


def _around(text: str, mark: str | None, width: int) -> str:
    """The part of a long text that holds the first change."""
    starts = [text.find(m) for m in ([mark] if mark else _PLACEHOLDERS)]
    first = min((at for at in starts if at >= 0), default=0)
    begin = max(0, first - width // 2) if len(text) > width else 0
    return ("…" if begin else "") + clean(text[begin:], width)
