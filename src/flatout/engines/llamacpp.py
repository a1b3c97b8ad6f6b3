"""llama.cpp's server: /props, /slots, /metrics (with --metrics), /tokenize, /apply-template."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from typing import Any, ClassVar

from flatout.engines.base import (
    IGNORE_EOS,
    USAGE,
    Found,
    Live,
    TargetError,
    Wants,
    dig,
    fact,
    has,
    known,
    text,
    unknown,
    whole,
)
from flatout.engines.generic import Adapter, Ask
from flatout.engines.http import ControlClient
from flatout.record import Engine, Fact, ServedModel, ServerRoom


class Llamacpp(Adapter):
    """/props is asked once at the start. Gauges come from /metrics, or, without it, from /slots (running only)."""

    name = "llamacpp"
    repository = "ggml-org/llama.cpp"
    programs: ClassVar = {"llama-server": 8080, "llama_server": 8080, "llamafile": 8080, "llama": None}
    key_variables = ("LLAMA_API_KEY",)
    gauges: ClassVar = {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_use": ("llamacpp:kv_cache_usage_ratio",),
        "generated_total": ("llamacpp:tokens_predicted_total",),
        "prompt_total": ("llamacpp:prompt_tokens_total",),
        "drafts_total": ("llamacpp:spec_decode_num_drafts_total",),
        "drafted_total": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_total": ("llamacpp:spec_decode_num_accepted_tokens_total",),
        "prefix_hits_total": ("llamacpp:prompt_tokens_cached_total",),
    }
    wants = Wants(count_fields=(USAGE, ("timings_per_token", True)), length_fields=(IGNORE_EOS,), token_prompts=True)

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        self._props: Any = self.answer("/props")
        self._metrics = self.first_scrape() is not None
        slots = self.answer("/slots")
        self.has_gauges = self._metrics or isinstance(slots, list)
        self._slots: list[Any] = slots if isinstance(slots, list) else []

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        if "llama.cpp" not in found.headers.get("server", "") and found.owner != "llamacpp":
            return None
        return "Recognised as llama.cpp by its Server header or its list of models."

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        return "Recognised as llama.cpp by /props." if text(dig(ask("/props"), "build_info")) else None

    def engine(self) -> Engine:
        engine = super().engine()
        build = text(dig(self._props, "build_info"))
        commit = re.fullmatch(r"b\d+-([0-9a-f]{6,40})", build or "")
        caveat = "this build was made without its number" if build == "b0-unknown" else None
        unreachable = unknown("llama.cpp's /props is not reachable")
        engine.version = known(build.partition("-")[0], "server", caveat) if build else unreachable
        engine.commit = fact("this build of llama.cpp does not know its commit", commit[1] if commit else None)
        engine.build = known(build, "server") if build else unreachable
        engine.backend = unknown("llama.cpp does not tell which backend (CUDA, Metal, CPU, …) it runs on")
        engine.speculative_method = self._speculative_method()
        draft = self.option("-md", "--model-draft", "--spec-draft-model")
        length = self.number("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max")
        engine.draft_model = self.server_or_flag("llama.cpp does not tell its draft model", None, draft)
        engine.draft_length = self.server_or_flag("llama.cpp does not tell its draft length", None, length)
        return engine

    def served_model(self) -> ServedModel:
        model = super().served_model()
        path = text(dig(self._props, "model_path")) or ""
        file_type = text(dig(self._props, "model_ftype")) or text(dig(self.found.entry, "meta", "ftype"))
        from_name = re.search(r"(?i)[-._]((?:i?q\d[a-z0-9_]*)|f16|bf16|f32|fp16|mxfp4)(?=[-._]|$)", path or self.model)
        model.id = known(re.split(r"[/\\]", path)[-1] or self.model, "server")
        model.revision = unknown("a GGUF file has no revision")
        named = fact("llama.cpp does not tell the file type", from_name[1] if from_name else None, "derived")
        model.quantization = known(file_type, "server") if file_type else named
        model.dtype = unknown("a GGUF file has a quantization instead")
        return model

    def room(self) -> ServerRoom:
        slots = self._slots
        lengths = [n for n in (whole(dig(slot, "n_ctx")) for slot in slots) if n is not None]
        props_length = whole(dig(self._props, "default_generation_settings", "n_ctx"))
        meta_length = whole(dig(self.found.entry, "meta", "n_ctx"))
        length = min(lengths) if lengths else props_length or meta_length
        count = whole(dig(self._props, "total_slots")) or len(slots) or None
        return ServerRoom(
            model_length=fact("llama.cpp does not tell its context length", length),
            kv_tokens=self._kv_tokens(length, lengths, count),
            max_running=self.server_or_flag(
                "llama.cpp does not tell its number of slots", count, self.number("-np", "--parallel")
            ),
        )

    def live(self) -> Live | None:
        if not self._metrics:
            return self._live_from_slots() if self.has_gauges else None
        live = super().live()
        if live is None or live.prompt_total is None:
            return live
        # The engine's prompt counter leaves out what came from the cache; elsewhere it is in.
        cached = live.prefix_hits_total
        prompt = live.prompt_total + (cached or 0)
        total = prompt if math.isfinite(prompt) else None
        return replace(live, prompt_total=total, prefix_queries_total=None if cached is None else total)

    def forget_cache(self) -> bool:
        """Erases every slot; llama.cpp allows it only with --slot-save-path."""
        ids = [dig(slot, "id") for slot in self._slots]
        if not ids or not all(isinstance(i, int) for i in ids):
            return False
        return all(self.client.request("POST", f"/slots/{i}?action=erase").status == 200 for i in ids)

    def tokenize(self, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": False}
        return self.ids("/tokenize", body, text)

    def count_chat_tokens(self, text: str) -> int | None:
        messages = [{"role": "user", "content": text}]
        prompt = dig(self.ask_tokenizer("/apply-template", {"messages": messages}), "prompt")
        if not isinstance(prompt, str):
            return None
        # The server itself adds the BOS that the model wants, and reads the template's special tokens.
        body = {"content": prompt, "add_special": True, "parse_special": True}
        ids = self.ids("/tokenize", body, prompt)
        return None if ids is None else len(ids)

    def _live_from_slots(self) -> Live:
        before = time.monotonic_ns()
        slots = self.client.json("GET", "/slots")
        t_ns = (before + time.monotonic_ns()) // 2
        if not isinstance(slots, list):
            raise TargetError("protocol", "llama.cpp's /slots no longer answers with a list")
        return Live(t_ns, running=float(sum(1 for slot in slots if dig(slot, "is_processing") is True)))

    def _kv_tokens(self, length: int | None, lengths: list[int], count: int | None) -> Fact:
        """Slots have equal parts of the cache, unless it is unified: then each may use all of it."""
        if length is None or count is None:
            return unknown("llama.cpp tells neither its slots nor their length")
        unified, caveat = self._unified(length, count)
        if unified:
            return known(length, "derived", caveat or "the KV cache is shared by all slots (unified)")
        total = sum(lengths) if len(lengths) == count else length * count
        return known(total, "derived", caveat)

    def _unified(self, length: int, count: int) -> tuple[bool, str | None]:
        """Whether the cache is one for all slots, which no endpoint tells, and the caveat where it is a guess.

        llama-server's default is unified where it chose the number of slots itself (its help, `--kv-unified`).
        """
        argv = self.found.argv
        if count == 1:
            return False, None
        if has(argv, "-kvu", "--kv-unified") or self.number("-c", "--ctx-size") == length:
            return True, None
        if argv is not None and "llama-server" in " ".join(argv[:3]):
            split = has(argv, "-no-kvu", "--no-kv-unified", "-np", "--parallel")
            return not split, None
        if argv is not None:
            return False, None
        if count == 4 and length == whole(dig(self.found.entry, "meta", "n_ctx_train")):
            return True, "taken as unified, llama-server's default for 4 slots of the model's whole length"
        return False, "taken as slots x length; with --kv-unified it would be one slot's length"

    def _speculative_method(self) -> Fact:
        types = text(dig(self._props, "default_generation_settings", "params", "speculative.types"))
        types = types or text(dig(self._slots, 0, "params", "speculative.types"))
        methods = [t for t in (types or "").split(",") if t.strip() and t.strip() != "none"]
        if methods:
            return known(",".join(methods), "server")
        typed = self.option("--spec-type")
        if typed and typed != "none":
            return known(typed, self.found.argv_source)
        speculative = dig(self._slots, 0, "speculative")
        if speculative is True:
            return known("draft", "server", "llama.cpp tells that it speculates, but not how")
        if types is not None or speculative is False:
            return known("none", "server")
        return unknown("llama.cpp's /props and /slots do not tell")
