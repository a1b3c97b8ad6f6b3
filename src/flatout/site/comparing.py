"""Comparisons for programs: how large they may be, and a process of their own for each, which ends with it.

A comparison takes seconds of computing and many times its records' size. The site's own process, which answers
everybody, must not spend that; few are made at a time, and who comes then is told to come again.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from flatout.site.drawer import environment, limit
from flatout.site.errors import Refused, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

    from flatout.site.index import RunRow

MOST_CELLS: Final = 4_000
"""Of all runs of a comparison together: 4 s of drawing, 1 s of comparing."""
CELLS_A_COUNT: Final = 400
"""So many cells count once towards the limit of comparisons."""
REFUSED: Final = 3
"""What the process ends with where the records cannot be compared; its words are why."""
LONGEST_S: Final = 30.0
MOST_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
BUSY: Final = "The site is busy with other pages and comparisons just now. Try again in a few seconds."
TOO_MUCH: Final = (
    "This comparison takes too long or too much memory here. Download the records and use flatout compare."
)


class Few:
    """Only so many go in at a time, those who wait in there included; the others are sent away at once, so that the
    site's threads are left for those who read."""

    def __init__(self, most: int) -> None:
        self._free = threading.BoundedSemaphore(most)

    def __enter__(self) -> None:
        """Raises Unavailable."""
        if not self._free.acquire(blocking=False):
            raise Unavailable(BUSY)

    def __exit__(self, kind: type[BaseException] | None, what: BaseException | None, at: TracebackType | None) -> None:
        self._free.release()


_ONE: Final = threading.Lock()


def count(rows: Sequence[RunRow]) -> int:
    """How many comparisons this one counts as. Raises Refused: it is too large."""
    cells = sum(row.cells for row in rows)
    if cells > MOST_CELLS:
        raise Refused(
            "r",
            f"these runs have {cells:,} cells together, and {MOST_CELLS:,} are compared here at most. Take fewer runs, "
            "or download the records and use flatout compare",
        )
    return 1 + cells // CELLS_A_COUNT


def compared(contents: Sequence[bytes], names: Sequence[str]) -> bytes:
    """What `flatout compare --json` tells of these records, the first being the baseline. One at a time. Raises
    Refused: they cannot be compared; Unavailable: others are before it, or it took too long or too much memory."""
    asked = json.dumps({"names": list(names), "contents": [content.decode() for content in contents]}).encode()
    if not _ONE.acquire(timeout=LONGEST_S):
        raise Unavailable(BUSY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment(), timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(TOO_MUCH) from error
    finally:
        _ONE.release()
    if done.returncode == REFUSED:
        raise Refused("r", done.stdout.decode())
    if done.returncode != 0:
        raise Unavailable(TOO_MUCH)
    return done.stdout


def main() -> None:
    """The process: reads what is asked, writes the answer."""
    limit(resource.RLIMIT_DATA, MOST_MEMORY_BYTES)
    limit(resource.RLIMIT_CPU, round(LONGEST_S))
    from flatout.compare import CompareError, compare
    from flatout.record import parse
    from flatout.show import comparison

    asked = json.load(sys.stdin.buffer)
    try:
        made = comparison.data(compare([parse(text) for text in asked["contents"]], names=asked["names"]))
    except CompareError as error:
        sys.stdout.buffer.write(str(error).encode())
        sys.exit(REFUSED)
    del made["fail_if"]
    json.dump(made, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    main()
