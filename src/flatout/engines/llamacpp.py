"""llama.cpp's server: /props, /slots, /metrics (with --metrics), /tokenize, /apply-template."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from typing import Any, ClassVar, Final

from flatout.engines import argv as flags
from flatout.engines.base import Fact, Identity, Live, Room, TargetError, Wants
from flatout.engines.generic import IGNORE_EOS, USAGE, Found, Generic, dig, first, text, whole
from flatout.engines.http import ControlClient
from flatout.engines.vllm import token_list

_LIVE: Final = frozenset(
    {
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:kv_cache_usage_ratio",
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    }
)


class Llamacpp(Generic):
    """/props is asked once at the start. Gauges come from /metrics, or, without it, from /slots (running only)."""

    name = "llamacpp"
    counters_live = False
    repository: ClassVar[str | None] = "ggml-org/llama.cpp"
    wants = Wants(count_fields=(USAGE, ("timings_per_token", True)), length_fields=(IGNORE_EOS,), token_prompts=True)

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        self._props: Any = self.answer("/props")
        self._metrics = self.has_metrics(_LIVE) is not None
        self._slots: Any = self.answer("/slots")
        self.has_gauges = self._metrics or isinstance(self._slots, list)

    def identity(self) -> Identity:
        props, source = self._props, self.found.argv_source
        build = text(dig(props, "build_info"))
        match = re.fullmatch(r"(b\d+)-([0-9a-f]{6,40})", build or "")
        path = text(dig(props, "model_path"))
        file_type = text(dig(props, "model_ftype")) or text(dig(self.found.entry, "meta", "ftype"))
        from_name = re.search(r"(?i)[-._]((?:i?q\d[a-z0-9_]*)|f16|bf16|f32|fp16|mxfp4)(?=[-._]|$)", path or self.model)
        return replace(
            self._identity(),
            version=_number(build),
            commit=first("this build of llama.cpp does not know its commit", (match[2] if match else None, "server")),
            build=first("llama.cpp's /props is not reachable", (build, "server")),
            backend=Fact.missing("llama.cpp does not tell which backend (CUDA, Metal, CPU, …) it runs on"),
            model_id=first("unknown", (_file_name(path), "server"), (self.model, "server")),
            revision=Fact.missing("a GGUF file has no revision"),
            quantization=first(
                "llama.cpp does not tell the file type", (file_type, "server"), (from_name and from_name[1], "derived")
            ),
            dtype=Fact.missing("a GGUF file has a quantization instead"),
            speculative_method=self._speculative_method(),
            draft_model=first(
                "llama.cpp does not tell its draft model",
                (self.option("-md", "--model-draft", "--spec-draft-model"), source),
            ),
            draft_length=first(
                "llama.cpp does not tell its draft length",
                (self.number("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max"), source),
            ),
        )

    def room(self) -> Room:
        slots = self._slots if isinstance(self._slots, list) else []
        lengths = [n for n in (whole(dig(slot, "n_ctx")) for slot in slots) if n is not None]
        props_length = whole(dig(self._props, "default_generation_settings", "n_ctx"))
        meta_length = whole(dig(self.found.entry, "meta", "n_ctx"))
        length = min(lengths) if lengths else props_length or meta_length
        count = whole(dig(self._props, "total_slots")) or len(slots) or None
        return Room(
            model_length=first("llama.cpp does not tell its context length", (length, "server")),
            kv_tokens=self._kv_tokens(length, lengths, count),
            max_running=first(
                "llama.cpp does not tell its number of slots",
                (count, "server"),
                (self.number("-np", "--parallel"), self.found.argv_source),
            ),
        )

    def live(self) -> Live | None:
        if not self._metrics:
            return self._live_from_slots() if self.has_gauges else None
        s, t_ns = self.scrape(_LIVE)
        # prompt_tokens_total leaves out what came from the cache; elsewhere it is in.
        processed, cached = s.total("llamacpp:prompt_tokens_total"), s.total("llamacpp:prompt_tokens_cached_total")
        prompt = None if processed is None else processed + (cached or 0)
        if prompt is not None and not math.isfinite(prompt):
            prompt = None
        return Live(
            t_ns,
            running=s.total("llamacpp:requests_processing"),
            waiting=s.total("llamacpp:requests_deferred"),
            kv_use=s.mean("llamacpp:kv_cache_usage_ratio"),
            generated_total=s.total("llamacpp:tokens_predicted_total"),
            prompt_total=prompt,
            drafts_total=s.total("llamacpp:spec_decode_num_drafts_total"),
            drafted_total=s.total("llamacpp:spec_decode_num_draft_tokens_total"),
            accepted_total=s.total("llamacpp:spec_decode_num_accepted_tokens_total"),
            prefix_hits_total=cached,
            prefix_queries_total=prompt if cached is not None else None,
        )

    def forget_cache(self) -> bool:
        """Erases every slot; llama.cpp allows it only with --slot-save-path."""
        slots = self._slots if isinstance(self._slots, list) else []
        ids = [dig(slot, "id") for slot in slots]
        if not ids or not all(isinstance(i, int) for i in ids):
            return False
        return all(self.client.request("POST", f"/slots/{i}?action=erase").status == 200 for i in ids)

    def tokenize(self, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": False}
        return self.believable(token_list(self.ask_tokenizer("/tokenize", body)), text)

    def count_chat_tokens(self, text: str) -> int | None:
        messages = [{"role": "user", "content": text}]
        prompt = dig(self.ask_tokenizer("/apply-template", {"messages": messages}), "prompt")
        if not isinstance(prompt, str):
            return None
        # The server itself adds the BOS that the model wants, and reads the template's special tokens.
        body = {"content": prompt, "add_special": True, "parse_special": True}
        ids = self.believable(token_list(self.ask_tokenizer("/tokenize", body)), prompt)
        return None if ids is None else len(ids)

    def _live_from_slots(self) -> Live:
        before = time.monotonic_ns()
        slots = self.client.json("GET", "/slots")
        t_ns = (before + time.monotonic_ns()) // 2
        if not isinstance(slots, list):
            raise TargetError("protocol", "llama.cpp's /slots no longer answers with a list")
        return Live(t_ns, running=float(sum(1 for slot in slots if dig(slot, "is_processing") is True)))

    def _kv_tokens(self, length: int | None, lengths: list[int], count: int | None) -> Fact[int]:
        """Slots have equal parts of the cache, unless it is unified: then each may use all of it."""
        if length is None or count is None:
            return Fact.missing("llama.cpp tells neither its slots nor their length")
        unified, caveat = self._unified(length, count)
        if unified:
            return Fact(length, "derived", caveat or "the KV cache is shared by all slots (unified)")
        total = sum(lengths) if len(lengths) == count else length * count
        return Fact(total, "derived", caveat)

    def _unified(self, length: int, count: int) -> tuple[bool, str | None]:
        """Whether the cache is one for all slots, which no endpoint tells, and the caveat where it is a guess.

        llama-server's default is unified where it chose the number of slots itself (its help, `--kv-unified`).
        """
        argv = self.found.argv
        if count == 1:
            return False, None
        if flags.has(argv, "-kvu", "--kv-unified") or self.number("-c", "--ctx-size") == length:
            return True, None
        if argv is not None and "llama-server" in " ".join(argv[:3]):
            split = flags.has(argv, "-no-kvu", "--no-kv-unified", "-np", "--parallel")
            return not split, None
        if argv is not None:
            return False, None
        if count == 4 and length == whole(dig(self.found.entry, "meta", "n_ctx_train")):
            return True, "taken as unified, llama-server's default for 4 slots of the model's whole length"
        return False, "taken as slots x length; with --kv-unified it would be one slot's length"

    def _speculative_method(self) -> Fact[str]:
        slots = self._slots if isinstance(self._slots, list) else []
        types = text(dig(self._props, "default_generation_settings", "params", "speculative.types"))
        types = types or text(dig(slots, 0, "params", "speculative.types"))
        methods = [t for t in (types or "").split(",") if t.strip() and t.strip() != "none"]
        if methods:
            return Fact(",".join(methods), "server")
        typed = self.option("--spec-type")
        if typed and typed != "none":
            return Fact(typed, self.found.argv_source)
        speculative = dig(slots, 0, "speculative")
        if speculative is True:
            return Fact("draft", "server", "llama.cpp tells that it speculates, but not how")
        if types is not None or speculative is False:
            return Fact("none", "server")
        return Fact.missing("llama.cpp's /props and /slots do not tell")


def _file_name(path: str | None) -> str | None:
    return re.split(r"[/\\]", path)[-1] or None if path else None


def _number(build: str | None) -> Fact[str]:
    if build is None:
        return Fact.missing("llama.cpp's /props is not reachable")
    caveat = "this build was made without its number" if build == "b0-unknown" else None
    return Fact(build.partition("-")[0], "server", caveat)
