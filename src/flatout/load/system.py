"""What the load process asks of the operating system: readiness of sockets, priority, open files."""

from __future__ import annotations

import os
import select
import selectors
from typing import Final, Literal, Protocol

IN: Final = 0x001
OUT: Final = 0x004


class Poller(Protocol):
    """The part of `select.epoll` that the loop uses (level-triggered; masks of IN and OUT)."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def modify(self, fd: int, eventmask: int, /) -> None: ...

    def unregister(self, fd: int, /) -> None: ...

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]: ...

    def close(self) -> None: ...


class SelectorPoller:
    """kqueue or poll, for systems without epoll."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    @staticmethod
    def _events(mask: int) -> int:
        return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)

    def register(self, fd: int, eventmask: int, /) -> None:
        self._selector.register(fd, self._events(eventmask))

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._selector.modify(fd, self._events(eventmask))

    def unregister(self, fd: int, /) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        ready = self._selector.select(timeout)
        return [
            (key.fd, (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0))
            for key, events in ready
        ]

    def close(self) -> None:
        self._selector.close()


def make_poller(*, epoll: bool = True) -> Poller:
    """epoll if wanted and there, else the selector."""
    if epoll and hasattr(select, "epoll"):
        return select.epoll()
    return SelectorPoller()


Priority = Literal["real-time", "normal"]
_LEAST_REAL_TIME: Final = 1
"""The lowest real-time priority: above every ordinary process, below all else that is real-time."""


def take_priority() -> Priority:
    """Puts this thread before ordinary processes, and says whether that was allowed.

    A server that computes on every core otherwise lets the reader wait for tens of milliseconds, and tokens that came
    apart are then read together. The reader needs a few microseconds a token; the kernel's own limit on real-time work
    (95 % of the time) stays.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "normal"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_LEAST_REAL_TIME))
    except OSError:
        return "normal"
    return "real-time"


def give_back_priority() -> None:
    """An ordinary process again: decoding what is left must not hold up anyone."""
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


SPARE_FILES: Final = 16
"""Files open besides two connections a stream: the parent, the poller, a look-up, what is being closed."""


def most_streams(processes: int) -> int | None:
    """Streams that so many load processes can carry: each may need a second connection for its next request. None
    where the system sets no limit or tells none."""
    try:
        import resource
    except ImportError:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else processes * max(0, (hard - SPARE_FILES) // 2)


def allow_files(wanted: int) -> None:
    """Raises this process's limit of open files so that `wanted` fit. Raises ValueError if the system forbids it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"{wanted} open files are needed for this many connections, and the system allows {hard}: raise the hard "
            "limit (`ulimit -Hn`), or ask for fewer requests at once"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
