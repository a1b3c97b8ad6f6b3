"""Pages drawn before anybody asks: of runs that have just come, and of the newest few as the site starts."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from flatout.site.drawer import Busy
from flatout.site.errors import SiteError

log: Final = logging.getLogger("flatout.site")
MOST_WAITING: Final = 100
"""Runs that wait to be drawn; of more, the oldest are left to their first visitor."""
AGAIN_S: Final = 0.1
NEWEST: Final = 3


class Ahead:
    """Draws runs by their ids in a thread of its own, the newest first, and only while nobody waits for a drawing.

    What waits is kept in memory alone: a run that is forgotten here is drawn when somebody looks at it.
    """

    def __init__(self, draw: Callable[[str], None]) -> None:
        """`draw`: of one run by its id; raises Busy where it has to wait."""
        self._draw = draw
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def add(self, public_id: str) -> None:
        with self._changed:
            self._waiting.append(public_id)
            self._changed.notify()

    def start(self, newest: Callable[[], Iterable[str]]) -> None:
        """`newest`: the runs to begin with, asked for in the thread."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(newest,), name="ahead", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends after the drawing that goes on."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, newest: Callable[[], Iterable[str]]) -> None:
        try:
            first = list(newest())
        except Exception as error:  # without them the site works as well
            log.warning("the newest runs could not be looked up to be drawn: %s", type(error).__name__)
            first = []
        with self._changed:
            for one in first[: MOST_WAITING - len(self._waiting)]:
                self._waiting.appendleft(one)
        while (public_id := self._next()) is not None:
            began = time.monotonic()
            try:
                self._draw(public_id)
            except Busy:
                with self._changed:
                    if len(self._waiting) < MOST_WAITING:
                        self._waiting.append(public_id)
                    self._changed.wait_for(lambda: self._stopped, AGAIN_S)
                continue
            except Exception as error:  # whoever looks at the run is told then
                if not isinstance(error, SiteError):
                    log.warning("the page of a run could not be drawn beforehand: %s", type(error).__name__)
            with self._changed:  # half of the time at most: publishing and reading need the machine, too
                self._changed.wait_for(lambda: self._stopped, time.monotonic() - began)

    def _next(self) -> str | None:
        """The newest that waits; None when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._waiting) > 0)
            return None if self._stopped else self._waiting.pop()
