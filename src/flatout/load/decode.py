"""One response's events → what it carried, when. Pure: data and stamps in, integers out."""

from __future__ import annotations

import json
from array import array
from typing import Final

from flatout.load.samples import ANSWER, ARRIVAL_COLUMNS, IDS_ONLY, REASONING, TOOL
from flatout.protocol import (
    DONE,
    KEPT_CHARS,
    Event,
    Splitter,
    Usage,
    error_words,
    read_event,
    read_usual,
    shorten,
    single_events,
)  # fmt: skip

HEAD_BYTES: Final = 8192
_MAX: Final = 2**31 - 1
_FINISH_CHARS: Final = 40  # the longest that any server is known to send has half of that

_ANSWER: Final = array("b", [ANSWER])
_THOUGHT: Final = array("b", [REASONING])

TRUNCATED: Final = "the answer ended without a finish reason or [DONE]: the stream was cut short"


class Decoder:
    """The events of one response, decoded in the order they came; the columns are those of `Samples`.

    `error` holds the first thing that makes the answer useless, in the server's words where it has any. Usage is taken
    from any event, the last value of each field wins.
    """

    __slots__ = (
        "_seen_running", "_splitter", "cached", "choices", "completion", "done", "error", "events", "finish",
        "first_answer_ns", "first_token_ns", "head", "id_tokens", "kind", "prompt", "reasoning", "running", "t_ns",
        "text_bytes", "text_len", "texts",
    )  # fmt: skip

    def __init__(self, *, keep_text: bool) -> None:
        self._splitter = Splitter()
        self._seen_running = -1
        self.t_ns = array("q")
        self.running = array("i")
        self.id_tokens = array("i")
        self.text_len = array("i")
        self.kind = array("b")
        self.texts: list[str] | None = [] if keep_text else None
        self.text_bytes = 0
        self.first_token_ns = self.first_answer_ns = -1
        self.prompt = self.cached = self.completion = self.reasoning = -1
        self.choices = 0
        self.finish: str | None = None
        self.done = False
        self.error: str | None = None
        self.events = 0
        self.head = b""  # of a body in which no event has been seen, to say what it was

    def feed(self, chunk: bytes, t_ns: int) -> None:
        """Bytes of the body that were read at `t_ns`. Never raises; see `error`."""
        if not self.events and len(self.head) < HEAD_BYTES:
            self.head += chunk[:HEAD_BYTES]
        try:
            for data in self._splitter.feed(chunk):
                self._take(data, t_ns)
        except ValueError as error:
            self._fail(str(error))
            self._splitter = Splitter()  # whatever it holds is of no use any more

    def feed_usual(self, chunks: list[bytes], t_ns: array[int]) -> int:
        """Takes chunks that are a usual event each, chunk i read at `t_ns[i]`, up to the first that is not; returns how
        many. The same as `feed` for each of them, at a third of its cost."""
        if self.first_token_ns < 0 or not self._splitter.clean:
            return 0
        usual = read_usual(single_events(chunks))
        texts, running, taken = usual.texts, usual.running, len(usual.texts)
        if not taken:
            return 0
        whole = "".join(texts)
        lengths = map(len, texts) if whole.isascii() else (len(t.encode("utf-8", "surrogatepass")) for t in texts)
        self.t_ns.extend(t_ns[:taken])
        self.running.extend(running)
        self.id_tokens.extend(usual.ids)
        self.text_len.extend(lengths)
        self.kind.extend((_THOUGHT if usual.reasoning else _ANSWER) * taken)
        if self.first_answer_ns < 0 and not usual.reasoning:
            self.first_answer_ns = t_ns[0]
        self.events += taken
        self.text_bytes += sum(self.text_len[-taken:])
        if self.texts is not None:
            self.texts.append(whole)
        self.choices = max(self.choices, 1)
        self.prompt, self.cached = _count(usual.prompt, self.prompt), _count(usual.cached, self.cached)
        self.reasoning = _count(usual.reasoning_tokens, self.reasoning)
        last = running[-1] if running[-1] >= 0 else next((n for n in reversed(running) if n >= 0), -1)
        if last >= 0:
            self.completion = self._seen_running = last
        return taken

    def finish_body(self, t_ns: int) -> None:
        """The body is over: an event that lacks its blank line counts, with the last read's stamp."""
        try:
            for data in self._splitter.finish():
                self._take(data, t_ns)
        except ValueError as error:
            self._fail(str(error))

    def _fail(self, words: str) -> None:
        if self.error is None:
            self.error = words

    def _take(self, data: bytes, t_ns: int) -> None:
        self.events += 1
        if data[:6] == DONE and data.strip() == DONE:
            self.done = True
            return
        event = read_event(data)
        if event.error is not None:
            self._fail(f"the server reported an error in the stream: {event.error}")
            return
        if event.usage is not None:
            self._take_usage(event.usage)
        if event.finish is not None:
            self.finish = shorten(event.finish.encode("utf-8", "replace"), _FINISH_CHARS)
        if event.choices > self.choices:
            self.choices = min(event.choices, _MAX)
        running = event.running if 0 <= event.running <= _MAX else -1
        text, thought, tool = event.text, event.reasoning, event.tool
        if text or thought or tool or event.ids > 0:
            self._arrive(event, t_ns, running)
        elif event.choices and -1 < self._seen_running < running:
            self._append(t_ns, running, event.ids, 0, 0)
        if running >= 0:
            self._seen_running = running

    def _arrive(self, event: Event, t_ns: int, running: int) -> None:
        text = event.text + event.reasoning + event.tool
        kind = (ANSWER if event.text else 0) | (REASONING if event.reasoning else 0) | (TOOL if event.tool else 0)
        length = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self.text_bytes += length
        if self.first_token_ns < 0:
            self.first_token_ns = t_ns
        if self.first_answer_ns < 0 and kind & (ANSWER | TOOL):
            self.first_answer_ns = t_ns
        if self.texts is not None and text:
            self.texts.append(text)
        self._append(t_ns, running, event.ids, length, kind or IDS_ONLY)

    def _append(self, t_ns: int, running: int, ids: int, length: int, kind: int) -> None:
        self.t_ns.append(t_ns)
        self.running.append(running)
        self.id_tokens.append(ids)
        self.text_len.append(length)
        self.kind.append(kind)

    def _take_usage(self, usage: Usage) -> None:
        self.prompt = _count(usage.prompt, self.prompt)
        self.cached = _count(usage.cached, self.cached)
        self.completion = _count(usage.completion, self.completion)
        self.reasoning = _count(usage.reasoning, self.reasoning)

    def row(self) -> dict[str, int]:
        """The columns of `Samples` that the events of this answer fill, but for the index of its finish reason."""
        return {
            "first_token_ns": self.first_token_ns,
            "first_answer_ns": self.first_answer_ns,
            "last_token_ns": self.t_ns[-1] if self.t_ns else -1,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.completion,
            "reasoning_tokens": self.reasoning,
            "text_bytes": self.text_bytes,
            "choices": self.choices,
        }

    def running_counts(self) -> array[int]:
        """Running counts per arrival, all -1 where the first arrival has none: a usage that comes with the last text
        alone is the total, and no running count."""
        if self.running and self.running[0] < 0:
            return array("i", [-1]) * len(self.running)
        return self.running

    def arrivals(self) -> dict[str, array[int]]:
        """The arrivals' columns of `Samples`."""
        columns = self.t_ns, self.running_counts(), self.id_tokens, self.text_len, self.kind
        return dict(zip(ARRIVAL_COLUMNS, columns, strict=True))

    def verdict(self, content_type: str, trouble: str | None) -> str | None:
        """Why the answer does not count, None if it does. `trouble`: what went wrong below HTTP's end, if anything; an
        answer that had its finish reason or [DONE] by then is whole."""
        if self.error is not None:
            return self.error
        if self.finish is not None or self.done:
            return None
        if trouble is not None:
            return f"{trouble}: neither a finish reason nor [DONE] had come" if self.events else trouble
        if self.events:
            return TRUNCATED
        return not_a_stream(self.head, content_type)


def _count(value: int | None, before: int) -> int:
    return value if value is not None and 0 <= value <= _MAX else before


def not_a_stream(head: bytes, content_type: str) -> str:
    """A sentence for a 200 answer without a single event. `head`: the beginning of its body.

    It holds the server's words, up to KEPT_CHARS of them: to be redacted, and only then cut, before it is shown.
    """
    text = head.strip()
    if not text:
        return "the server answered HTTP 200 with an empty body, not with a stream"
    if text[:1] == b"<" or "html" in content_type:
        return f"the server answered with HTML, not with a stream: {shorten(text, KEPT_CHARS)}"
    if text[:1] in b"{[":
        if b'"choices"' in text:
            return 'the server answered with one JSON object, not with a stream: it ignores "stream": true'
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict) and any(content.get(n) for n in ("error", "detail", "message")):
            return f"the server answered HTTP 200 with an error: {error_words(text)}"
        return f"the server answered with JSON, not with a stream: {shorten(text, KEPT_CHARS)}"
    kind = f" ({shorten(content_type.encode(), 60)})" if content_type else ""
    return f"the server's answer{kind} is no stream of events: {shorten(text, KEPT_CHARS)}"
