"""A generation request, read and checked: what the client asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import msgspec

from flatout.rig.config import RigConfig
from flatout.rig.tokens import pieces_in_slices

Api = Literal["chat", "completions"]
Body = dict[str, Any]
Parts = Sequence[str | Sequence[int]]


class Refusal(Exception):
    """The request is answered with an error; `kind` names it to the dialect, `facts` fill its words in."""

    def __init__(self, kind: str, **facts: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.facts = facts


@dataclass(slots=True)
class Ask:
    """`prompts` has one entry a prompt: strings to tokenise, or token ids."""

    api: Api
    model: str
    stream: bool
    prompts: list[Parts]
    max_tokens: int | None
    n: int = 1
    include_usage: bool = False
    continuous: bool = False
    token_ids: bool = False
    timings: bool = False
    rid: str = ""
    fields: frozenset[str] = field(default_factory=frozenset)

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)


def decode_body(raw: bytes) -> Body:
    """Raises Refusal("bad_json")."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Refusal("bad_json", at=len(raw), why=str(error)) from error
    if not isinstance(body, dict):
        raise Refusal("bad_json", at=0, why="the body must be a JSON object")
    return body


def read_ask(api: Api, raw: bytes, config: RigConfig) -> Ask:
    """Raises Refusal for what the engine would refuse before it counts tokens."""
    body = decode_body(raw)
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    fields = frozenset(body) | {f"stream_options.{name}" for name in options}
    model = str(body.get("model") or config.model)
    if config.checks_model and model != config.model:
        raise Refusal("model", model=model)
    refused = [name for name in config.refuse_fields if name in fields]
    if refused:
        raise Refusal("fields", fields=refused)
    max_tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    if max_tokens is not None and (not isinstance(max_tokens, int) or not 1 <= max_tokens < 2**31):
        raise Refusal("max_tokens", value=max_tokens)
    n = body.get("n") or 1
    if not isinstance(n, int):
        raise Refusal("missing", name="n")
    prompts = [_chat_parts(body, config)] if api == "chat" else _completion_prompts(body)
    return Ask(
        api=api,
        model=model,
        stream=bool(body.get("stream", False)),
        prompts=prompts,
        max_tokens=max_tokens,
        n=min(128, max(1, n)),
        include_usage=bool(options.get("include_usage")),
        continuous=bool(options.get("continuous_usage_stats")) and bool(options.get("include_usage")),
        token_ids=bool(body.get("return_token_ids")),
        timings=bool(body.get("timings_per_token")),
        rid=str(body.get("rid") or body.get("request_id") or ""),
        fields=fields,
    )


def chat_parts(messages: Sequence[Any], config: RigConfig) -> Parts:
    """The texts of the messages with the template's special tokens around them (as ids below any word's)."""
    head = list(range(1, 1 + config.template_head_tokens))
    tail = list(range(100, 100 + config.template_tail_tokens))
    parts: list[str | Sequence[int]] = [head]
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(str(content or ""))
        if i + 1 < len(messages):
            parts.append(tail)
    parts.append(tail)
    return parts


def _chat_parts(body: Body, config: RigConfig) -> Parts:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("missing", name="messages")
    return chat_parts(messages, config)


def _completion_prompts(body: Body) -> list[Parts]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [[prompt]]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return [[prompt]]
        if all(isinstance(item, str) for item in prompt):
            return [[item] for item in prompt]
        if all(isinstance(item, list) and all(isinstance(i, int) for i in item) for item in prompt):
            return [[item] for item in prompt]
    raise Refusal("missing", name="prompt")


def slices(parts: Parts) -> Iterator[Sequence[str] | Sequence[int]]:
    """The tokens of a prompt, a slice of work at a time."""
    return chain.from_iterable(pieces_in_slices(part) if isinstance(part, str) else _ids(part) for part in parts)


def _ids(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[at : at + 4096] for at in range(0, len(ids), 4096))


def key_of(parts: Parts) -> tuple[int, ...]:
    """The same for the same prompt; a long text costs a fraction of a millisecond."""
    return tuple(hash(part) if isinstance(part, str) else hash(tuple(part)) for part in parts)
