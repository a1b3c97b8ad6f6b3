"""The base of all engines, and any server of which only the protocol is known: it must be good alone."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from flatout.engines import base
from flatout.engines.base import (
    CONTINUOUS,
    IGNORE_EOS,
    USAGE,
    Found,
    Live,
    TargetError,
    Value,
    Wants,
    dig,
    fact,
    known,
    text,
    unknown,
    whole,
)
from flatout.engines.http import ControlClient
from flatout.engines.prometheus import Samples, parse
from flatout.record import Engine, Fact, ServedModel, ServerRoom

Ask = Callable[[str], Any]
"""GET of a path below the server's root: its JSON, or None. What was asked once is not asked again."""

ASK_TIMEOUT_S: Final = 10.0
COMMIT: Final = re.compile(r"\+(?:[^+]*\.)?g([0-9a-f]{7,40})\b")
_NO_METRICS: Final = (404, 405, 501)
"""Answers of servers that have no /metrics, or have it switched off (llama.cpp: 501)."""
_MOST_IDS_A_BYTE: Final = 8
_MORE_IDS: Final = 32
"""A tokenizer makes about a token of four bytes, and of hardly any text more than one of each byte."""
_MEANS: Final = ("kv_use", "accept_length")
"""Gauges of which ranks and replicas have a mean; all others add up."""


