"""Every knob of the rig. A frozen value: the server gets a new one when `/rig/control` changes something."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

Dialect = Literal["sglang", "vllm", "llamacpp", "openai"]

# Rows (context_tokens, concurrency, tok/s of one stream); context 0 alone means "at any context".
DecodeTable = tuple[tuple[float, float, float], ...]
# Rows (context_tokens, prompt tok/s of a cold prompt of that length).
PrefillTable = tuple[tuple[float, float], ...]
# Rows (context_tokens, concurrency, TTFT in ms of a prompt that is mostly cached).
WarmTable = tuple[tuple[float, float, float], ...]


class ConfigError(ValueError):
    """A knob that does not exist or has a value that makes no sense; the message names it."""


@dataclass(frozen=True)
class RigConfig:
    """What the rig pretends to be. Times are real ms or s before `time_scale`; None means "off" or "no limit"."""

    # -- the socket ------------------------------------------------------------------------------------------------
    host: str = "127.0.0.1"  # "::1" serves IPv6
    port: int = 0  # 0: the system picks one; the ready line and `RigHandle.url` tell which
    certfile: str | None = None  # with keyfile: TLS
    keyfile: str | None = None

    # -- who it says it is -----------------------------------------------------------------------------------------
    dialect: Dialect = "openai"
    model: str = "rig-model"
    version: str | None = None  # None: the version whose captures the dialect follows
    api_key: str | None = None  # requests without it get the dialect's 401
    strict_model: bool | None = None  # 404 for another model's name; None: as the engine does (vLLM and openai: yes)
    metrics: bool = True  # /metrics (never in the openai dialect)
    dev_mode: bool = False  # vLLM: /reset_prefix_cache, /server_info, /abort_requests
    report_cached: bool | None = None  # cached_tokens in usage; None: sglang, llamacpp yes, vllm, openai no
    force_include_usage: bool = False  # vLLM's flag: usage at the end though not asked for
    seed: int = 1  # of jitter, lengths of accepted drafts, split points; the log is exact whatever they gave

    # -- decode ----------------------------------------------------------------------------------------------------
    decode_tok_s: float = 50.0  # of every stream, whatever runs beside it
    capacity_tok_s: float | None = None  # shared evenly by the streams that decode; replaces decode_tok_s
    decode_table: DecodeTable = ()  # linear between rows, flat outside; running requests count; replaces both
    pattern: Literal["step", "spread"] = "step"  # all streams at one instant, or evenly interleaved
    tokens_per_event: int = 1
    first_event_tokens: int = 1  # engines send the prefill's token alone
    burst_events: int = 1  # events sent back to back, then a gap of as many intervals (the mean rate stays)
    burst_one_send: bool = False  # ... in one send() instead of one each
    jitter_ms: float = 0.0  # standard deviation around the schedule (never adds up); each step, or each event if spread
    stalls: tuple[tuple[float, float], ...] = ()  # (at_s, for_s) after the first request since start or reset: silence
    spec_accept_length: float | None = None  # mean tokens an event (1 + accepted drafts); replaces tokens_per_event
    spec_draft_tokens: int = 7  # drafts a verification step

    # -- prefill ---------------------------------------------------------------------------------------------------
    ttft_ms: float = 20.0  # fixed part of every request's time to its first token
    prefill_tok_s: float | None = None  # cost of uncached prompt tokens on top; None: nothing
    prefill_table: PrefillTable = ()  # replaces prefill_tok_s: c / rate(c) is the time for a cold prompt of c tokens
    warm_ttft_table: WarmTable = ()  # replaces ttft_ms where over half of the prompt is cached
    prefill_queue: Literal["parallel", "serial"] = "parallel"
    cache: bool = True  # prefix cache
    cache_block_tokens: int | None = None  # None: sglang 1, llamacpp 1, vllm 128, openai 16
    cache_tokens: int | None = None  # its room; the least recently used prompts go first; None: no limit
    cache_after_sends: int = 1  # a prompt enters the cache when prefilled for the n-th time (hybrids: 2)

    # -- room ------------------------------------------------------------------------------------------------------
    max_running: int | None = None  # FIFO queue beyond
    kv_tokens: int | None = None  # need: each different prompt once + each request's max output; waits if it won't fit
    preemption: bool = False  # admit by prompt alone; when full, the youngest goes back to the queue and prefills again
    model_len: int | None = None  # prompt + output beyond it: the engine's own 400 (llama.cpp: ends early)
    truncate_silently: bool = False  # cut prompts to model_len instead, as Ollama does: only usage shows it
    template_head_tokens: int = 5  # what the chat template adds before the messages
    template_tail_tokens: int = 4  # ... after them (and after each message that is not the last)
    default_max_tokens: int = 128  # a request that does not say

    # -- what happens after the client hangs up --------------------------------------------------------------------
    leftover: bool = False  # the request runs on, unseen, until its max_tokens
    leftover_limit_s: float | None = None  # ... or this long
    leftover_abortable: bool = True  # /abort_request ends it
    gauge_lag_ms: float = 0.0  # running/waiting gauges are this old at most (SGLang refreshes them every 40 steps)
    counter_factor: float = 1.0  # the generation counter lies by this factor

    # -- usage -----------------------------------------------------------------------------------------------------
    usage: Literal["engine", "none", "last_text", "with_choices", "empty_choices"] = "engine"  # where it stands
    usage_delay_ms: float = 0.0  # the events after the last text come this late
    usage_extra_tokens: int = 0  # completion_tokens is too high by this

    # -- shape of the stream ---------------------------------------------------------------------------------------
    role_event: Literal["engine", "at_once", "none"] = "engine"  # at_once: right after the headers, before prefill
    empty_every: int = 0  # an event with empty text before every n-th event
    comment_every_ms: float = 0.0  # ": ping" lines all through the request, prefill included
    null_choices_every: int = 0  # an event with "choices": null before every n-th event
    reasoning_tokens: int = 0  # chat: the first n tokens are reasoning
    reasoning_field: str | None = None  # None: vllm "reasoning", others "reasoning_content"
    hidden_tokens: int = 0  # reasoning billed but not streamed, before the first token that is
    tool_calls: bool = False  # chat: the text comes as arguments of a tool call
    utf8_every: int = 0  # every n-th token is half a character: empty text, and the whole with the next token
    loop_text: str | None = None  # repeat this phrase for ever
    split_sends: int = 1  # each event's bytes go out in this many sends, cut anywhere
    huge_event_at: int = 0  # the n-th event carries huge_event_bytes of padding
    huge_event_bytes: int = 10_000_000
    bad_json_at: int = 0  # the n-th event is no JSON
    done_marker: bool = True  # False: no [DONE], just the end of the body
    finish_event: bool = True  # False: no finish reason anywhere

    # -- faults ----------------------------------------------------------------------------------------------------
    stop_after_tokens: int = 0  # finish "stop" there, though ignore_eos was asked
    error_after_tokens: int = 0  # an error object inside the 200 stream, then [DONE]
    truncate_after_tokens: int = 0  # the connection ends there ...
    truncate_mode: Literal["close", "reset", "clean_end"] = "close"  # ... so; clean_end: a proper end of body, silent
    hang_after_tokens: int = 0  # silent from there, socket open
    die_after_tokens: int = 0  # after so many tokens over all requests: closes all sockets, process exits with 1
    hang: Literal["", "no_answer", "no_event"] = ""  # never answers; or headers only
    headers_delay_ms: float = 0.0  # headers (and all else) this late
    html: bool = False  # generation requests get a 200 with an HTML page
    reject_first: int = 0  # 429 with Retry-After for the first n generation requests
    rate_limit_per_s: float | None = None  # 429 beyond so many generation requests a second
    retry_after_s: float = 1.0
    loading_s: float = 0.0  # 503 "loading" so long after start
    refuse_fields: tuple[str, ...] = ()  # 400 for a request that has one of these ("stream_options.x" for nested)
    refuse_style: Literal["engine", "transformers"] = "engine"  # transformers serve's 422

    # -- time ------------------------------------------------------------------------------------------------------
    time_scale: float = 1.0  # every duration of prefill, decode and stalls is multiplied: 0.1 runs ten times as fast

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        for name in _TABLES:
            object.__setattr__(self, name, tuple(sorted(getattr(self, name))))
        if self.spec_accept_length is not None and not 1 <= self.spec_accept_length <= 1 + self.spec_draft_tokens:
            raise ConfigError("spec_accept_length must lie between 1 and 1 + spec_draft_tokens")

    # Answers that depend on the dialect where the knob says nothing.
    @property
    def reports_cached(self) -> bool:
        return self.dialect in ("sglang", "llamacpp") if self.report_cached is None else self.report_cached

    @property
    def checks_model(self) -> bool:
        return self.dialect in ("vllm", "openai") if self.strict_model is None else self.strict_model

    @property
    def block_tokens(self) -> int:
        if self.cache_block_tokens is not None:
            return self.cache_block_tokens
        return {"sglang": 1, "llamacpp": 1, "vllm": 128, "openai": 16}[self.dialect]

    @property
    def engine_version(self) -> str:
        known = {"sglang": "0.5.23", "vllm": "0.32.0", "llamacpp": "b0-unknown", "openai": "rig"}
        return self.version or known[self.dialect]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RigConfig:
        """Build from JSON-like values. Tables may be lists; a decode table may be {concurrency: tok/s of one stream}.

        Raises ConfigError for an unknown name or a value of the wrong kind.
        """
        return cls(**_checked(values))

    def changed(self, values: Mapping[str, Any]) -> RigConfig:
        """A copy with some knobs changed, as `from_dict` reads them. Raises ConfigError."""
        fixed = {"host", "port", "certfile", "keyfile", "dialect"} & set(values)
        if fixed:
            raise ConfigError(f"cannot change while running: {', '.join(sorted(fixed))}")
        return dataclasses.replace(self, **_checked(values))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


_TABLES = "decode_table", "prefill_table", "warm_ttft_table", "stalls"
_ABOVE_ZERO = (
    "decode_tok_s", "time_scale", "tokens_per_event", "burst_events", "split_sends", "cache_after_sends",
    "capacity_tok_s", "prefill_tok_s", "max_running", "kv_tokens", "model_len", "cache_block_tokens",
)  # fmt: skip
HINTS: dict[str, Any] = get_type_hints(RigConfig)
"""The type of each knob."""


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for RigConfig out of parsed JSON. Raises ConfigError with the name of what is wrong."""
    knobs: dict[str, Any] = {}
    for name, value in values.items():
        if name not in HINTS:
            raise ConfigError(f"the rig has no knob called {name!r}")
        try:
            if name == "decode_table" and isinstance(value, Mapping):
                value = [(0.0, float(streams), rate) for streams, rate in value.items()]
            knobs[name] = msgspec.convert(value, HINTS[name])
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"{name} cannot be {value!r}: {error}") from None
    return knobs


