"""vLLM's manners, as in captures of 0.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flatout.rig.dialect import Answer, Errors, Metric, Shape, UvicornDialect, dump, exposition
from flatout.rig.http import Reply, Request
from flatout.rig.request import decode_body


class VllmShape(Shape):
    finish_on_text = True
    chat_finish_on_text = True
    reasoning_name = "reasoning"

    def choice(self, i: int, kind: str, finish: str | None, ids: list[int] | None) -> tuple[bytes, bytes]:
        end, tokens = dump(finish), dump(ids)
        if self.chat:
            before, after = self.delta(kind)
            stop = b"" if finish is None else b',"stop_reason":null'
            closing = b'%b},"logprobs":null,"finish_reason":%b%b,"token_ids":%b}' % (after, end, stop, tokens)
            return b'{"index":%d,"delta":{%b' % (i, before), closing
        prompt_ids = b"null"
        if ids is not None and self.job.done == len(ids):
            prompt_ids = dump(self.job.prompt.ids)
        rest = b'"stop_reason":null,"prompt_token_ids":%b,"token_ids":%b}' % (prompt_ids, tokens)
        return b'{"index":%d,"text":"' % i, b'","logprobs":null,"finish_reason":%b,%b' % (end, rest)

    def role_choice(self, i: int) -> bytes:
        return b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % i

    def role_extra(self) -> bytes:
        ids = dump(self.job.prompt.ids if self.ask.token_ids else None)
        usage = b""
        if self.ask.continuous:
            prompt = self.job.prompt.tokens
            zero = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
            usage = b',"usage":' + dump({**zero, "completion_tokens_details": None})
        return usage + b',"prompt_token_ids":%b,"prompt_text":null' % ids

    def finish_choice(self, i: int, finish: str) -> bytes:
        opening, closing = self.choice(i, "content", finish, None)
        return opening + closing

    def usage(self, *, final: bool) -> bytes:
        prompt, done = self.job.prompt.tokens, self.completion_tokens
        out: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + done, "completion_tokens": done}
        if final:
            out |= self.cached_details()
        if self.reasoning_tokens:
            out["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        elif self.chat and not final:
            out["completion_tokens_details"] = None
        return dump(out)

    def _fingerprint(self) -> str:
        return f"vllm-{self.config.engine_version}-00000000"

    def usage_extra(self) -> bytes:
        return b',"system_fingerprint":' + dump(self._fingerprint())

    def last_extra(self) -> bytes:
        return self.usage_extra()

    def whole(self, texts: list[bytes], finish: str) -> bytes:
        choices = []
        end = b'"logprobs":null,"finish_reason":%b,"stop_reason":null,"token_ids":null,' % dump(finish)
        for i, text in enumerate(texts):
            if self.chat:
                rest = b'"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}'
                content = b'"message":{"role":"assistant","content":"%b",%b' % (text, rest)
                more = b'"routed_experts":null'
            else:
                content = b'"text":"%b"' % text
                more = b'"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null'
            choices.append(b'{"index":%d,%b,%b%b}' % (i, content, end, more))
        usage = b"null" if self.config.usage == "none" else self.usage(final=True)
        tail = b',"service_tier":null,"system_fingerprint":%b,"usage":%b' % (dump(self._fingerprint()), usage)
        tail += b',"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null'
        if self.chat:
            tail += b',"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null'
        return b"%b[%b]%b}" % (self.whole_part(self.before), b",".join(choices), tail)

    def error_event(self) -> bytes:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        return dump({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})


class Vllm(UvicornDialect):
    shape = VllmShape
    prefix_only = "/v1/"
    has_metrics = True

    errors: ClassVar[Errors] = {
        "model": (404, "NotFoundError", "model", "The model `{model}` does not exist. Valid aliases: {own_model}."),
        "loading": (503, "ServiceUnavailableError", None, "The engine is not ready."),
        "rate": (429, "TooManyRequestsError", None, "Too many requests."),
        "prompt_too_long": (
            400, "BadRequestError", "input_tokens",
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {over} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt. (parameter=input_tokens, value={over})",
        ),
        "output_too_long": (
            400, "BadRequestError", "max_tokens",
            "max_tokens={output} cannot be greater than max_model_len={limit}. Please request fewer output tokens. "
            "(parameter=max_tokens, value={output})",
        ),
        "total_too_long": (
            400, "BadRequestError", "input_tokens",
            "This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and "
            "your prompt contains {prompt} input tokens, for a total of {total} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt})",
        ),
        "max_tokens": (
            400, "BadRequestError", "max_tokens",
            "max_tokens must be at least 1, got {value}. (parameter=max_tokens, value={value})",
        ),
        "bad_json": (
            400, "Bad Request", "body.{at}",
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error'}}",
        ),
        "fields": (400, "BadRequestError", "{field}", "Extra inputs are not permitted: {quoted}"),
        "missing": (400, "BadRequestError", "{name}", "Field required: {name}"),
        "other": (400, "BadRequestError", None, "Field required: {what}"),
    }  # fmt: skip

    def error(self, kind: str, **facts: Any) -> Reply:
        if kind in ("total_too_long", "no_room"):
            kind = "output_too_long" if facts["output"] > facts["limit"] else "total_too_long"
        return super().error(kind, **facts)

    def error_body(self, kind: str, facts: Mapping[str, Any], status: int, words: list[str | None]) -> Any:
        what, param, message = words
        return {"error": {"message": message, "type": what, "param": param, "code": status}}

    def models(self) -> Any:
        permission = {
            "id": "modelperm-rig", "object": "model_permission", "created": self.started_s,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
            "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        data = {
            "id": self.config.model, "object": "model", "created": self.started_s, "owned_by": "vllm",
            "root": f"models/{self.config.model}", "parent": None, "max_model_len": self.config.model_len,
            "permission": [permission],
        }  # fmt: skip
        return {"object": "list", "data": [data]}

    def get(self, request: Request, reply: Answer) -> bool:
        if request.path in ("/health", "/ping"):
            reply(Reply(200, b"", ""))
        elif request.path == "/version":
            reply(self.json({"version": self.config.engine_version}))
        elif request.path == "/load":
            reply(self.json({"server_load": len(self.host.engine.jobs)}))
        elif request.path == "/server_info" and self.config.dev_mode:
            reply(self.json({"vllm_config": f"model='{self.config.model}', max_seq_len={self.config.model_len}"}))
        else:
            return False
        return True

    def post(self, request: Request, reply: Answer) -> bool:
        engine = self.host.engine
        if request.path == "/tokenize":
            ids = self.tokenize(request, "prompt")
            length = self.config.model_len
            reply(self.json({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None}))
        elif request.path == "/reset_prefix_cache" and self.config.dev_mode:
            engine.cache.clear()
            reply(Reply(200, b"", ""))
        elif request.path == "/abort_requests" and self.config.dev_mode:
            wanted = set(decode_body(request.body).get("request_ids") or ())
            for job in [job for job in engine.jobs.values() if job.record.rid in wanted]:
                engine.abort(job)
            reply(Reply(200, b"", ""))
        else:
            return False
        return True

    def metrics_text(self) -> str:
        running, waiting = self.host.gauges()
        engine, config = self.host.engine, self.config
        c = engine.counters
        base = {"engine": "0", "model_name": config.model}
        room = config.kv_tokens or 524_288
        generated = c.generated_live * config.counter_factor

        def one(name: str, kind: str, words: str, value: float) -> Metric:
            return f"vllm:{name}", kind, words, [(base, float(value))]

        rows = [
            one("num_requests_running", "gauge", "Number of requests in model execution batches.", running),
            one("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting),
            one("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", engine.kv_used() / room),
            one("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", c.prompt_live),
            one("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", c.cached_live),
            one("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", c.preemptions),
            one("prompt_tokens_total", "counter", "Number of prefill tokens processed.", c.prompt_live),
            one("prompt_tokens_cached_total", "counter", "Number of cached prompt tokens.", c.cached_live),
            one("generation_tokens_total", "counter", "Number of generation tokens processed.", generated),
        ]
        finished = [({**base, "finished_reason": why}, float(n)) for why, n in c.finished.items()]
        rows.append(("vllm:request_success_total", "counter", "Count of successfully processed requests.", finished))
        if config.spec_accept_length:
            rows += [
                one("spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts.", c.drafts),
                one("spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens.", c.draft_tokens),
                one("spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens.", c.accepted),
            ]
        info = {
            "engine": "0", "block_size": str(config.block_tokens), "enable_prefix_caching": str(config.cache),
            "num_gpu_blocks": str(room // config.block_tokens), "kv_cache_size_tokens": str(room),
            "kv_cache_max_concurrency": f"{room / (config.model_len or room)}",
        }  # fmt: skip
        rows.append(("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(info, 1.0)]))
        return exposition(rows)
