"""SGLang's manners, as in captures of 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flatout.rig.dialect import Answer, Errors, Metric, Shape, UvicornDialect, dump, exposition
from flatout.rig.http import Reply, Request
from flatout.rig.request import Ask, Refusal, decode_body


class SglangShape(Shape):
    head_with_token = True
    finish_on_text = True

    def make_id(self, rid: str) -> str:
        return rid

    def choice(self, i: int, kind: str, finish: str | None, ids: list[int] | None) -> tuple[bytes, bytes]:
        end = b'"logprobs":null,"finish_reason":%b,"matched_stop":null' % dump(finish)
        if self.chat:
            before, after = self.delta(kind)
            lead = b"" if kind == "reasoning" else b'"reasoning_content":null,'
            return b'{"index":%d,"delta":{%b%b' % (i, lead, before), b"%b},%b}" % (after, end)
        tokens = b""
        if ids is not None:
            tokens = b',"token_ids":' + dump(ids)
            if self.job.done == len(ids):
                tokens += b',"prompt_token_ids":' + dump(self.job.prompt.ids)
        return b'{"index":%d,"text":"' % i, b'",%b%b}' % (end, tokens)

    def role_choice(self, i: int) -> bytes:
        delta = b'{"reasoning_content":null,"role":"assistant","content":""}'
        return b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null,"matched_stop":null}' % (i, delta)

    def finish_choice(self, i: int, finish: str) -> bytes:
        end = b'"logprobs":null,"finish_reason":%b,"matched_stop":null' % dump(finish)
        body = b'"delta":{"reasoning_content":null}' if self.chat else b'"text":""'
        return b'{"index":%d,%b,%b}' % (i, body, end)

    def live_usage(self) -> bytes:
        if self.ask.continuous:
            return super().live_usage()
        return b"" if self.chat else b',"usage":null'

    def usage(self, *, final: bool) -> bytes:
        prompt, done = self.job.prompt.tokens, self.completion_tokens
        shows = self.config.reports_cached and (final or self.chat)
        out: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + done,
            "completion_tokens": done,
            "prompt_tokens_details": {"cached_tokens": self.job.record.cached_tokens} if shows else None,
            "reasoning_tokens": self.reasoning_tokens,
        }
        if self.chat or not final:
            out["completion_tokens_details"] = None
        return dump(out)

    def whole(self, texts: list[bytes], finish: str) -> bytes:
        choices = []
        end = b'"logprobs":null,"finish_reason":%b,"matched_stop":null' % dump(finish)
        for i, text in enumerate(texts):
            content = b'"message":{"role":"assistant","content":"%b","reasoning_content":null}' % text
            choices.append(b'{"index":%d,%b,%b}' % (i, content if self.chat else b'"text":"%b"' % text, end))
        versions = [{"version": "default", "start": 0, "end": self.job.done}]
        usage = b"null" if self.config.usage == "none" else self.usage(final=True)
        if not self.chat and usage != b"null":
            usage = usage[:-1] + b',"completion_tokens_details":null}'
        more = dump({"weight_version": "default", "weight_versions": versions})
        return b'%b[%b],"usage":%b,"metadata":%b}' % (self.whole_part(self.before), b",".join(choices), usage, more)

    def error_event(self) -> bytes:
        message = "An unexpected error occurred in the scheduler."
        error = {"object": "error", "message": message, "type": "InternalServerError", "param": None, "code": 500}
        return dump({"error": error})


class Sglang(UvicornDialect):
    shape = SglangShape
    public = frozenset({"/health", "/health_generate", "/metrics"})
    has_metrics = True

    errors: ClassVar[Errors] = {
        "model": (404, "NotFoundError", "The model `{model}` does not exist."),
        "loading": (503, "ServiceUnavailable", "The server is starting."),
        "rate": (429, "TooManyRequests", "The request queue is full."),
        "prompt_too_long": (
            400, "BadRequestError",
            "The input ({prompt} tokens) is longer than the model's context length ({limit} tokens).",
        ),
        **dict.fromkeys(("total_too_long", "no_room"), (
            400, "BadRequestError",
            "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total "
            "of {total} tokens: {prompt} tokens from the input messages and {output} tokens for the completion. Please "
            "reduce the number of tokens in the input messages or the completion to fit within the limit.",
        )),
        "chat_ids": (
            400, "BadRequest",
            "return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when "
            "using return_token_ids=true.",
        ),
        "max_tokens": (400, "BadRequestError", "max_new_tokens must be at least 0, got {value}."),
        "bad_json": (
            400, "Bad Request", "1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body', {at})}}",
        ),
        "fields": (400, "Bad Request", "Extra inputs are not permitted: {quoted}"),
        "other": (400, "Bad Request", "Field required: {what}"),
    }  # fmt: skip

    def refuses(self, ask: Ask) -> Refusal | None:
        return Refusal("chat_ids") if ask.token_ids and ask.stream and ask.api == "chat" else None

    def error_body(self, kind: str, facts: Mapping[str, Any], status: int, words: list[str | None]) -> Any:
        return {"object": "error", "message": words[1], "type": words[0], "param": None, "code": status}

    def models(self) -> Any:
        c = self.config
        data = {
            "id": c.model, "object": "model", "created": self.started_s, "owned_by": "sglang", "root": c.model,
            "parent": None, "max_model_len": c.model_len,
        }  # fmt: skip
        return {"object": "list", "data": [data]}

    def _room(self) -> int:
        return self.config.kv_tokens or 1_048_576

    def _command(self) -> str:
        """As the real one: with the key in it."""
        key = f" --api-key {self.config.api_key}" if self.config.api_key else ""
        return f"--model-path models/{self.config.model} --served-model-name {self.config.model} --enable-metrics{key}"

    def _server_info(self) -> dict[str, Any]:
        c = self.config
        most = c.max_running or 4096
        return {
            "model_path": f"models/{c.model}", "tokenizer_path": f"models/{c.model}", "served_model_name": c.model,
            "context_length": c.model_len, "dtype": "auto", "quantization": None,
            "kv_cache_dtype": "auto", "revision": None,
            "max_running_requests": c.max_running, "max_total_tokens": c.kv_tokens, "page_size": c.block_tokens,
            "disable_radix_cache": not c.cache, "tp_size": 1, "dp_size": 1, "stream_interval": c.tokens_per_event,
            "speculative_algorithm": "EAGLE" if c.spec_accept_length else None, "speculative_draft_model_path": None,
            "speculative_num_draft_tokens": c.spec_draft_tokens + 1 if c.spec_accept_length else None,
            "launch_command": self._command(), "status": "ready", "max_total_num_tokens": self._room(),
            "max_req_input_len": (c.model_len or self._room()) - 6,
            "internal_states": [{
                "world_size": 1, "effective_max_running_requests_per_dp": most, "last_gen_throughput": 0.0,
                "memory_usage": {"weight": 0.0, "kvcache": 0.0, "token_capacity": self._room()},
            }],
            "version": c.engine_version,
        }  # fmt: skip

    def _loads(self) -> dict[str, Any]:
        running, waiting = self.host.gauges()
        used = self.host.engine.kv_used()
        load = {
            "dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "num_used_tokens": used,
            "num_total_tokens": used, "max_total_num_tokens": self._room(),
            "max_running_requests": self.config.max_running or 4096, "token_usage": used / self._room(),
            "gen_throughput": 0.0, "cache_hit_rate": 0.0,
        }  # fmt: skip
        return {"version": self.config.engine_version, "accelerator": None, "num_accelerators": 1, "loads": [load]}

    def get(self, request: Request, reply: Answer) -> bool:
        path = request.path
        if path in ("/health", "/health_generate"):
            self.host.probe(lambda: reply(Reply(200, b"", "")), 1.0)
        elif path == "/ping":
            reply(Reply(200, b"", ""))
        elif path == "/":
            reply(Reply(200, b'"SGLang is running"'))
        elif path in ("/get_server_info", "/server_info"):
            reply(self.json(self._server_info()))
        elif path in ("/get_model_info", "/model_info"):
            facts = {"model_path": f"models/{self.config.model}", "is_generation": True, "weight_version": "default"}
            reply(self.json({**facts, "served_model_name": self.config.model}))
        elif path == "/v1/loads":
            reply(self.json(self._loads()))
        else:
            return False
        return True

    def post(self, request: Request, reply: Answer) -> bool:
        engine = self.host.engine
        if request.path == "/tokenize":
            ids = self.tokenize(request, "prompt")
            reply(self.json({"tokens": ids, "count": len(ids), "max_model_len": self.config.model_len}))
        elif request.path == "/flush_cache":
            if engine.jobs:
                reply(Reply(400, b"Flush cache failed: requests are pending.\n", "text/plain; charset=utf-8"))
            else:
                engine.cache.clear()
                reply(Reply(200, b"Cache flushed.\n", "text/plain; charset=utf-8"))
        elif request.path == "/abort_request":
            body = decode_body(request.body)
            everything, rid = bool(body.get("abort_all")), str(body.get("rid") or "")
            for job in [job for job in engine.jobs.values() if everything or (rid and job.record.rid == rid)]:
                engine.abort(job)
            reply(Reply(200, b"", ""))
        else:
            return False
        return True

    def metrics_text(self) -> str:
        running, waiting = self.host.gauges()
        engine, c, factor = self.host.engine, self.host.engine.counters, self.config.counter_factor
        common = {"engine_type": "unified", "model_name": self.config.model}
        base = {**common, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        used, room = engine.kv_used(), self._room()
        length = self.config.spec_accept_length
        rate = (c.accepted / c.draft_tokens) if c.draft_tokens else 0.0

        def gauge(name: str, value: float) -> Metric:
            return f"sglang:{name}", "gauge", name.replace("_", " "), [(base, float(value))]

        def by_streaming(name: str, values: dict[bool, int], by: float) -> None:
            samples = [({**common, "is_streaming": str(k).lower()}, values[k] * by) for k in (False, True)]
            rows.append((f"sglang:{name}", "counter", name.replace("_", " "), samples))

        rows: list[Metric] = [
            gauge("max_total_num_tokens", room),
            gauge("page_size", self.config.block_tokens),
            gauge("context_len", self.config.model_len or room),
            gauge("num_running_reqs", running),
            gauge("num_queue_reqs", waiting),
            gauge("num_used_tokens", used),
            gauge("token_usage", used / room),
            gauge("cache_hit_rate", c.cached_live / c.prompt_live if c.prompt_live else 0.0),
            gauge("spec_accept_length", (1 + c.accepted / c.drafts) if length and c.drafts else 0.0),
            gauge("spec_accept_rate", rate),
            gauge("spec_num_draft_tokens", self.config.spec_draft_tokens + 1 if length else 0.0),
            gauge("num_retracted_reqs", 0.0),
        ]
        by_streaming("prompt_tokens_total", c.prompt, 1.0)
        by_streaming("generation_tokens_total", c.generated, factor)
        by_streaming("num_requests_total", c.requests, 1.0)
        cached = [({**common, "cache_source": "device"}, float(c.cached_live))]
        rows.append(("sglang:cached_tokens_total", "counter", "Number of cached prompt tokens.", cached))
        aborted = [(common, float(c.aborted))]
        rows.append(("sglang:num_aborted_requests_total", "counter", "Number of requests aborted.", aborted))
        modes = {
            "prefill_compute": float(c.prompt_live - c.cached_live),
            "decode": c.realtime_decode * factor,
            "prefill_cache": float(c.cached_live),
        }
        live = [({**base, "mode": mode}, value) for mode, value in modes.items()]
        rows.append(("sglang:realtime_tokens_total", "counter", "Total number of tokens processed.", live))
        return exposition(rows)
