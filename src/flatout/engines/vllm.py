"""vLLM: /version, /v1/models, /metrics; in development mode also /server_info, /reset_prefix_cache, /abort_requests."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, ClassVar, Final

from flatout.engines.base import (
    CONTINUOUS,
    IGNORE_EOS,
    MIN_TOKENS,
    TOKEN_IDS,
    USAGE,
    Found,
    Source,
    Wants,
    dig,
    fact,
    known,
    text,
    unknown,
    whole,
)
from flatout.engines.generic import COMMIT, Adapter, Ask
from flatout.engines.http import ControlClient
from flatout.record import Engine, Fact, ServedModel, ServerRoom

_CONFIG: Final = "vllm:cache_config_info"
_UNSAID: Final = "vLLM tells it only in development mode or by its command line"


class Vllm(Adapter):
    name = "vllm"
    repository = "vllm-project/vllm"
    programs: ClassVar = {"vllm": 8000}
    key_variables = ("VLLM_API_KEY",)
    gauges: ClassVar = {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "generated_total": ("vllm:generation_tokens_total",),
        "prompt_total": ("vllm:prompt_tokens_total",),
        "drafts_total": ("vllm:spec_decode_num_drafts_total",),
        "drafted_total": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_total": ("vllm:spec_decode_num_accepted_tokens_total",),
        "preemptions_total": ("vllm:num_preemptions_total",),
        "prefix_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prefix_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    }
    counters_live = True
    wants = Wants(
        count_fields=(USAGE, CONTINUOUS, TOKEN_IDS), length_fields=(IGNORE_EOS, MIN_TOKENS), token_prompts=True
    )

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        self._start = self.first_scrape(_CONFIG)
        self.has_gauges = self._start is not None
        # The structured form tells max_num_seqs; older versions ignore the parameter and send one long text.
        self._config: Any = dig(self.answer("/server_info?config_format=json"), "vllm_config")
        if self._config is not None:
            # Requests can be named in any mode, but be cancelled by name only in this one.
            self.wants = replace(self.wants, id_field="request_id")

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        return "Recognised as vLLM by the owner named in its list of models." if found.owner == "vllm" else None

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        if not found.entry.get("max_model_len") or not text(dig(ask("/version"), "version")):
            return None
        return "Recognised as vLLM by /version and max_model_len."

    def engine(self) -> Engine:
        engine, source = super().engine(), self.found.argv_source
        version = text(dig(self.answer("/version"), "version"))
        commit = COMMIT.search(version or "")
        speculative = self._speculative()
        engine.version = fact("vLLM's /version is not reachable", version)
        engine.commit = fact("vLLM names it in development builds only", commit[1] if commit else None)
        engine.build = fact("a plain release", (version or "").partition("+")[2] or None)
        engine.backend = self._setting_or_flag(("device_config", "device"), "--device")
        method = text(speculative.get("method"))
        engine.speculative_method = known(method, source) if method else self._off()
        engine.draft_model = fact(_UNSAID, text(speculative.get("model")), source)
        engine.draft_length = fact(_UNSAID, whole(speculative.get("num_speculative_tokens")), source)
        return engine

    def served_model(self) -> ServedModel:
        model = super().served_model()
        model.revision = self._setting_or_flag(("model_config", "revision"), "--revision")
        model.quantization = self._setting_or_flag(("model_config", "quantization"), "--quantization", "-q")
        model.dtype = self._setting_or_flag(("model_config", "dtype"), "--dtype")
        return model

    def room(self) -> ServerRoom:
        length = whole(self.found.entry.get("max_model_len"))
        # Each data-parallel engine has its own limit.
        engines = max(1, len(self._start.labels(_CONFIG)) if self._start else 1)
        seqs = whole(self._setting("scheduler_config", "max_num_seqs"))
        seqs_typed = self.number("--max-num-seqs")
        return ServerRoom(
            model_length=self.server_or_flag("vLLM did not tell max_model_len", length, self.number("--max-model-len")),
            kv_tokens=self._kv_tokens(),
            max_running=self.server_or_flag(
                "vLLM does not tell --max-num-seqs, and its default depends on the hardware",
                seqs * engines if seqs else None,
                seqs_typed * engines if seqs_typed else None,
            ),
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
        return self.ids("/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False}, text)

    def count_chat_tokens(self, text: str) -> int | None:
        messages = [{"role": "user", "content": text}]
        body = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        return whole(dig(self.ask_tokenizer("/tokenize", body), "count"))

    def _kv_tokens(self) -> Fact:
        tokens = 0
        source: Source = "server"
        engines = self._start.labels(_CONFIG) if self._start else ()
        for labels in engines:
            size = whole(labels.get("kv_cache_size_tokens"))
            if size is None:
                blocks, block = whole(labels.get("num_gpu_blocks")), whole(labels.get("block_size"))
                if blocks is None or block is None:
                    return unknown("vLLM's cache_config_info names neither tokens nor blocks")
                size, source = blocks * block, "derived"
            tokens += size
        return known(tokens, source) if engines else unknown("vLLM's /metrics has no cache_config_info")

    def _speculative(self) -> dict[str, Any]:
        config = dig(self._config, "speculative_config")
        if isinstance(config, dict):
            return config
        try:
            config = json.loads(self.option("--speculative-config", "-sc") or "{}")
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    def _off(self) -> Fact:
        if self._config is not None and self._setting("speculative_config") is None:
            return known("none", "server")
        given = self.found.argv is not None and self.option("--config") is None
        return known("none", "derived") if given and not self._speculative() else unknown(_UNSAID)

    def _setting_or_flag(self, path: tuple[str, str], *flags: str) -> Fact:
        setting = self._setting(*path)
        if path[1] == "dtype":
            setting = (setting or "").removeprefix("torch.") or None
        return self.server_or_flag(_UNSAID, setting, self.option(*flags))

    def _setting(self, *path: str) -> str | None:
        """One setting of the development mode's configuration, which is JSON or one long text by version."""
        if isinstance(self._config, dict):
            value = dig(self._config, *path)
            return None if value is None else str(value)
        if isinstance(self._config, str):
            name = "device_config" if path[-1] == "device" else path[-1]
            match = re.search(rf"(?<![\w]){re.escape(name)}=([^,()]+)", self._config)
            value = match[1].strip("'\" ") if match else None
            return None if value in (None, "None", "") else value
        return None
