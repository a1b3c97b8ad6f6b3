"""Waiting: sockets and an absolute time, to the microsecond where the system allows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import struct
import sys
import time

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1, 1


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
