"""A plain OpenAI-compatible server: no metrics, no limits told."""

from __future__ import annotations

from typing import Any

from flatout.rig.dialect import Dialect, Reply
from flatout.rig.shape import Headers, Shape, dump


class OpenAIShape(Shape):
    def make_id(self, rid: str) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{rid}"

    def envelope(self) -> tuple[bytes, bytes]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        head = dump({"id": self.id, "object": kind, "created": self.created, "model": self.ask.model})
        return head[:-1] + b',"system_fingerprint":"fp_rig","choices":', b""

    def choice(self, i: int, kind: str, finish: str | None, ids: list[int] | None) -> tuple[bytes, bytes]:
        end = dump(finish)
        if self.chat:
            before, after = self.delta(kind)
            return b'{"index":%d,"delta":{%b' % (i, before), b'%b},"logprobs":null,"finish_reason":%b}' % (after, end)
        return b'{"index":%d,"text":"' % i, b'","logprobs":null,"finish_reason":%b}' % end

    def role_choice(self, i: int) -> bytes:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}' % (i, delta)

    def finish_choice(self, i: int, finish: str) -> bytes:
        body = b'"delta":{}' if self.chat else b'"text":""'
        return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (i, body, dump(finish))

    def live_usage(self) -> bytes:
        if self.ask.continuous or not self.ask.include_usage:
            return super().live_usage()
        return b',"usage":null'

    def usage(self, *, final: bool) -> bytes:
        prompt, done = self.job.prompt.tokens, self.completion_tokens
        out: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done}
        if self.config.reports_cached:
            out["prompt_tokens_details"] = {"cached_tokens": self.job.record.cached_tokens}
        thought = thought_tokens(self)
        if thought:
            out["completion_tokens_details"] = {"reasoning_tokens": thought}
        return dump(out)

    def whole(self, texts: list[bytes], finish: str) -> bytes:
        choices = []
        for i, text in enumerate(texts):
            if self.chat:
                said = b'"message":{"role":"assistant","content":"%b","refusal":null}' % text
            else:
                said = b'"text":"%b"' % text
            choices.append(b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (i, said, dump(finish)))
        before = self.before.replace(b"chat.completion.chunk", b"chat.completion")
        usage = b"" if self.config.usage == "none" else b',"usage":' + self.usage(final=True)
        return b"%b[%b]%b}" % (before, b",".join(choices), usage)

    def error_event(self) -> bytes:
        message = "The server had an error while processing your request."
        return dump({"error": {"message": message, "type": "server_error", "param": None, "code": None}})


def thought_tokens(shape: Shape) -> int:
    """Reasoning in the tokens so far, streamed or hidden."""
    limit = shape.config.hidden_tokens + (shape.config.reasoning_tokens if shape.chat else 0)
    return min(shape.job.done, limit) * shape.job.choices


class OpenAI(Dialect):
    shape = OpenAIShape

    def json_headers(self) -> Headers:
        return [("Content-Type", "application/json")]

    def stream_headers(self) -> Headers:
        return [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]

    def error(self, kind: str, **facts: Any) -> Reply:
        status, message, code = _words(kind, facts)
        what = "invalid_request_error" if status < 500 else "server_error"
        body = {"error": {"message": message, "type": what, "param": None, "code": code}}
        return Reply(status, dump(body))

    def models(self) -> Any:
        data = {"id": self.config.model, "object": "model", "created": self.started_s, "owned_by": "rig"}
        return {"object": "list", "data": [data]}


def _words(kind: str, facts: dict[str, Any]) -> tuple[int, str, str | None]:
    if kind == "auth":
        return 401, "Incorrect API key provided.", "invalid_api_key"
    if kind == "not_found":
        return 404, "Unknown request URL.", "unknown_url"
    if kind == "model":
        return 404, f"The model `{facts['model']}` does not exist or you do not have access to it.", "model_not_found"
    if kind == "rate":
        return 429, "Rate limit reached for requests. Please try again later.", "rate_limit_exceeded"
    if kind == "loading":
        return 503, "The model is loading.", "loading"
    if kind == "fields":
        return 400, f"Unrecognized request argument supplied: {', '.join(facts['fields'])}", None
    if kind in ("prompt_too_long", "total_too_long", "no_room"):
        limit, asked = facts["limit"], facts["prompt"] + facts["output"]
        text = (
            f"This model's maximum context length is {limit} tokens. However, you requested {asked} tokens "
            f"({facts['prompt']} in the prompt; {facts['output']} for the completion)."
        )
        return 400, text, "context_length_exceeded"
    if kind == "bad_json":
        return 400, "We could not parse the JSON body of your request.", None
    if kind == "max_tokens":
        return (
            400,
            f"Invalid 'max_tokens': integer below minimum value. Got {facts['value']}.",
            "integer_below_min_value",
        )
    if kind == "missing":
        return 400, f"Missing required parameter: '{facts['name']}'.", "missing_required_parameter"
    return 400, f"Bad request: {facts.get('why', kind)}", None
