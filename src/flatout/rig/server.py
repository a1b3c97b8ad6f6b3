"""The rig's process: one thread, one loop, absolute times."""

from __future__ import annotations

import gc
import json
import logging
import resource
import signal
import socket
import ssl
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from types import FrameType

from flatout.rig.ask import Ask, key_of, slices
from flatout.rig.config import RigConfig
from flatout.rig.conn import Closed, Conn
from flatout.rig.dialect import Dialect
from flatout.rig.dialect_llamacpp import Llamacpp
from flatout.rig.dialect_openai import OpenAI
from flatout.rig.dialect_sglang import Sglang
from flatout.rig.dialect_vllm import Vllm
from flatout.rig.engine import Died, Engine
from flatout.rig.http import BadRequest, response
from flatout.rig.job import Job
from flatout.rig.loop import Poller
from flatout.rig.requests import Requests
from flatout.rig.tokens import Prompt, Ring, granule_for, hash_in_slices
from flatout.rig.truth import Log, Record

DIALECTS: dict[str, type[Dialect]] = {"sglang": Sglang, "vllm": Vllm, "llamacpp": Llamacpp, "openai": OpenAI}
_EVENTS_A_TURN = 32  # then the sockets are looked at
_LONGEST_WAIT_S = 0.5
_SWEEP_EVERY = 2000
_KEPT_PROMPT_TOKENS = 32_000_000
_log = logging.getLogger(__name__)

Work = tuple[Iterator[Prompt | None], Callable[[Prompt], None]]


