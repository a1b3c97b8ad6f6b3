"""SGLang: /server_info, /v1/loads, /metrics, /abort_request, /flush_cache. Never /health: it runs a generation."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import replace
from typing import Any, ClassVar, Final

from flatout.engines.base import (
    CONTINUOUS,
    IGNORE_EOS,
    MIN_TOKENS,
    TOKEN_IDS,
    USAGE,
    Found,
    Live,
    TargetError,
    Wants,
    count,
    dig,
    fact,
    known,
    option,
    text,
    unknown,
    whole,
)
from flatout.engines.generic import COMMIT, Adapter, Ask
from flatout.engines.http import ControlClient
from flatout.engines.prometheus import finite_sum
from flatout.record import Engine, Fact, ServedModel, ServerRoom

_INFO_PATHS: Final = ("/get_server_info", "/server_info")
_TOKENIZE_PATHS: Final = ("/tokenize", "/v1/tokenize")
_UNSAID: Final = "SGLang's /server_info does not tell"


class Sglang(Adapter):
    """Server info is asked once at the start, the room at each call of `room`."""

    name = "sglang"
    repository = "sgl-project/sglang"
    programs: ClassVar = {"sglang": 30000}
    gauges: ClassVar = {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_use": ("sglang:token_usage",),
        "generated_total": ("sglang:generation_tokens_total",),
        "prompt_total": ("sglang:prompt_tokens_total",),
        "accept_length": ("sglang:spec_accept_length",),
        "preemptions_total": ("sglang:num_retracted_requests_total",),
        "prefix_hits_total": ("sglang:cached_tokens_total",),
        "prefix_queries_total": ("sglang:prompt_tokens_total",),
    }
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
        metrics = self.first_scrape()
        self._loads_only = metrics is None and bool(self._loads())
        self.has_gauges = metrics is not None or self._loads_only

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        return "Recognised as SGLang by the owner named in its list of models." if found.owner == "sglang" else None

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        info = ask("/get_server_info")
        if dig(info, "tp_size") is None or not text(dig(info, "version")):
            return None
        return "Recognised as SGLang by /get_server_info."

    @staticmethod
    def still_loading(client: ControlClient) -> str | None:
        status = dig(client.ask("GET", "/server_info"), "status")
        return None if status in (None, "ready") else f"SGLang says: {status}"

    def engine(self) -> Engine:
        engine, info = super().engine(), self._info
        version = text(dig(info, "version"))
        commit = COMMIT.search(version or "")
        method = text(dig(info, "speculative_algorithm"))
        off = isinstance(info, dict) and "speculative_algorithm" in info and method is None
        engine.version = fact(_UNSAID, version)
        engine.commit = fact("SGLang names it in development builds only", commit[1] if commit else None)
        engine.build = fact("a plain release", (version or "").partition("+")[2] or None)
        engine.backend = fact(_UNSAID, text(dig(info, "attention_backend")))
        engine.speculative_method = fact(_UNSAID, "none" if off else method)
        engine.draft_model = fact(_UNSAID, text(dig(info, "speculative_draft_model_path")))
        engine.draft_length = self._draft_length(method)
        return engine

    def served_model(self) -> ServedModel:
        model, info = super().served_model(), self._info
        model.id = known(text(dig(info, "model_path")) or self.model, "server")
        model.revision = fact("SGLang was started without --revision", text(dig(info, "revision")))
        model.quantization = self.server_or_flag(
            "SGLang was started without --quantization; the model's own configuration decides",
            text(dig(info, "quantization")),
            self.option("--quantization"),
        )
        model.dtype = self.server_or_flag(_UNSAID, text(dig(info, "dtype")), self.option("--dtype"))
        return model

    def room(self) -> ServerRoom:
        info, loads = self._info, self._loads()
        states = dig(info, "internal_states")
        per_rank = _sum_of_limits(states if isinstance(states, list) else [], "effective_max_running_requests_per_dp")
        ranks = whole(dig(info, "dp_size")) or 1
        kv_per_rank = whole(dig(info, "max_total_num_tokens"))
        kv_told = kv_per_rank * ranks if kv_per_rank else None
        return ServerRoom(
            model_length=self.server_or_flag(
                "SGLang did not tell its context length",
                whole(self.found.entry.get("max_model_len")) or whole(dig(info, "context_length")),
                self.number("--context-length"),
            ),
            kv_tokens=fact(
                "SGLang did not tell max_total_num_tokens", _sum_of_limits(loads, "max_total_num_tokens") or kv_told
            ),
            max_running=self.server_or_flag(
                "SGLang did not tell max_running_requests",
                _sum_of_limits(loads, "max_running_requests") or per_rank or whole(dig(info, "max_running_requests")),
                self.number("--max-running-requests"),
            ),
        )

    def live(self) -> Live | None:
        if self._loads_only:
            return self._live_from_loads()
        live = super().live()
        # An acceptance length of 0 means that no speculative step has been made.
        return live if live is None or live.accept_length else replace(live, accept_length=None)

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
        return next((ids for path in _TOKENIZE_PATHS if (ids := self.ids(path, body, text)) is not None), None)

    def count_chat_tokens(self, text: str) -> int | None:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        answers = (self.ask_tokenizer(path, body) for path in _TOKENIZE_PATHS)
        return next((n for n in (whole(dig(a, "count")) for a in answers) if n is not None), None)

    def _live_from_loads(self) -> Live:
        before = time.monotonic_ns()
        loads = dig(self.client.json("GET", "/v1/loads"), "loads")
        t_ns = (before + time.monotonic_ns()) // 2
        loads = loads if isinstance(loads, list) else []
        running, waiting, usage = (
            _finite([dig(rank, name) for rank in loads])
            for name in ("num_running_reqs", "num_waiting_reqs", "token_usage")
        )
        kv_use = finite_sum(usage)
        return Live(t_ns, finite_sum(running), finite_sum(waiting), None if kv_use is None else kv_use / len(usage))

    def _loads(self) -> list[Any]:
        """One entry a data-parallel rank; none where the server has no /v1/loads."""
        try:
            loads = dig(self.client.ask("GET", "/v1/loads"), "loads")
        except TargetError:
            return []
        return loads if isinstance(loads, list) else []

    def _words(self) -> list[str] | None:
        """The words of its start as the server has them, without its program."""
        command = text(dig(self._info, "launch_command"))
        try:
            return shlex.split(command) if command else None
        except ValueError:
            return None

    def launch_command(self) -> Fact:
        """What the server says of its own start is better than what a process list shows: it has all the words."""
        command = text(dig(self._info, "launch_command"))
        if command is None:
            return super().launch_command()
        return known(self.client.redactor.command(f"python -m sglang.launch_server {command}"), "server")

    def _draft_length(self, method: str | None) -> Fact:
        """Draft tokens per verification step; for block methods the block's size."""
        if method is None:
            return unknown("speculative decoding is off, or SGLang does not tell")
        fields = (
            "speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_dspark_block_size",
        )  # fmt: skip
        lengths = (whole(dig(self._info, name)) for name in fields)
        typed = count(option(self._words(), "--speculative-num-draft-tokens"))
        length = next((n for n in (*lengths, typed) if n is not None), None)
        return fact("SGLang does not tell the draft length", length)


def _finite(values: list[Any]) -> list[float]:
    """The numbers among values of JSON, which may also be too large for a float."""
    numbers = []
    for value in values:
        try:
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                numbers.append(float(value))
        except OverflowError:
            continue
    return numbers


def _sum_of_limits(ranks: list[Any], name: str) -> int | None:
    """The sum over ranks of a limit; None unless every rank tells it."""
    limits = [n for n in (whole(dig(rank, name)) for rank in ranks) if n is not None]
    return sum(limits) if limits and len(limits) == len(ranks) else None
