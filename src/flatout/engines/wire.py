"""The control connection's sockets: every wait ends with the exchange's deadline, or when the user stops.

httpcore, on which httpx stands, bounds each single receive; a server that sends a byte now and then would keep it for
ever.
"""

from __future__ import annotations

import errno
import os
import queue
import selectors
import socket
import ssl
from collections.abc import Callable, Iterable
from time import monotonic, sleep
from typing import Any, Final, TypeVar

import httpcore

from flatout.net import Address, look_up

T = TypeVar("T")
Kind = type[httpcore.TimeoutException] | type[httpcore.NetworkError]

SLICE_S: Final = 0.1
"""Longest wait between two looks at whether the user wants to stop."""
DEFAULT_S: Final = 10.0
KEPT: Final = 4
"""Connections that wait for another request."""
_Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Stopped(Exception):
    """The user wants to stop; nothing is wrong with the server."""


class HandshakeTimeout(httpcore.ConnectTimeout):
    """TCP connected, but TLS did not come about in time."""


class Until(float):
    """A timeout in seconds that runs from its making. httpcore hands it on untouched to the sockets, so that
    one deadline holds for all receives of an exchange. `stopping` is asked in every wait."""

    def __new__(cls, limit_s: float, stopping: Callable[[], bool] | None = None) -> Until:
        made = super().__new__(cls, limit_s)
        made.end_s = monotonic() + limit_s
        made.stopping = stopping
        return made

    end_s: float
    stopping: Callable[[], bool] | None

    @property
    def left_s(self) -> float:
        return self.end_s - monotonic()

    def check(self, late: Kind) -> None:
        """Raises Stopped, or `late` once the time is over."""
        if self.stopping is not None and self.stopping():
            raise Stopped
        if self.left_s <= 0:
            raise late(f"not done within {float(self):g} s")

    def share(self, parts: int) -> Until:
        """The first of `parts` equal shares of what is left."""
        return Until(max(0.0, self.left_s) / parts, self.stopping)


def _until(timeout: float | None) -> Until:
    return timeout if isinstance(timeout, Until) else Until(DEFAULT_S if timeout is None else timeout)


def _perform(sock: socket.socket, action: Callable[[], T], wait_for: int, until: Until, late: Kind, broken: Kind) -> T:
    """`action` on a socket that does not block, as often as it takes. Raises `late`, `broken` or Stopped."""
    while True:
        until.check(late)
        try:
            return action()
        except ssl.SSLWantReadError:
            events = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        except (BlockingIOError, InterruptedError):
            events = wait_for
        except (OSError, ValueError) as error:  # ValueError: a host name that TLS cannot take
            raise broken(str(error)) from error
        with _Selector() as selector:
            selector.register(sock, events)
            selector.select(max(0.0, min(until.left_s, SLICE_S)))


class Stream(httpcore.NetworkStream):
    """One connection. Times out by the deadline of the exchange it serves at the moment."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return _perform(
            self._sock,
            lambda: self._sock.recv(max_bytes),
            selectors.EVENT_READ,
            _until(timeout),
            httpcore.ReadTimeout,
            httpcore.ReadError,
        )

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        until, rest = _until(timeout), memoryview(buffer)
        while rest:
            sent = _perform(
                self._sock,
                lambda rest=rest: self._sock.send(rest),  # type: ignore[misc]
                selectors.EVENT_WRITE,
                until,
                httpcore.WriteTimeout,
                httpcore.WriteError,
            )
            rest = rest[sent:]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        until = _until(timeout)

        def wrapped() -> ssl.SSLSocket:
            return ssl_context.wrap_socket(self._sock, server_hostname=server_hostname, do_handshake_on_connect=False)

        try:
            until.check(HandshakeTimeout)
            sock = _perform(self._sock, wrapped, selectors.EVENT_READ, until, HandshakeTimeout, httpcore.ConnectError)
            self._sock = sock  # the plain one is detached now; closing must close this one
            _perform(sock, sock.do_handshake, selectors.EVENT_READ, until, HandshakeTimeout, httpcore.ConnectError)
        except BaseException:
            self.close()
            raise
        return Stream(sock)

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for: the TLS of the connection, and whether an idle one has been closed by the server."""
        if info == "ssl_object":
            return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
        if info == "is_readable":
            with _Selector() as selector:
                selector.register(self._sock, selectors.EVENT_READ)
                return bool(selector.select(0))
        return None


class Backend(httpcore.NetworkBackend):
    """Opens connections within what the exchange's connect timeout has left; a host's addresses share it."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        until = _until(timeout)
        addresses = _resolved(host, port, until)
        failure: Exception | None = None
        for i, (family, address) in enumerate(addresses):
            try:
                return Stream(_connected(family, address, until.share(len(addresses) - i)))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                # A refusal says more than an address that does not answer.
                failure = error if failure is None or isinstance(error, httpcore.ConnectError) else failure
        assert failure is not None
        raise failure

    def sleep(self, seconds: float) -> None:
        sleep(seconds)


def _connected(family: int, address: Any, until: Until) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def connect() -> None:
            code = sock.connect_ex(address)
            if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
                raise BlockingIOError
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or (0 if code == errno.EISCONN else code)
            if code:
                raise OSError(code, os.strerror(code))

        _perform(sock, connect, selectors.EVENT_WRITE, until, httpcore.ConnectTimeout, httpcore.ConnectError)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolved(host: str, port: int, until: Until) -> list[Address]:
    answers = look_up(host, port)
    while True:
        until.check(httpcore.ConnectTimeout)
        try:
            found = answers.get(timeout=max(0.001, min(until.left_s, SLICE_S)))
        except queue.Empty:
            continue
        if isinstance(found, list):
            return found
        # httpcore drops a cause, but not what was being handled.
        try:
            raise found
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error


class Connections:
    """Kept connections to one server. `proxy`: its URL, and the headers that it gets."""

    def __init__(
        self, tls: ssl.SSLContext | None, proxy: tuple[str, list[tuple[bytes, bytes]]] | None, most: int
    ) -> None:
        kept: dict[str, Any] = {
            "ssl_context": tls,
            "max_connections": most,
            "max_keepalive_connections": KEPT,
            "keepalive_expiry": 5.0,
            "network_backend": Backend(),
        }
        self._pool: httpcore.ConnectionPool = (
            httpcore.ConnectionPool(**kept)
            if proxy is None
            else httpcore.HTTPProxy(proxy_url=proxy[0], proxy_headers=proxy[1], **kept)
        )
        self.close = self._pool.close

    def request(
        self, method: str, url: str, headers: list[tuple[str, str]], content: bytes, *, connect: Until, until: Until
    ) -> httpcore.Response:
        """The head of the answer; its caller closes it. What fails on a new connection fails for good.

        A request is sent again where the server closed a *kept* connection before it answered: llama.cpp hangs up half
        a millisecond after each stream though its headers say keep-alive, others as a connection was idle for 5 s.
        """
        opened: list[str] = []

        def follow(event: str, _: object) -> None:
            if event.startswith("connection."):  # httpcore's events of opening one, plain or by TLS
                opened.append(event)

        timeout = {"connect": connect, "read": until, "write": until, "pool": until}
        for kept in range(KEPT, -1, -1):
            extensions = {"timeout": timeout, "trace": follow}
            request = httpcore.Request(method, url, headers=headers, content=content, extensions=extensions)
            try:
                return self._pool.handle_request(request)
            except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
                silent = isinstance(error, httpcore.NetworkError) or "disconnected" in str(error)
                if opened or not kept or not silent:
                    raise
        raise AssertionError("the last try returns or raises")
