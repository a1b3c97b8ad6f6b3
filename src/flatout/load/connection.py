"""One connection to the server: TCP, a proxy's tunnel, TLS, and the bytes that go out. Never blocks."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final, Protocol

from flatout.load.clock import Clock
from flatout.load.http import connect_head
from flatout.load.job import Endpoint
from flatout.load.stream import Exchange
from flatout.load.system import IN, OUT, Poller
from flatout.net import Address, host_port, tls_context
from flatout.protocol import KEPT_CHARS, shorten

READ_BYTES: Final = 16384
BULK_BYTES: Final = 262144
STALE_NS: Final = 1_000_000_000
"""Idle for longer, a connection may have been given up by the server before a request reaches it."""
_PROXY_HEAD_BYTES: Final = 16384


@dataclass(frozen=True, slots=True)
class Route:
    """How connections of one job are made. `addresses`: tried in order. `tls`: None for plain HTTP."""

    endpoint: Endpoint
    addresses: Sequence[Address]
    tls: ssl.SSLContext | None

    @property
    def peer(self) -> str:
        if self.endpoint.proxy is not None:
            return f"the proxy {host_port(self.endpoint.proxy.host, self.endpoint.proxy.port)}"
        return host_port(self.endpoint.host, self.endpoint.port)


class Owner(Protocol):
    """Who is told what becomes of a connection."""

    def opened(self, connection: Connection) -> None: ...

    def open_failed(self, connection: Connection, words: str, *, fatal: bool) -> None: ...


def tls_settings(endpoint: Endpoint) -> ssl.SSLContext | None:
    """None for http. Raises ValueError if the CA file is of no use."""
    if endpoint.scheme == "http":
        return None
    try:
        return tls_context(endpoint.ca_file, insecure=endpoint.insecure)
    except OSError as error:
        raise ValueError(f"the CA file {endpoint.ca_file} cannot be used: {error}") from error


class Connection:
    """State: `tcp` → `proxy` → `tls` → `open`, or closed (`fd` = −1). `connect_ns` is the time that took, until the
    first request takes it; `exchange` is the request in flight."""

    __slots__ = (
        "_address", "_begin_ns", "_clock", "_head", "_incoming", "_mask", "_opened_ns", "_out", "_outgoing", "_owner",
        "_poller", "_route", "_table", "connect_ns", "deadline_ns", "exchange", "fd", "lane", "plain", "recvmsg",
        "served", "sock", "state", "tls", "write_failed",
    )  # fmt: skip

    def __init__(
        self, route: Route, owner: Owner, poller: Poller, clock: Clock, lane: Any, table: dict[int, Connection]
    ) -> None:
        self._route, self._owner, self._poller, self._clock = route, owner, poller, clock
        self._table = table
        self.lane = lane
        self._address = 0
        self._out = memoryview(b"")
        self._head = b""
        self._mask = 0
        self.state = "new"
        self.fd = -1
        self.served = 0
        self.exchange: Exchange | None = None
        self.plain: Exchange | None = None  # the exchange, where reads need no decryption
        self.write_failed = False
        self.tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connect_ns = -1

    def open(self, timeout_s: float) -> None:
        """Begins to connect; the owner hears how it went."""
        self._begin_ns = monotonic_ns()
        self.deadline_ns = self._begin_ns + int(timeout_s * 1e9)
        try:
            self._connect()
        except OSError as error:
            self._fail(f"cannot open a connection to {self._route.peer}: {error.strerror or error}")

    def _connect(self) -> None:
        family, address = self._route.addresses[self._address]
        self.sock = sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        self.fd = sock.fileno()
        self.recvmsg: Callable[..., Any] = sock.recvmsg
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._table[self.fd] = self
        self._clock.stamped(sock)
        self.state = "tcp"
        self._poller.register(self.fd, IN | OUT)
        self._mask = IN | OUT
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            self._refused(code)

    def _refused(self, code: int) -> None:
        self.close()
        self._address += 1
        if self._address < len(self._route.addresses):
            self._connect()
            return
        words = {errno.ECONNREFUSED: "nothing listens there (connection refused)"}.get(code, os.strerror(code))
        self._fail(f"cannot connect to {self._route.peer}: {words}")

    def give_up(self, timeout_s: float) -> None:
        """The limit for connecting has passed."""
        what = {"tcp": "connect to", "proxy": "get an answer to CONNECT from"}.get(self.state, "finish TLS with")
        words = f"could not {what} {self._route.peer} within {timeout_s:g} s (--connect-timeout raises the limit)"
        if self.state == "tcp" and self._address + 1 < len(self._route.addresses):
            self.deadline_ns += int(timeout_s * 1e9)
            self._refused(errno.ETIMEDOUT)
        else:
            self._fail(words)

    def _fail(self, words: str, *, fatal: bool = False) -> None:
        self.close()
        self._owner.open_failed(self, words, fatal=fatal)

    def advance(self, mask: int) -> None:
        """One step of setting up, after the poller reported `mask`."""
        try:
            if self.state == "tcp":
                code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._refused(code)
                elif mask & OUT and self._is_connected():
                    self._connected()
                return
            if mask & OUT:
                self.flush()
            data = self._receive()
            if data is None:
                return
            if self.state == "proxy":
                self._hear_proxy(data)
            else:
                self._handshake(data)
        except OSError as error:
            self._trouble(error)

    def _is_connected(self) -> bool:
        """False for an event that was meant for an older connection of the same number."""
        try:
            self.sock.getpeername()
        except OSError:
            return False
        return True

    def _receive(self) -> bytes | None:
        try:
            return self.sock.recv(BULK_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def _trouble(self, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            self._fail(tls_words(error), fatal=isinstance(error, ssl.SSLCertVerificationError))
        else:
            self._fail(f"the connection to {self._route.peer} broke while it was set up: {error.strerror or error}")

    def _connected(self) -> None:
        endpoint = self._route.endpoint
        if endpoint.scheme == "https" and endpoint.proxy is not None:
            self.state = "proxy"
            self._send(connect_head(endpoint))
        elif self._route.tls is not None:
            self._handshake(None)
        else:
            self._opened()

    def _hear_proxy(self, data: bytes) -> None:
        self._head += data
        head, gap, rest = self._head.partition(b"\r\n\r\n")
        if not gap:
            if not data or len(self._head) > _PROXY_HEAD_BYTES:
                self._fail(f"{self._route.peer} gave no answer to CONNECT")
            return
        line = head.split(b"\r\n", 1)[0]
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].startswith(b"2"):
            self._fail(f"{self._route.peer} refused the tunnel: {shorten(line, KEPT_CHARS)}")
            return
        self._head = b""
        self._handshake(rest or None)

    def _handshake(self, data: bytes | None) -> None:
        """Goes on with TLS. `data`: b"" if the peer closed."""
        assert self._route.tls is not None
        if self.tls is None:
            self.state = "tls"
            self.tls = self._route.tls.wrap_bio(
                self._incoming, self._outgoing, server_hostname=self._route.endpoint.host
            )
        if data:
            self._incoming.write(data)
        elif data is not None:
            self._incoming.write_eof()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send(self._outgoing.read())
            return
        except ssl.SSLError:
            self._send(self._outgoing.read())  # the alert
            raise
        self._send(self._outgoing.read())
        self._opened()

    def _opened(self) -> None:
        self.state = "open"
        self._opened_ns = monotonic_ns()
        self.connect_ns = self._opened_ns - self._begin_ns
        self._watch()
        self._owner.opened(self)

    # open

    def seal(self, request: bytes) -> bytes:
        """The request as it goes over the wire, encrypted where needed: prepared before its moment."""
        if self.tls is None:
            return request
        view = memoryview(request)
        while view:
            view = view[self.tls.write(view) :]
        return self._outgoing.read()

    def begin(self, exchange: Exchange, sealed: bytes) -> None:
        """Writes a request. Stamps `send_ns` just before its first byte. A failing write is no error yet: the server
        may have answered before it closed."""
        self.exchange = exchange
        self.plain = exchange if self.tls is None else None
        exchange.connect_ns, self.connect_ns = self.connect_ns, -1
        self.served += 1
        exchange.send_ns = now_ns = monotonic_ns()
        exchange.reused = self.served > 1 or now_ns - self._opened_ns > STALE_NS
        self._send(sealed)

    def unseal(self, data: bytes) -> bytes:
        """The plain bytes in what was received; b"" in, for the peer's end. Raises ssl.SSLError."""
        assert self.tls is not None
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        pieces = []
        try:
            while piece := self.tls.read(BULK_BYTES):
                pieces.append(piece)
            self.state = "ended"  # by the server's close_notify
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.state = "ended"
        if self._outgoing.pending:
            self._send(self._outgoing.read())
        return b"".join(pieces)

    @property
    def writing(self) -> bool:
        return len(self._out) > 0

    def _send(self, data: bytes) -> None:
        if self.write_failed or not data:
            return
        if self._out:
            self._out = memoryview(bytes(self._out) + data)
        else:
            self._out = memoryview(data)
        self.flush()

    def flush(self) -> None:
        """Writes what is waiting, as far as the socket takes it."""
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.write_failed = True
            self._out = memoryview(b"")
        self._watch()

    def _watch(self) -> None:
        mask = IN | OUT if self._out or self.state == "tcp" else IN
        if mask != self._mask and self.fd >= 0:
            self._mask = mask
            self._poller.modify(self.fd, mask)

    def close(self) -> None:
        if self.fd >= 0:
            if self._mask:
                self._poller.unregister(self.fd)
            del self._table[self.fd]
            self.sock.close()
            self.fd = -1
            self._out = memoryview(b"")
            self.recvmsg = _closed
            self.plain = None


def _closed(*_: object) -> Any:
    raise OSError(errno.EBADF, "the connection is closed")


def tls_words(error: ssl.SSLError) -> str:
    """A sentence for a TLS failure that says what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's TLS certificate is not trusted: {error.verify_message}. Give its CA with --ca FILE, or "
            "--insecure to go without the check"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "http request" in reason or "record layer" in reason:
        return f"the server does not speak TLS there ({reason}): is it http://, not https://?"
    return f"TLS with the server failed: {reason}"
