"""The loop of the load process: wait, read, stamp, store. Everything else happens when nothing waits to be read."""

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
from flatout.load.exchange import Exchange
from flatout.load.ledger import SLICE_NS
from flatout.load.poller import IN, OUT, Poller
from flatout.target.openai import shorten

BATCH: Final = 4096
LONGEST_WAIT_S: Final = 0.1
_LAG_MAX: Final = 2**31 - 1
_BULK_READS: Final = 16
_PARSER_ERRORS: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade, httptools.HttpParserCallbackError)


class Loop:
    """Runs one driver over a poller. `handlers`: other descriptors (the parent's) and what to call for them."""

    def __init__(self, poller: Poller, clock: Clock, handlers: dict[int, Callable[[int], None]]) -> None:
        self.poller = poller
        self.clock = clock
        self.handlers = handlers
        self.driver: Driver | None = None
        self._wake_ns = 0

    def step(self, wait_s: float = LONGEST_WAIT_S) -> None:
        """One round: waits at most `wait_s`, reads all that is ready; decodes a slice if nothing was."""
        driver = self.driver
        busy = driver is not None and driver.ledger.busy
        if driver is not None:
            wait_s = 0.0 if busy else max(0.0, min(wait_s, (driver.next_ns - monotonic_ns()) / 1e9))
        events = self.poller.poll(wait_s, BATCH)
        self._wake_ns = now_ns = monotonic_ns()
        if driver is None:
            for fd, mask in events:
                self.handlers[fd](mask)
            return
        if events:
            self._sweep(events, driver)
            now_ns = monotonic_ns()
        if busy and (not events or driver.ledger.forced):
            driver.work(now_ns + SLICE_NS)
            now_ns = monotonic_ns()
        if now_ns >= driver.next_ns:
            driver.tick(now_ns)

    def _sweep(self, events: list[tuple[int, int]], driver: Driver) -> None:
        """The hot path: an attribute looked up here is looked up for every token."""
        conns, clock, unpack, now = driver.conns, self.clock, STAMP.unpack, monotonic_ns
        offset_ns = clock.offset_ns
        kernel = clock.kind == "kernel"
        wake_ns, lag_max_ns = self._wake_ns, driver.lag_max_ns
        for fd, mask in events:
            connection = conns.get(fd)
            if connection is None:
                if fd in self.handlers:
                    self.handlers[fd](mask)
                continue
            exchange = connection.plain
            if exchange is None or mask != IN:
                self._attend(connection, mask)
                continue
            try:
                data, ancillary, _, _ = connection.recvmsg(READ_BYTES, ANCILLARY_BYTES)
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
                        offset_ns = clock.offset_ns
                    t_ns = stamp_ns
                else:
                    lag_ns = -1 if kernel else t_ns - wake_ns
                if lag_ns > lag_max_ns:
                    driver.lag_max_ns = lag_max_ns = lag_ns
                exchange.stamps.append(t_ns)
                exchange.lags.append(lag_ns)
                exchange.wire_bytes += len(data)
                exchange.feed(data)
                exchange.ends.append(len(exchange.parts))
                if exchange.attention:
                    driver.look_closer(connection, exchange, t_ns)
                if len(data) == READ_BYTES:
                    self._read_on(connection, driver)
            except BlockingIOError:
                continue
            except (OSError, *_PARSER_ERRORS) as error:
                self._trouble(connection, exchange, error)

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
