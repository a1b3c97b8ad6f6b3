"""vLLM: /version, /v1/models, /metrics; in development mode also /server_info, /reset_prefix_cache, /abort_requests."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, ClassVar, Final

from flatout.engines.base import Fact, Identity, Live, Room, Wants
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

_LIVE: Final = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_queries_total",
    }
)
_CONFIG: Final = frozenset({"vllm:cache_config_info", "vllm:num_requests_running"})


class Vllm(Generic):
    """Asked once at the start for what does not change; afterwards only `live` is asked."""

    name = "vllm"
    counters_live = True
    repository: ClassVar[str | None] = "vllm-project/vllm"
    wants = Wants(
        count_fields=(USAGE, CONTINUOUS, TOKEN_IDS), length_fields=(IGNORE_EOS, MIN_TOKENS), token_prompts=True
    )

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        self._start = self.has_metrics(_CONFIG)
        self.has_gauges = self._start is not None
        # The structured form tells max_num_seqs; older versions ignore the parameter and send one long text.
        self._config: Any = dig(self.answer("/server_info?config_format=json"), "vllm_config")
        if self._config is not None:
            # Requests can be named in any mode, but be cancelled by name only in this one.
            self.wants = replace(self.wants, id_field="request_id")

    def identity(self) -> Identity:
        version = text(dig(self.answer("/version"), "version"))
        commit = COMMIT.search(version or "")
        source = self.found.argv_source
        speculative = self._speculative()
        quantization = self._setting("model_config", "quantization")
        dtype = (self._setting("model_config", "dtype") or "").removeprefix("torch.") or None
        unsaid = "vLLM tells it only in development mode or by its command line"
        return replace(
            self._identity(),
            version=first("vLLM's /version is not reachable", (version, "server")),
            commit=first("vLLM names it in development builds only", (commit[1] if commit else None, "server")),
            build=first("a plain release", (_local_part(version), "server")),
            backend=first(
                unsaid, (self._setting("device_config", "device"), "server"), (self.option("--device"), source)
            ),
            revision=first(
                unsaid, (self._setting("model_config", "revision"), "server"), (self.option("--revision"), source)
            ),
            quantization=first(unsaid, (quantization, "server"), (self.option("--quantization", "-q"), source)),
            dtype=first(unsaid, (dtype, "server"), (self.option("--dtype"), source)),
            speculative_method=first(unsaid, (text(speculative.get("method")), source), self._off()),
            draft_model=first(unsaid, (text(speculative.get("model")), source)),
            draft_length=first(unsaid, (whole(speculative.get("num_speculative_tokens")), source)),
        )

    def room(self) -> Room:
        source = self.found.argv_source
        length = whole(self.found.entry.get("max_model_len"))
        length_typed = self.number("--max-model-len")
        # Each data-parallel engine has its own limit.
        engines = max(1, len(self._start.labels("vllm:cache_config_info")) if self._start else 1)
        seqs = whole(self._setting("scheduler_config", "max_num_seqs"))
        seqs_typed = self.number("--max-num-seqs")
        return Room(
            model_length=first("vLLM did not tell max_model_len", (length, "server"), (length_typed, source)),
            kv_tokens=self._kv_tokens(),
            max_running=first(
                "vLLM does not tell --max-num-seqs, and its default depends on the hardware",
                (seqs * engines if seqs else None, "server"),
                (seqs_typed * engines if seqs_typed else None, source),
            ),
        )

    def live(self) -> Live | None:
        if not self.has_gauges:
            return None
        s, t_ns = self.scrape(_LIVE)
        return Live(
            t_ns,
            running=s.total("vllm:num_requests_running"),
            waiting=s.total("vllm:num_requests_waiting"),
            kv_use=s.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            generated_total=s.total("vllm:generation_tokens_total"),
            prompt_total=s.total("vllm:prompt_tokens_total"),
            drafts_total=s.total("vllm:spec_decode_num_drafts_total"),
            drafted_total=s.total("vllm:spec_decode_num_draft_tokens_total"),
            accepted_total=s.total("vllm:spec_decode_num_accepted_tokens_total"),
            preemptions_total=s.total("vllm:num_preemptions_total"),
            prefix_hits_total=s.total("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            prefix_queries_total=s.total("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        )

    def cancel(self, request_ids: list[str]) -> bool:
        if self._config is None:
            return False
        if not request_ids:  # an empty list would cancel everybody's requests
            return True
        ids = [form.format(i) for i in request_ids for form in ("chatcmpl-{}", "cmpl-{}-0")]
        return self.client.request("POST", "/abort_requests", body={"request_ids": ids}).status == 200

    def forget_cache(self) -> bool:
        return self.client.request("POST", "/reset_prefix_cache", timeout_s=60.0).status == 200

    def tokenize(self, text: str) -> list[int] | None:
        answer = self.ask_tokenizer("/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})
        return self.believable(token_list(answer), text)

    def count_chat_tokens(self, text: str) -> int | None:
        messages = [{"role": "user", "content": text}]
        body = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        return whole(dig(self.ask_tokenizer("/tokenize", body), "count"))

    def _kv_tokens(self) -> Fact[int]:
        tokens, derived = 0, False
        engines = self._start.labels("vllm:cache_config_info") if self._start else ()
        for labels in engines:
            size = whole(labels.get("kv_cache_size_tokens"))
            if size is None:
                blocks, block = whole(labels.get("num_gpu_blocks")), whole(labels.get("block_size"))
                if blocks is None or block is None:
                    return Fact.missing("vLLM's cache_config_info names neither tokens nor blocks")
                size, derived = blocks * block, True
            tokens += size
        if not engines:
            return Fact.missing("vLLM's /metrics has no cache_config_info")
        return Fact(tokens, "derived" if derived else "server")

    def _speculative(self) -> dict[str, Any]:
        told = dig(self._config, "speculative_config")
        if isinstance(told, dict):
            return told
        try:
            typed = json.loads(self.option("--speculative-config", "-sc") or "{}")
        except (ValueError, RecursionError):
            return {}
        return typed if isinstance(typed, dict) else {}

    def _off(self) -> tuple[str | None, Any]:
        if self._config is not None and self._setting("speculative_config") is None:
            return "none", "server"
        given = self.found.argv is not None and self.option("--config") is None
        return ("none", "derived") if given and not self._speculative() else (None, "derived")

    def _setting(self, *path: str) -> str | None:
        """One setting of the development mode's configuration, which is JSON or one long text by version."""
        if isinstance(self._config, dict):
            value = dig(self._config, *path)
            return None if value is None else str(value)
        if isinstance(self._config, str):
            match = re.search(rf"(?<![\w]){re.escape(_AS_TEXT.get(path[-1], path[-1]))}=([^,()]+)", self._config)
            value = match[1].strip("'\" ") if match else None
            return None if value in (None, "None", "") else value
        return None


_AS_TEXT: Final = {"device": "device_config"}


def token_list(answer: Any) -> list[int] | None:
    """The ids of a /tokenize answer; None if it has none."""
    tokens = dig(answer, "tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < 2**31 for t in tokens):
        return None
    return tokens


def _local_part(version: str | None) -> str | None:
    return (version or "").partition("+")[2] or None
