"""Any OpenAI-compatible server, and what all adapters share. It must be good alone: no metrics, no limits known."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar

from flatout.engines import argv as flags
from flatout.engines.base import Fact, Identity, Live, Room, Source, TargetError, Wants
from flatout.engines.http import ControlClient
from flatout.engines.metrics import Samples, parse

T = TypeVar("T")

MAX_TOKENS: Final = "$max_tokens"
"""As a field's value in `Wants`: to be replaced by that request's own output limit."""

USAGE: Final = ("stream_options.include_usage", True)
CONTINUOUS: Final = ("stream_options.continuous_usage_stats", True)
TOKEN_IDS: Final = ("return_token_ids", True)
IGNORE_EOS: Final = ("ignore_eos", True)
MIN_TOKENS: Final = ("min_tokens", MAX_TOKENS)
COMMIT: Final = re.compile(r"\+(?:[^+]*\.)?g([0-9a-f]{7,40})\b")

_ASK_TIMEOUT_S: Final = 10.0
_NO_METRICS: Final = (404, 405, 501)
"""Answers of servers that have no /metrics, or have it switched off (llama.cpp: 501)."""
_MOST_IDS_A_BYTE: Final = 8
_MORE_IDS: Final = 32
"""A tokenizer makes about a token of four bytes, and of hardly any text more than one of each byte."""


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


def first(reason: str, *choices: tuple[T | None, Source]) -> Fact[T]:
    """The first known value with its source; otherwise missing for `reason`."""
    for value, source in choices:
        if value is not None:
            return Fact(value, source)
    return Fact.missing(reason)


class Generic:
    """The adapter of a server about which only the protocol is known; the base of the others."""

    name: str = "generic"
    verified: bool = True
    counters_live: bool = False
    has_gauges: bool = False
    gauges_reason: str | None = None
    wants: Wants = Wants(count_fields=(USAGE, CONTINUOUS), length_fields=(IGNORE_EOS,), token_prompts=True)
    repository: ClassVar[str | None] = None
    metric_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, client: ControlClient, found: Found) -> None:
        self.client = client
        self.found = found
        self.model = found.model
        self._tokenizer_failed = False
        if type(self) is Generic:
            self._recognise()

    # Who is it?

    def identity(self) -> Identity:
        base = self._identity()
        if self.name not in _LOCAL_KINDS:
            return base
        info = self.answer("/info") if self.name == "tgi" else None
        return replace(
            base,
            version=first(
                "the server does not say", (text(dig(info, "version")), "server"), (self._version(), "server")
            ),
            commit=first("the server does not say", (text(dig(info, "sha")), "server")),
            revision=first("the server does not say", (text(dig(info, "model_sha")), "server")),
            dtype=first("the server does not say", (text(dig(info, "model_dtype")), "server")),
            quantization=first("the server does not say", (text(dig(self._lmstudio(), "quantization")), "server")),
        )

    def room(self) -> Room:
        entry, info, lmstudio = self.found.entry, self.answer("/info"), self._lmstudio()
        lengths = (
            dig(lmstudio, "loaded_context_length"),
            dig(info, "max_total_tokens"),
            *(entry.get(n) for n in ("max_model_len", "context_length", "context_window", "max_context_length")),
            dig(entry, "top_provider", "context_length"),
        )
        running = whole(dig(info, "max_concurrent_requests"))
        return Room(
            model_length=first("the server does not tell its context length", (_first_whole(lengths), "server")),
            kv_tokens=Fact.missing("the server does not tell how many tokens its KV cache holds"),
            max_running=first("the server does not tell how many requests it runs at once", (running, "server")),
        )

    # What runs?

    def live(self) -> Live | None:
        if not self.has_gauges:
            return None
        samples, t_ns = self.scrape(_TGI_METRICS)
        return Live(t_ns, running=samples.total("tgi_batch_current_size"), waiting=samples.total("tgi_queue_size"))

    # Stop, forget, count: only some engines can.

    def cancel(self, request_ids: list[str]) -> bool:
        return False

    def forget_cache(self) -> bool:
        return False

    def count_tokens(self, text: str) -> int | None:
        ids = self.tokenize(text)
        return None if ids is None else len(ids)

    def tokenize(self, text: str) -> list[int] | None:
        return None

    def count_chat_tokens(self, text: str) -> int | None:
        return None

    # Shared by the engines' adapters.

    def answer(self, path: str) -> Any | None:
        """The JSON of a GET that detection has not made already; None where the server has no such path, or is ill."""
        if path in self.found.answers:
            return self.found.answers[path]
        try:
            return self.client.ask("GET", path, timeout_s=_ASK_TIMEOUT_S)
        except TargetError:
            return None

    def ask_tokenizer(self, path: str, body: object) -> Any | None:
        """The JSON of a tokenizer call; None where the server has no such call, or it failed.

        Counts can be had otherwise (by usage), so a tokenizer that fails once, or hangs, is not asked again.
        """
        if self._tokenizer_failed:
            return None
        try:
            return self.client.ask("POST", path, body=body, timeout_s=_ASK_TIMEOUT_S)
        except TargetError:
            self._tokenizer_failed = True
            return None

    def believable(self, ids: list[int] | None, text: str) -> list[int] | None:
        """`ids` if they can be the tokens of `text`; a tokenizer that told something else is not asked again."""
        if ids is None:
            return None
        if bool(ids) == bool(text) and len(ids) <= _MOST_IDS_A_BYTE * len(text.encode("utf-8", "replace")) + _MORE_IDS:
            return ids
        self._tokenizer_failed = True
        return None

    def scrape(self, names: frozenset[str]) -> tuple[Samples, int]:
        """One GET /metrics, and CLOCK_MONOTONIC halfway between asking and the answer."""
        before = time.monotonic_ns()
        reply = self.client.request("GET", "/metrics", timeout_s=_ASK_TIMEOUT_S)
        after = time.monotonic_ns()
        self.client.raise_for(reply, self.client.address.origin + self.client.address.root_path + "/metrics")
        return parse(reply.content.decode("utf-8", "replace"), names), (before + after) // 2

    def has_metrics(self, names: frozenset[str]) -> Samples | None:
        """The samples if /metrics is there and has any of these names; None otherwise (`gauges_reason`: if it is
        there and cannot be read)."""
        try:
            samples, _ = self.scrape(names)
        except TargetError as error:
            if error.status not in _NO_METRICS:
                self.gauges_reason = str(error)
            return None
        return samples if samples.series else None

    def option(self, *names: str) -> str | None:
        return flags.option(self.found.argv, *names)

    def number(self, *names: str) -> int | None:
        return flags.count(self.option(*names))

    def launch_command(self) -> Fact[str]:
        if not self.found.argv:
            return Fact.missing("not started by flatout, and its process cannot be read from here")
        words: Sequence[str] = self.client.redactor.argv(list(self.found.argv))
        return Fact(" ".join(_quote(word) for word in words), self.found.argv_source)

    def _identity(self) -> Identity:
        unsaid: Fact[str] = Fact.missing("the server does not say")
        engine = unsaid if self.name == "generic" else Fact(self.name, "server")
        return Identity(
            engine=engine,
            repository=Fact(self.repository, "derived") if self.repository else unsaid,
            model_id=Fact(self.model, "server"),
            launch_command=self.launch_command(),
            quantization=first("the server does not say", (self.option("--quantization"), self.found.argv_source)),
            dtype=first("the server does not say", (self.option("--dtype"), self.found.argv_source)),
            revision=first("the server does not say", (self.option("--revision"), self.found.argv_source)),
        )

    def _version(self) -> str | None:
        return text(dig(self.found.answers.get("/version"), "version"))

    def _lmstudio(self) -> Any:
        if self.name != "lmstudio":
            return None
        models = dig(self.answer("/api/v0/models"), "data")
        entries = models if isinstance(models, list) else []
        return next((e for e in entries if dig(e, "id") == self.model), None)

    def _recognise(self) -> None:
        """Servers without an adapter of their own that say who they are, by owner, header or path."""
        owner = str(self.found.entry.get("owned_by", "")).lower()
        info = self.found.answers.get("/info")
        if dig(info, "router") == "text-generation-router" or (dig(info, "model_id") and dig(info, "max_total_tokens")):
            self.name = "tgi"
            # Written from TGI's documentation: no such server could be run here.
            self.verified = False
            self.has_gauges = self.has_metrics(_TGI_METRICS) is not None
        elif owner in _OWNERS:
            self.name = _OWNERS[owner]
            self.verified = False
        else:
            named = (n for h in self.found.headers for prefix, n in _HEADERS if h.startswith(prefix))
            hosted = next(named, _OWNERS_HOSTED.get(owner))
            if hosted is not None:
                self.name = hosted
                self.verified = False
                # A hosted API refuses fields that it does not know, and each refusal costs a request.
                self.wants = Wants(count_fields=(USAGE,))


_TGI_METRICS: Final = frozenset({"tgi_batch_current_size", "tgi_queue_size"})
_LOCAL_KINDS: Final = ("tgi", "lmstudio", "tensorrt-llm", "lmdeploy", "mlx")
_OWNERS: Final = {
    "organization_owner": "lmstudio",
    "tensorrt_llm": "tensorrt-llm",
    "lmdeploy": "lmdeploy",
    "mlx": "mlx",
}
_OWNERS_HOSTED: Final = {
    "openai-internal": "openai",
    "system": "openai",
    "mistralai": "mistral",
    "deepseek": "deepseek",
}
_HEADERS: Final = (
    ("openai-", "openai"),
    ("x-groq-", "groq"),
    ("anthropic-", "anthropic"),
    ("x-fireworks-", "fireworks"),
    ("x-together-", "together"),
    ("x-amzn-bedrock-", "bedrock"),
    ("azureml-", "azure"),
)


def _first_whole(values: Iterable[Any]) -> int | None:
    return next((n for n in map(whole, values) if n is not None), None)


def _quote(word: str) -> str:
    # Redacted words hold `<…>`, which shlex would quote; they are no longer meant for a shell.
    return word if "<" in word and " " not in word else shlex.quote(word)
