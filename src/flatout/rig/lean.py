"""A lean sender for loads that the rig's full engine cannot make: streams of ready-made events on an absolute schedule.

It takes the rig's knobs `decode_tok_s`, `tokens_per_event`, `pattern`, `ttft_ms`, `model`, `host` and `port`, ignores
the others, writes the rig's log and answers the rig's own paths, so `RigHandle` works it. Every stream's n-th event has
the same bytes, made once: an event costs little more than its `send`.
"""

from __future__ import annotations

import gc
import json
import re
import time
from bisect import insort
from collections import deque
from typing import Final

from flatout.rig.config import RigConfig
from flatout.rig.engine import GOLDEN
from flatout.rig.http import LAST_CHUNK, Headers, Reply, Request, chunk, response, stream_head
from flatout.rig.sockets import Conn, SocketServer
from flatout.rig.tokens import Ring
from flatout.rig.truth import SENT, Record

_EVENTS_A_TURN: Final = 64  # then the sockets are looked at
_JSON: Final = [("server", "uvicorn"), ("content-type", "application/json")]
_EVENTS: Final = [("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8")]
_WORD: Final = re.compile(r"\S+")


class _Job:
    """One request being answered. Ordered by its place in the step, so that a sorted list is the step's order."""

    __slots__ = (
        "conn", "done", "keep", "number", "phase", "prompt", "ready_ns", "record", "server", "slot", "stream", "target",
    )  # fmt: skip

    def __init__(self, server: LeanServer, conn: Conn, record: Record, *, keep: bool, stream: bool) -> None:
        self.server, self.conn, self.record, self.keep, self.stream = server, conn, record, keep, stream
        self.number = server.log.open(record)
        self.prompt, self.target = record.prompt_tokens, record.max_tokens
        self.done = 0
        self.slot = 0
        self.phase = 0.0
        self.ready_ns = 0

    def __lt__(self, other: _Job) -> bool:
        return (self.phase, self.slot) < (other.phase, other.slot)

    def hang_up(self) -> None:
        self.server.end(self, "client_closed")