class RigServer:
    """Everything the process holds. `run` blocks until `stop` or the die_after_tokens fault."""

    def __init__(self, config: RigConfig) -> None:
        self.config = config
        self.log = Log()
        self.engine = Engine(config, self.log, self.now)
        self.started_ns = self.now()
        self.started_s = int(time.time())
        self.dialect = DIALECTS[config.dialect](self, self.started_s)
        self.ring = Ring.of_sentences(config.seed)
        self.text_ring = Ring.of_phrase(config.loop_text) if config.loop_text else self.ring
        self.requests = Requests(self)
        self._poller = Poller()
        self._conns: dict[int, Conn] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._work: deque[Work] = deque()
        self._prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self._prompt_tokens = 0
        self._gauges = (0, 0)
        self._gauges_ns = 0
        self.first_request_ns: int | None = None
        self._stopping = False
        self._turns = 0
        self._swept = 0  # requests at the last garbage collection; done only when idle
        self._tls: ssl.SSLContext | None = None
        if config.certfile:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(config.certfile, config.keyfile)
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        self._listener = socket.create_server((config.host, config.port), family=family, backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)

    # -- what others use -------------------------------------------------------------------------------------------
    @staticmethod
    def now() -> int:
        return time.monotonic_ns()

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

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

    def configure(self, config: RigConfig) -> None:
        """A changed config, live. Requests that run keep the shape they began with."""
        if config.loop_text != self.config.loop_text:
            self.text_ring = Ring.of_phrase(config.loop_text) if config.loop_text else self.ring
        if config.block_tokens != self.config.block_tokens:
            self._prompts.clear()
            self._prompt_tokens = 0
        self.config = config
        self.dialect = DIALECTS[config.dialect](self, self.started_s)
        self.engine.configure(config)

    def reset(self) -> None:
        """An empty log, and the reject and stall counts from the start; the cache and what runs stay.

        Running requests go on in the new log under new numbers.
        """
        self.log, self._swept = Log(), 0
        self.engine.renew_log(self.log)
        for conn in self._conns.values():
            conn.renew_log(self.log)
        self.first_request_ns = None
        self.requests.renew()

    def plan_stalls(self, arrival_ns: int) -> None:
        """The config's stalls count from the first generation request."""
        if self.first_request_ns is None:
            self.first_request_ns = arrival_ns
            for at_s, for_s in self.config.stalls:
                scale = self.config.time_scale * 1e9
                self.engine.clock.plan(arrival_ns + int(at_s * scale), int(for_s * scale))

    def with_prompts(self, ask: Ask, call: Callable[[Prompt], None]) -> None:
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
        if newest:
            self._work.pop()
        else:
            self._work.popleft()
        call(prompt)
        return False

    # -- the loop --------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Raises Died where the config asks for that."""
        self._poller.watch(self._listener.fileno(), write=False, known=False)
        self._poller.watch(self._wake.fileno(), write=False, known=False)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while not self._stopping:
                self._turn()
        finally:
            gc.unfreeze()
            gc.enable()
            for conn in list(self._conns.values()):
                conn.close()
            self._listener.close()
            self._poller.close()
            self._wake.close()
            self._waker.close()

    def _turn(self) -> None:
        more = self.engine.run_due(_EVENTS_A_TURN)
        while self._timers and self._timers[0][0] <= self.now():
            heappop(self._timers)[2]()
        self._turns += 1
        if self._work and (not more or self._turns % 16 == 0):
            self._slice()
        due_ns = self.engine.next_due_ns()
        if self._timers and (due_ns is None or self._timers[0][0] < due_ns):
            due_ns = self._timers[0][0]
        wait_s = 0.0 if more or self._work else _LONGEST_WAIT_S
        ready = self._poller.poll(due_ns, wait_s)
        if not ready and due_ns is None and not self._work and len(self.log.records) - self._swept > _SWEEP_EVERY:
            self._swept = len(self.log.records)  # half a second of nothing: nobody is kept waiting
            gc.collect()
        for fd, readable, writable in ready:
            if fd == self._listener.fileno():
                self._accept()
            elif fd == self._wake.fileno():
                self._wake.recv(64)
            elif fd in self._conns:
                self._ready(self._conns[fd], readable, writable)

    def stop(self) -> None:
        """From a signal handler or another thread."""
        self._stopping = True
        self._waker.send(b"x")

    # -- connections -----------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("cannot accept: %s", error)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            conn = Conn(sock, self.log, self.rewatch)
            self._conns[conn.fd] = conn
            self._poller.watch(conn.fd, write=False, known=False)

    def _ready(self, conn: Conn, readable: bool, writable: bool) -> None:
        try:
            if writable and conn.out and conn.flush(self.now()) and conn.close_when_sent:
                self._close(conn)
                return
            if readable and conn.handshake():
                self._read(conn)
        except Closed:
            self._lost(conn)
            return
        self.rewatch(conn)

    def _read(self, conn: Conn) -> None:
        while (data := conn.read()) is not None:
            now_ns = self.now() if conn.stamp_ns is None else conn.stamp_ns
            try:
                done = conn.parser.feed(data)
            except BadRequest as error:
                body = json.dumps({"error": f"no HTTP request: {error}"}).encode()
                conn.send(response(400, body, [("Content-Type", "application/json")], keep_alive=False))
                self._hang_up_after(conn)
                return
            if conn.parser.wants_continue:
                conn.parser.wants_continue = False
                if not done:
                    conn.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            conn.requests.extend((request, now_ns) for request in done)
            self._next(conn)
            if conn.dead or conn.fd not in self._conns:
                return

    def _next(self, conn: Conn) -> None:
        while conn.requests and not conn.replying and not conn.dead:
            request, arrival_ns = conn.requests.popleft()
            conn.replying = True
            self.requests.handle(conn, request, arrival_ns)

    def answered(self, conn: Conn, *, keep: bool, reset: bool = False) -> None:
        """The answer's last byte was given to the connection."""
        conn.busy, conn.replying = None, False
        if reset:
            self._close(conn, reset=True)
        elif not keep:
            self._hang_up_after(conn)
        else:
            self.rewatch(conn)
            self._next(conn)

    def _hang_up_after(self, conn: Conn) -> None:
        if conn.out:
            conn.close_when_sent = True
            self.rewatch(conn)
        else:
            self._close(conn)

    def rewatch(self, conn: Conn) -> None:
        """Ask the poller for room to write, or no longer."""
        if not conn.dead and conn.fd in self._conns and conn.wants_write != conn.watches_write:
            conn.watches_write = conn.wants_write
            self._poller.watch(conn.fd, write=conn.wants_write, known=True)

    def _lost(self, conn: Conn) -> None:
        """The client closed."""
        busy, conn.busy = conn.busy, None
        self._close(conn)
        if busy is not None:
            self.engine.hang_up(busy.job)

    def _close(self, conn: Conn, *, reset: bool = False) -> None:
        if self._conns.pop(conn.fd, None) is not None:
            self._poller.forget(conn.fd)
        conn.close(reset=reset)


class _Probe:
    """Ends in a call."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        """Nobody sees them."""

    def finished(self, job: Job, finish: str) -> None:
        self._answer()


def raise_file_limit() -> None:
    """As many open sockets as the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(config: RigConfig, ready: Callable[[RigServer], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called once the port is open, with the server (its `url`, `port`).

    Raises OSError if the address cannot be bound, SystemExit(1) when the config says that the server dies.
    """
    raise_file_limit()
    server = RigServer(config)
    if threading.current_thread() is threading.main_thread():

        def handler(number: int, frame: FrameType | None) -> None:
            server.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)
    if ready is not None:
        ready(server)
    try:
        server.run()
    except Died:
        raise SystemExit(1) from None
