"""The socket side of both senders: waiting to the microsecond, connections, requests in, answers out. One thread."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import selectors
import socket
import ssl
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from flatout.rig.config import ConfigError, RigConfig
from flatout.rig.http import BadRequest, Headers, Reply, Request, RequestParser, response
from flatout.rig.truth import BLOCKED, Log

_TIMESTAMPNS = 35  # SO_TIMESTAMPNS of asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("qq")
_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1, 1
_LONGEST_WAIT_S = 0.5
_SWEEP_EVERY = 2000  # requests after which garbage is collected, once nothing is left to do
_log = logging.getLogger(__name__)


class Poller:
    """Level-triggered readiness of sockets, with a wake-up at an absolute CLOCK_MONOTONIC time.

    On Linux epoll with a timerfd (epoll's own timeout counts whole milliseconds); elsewhere the system's selector.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._selector = None if self._epoll else selectors.DefaultSelector()
        self._timer = -1
        self._armed_ns = 0
        if self._epoll is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._libc = ctypes.CDLL(None, use_errno=True)
                self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
            if self._timer >= 0:
                self._epoll.register(self._timer, select.EPOLLIN)

    def watch(self, fd: int, *, write: bool, known: bool) -> None:
        """Watch for reading, and for room to write if asked; `known`: it is watched already."""
        if self._epoll is not None:
            flags = select.EPOLLIN | (select.EPOLLOUT if write else 0)
            (self._epoll.modify if known else self._epoll.register)(fd, flags)
        elif self._selector is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
            if known:
                self._selector.modify(fd, events)
            else:
                self._selector.register(fd, events)

    def forget(self, fd: int) -> None:
        with contextlib.suppress(OSError, KeyError, ValueError):
            if self._epoll is not None:
                self._epoll.unregister(fd)
            elif self._selector is not None:
                self._selector.unregister(fd)

    def _arm(self, due_ns: int) -> None:
        if due_ns == self._armed_ns:
            return
        self._armed_ns = due_ns
        spec = struct.pack("qqqq", 0, 0, due_ns // 1_000_000_000, due_ns % 1_000_000_000)
        self._libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, spec, None)

    def poll(self, due_ns: int | None, longest_s: float) -> list[tuple[int, bool, bool]]:
        """Wait until a socket is ready, the time comes or `longest_s` has passed; rows (fd, readable, writable)."""
        now_ns = time.monotonic_ns()
        wait_s = longest_s if due_ns is None else min(longest_s, max(0.0, (due_ns - now_ns) / 1e9))
        if self._epoll is None:
            assert self._selector is not None
            ready = self._selector.select(wait_s)
            return [(key.fd, bool(m & selectors.EVENT_READ), bool(m & selectors.EVENT_WRITE)) for key, m in ready]
        if wait_s > 0 and due_ns is not None and self._timer >= 0:
            self._arm(due_ns)
            wait_s += 0.002  # the timer comes first
        elif wait_s > 0:
            wait_s = wait_s if wait_s >= 0.002 else 0.0  # no timer: spin through the last milliseconds
        out = []
        for fd, flags in self._epoll.poll(wait_s):
            if fd == self._timer:
                self._armed_ns = 0
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 8)
                continue
            read = bool(flags & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR))
            out.append((fd, read, bool(flags & select.EPOLLOUT)))
        return out

    def close(self) -> None:
        if self._timer >= 0:
            os.close(self._timer)
        if self._epoll is not None:
            self._epoll.close()
        elif self._selector is not None:
            self._selector.close()


class Closed(Exception):
    """The peer is gone."""


