"""What this server understands, found out by a few small requests before anything is measured."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from flatout.engines.base import MAX_TOKENS, TOKEN_IDS, TargetError, Wants
from flatout.engines.detect import Target
from flatout.engines.http import RateLimited
from flatout.protocol import PATHS, Api, Event, Shape, Usage, body, read_event

Field = tuple[str, object]

_ASKED_TOKENS: Final = 16
_MOST_REQUESTS: Final = 8
"""Requests to find out which fields are refused; what is not settled by then is dropped."""
_MOST_WAIT_S: Final = 60.0
_MOST_RETRIES: Final = 3
_LEAST_WAIT_S: Final = 0.25
"""After a refusal, whatever the server says; twice as long after each further one."""
_SLICE_S: Final = 0.1
_PROBE_ID: Final = "flatout-probe"
_REQUEST_ID: Final = "$request_id"
"""As a field's value while fields are settled: the request's own id."""
_TEXT: Final = "Answer with one word only: what is the capital of France?"
_SENTENCE: Final = "The quick brown fox jumps over the lazy dog near the old stone bridge."
_LONG: Final = "Read this list and say how many lines it has.\n" + "".join(
    f"Line {i}: parcel number {i * 7919 % 10007} went to the harbour on a {'grey' if i % 3 else 'bright'} morning.\n"
    for i in range(1, 41)
)


@dataclass(frozen=True, slots=True)
class Reports:
    """What the server tells of its counts. `usage_every`: usage comes with every event that carries text."""

    usage: bool = False
    usage_every: bool = False
    running_counts: bool = False
    token_ids: bool = False
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How requests to this server are made, and what it reports.

    `dropped`: fields that it refused, with its own words. `ignored`: fields that it took and that had no effect, with
    what was seen. `requests`, `prompt_tokens`, `output_tokens`: what the probe itself cost.
    `template_tokens`: prompt tokens beyond the text's own (the chat template's, or a BOS).
    """

    api: Api
    fields: tuple[Field, ...]
    max_tokens_field: str
    id_field: str | None
    reports: Reports
    dropped: tuple[tuple[str, str], ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    token_prompts: bool = False
    template_tokens: int | None = None
    template_reason: str | None = None
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    notes: tuple[str, ...] = ()

    def shape(self, model: str, *, temperature: float | None = None, extra_body: str = "{}") -> Shape:
        """The shape of every request of a run; `fields` may still hold the MAX_TOKENS sentinel."""
        return Shape(
            api=self.api,
            model=model,
            fields=self.fields,
            max_tokens_field=self.max_tokens_field,
            id_field=self.id_field,
            temperature=temperature,
            extra_body=extra_body,
        )


@dataclass(slots=True)
class _Answer:
    """One probe's stream, read to its end."""

    events: list[Event] = field(default_factory=list)

    @property
    def usage(self) -> Usage | None:
        return next(
            (e.usage for e in reversed(self.events) if e.usage is not None and e.usage.prompt is not None), None
        )

    @property
    def with_text(self) -> list[Event]:
        return [e for e in self.events if e.text or e.reasoning or e.tool or e.ids > 0]

    @property
    def finish(self) -> str | None:
        return next((e.finish for e in reversed(self.events) if e.finish), None)


@dataclass(slots=True)
class _Prober:
    """The requests of one probe: how many were sent, with which fields, and what was learned on the way."""

    target: Target
    api: Api
    extra_body: str
    temperature: float | None
    timeout_s: float
    on_wait: Callable[[str], None] | None
    max_tokens_field: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    refusals: int = 0
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.max_tokens_field = self.wants.max_tokens_field

    @property
    def wants(self) -> Wants:
        return self.target.adapter.wants

    def send(self, fields: tuple[Field, ...], prompt: str | list[int] = _TEXT, asked: int = _ASKED_TOKENS) -> _Answer:
        """One streamed request, read to its end. Raises TargetError if it is refused, or breaks off."""
        shape = Shape(
            api=self.api,
            model=self.target.model,
            fields=resolve(tuple(f for f in fields if f[1] != _REQUEST_ID), asked),
            max_tokens_field=self.max_tokens_field,
            id_field=next((name for name, value in fields if value == _REQUEST_ID), None),
            temperature=self.temperature,
            extra_body=self.extra_body,
        )
        data = body(shape, prompt, asked, request_id=f"{_PROBE_ID}-{time.monotonic_ns()}")
        for attempt in range(_MOST_RETRIES + 1):
            self.requests += 1
            try:
                answer = self._read(data)
            except RateLimited as error:
                wait_s = self._wait_s(error, attempt)
                if attempt == _MOST_RETRIES or wait_s > _MOST_WAIT_S:
                    raise
                self._tell(f"the server asks to wait {wait_s:g} s ({error.status})")
                self._sleep(wait_s)
            else:
                self.refusals = 0
                self._account(answer, prompt)
                return answer
        raise AssertionError("unreachable")

    def _account(self, answer: _Answer, prompt: str | list[int]) -> None:
        """What the request cost: as billed, else by a token for three characters and for each event."""
        told = answer.usage
        length = len(prompt) if isinstance(prompt, list) else len(prompt) // 3
        self.prompt_tokens += length if told is None or told.prompt is None else told.prompt
        self.output_tokens += len(answer.with_text) if told is None or told.completion is None else told.completion

    def _wait_s(self, error: RateLimited, attempt: int) -> float:
        """As long as the server asks, but never so short that its refusals become a storm."""
        own_s = _LEAST_WAIT_S * 2.0 ** min(self.refusals, 20)
        self.refusals += 1
        return max(own_s, 2.0 * 2**attempt if error.retry_after_s is None else error.retry_after_s)

    def _sleep(self, wait_s: float) -> None:
        end_s = time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            self.target.client.raise_if_stopped()
            time.sleep(min(left_s, _SLICE_S))

    def _read(self, data: bytes) -> _Answer:
        answer = _Answer()
        for raw in self.target.client.events(PATHS[self.api], data, timeout_s=self.timeout_s):
            try:
                event = read_event(raw)
            except ValueError as error:
                words = self.target.client.tidy(f"in the probe's stream {error}")
                raise TargetError("protocol", words) from error
            if event.error is not None:
                words = self.target.client.tidy(event.error)
                raise TargetError(
                    "http", f"the server sent an error inside the stream: {words}", status=200, words=words
                )
            answer.events.append(event)
        if not answer.events:
            raise TargetError("protocol", "the server answered the probe with an empty stream")
        return answer

    def _tell(self, what: str) -> None:
        if self.on_wait is not None:
            self.on_wait(what)


def probe(
    target: Target,
    api: Api | None = None,
    *,
    extra_body: str = "{}",
    temperature: float | None = None,
    timeout_s: float = 120.0,
    on_wait: Callable[[str], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Capabilities:
    """Finds out by a handful of requests of at most 16 tokens each; `timeout_s` bounds each of them.

    `api`: None takes chat where the model has a chat template, completions otherwise. Raises TargetError with the
    server's own words if not even the plainest request is answered, and of the kind "stopped" once `stopping` is true.
    """
    before, target.client.stopping = target.client.stopping, stopping
    try:
        found = _probe(_Prober(target, api or "chat", extra_body, temperature, timeout_s, on_wait), api)
        target.client.raise_if_stopped()
        return found
    finally:
        target.client.stopping = before


def _probe(prober: _Prober, api: Api | None) -> Capabilities:
    try:
        answer, settled = _agree(prober)
    except TargetError as error:
        if api is not None or not _no_chat(error):
            raise
        prober.notes.append(f"Chat is not possible here ({error.words or error}); plain completions are used.")
        prober.api, prober.dropped, prober.requests = "completions", {}, 0
        answer, settled = _agree(prober)
    fields = tuple(f for f in settled if f[1] != _REQUEST_ID)
    fields, ignored, reports = _look(prober, answer, fields)
    reports = replace(reports, cached=_tells_cached(prober, answer, fields))
    template, reason = _template(prober, answer, fields)
    return Capabilities(
        api=prober.api,
        fields=fields,
        max_tokens_field=prober.max_tokens_field,
        id_field=next((name for name, value in settled if value == _REQUEST_ID), None),
        reports=reports,
        dropped=tuple(prober.dropped.items()),
        ignored=ignored,
        token_prompts=_token_prompts(prober, fields),
        template_tokens=template,
        template_reason=reason,
        requests=prober.requests,
        prompt_tokens=prober.prompt_tokens,
        output_tokens=prober.output_tokens,
        notes=tuple(prober.notes),
    )


def resolve(fields: tuple[Field, ...], max_tokens: int) -> tuple[Field, ...]:
    """The fields of one request: MAX_TOKENS replaced by its output limit."""
    return tuple((name, max_tokens if value == MAX_TOKENS else value) for name, value in fields)


def _first_fields(wants: Wants) -> tuple[Field, ...]:
    """What is tried at once. Token ids and further length fields are tried only where the first ones do not do."""
    request_id = () if wants.id_field is None else ((wants.id_field, _REQUEST_ID),)
    return (*(f for f in wants.count_fields if f != TOKEN_IDS), *wants.length_fields[:1], *request_id)


def _agree(prober: _Prober) -> tuple[_Answer, tuple[Field, ...]]:
    """The fields that the server takes: refused ones are found by its words, or else by trying one after another."""
    limit = prober.requests + _MOST_REQUESTS
    fields = _first_fields(prober.wants)
    while True:
        try:
            return prober.send(fields), fields
        except TargetError as error:
            if not _about_the_request(error):
                raise
            words = error.words or str(error)
            if _wants_other_limit(prober, words):
                continue
            named = _named(words, fields)
            if not named or prober.requests >= limit - 2:
                if not fields:
                    raise
                return _one_by_one(prober, fields, words, limit)
            prober.dropped |= dict.fromkeys(named, words)
            fields = tuple(f for f in fields if f[0] not in named)


def _one_by_one(
    prober: _Prober, fields: tuple[Field, ...], words: str, limit: int
) -> tuple[_Answer, tuple[Field, ...]]:
    """The plainest request first: if that is refused too, the fields are not to blame. Then each field is added."""
    try:
        answer = prober.send(())
    except TargetError as error:
        if not _about_the_request(error) or not _wants_other_limit(prober, error.words or ""):
            raise
        answer = prober.send(())
    kept: tuple[Field, ...] = ()
    for addition in fields:
        if prober.requests >= limit:
            prober.dropped[addition[0]] = words
            continue
        another = _accepted(prober, (*kept, addition))
        if another is not None:
            answer, kept = another, (*kept, addition)
    return answer, kept


def _accepted(prober: _Prober, fields: tuple[Field, ...]) -> _Answer | None:
    """The answer to a request with one more field, the last of these; None where the server refuses it."""
    try:
        return prober.send(fields)
    except TargetError as error:
        if not _about_the_request(error):
            raise
        prober.dropped[fields[-1][0]] = error.words or str(error)
        return None


def _about_the_request(error: TargetError) -> bool:
    """True if the server answered, and a request with other fields might be answered otherwise."""
    return error.kind in ("http", "not_found") and error.status is not None and error.status not in (404, 405)


def _no_chat(error: TargetError) -> bool:
    """True if chat is what the server lacks: no such path, or no chat template."""
    words = (error.words or "").lower().replace("chat_template_kwargs", "")
    lacking = "template" in words or ("chat" in words and "support" in words)
    no_path = error.status in (404, 405, 501) and "model" not in words
    return no_path or (_about_the_request(error) and lacking)


def _wants_other_limit(prober: _Prober, words: str) -> bool:
    """OpenAI's reasoning models refuse `max_tokens` and name the field that they take instead."""
    other = "max_completion_tokens"
    if prober.max_tokens_field != "max_tokens" or other not in words:
        return False
    prober.dropped["max_tokens"] = words
    prober.max_tokens_field = other
    return True


def _named(words: str, fields: tuple[Field, ...]) -> set[str]:
    """Those of our fields that an error names; naming `stream_options` alone means all below it."""
    told = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", words))
    ids = {name for name, value in fields if value == _REQUEST_ID and name in told}
    ours = [name for name, value in fields if value != _REQUEST_ID]
    leaves = {name for name in ours if name.rpartition(".")[2] in told}
    return (leaves or {name for name in ours if name.partition(".")[0] in told}) | ids


def _look(
    prober: _Prober, answer: _Answer, fields: tuple[Field, ...]
) -> tuple[tuple[Field, ...], tuple[tuple[str, str], ...], Reports]:
    """What the fields did. A count field without effect is left out; a field that keeps lengths stays, and is named."""
    ignored: dict[str, str] = {}
    running = _running_counts(answer)
    for name, _ in fields:
        if name in ("stream_options.continuous_usage_stats", "timings_per_token") and not running:
            ignored[name] = "no running token counts came with the events"
        if name == "stream_options.include_usage" and answer.usage is None:
            ignored[name] = "no usage came"
    token_ids = any(e.ids >= 0 for e in answer.events)
    if not running and not token_ids and TOKEN_IDS in prober.wants.count_fields:
        second = _accepted(prober, (*fields, TOKEN_IDS))
        token_ids = second is not None and any(e.ids > 0 for e in second.events)
        if second is not None and token_ids:
            answer, fields = second, (*fields, TOKEN_IDS)
        elif second is not None:
            ignored[TOKEN_IDS[0]] = "no token ids came with the events"
    fields = _keep_length(prober, answer, fields, ignored)
    fields = tuple(f for f in fields if f[0] not in ignored or f in prober.wants.length_fields)
    reports = Reports(
        usage=answer.usage is not None,
        usage_every=bool(answer.with_text)
        and all(e.usage is not None and e.usage.prompt is not None for e in answer.with_text),
        running_counts=running,
        token_ids=token_ids,
    )
    return fields, tuple(ignored.items()), reports


def _running_counts(answer: _Answer) -> bool:
    """True if the events that carry text also tell, and raise, the request's token count so far."""
    told = [e.running for e in answer.with_text if e.running >= 1]
    return bool(told) and 2 * len(told) > len(answer.with_text) and (len(told) == 1 or told[-1] > told[0])


def _stopped_early(answer: _Answer) -> bool:
    completion = answer.usage.completion if answer.usage is not None else None
    count = completion if completion is not None else len(answer.with_text)
    return answer.finish == "stop" and count < _ASKED_TOKENS


def _keep_length(
    prober: _Prober, answer: _Answer, fields: tuple[Field, ...], ignored: dict[str, str]
) -> tuple[Field, ...]:
    """Another way to full lengths where the first was refused, or taken and the answer ended early all the same."""
    in_vain = f"the answer stopped before {_ASKED_TOKENS} tokens all the same"
    for wanted in prober.wants.length_fields:
        if wanted in fields:  # the first one, which was tried at once
            if not _stopped_early(answer):
                return fields
            ignored[wanted[0]] = in_vain
        elif wanted != prober.wants.length_fields[0]:
            second = _accepted(prober, (*fields, wanted))
            if second is not None and not _stopped_early(second):
                return (*fields, wanted)
            if second is not None:
                ignored[wanted[0]] = in_vain
    return fields


def _tells_cached(prober: _Prober, answer: _Answer, fields: tuple[Field, ...]) -> bool:
    """True if usage tells the cached prompt tokens. Some tell them only where there are any: a long prompt, twice."""
    usage = answer.usage
    if usage is None or usage.cached is not None:
        return usage is not None and usage.cached is not None
    for _ in range(2):
        usage = prober.send(fields, _LONG, 1).usage
        if usage is not None and usage.cached is not None:
            return True
    return False


def _template(prober: _Prober, answer: _Answer, fields: tuple[Field, ...]) -> tuple[int | None, str | None]:
    """Prompt tokens beyond the text's own: the billed prompt minus the text's count, or from texts of 1, 2 and 3
    equal sentences, whose counts must grow by equal steps."""
    billed = answer.usage.prompt if answer.usage is not None else None
    own = prober.target.adapter.count_tokens(_TEXT)
    if own is not None and billed is None and prober.api == "chat":
        billed = prober.target.adapter.count_chat_tokens(_TEXT)
    if billed is None:
        return None, "the server does not tell how many tokens a prompt has"
    if own is not None:
        return (billed - own, None) if billed >= own else (None, "the server bills fewer tokens than the text has")
    counts: list[int] = []
    for times in (4, 8, 12):
        usage = prober.send(fields, " ".join([_SENTENCE] * times), 1).usage
        if usage is None or usage.prompt is None:
            return None, "the server does not always tell how many tokens a prompt has"
        counts.append(usage.prompt)
    step = counts[1] - counts[0]
    if step <= 0 or counts[2] - counts[1] != step or step > counts[0]:
        return None, "the prompt's count does not grow in step with its text, so the template's part cannot be told"
    return counts[0] - step, None


def _token_prompts(prober: _Prober, fields: tuple[Field, ...]) -> bool:
    """True if completions takes token ids, and counts exactly those."""
    if prober.api != "completions" or not prober.wants.token_prompts:
        return False
    ids = prober.target.adapter.tokenize(_TEXT)
    if not ids:
        return False
    try:
        usage = prober.send(fields, ids, 1).usage
    except TargetError as error:
        if not _about_the_request(error):
            raise
        return False
    return usage is None or usage.prompt == len(ids)
