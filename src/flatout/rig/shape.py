"""How an answer looks, event by event. Each dialect fills in the pieces; the frame is common.

An event is `before` + choices + `after` + extras + `}`. The parts around a token's text are made once a request, so
that an event costs three joined byte strings.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from flatout.rig.ask import Ask
from flatout.rig.config import RigConfig
from flatout.rig.job import Job

CONTENT, REASONING, TOOL = "content", "reasoning", "tool"

Headers = list[tuple[str, str]]


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
    @abstractmethod
    def make_id(self, rid: str) -> str:
        """The answer's id for the request's."""

    @abstractmethod
    def envelope(self) -> tuple[bytes, bytes]:
        """What stands before and after the choices; the closing brace is not in it."""

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
