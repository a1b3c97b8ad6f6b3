"""Where an answer's tokens become bytes on a connection, faults included."""

from __future__ import annotations

import random
from collections.abc import Callable

from flatout.rig.config import RigConfig
from flatout.rig.dialect import CONTENT, REASONING, TOOL, Host, Shape
from flatout.rig.engine import Job
from flatout.rig.http import LAST_CHUNK, chunk, response, stream_head
from flatout.rig.sockets import Conn
from flatout.rig.tokens import Ring
from flatout.rig.truth import SENT

_FOX = " \U0001f98a".encode()  # four bytes: its first half alone is no text


class Text:
    """The text of one answer: stretches of the ring, with half characters where asked for."""

    def __init__(self, ring: Ring, number: int, choices: int, utf8_every: int) -> None:
        self._ring = ring
        self._starts = [ring.start(number + 131 * i) for i in range(choices)]
        self._every = utf8_every

    def get(self, i: int, at: int, n: int) -> bytes:
        """Tokens at … at + n of choice i, JSON-escaped."""
        start = self._starts[i]
        if not self._every:
            return self._ring.text(start + at, n)
        return b"".join(self._one(start, t) for t in range(at, at + n))

    def _one(self, start: int, t: int) -> bytes:
        if t % self._every == self._every - 1:
            return b""
        return _FOX if t and t % self._every == 0 else self._ring.text(start + t, 1)

    def ids(self, i: int, at: int, n: int) -> list[int]:
        return self._ring.token_ids(self._starts[i] + at, n)


class WholeAnswer:
    """An answer without streaming: one body when all is done."""

    def __init__(self, server: Host, conn: Conn, shape: Shape, text: Text, *, keep: bool) -> None:
        self._server, self._conn, self._shape, self._text, self._keep = server, conn, shape, text, keep
        self.job = shape.job

    def hang_up(self) -> None:
        self._server.engine.hang_up(self.job)

    def start(self) -> None:
        """Nothing leaves before the end."""

    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        """Counted at the end."""

    def finished(self, job: Job, finish: str) -> None:
        server, conn = self._server, self._conn
        texts = [self._text.get(i, 0, min(job.done, 4096)) for i in range(job.choices)]
        body = self._shape.whole(texts, finish)
        data = response(200, body, server.json_headers(), keep_alive=self._keep)
        now_ns = server.now()
        event = server.log.event(now_ns, job.number, job.done * job.choices, 0, SENT)
        job.record.first_ns = job.record.last_ns = now_ns
        job.record.sent_tokens = job.done * job.choices
        if not conn.send(data):
            conn.mark(event)
        server.answered(conn, keep=self._keep)


