"""Waiting for sockets: epoll itself where the system has it, the standard selector behind the same calls elsewhere."""

from __future__ import annotations

import select
import selectors
from typing import Final, Protocol

IN: Final = 0x001
OUT: Final = 0x004
ERR: Final = 0x008
HUP: Final = 0x010


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
