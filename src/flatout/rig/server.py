"""The rig's server: checks in the order of real servers, then generation, an engine's endpoint, or the rig's own."""

from __future__ import annotations

import json
import resource
import signal
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Any

from flatout.rig.answer import StreamAnswer, Text, WholeAnswer
from flatout.rig.config import RigConfig
from flatout.rig.dialect import Dialect
from flatout.rig.engine import Died, Engine, Job
from flatout.rig.http import Headers, Reply, Request, stream_head
from flatout.rig.llamacpp import Llamacpp
from flatout.rig.openai import OpenAI
from flatout.rig.prompt import Prompt, granule_for, hash_in_slices
from flatout.rig.request import Api, Ask, Refusal, key_of, read_ask, slices
from flatout.rig.sglang import Sglang
from flatout.rig.sockets import Conn, SocketServer
from flatout.rig.tokens import Ring
from flatout.rig.truth import Record
from flatout.rig.vllm import Vllm

DIALECTS: dict[str, type[Dialect]] = {"sglang": Sglang, "vllm": Vllm, "llamacpp": Llamacpp, "openai": OpenAI}
_GENERATE: dict[str, Api] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>"
_EVENTS_A_TURN = 32  # then the sockets are looked at
_KEPT_PROMPT_TOKENS = 32_000_000

Work = tuple[Iterator[Prompt | None], Callable[[Prompt], None]]