def _stamp(sock: socket.socket) -> bool:
    """Asks the kernel for receive stamps: a request arrives when its bytes do, however late the rig reads them."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def _monotonic(extra: list[tuple[int, int, bytes]]) -> int | None:
    """A receive stamp (wall clock) on the monotonic clock; None where there is none, or the wall clock was set."""
    if not extra or len(extra[0][2]) != _TIMESPEC.size:
        return None
    seconds, nanos = _TIMESPEC.unpack(extra[0][2])
    age_ns = time.time_ns() - (seconds * 1_000_000_000 + nanos)
    return time.monotonic_ns() - age_ns if 0 <= age_ns < 60_000_000_000 else None


class Busy(Protocol):
    """What a connection is busy with."""

    def hang_up(self) -> None:
        """The client has closed the connection."""


class Conn:
    """`out` holds what the kernel would not take; marks tell the log when such an event's last byte really went."""

    def __init__(self, sock: socket.socket, log: Log, rewatch: Callable[[Conn], None]) -> None:
        self.sock = sock
        self._rewatch = rewatch
        self.fd = sock.fileno()
        self.log = log
        self.parser = RequestParser()
        self.requests: deque[tuple[Request, int]] = deque()  # complete, with the ns of their last byte
        self.busy: Busy | None = None  # what is being answered
        self.replying = False  # a request was taken and its answer is not out yet
        self.out = bytearray()
        self._gone = 0  # bytes handed to the kernel
        self._marks: deque[tuple[int, int]] = deque()  # (position of an event's last byte, its number)
        self.wants_write = False  # for the loop: the poller must watch for room
        self.watches_write = False
        self.close_when_sent = False
        self.dead = False
        self.shaking = isinstance(sock, ssl.SSLSocket)
        self.stamp_ns: int | None = None  # when the kernel got the last read's bytes, where it tells
        self._stamped = not self.shaking and _stamp(sock)

    def handshake(self) -> bool:
        """True once TLS is up (or there is none). Raises Closed."""
        if not self.shaking:
            return True
        try:
            self.sock.do_handshake()  # type: ignore[attr-defined]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (ssl.SSLError, OSError) as error:
            raise Closed from error
        self.shaking = False
        return True

    def read(self) -> bytes | None:
        """What is there; None if nothing yet. Raises Closed at the end."""
        self.stamp_ns = None
        try:
            if self._stamped:
                data, extra, _, _ = self.sock.recvmsg(262_144, 64)
                self.stamp_ns = _monotonic(extra)
            else:
                data = self.sock.recv(262_144)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        return data

    def _push(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except OSError:
            self.dead = True  # the loop finds out by reading; until then bytes go nowhere
            return len(data)

    def send(self, data: bytes) -> bool:
        """Send or keep; True if the kernel took everything at once."""
        if self.out:
            self.out += data
            return False
        n = self._push(data)
        self._gone += n
        if n == len(data):
            return True
        self.out += data[n:]
        self.wants_write = True
        self._rewatch(self)
        return False

    def mark(self, event: int) -> None:
        """The event's bytes are the last ones given to `send`, which did not take them all."""
        self.log.flags[event] |= BLOCKED
        self._marks.append((self._gone + len(self.out), event))

    def flush(self, now_ns: int) -> bool:
        """The socket has room; True when nothing is left."""
        while self.out:
            n = self._push(self.out[:1_048_576])
            if not n:
                break
            self._gone += n
            del self.out[:n]
        while self._marks and self._marks[0][0] <= self._gone:
            self.log.flushed[self._marks.popleft()[1]] = now_ns
        self.wants_write = bool(self.out)
        return not self.out

    def renew_log(self, log: Log) -> None:
        """Events of the old log that wait for room stay in the old log."""
        self.log = log
        self._marks.clear()

    def close(self, *, reset: bool = False) -> None:
        if reset:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.sock.close()
        self.dead = True
        self.parser.close()


class SocketServer(ABC):
    """Listens, keeps connections, and runs the loop. A sender says what to answer (`handle`) and what is due (`work`,
    `next_due_ns`). `run` blocks until `stop`."""

    def __init__(self, config: RigConfig) -> None:
        self.config = config
        self.log = Log()
        self.conns: dict[int, Conn] = {}
        self._poller = Poller()
        self._stopping = False
        self._swept = 0  # requests at the last garbage collection
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

    @abstractmethod
    def handle(self, conn: Conn, request: Request, arrival_ns: int) -> None:
        """Answer, at once or later; `answered` when the answer is out."""

    @abstractmethod
    def work(self) -> bool:
        """Do what is due, at most a turn's worth; True if more is due already."""

    @abstractmethod
    def next_due_ns(self) -> int | None:
        """When `work` has something to do again; None when idle."""

    @abstractmethod
    def json_headers(self) -> Headers: ...

    @staticmethod
    def now() -> int:
        return time.monotonic_ns()

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    # -- the rig's own endpoints -----------------------------------------------------------------------------------
    def own(self, request: Request) -> Reply:
        """The answer to a request whose path begins with /rig/."""
        if request.path == "/rig/log":
            return Reply(200, self.log.to_npz(self.config.to_json(), self.now()), "application/octet-stream")
        if request.path == "/rig/reset" and request.method == "POST":
            self.reset()
        elif request.path == "/rig/control" and request.method == "POST":
            try:
                self.control(json.loads(request.body))
            except (ConfigError, ValueError, TypeError) as error:
                return Reply(400, json.dumps({"error": str(error)}).encode(), "application/json")
        elif request.path != "/rig/config":
            return Reply(404, b'{"error":"no such endpoint of the rig"}', "application/json")
        return Reply(200, self.config.to_json().encode(), "application/json")

    def control(self, changes: dict[str, Any]) -> None:
        """Knobs to change, live. Raises ConfigError."""
        self.config = self.config.changed(changes)

    def reset(self) -> None:
        """An empty log. Running requests go on in it under new numbers."""
        self.log, self._swept = Log(), 0
        for conn in self.conns.values():
            conn.renew_log(self.log)

    # -- the loop --------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Until `stop`."""
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
            for conn in list(self.conns.values()):
                conn.close()
            self._listener.close()
            self._poller.close()
            self._wake.close()
            self._waker.close()

    def _turn(self) -> None:
        more = self.work()
        due_ns = self.next_due_ns()
        ready = self._poller.poll(due_ns, 0.0 if more else _LONGEST_WAIT_S)
        if not ready and not more and due_ns is None and len(self.log.records) - self._swept > _SWEEP_EVERY:
            self._swept = len(self.log.records)  # half a second of nothing: nobody is kept waiting
            gc.collect()
        for fd, readable, writable in ready:
            conn = self.conns.get(fd)
            if conn is not None:
                self._ready(conn, readable, writable)
            elif fd == self._listener.fileno():
                self._accept()
            elif fd == self._wake.fileno():
                self._wake.recv(64)

    def stop(self) -> None:
        """From a signal handler or another thread."""
        self._stopping = True
        with contextlib.suppress(OSError):  # it may have stopped by now
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
            self.conns[conn.fd] = conn
            self._poller.watch(conn.fd, write=False, known=False)

    def _ready(self, conn: Conn, readable: bool, writable: bool) -> None:
        try:
            if writable and conn.out and conn.flush(self.now()) and conn.close_when_sent:
                self._close(conn)
                return
            if readable and conn.handshake():
                self._read(conn)
        except Closed:
            busy, conn.busy = conn.busy, None
            self._close(conn)
            if busy is not None:
                busy.hang_up()
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
                self._close_when_sent(conn)
                return
            if conn.parser.wants_continue:
                conn.parser.wants_continue = False
                if not done:
                    conn.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            conn.requests.extend((request, now_ns) for request in done)
            self._next(conn)
            if conn.dead or conn.fd not in self.conns:
                return

    def _next(self, conn: Conn) -> None:
        while conn.requests and not conn.replying and not conn.dead:
            request, arrival_ns = conn.requests.popleft()
            conn.replying = True
            self.handle(conn, request, arrival_ns)

    def reply(self, conn: Conn, reply: Reply, *, keep: bool) -> None:
        """A whole answer, at once."""
        headers = self.json_headers()
        if reply.kind is not None:
            headers = [(name, value) for name, value in headers if name.lower() != "content-type"]
            if reply.kind:
                headers.append(("Content-Type", reply.kind))
        if not conn.dead:
            conn.send(response(reply.status, reply.body, headers + reply.headers, keep_alive=keep))
            self.answered(conn, keep=keep)

    def answered(self, conn: Conn, *, keep: bool, reset: bool = False) -> None:
        """The answer's last byte was given to the connection: its next request, or the end."""
        conn.busy, conn.replying = None, False
        if reset:
            self._close(conn, reset=True)
        elif not keep:
            self._close_when_sent(conn)
        else:
            self.rewatch(conn)
            self._next(conn)

    def _close_when_sent(self, conn: Conn) -> None:
        if conn.out:
            conn.close_when_sent = True
            self.rewatch(conn)
        else:
            self._close(conn)

    def rewatch(self, conn: Conn) -> None:
        """Ask the poller for room to write, or no longer."""
        if not conn.dead and conn.fd in self.conns and conn.wants_write != conn.watches_write:
            conn.watches_write = conn.wants_write
            self._poller.watch(conn.fd, write=conn.wants_write, known=True)

    def _close(self, conn: Conn, *, reset: bool = False) -> None:
        if self.conns.pop(conn.fd, None) is not None:
            self._poller.forget(conn.fd)
        conn.close(reset=reset)
