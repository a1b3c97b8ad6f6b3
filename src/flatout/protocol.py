"""The OpenAI protocol as servers really speak it: request bodies out, stream events in. Pure; bytes and values only.

The load core decodes with this module in its own process, so it imports nothing but the standard library and msgspec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Api = Literal["chat", "completions"]
PATHS: Final[dict[Api, str]] = {"chat": "/chat/completions", "completions": "/completions"}
DONE: Final = b"[DONE]"
KEPT_CHARS: Final = 4_000
"""Characters of a server's own words that are kept until they can be redacted; only then are they cut to be shown: half
a key at a cut would no longer be recognised. See `flatout.engines.redact.tidy`."""

MAX_EVENT_BYTES: Final = 64 << 20
_BOM: Final = b"\xef\xbb\xbf"
_COUNTS: Final = 2**31
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request of a run has in common. `fields`: extra request fields by dotted name
    (`stream_options.continuous_usage_stats`), as probed; `extra_body` is the user's own and wins."""

    api: Api
    model: str
    fields: tuple[tuple[str, object], ...] = ()
    max_tokens_field: str = "max_tokens"
    id_field: str | None = None
    temperature: float | None = None
    extra_body: str = "{}"


def body(
    shape: Shape, prompt: str | Sequence[int], max_tokens: int, *, request_id: str | None = None, stream: bool = True
) -> bytes:
    """The JSON of one request. A chat takes a text only (raises ValueError for token ids); completions takes either.

    `request_id` goes where the engine takes one (`shape.id_field`); the load core overwrites it in place.
    """
    content: dict[str, Any] = {"model": shape.model}
    if shape.api == "chat":
        if not isinstance(prompt, str):
            raise ValueError("a chat request cannot be made from token ids; use --api completions")
        content["messages"] = [{"role": "user", "content": prompt}]
    else:
        content["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    content[shape.max_tokens_field] = max_tokens
    if stream:
        content["stream"] = True
    if shape.temperature is not None:
        content["temperature"] = shape.temperature
    if shape.id_field and request_id:
        content[shape.id_field] = request_id
    for name, value in shape.fields:
        if stream or not name.startswith("stream_options"):
            _put(content, name.split("."), value)
    for name, value in json.loads(shape.extra_body).items():
        content[name] = value
    return json.dumps(content, ensure_ascii=False).encode()


def _put(content: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        content = content.setdefault(name, {})
    content[path[-1]] = value


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    predicted_n: int | None = None
    cache_n: int | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: msgspec.Raw = msgspec.Raw()
    object: str | None = None
    message: msgspec.Raw = msgspec.Raw()


_decode: Final = msgspec.json.Decoder(_Event).decode


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server billed them; None where it does not say. `cached`: prompt tokens from its cache."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Event(msgspec.Struct):
    """One data event. `ids`: token ids in it, -1 if the server sends none. `running`: the request's completion tokens
    so far as told in this event, -1 if untold. `choices`: highest choice index + 1, 0 when there was no choice."""

    text: str = ""
    reasoning: str = ""
    tool: str = ""
    ids: int = -1
    running: int = -1
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None
    choices: int = 0


def read_event(data: bytes) -> Event:
    """One event's data (without `data:` and line ends; not `[DONE]`) as values.

    Raises ValueError with the beginning of the data (up to KEPT_CHARS, to be redacted before it is shown) if it is no
    JSON object. Fields of unexpected types are passed over, never fatal: engines differ, and a new field must not end a
    run. Half a surrogate pair becomes U+FFFD.
    """
    try:
        raw = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            raw = _lenient(data)
        except (RecursionError, OverflowError) as error:
            raise ValueError(f"an event cannot be read: {shorten(data, KEPT_CHARS)}") from error
    event = Event(error=_error(raw))
    for choice in raw.choices or ():
        _take_choice(event, choice)
    event.usage = _usage(raw)
    if raw.timings is not None and raw.timings.predicted_n is not None:
        event.running = raw.timings.predicted_n
    elif event.usage is not None and event.usage.completion is not None:
        event.running = event.usage.completion
    return event


class Usual(msgspec.Struct):
    """Events in a row of the kind that nearly all are: one choice with text, and a count of tokens or none.

    `texts` (all reasoning, or none), `running`, `ids`: of each event, as in `Event`. `prompt`, `cached`,
    `reasoning_tokens`: the last that was told, -1 if none was.
    """

    texts: list[str]
    running: list[int]
    ids: list[int]
    reasoning: bool = False
    prompt: int = -1
    cached: int = -1
    reasoning_tokens: int = -1


def read_usual(events: list[bytes]) -> Usual:
    """What `read_event` finds in each, at a third of its cost, up to the first event that is not of the usual kind.

    That one, be it no JSON at all, is to be read by `read_event`.
    """
    found = Usual([], [], [])
    texts = found.texts
    try:
        for data in events:
            raw = _decode(data)
            choices = raw.choices
            if not choices or len(choices) > 1 or raw.error or raw.object == "error":
                break
            choice = choices[0]
            text, thought, delta, ids = choice.text, None, choice.delta, choice.token_ids
            if delta is not None:
                if delta.refusal or delta.tool_calls or delta.function_call:
                    break
                text, thought = (text or "") + (delta.content or ""), delta.reasoning_content or delta.reasoning
            if thought if text else not thought:  # both, or none
                break
            if choice.finish_reason or choice.index or (texts and found.reasoning != bool(thought)):
                break
            told = _usual_counts(raw, found)
            if told is None:
                break
            found.reasoning = bool(thought)
            found.running.append(told)
            found.ids.append(-1 if ids is None else len(ids))
            texts.append(text or thought or "")
    except (ValueError, RecursionError):
        pass
    return found


def _usual_counts(raw: _Event, found: Usual) -> int | None:
    """The completion tokens so far in an event, -1 if untold; None where its counts are not of the usual kind."""
    usage, timings = raw.usage, raw.timings
    if usage is not None:
        count, prompt, details, thought = (
            usage.completion_tokens, usage.prompt_tokens, usage.prompt_tokens_details, usage.reasoning_tokens
        )  # fmt: skip
        cached = None if details is None else details.cached_tokens
        if count is None or prompt is None or timings is not None or usage.completion_tokens_details is not None:
            return None
        if not (0 <= count < _COUNTS and 0 <= prompt < _COUNTS):
            return None
        if (cached is not None and not 0 <= cached < _COUNTS) or (thought is not None and not 0 <= thought < _COUNTS):
            return None
        found.prompt = prompt
        if cached is not None:
            found.cached = cached
        if thought is not None:
            found.reasoning_tokens = thought
        return count
    if timings is not None:
        count, cached = timings.predicted_n, timings.cache_n
        if count is None or cached is None or not (0 <= count < _COUNTS and 0 <= cached < _COUNTS):
            return None
        found.cached = cached
        return count
    return -1


def _take_choice(event: Event, choice: _Choice) -> None:
    event.choices = max(event.choices, (choice.index or 0) + 1)
    if choice.text:
        event.text += choice.text
    delta = choice.delta
    if delta is not None:
        event.text += (delta.content or "") + (delta.refusal or "")
        event.reasoning += delta.reasoning_content or delta.reasoning or ""
        for call in delta.tool_calls or ():
            if call.function is not None:
                event.tool += (call.function.name or "") + (call.function.arguments or "")
        if delta.function_call is not None:
            event.tool += (delta.function_call.name or "") + (delta.function_call.arguments or "")
    if choice.token_ids is not None:
        event.ids = max(event.ids, 0) + len(choice.token_ids)
    if choice.finish_reason:
        event.finish = choice.finish_reason


def _usage(raw: _Event) -> Usage | None:
    usage, timings = raw.usage, raw.timings
    if usage is None:
        if timings is None:
            return None
        return Usage(cached=timings.cache_n, completion=timings.predicted_n)
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    if cached is None and timings is not None:
        cached = timings.cache_n
    reasoning = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else None
    return Usage(
        prompt=usage.prompt_tokens,
        cached=cached,
        completion=usage.completion_tokens,
        reasoning=reasoning if reasoning is not None else usage.reasoning_tokens,
    )


def _error(raw: _Event) -> str | None:
    """The server's words where the event is an error: `{"error": …}` or SGLang's flat `{"object": "error", …}`."""
    told = bytes(raw.error)
    if told and told != b"null":
        return error_words(b'{"error":' + told + b"}")
    if raw.object == "error":
        return error_words(b'{"message":' + (bytes(raw.message) or b"null") + b"}")
    return None


def error_words(data: bytes) -> str:
    """The server's own words in an error body of any known shape (OpenAI, flat, FastAPI's detail, text, HTML).

    Up to KEPT_CHARS of them, as the server wrote them: to be redacted before they are shown.
    """
    try:
        content = json.loads(data)
        for name in ("error", "detail", "message"):
            if isinstance(content, dict) and content.get(name):
                content = content[name]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    except (ValueError, RecursionError):
        return shorten(data, KEPT_CHARS)
    return shorten(text.encode("utf-8", "replace"), KEPT_CHARS)  # JSON may hold half a surrogate pair


def shorten(data: bytes, limit: int = 300) -> str:
    """Bytes as one printable line of at most `limit` characters."""
    text = " ".join(
        "".join(c if c.isprintable() else " " for c in data[: limit * 4].decode("utf-8", "replace")).split()
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _lenient(data: bytes) -> _Event:
    """The same event where some field has an unexpected type: what fits is kept, the rest passed over."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        content = _mended(data)
        if content is None:
            raise ValueError(f"an event is not JSON: {shorten(data, KEPT_CHARS)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"an event is not a JSON object: {shorten(data, KEPT_CHARS)}")
    event = _Event()
    choices = content.get("choices")
    if isinstance(choices, list):
        event.choices = [_fit(c, _Choice) for c in choices if isinstance(c, dict)]
    for name, kind in (("usage", _Usage), ("timings", _Timings)):
        if isinstance(content.get(name), dict):
            setattr(event, name, _fit(content[name], kind))
    if isinstance(content.get("object"), str):
        event.object = content["object"]
    for name in ("error", "message"):
        if content.get(name) is not None:
            setattr(event, name, msgspec.Raw(msgspec.json.encode(content[name])))
    return event


def _mended(data: bytes) -> Any:
    """JSON that msgspec takes for broken because of half a surrogate pair (a character cut in two), with U+FFFD
    in its place; None where that is not the trouble."""
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False)
        return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else None
    except (ValueError, RecursionError):
        return None


_NESTED: Final[dict[str, type[msgspec.Struct]]] = {
    "delta": _Delta,
    "function": _Function,
    "function_call": _Function,
    "prompt_tokens_details": _PromptDetails,
    "completion_tokens_details": _CompletionDetails,
}


def _fit(content: dict[str, Any], kind: type[Any]) -> Any:
    made = kind()
    for name in kind.__struct_fields__:
        value = content.get(name)
        if name in _NESTED:
            value = _fit(value, _NESTED[name]) if isinstance(value, dict) else None
        elif name == "tool_calls":
            value = [_fit(v, _ToolCall) for v in value if isinstance(v, dict)] if isinstance(value, list) else None
        elif name == "token_ids":
            value = value if isinstance(value, list) and all(isinstance(v, int) for v in value) else None
        elif name in ("text", "content", "reasoning", "reasoning_content", "refusal", "finish_reason", "name"):
            value = value if isinstance(value, str) else None
        elif name == "arguments":
            value = value if isinstance(value, str) else (json.dumps(value) if value is not None else None)
        else:  # counts and indices
            value = value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
        setattr(made, name, value)
    return made


def single_events(chunks: list[bytes]) -> list[bytes]:
    """The data of chunks that are one event each, whole, on one line, as nearly all are; up to the first that is not.

    The same as a `Splitter` would give that holds nothing from before (`clean`), at a third of its cost."""
    found = []
    for chunk in chunks:
        if chunk[-2:] != b"\n\n" or chunk[:7] != b"data: {" or chunk.find(b"\n") != len(chunk) - 2 or b"\r" in chunk:
            break
        found.append(chunk[6:-2])
    return found


class Splitter:
    """Splits a response body into the data of its events (WHATWG HTML, 9.2.6), however the bytes were cut into reads.

    Lines end in LF, CRLF or CR; `data:` with or without a space; several data lines are joined by LF; comments and
    other fields are passed over; an event without data is none.
    """

    __slots__ = ("_data", "_data_size", "_line", "_line_size", "_skip_lf", "_start", "clean")

    def __init__(self) -> None:
        self._start: bytes | None = b""  # bytes that may be the beginning of a BOM
        self.clean = False  # at the border between two events, nothing held
        self._skip_lf = False  # the last read ended in CR: an LF that follows belongs to it
        self._line: list[bytes] = []
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes. Raises ValueError if an event exceeds MAX_EVENT_BYTES."""
        if (
            self.clean
            and chunk[-2:] == b"\n\n"
            and chunk[:6] == b"data: "
            and b"\r" not in chunk
            and chunk.find(b"\n") == len(chunk) - 2 > 6
        ):
            return [chunk[6:-2]]
        if self._start is not None:
            chunk = self._start + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._start = chunk
                return []
            self._start = None
            chunk = chunk.removeprefix(_BOM)
        return self._split(chunk)

    def finish(self) -> list[bytes]:
        """The event that the end of the body completes: the last one may lack its blank line."""
        events: list[bytes] = []
        rest, self._start = self._start, None
        if rest:
            events += self._split(rest)
        return events + self._split(b"\n\n")

    def _split(self, chunk: bytes) -> list[bytes]:
        if not chunk:
            return []
        if self._skip_lf and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._skip_lf = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._hold(chunk)
            return []
        if self._line:
            self._line.append(lines[0])
            lines[0] = b"".join(self._line)
            self._line = []
            self._line_size = 0
        rest = lines.pop()
        events = self._take(lines)
        self._hold(rest)
        self.clean = not rest and not self._data and not self._skip_lf
        return events

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    event = data[0] if len(data) == 1 else b"\n".join(data)
                    data.clear()
                    self._data_size = 0
                    if event:
                        events.append(event)
            elif line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_size += len(line)
            elif line == b"data":
                data.append(b"")
                self._data_size += len(line)
        return events

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._line.append(piece)
            self._line_size += len(piece)
            self.clean = False
        if self._line_size + self._data_size > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES >> 20} MiB")
