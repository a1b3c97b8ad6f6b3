"""One client connection: bytes in, bytes out, never blocking."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from flatout.rig.http import Request, RequestParser
from flatout.rig.truth import BLOCKED, Log

if TYPE_CHECKING:
    from flatout.rig.sink import Answering


_TIMESTAMPNS = 35  # SO_TIMESTAMPNS of asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("qq")


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


class Conn:
    """`out` holds what the kernel would not take; marks tell the log when such an event's last byte really went."""

    def __init__(self, sock: socket.socket, log: Log, rewatch: Callable[[Conn], None]) -> None:
        self.sock = sock
        self._rewatch = rewatch
        self.fd = sock.fileno()
        self.log = log
        self.parser = RequestParser()
        self.requests: deque[tuple[Request, int]] = deque()  # complete, with the ns of their last byte
        self.busy: Answering | None = None  # what is being answered
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