class Adapter:
    """One engine. No method raises for an answer that the engine simply does not have: it gives None, or a Fact with
    the reason. Asked once at the start for what does not change; afterwards only `live` is asked.

    `verified`: False where it was written from documentation alone. `counters_live`: `generated_total` moves with every
    token; False if only when a request ends. `gauges_reason`: why gauges that may well be there could not be read; None
    where there are some, or none at all.
    """

    name: str
    repository: ClassVar[str | None] = None
    programs: ClassVar[Mapping[str, int | None]] = {}
    """What its command lines have in their first words, and the port that it listens on unless told another."""
    key_variables: ClassVar[tuple[str, ...]] = ()
    """Variables of its environment that hold the key that it wants."""
    address_variable: ClassVar[str | None] = None
    """The variable of its environment that says where it listens, as HOST:PORT."""
    gauges: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields of Live, and the names of their metrics, by version of the engine."""
    wants: Wants = Wants()
    verified: bool = True
    counters_live: bool = False
    has_gauges: bool = False
    gauges_reason: str | None = None

    def __init__(self, client: ControlClient, found: Found) -> None:
        self.client = client
        self.found = found
        self.model = found.model
        self._tokenizer_failed = False

    # Is it this engine?

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        """A sentence that says how the list of models shows this engine; None if it does not."""
        return None

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        """The same by its own endpoints, where a gateway hides whose list it is."""
        return None

    @staticmethod
    def still_loading(client: ControlClient) -> str | None:
        """What a server of this engine that lists its models still waits for; None if it is ready."""
        return None

    # Who is it, and what does it take?

    def engine(self) -> Engine:
        return Engine(
            name=known(self.name, "server"),
            version=unknown(),
            commit=unknown(),
            build=unknown(),
            backend=unknown(),
            repository=fact("the server does not say", self.repository, "derived"),
            adapter=self.name,
            adapter_verified=self.verified,
            launch_command=self.launch_command(),
            speculative_method=unknown(),
            draft_model=unknown(),
            draft_length=unknown(),
        )

    def served_model(self) -> ServedModel:
        return ServedModel(
            id=known(self.model, "server"),
            served_as=known(self.model, "server"),
            revision=self.server_or_flag("the server does not say", None, self.option("--revision")),
            quantization=self.server_or_flag("the server does not say", None, self.option("--quantization")),
            dtype=self.server_or_flag("the server does not say", None, self.option("--dtype")),
        )

    def room(self) -> ServerRoom:
        """How much it takes. `model_length`: tokens of one request, prompt and output together (llama.cpp: the length
        of one slot). `kv_tokens`: tokens that the KV cache holds for all requests. `max_running`: requests that run at
        once; more wait."""
        raise NotImplementedError

    # What runs?

    def live(self) -> Live | None:
        """The gauges now; None where the server has none. Raises TargetError if it has, but did not answer."""
        if not self.has_gauges:
            return None
        samples, t_ns = self.scrape()
        return Live(
            t_ns,
            **{
                field: (samples.mean if field in _MEANS else samples.total)(*names)
                for field, names in self.gauges.items()
            },
        )

    # Stop, forget, count: only some engines can.

    def cancel(self, request_ids: list[str]) -> bool:
        """Asks the engine to stop these requests; False where closing the stream is all that can be done."""
        return False

    def forget_cache(self) -> bool:
        """Empties the prefix cache; False where the engine cannot (or only in a mode that it does not run in)."""
        return False

    def tokenize(self, text: str) -> list[int] | None:
        return None

    def count_tokens(self, text: str) -> int | None:
        """Exact tokens of `text` without special tokens, or None where the server has no tokenizer call that works."""
        ids = self.tokenize(text)
        return None if ids is None else len(ids)

    def count_chat_tokens(self, text: str) -> int | None:
        """Exact prompt tokens of one user message `text` through the chat template, or None."""
        return None

    # Shared by the engines' files.

    def answer(self, path: str) -> Any | None:
        """The JSON of a GET that detection has not made already; None where the server has no such path, or is ill."""
        if path in self.found.answers:
            return self.found.answers[path]
        try:
            return self.client.ask("GET", path, timeout_s=ASK_TIMEOUT_S)
        except TargetError:
            return None

    def ask_tokenizer(self, path: str, body: object) -> Any | None:
        """The JSON of a tokenizer call; None where the server has no such call, or it failed.

        Counts can be had otherwise (by usage), so a tokenizer that fails once, or hangs, is not asked again.
        """
        if self._tokenizer_failed:
            return None
        try:
            return self.client.ask("POST", path, body=body, timeout_s=ASK_TIMEOUT_S)
        except TargetError:
            self._tokenizer_failed = True
            return None

    def ids(self, path: str, body: object, text: str) -> list[int] | None:
        """The token ids of `text` by a tokenizer call; one whose answer cannot be true is not asked again."""
        ids = dig(self.ask_tokenizer(path, body), "tokens")
        if not isinstance(ids, list) or not all(type(t) is int and 0 <= t < 2**31 for t in ids):
            return None
        if bool(ids) == bool(text) and len(ids) <= _MOST_IDS_A_BYTE * len(text.encode("utf-8", "replace")) + _MORE_IDS:
            return ids
        self._tokenizer_failed = True
        return None

    def scrape(self, *more: str) -> tuple[Samples, int]:
        """The gauges, and metrics named `more`, by one GET /metrics, and CLOCK_MONOTONIC halfway to the answer."""
        wanted = frozenset(more).union(*self.gauges.values())
        before = time.monotonic_ns()
        reply = self.client.request("GET", "/metrics", timeout_s=ASK_TIMEOUT_S)
        after = time.monotonic_ns()
        self.client.raise_for(reply, self.client.address.origin + self.client.address.root_path + "/metrics")
        return parse(reply.content.decode("utf-8", "replace"), wanted), (before + after) // 2

    def first_scrape(self, *more: str) -> Samples | None:
        """The samples if /metrics is there and has any of these names; None otherwise (`gauges_reason`: if it is
        there and cannot be read)."""
        try:
            samples, _ = self.scrape(*more)
        except TargetError as error:
            if error.status not in _NO_METRICS:
                self.gauges_reason = str(error)
            return None
        return samples if samples.series else None

    def option(self, *names: str) -> str | None:
        return base.option(self.found.argv, *names)

    def number(self, *names: str) -> int | None:
        return base.count(self.option(*names))

    def server_or_flag(self, reason: str, told: Value, typed: Value) -> Fact:
        """What the server tells, else what its command line says, else the reason why neither does."""
        return fact(reason, typed, self.found.argv_source) if told is None else known(told, "server")

    def launch_command(self) -> Fact:
        if not self.found.argv:
            return unknown("not started by flatout, and its process cannot be read from here")
        words: Sequence[str] = self.client.redactor.argv(list(self.found.argv))
        return known(" ".join(_quote(word) for word in words), self.found.argv_source)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A server without a file of its own that says who it is, by its models' owners or the start of a header's name.

    A hosted API refuses fields that it does not know, and each refusal costs a request: it is asked for usage alone.
    """

    name: str
    owners: tuple[str, ...] = ()
    header: str | None = None
    hosted: bool = False


_KINDS: Final = (
    _Kind("lmstudio", ("organization_owner",)),
    _Kind("tensorrt-llm", ("tensorrt_llm",)),
    _Kind("lmdeploy", ("lmdeploy",)),
    _Kind("mlx", ("mlx",)),
    _Kind("openai", ("openai-internal", "system"), "openai-", hosted=True),
    _Kind("groq", (), "x-groq-", hosted=True),
    _Kind("anthropic", (), "anthropic-", hosted=True),
    _Kind("fireworks", (), "x-fireworks-", hosted=True),
    _Kind("together", (), "x-together-", hosted=True),
    _Kind("bedrock", (), "x-amzn-bedrock-", hosted=True),
    _Kind("azure", (), "azureml-", hosted=True),
    _Kind("mistral", ("mistralai",), hosted=True),
    _Kind("deepseek", ("deepseek",), hosted=True),
)


