"""The requests of a cell over its window, from its samples: when each was sent, had its first token, and ended."""

from __future__ import annotations

import zipfile
import zlib
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from flatout.record import Cell
from flatout.show.page import drawing, values
from flatout.show.page.html import Html

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_STREAMS: Final = 64
MOST_REQUESTS: Final = 600
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_ROWS: Final = 1_000_000
"""Requests in a file; one with more is no cell's, and is not read."""
_COLUMNS: Final = ("stream", "send_ns", "first_token_ns", "end_ns")
_BROKEN: Final = (
    OSError, ValueError, KeyError, IndexError, EOFError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What a file that is no samples of ours may raise."""


def chart(cell: Cell, samples_dir: Path | None) -> Html | None:
    """None where there are no samples of this cell, or they are no samples of ours: they only add to the page."""
    if samples_dir is None or cell.samples is None or cell.window is None:
        return None
    # only the file's own name counts: a record must not be able to name a file elsewhere
    path = samples_dir / PurePosixPath(cell.samples.replace("\\", "/")).name
    try:
        if path.suffix != ".npz" or not path.is_file():
            return None
        about = path.stat()
        if about.st_size > MOST_BYTES:
            return None
        return _draw(cell, _read(path, about.st_mtime_ns, about.st_size))
    except _BROKEN:
        return None


@lru_cache(maxsize=1)
def _read(path: Path, _time_ns: int, _size: int) -> npt.NDArray[np.int64]:
    """The four columns of the table of requests that are drawn, shape (4, R). The last file is kept, for a record
    whose cells all name one.

    Read by ourselves: each column only after its header has told that it is as long as the others and no longer than
    MOST_ROWS. Raises ValueError and what zipfile does.
    """
    import numpy as np

    with zipfile.ZipFile(path) as archive:
        found: list[npt.NDArray[np.int64]] = []
        for name in _COLUMNS:
            with archive.open(f"{name}.npy") as file:
                found.append(_column(file))
            if len(found[-1]) != len(found[0]):
                raise ValueError("the columns are of different lengths")
    return np.stack(found)


def _column(file: IO[bytes]) -> npt.NDArray[np.int64]:
    import numpy as np

    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of an unknown kind")
    shape, _, kind = np.lib.format.read_array_header_1_0(file)
    if len(shape) != 1 or not 0 <= shape[0] <= MOST_ROWS or kind.kind != "i":
        raise ValueError("an array that no samples have")
    return np.frombuffer(file.read(shape[0] * kind.itemsize), dtype=kind, count=shape[0]).astype(np.int64)


def _draw(cell: Cell, requests: npt.NDArray[np.int64]) -> Html | None:
    import numpy as np

    window = cell.window
    if window is None or window.close_ns <= window.open_ns:
        return None
    span = window.close_ns - window.open_ns
    stream, send, first, end = requests
    stop = np.where(end >= 0, end, window.close_ns)
    seen = (send >= 0) & (stop >= window.open_ns) & (send <= window.close_ns) & (stream >= 0) & (stream < MOST_STREAMS)
    at = np.flatnonzero(seen)[:MOST_REQUESTS]
    rows: dict[int, list[tuple[float, float, str]]] = {}
    for key, sent, told, stopped in zip(*(part[at].tolist() for part in (stream, send, first, stop)), strict=True):
        begun = told if told >= 0 else stopped
        row = rows.setdefault(key, [])
        row.append(((sent - window.open_ns) / span, (begun - window.open_ns) / span, "wait"))
        row.append(((begun - window.open_ns) / span, (stopped - window.open_ns) / span, "give"))
    if not rows:
        return None
    drawn = len(at)
    ordered = [[bar for bar in rows[key] if bar[1] > 0 and bar[0] < 1] for key in sorted(rows)]
    label = f"{drawn} requests of {len(ordered)} streams over the window: waiting for the first token, then decoding"
    picture = drawing.strips(ordered, label)
    key_words = f"{drawn} requests; strong: before the first token"
    return drawing.figure("Streams", picture, "0 s", values.seconds(window.length_s), key=key_words)
