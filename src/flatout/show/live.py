"""The live view: a thread of the conductor's process draws the state of the run, at most four times a second.

The measuring process knows nothing of it. The view has the terminal's second screen to itself and gives the first one
back as it was; the caller prints the tables there (`show.result`).
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from flatout.run.events import Control, Event
from flatout.show.frame import SMALLEST, Drawn, State, apply, frame
from flatout.show.keys import Keys
from flatout.show.plain import PlainView

if TYPE_CHECKING:
    from rich.console import Console
    from rich.control import Control as ScreenControl
    from rich.live import Live

SHORTEST_S: Final = 0.25
LONGEST_S: Final = 1.0
"""Time between two frames: at least, and at most (clocks and countdowns go on without events)."""
JOIN_S: Final = 2.0
LOCK_S: Final = 0.5
BEGIN_FRAME: Final = "\x1b[?2026h"
END_FRAME: Final = "\x1b[?2026l"
"""Terminals that know these show a frame as a whole, never half of it; the others pass over them."""
LEAVE: Final = f"{END_FRAME}\x1b[0m\x1b[?25h\x1b[?1049l"
"""Colours off, cursor on, back to the first screen."""


class LiveView:
    """A context manager and a listener, from any thread. `s` skips the cell, `q` stops the run.

    Falls back to plain lines on the console's stream where that is no terminal, is too small or cannot move its cursor,
    with `plain`, and where drawing fails: the display never costs a measurement. `key_fd`: where keys are read.
    """

    def __init__(
        self,
        control: Control,
        console: Console,
        *,
        per_user_tok_s: float = 20.0,
        plain: bool = False,
        key_fd: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._console = console
        self._clock = clock
        self._state = State(per_user_tok_s=per_user_tok_s, started_s=clock())
        self._state_lock = threading.Lock()
        self._draw_lock = threading.RLock()
        self._changed = threading.Event()
        self._end = threading.Event()
        self._keys = Keys(key_fd, self._pressed)
        self._with_keys = False
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._on_screen = False
        self._plain: PlainView | None = None
        if plain or not _can_draw(console):
            self._plain = PlainView(console.file, clock=clock)

    def __enter__(self) -> LiveView:
        if self._plain is not None:
            return self
        from rich.live import Live

        atexit.register(self.restore)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
                          redirect_stderr=False)  # fmt: skip
        try:
            self._with_keys = self._keys.start()
            self._on_screen = True
            self._live.start()
            self._thread = threading.Thread(target=self._work, name="live-view", daemon=True)
            self._thread.start()
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        plain = self._plain
        if plain is not None:
            plain(event)
            return
        with self._state_lock:
            apply(self._state, event, self._clock())
        self._changed.set()

    def close(self) -> None:
        """Ends the drawing and gives the terminal back. Waits at most some seconds, however stuck the terminal is."""
        self._end.set()
        self._changed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=JOIN_S)
        stuck = self._thread is not None and self._thread.is_alive()
        if self._live is not None and self._on_screen and not stuck:
            with suppress(OSError, ValueError):
                self._live.stop()
                self._on_screen = False
        self._keys.stop()
        self.restore()
        atexit.unregister(self.restore)

    def restore(self) -> None:
        """Gives the terminal back at once; may be called from a signal handler, at any time, more than once."""
        self._end.set()
        # a frame that is being written now would land on the first screen
        held = self._draw_lock.acquire(timeout=LOCK_S)
        try:
            self._keys.restore()
            if self._on_screen:
                self._on_screen = False
                _write_now(self._console, LEAVE)
        finally:
            if held:
                self._draw_lock.release()

    def _pressed(self, key: str) -> None:
        if key == "q":
            self._control.stop("stopped by the user")
        elif key == "s":
            self._control.skip()
            with self._state_lock:
                running = self._state.running
                self._state.answer = "skipping the cell" if running is not None else "skipping"
        self._changed.set()

    def _work(self) -> None:
        while not self._end.is_set():
            self._changed.wait(LONGEST_S)
            self._changed.clear()
            try:
                self._draw()
            except Exception as error:
                self._fall_back(error)
                return
            self._end.wait(SHORTEST_S)

    def _draw(self) -> None:
        with self._state_lock:
            state = self._state.snapshot()
        live = self._live
        width, height = self._console.size
        stopping = self._control.stopping
        drawn = Drawn(frame(state, width, height, self._clock(), keys=self._with_keys, stopping=stopping))
        with self._draw_lock, self._console:  # the console's context makes one write of all
            if live is not None and self._on_screen and not self._end.is_set():
                self._console.control(_raw(BEGIN_FRAME))
                live.update(drawn, refresh=True)
                self._console.control(_raw(END_FRAME))

    def _fall_back(self, error: Exception) -> None:
        """Plain lines from here on."""
        self.restore()
        from flatout.run.events import Note

        plain = PlainView(self._console.file, clock=self._clock)
        plain(Note(f"the live view stopped ({type(error).__name__}: {error}); plain lines follow", "warning"))
        self._plain = plain


def _can_draw(console: Console) -> bool:
    """True on a real terminal (whatever FORCE_COLOR says of a pipe) with a cursor that moves, and with room."""
    if not console.is_terminal or console.is_dumb_terminal or console.legacy_windows or not os.environ.get("TERM"):
        return False
    try:
        if not os.isatty(console.file.fileno()):
            return False
    except (OSError, ValueError, AttributeError):
        return False
    return console.size.width >= SMALLEST[0] and console.size.height >= SMALLEST[1]


def _raw(controls: str) -> ScreenControl:
    """A control that rich has no name for."""
    from rich.control import Control as ScreenControl
    from rich.segment import ControlType, Segment

    made = ScreenControl()
    made.segment = Segment(controls, None, [(ControlType.HOME,)])
    return made


def _write_now(console: Console, controls: str) -> None:
    """Past every buffer and lock; not at all where the terminal takes nothing now (its output is held)."""
    with suppress(OSError, ValueError, AttributeError):
        fd = console.file.fileno()
        if select.select([], [fd], [], LOCK_S)[1]:
            os.write(fd, controls.encode("ascii"))
