"""Reading: wait for sockets, read, stamp, store. Everything else happens when nothing waits to be read."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

import httptools

from flatout.load.clock import ANCILLARY_BYTES, DOUBTFUL_LAG_NS, STAMP, Clock
from flatout.load.connection import BULK_BYTES, READ_BYTES, Connection, tls_words
from flatout.load.driver import Driver
from flatout.load.ledger import SLICE_NS
from flatout.load.stream import Exchange
from flatout.load.system import IN, OUT, Poller
from flatout.load.watch import PAUSE_NS
from flatout.protocol import shorten

BATCH: Final = 256
"""Sockets read in one turn: 2 ms."""
LONGEST_WAIT_S: Final = 0.1
RUNNING_WAIT_NS: Final = 5_000_000
"""Longest wait while a job runs: only a wait that was short shows that the process stood still in it."""
_LAG_MAX: Final = 2**31 - 1
_BULK_READS: Final = 16
_PARSER_ERRORS: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade, httptools.HttpParserCallbackError)


class Reader:
    """Runs one driver over a poller. `handlers`: other descriptors (the parent's) and what to call for them."""

    def __init__(self, poller: Poller, clock: Clock, handlers: dict[int, Callable[[int], None]]) -> None:
        self.poller = poller
        self.clock = clock
        self.handlers = handlers
        self.driver: Driver | None = None
        self._wake_ns = 0

    def step(self, wait_s: float = LONGEST_WAIT_S) -> None:
        """Reads all that is ready, turn after turn, for at most `wait_s`, or until there is something else to do: a
        message from the parent, a time that has come, answers to decode (a slice a turn, when nothing was ready)."""
        driver = self.driver
        if driver is None:
            for fd, mask in self.poller.poll(wait_s, BATCH):
                self.handlers[fd](mask)
            return
        poll, ledger, sweep, now = self.poller.poll, driver.ledger, self._sweep, monotonic_ns
        now_ns = now()
        until_ns = now_ns + int(wait_s * 1e9)
        launched_ns = driver.launched_ns
        while True:
            waiting, behind = ledger.waiting, ledger.behind
            longest_ns = now_ns + RUNNING_WAIT_NS if launched_ns >= 0 else until_ns
            asked_ns = min(driver.next_ns, until_ns, longest_ns) - now_ns
            if waiting or behind or asked_ns < 0:
                asked_ns = 0
            events = poll(asked_ns * 1e-9, BATCH)
            before_ns = self._wake_ns
            self._wake_ns = now_ns = now()
            if now_ns - before_ns - asked_ns > PAUSE_NS and 0 <= launched_ns <= before_ns:
                driver.watch.note_pause(before_ns, now_ns)
            handled = False
            if events:
                handled = sweep(events, driver)
                now_ns = now()
            if (waiting or behind) and (not events or ledger.forced):
                driver.work(now_ns + SLICE_NS)
                now_ns = now()
            if now_ns >= driver.next_ns:
                driver.tick(now_ns)
                return
            if handled or now_ns >= until_ns:
                return

    def _sweep(self, events: list[tuple[int, int]], driver: Driver) -> bool:
        """The hot path: an attribute looked up here is looked up for every token. True if a handler was called."""
        conns, unpack, now = driver.conns, STAMP.unpack, monotonic_ns
        offset_ns = self.clock.offset_ns
        lag_max_ns = driver.lag_max_ns
        handled = False
        for fd, mask in events:
            try:
                connection = conns[fd]
            except KeyError:
                if fd in self.handlers:
                    self.handlers[fd](mask)
                    handled = True
                continue
            exchange = connection.plain
            if exchange is None or mask != IN:
                self._attend(connection, mask)
                continue
            recvmsg, feed = connection.recvmsg, exchange.feed
            try:
                data, ancillary, _, _ = recvmsg(READ_BYTES, ANCILLARY_BYTES)
                t_ns = now()
                if not data:
                    driver.closed(connection, t_ns)
                    continue
                if ancillary:
                    seconds, nanos = unpack(ancillary[0][2])
                    stamp_ns = seconds * 1_000_000_000 + nanos - offset_ns
                    lag_ns = t_ns - stamp_ns
                    if not 0 <= lag_ns < DOUBTFUL_LAG_NS:
                        stamp_ns, lag_ns = self._doubt(seconds * 1_000_000_000 + nanos, t_ns)
                        offset_ns = self.clock.offset_ns
                    t_ns = stamp_ns
                else:
                    lag_ns = -1 if self.clock.kind == "kernel" else t_ns - self._wake_ns
                if lag_ns > lag_max_ns:
                    driver.lag_max_ns = lag_max_ns = lag_ns
                exchange.stamps.append(t_ns)
                exchange.lags.append(lag_ns)
                exchange.wire_bytes += len(data)
                feed(data)
                exchange.ends.append(len(exchange.parts))
                if exchange.attention:
                    driver.look_closer(connection, exchange, t_ns)
                if len(data) == READ_BYTES:
                    self._read_on(connection, driver)
            except BlockingIOError:
                continue
            except (OSError, *_PARSER_ERRORS) as error:
                self._trouble(connection, exchange, error)
        return handled

    def _doubt(self, real_ns: int, own_ns: int) -> tuple[int, int]:
        """A stamp that lies in the future or far back: was the wall clock set? Its time, and its lag (-1: the process's
        own clock had to do)."""
        stamp_ns = real_ns - self.clock.sample()
        lag_ns = own_ns - stamp_ns
        return (stamp_ns, min(lag_ns, _LAG_MAX)) if lag_ns >= 0 else (own_ns, -1)

    def _attend(self, connection: Connection, mask: int) -> None:
        """All that is no plain read: setting up, writing, TLS, a connection without a request."""
        driver = self.driver
        assert driver is not None
        if connection.state != "open":
            connection.advance(mask)
            return
        if mask & OUT:
            connection.flush()
        if mask & ~OUT:
            self._read(connection, driver, BULK_BYTES if connection.exchange is None else READ_BYTES)

    def _read_on(self, connection: Connection, driver: Driver) -> None:
        """More than one buffer was waiting: reads the rest in large pieces, in turn with the other connections."""
        for _ in range(_BULK_READS):
            if connection.fd < 0 or connection.exchange is None:
                return
            if self._read(connection, driver, BULK_BYTES) < BULK_BYTES:
                return

    def _read(self, connection: Connection, driver: Driver, size: int) -> int:
        """One read of any open connection; returns how much came."""
        exchange = connection.exchange
        try:
            data, ancillary, _, _ = connection.recvmsg(size, ANCILLARY_BYTES)
            own_ns = monotonic_ns()
            if exchange is None:
                self._idle_data(connection, driver, data, own_ns)
                return 0
            t_ns, lag_ns = self._stamp(ancillary, own_ns)
            received = len(data)
            if connection.tls is not None:
                data = connection.unseal(data)
            if data:
                driver.lag_max_ns = max(driver.lag_max_ns, lag_ns)
                exchange.stamps.append(t_ns)
                exchange.lags.append(lag_ns)
                exchange.wire_bytes += len(data)
                exchange.feed(data)
                exchange.ends.append(len(exchange.parts))
                if exchange.attention:
                    driver.look_closer(connection, exchange, t_ns)
            if (not received or connection.state == "ended") and connection.exchange is exchange:
                driver.closed(connection, own_ns)
            return received
        except BlockingIOError:
            return 0
        except (OSError, *_PARSER_ERRORS) as error:
            if exchange is None:
                driver.closed(connection, monotonic_ns())
            else:
                self._trouble(connection, exchange, error)
            return 0

    def _idle_data(self, connection: Connection, driver: Driver, data: bytes, own_ns: int) -> None:
        """A connection without a request: only TLS has anything to say on it (session tickets)."""
        if data and connection.tls is not None and not connection.unseal(data) and connection.state == "open":
            return
        driver.closed(connection, own_ns)

    def _stamp(self, ancillary: list[tuple[int, int, bytes]], own_ns: int) -> tuple[int, int]:
        if not ancillary:
            return own_ns, (-1 if self.clock.kind == "kernel" else min(own_ns - self._wake_ns, _LAG_MAX))
        seconds, nanos = STAMP.unpack(ancillary[0][2])
        real_ns = seconds * 1_000_000_000 + nanos
        stamp_ns = real_ns - self.clock.offset_ns
        if 0 <= own_ns - stamp_ns < DOUBTFUL_LAG_NS:
            return stamp_ns, own_ns - stamp_ns
        return self._doubt(real_ns, own_ns)

    def _trouble(self, connection: Connection, exchange: Exchange, error: Exception) -> None:
        """A read that failed, or bytes that are no HTTP."""
        driver = self.driver
        assert driver is not None
        now_ns = monotonic_ns()
        if len(exchange.ends) < exchange.reads_pending:
            exchange.ends.append(len(exchange.parts))  # the parser stopped within this read
        if connection.exchange is not exchange:
            return
        if isinstance(error, OSError):
            driver.closed(connection, now_ns, broken_words(error, exchange))
            return
        if not exchange.complete and isinstance(error, httptools.HttpParserUpgrade):
            exchange.trouble = "the server switches to another protocol (HTTP 101), which nothing asked for"
        elif not exchange.complete:
            exchange.trouble = f"the server's answer is not HTTP: {shorten(str(error).encode(), 160)}"
        exchange.keep_alive = False
        driver.answered(connection, exchange.last_ns if exchange.complete else now_ns)


def broken_words(error: OSError, exchange: Exchange) -> str:
    """A sentence for a connection that broke while a request was in flight."""
    if isinstance(error, ssl.SSLError):
        return tls_words(error)
    reason = os.strerror(error.errno) if error.errno is not None and error.errno in errno.errorcode else str(error)
    where = "in the middle of the answer" if exchange.answering else "before an answer came"
    return f"the connection broke {where} ({reason.lower()})"
