"""What a dialect is: how an answer looks event by event (`Shape`), and what else its server answers (`Dialect`).

An event is `before` + choices + `after` + extras + `}`. The parts around a token's text are made once a request, so
that an event costs three joined byte strings.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from flatout.rig.config import RigConfig
from flatout.rig.engine import Engine, Job
from flatout.rig.http import Headers, Reply, Request
from flatout.rig.request import Ask, Refusal, chat_parts, decode_body, slices
from flatout.rig.sockets import Conn
from flatout.rig.tokens import token_id
from flatout.rig.truth import Log

CONTENT, REASONING, TOOL = "content", "reasoning", "tool"


def dump(value: Any) -> bytes:
    """Compact JSON, as engines write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Shape(ABC):
    """One request's answer in one dialect. `created` is a Unix time in s."""

    head_with_token: ClassVar[bool] = False  # the HTTP head leaves with the first token
    role_in_token_chunk: ClassVar[bool] = False  # the role event shares the first token's HTTP chunk
    tail_in_one_chunk: ClassVar[bool] = False  # finish and usage share an HTTP chunk
    finish_extra_each: ClassVar[bool] = False  # every choice's finish event has the extras, not only the last one's
    finish_on_text: ClassVar[bool] = False  # completions: the last text event has the finish reason
    chat_finish_on_text: ClassVar[bool] = False
    reasoning_name: ClassVar[str] = "reasoning_content"
    envelope_extra: ClassVar[bytes] = b""  # after the model's name

    def __init__(self, ask: Ask, config: RigConfig, job: Job, created: int) -> None:
        self.ask, self.config, self.job, self.created = ask, config, job, created
        self.chat = ask.api == "chat"
        self.id = self.make_id(job.record.rid)
        self.before, self.after = self.envelope()
        self._open: dict[tuple[int, str], bytes] = {}
        self._close: dict[tuple[int, str], bytes] = {}
        self.last_text_finishes = (
            (self.chat_finish_on_text if self.chat else self.finish_on_text)
            and config.usage != "with_choices"
            and config.finish_event
        )

    # -- what a dialect says ---------------------------------------------------------------------------------------
    def make_id(self, rid: str) -> str:
        """The answer's id for the request's."""
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{rid}"

    @property
    def object_name(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def envelope(self) -> tuple[bytes, bytes]:
        """What stands before and after the choices; the closing brace is not in it."""
        head = dump({"id": self.id, "object": self.object_name, "created": self.created, "model": self.ask.model})
        return head[:-1] + self.envelope_extra + b',"choices":', b""

    @abstractmethod
    def choice(self, i: int, kind: str, finish: str | None, ids: list[int] | None) -> tuple[bytes, bytes]:
        """What stands before and after the text of one choice with text."""

    @abstractmethod
    def role_choice(self, i: int) -> bytes:
        """chat: the choice of the first event."""

    @abstractmethod
    def finish_choice(self, i: int, finish: str) -> bytes:
        """The choice of an event that only says how it ended."""

    @abstractmethod
    def usage(self, *, final: bool) -> bytes:
        """The usage object after the tokens so far."""

    @abstractmethod
    def whole(self, texts: list[bytes], finish: str) -> bytes:
        """The answer without streaming; texts are JSON-escaped."""

    @abstractmethod
    def error_event(self) -> bytes:
        """The object that breaks a stream off."""

    def live_usage(self) -> bytes:
        """Extras of each text event."""
        return b"," + b'"usage":' + self.usage(final=False) if self.ask.continuous else b""

    def finish_extra(self) -> bytes:
        """Extras of the finish event, where it is an event of its own."""
        return b""

    def usage_extra(self) -> bytes:
        """Extras of the event with the final usage."""
        return b""

    def last_extra(self) -> bytes:
        """Extras of the last text event, where no usage event follows."""
        return b""

    def usage_in_engine_place(self) -> bool:
        """An event of its own with the final usage."""
        return self.ask.include_usage or self.config.force_include_usage

    # -- the frame -------------------------------------------------------------------------------------------------
    @property
    def completion_tokens(self) -> int:
        return self.job.done * self.job.choices + self.config.usage_extra_tokens

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning in the tokens so far, streamed or hidden."""
        limit = self.config.hidden_tokens + (self.config.reasoning_tokens if self.chat else 0)
        return min(self.job.done, limit) * self.job.choices

    def cached_details(self) -> dict[str, Any]:
        """`prompt_tokens_details`, where the server reports them."""
        if not self.config.reports_cached:
            return {}
        return {"prompt_tokens_details": {"cached_tokens": self.job.record.cached_tokens}}

    def whole_part(self, part: bytes) -> bytes:
        """A part of the envelope as it is in an answer without streaming."""
        return part.replace(b"chat.completion.chunk", b"chat.completion")

    def delta(self, kind: str) -> tuple[bytes, bytes]:
        """chat: around the text inside the delta object's braces."""
        if kind == TOOL:
            return b'"tool_calls":[{"index":0,"function":{"arguments":"', b'"}}]'
        name = b"content" if kind == CONTENT else (self.config.reasoning_field or self.reasoning_name).encode()
        return b'"%b":"' % name, b'"'

    def event(self, choices: bytes, extra: bytes = b"") -> bytes:
        return b"%b%b%b%b}" % (self.before, choices, self.after, extra)

    def text(self, i: int, kind: str, text: bytes, ids: list[int] | None, last: str | None = None) -> bytes:
        """An event with text of choice i; `last` is the finish reason if nothing of this choice follows."""
        if last is None and ids is None:
            key = (i, kind)
            if key not in self._open:
                opening, closing = self.choice(i, kind, None, None)
                self._open[key] = b"%b[%b" % (self.before, opening)
                self._close[key] = b"%b]%b" % (closing, self.after)
            return b"%b%b%b%b}" % (self._open[key], text, self._close[key], self.live_usage())
        extra = self.live_usage()
        if last is not None and i + 1 == self.job.choices:
            extra = self._last_text_extra(extra)
        opening, closing = self.choice(i, kind, last if self.last_text_finishes else None, ids)
        return b"%b[%b%b%b]%b%b}" % (self.before, opening, text, closing, self.after, extra)

    def _last_text_extra(self, live: bytes) -> bytes:
        if self.config.usage == "last_text":
            return b',"usage":' + self.usage(final=True)
        if self.config.usage == "engine" and self.last_text_finishes and not self.usage_in_engine_place():
            return live + self.last_extra()
        return live

    def role(self, i: int) -> bytes:
        return self.event(b"[%b]" % self.role_choice(i), self.role_extra())

    def role_extra(self) -> bytes:
        return b""

    def tool_start(self, i: int) -> bytes:
        """chat: the event that opens a tool call."""
        opening, closing = self.choice(i, TOOL, None, None)
        head = b'"tool_calls":[{"index":0,"id":"call_0","type":"function","function":{"name":"look_up","arguments":"'
        return self.event(b"[%b%b]" % (opening.replace(self.delta(TOOL)[0], head), closing))

    def tail(self, finish: str) -> list[bytes]:
        """The events after the last text, usage as the config's `usage` says."""
        out: list[bytes] = []
        mode = self.config.usage
        usage = b',"usage":' + self.usage(final=True)
        if not self.last_text_finishes and self.config.finish_event:
            for i in range(self.job.choices):
                extra = b""
                if i + 1 == self.job.choices or (self.finish_extra_each and mode == "engine"):
                    extra = usage if mode == "with_choices" else self.finish_extra() if mode == "engine" else b""
                out.append(self.event(b"[%b]" % self.finish_choice(i, finish), extra))
        elif mode == "with_choices":
            out.append(self.event(b"[%b]" % self.finish_choice(0, finish), usage))
        if mode == "empty_choices" or (
            mode == "engine" and self.usage_in_engine_place() and not self.usage_with_finish()
        ):
            out.append(self.event(b"[]", usage + self.usage_extra()))
        return out

    def usage_with_finish(self) -> bool:
        """The engine's finish event carries the usage, so that none follows."""
        return False


Answer = Callable[[Reply], None]
Errors = Mapping[str, tuple[Any, ...]]
"""By the kind of a refusal: the status and the texts, which are filled in with its facts."""


class Host(Protocol):
    """What a dialect and an answer may use of the server."""

    config: RigConfig
    engine: Engine
    log: Log

    def now(self) -> int: ...

    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        """Call at that time, or soon if it is past."""

    def json_headers(self) -> Headers: ...

    def stream_headers(self) -> Headers: ...

    def answered(self, conn: Conn, *, keep: bool, reset: bool = False) -> None:
        """The answer is out: next request, or close."""

    def gauges(self) -> tuple[int, int]:
        """Running and waiting, as old as gauge_lag_ms allows."""

    def probe(self, answer: Callable[[], None], seconds: float) -> None:
        """Run a one-token generation that takes so long, then call `answer`."""


class Dialect(ABC):
    """One engine's manners. A new one is made when the config changes."""

    shape: ClassVar[type[Shape]]
    public: ClassVar[frozenset[str]] = frozenset()  # paths that need no key
    prefix_only: ClassVar[str] = ""  # where only paths that begin so need the key
    has_metrics: ClassVar[bool] = False
    metrics_kind: ClassVar[str] = "text/plain; version=1.0.0; charset=utf-8"
    json_headers: ClassVar[Headers]
    stream_headers: ClassVar[Headers]
    errors: ClassVar[Errors]

    def __init__(self, host: Host, started_s: int) -> None:
        self.host, self.config, self.started_s = host, host.config, started_s

    @abstractmethod
    def error_body(self, kind: str, facts: Mapping[str, Any], status: int, words: list[str | None]) -> Any:
        """The JSON of an error, from what `errors` has of it: its status and filled-in texts."""

    def error(self, kind: str, **facts: Any) -> Reply:
        """An error in the engine's own words."""
        names = facts.get("fields", [])
        filled = {
            **facts, "field": names[0] if names else None, "fields": ", ".join(names),
            "quoted": ", ".join(f"'{name}'" for name in names), "own_model": self.config.model,
            "total": facts.get("prompt", 0) + facts.get("output", 0), "over": (facts.get("limit") or 0) + 1,
            "column": facts.get("at", 0) + 1, "what": facts.get("name") or facts.get("why"),
        }  # fmt: skip
        status, *words = self.errors.get(kind, self.errors["other"])
        return self.json(self.error_body(kind, facts, status, [w and w.format_map(filled) for w in words]), status)

    @abstractmethod
    def models(self) -> Any:
        """/v1/models."""

    def refuses(self, ask: Ask) -> Refusal | None:
        """What only this engine refuses."""
        return None

    def ends_early(self) -> bool:
        """Output that does not fit the model's length is cut in silence, not refused."""
        return False

    def needs_key(self, path: str) -> bool:
        if not self.config.api_key or path in self.public:
            return False
        return path.startswith(self.prefix_only)

    def answer(self, request: Request, reply: Answer) -> bool:
        """Answer anything but generation; False if the path is unknown."""
        if request.method == "GET":
            if request.path == "/v1/models":
                reply(self.json(self.models()))
                return True
            if request.path == "/metrics" and self.has_metrics and self.config.metrics:
                reply(Reply(200, self.metrics_text().encode(), self.metrics_kind))
                return True
            return self.get(request, reply)
        if request.method == "POST":
            return self.post(request, reply)
        return False

    def get(self, request: Request, reply: Answer) -> bool:
        return False

    def post(self, request: Request, reply: Answer) -> bool:
        return False

    def metrics_text(self) -> str:
        return ""

    def json(self, value: Any, status: int = 200) -> Reply:
        return Reply(status, dump(value))

    def tokenize(self, request: Request, name: str) -> list[int]:
        """The token ids of the request's text under `name`, or of its chat messages. Raises Refusal."""
        body = decode_body(request.body)
        if isinstance(body.get("messages"), list):
            parts = chat_parts(body["messages"], self.config)
        elif isinstance(body.get(name), str):
            parts = [body[name]]
        else:
            raise Refusal("missing", name=name)
        return [item if isinstance(item, int) else token_id(item) for part in slices(parts) for item in part]


class UvicornDialect(Dialect):
    """What vLLM and SGLang have in common: the same server in front."""

    json_headers: ClassVar[Headers] = [("server", "uvicorn"), ("content-type", "application/json"), ("vary", "Origin")]
    stream_headers: ClassVar[Headers] = [
        ("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8"), ("vary", "Origin"),
    ]  # fmt: skip

    def error(self, kind: str, **facts: Any) -> Reply:
        bodies = {"auth": (401, b'{"error":"Unauthorized"}'), "not_found": (404, b'{"detail":"Not Found"}')}
        return Reply(*bodies[kind]) if kind in bodies else super().error(kind, **facts)


Metric = tuple[str, str, str, Sequence[tuple[dict[str, str], float | str]]]
"""Name, type, help, [(labels, value)]."""


def exposition(rows: list[Metric]) -> str:
    """Prometheus text."""
    out = []
    for name, kind, words, samples in rows:
        out += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            out.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")
    return "\n".join(out) + "\n"
