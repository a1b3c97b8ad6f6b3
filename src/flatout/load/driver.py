"""Drives the lanes of one job: connections opened before they are needed, one launch, restarts, limits, the end."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from time import monotonic_ns
from typing import Final

from flatout.load.clock import Clock
from flatout.load.connection import Connection, Route
from flatout.load.http import request_bytes, request_head, request_id
from flatout.load.job import Job, Status, Stream
from flatout.load.ledger import Ledger
from flatout.load.samples import FAILED, OK, REFUSED
from flatout.load.stream import Exchange
from flatout.load.system import Poller
from flatout.load.watch import Watch
from flatout.net import retry_after_s

CONNECTING: Final = 64
"""Connections set up at one time: a listen queue must not overflow."""
TICK_NS: Final = 100_000_000
SHORT_READS: Final = 64
"""An answer of fewer reads is decoded before its lane goes on, unless the lane's last answer was good."""
HEAD_MAX_BYTES: Final = 1 << 20
LINGER_NS: Final = 1_000_000_000
"""After [DONE], how long a server may keep an answer open before it counts as ended."""
REOPENS: Final = 5
CHECKED: Final = 128
LAUNCHED_TOGETHER: Final = 32
"""Requests of a launch that are sent before the sockets are looked at again: 1 ms."""
BACKOFF_S: Final = 0.25
BACKOFF_MAX_S: Final = 5.0
REFUSED_S: Final = 0.5


class Lane:
    """`first`: the body of the first round is still to be sent (until one request of this lane has succeeded).
    `proved`: the last answer was good, so that the next request need not wait until this one is decoded."""

    __slots__ = (
        "connection", "done", "failures", "first", "number", "prepared", "proved", "refusals", "refused_since_ns",
        "reopened", "retried", "round", "sent_ns", "spare", "started", "stream", "token_ns",
    )  # fmt: skip

    def __init__(self, number: int, stream: Stream) -> None:
        self.number = number
        self.stream = stream
        self.connection: Connection | None = None
        self.spare: Connection | None = None
        self.prepared: tuple[Exchange, bytes] | None = None
        self.round = 0
        self.first = stream.first_body is not None
        self.failures = 0
        self.refusals = 0
        self.refused_since_ns = -1
        self.reopened = 0
        self.retried = False
        self.proved = False
        self.started = False
        self.sent_ns = self.token_ns = -1  # the first request, and its first token
        self.done = False

    def next_exchange(self, job: Job) -> Exchange:
        stream = self.stream
        asked = stream.first_asked_tokens if self.first else stream.asked_tokens
        offset = stream.first_rid_offset if self.first else stream.rid_offset
        rid = request_id(job.rid_prefix, self.number, self.round) if offset >= 0 else ""
        exchange = Exchange(self.number, self.round, asked, rid, keep_text=job.keep_text)
        exchange.first = self.first
        self.round += 1
        return exchange

    def request(self, head: bytes, exchange: Exchange) -> bytes:
        stream = self.stream
        if exchange.first and stream.first_body is not None:
            return request_bytes(head, stream.first_body, stream.first_rid_offset, exchange.rid)
        return request_bytes(head, stream.body, stream.rid_offset, exchange.rid)

    def failure_wait_s(self) -> float:
        return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** max(0, self.failures - 1))

    def refusal_wait_s(self, asked_s: float | None, limit_s: float) -> float:
        """As long as the server asks, up to the limit; without its word exponentially longer, and lanes apart.

        Its word cannot shorten the wait at will: each further refusal in a row doubles the least that is waited, since
        a server that says "a millisecond" again and again would be stormed.
        """
        spread = 1 + self.number % 16 / 32
        further = min(max(self.refusals - 1, 0), 20)
        if not asked_s:
            return min(REFUSED_S * 2.0**further * spread, limit_s)
        return min(max(asked_s, min(BACKOFF_S * 2.0**further * spread, BACKOFF_MAX_S)), limit_s)


