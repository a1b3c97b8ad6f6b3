"""llama.cpp's manners, as in captures of its HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flatout.rig.dialect import Answer, Dialect, Errors, Shape, dump, exposition
from flatout.rig.engine import State
from flatout.rig.http import Headers, Request


class LlamaShape(Shape):
    role_in_token_chunk = True
    tail_in_one_chunk = True
    finish_extra_each = True

    def make_id(self, rid: str) -> str:
        return f"chatcmpl-{rid}"

    def envelope(self) -> tuple[bytes, bytes]:
        rest = {
            "created": self.created, "id": self.id, "model": self.ask.model,
            "system_fingerprint": self.config.engine_version, "object": self.object_name,
        }  # fmt: skip
        return b'{"choices":', b"," + dump(rest)[1:-1]

    def choice(self, i: int, kind: str, finish: str | None, ids: list[int] | None) -> tuple[bytes, bytes]:
        if self.chat:
            before, after = self.delta(kind)
            return b'{"finish_reason":%b,"index":%d,"delta":{%b' % (dump(finish), i, before), after + b"}}"
        return b'{"text":"', b'","index":%d,"logprobs":null,"finish_reason":%b}' % (i, dump(finish))

    def role_choice(self, i: int) -> bytes:
        return b'{"finish_reason":null,"index":%d,"delta":{"role":"assistant","content":null}}' % i

    def finish_choice(self, i: int, finish: str) -> bytes:
        if self.chat:
            return b'{"finish_reason":%b,"index":%d,"delta":{}}' % (dump(finish), i)
        return b'{"text":"","index":%d,"logprobs":null,"finish_reason":%b}' % (i, dump(finish))

    def timings(self) -> bytes:
        job, engine = self.job, self.config
        prompt = job.prompt.tokens - job.record.cached_tokens
        prompt_ms = max(0.001, (job.first_ns - job.prefill_start_ns) / 1e6)
        per_token_ms = 1000 / engine.decode_tok_s
        if job.done > 1 and job.record.last_ns > job.record.first_ns:
            per_token_ms = (job.record.last_ns - job.record.first_ns) / 1e6 / (job.done - 1)
        made_ms = max(0.001, per_token_ms * (job.done - 1))
        out: dict[str, Any] = {
            "cache_n": job.record.cached_tokens, "prompt_n": prompt, "prompt_ms": round(prompt_ms, 3),
            "prompt_per_token_ms": prompt_ms / max(1, prompt), "prompt_per_second": prompt / prompt_ms * 1000,
            "predicted_n": job.done, "predicted_ms": round(made_ms, 3), "predicted_per_token_ms": per_token_ms,
            "predicted_per_second": 1000 / per_token_ms,
        }  # fmt: skip
        if engine.spec_accept_length:
            out |= {"draft_n": job.draft_tokens, "draft_n_accepted": job.accepted}
        return b',"timings":' + dump(out)

    def live_usage(self) -> bytes:
        return self.timings() if self.ask.timings else b""

    def usage(self, *, final: bool) -> bytes:
        done, prompt = self.completion_tokens // self.job.choices, self.job.prompt.tokens
        out: dict[str, Any] = {"completion_tokens": done, "prompt_tokens": prompt, "total_tokens": prompt + done}
        return dump(out | self.cached_details())

    def usage_with_finish(self) -> bool:
        return not self.chat

    def finish_extra(self) -> bytes:
        if self.chat:
            return b"" if self.usage_in_engine_place() else self.timings()
        return b',"usage":' + self.usage(final=True) + self.timings()

    def usage_extra(self) -> bytes:
        return self.timings()

    def whole(self, texts: list[bytes], finish: str) -> bytes:
        choices = []
        for i, text in enumerate(texts):
            if self.chat:
                content = b'"message":{"role":"assistant","content":"%b"}' % text
                choices.append(b'{"finish_reason":%b,"index":%d,%b}' % (dump(finish), i, content))
            else:
                choices.append(b'{"text":"%b","index":%d,"logprobs":null,"finish_reason":%b}' % (text, i, dump(finish)))
        usage = b"" if self.config.usage == "none" else b',"usage":' + self.usage(final=True)
        return b'{"choices":[%b]%b%b%b}' % (b",".join(choices), self.whole_part(self.after), usage, self.timings())

    def error_event(self) -> bytes:
        return dump({"error": {"code": 500, "message": "context shift failed", "type": "server_error"}})


class Llamacpp(Dialect):
    shape = LlamaShape
    public = frozenset({"/health"})
    has_metrics = True

    metrics_kind = "text/plain; version=0.0.4"
    json_headers: ClassVar[Headers] = [
        ("Server", "llama.cpp"), ("Access-Control-Allow-Origin", ""),
        ("Content-Type", "application/json; charset=utf-8"),
    ]  # fmt: skip
    stream_headers: ClassVar[Headers] = [
        ("Server", "llama.cpp"), ("Access-Control-Allow-Origin", ""), ("X-Accel-Buffering", "no"),
        ("Content-Type", "text/event-stream"),
    ]  # fmt: skip
    errors: ClassVar[Errors] = {
        "auth": (401, "authentication_error", "Invalid API Key"),
        "not_found": (404, "not_found_error", "File Not Found"),
        "model": (404, "not_found_error", "model '{model}' not found"),
        "loading": (503, "unavailable_error", "Loading model"),
        "rate": (429, "unavailable_error", "Too many requests"),
        "no_metrics": (
            501, "not_supported_error", "This server does not support metrics endpoint. Start it with `--metrics`",
        ),
        **dict.fromkeys(("prompt_too_long", "total_too_long", "no_room"), (
            400, "exceed_context_size_error",
            "request ({prompt} tokens) exceeds the available context size ({limit} tokens), try increasing it",
        )),
        "max_tokens": (
            400, "invalid_request_error",
            "Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got {value}",
        ),
        "bad_json": (
            400, "invalid_request_error",
            "[json.exception.parse_error.101] parse error at line 1, column {column}: syntax error",
        ),
        "fields": (400, "invalid_request_error", "Unsupported param: {fields}"),
        "other": (400, "invalid_request_error", '"{what}" is required'),
    }  # fmt: skip

    def ends_early(self) -> bool:
        return True

    def error_body(self, kind: str, facts: Mapping[str, Any], status: int, words: list[str | None]) -> Any:
        error: dict[str, Any] = {"code": status, "message": words[1], "type": words[0]}
        if kind in ("prompt_too_long", "no_room"):
            error |= {"n_prompt_tokens": facts["prompt"], "n_ctx": facts["limit"]}
        return {"error": error}

    @property
    def _slots(self) -> int:
        return self.config.max_running or 4

    @property
    def _slot_tokens(self) -> int:
        return self.config.model_len or 131_072

    def models(self) -> Any:
        name = self.config.model
        details = {
            "parent_model": "", "format": "gguf", "family": "", "families": [""], "parameter_size": "",
            "quantization_level": "",
        }  # fmt: skip
        listed = {
            "name": name, "model": name, "modified_at": "", "size": "", "digest": "", "type": "model",
            "description": "", "tags": [""], "capabilities": ["completion"], "parameters": "", "details": details,
        }  # fmt: skip
        meta = {
            "vocab_type": 2, "n_vocab": 131_328, "n_ctx": self._slot_tokens, "n_ctx_train": self._slot_tokens,
            "n_embd": 512, "n_params": 48_977_992, "size": 52_189_728, "ftype": "Q8_0",
        }  # fmt: skip
        data = {
            "id": name, "aliases": [name], "tags": [], "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": self.started_s, "owned_by": "llamacpp", "meta": meta,
        }  # fmt: skip
        return {"models": [listed], "object": "list", "data": [data]}

    def _busy(self) -> list[dict[str, Any]]:
        jobs = [job for job in self.host.engine.jobs.values() if job.state in (State.PREFILL, State.DECODE)]
        out: list[dict[str, Any]] = []
        for i in range(max(self._slots, len(jobs))):
            drafts = bool(self.config.spec_accept_length)
            slot: dict[str, Any] = {
                "id": i, "n_ctx": self._slot_tokens, "speculative": drafts, "is_processing": i < len(jobs),
            }  # fmt: skip
            if i < len(jobs):
                job = jobs[i]
                next_token = {"has_next_token": True, "n_remain": job.target - job.done, "n_decoded": job.done}
                slot |= {"id_task": job.number, "n_prompt_tokens": job.prompt.tokens, "next_token": [next_token]}
            out.append(slot)
        return out

    def _props(self) -> dict[str, Any]:
        name = self.config.model
        return {
            "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": self._slot_tokens},
            "total_slots": self._slots, "model_alias": name, "model_ftype": "Q8_0", "model_path": f"models/{name}.gguf",
            "modalities": {"vision": False, "audio": False}, "endpoint_slots": True, "endpoint_props": False,
            "endpoint_metrics": self.config.metrics,
            "chat_template": "{%- for m in messages %}{{ m.content }}{%- endfor %}",
            "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "build_info": self.config.engine_version,
            "is_sleeping": False,
        }  # fmt: skip

    def get(self, request: Request, reply: Answer) -> bool:
        path = request.path
        if path == "/health":
            reply(self.json({"status": "ok"}))
        elif path == "/models":
            reply(self.json(self.models()))
        elif path == "/props":
            reply(self.json(self._props()))
        elif path == "/slots":
            reply(self.json(self._busy()))
        elif path == "/metrics":
            reply(self.error("no_metrics"))
        else:
            return False
        return True

    def post(self, request: Request, reply: Answer) -> bool:
        if request.path != "/tokenize":
            return False
        reply(self.json({"tokens": self.tokenize(request, "content")}))
        return True

    def metrics_text(self) -> str:
        running, waiting = self.host.gauges()
        c = self.host.engine.counters
        generated = sum(c.generated.values())
        rows: list[tuple[str, str, str, float]] = [
            ("prompt_tokens_total", "counter", "Number of prompt tokens processed, excluding cached tokens",
             c.prompt_live - c.cached_live),
            ("prompt_tokens_cached_total", "counter", "Number of prompt tokens reused from the cache", c.cached_live),
            ("prompt_seconds_total", "counter", "Total time spent processing prompts", c.prompt_s),
            ("tokens_predicted_total", "counter", "Number of generation tokens processed",
             generated * self.config.counter_factor),
            ("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens", c.decode_s),
            ("n_decode_total", "counter", "Total number of llama_decode() calls", c.steps),
            ("n_tokens_max", "counter", "Largest observed sequence length", c.longest),
            ("spec_decode_num_draft_tokens_total", "counter", "Speculative: Total draft tokens", c.draft_tokens),
            ("spec_decode_num_accepted_tokens_total", "counter", "Speculative: Draft tokens accepted", c.accepted),
            ("spec_decode_num_drafts_total", "counter", "Speculative: Total verification steps", c.drafts),
            ("requests_processing", "gauge", "Number of requests processing", running),
            ("requests_deferred", "gauge", "Number of requests deferred", waiting),
            ("n_busy_slots_per_decode", "gauge", "Average number of busy slots per llama_decode() call",
             c.step_streams / c.steps if c.steps else 0.0),
        ]  # fmt: skip
        return exposition([(f"llamacpp:{n}", kind, words, [({}, _rounded(value))]) for n, kind, words, value in rows])


def _rounded(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value:.6g}"
