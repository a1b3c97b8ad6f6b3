"""The requests of a cell over its window, from its samples: when each was sent, had its first token, and ended."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from flatout.record import Cell
from flatout.show.page import drawing, values
from flatout.show.page.html import Html

if TYPE_CHECKING:
    from flatout.load.samples import Samples

MOST_STREAMS: Final = 64
MOST_REQUESTS: Final = 600
MOST_BYTES: Final = 64 * 1024 * 1024


def chart(cell: Cell, samples_dir: Path | None) -> Html | None:
    """None where there are no samples of this cell, or they are no samples of ours: they only add to the page."""
    if samples_dir is None or cell.samples is None or cell.window is None:
        return None
    # only the file's own name counts: a record must not be able to name a file elsewhere
    path = samples_dir / PurePosixPath(cell.samples.replace("\\", "/")).name
    try:
        if path.suffix != ".npz" or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        from flatout.load.samples import Samples

        return _draw(cell, Samples.read(path))
    except (OSError, ValueError):
        return None


def _draw(cell: Cell, samples: Samples) -> Html | None:
    window = cell.window
    if window is None or window.close_ns <= window.open_ns:
        return None
    span = window.close_ns - window.open_ns
    rows: dict[int, list[tuple[float, float, str]]] = {}
    drawn = 0
    for i in range(samples.requests):
        send, first, end = int(samples.send_ns[i]), int(samples.first_token_ns[i]), int(samples.end_ns[i])
        stream = int(samples.stream[i])
        stop = end if end >= 0 else window.close_ns
        if (
            send < 0
            or stop < window.open_ns
            or send > window.close_ns
            or stream >= MOST_STREAMS
            or drawn >= MOST_REQUESTS
        ):
            continue
        drawn += 1
        begun = first if first >= 0 else stop
        row = rows.setdefault(stream, [])
        row.append(((send - window.open_ns) / span, (begun - window.open_ns) / span, "wait"))
        row.append(((begun - window.open_ns) / span, (stop - window.open_ns) / span, "give"))
    if not rows:
        return None
    ordered = [[bar for bar in rows[key] if bar[1] > 0 and bar[0] < 1] for key in sorted(rows)]
    label = f"{drawn} requests of {len(ordered)} streams over the window: waiting for the first token, then decoding"
    picture = drawing.strips(ordered, label)
    key = f"{drawn} requests; strong: before the first token"
    return drawing.figure("Streams", picture, "0 s", values.seconds(window.length_s), key=key)