class Driver:
    """All that happens between two reads. The loop calls `tick`, `work`, `answered`, `closed` and `look_closer`; a
    connection calls `opened` and `open_failed`. `conns`: by file descriptor, for the loop."""

    def __init__(self, job: Job, lanes: list[tuple[int, Stream]], clock: Clock, poller: Poller) -> None:
        self.job = job
        self.lanes = [Lane(number, stream) for number, stream in lanes]
        self.clock = clock
        self.poller = poller
        self.watch = Watch(clock)
        self.ledger = Ledger(self.watch, keep_text=job.keep_text)
        self.head = request_head(job.endpoint)
        self.route: Route | None = None
        self.conns: dict[int, Connection] = {}
        self.launched_ns = -1
        self.next_ns = 0
        self.error: str | None = None
        self.last_error: str | None = None
        self.sent = self.finished = self.failed = self.rate_limited = self.in_flight = 0
        self.lag_max_ns = 0
        self._to_open: deque[tuple[Lane, bool]] = deque()
        self._opening = 0
        self._timers: list[tuple[int, int, Lane]] = []
        self._ties = itertools.count()
        self._ticked_ns = monotonic_ns()
        self._sampled_ns = 0
        self._checked = 0
        self._closing = False
        self._filling = False
        self._cuts: list[Exchange] = []
        self._unsent: deque[Lane] = deque()
        self._by_number = {lane.number: lane for lane in self.lanes}
        if job.mode == "closed" and job.max_requests is not None:
            for lane in self.lanes[max(0, job.max_requests) :]:
                lane.done = True
        self._left = sum(not lane.done for lane in self.lanes)

    # before the launch

    def begin(self, route: Route) -> None:
        """Opens every lane's connection."""
        self.route = route
        for lane in self.lanes:
            if not lane.done:
                self._to_open.append((lane, False))
        self._open_more()

    @property
    def ready(self) -> bool:
        """Every lane is connected, or out of the game."""
        return (
            self._opening == 0
            and not self._to_open
            and all(
                lane.done or (lane.connection is not None and lane.connection.state == "open") for lane in self.lanes
            )
        )

    def launch(self) -> int:
        """Sends every lane's first request at the same moment, as near as one process can; returns that moment."""
        for lane in self.lanes:
            if lane.connection is not None and lane.connection.state == "open" and not lane.done:
                exchange = lane.next_exchange(self.job)
                lane.prepared = (exchange, lane.connection.seal(lane.request(self.head, exchange)))
        if self._left:
            self.watch.begin()
        self.clock.sample()
        self._sampled_ns = self._ticked_ns = self.launched_ns = monotonic_ns()
        self._unsent.extend(lane for lane in self.lanes if lane.prepared is not None)
        self._send_more()
        return self.launched_ns

    def _send_more(self) -> None:
        """Goes on with the launch. The first answers may come before the last request is sent."""
        for _ in range(min(LAUNCHED_TOGETHER, len(self._unsent))):
            lane = self._unsent.popleft()
            if lane.prepared is None or lane.done:
                continue
            if lane.connection is None or lane.connection.state != "open":
                lane.prepared[0].release()
                lane.prepared = None
                lane.round -= 1
                self._reconnect(lane)
            else:
                self._send(lane)
        if self._unsent:
            self.next_ns = 0

    # connections

    def _open_more(self) -> None:
        assert self.route is not None
        if self._filling:  # a connection may fail at once and lead back here
            return
        self._filling = True
        while self._to_open and self._opening < CONNECTING and not self._closing:
            lane, spare = self._to_open.popleft()
            if lane.done:
                continue
            connection = Connection(self.route, self, self.poller, self.clock, lane, self.conns)
            if spare:
                lane.spare = connection
            else:
                lane.connection = connection
            self._opening += 1
            connection.open(self.job.timeouts.connect_s)
        self._filling = False

    def _open(self, lane: Lane, *, spare: bool = False) -> None:
        self._to_open.append((lane, spare))
        self._open_more()

    def opened(self, connection: Connection) -> None:
        self._opening -= 1
        lane: Lane = connection.lane
        if lane.connection is connection and self.launched_ns >= 0:
            self._resume(lane)
        self._open_more()

    def open_failed(self, connection: Connection, words: str, *, fatal: bool) -> None:
        self._opening -= 1
        lane: Lane = connection.lane
        if lane.spare is connection:
            lane.spare = None  # it will be opened when it is needed
        else:
            lane.connection = None
            exchange = lane.next_exchange(self.job)
            exchange.trouble = words
            exchange.end_ns = monotonic_ns()
            self._judge(lane, exchange)
            if fatal:
                self.stop(words)
        if not self._closing:
            self._open_more()

    def _send(self, lane: Lane) -> None:
        connection = lane.connection
        assert connection is not None
        if lane.prepared is not None:
            exchange, sealed = lane.prepared
            lane.prepared = None
        else:
            exchange = lane.next_exchange(self.job)
            sealed = connection.seal(lane.request(self.head, exchange))
        self.sent += 1
        self.in_flight += 1
        connection.begin(exchange, sealed)

    # called by the loop

    def look_closer(self, connection: Connection, exchange: Exchange, t_ns: int) -> None:
        """After a read of an answer that is just beginning or has just ended."""
        if exchange.complete:
            self.answered(connection, t_ns)
            return
        if exchange.status < 0:
            if exchange.wire_bytes > HEAD_MAX_BYTES:
                exchange.trouble = f"the head of the server's answer is longer than {HEAD_MAX_BYTES >> 10} KiB"
                self.answered(connection, t_ns)
            return
        if not exchange.keep_alive and self._goes_on(connection.lane) and connection.lane.spare is None:
            self._open(connection.lane, spare=True)
        exchange.decode()  # an answer that is no stream of tokens is looked at in every read, and not kept
        if exchange.started:
            exchange.attention = False
            connection.lane.started = True
            if exchange.round == 0:
                connection.lane.sent_ns = exchange.send_ns
                connection.lane.token_ns = exchange.decoder.first_token_ns

    def answered(self, connection: Connection, t_ns: int) -> None:
        """The answer is complete (or as complete as it gets); its lane goes on at once where it can."""
        exchange = connection.exchange
        assert exchange is not None
        lane: Lane = connection.lane
        exchange.end_ns = t_ns
        connection.exchange = connection.plain = None
        self.in_flight -= 1
        if exchange.answering:
            lane.retried = False
        sound = exchange.trouble is None and not exchange.excess and not connection.write_failed
        if not (exchange.keep_alive and sound and not connection.writing and connection.state == "open"):
            self._drop(connection)
        if (
            exchange.trouble is None
            and exchange.status == 200
            and (lane.proved or exchange.reads_pending > SHORT_READS)
        ):
            lane.started, lane.first = True, False
            self.ledger.waiting.append(exchange)
            self._go_on(lane)
        else:
            self._judge(lane, exchange)

    def closed(self, connection: Connection, t_ns: int, words: str | None = None) -> None:
        """The server closed, or the connection broke (`words`)."""
        exchange = connection.exchange
        lane: Lane = connection.lane
        self._drop(connection)
        if exchange is None:
            self._idle_closed(lane)
        elif not exchange.answering and exchange.reused and not lane.retried:
            lane.retried = True
            lane.round -= 1
            self.sent -= 1
            self.in_flight -= 1
            exchange.release()
            connection.exchange = None
            self._reconnect(lane)
        else:
            if words is not None and not exchange.complete:
                exchange.trouble = words
            exchange.at_eof(t_ns)
            self.answered(connection, t_ns)

    def _idle_closed(self, lane: Lane) -> None:
        if self.launched_ns >= 0 or lane.connection is not None or lane.done:
            return
        lane.reopened += 1
        if lane.reopened > REOPENS:
            self.stop("the server closes its connections before a request can be sent on them")
        else:
            self._open(lane)

    def _drop(self, connection: Connection) -> None:
        lane: Lane = connection.lane
        connection.close()
        if lane.spare is connection:
            lane.spare = None
        elif lane.connection is connection:
            lane.connection = None

    # going on

    def _goes_on(self, lane: Lane) -> bool:
        budget = self.job.max_requests
        return self.job.mode == "closed" and not self._closing and (budget is None or self.sent < budget)

    def _go_on(self, lane: Lane) -> None:
        """Sends the lane's next request, on the best connection there is."""
        if self._goes_on(lane):
            self._reconnect(lane)
        else:
            self._finish(lane)

    def _reconnect(self, lane: Lane) -> None:
        if self._closing:
            return
        if lane.connection is None and lane.spare is not None:
            lane.connection, lane.spare = lane.spare, None
        if lane.connection is None:
            self._open(lane)
        elif lane.connection.state == "open" and self.launched_ns >= 0:
            self._send(lane)

    def _resume(self, lane: Lane) -> None:
        """Goes on after a wait, in which the budget of requests may have been used up."""
        if self.job.mode == "once" or self._goes_on(lane):
            self._reconnect(lane)
        else:
            self._finish(lane)

    def _finish(self, lane: Lane) -> None:
        if lane.done:
            return
        lane.done = True
        self._left -= 1
        for connection in (lane.connection, lane.spare):
            if connection is not None:
                if connection.state != "open":
                    self._opening -= 1
                self._drop(connection)
        if not self._left:
            self.watch.end()
        self.next_ns = 0

    def _judge(self, lane: Lane, exchange: Exchange) -> None:
        """Settles an answer at once and acts on it."""
        outcome = self._settle(lane, exchange)
        if outcome == OK:
            self._go_on(lane)
        elif outcome == REFUSED:
            wait_s = lane.refusal_wait_s(retry_after_s(exchange.headers), self.job.max_retry_after_s)
            self._pause(lane, wait_s)
        elif self._goes_on(lane):
            self._pause(lane, lane.failure_wait_s())
        else:
            self._finish(lane)

    def _settle(self, lane: Lane, exchange: Exchange) -> int:
        now_ns = monotonic_ns()
        patient = lane.refused_since_ns < 0 or now_ns - lane.refused_since_ns < self.job.timeouts.total_s * 1e9
        outcome, words = self.ledger.settle(exchange, refusable=patient)
        if outcome == OK:
            self.finished += 1
            lane.proved, lane.first, lane.started = True, False, True
            lane.failures = lane.refusals = 0
            lane.refused_since_ns = -1
        elif outcome == REFUSED:
            self.rate_limited += 1
            self.last_error = words
            lane.refusals += 1
            if lane.refused_since_ns < 0:
                lane.refused_since_ns = now_ns
        elif outcome == FAILED:
            self.failed += 1
            self.last_error = words
            lane.proved = False
            lane.failures += 1
            if lane.failures >= self.job.give_up_after and self.job.mode == "closed":
                self.stop(f"stream {lane.number} failed {lane.failures} times in a row; the last time: {words}")
        self.next_ns = min(self.next_ns, self._ticked_ns + TICK_NS // 2)
        return outcome

    def _pause(self, lane: Lane, wait_s: float) -> None:
        due_ns = monotonic_ns() + int(wait_s * 1e9)
        heapq.heappush(self._timers, (due_ns, next(self._ties), lane))
        self.next_ns = min(self.next_ns, due_ns)

    # time

    def tick(self, now_ns: int) -> None:
        """What has come due: the rest of the launch, lanes that waited, limits, the clocks' offset, memory."""
        while self._timers and self._timers[0][0] <= now_ns:
            lane = heapq.heappop(self._timers)[2]
            if not lane.done:
                self._resume(lane)
        late_ns = now_ns - self._ticked_ns
        if late_ns >= TICK_NS // 2:
            self._ticked_ns = now_ns
            if late_ns < 20 * TICK_NS:  # after a standstill, what waits to be read comes first
                self._check_limits(now_ns)
            self.ledger.weigh(self.running())
        if now_ns - self._sampled_ns >= 1_000_000_000:
            self._sampled_ns = now_ns
            self.clock.sample()
        due = [self._ticked_ns + TICK_NS]
        if self._timers:
            due.append(self._timers[0][0])
        self.next_ns = min(due)
        self._send_more()

    def running(self) -> list[Exchange]:
        return [c.exchange for c in self.conns.values() if c.exchange is not None]

    def _check_limits(self, now_ns: int) -> None:
        """Looks at a part of many connections each time: a second may pass until one has its turn."""
        limits = self.job.timeouts
        connections = list(self.conns.values())
        share = max(CHECKED, len(connections) // 10)
        begin = self._checked if self._checked < len(connections) else 0
        self._checked = begin + share
        for connection in connections[begin : begin + share]:
            exchange = connection.exchange
            if exchange is None:
                if connection.state != "open" and now_ns > connection.deadline_ns:
                    connection.give_up(limits.connect_s)
                continue
            idle_ns = now_ns - exchange.last_ns
            words = None
            if now_ns - exchange.send_ns > limits.total_s * 1e9:
                words = f"the answer was not finished within {limits.total_s:g} s (--total-timeout raises the limit)"
            elif not exchange.started:
                if now_ns - exchange.send_ns > limits.first_byte_s * 1e9:
                    words = f"no token within {limits.first_byte_s:g} s (--first-token-timeout raises the limit)"
            elif idle_ns > limits.idle_s * 1e9:
                words = f"no further token for {limits.idle_s:g} s (--idle-timeout raises the limit)"
            elif idle_ns > LINGER_NS and exchange.reads_pending:
                self.ledger.behind.append(exchange)
            elif idle_ns > LINGER_NS and exchange.decoder.done:  # the server is through, but keeps the answer open
                exchange.keep_alive = False
                self.answered(connection, exchange.last_ns)
            elif exchange.decoder.error is not None:
                words = exchange.decoder.error
            if words is not None:
                exchange.trouble = words
                self.answered(connection, now_ns)

    def work(self, deadline_ns: int) -> None:
        """One slice of decoding."""
        exchange = self.ledger.work(deadline_ns)
        if exchange is not None:
            self._settle(self._by_number[exchange.stream], exchange)

    def status(self, now_ns: int) -> Status:
        first = [lane for lane in self.lanes if lane.token_ns >= 0]
        return Status(
            t_ns=now_ns,
            connected=sum(c.state == "open" for c in self.conns.values()),
            started=sum(lane.started for lane in self.lanes),
            in_flight=self.in_flight,
            sent=self.sent,
            finished=self.finished,
            failed=self.failed,
            rate_limited=self.rate_limited,
            events=self.ledger.events(self.running()),
            lag_max_ns=max(self.lag_max_ns, self.watch.worst_ns, 0),
            last_error=self.last_error,
            error=self.error,
            ended=self.ended,
            sent_ns=sum(lane.sent_ns for lane in first) // len(first) if first else -1,
            token_ns=sum(lane.token_ns for lane in first) // len(first) if first else -1,
        )

    @property
    def ended(self) -> bool:
        """Nothing more will happen, and all that came is decoded."""
        return (self._left == 0 or self._closing) and not self.ledger.busy

    # the end

    def stop(self, words: str) -> None:
        if self.error is None:
            self.error = words
            self.cut()

    def cut(self) -> None:
        """Closes everything; what is in flight ends here."""
        if self._closing:
            return
        self._closing = True
        self._unsent.clear()
        now_ns = monotonic_ns()
        for connection in list(self.conns.values()):
            exchange, connection.exchange = connection.exchange, None
            self._drop(connection)
            if exchange is not None:
                exchange.end_ns = now_ns
                self.in_flight -= 1
                self._cuts.append(exchange)
        self.watch.end()
        self.next_ns = 0

    def finish_slice(self, deadline_ns: int) -> bool:
        """After `cut`: decodes what is left until the deadline; True when every row is written."""
        while monotonic_ns() < deadline_ns:
            if self.ledger.busy:
                self.work(deadline_ns)
            elif self._cuts:
                exchange = self._cuts[-1]
                if exchange.decode(deadline_ns):
                    self._cuts.pop()
                    self.ledger.settle(exchange, cut=True)
            else:
                return True
        return False
