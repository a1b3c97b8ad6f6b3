"""vLLM's manners, as in captures of 0.32."""

from __future__ import annotations

from typing import Any

from flatout.rig.ask import decode_body
from flatout.rig.dialect import Answer, Dialect, Reply, exposition
from flatout.rig.dialect_openai import thought_tokens
from flatout.rig.http import Request
from flatout.rig.shape import Headers, Shape, dump


class VllmShape(Shape):
    finish_on_text = True
    chat_finish_on_text = True
    reasoning_name = "reasoning"

    def make_id(self, rid: str) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{rid}"

    def envelope(self) -> tuple[bytes, bytes]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = dump({"id": self.id, "object": kind, "created": self.created, "model": self.ask.model})
        return head[:-1] + b',"choices":', b""

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
        if final and self.config.reports_cached:
            out["prompt_tokens_details"] = {"cached_tokens": self.job.record.cached_tokens}
        thought = thought_tokens(self)
        if thought:
            out["completion_tokens_details"] = {"reasoning_tokens": thought}
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
                said = b'"message":{"role":"assistant","content":"%b",%b' % (text, rest)
                more = b'"routed_experts":null'
            else:
                said = b'"text":"%b"' % text
                more = b'"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null'
            choices.append(b'{"index":%d,%b,%b%b}' % (i, said, end, more))
        before = self.before.replace(b"chat.completion.chunk", b"chat.completion")
        usage = b"null" if self.config.usage == "none" else self.usage(final=True)
        tail = b',"service_tier":null,"system_fingerprint":%b,"usage":%b' % (dump(self._fingerprint()), usage)
        tail += b',"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null'
        if self.chat:
            tail += b',"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null'
        return b"%b[%b]%b}" % (before, b",".join(choices), tail)

    def error_event(self) -> bytes:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        return dump({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})


class Vllm(Dialect):
    shape = VllmShape
    prefix_only = "/v1/"
    has_metrics = True

    def json_headers(self) -> Headers:
        return [("server", "uvicorn"), ("content-type", "application/json"), ("vary", "Origin")]

    def stream_headers(self) -> Headers:
        return [("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8"), ("vary", "Origin")]

    def error(self, kind: str, **facts: Any) -> Reply:
        if kind == "auth":
            return Reply(401, b'{"error":"Unauthorized"}')
        if kind == "not_found":
            return Reply(404, b'{"detail":"Not Found"}')
        status, what, param, message = _words(kind, facts, self.config.model)
        body = {"error": {"message": message, "type": what, "param": param, "code": status}}
        return Reply(status, dump(body))

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
            reply(
                self.json(
                    {"count": len(ids), "max_model_len": self.config.model_len, "tokens": ids, "token_strs": None}
                )
            )
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

        def one(
            name: str, kind: str, words: str, value: float
        ) -> tuple[str, str, str, list[tuple[dict[str, str], float]]]:
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


def _words(kind: str, facts: dict[str, Any], model: str) -> tuple[int, str, str | None, str]:
    if kind == "model":
        return 404, "NotFoundError", "model", f"The model `{facts['model']}` does not exist. Valid aliases: {model}."
    if kind == "loading":
        return 503, "ServiceUnavailableError", None, "The engine is not ready."
    if kind == "rate":
        return 429, "TooManyRequestsError", None, "Too many requests."
    if kind == "prompt_too_long":
        limit = facts["limit"]
        text = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1}"
            " input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            f"input prompt. (parameter=input_tokens, value={limit + 1})"
        )
        return 400, "BadRequestError", "input_tokens", text
    if kind in ("total_too_long", "no_room"):
        limit, output, prompt = facts["limit"], facts["output"], facts["prompt"]
        if output > limit:
            text = (
                f"max_tokens={output} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
                f" (parameter=max_tokens, value={output})"
            )
            return 400, "BadRequestError", "max_tokens", text
        text = (
            f"This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and "
            f"your prompt contains {prompt} input tokens, for a total of {prompt + output} tokens. Please reduce the "
            f"length of the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={prompt})"
        )
        return 400, "BadRequestError", "input_tokens", text
    if kind == "max_tokens":
        value = facts["value"]
        text = f"max_tokens must be at least 1, got {value}. (parameter=max_tokens, value={value})"
        return 400, "BadRequestError", "max_tokens", text
    if kind == "bad_json":
        where = f"'type': 'json_invalid', 'loc': 'body.{facts['at']}', 'msg': 'JSON decode error'"
        text = f"1 validation error:\n  {{{where}}}"
        return 400, "Bad Request", f"body.{facts['at']}", text
    if kind == "fields":
        names = ", ".join(f"'{name}'" for name in facts["fields"])
        return 400, "BadRequestError", facts["fields"][0], f"Extra inputs are not permitted: {names}"
    return 400, "BadRequestError", facts.get("name"), f"Field required: {facts.get('name') or facts.get('why')}"
