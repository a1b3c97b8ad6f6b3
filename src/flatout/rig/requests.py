"""What happens with a request: checks in the order of real servers, then generation, an endpoint, or the rig's own."""

from __future__ import annotations

import json
import uuid
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from flatout.rig.ask import Ask, Refusal, decode_body, read_ask
from flatout.rig.config import ConfigError
from flatout.rig.conn import Conn
from flatout.rig.dialect import Reply
from flatout.rig.http import Request, response, stream_head
from flatout.rig.job import Job
from flatout.rig.sink import StreamSink, Text, WholeSink
from flatout.rig.tokens import Prompt
from flatout.rig.truth import Record

if TYPE_CHECKING:
    from flatout.rig.server import RigServer

_GENERATE: dict[str, Literal["chat", "completions"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
_HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>"


class Requests:
    """Dispatches; counts what the rate limits need."""

    def __init__(self, server: RigServer) -> None:
        self._server = server
        self._seen = 0
        self._recent: deque[int] = deque()

    def renew(self) -> None:
        """Count rejections from the start."""
        self._seen = 0
        self._recent.clear()

    # -- answers ---------------------------------------------------------------------------------------------------
    def _reply(self, conn: Conn, keep: bool, reply: Reply) -> None:
        headers = self._server.dialect.json_headers()
        if reply.kind is not None:
            headers = [(name, value) for name, value in headers if name.lower() != "content-type"]
            if reply.kind:
                headers.append(("Content-Type", reply.kind))
        if not conn.dead:
            conn.send(response(reply.status, reply.body, headers + reply.headers, keep_alive=keep))
            self._server.answered(conn, keep=keep)

    def handle(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        """Answer, at once or later."""
        server, config = self._server, self._server.config
        reply = partial(self._reply, conn, request.keep_alive)
        try:
            if request.path.startswith("/rig/"):
                reply(self._own(request))
            elif server.dialect.needs_key(request.path) and request.key != config.api_key:
                reply(server.dialect.error("auth"))
            elif config.loading_s and (arrival_ns - server.started_ns) / 1e9 < config.loading_s:
                reply(server.dialect.error("loading"))
            elif request.path in _GENERATE and request.method == "POST":
                self._generate(conn, request, arrival_ns)
            elif not server.dialect.answer(request, reply):
                reply(server.dialect.error("not_found"))
        except Refusal as refusal:
            reply(self._refused(refusal, arrival_ns if request.path in _GENERATE else None))
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            # JSON of a shape that nothing above expected: the server must outlive it.
            reply(server.dialect.error("strange", why=f"{type(error).__name__}: {error}"))

    def _note(self, arrival_ns: int, reason: str) -> None:
        """A request that got no generation still stands in the log."""
        server = self._server
        server.log.open(Record(rid="", arrival_ns=arrival_ns, end_ns=server.now(), reason=reason))

    def _refused(self, refusal: Refusal, arrival_ns: int | None) -> Reply:
        config = self._server.config
        if arrival_ns is not None:
            self._note(arrival_ns, f"refused: {refusal.kind}")
        if refusal.kind == "fields" and config.refuse_style == "transformers":
            names = ", ".join(f"'{name}'" for name in refusal.facts["fields"])
            return Reply(422, json.dumps({"detail": f"Unexpected fields in the request: {{{names}}}"}).encode())
        reply = self._server.dialect.error(refusal.kind, **refusal.facts)
        if refusal.kind == "rate":
            reply.headers.append(("Retry-After", f"{config.retry_after_s:g}"))
        return reply

    # -- generation ------------------------------------------------------------------------------------------------
    def _generate(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        server, config = self._server, self._server.config
        self._limit_rate(arrival_ns)
        if config.html or config.hang:
            self._note(arrival_ns, "fault")
        if config.html:
            self._reply(conn, request.keep_alive, Reply(200, _HTML, "text/html"))
            return
        if config.hang:
            if config.hang == "no_event":
                conn.send(stream_head(server.dialect.stream_headers(), keep_alive=request.keep_alive))
            return
        ask = read_ask(_GENERATE[request.path], request.body, config)
        refusal = server.dialect.refuses(ask)
        if refusal is not None:
            raise refusal
        server.plan_stalls(arrival_ns)

        def begin(prompt: Prompt) -> None:
            if conn.dead:
                return
            try:
                self._begin(conn, ask, prompt, arrival_ns, request.keep_alive)
            except Refusal as refusal:
                self._reply(conn, request.keep_alive, self._refused(refusal, arrival_ns))

        server.with_prompts(ask, begin)

    def _limit_rate(self, arrival_ns: int) -> None:
        config = self._server.config
        self._seen += 1
        if self._seen <= config.reject_first:
            raise Refusal("rate")
        if config.rate_limit_per_s is not None:
            while self._recent and arrival_ns - self._recent[0] > 1_000_000_000:
                self._recent.popleft()
            if len(self._recent) >= config.rate_limit_per_s:
                raise Refusal("rate")
            self._recent.append(arrival_ns)

    def _lengths(self, ask: Ask, prompt: Prompt) -> tuple[int, int, str]:
        """Output asked for, output made, how it ends. Raises Refusal for what does not fit."""
        server, config = self._server, self._server.config
        limit, asked = config.model_len, ask.max_tokens or config.default_max_tokens
        target, finish = asked, "length"
        if limit is not None and not config.truncate_silently:
            facts = {"limit": limit, "prompt": prompt.tokens, "output": asked}
            if prompt.tokens >= limit:
                raise Refusal("prompt_too_long", **facts)
            if prompt.tokens + asked > limit:
                if not server.dialect.ends_early() and ask.max_tokens is not None:
                    raise Refusal("total_too_long", **facts)
                target = limit - prompt.tokens
        if not server.engine.fits_at_all(prompt.tokens, asked if not server.dialect.ends_early() else target):
            raise Refusal("no_room", limit=config.kv_tokens, prompt=prompt.tokens, output=asked)
        if config.stop_after_tokens and config.stop_after_tokens < target:
            target, finish = config.stop_after_tokens, "stop"
        return (asked if not server.dialect.ends_early() else min(asked, target)), target, finish

    def _begin(self, conn: Conn, ask: Ask, prompt: Prompt, arrival_ns: int, keep: bool) -> None:
        server, config = self._server, self._server.config
        if config.truncate_silently and config.model_len is not None and prompt.tokens > config.model_len:
            prompt = Prompt(
                config.model_len, prompt.granule, prompt.hashes[: -(-config.model_len // prompt.granule)], prompt.key
            )
        asked, target, finish = self._lengths(ask, prompt)
        record = Record(rid=ask.rid or uuid.uuid4().hex, arrival_ns=arrival_ns)
        record.prompt_tokens, record.max_tokens = prompt.tokens, asked
        number = server.log.open(record)
        job = Job(number, record, prompt, asked, target, finish, ask.choices, ask.stream)
        shape = server.dialect.shape(ask, config, job, server.started_s + (arrival_ns - server.started_ns) // 10**9)
        text = Text(server.text_ring, number, job.choices, config.utf8_every)
        sink: StreamSink | WholeSink
        if ask.stream:
            sink = StreamSink(server, conn, shape, text, config, keep=keep)
        else:
            sink = WholeSink(server, conn, shape, text, keep=keep)
        job.sink = conn.busy = sink
        sink.start()
        server.engine.submit(job)

    # -- the rig's own endpoints -----------------------------------------------------------------------------------
    def _own(self, request: Request) -> Reply:
        server = self._server
        if request.path == "/rig/log":
            data = server.log.to_npz(server.config.to_json(), server.now())
            return Reply(200, data, "application/octet-stream")
        if request.path == "/rig/config":
            return Reply(200, server.config.to_json().encode(), "application/json")
        if request.method == "POST" and request.path == "/rig/reset":
            server.reset()
            return Reply(200, b"{}", "application/json")
        if request.method == "POST" and request.path == "/rig/control":
            try:
                self._control(decode_body(request.body))
            except ConfigError as error:
                return Reply(400, json.dumps({"error": str(error)}).encode(), "application/json")
            return Reply(200, server.config.to_json().encode(), "application/json")
        return Reply(404, b'{"error":"no such endpoint of the rig"}', "application/json")

    def _control(self, body: dict[str, Any]) -> None:
        """Knobs to change, and two acts: `stall_now_s`, and `plant` {requests, tokens, context}."""
        server = self._server
        stall_s = body.pop("stall_now_s", None)
        plant = body.pop("plant", None)
        server.configure(server.config.changed(body))
        if stall_s is not None:
            server.engine.clock.plan(server.now(), int(float(stall_s) * 1e9))
        if plant is not None:
            for i in range(int(plant.get("requests", 1))):
                context = int(plant.get("context", 1))
                prompt = Prompt(tokens=context, granule=16, key=hash(("planted", server.now(), i)))
                server.ghost(prompt, int(plant.get("tokens", 1000)), 0, f"planted-{i}")