class StreamAnswer:
    """A stream of events. Every event's clock is read right before its bytes are handed to the kernel."""

    def __init__(self, server: Host, conn: Conn, shape: Shape, text: Text, config: RigConfig, *, keep: bool) -> None:
        self._server, self._conn, self._shape, self._text, self._config = server, conn, shape, text, config
        self._keep = keep
        self.job = shape.job
        self._lead: list[bytes] = []  # what must leave before the first token
        self._merged: list[bytes] = []  # events that share the first token's chunk
        self._held: list[tuple[bytes, int, int]] = []  # (bytes, tokens, due) that share a send
        self._gate: list[Callable[[], None]] | None = None  # what happened before slow headers were out
        self._over = False
        self._events = 0
        self._random = random.Random(self.job.number)
        c = config
        self._odd = bool(
            c.empty_every or c.null_choices_every or c.huge_event_at or c.bad_json_at or c.split_sends > 1
            or c.error_after_tokens or c.truncate_after_tokens or c.hang_after_tokens
        )  # fmt: skip

    def hang_up(self) -> None:
        self._server.engine.hang_up(self.job)

    # -- the start -------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Send the head, or keep it for later, as the dialect and the config have it."""
        server, c = self._server, self._config
        head = stream_head(server.stream_headers(), keep_alive=self._keep)
        if c.comment_every_ms:
            self._next_comment(server.now())
        roles = [self._wire(self._shape.role(i)) for i in range(self.job.choices)] if self._shape.chat else []
        if self._shape.chat and c.tool_calls:
            roles += [self._wire(self._shape.tool_start(i)) for i in range(self.job.choices)]
        if c.role_event == "none":
            roles = []
        if self._shape.role_in_token_chunk and c.role_event == "engine" and not c.headers_delay_ms:
            self._merged = roles
        elif c.role_event == "engine":
            self._lead = [chunk(role) for role in roles]
        if c.headers_delay_ms:
            self._gate = []
            server.at(server.now() + int(c.headers_delay_ms * 1e6), lambda: self._open_gate(head))
        elif self._shape.head_with_token and c.role_event != "at_once":
            self._lead.insert(0, head)
        else:
            self._conn.send(head)
        if c.role_event == "at_once":
            for role in roles:
                self._say(chunk(role))

    def _open_gate(self, head: bytes) -> None:
        waiting, self._gate = self._gate or [], None
        if self._over or self._conn.busy is not self:
            return
        self._conn.send(head)
        for call in waiting:
            call()

    def _say(self, data: bytes) -> None:
        """Bytes without tokens."""
        if self._gate is not None:
            self._gate.append(lambda: self._say(data))
        elif not self._over:
            self._conn.send(data)

    def _next_comment(self, now_ns: int) -> None:
        every_ns = int(self._config.comment_every_ms * 1e6)

        def ping() -> None:
            if self._over or self._conn.busy is not self:
                return
            if self._lead and self._shape.head_with_token:  # a comment needs the head before it
                self._conn.send(self._lead.pop(0))
            self._say(chunk(b": ping\n\n"))
            self._next_comment(now_ns + every_ns)

        self._server.at(now_ns + every_ns, ping)

    @staticmethod
    def _wire(event: bytes) -> bytes:
        return b"data: %b\n\n" % event

    # -- tokens ----------------------------------------------------------------------------------------------------
    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        if self._gate is not None:
            at = job.done
            self._gate.append(lambda: self._tokens(n, at, due_ns, hold))
        else:
            self._tokens(n, job.done, due_ns, hold)

    def _tokens(self, n: int, done: int, due_ns: int, hold: bool) -> None:
        if self._over:
            return
        job, shape, at = self.job, self._shape, done - n
        if self._lead:
            self._conn.send(b"".join(self._lead))
            self._lead = []
        last = job.finish if done >= job.target else None
        for i in range(job.choices):
            kind = CONTENT
            if shape.chat:
                kind = REASONING if at < self._config.reasoning_tokens else TOOL if self._config.tool_calls else CONTENT
            ids = self._text.ids(i, at, n) if shape.ask.token_ids else None
            data = b"data: %b\n\n" % shape.text(i, kind, self._text.get(i, at, n), ids, last)
            if self._merged:
                data = b"".join(self._merged) + data
                self._merged = []
            if self._odd:
                data = self._with_oddities(data)
            self._held.append((chunk(data), n, due_ns))
        if not hold:
            self._send_held()
        if self._odd:
            self._breaks(done)

    def _send_held(self) -> None:
        held, record, number = self._held, self.job.record, self.job.number
        self._held = []
        # Choices and merged events share a send only where that was asked for.
        groups = [held] if self._config.burst_one_send else [[one] for one in held]
        for group in groups:
            data = group[0][0] if len(group) == 1 else b"".join(one[0] for one in group)
            now_ns = self._server.now()
            whole = self._conn.send(data) if self._config.split_sends == 1 else self._send_split(data)
            if record.first_ns < 0:
                record.first_ns = now_ns
            record.last_ns = now_ns
            for _, n, due_ns in group:
                record.sent_tokens += n
                event = self._server.log.event(now_ns, number, n, now_ns - due_ns, SENT)
            if not whole:
                self._conn.mark(event)

    def _send_split(self, data: bytes) -> bool:
        cuts = sorted(self._random.randrange(1, len(data)) for _ in range(self._config.split_sends - 1))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
        taken = [self._conn.send(piece) for piece in pieces]  # all are sent, whatever became of the first
        return all(taken)

    def _with_oddities(self, data: bytes) -> bytes:
        c, shape = self._config, self._shape
        self._events += 1
        at = self._events
        if c.empty_every and at % c.empty_every == 0:
            data = self._wire(shape.text(0, CONTENT, b"", None)) + data
        if c.null_choices_every and at % c.null_choices_every == 0:
            data = self._wire(shape.event(b"null")) + data
        if at == c.bad_json_at:
            data = b'data: {"id": "broken", "choices": [{"index": 0, "delta": {"content": \n\n' + data
        if at == c.huge_event_at:
            data = data.rstrip(b"\n")[:-1] + b',"padding":"' + b"x" * c.huge_event_bytes + b'"}\n\n'
        return data

    def _breaks(self, done: int) -> None:
        """The faults that end a stream in the middle."""
        c, conn, server = self._config, self._conn, self._server
        if c.error_after_tokens and done >= c.error_after_tokens:
            tail = chunk(self._wire(self._shape.error_event()))
            conn.send(tail + (chunk(b"data: [DONE]\n\n") if c.done_marker else b"") + LAST_CHUNK)
            self._stop(keep=self._keep)
        elif c.truncate_after_tokens and done >= c.truncate_after_tokens:
            clean = c.truncate_mode == "clean_end"
            if clean:
                conn.send(LAST_CHUNK)
            self._stop(keep=clean and self._keep, reset=c.truncate_mode == "reset")
        elif c.hang_after_tokens and done >= c.hang_after_tokens:
            self._over = True
            server.engine.drop(self.job)

    def _stop(self, *, keep: bool, reset: bool = False) -> None:
        self._over = True
        self._server.engine.drop(self.job)
        self._server.answered(self._conn, keep=keep, reset=reset)

    # -- the end ---------------------------------------------------------------------------------------------------
    def finished(self, job: Job, finish: str) -> None:
        if self._gate is not None:
            self._gate.append(lambda: self.finished(job, finish))
        elif not self._over:
            delay_ns = int(self._config.usage_delay_ms * 1e6)
            if delay_ns:
                self._server.at(self._server.now() + delay_ns, lambda: self._finish(finish))
            else:
                self._finish(finish)

    def _finish(self, finish: str) -> None:
        if self._over or self._conn.busy is not self:
            return
        if self._lead:
            self._conn.send(b"".join(self._lead))
        if self._config.tool_calls and self._shape.chat and finish == "stop":
            finish = "tool_calls"
        events = [self._wire(event) for event in self._shape.tail(finish)]
        if self._shape.tail_in_one_chunk and events:
            events = [b"".join(events)]
        if self._config.done_marker:
            events.append(b"data: [DONE]\n\n")
        self._over = True
        self._conn.send(b"".join(chunk(event) for event in events) + LAST_CHUNK)
        self._server.answered(self._conn, keep=self._keep)
