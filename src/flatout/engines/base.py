"""What every engine adapter answers, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

T = TypeVar("T")

Source = Literal["typed", "server", "host", "derived"]
"""Where a value came from: given by the user, asked of the server, read on this machine, or computed from others."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value with its origin; `value is None` always comes with the reason why it is not known."""

    value: T | None = None
    source: Source | None = None
    reason: str | None = None

    @classmethod
    def missing(cls, reason: str) -> Fact[T]:
        return cls(None, None, reason)


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


def _none(reason: str) -> Fact[str]:
    return Fact.missing(reason)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the server is. Every field is a Fact: unknown ones say why."""

    engine: Fact[str] = field(default_factory=lambda: _none("the server does not say what it is"))
    version: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    commit: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    build: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    backend: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    repository: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    model_id: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    revision: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    quantization: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    dtype: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    launch_command: Fact[str] = field(default_factory=lambda: _none("not started by flatout, and not readable here"))
    speculative_method: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    draft_model: Fact[str] = field(default_factory=lambda: _none("the server does not say"))
    draft_length: Fact[int] = field(default_factory=lambda: Fact[int].missing("the server does not say"))


@dataclass(frozen=True, slots=True)
class Room:
    """How much the server takes. `model_length`: tokens of one request, prompt and output together (llama.cpp: the
    length of one slot). `kv_tokens`: tokens that the KV cache holds for all requests. `max_running`: requests that
    run at once; more wait."""

    model_length: Fact[int] = field(default_factory=lambda: Fact[int].missing("the server does not say"))
    kv_tokens: Fact[int] = field(default_factory=lambda: Fact[int].missing("the server does not say"))
    max_running: Fact[int] = field(default_factory=lambda: Fact[int].missing("the server does not say"))


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


class Adapter(Protocol):
    """One engine. No method raises for an answer that the engine simply does not have: it returns a Fact or None."""

    name: str
    verified: bool
    """False where the adapter was written from documentation alone (Ollama)."""
    wants: Wants
    counters_live: bool
    """True if `generated_total` moves with every token; False if only when a request ends (llama.cpp, SGLang)."""
    has_gauges: bool
    gauges_reason: str | None
    """Why gauges that may well be there could not be read; None where there are some, or none at all."""

    def identity(self) -> Identity: ...

    def room(self) -> Room: ...

    def live(self) -> Live | None:
        """The gauges now; None where the server has none. Raises TargetError if it has, but did not answer."""
        ...

    def cancel(self, request_ids: list[str]) -> bool:
        """Asks the engine to stop these requests; False where closing the stream is all that can be done."""
        ...

    def forget_cache(self) -> bool:
        """Empties the prefix cache; False where the engine cannot (or only in a mode that it does not run in)."""
        ...

    def count_tokens(self, text: str) -> int | None:
        """Exact tokens of `text` without special tokens, or None where the server has no tokenizer call that works."""
        ...

    def tokenize(self, text: str) -> list[int] | None: ...

    def count_chat_tokens(self, text: str) -> int | None:
        """Exact prompt tokens of one user message `text` through the chat template, or None."""
        ...
