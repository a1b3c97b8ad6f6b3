"""SGLang: /server_info, /v1/loads, /metrics, /abort_request, /flush_cache. Never /health: it runs a generation."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import replace
from typing import Any, ClassVar, Final

from flatout.engines import argv as flags
from flatout.engines.base import Fact, Identity, Live, Room, Source, TargetError, Wants
from flatout.engines.generic import (
    COMMIT,
    CONTINUOUS,
    IGNORE_EOS,
    MIN_TOKENS,
    TOKEN_IDS,
    USAGE,
    Found,
    Generic,
    dig,
    first,
    text,
    whole,
)
from flatout.engines.http import ControlClient
from flatout.engines.vllm import token_list

_LIVE: Final = frozenset(
    {
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:generation_tokens_total",
        "sglang:prompt_tokens_total",
        "sglang:cached_tokens_total",
        "sglang:spec_accept_length",
        "sglang:num_retracted_requests_total",
    }
)
_INFO_PATHS: Final = ("/get_server_info", "/server_info")
_TOKENIZE_PATHS: Final = ("/tokenize", "/v1/tokenize")


class Sglang(Generic):
    """Server info is asked once at the start, the room at each call of `room`."""

    name = "sglang"
    counters_live = False
    repository: ClassVar[str | None] = "sgl-project/sglang"
    wants = Wants(
        count_fields=(USAGE, CONTINUOUS, TOKEN_IDS),
        length_fields=(IGNORE_EOS, MIN_TOKENS),
        id_field="rid",
        token_prompts=True,
    )

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        self._info: Any = next((a for a in map(self.answer, _INFO_PATHS) if isinstance(a, dict)), None)
        # Without --enable-metrics there is no /metrics, but /v1/loads has the gauges.
        metrics = self.has_metrics(_LIVE)
        self._loads_only = metrics is None and self._loads() is not None
        self.has_gauges = metrics is not None or self._loads_only
        self._launched: list[str] | None = self._launch_words()

    def identity(self) -> Identity:
        info, source = self._info, self.found.argv_source
        version = text(dig(info, "version"))
        commit = COMMIT.search(version or "")
        unsaid = "SGLang's /server_info does not tell"
        method = text(dig(info, "speculative_algorithm"))
        told_off: tuple[str | None, Source] = (
            "none" if isinstance(info, dict) and "speculative_algorithm" in info and method is None else None,
            "server",
        )
        return replace(
            self._identity(),
            version=first(unsaid, (version, "server")),
            commit=first("SGLang names it in development builds only", (commit[1] if commit else None, "server")),
            build=first("a plain release", ((version or "").partition("+")[2] or None, "server")),
            backend=first(unsaid, (text(dig(info, "attention_backend")), "server")),
            model_id=first(unsaid, (text(dig(info, "model_path")), "server"), (self.model, "server")),
            revision=first("SGLang was started without --revision", (text(dig(info, "revision")), "server")),
            quantization=first(
                "SGLang was started without --quantization; the model's own configuration decides",
                (text(dig(info, "quantization")), "server"),
                (self.option("--quantization"), source),
            ),
            dtype=first(unsaid, (text(dig(info, "dtype")), "server"), (self.option("--dtype"), source)),
            launch_command=self._launch_command(),
            speculative_method=first(unsaid, (method, "server"), told_off),
            draft_model=first(unsaid, (text(dig(info, "speculative_draft_model_path")), "server")),
            draft_length=self._draft_length(method),
        )

    def room(self) -> Room:
        info, source = self._info, self.found.argv_source
        loads = self._loads() or []
        running = _added(loads, "max_running_requests")
        states = dig(info, "internal_states")
        per_rank = _added(states if isinstance(states, list) else [], "effective_max_running_requests_per_dp")
        kv = _added(loads, "max_total_num_tokens")
        ranks = whole(dig(info, "dp_size")) or 1
        kv_told = whole(dig(info, "max_total_num_tokens"))
        return Room(
            model_length=first(
                "SGLang did not tell its context length",
                (whole(self.found.entry.get("max_model_len")), "server"),
                (whole(dig(info, "context_length")), "server"),
                (self.number("--context-length"), source),
            ),
            kv_tokens=first(
                "SGLang did not tell max_total_num_tokens",
                (kv, "server"),
                (kv_told * ranks if kv_told else None, "server"),
            ),
            max_running=first(
                "SGLang did not tell max_running_requests",
                (running, "server"),
                (per_rank, "server"),
                (whole(dig(info, "max_running_requests")), "server"),
                (self.number("--max-running-requests"), source),
            ),
        )

    def live(self) -> Live | None:
        if not self.has_gauges:
            return None
        if self._loads_only:
            return self._live_from_loads()
        s, t_ns = self.scrape(_LIVE)
        accept = s.mean("sglang:spec_accept_length")
        return Live(
            t_ns,
            running=s.total("sglang:num_running_reqs"),
            waiting=s.total("sglang:num_queue_reqs"),
            kv_use=s.mean("sglang:token_usage"),
            generated_total=s.total("sglang:generation_tokens_total"),
            prompt_total=s.total("sglang:prompt_tokens_total"),
            accept_length=accept if accept else None,  # 0 means: no speculative step has been made
            preemptions_total=s.total("sglang:num_retracted_requests_total"),
            prefix_hits_total=s.total("sglang:cached_tokens_total"),
            prefix_queries_total=s.total("sglang:prompt_tokens_total"),
        )

    def cancel(self, request_ids: list[str]) -> bool:
        done = True
        for request_id in request_ids:
            if request_id:  # an empty id is a prefix of every other, and would cancel them all
                done &= self.client.request("POST", "/abort_request", body={"rid": request_id}).status == 200
        return done

    def forget_cache(self) -> bool:
        return self.client.request("POST", "/flush_cache", timeout_s=60.0).status == 200

    def tokenize(self, text: str) -> list[int] | None:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answers = (self.ask_tokenizer(path, body) for path in _TOKENIZE_PATHS)
        return next((ids for ids in (self.believable(token_list(a), text) for a in answers) if ids is not None), None)

    def count_chat_tokens(self, text: str) -> int | None:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        answers = (self.ask_tokenizer(path, body) for path in _TOKENIZE_PATHS)
        return next((n for n in (whole(dig(a, "count")) for a in answers) if n is not None), None)

    def _live_from_loads(self) -> Live:
        before = time.monotonic_ns()
        loads = dig(self.client.json("GET", "/v1/loads"), "loads")
        t_ns = (before + time.monotonic_ns()) // 2
        loads = loads if isinstance(loads, list) else []
        ranks = sum(_number(dig(rank, "token_usage")) is not None for rank in loads)
        usage = _sum(loads, "token_usage")
        return Live(
            t_ns,
            running=_sum(loads, "num_running_reqs"),
            waiting=_sum(loads, "num_waiting_reqs"),
            kv_use=None if usage is None else usage / ranks,
        )

    def _loads(self) -> list[Any] | None:
        """One entry per data-parallel rank, or None where the server has no /v1/loads."""
        try:
            loads = dig(self.client.ask("GET", "/v1/loads"), "loads")
        except TargetError:
            return None
        return loads if isinstance(loads, list) and loads else None

    def _launch_words(self) -> list[str] | None:
        told = text(dig(self._info, "launch_command"))
        try:
            return shlex.split(told) if told else None
        except ValueError:
            return None

    def _launch_command(self) -> Fact[str]:
        """What the server says of its own start is better than what a process list shows: it has all the words."""
        told = text(dig(self._info, "launch_command"))
        if told is None:
            return self.launch_command()
        return Fact(self.client.redactor.command(f"python -m sglang.launch_server {told}"), "server")

    def _draft_length(self, method: str | None) -> Fact[int]:
        """Draft tokens per verification step; for block methods the block's size."""
        info = self._info
        block_fields = ("speculative_dflash_block_size", "speculative_dspark_block_size")
        blocks = next((n for n in (whole(dig(info, name)) for name in block_fields) if n is not None), None)
        if method is None:
            return Fact.missing("speculative decoding is off, or SGLang does not tell")
        typed = flags.count(flags.option(self._launched, "--speculative-num-draft-tokens"))
        return first(
            "SGLang does not tell the draft length",
            (whole(dig(info, "speculative_num_draft_tokens")), "server"),
            (blocks, "server"),
            (typed, "server"),
        )


def _number(value: Any) -> float | None:
    """A finite number as JSON has it, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _sum(entries: list[Any], name: str) -> float | None:
    values = [n for n in (_number(dig(entry, name)) for entry in entries) if n is not None]
    total = sum(values) if values else None
    return total if total is not None and math.isfinite(total) else None


def _added(entries: list[Any], name: str) -> int | None:
    """The sum over ranks of a limit; None unless every rank tells it."""
    values = [whole(dig(entry, name)) for entry in entries]
    known = [n for n in values if n is not None]
    return sum(known) if known and len(known) == len(values) else None
