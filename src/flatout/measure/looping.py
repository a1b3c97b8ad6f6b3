"""Does a text repeat itself word for word? (fault S8)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

LEAST_BYTES: Final = 200
LEAST_REPEATS: Final = 4
LEAST_SHARE: Final = 0.5
"""Share of a text that one run of exact repeats must cover."""

_PROBE = 24
_CANDIDATES = 32


def looping(text: str) -> bool | None:
    """Whether over half of `text` is one unit of bytes repeated four times or more; None if it is too short to judge.

    A run that covers more than half holds the bytes around the middle, and there the text equals itself one period
    earlier or later. So the periods to try are the distances between a short piece at the middle and its other
    occurrences; each is checked by comparing the text with itself shifted. Linear in the length, for at most 128 tries.
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) < LEAST_BYTES:
        return None
    array = np.frombuffer(data, dtype=np.uint8)
    middle = len(data) // 2
    for start in (middle - _PROBE, middle):
        for other in _occurrences(data, start):
            period = abs(start - other)
            if _covered(array, period, min(start, other)) >= max(LEAST_SHARE * len(data), LEAST_REPEATS * period):
                return True
    return False


def _occurrences(data: bytes, start: int) -> Iterator[int]:
    """Where else the piece at `start` stands, nearest first on each side."""
    piece = data[start : start + _PROBE]
    at = start
    for _ in range(_CANDIDATES):
        at = data.rfind(piece, 0, at + _PROBE - 1)
        if at < 0:
            break
        yield at
    at = start
    for _ in range(_CANDIDATES):
        at = data.find(piece, at + 1)
        if at < 0:
            break
        yield at


def _covered(array: npt.NDArray[np.uint8], period: int, position: int) -> int:
    """Length of the run around `position` in which each byte equals the one `period` later."""
    differs = np.flatnonzero(array[period:] != array[:-period])
    at = int(np.searchsorted(differs, position))
    begin = int(differs[at - 1]) + 1 if at else 0
    end = int(differs[at]) if at < len(differs) else len(array) - period
    return end - begin + period if end > begin else 0


def looping_share(texts: Iterable[str]) -> float | str:
    """Share of the texts long enough to judge that loop; or why nothing can be told."""
    judged = [result for text in texts if (result := looping(text)) is not None]
    if not judged:
        return f"no answer had {LEAST_BYTES} bytes of text to judge"
    return sum(judged) / len(judged)
