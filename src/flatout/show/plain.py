"""The run as plain lines, for pipes, logs and `--plain`: a line for each event worth one, no colours, no cursor."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import IO, Final

from flatout import metrics
from flatout.metrics import BY_NAME
from flatout.record import Cell
from flatout.run.events import CellDone, Doing, Event, Finished, Gauges, Note, Started
from flatout.show import about, numbers
from flatout.show.safe import HARD_SPACE, clean, for_encoding

_EACH: Final = BY_NAME["per_request_tok_s"]
REPEAT_S: Final = 30.0
"""A step that goes on shows again after this, so that a log never looks dead."""
_DIGITS: Final = re.compile(r"[\d.,]+")


class PlainView:
    """A listener that writes to a stream, from any thread. A stream that breaks ends the writing, never the run."""

    def __init__(self, stream: IO[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start_s = clock()
        self._lock = threading.Lock()
        self._broken = False
        self._doing: tuple[str | None, str, str] | None = None
        self._doing_s = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        with self._lock:
            for text in self._lines(event):
                self._write(text)

    def _lines(self, event: Event) -> list[str]:
        if isinstance(event, Doing):
            return self._of_doing(event)
        if isinstance(event, Gauges):
            return []
        self._doing = None
        if isinstance(event, Started):
            record = event.record
            told = f"{about.title(record)} · {about.subtitle(record)} · {len(record.cells)} cells"
            return [told.replace(HARD_SPACE, " ")]
        if isinstance(event, CellDone):
            return [cell_text(event.cell)]
        if isinstance(event, Note):
            return [("warning: " if event.level == "warning" else "") + clean(event.text, 1000)]
        assert isinstance(event, Finished)
        return [f"{event.record.state}: {about.verdict(event.record)}".replace(HARD_SPACE, " ")]

    def _of_doing(self, event: Doing) -> list[str]:
        """A line where the step is a new one; a step that only counts on is said again now and then."""
        step = (event.cell_id, _DIGITS.sub("#", event.text), _DIGITS.sub("#", event.wait_for or ""))
        now_s = self._clock()
        if step == self._doing and now_s - self._doing_s < REPEAT_S:
            return []
        self._doing, self._doing_s = step, now_s
        return [doing_text(event)]

    def _write(self, text: str) -> None:
        if self._broken:
            return
        shown = f"{numbers.duration(self._clock() - self._start_s):>12}  {text}\n"
        try:
            self._stream.write(for_encoding(shown, getattr(self._stream, "encoding", None)))
            self._stream.flush()
        except (OSError, ValueError):
            self._broken = True


def doing_text(event: Doing) -> str:
    """What runs, what it waits for and how long at most, and how far the run is."""
    text = clean(event.text)
    if event.wait_for:
        text += f", waiting for {clean(event.wait_for)}"
        text += f" (at most {numbers.duration(event.until_s)})" if event.until_s is not None else ""
    if event.share_done:
        text += f"  [{numbers.percent(event.share_done)}"
        text += f", {numbers.duration(event.left_s)} left]" if event.left_s is not None else "]"
    return text


def cell_text(cell: Cell) -> str:
    """One cell in one line: `8K × 4  1,509 tok/s ±0.4 %  TTFT 84 ms  each 383.0 tok/s  doubtful: contaminated`."""
    parts = [about.cell_name(cell)]
    if not about.measured(cell):
        told = about.status_word(cell.status)
        why = clean(cell.reason or cell.error or "", 300)
        return f"{parts[0]}  {told}" + (f": {why}" if why else "")
    speed, ttft, each = (metrics.read(cell, m) for m in (metrics.SPEED[cell.phase], BY_NAME["ttft_ms"], _EACH))
    spread = numbers.interval(speed.number, speed.low, speed.high)
    parts.append(f"{numbers.rate(speed.number)} tok/s" + (f" {spread}" if spread != numbers.NONE else ""))
    parts.append(f"TTFT {numbers.ms(ttft.number)}")
    if each.number is not None and cell.phase == "decode":
        parts.append(f"each {numbers.rate(each.number)} tok/s")
    flags = ", ".join(dict.fromkeys(clean(flag.name, 40).replace("_", " ") for flag in cell.flags))
    status = "" if cell.status == "valid" else about.status_word(cell.status)
    parts.append(": ".join(part for part in (status, flags) if part))
    return "  ".join(part for part in parts if part)
