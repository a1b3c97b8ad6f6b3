"""A record that came from elsewhere, looked through for secrets and personal details before it is kept.

Who publishes has redacted it already, on the machine that knows its own names. Here the same rules look again: what
they would still take out is a leak, and the record is refused with the place named, never with the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Final

from flatout.engines.redact import Redactor
from flatout.show.safe import clean

MOST_LEAKS: Final = 20
_REDACTOR: Final = Redactor(secrets=(), home="", user="", hosts=())
"""This machine's own names are no secret of the publisher's."""
_FACT: Final = frozenset({"value", "source", "reason"})
_CACHED_CHARS: Final = 300
_ADDRESS_THERE: Final = "a network or hardware address"
_VERSION_KEY: Final = re.compile(r"(?i)version|driver|build|release|revision|commit")
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_FOUR: Final = re.compile(rf"(?<![\w.+-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w.+-])", re.ASCII)
_PRIVATE: Final = tuple(map(ip_network, ("192.168.0.0/16", "172.16.0.0/12", "169.254.0.0/16", "100.64.0.0/10")))
_Path = tuple[str | int, ...]
_KINDS: Final = (
    ("<redacted>", "a secret, or what looks like one"),
    ("<email>", "an e-mail address"),
    ("<address>", _ADDRESS_THERE),
    ("$HOME", "a path in somebody's home folder"),
    ("<host>", "the name of a machine"),
    ("<user>", "the name of a user"),
)


@dataclass(frozen=True, slots=True)
class Leak:
    """`place`: keys and indices with dots between, `engine.launch_command.value`; `what`: the kind of thing there."""

    place: str
    what: str


def leaks(record_content: Mapping[str, Any]) -> list[Leak]:
    """The first 20 places in JSON content (at most 64 levels deep) that redaction would change, each once."""
    found: dict[str, Leak] = {}
    for path, what in _mapping(record_content, "", ()):
        place = _place(path)
        found.setdefault(place, Leak(place, what))
        if len(found) >= MOST_LEAKS:
            break
    return list(found.values())


def redacted(text: str) -> str:
    """The text as it may be shown: with everything that would be a leak taken out."""
    return _REDACTOR.text(text)


def shown(text: str) -> str:
    """A sender's words, fit to be shown back to them: one short line without secrets."""
    return clean(redacted(text[:500]), 60)


def _tree(value: Any, key: str, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, str):
        what = _changed(key, value)
        if what:
            yield path, what
    elif isinstance(value, Mapping):
        yield from _mapping(value, key, path)
    elif isinstance(value, Sequence):
        yield from _items(value, key, path)


def _mapping(value: Mapping[str, Any], key: str, path: _Path) -> Iterator[tuple[_Path, str]]:
    # a fact's value is named by the fact: launch_command, driver, …
    fact = bool(key) and "value" in value and value.keys() <= _FACT
    named = isinstance(value.get("name", value.get("key")), str)
    if named:
        # the pair by itself: what stands inside of the value is looked at below
        pair = {
            name: item if isinstance(item, str | int | float) else 1 if item else None for name, item in value.items()
        }
        what = _kind(pair, _REDACTOR.tree(pair))
        if what:
            yield path, what
            return
    for name, item in value.items():
        if isinstance(item, str):
            what = _changed(key if fact and name == "value" else name, item)
        elif item is None or isinstance(item, bool) or (not item and isinstance(item, list | dict)):
            what = _changed_key(name, "")  # nothing stands there, but the key may be a leak itself
        else:
            what = _changed_key(name)
        if what:
            yield (*path, name), what
        elif isinstance(item, Mapping | list):
            yield from _tree(item, name, (*path, name))


def _items(items: Sequence[Any], key: str, path: _Path) -> Iterator[tuple[_Path, str]]:
    kinds = set(map(type, items))
    if kinds <= {int, float, bool, type(None)}:
        return
    if kinds == {str}:
        clean = _REDACTOR.tree({key or "items": list(items)})
        told = next(iter(clean.values()))
        if not isinstance(told, list):
            yield path, _KINDS[0][1]
            return
        for number, (ours, theirs) in enumerate(zip(items, told, strict=True)):
            if ours != theirs:
                yield (*path, number), _kind(ours, theirs) or _KINDS[0][1]
        return
    for number, item in enumerate(items):
        yield from _tree(item, key, (*path, number))


def _place(path: _Path) -> str:
    """Keys and indices with dots between; a key that is a leak itself does not stand in it."""
    return ".".join(shown(str(part)) for part in path) or "the record"


def _changed(key: str, text: str) -> str | None:
    """What is wrong with a text that stands under `key`, or None."""
    return _looked_up(key, text) if len(text) <= _CACHED_CHARS and len(key) <= _CACHED_CHARS else _look(key, text)


@lru_cache(maxsize=8192)
def _changed_key(key: str, value: str | int = 1) -> str | None:
    """What is wrong where something that is no text stands under `key`; `value` stands for it."""
    return _look(key, value)


def _look(key: str, value: str | int) -> str | None:
    content = {key: value}
    clean = _REDACTOR.tree(content)
    if clean == content:
        return _ADDRESS_THERE if isinstance(value, str) and _address_for_version(key, value) else None
    return _kind(f"{key} {value}", " ".join(f"{name} {told}" for name, told in clean.items())) or _KINDS[0][1]


def _address_for_version(key: str, text: str) -> bool:
    """Where a version belongs stands a private address. The redactor takes any four numbers for a version there; of
    these networks no version is known. 10.0.1.6 (TensorRT) and 9.1.0.70 (cuDNN) are versions, so their like stay."""
    if not _VERSION_KEY.search(key):
        return False
    return any(ip_address(found) in net for found in _FOUR.findall(text) for net in _PRIVATE)


_looked_up = lru_cache(maxsize=16_384)(_look)


def _kind(before: Any, after: Any) -> str | None:
    """What the redactor put in: the word for the first of its signs that there are more of than before."""
    if before == after:
        return None
    ours, theirs = str(before), str(after)
    return next((what for sign, what in _KINDS if theirs.count(sign) > ours.count(sign)), _KINDS[0][1])