_SURE_HEADERS: Final = ("openai-", "x-groq-", "anthropic-")


def _kind(found: Found) -> _Kind | None:
    """A server's own list says more than a gateway's headers, and these more than an owner of a hosted API."""
    local = [kind for kind in _KINDS if found.owner in kind.owners and not kind.hosted]
    by_header = [kind for name in found.headers for kind in _KINDS if kind.header and name.startswith(kind.header)]
    hosted = [kind for kind in _KINDS if found.owner in kind.owners and kind.hosted]
    return next(iter(local + by_header + hosted), None)


class Generic(Adapter):
    """A server about which only the protocol is known. Some say who they are, and a little more."""

    name = "generic"
    programs: ClassVar[Mapping[str, int | None]] = {
        "text-generation-launcher": 3000, "text-generation": None, "lmdeploy": 23333, "mlx_lm": 8080,
        "trtllm-serve": 8000, "trtllm": None, "tensorrt": None, "lmstudio": None, "lm-studio": None, "aphrodite": None,
        "exllama": None, "tabby": None, "koboldcpp": None, "mistralrs": None, "flatout.demo": None,
    }  # fmt: skip
    gauges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
    }
    wants = Wants(count_fields=(USAGE, CONTINUOUS), length_fields=(IGNORE_EOS,), token_prompts=True)

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        kind = _kind(found)
        self._info = None if kind is not None else self.answer("/info")
        router = dig(self._info, "router") == "text-generation-router"
        if kind is not None:
            self.name, self.verified = kind.name, False
            self.wants = Wants(count_fields=(USAGE,)) if kind.hosted else self.wants
        elif router or (dig(self._info, "model_id") and dig(self._info, "max_total_tokens")):
            # Written from TGI's documentation: no such server could be run here.
            self.name, self.verified = "tgi", False
            self.has_gauges = self.first_scrape() is not None

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        kind = _kind(found)
        if kind is not None and not kind.hosted:
            return f"Recognised as {kind.name} by the owner named in its list; measured by the protocol alone."
        if any(name.startswith(_SURE_HEADERS) for name in found.headers):
            return "A hosted API by its headers; it is measured by the protocol alone."
        return None

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        return "The engine is not recognised; it is measured by the protocol alone (--engine names one)."

    def engine(self) -> Engine:
        engine = super().engine()
        engine.name = unknown() if self.name == "generic" else engine.name
        engine.adapter = self.name
        if self.name == "tgi":
            engine.version = fact("the server does not say", text(dig(self._info, "version")))
            engine.commit = fact("the server does not say", text(dig(self._info, "sha")))
        elif any(kind.name == self.name and not kind.hosted for kind in _KINDS):
            engine.version = fact("the server does not say", text(dig(self.answer("/version"), "version")))
        return engine

    def served_model(self) -> ServedModel:
        model = super().served_model()
        for name, value in (
            ("revision", dig(self._info, "model_sha")),
            ("dtype", dig(self._info, "model_dtype")),
            ("quantization", dig(self._lmstudio(), "quantization")),
        ):
            if text(value):
                setattr(model, name, known(value, "server"))
        return model

    def room(self) -> ServerRoom:
        entry, lmstudio = self.found.entry, self._lmstudio()
        lengths = (
            dig(lmstudio, "loaded_context_length"),
            dig(self._info, "max_total_tokens"),
            *(entry.get(n) for n in ("max_model_len", "context_length", "context_window", "max_context_length")),
            dig(entry, "top_provider", "context_length"),
        )
        length = next((n for n in map(whole, lengths) if n is not None), None)
        running = whole(dig(self._info, "max_concurrent_requests"))
        return ServerRoom(
            model_length=fact("the server does not tell its context length", length),
            kv_tokens=unknown("the server does not tell how many tokens its KV cache holds"),
            max_running=fact("the server does not tell how many requests it runs at once", running),
        )

    def _lmstudio(self) -> Any:
        if self.name != "lmstudio":
            return None
        models = dig(self.answer("/api/v0/models"), "data")
        entries = models if isinstance(models, list) else []
        return next((e for e in entries if dig(e, "id") == self.model), None)


def _quote(word: str) -> str:
    # Redacted words hold `<…>`, which shlex would quote; they are no longer meant for a shell.
    return word if "<" in word and " " not in word else shlex.quote(word)