class LeanServer(SocketServer):
    """The process's state. `_prefill`: requests that wait for their first token; `_order`: streams, in the order of the
    step, of which `_at` is the next."""

    def __init__(self, config: RigConfig) -> None:
        super().__init__(config)
        self._order: list[_Job] = []
        self._slots: set[int] = set()
        self._prefill: deque[_Job] = deque()
        self._at = 0
        self._step_ns = 0
        self._ring = Ring.of_sentences(config.seed)
        self._rendered: dict[tuple[int, int], bytes] = {}

    def json_headers(self) -> Headers:
        return _JSON

    # -- requests --------------------------------------------------------------------------------------------------
    def handle(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        if request.path in ("/v1/chat/completions", "/v1/completions") and request.method == "POST":
            try:
                self._submit(conn, json.loads(request.body), request, arrival_ns)
            except (ValueError, TypeError, AttributeError, LookupError) as error:
                body = json.dumps({"error": {"message": f"cannot read this request: {error}"}}).encode()
                self.reply(conn, Reply(400, body), keep=request.keep_alive)
            return
        if request.path.startswith("/rig/"):
            reply = self.own(request)
        elif request.path == "/v1/models":
            entry = {"id": self.config.model, "object": "model", "created": 0, "owned_by": "flatout"}
            reply = Reply(200, json.dumps({"object": "list", "data": [entry]}).encode())
        else:
            reply = Reply(404, b'{"detail":"Not Found"}')
        self.reply(conn, reply, keep=request.keep_alive)

    def reset(self) -> None:
        super().reset()
        for job in (*self._prefill, *self._order):
            job.number = self.log.open(job.record)
        gc.collect()

    def _submit(self, conn: Conn, body: dict[str, object], request: Request, arrival_ns: int) -> None:
        target = body.get("max_completion_tokens") or body.get("max_tokens") or self.config.default_max_tokens
        record = Record(
            rid=str(body.get("request_id") or ""),
            arrival_ns=arrival_ns,
            prompt_tokens=_prompt_tokens(body),
            max_tokens=int(target),  # type: ignore[call-overload]
            admitted_ns=arrival_ns,
        )
        job = _Job(self, conn, record, keep=request.keep_alive, stream=bool(body.get("stream")))
        job.ready_ns = arrival_ns + int(self.config.ttft_ms * 1e6)
        conn.busy = job
        self._prefill.append(job)
        if job.stream:
            conn.send(stream_head(_EVENTS, keep_alive=job.keep))

    # -- tokens ----------------------------------------------------------------------------------------------------
    def _wire(self, prompt: int, done: int) -> bytes:
        """The chunk of the event after which a request has `done` tokens; made once for all streams."""
        key = (prompt, done)
        event = self._rendered.get(key)
        if event is None:
            event = self._rendered[key] = chunk(self._event(prompt, done))
        return event

    def _event(self, prompt: int, done: int) -> bytes:
        count = min(self.config.tokens_per_event, done) if done > 1 else 1
        words = json.loads(b'"%b"' % self._ring.text(done - count, count))
        choice = {"index": 0, "delta": {"content": words}, "text": words, "logprobs": None, "finish_reason": None}
        return self._data([choice], prompt, done)

    def _data(self, choices: list[object], prompt: int, done: int) -> bytes:
        event = {
            "id": "chatcmpl-hose-0000000000000000", "object": "chat.completion.chunk", "created": 1_700_000_000,
            "model": self.config.model, "choices": choices,
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt + done, "completion_tokens": done},
            "system_fingerprint": None,
        }  # fmt: skip
        return b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode()

    def _start(self, job: _Job, now_ns: int) -> None:
        """The first token; from the next step on the job is one of the streams."""
        job.slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._slots.add(job.slot)
        job.phase = job.slot * GOLDEN % 1.0 if self.config.pattern == "spread" else 0.0
        if not self._order:
            self._step_ns, self._at = now_ns - round(job.phase * self._period_ns()), 0
        due_ns = job.ready_ns
        job.ready_ns = now_ns + self._period_ns() // 2
        insort(self._order, job)
        index = self._order.index(job)
        if index <= self._at and len(self._order) > 1:
            self._at += 1  # its place in this step has passed
        self._give(job, 1, due_ns)

    def _period_ns(self) -> int:
        return max(1, round(self.config.tokens_per_event / self.config.decode_tok_s * 1e9))

    def _give(self, job: _Job, tokens: int, due_ns: int) -> None:
        tokens = min(tokens, job.target - job.done)
        job.done += tokens
        record, conn = job.record, job.conn
        data = self._wire(job.prompt, job.done) if job.stream else b""
        now_ns = time.monotonic_ns()
        if job.stream:
            whole = conn.send(data)
            number = self.log.event(now_ns, job.number, tokens, now_ns - due_ns, SENT)
            if not whole:
                conn.mark(number)
            record.sent_tokens += tokens
        if record.first_ns < 0:
            record.first_ns = now_ns
        record.last_ns = now_ns
        record.generated_tokens += tokens
        if job.done >= job.target:
            self._finish(job)

    def _finish(self, job: _Job) -> None:
        finish: object = {"index": 0, "delta": {}, "text": "", "logprobs": None, "finish_reason": "length"}
        if job.stream:
            tail = (self._data([finish], job.prompt, job.done), self._data([], job.prompt, job.done))
            job.conn.send(b"".join(map(chunk, (*tail, b"data: [DONE]\n\n"))) + LAST_CHUNK)
        else:
            self.log.event(job.record.last_ns, job.number, job.done, 0, SENT)
            words = json.loads(b'"%b"' % self._ring.text(0, job.done))
            choice = {"index": 0, "message": {"role": "assistant", "content": words}, "text": words}
            body = json.loads(self._data([choice | {"finish_reason": "length"}], job.prompt, job.done)[6:])
            job.conn.send(response(200, json.dumps(body).encode(), _JSON, keep_alive=job.keep))
        self.end(job, "finished")
        self.answered(job.conn, keep=job.keep)

    def end(self, job: _Job, reason: str) -> None:
        """It is over, by its last token or since the client closed."""
        job.record.end_ns, job.record.reason = time.monotonic_ns(), reason
        if job in self._order:
            index = self._order.index(job)
            del self._order[index]
            self._slots.discard(job.slot)
            if index < self._at:
                self._at -= 1
        elif job in self._prefill:
            self._prefill.remove(job)

    def next_due_ns(self) -> int | None:
        """When the next event or first token is due; None when idle."""
        due = self._prefill[0].ready_ns if self._prefill else None
        if not self._order:
            return due
        period_ns = self._period_ns()
        if self._at >= len(self._order):
            self._step_ns, self._at = self._step_ns + period_ns, 0
        event_ns = self._step_ns + int(self._order[self._at].phase * period_ns)
        return event_ns if due is None else min(due, event_ns)

    def work(self) -> bool:
        for _ in range(_EVENTS_A_TURN):
            due_ns = self.next_due_ns()
            now_ns = time.monotonic_ns()
            if due_ns is None or due_ns > now_ns:
                return False
            if self._prefill and self._prefill[0].ready_ns <= due_ns:
                self._start(self._prefill.popleft(), now_ns)
                continue
            job = self._order[self._at]
            self._at += 1
            if due_ns >= job.ready_ns:
                self._give(job, self.config.tokens_per_event, due_ns)
        return True


def _prompt_tokens(body: dict[str, object]) -> int:
    """One token a word, so that a prompt can be made exactly as long as asked; ids count as themselves."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return len(prompt)
    if prompt is None:
        messages = body["messages"]
        assert isinstance(messages, list)
        prompt = " ".join(str(message["content"]) for message in messages)
    return len(_WORD.findall(str(prompt)))