def profile_from_seed(path: Path | str, *, rates: Literal["per_request", "total"] = "per_request") -> dict[str, Any]:
    """Knobs that give a server the speeds of a published matrix (JSON as in tests/fixtures/seed/speed-test.json).

    `rates` picks which of the page's two decode figures is made true: the speed of one stream as printed, or the
    printed total (then a stream's speed is found from the closed loop: cycle = N · n_out / total, less its TTFT).
    KV room is the smallest that holds every cell (own contexts) which the page does not call over capacity.
    Raises ConfigError if nothing was measured.
    """
    page = json.loads(Path(path).read_text())
    run = page.get("run", {})
    n_out = int(run.get("max_output_tokens") or 0)
    prefill, decode, warm, room, longest = [], [], [], 0, 0
    for cell in page["cells"]:
        context, at_once, total = cell["context_tokens"], cell["concurrency"], cell["total_tok_s"]
        longest = max(longest, context)
        if cell["phase"] == "decode" and cell["status"] != "over_capacity":
            room = max(room, at_once * (context + n_out))
        if total is None:
            continue
        if cell["phase"] == "prefill":
            prefill.append((context, total))
            continue
        rate = cell["per_request_tok_s"]
        if rates == "total":
            rate = (n_out - 1) / (at_once * n_out / total - cell["ttft_ms"] / 1000)
        decode.append((context, at_once, rate))
        warm.append((context, at_once, cell["ttft_ms"]))
    if not prefill or not decode:
        raise ConfigError(f"{path} has no measured prefill or decode cells")
    return {
        "model": page.get("served_model") or page.get("model") or "rig-model",
        "version": page.get("engine", {}).get("version"),
        "prefill_table": prefill,
        "decode_table": decode,
        "warm_ttft_table": warm,
        "kv_tokens": room,
        "model_len": longest,
        "max_running": run.get("max_running_requests"),
        "prefill_queue": "serial",
        "ttft_ms": 0.0,
    }