class RigServer(SocketServer):
    """Everything the process holds."""

    def __init__(self, config: RigConfig) -> None:
        super().__init__(config)
        self.engine = Engine(config, self.log, self.now)
        self.started_ns = self.now()
        self.started_s = int(time.time())
        self.dialect = DIALECTS[config.dialect](self, self.started_s)
        self.ring = Ring.of_sentences(config.seed)
        self.text_ring = Ring.of_phrase(config.loop_text) if config.loop_text else self.ring
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._work: deque[Work] = deque()
        self._turns = 0
        self._prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self._prompt_tokens = 0
        self._gauges = (0, 0)
        self._gauges_ns = 0
        self._first_request_ns: int | None = None
        self._generations = 0  # requests for one, rejected ones too
        self._recent: deque[int] = deque()

    def json_headers(self) -> Headers:
        return self.dialect.json_headers

    def stream_headers(self) -> Headers:
        return self.dialect.stream_headers

    # -- what dialects and answers use -----------------------------------------------------------------------------
    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._timers, (due_ns, self._order, call))

    def gauges(self) -> tuple[int, int]:
        """Running and waiting, at most gauge_lag_ms old."""
        now_ns = self.now()
        if now_ns - self._gauges_ns >= self.config.gauge_lag_ms * 1e6:
            self._gauges = (self.engine.running, sum(job.choices for job in self.engine.waiting))
            self._gauges_ns = now_ns
        return self._gauges

    def probe(self, answer: Callable[[], None], seconds: float) -> None:
        """A one-token generation that takes so long, as SGLang's /health does."""
        self.ghost(Prompt(tokens=1, granule=16), 1, int(seconds * 1e9), "health", _Probe(answer))

    def ghost(self, prompt: Prompt, tokens: int, fixed_ns: int, rid: str, sink: _Probe | None = None) -> None:
        """A request that no client of ours has sent."""
        record = Record(rid=rid, arrival_ns=self.now(), prompt_tokens=prompt.tokens, max_tokens=tokens)
        job = Job(self.log.open(record), record, prompt, tokens, tokens, sink=sink, fixed_ns=fixed_ns)
        job.leftover = sink is None
        self.engine.submit(job)

    # -- the rig's own calls ---------------------------------------------------------------------------------------
    def control(self, changes: dict[str, Any]) -> None:
        """Knobs to change (requests that run keep the shape they began with), and two acts: `stall_now_s`, and `plant`
        {requests, tokens, context}."""
        stall_s, plant = changes.pop("stall_now_s", None), changes.pop("plant", None)
        before = self.config
        super().control(changes)
        config = self.config
        if config.loop_text != before.loop_text:
            self.text_ring = Ring.of_phrase(config.loop_text) if config.loop_text else self.ring
        if config.block_tokens != before.block_tokens:
            self._prompts.clear()
            self._prompt_tokens = 0
        self.dialect = DIALECTS[config.dialect](self, self.started_s)
        self.engine.configure(config)
        if stall_s is not None:
            self.engine.clock.plan(self.now(), int(float(stall_s) * 1e9))
        if plant is not None:
            for i in range(int(plant.get("requests", 1))):
                prompt = Prompt(int(plant.get("context", 1)), granule=16, key=hash(("planted", self.now(), i)))
                self.ghost(prompt, int(plant.get("tokens", 1000)), 0, f"planted-{i}")

    def reset(self) -> None:
        """An empty log, and the reject and stall counts from the start; the cache and what runs stay."""
        super().reset()
        self.engine.renew_log(self.log)
        self._first_request_ns = None
        self._generations = 0
        self._recent.clear()

    # -- the loop --------------------------------------------------------------------------------------------------
    def work(self) -> bool:
        """Raises Died where the config asks for that."""
        more = self.engine.run_due(_EVENTS_A_TURN)
        while self._timers and self._timers[0][0] <= self.now():
            heappop(self._timers)[2]()
        self._turns += 1
        if self._work and (not more or self._turns % 16 == 0):
            self._slice()
        return more or bool(self._work)

    def next_due_ns(self) -> int | None:
        due_ns = self.engine.next_due_ns()
        if self._timers and (due_ns is None or self._timers[0][0] < due_ns):
            return self._timers[0][0]
        return due_ns

    # -- requests --------------------------------------------------------------------------------------------------
    def handle(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        """Answer, at once or later."""
        config = self.config
        reply = partial(self.reply, conn, keep=request.keep_alive)
        try:
            if request.path.startswith("/rig/"):
                reply(self.own(request))
            elif self.dialect.needs_key(request.path) and request.key != config.api_key:
                reply(self.dialect.error("auth"))
            elif config.loading_s and (arrival_ns - self.started_ns) / 1e9 < config.loading_s:
                reply(self.dialect.error("loading"))
            elif request.path in _GENERATE and request.method == "POST":
                self._generate(conn, request, arrival_ns)
            elif not self.dialect.answer(request, reply):
                reply(self.dialect.error("not_found"))
        except Refusal as refusal:
            reply(self._refused(refusal, arrival_ns if request.path in _GENERATE else None))
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            # JSON of a shape that nothing above expected: the server must outlive it.
            reply(self.dialect.error("strange", why=f"{type(error).__name__}: {error}"))

    def _note(self, arrival_ns: int, reason: str) -> None:
        """A request that got no generation still stands in the log."""
        self.log.open(Record(rid="", arrival_ns=arrival_ns, end_ns=self.now(), reason=reason))

    def _refused(self, refusal: Refusal, arrival_ns: int | None) -> Reply:
        config = self.config
        if arrival_ns is not None:
            self._note(arrival_ns, f"refused: {refusal.kind}")
        if refusal.kind == "fields" and config.refuse_style == "transformers":
            names = ", ".join(f"'{name}'" for name in refusal.facts["fields"])
            return Reply(422, json.dumps({"detail": f"Unexpected fields in the request: {{{names}}}"}).encode())
        reply = self.dialect.error(refusal.kind, **refusal.facts)
        if refusal.kind == "rate":
            reply.headers.append(("Retry-After", f"{config.retry_after_s:g}"))
        return reply

    def _generate(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        config = self.config
        self._limit_rate(arrival_ns)
        if config.html or config.hang:
            self._note(arrival_ns, "fault")
        if config.html:
            self.reply(conn, Reply(200, _HTML, "text/html"), keep=request.keep_alive)
            return
        if config.hang:
            if config.hang == "no_event":
                conn.send(stream_head(self.stream_headers(), keep_alive=request.keep_alive))
            return
        ask = read_ask(_GENERATE[request.path], request.body, config)
        refusal = self.dialect.refuses(ask)
        if refusal is not None:
            raise refusal
        self._plan_stalls(arrival_ns)

        def begin(prompt: Prompt) -> None:
            if conn.dead:
                return
            try:
                self._begin(conn, ask, prompt, arrival_ns, request.keep_alive)
            except Refusal as refusal:
                self.reply(conn, self._refused(refusal, arrival_ns), keep=request.keep_alive)

        self._with_prompts(ask, begin)

    def _limit_rate(self, arrival_ns: int) -> None:
        config = self.config
        self._generations += 1
        if self._generations <= config.reject_first:
            raise Refusal("rate")
        if config.rate_limit_per_s is not None:
            while self._recent and arrival_ns - self._recent[0] > 1_000_000_000:
                self._recent.popleft()
            if len(self._recent) >= config.rate_limit_per_s:
                raise Refusal("rate")
            self._recent.append(arrival_ns)

    def _lengths(self, ask: Ask, prompt: Prompt) -> tuple[int, int, str]:
        """Output asked for, output made, how it ends. Raises Refusal for what does not fit."""
        config = self.config
        limit, asked = config.model_len, ask.max_tokens or config.default_max_tokens
        target, finish = asked, "length"
        if limit is not None and not config.truncate_silently:
            facts = {"limit": limit, "prompt": prompt.tokens, "output": asked}
            if prompt.tokens >= limit:
                raise Refusal("prompt_too_long", **facts)
            if prompt.tokens + asked > limit:
                if not self.dialect.ends_early() and ask.max_tokens is not None:
                    raise Refusal("total_too_long", **facts)
                target = limit - prompt.tokens
        if not self.engine.fits_at_all(prompt.tokens, asked if not self.dialect.ends_early() else target):
            raise Refusal("no_room", limit=config.kv_tokens, prompt=prompt.tokens, output=asked)
        if config.stop_after_tokens and config.stop_after_tokens < target:
            target, finish = config.stop_after_tokens, "stop"
        return (asked if not self.dialect.ends_early() else min(asked, target)), target, finish

    def _begin(self, conn: Conn, ask: Ask, prompt: Prompt, arrival_ns: int, keep: bool) -> None:
        config = self.config
        if config.truncate_silently and config.model_len is not None and prompt.tokens > config.model_len:
            prompt = Prompt(
                config.model_len, prompt.granule, prompt.hashes[: -(-config.model_len // prompt.granule)], prompt.key
            )
        asked, target, finish = self._lengths(ask, prompt)
        record = Record(rid=ask.rid or uuid.uuid4().hex, arrival_ns=arrival_ns)
        record.prompt_tokens, record.max_tokens = prompt.tokens, asked
        number = self.log.open(record)
        job = Job(number, record, prompt, asked, target, finish, ask.choices, ask.stream)
        shape = self.dialect.shape(ask, config, job, self.started_s + (arrival_ns - self.started_ns) // 10**9)
        text = Text(self.text_ring, number, job.choices, config.utf8_every)
        answer: StreamAnswer | WholeAnswer
        if ask.stream:
            answer = StreamAnswer(self, conn, shape, text, config, keep=keep)
        else:
            answer = WholeAnswer(self, conn, shape, text, keep=keep)
        job.sink = conn.busy = answer
        answer.start()
        self.engine.submit(job)

    def _plan_stalls(self, arrival_ns: int) -> None:
        """The config's stalls count from the first generation request."""
        if self._first_request_ns is None:
            self._first_request_ns = arrival_ns
            for at_s, for_s in self.config.stalls:
                scale = self.config.time_scale * 1e9
                self.engine.clock.plan(arrival_ns + int(at_s * scale), int(for_s * scale))

    def _with_prompts(self, ask: Ask, call: Callable[[Prompt], None]) -> None:
        """Count and hash the ask's prompts (in slices between events, if they are new), then call."""
        parts = [part for prompt in ask.prompts for part in prompt]
        key = (*key_of(parts), int(ask.token_ids))
        known = self._prompts.get(key)
        if known is not None:
            self._prompts.move_to_end(key)
            call(known)
            return
        steps = hash_in_slices(slices(parts), granule_for(self.config.block_tokens), keep_ids=ask.token_ids)

        def keep(prompt: Prompt) -> None:
            self._prompts[key] = prompt
            self._prompt_tokens += prompt.tokens
            while self._prompt_tokens > _KEPT_PROMPT_TOKENS and len(self._prompts) > 1:
                self._prompt_tokens -= self._prompts.popitem(last=False)[1].tokens
            call(prompt)

        self._work.append((steps, keep))
        if sum(len(part) for part in parts) < 4096:
            while self._work and self._work[-1][0] is steps and self._slice(newest=True):
                pass

    def _slice(self, *, newest: bool = False) -> bool:
        """One slice of prompt work; True if that prompt needs more."""
        steps, call = self._work[-1 if newest else 0]
        prompt = next(steps)
        if prompt is None:
            return True
        del self._work[-1 if newest else 0]
        call(prompt)
        return False


class _Probe:
    """Ends in a call."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        """Nobody sees them."""

    def finished(self, job: Job, finish: str) -> None:
        self._answer()


def serve(server: SocketServer, ready: Callable[[SocketServer], None]) -> None:
    """Serve until SIGINT or SIGTERM, with as many open sockets as the system allows. `ready` is called first.

    Raises SystemExit(1) when the config says that the server dies.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
    ready(server)
    try:
        server.run()
    except Died:
        raise SystemExit(1) from None
