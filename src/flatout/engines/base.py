"""What all engines share, as plain values: errors, gauges, wishes for requests; and how JSON and flags are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flatout.record import Fact

Source = Literal["typed", "server", "host", "derived"]
"""Where a value came from: given by the user, asked of the server, read on this machine, or computed from others."""
Value = str | int | float | bool | None

MAX_TOKENS: Final = "$max_tokens"
"""As a field's value in `Wants`: to be replaced by that request's own output limit."""
USAGE: Final = ("stream_options.include_usage", True)
CONTINUOUS: Final = ("stream_options.continuous_usage_stats", True)
TOKEN_IDS: Final = ("return_token_ids", True)
IGNORE_EOS: Final = ("ignore_eos", True)
MIN_TOKENS: Final = ("min_tokens", MAX_TOKENS)


class TargetError(Exception):
    """The server could not be used. `str()` is one sentence for the user: what happened and what to do.

    `kind` is one of: refused, dns, tls, timeout, auth, not_found, model, http, rate_limited, unavailable, not_a_server,
    protocol, stopped (by the user). `status` is the HTTP status where there was one, `words` the server's own words
    (redacted, shortened).
    """

    def __init__(self, kind: str, message: str, *, status: int | None = None, words: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.words = words


@dataclass(frozen=True, slots=True)
class Live:
    """The server's gauges and counters at one moment; None where it has none.

    `t_ns`: CLOCK_MONOTONIC halfway between asking and the answer. Counters (`*_total`) only grow; the rest are gauges.
    `kv_use`: 0..1. `drafts_total`: verification steps; `drafted_total`: draft tokens proposed; `accepted_total`: draft
    tokens accepted. `accept_length`: the engine's own gauge where it has no counters (SGLang).
    """

    t_ns: int
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    generated_total: float | None = None
    prompt_total: float | None = None
    drafts_total: float | None = None
    drafted_total: float | None = None
    accepted_total: float | None = None
    accept_length: float | None = None
    preemptions_total: float | None = None
    prefix_hits_total: float | None = None
    prefix_queries_total: float | None = None


@dataclass(frozen=True, slots=True)
class Wants:
    """Request fields that this engine should understand; each is probed once and dropped with a note if refused.

    `count_fields`: make the server report running token counts or ids in every event. `length_fields`: make it generate
    exactly the asked number of tokens. `id_field`: name of the client-chosen request id, for `cancel`.
    `token_prompts`: completions takes a list of token ids. `max_tokens_field`: the field name that limits the output.
    """

    count_fields: tuple[tuple[str, object], ...] = ()
    length_fields: tuple[tuple[str, object], ...] = ()
    id_field: str | None = None
    token_prompts: bool = False
    max_tokens_field: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class Found:
    """What detection knows: `entry` is the model's entry in /v1/models, `headers` those of that answer (lower case),
    `answers` the JSON of further paths that were asked (None: not there)."""

    model: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] | None = None
    argv_source: Source = "host"

    @property
    def owner(self) -> str:
        return str(self.entry.get("owned_by", "")).lower()


# Values in decoded JSON


def dig(content: Any, *path: str | int) -> Any:
    """A value deep in decoded JSON, or None where something on the way is missing or of another kind."""
    for step in path:
        if isinstance(content, Mapping) and isinstance(step, str):
            content = content.get(step)
        elif isinstance(content, list) and isinstance(step, int) and -len(content) <= step < len(content):
            content = content[step]
        else:
            return None
    return content


def text(value: Any) -> str | None:
    """A non-empty string, or None."""
    return value if isinstance(value, str) and value.strip() else None


def whole(value: Any) -> int | None:
    """A count of at least 1 (also as `4096.0` or "4096"), or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}(?:\.0+)?", value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 1 <= value < 2**53 else None


def known(value: Value, source: Source, reason: str | None = None) -> Fact:
    return Fact(value=value, source=source, reason=reason)


def unknown(reason: str = "the server does not say") -> Fact:
    return Fact(reason=reason)


def fact(reason: str, value: Value, source: Source = "server") -> Fact:
    """The value where it is known, otherwise the reason why not."""
    return unknown(reason) if value is None else known(value, source)


# Flags of a server's command line


def option(argv: Sequence[str] | None, *names: str) -> str | None:
    """The value of the first of these options that is given (`--x v`, `--x=v`; `_` equals `-`); the last time wins."""
    words, wanted = argv or (), {_plain(name) for name in names}
    given: str | None = None
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or _plain(name) not in wanted:
            continue
        if equals:
            given = value
        elif position + 1 < len(words):
            given = words[position + 1]
    return given


def has(argv: Sequence[str] | None, *names: str) -> bool:
    """True if one of these flags is there, with or without a value."""
    wanted = {_plain(name) for name in names}
    return any(word.startswith("-") and _plain(word.partition("=")[0]) in wanted for word in argv or ())


def count(text: str | None) -> int | None:
    """A flag's value as a count of at least 1; vLLM's `32k` (thousands) and `32K` (1,024s) as it reads them."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([kmgKMG]?)", (text or "").strip())
    if match is None:
        return None
    scale = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    value = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    return value if value >= 1 else None


def _plain(name: str) -> str:
    return ("--" if name.startswith("--") else "-") + name.lstrip("-").replace("_", "-")
