"""Single keys from the terminal while a run goes on, and the terminal's own settings put back whatever happens."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

POLL_S: Final = 0.2
_AT_ONCE: Final = 64


class Keys:
    """Reads keys from a terminal in a thread of its own and hands each to `pressed`, in lower case.

    The terminal is put into cbreak mode (keys come without Enter and are not echoed, Ctrl-C stays a signal) with Ctrl-Z
    switched off: a run that is suspended in mid-measurement would only measure the suspension, and its half-drawn
    screen would stay. Does nothing where `fd` is no terminal, or where this process is in the background.
    """

    def __init__(self, fd: int, pressed: Callable[[str], None]) -> None:
        self._fd = fd
        self._pressed = pressed
        self._saved: list[Any] | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """True if keys will come."""
        try:
            import termios
            import tty
        except ImportError:  # no such terminals on this system
            return False
        try:
            # changing a terminal from the background would stop this process
            if not os.isatty(self._fd) or os.tcgetpgrp(self._fd) != os.getpgrp():
                return False
            saved = termios.tcgetattr(self._fd)
            self._saved = saved
            tty.setcbreak(self._fd, termios.TCSANOW)
            mode = termios.tcgetattr(self._fd)
            mode[6][termios.VSUSP] = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "little")
            termios.tcsetattr(self._fd, termios.TCSANOW, mode)
        except (OSError, ValueError, termios.error):
            self.restore()
            return False
        self._thread = threading.Thread(target=self._work, name="keys", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ends the thread and restores the terminal."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5 * POLL_S)
        self.restore()

    def restore(self) -> None:
        """Puts the terminal's settings back; takes no lock and waits for nothing, so a signal handler may call it."""
        self._end.set()
        saved, self._saved = self._saved, None
        if saved is None:
            return
        import termios

        with suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, saved)

    def _work(self) -> None:
        while not self._end.is_set():
            try:
                ready, _, _ = select.select([self._fd], [], [], POLL_S)
                if not ready or self._end.is_set():
                    continue
                read = os.read(self._fd, _AT_ONCE)
            except (OSError, ValueError):
                return
            if not read:  # the terminal is gone
                return
            key = key_of(read)
            if key is not None:
                self._pressed(key)


def key_of(read: bytes) -> str | None:
    """The key behind what one read gave: one letter, however often. None for the rest: arrows and function keys
    (their sequences contain letters) and pasted text must neither skip a cell nor stop a run."""
    letters = set(read.lower())
    if len(letters) != 1:
        return None
    letter = chr(letters.pop())
    return letter if "a" <= letter <= "z" else None
