"""A plain OpenAI-compatible server: no metrics, no limits told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flatout.rig.dialect import Dialect, Errors, Shape, dump
from flatout.rig.http import Headers


class OpenAIShape(Shape):
    envelope_extra = b',"system_fingerprint":"fp_rig"'

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
        out |= self.cached_details()
        if self.reasoning_tokens:
            out["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return dump(out)

    def whole(self, texts: list[bytes], finish: str) -> bytes:
        choices = []
        for i, text in enumerate(texts):
            if self.chat:
                content = b'"message":{"role":"assistant","content":"%b","refusal":null}' % text
            else:
                content = b'"text":"%b"' % text
            choices.append(b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (i, content, dump(finish)))
        usage = b"" if self.config.usage == "none" else b',"usage":' + self.usage(final=True)
        return b"%b[%b]%b}" % (self.whole_part(self.before), b",".join(choices), usage)

    def error_event(self) -> bytes:
        message = "The server had an error while processing your request."
        return dump({"error": {"message": message, "type": "server_error", "param": None, "code": None}})


class OpenAI(Dialect):
    shape = OpenAIShape
    json_headers: ClassVar[Headers] = [("Content-Type", "application/json")]
    stream_headers: ClassVar[Headers] = [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
    ]
    errors: ClassVar[Errors] = {
        "auth": (401, "Incorrect API key provided.", "invalid_api_key"),
        "not_found": (404, "Unknown request URL.", "unknown_url"),
        "model": (
            404, "The model `{model}` does not exist or you do not have access to it.", "model_not_found",
        ),
        "rate": (429, "Rate limit reached for requests. Please try again later.", "rate_limit_exceeded"),
        "loading": (503, "The model is loading.", "loading"),
        "fields": (400, "Unrecognized request argument supplied: {fields}", None),
        **dict.fromkeys(("prompt_too_long", "total_too_long", "no_room"), (
            400,
            "This model's maximum context length is {limit} tokens. However, you requested {total} tokens "
            "({prompt} in the prompt; {output} for the completion).",
            "context_length_exceeded",
        )),
        "bad_json": (400, "We could not parse the JSON body of your request.", None),
        "max_tokens": (
            400, "Invalid 'max_tokens': integer below minimum value. Got {value}.", "integer_below_min_value",
        ),
        "missing": (400, "Missing required parameter: '{name}'.", "missing_required_parameter"),
        "other": (400, "Bad request: {what}", None),
    }  # fmt: skip

    def error_body(self, kind: str, facts: Mapping[str, Any], status: int, words: list[str | None]) -> Any:
        what = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": words[0], "type": what, "param": None, "code": words[1]}}

    def models(self) -> Any:
        data = {"id": self.config.model, "object": "model", "created": self.started_s, "owned_by": "rig"}
        return {"object": "list", "data": [data]}
