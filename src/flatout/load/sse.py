"""Server-sent events out of the bytes of one response, fed as they came. Pure."""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 64 << 20
_BOM: Final = b"\xef\xbb\xbf"


def single_events(chunks: list[bytes]) -> list[bytes]:
    """The data of chunks that are one event each, whole, on one line, as nearly all are; up to the first that is not.

    The same as a `Splitter` would give that holds nothing from before (`clean`), at a third of its cost."""
    found = []
    for chunk in chunks:
        if chunk[-2:] != b"\n\n" or chunk[:7] != b"data: {" or chunk.find(b"\n") != len(chunk) - 2 or b"\r" in chunk:
            break
        found.append(chunk[6:-2])
    return found


class Splitter:
    """Splits a response body into the data of its events (WHATWG HTML, 9.2.6), however the bytes were cut into reads.

    Lines end in LF, CRLF or CR; `data:` with or without a space; several data lines are joined by LF; comments and
    other fields are passed over; an event without data is none.
    """

    __slots__ = ("_data", "_data_size", "_line", "_line_size", "_skip_lf", "_start", "clean")

    def __init__(self) -> None:
        self._start: bytes | None = b""  # bytes that may be the beginning of a BOM
        self.clean = False  # at the border between two events, nothing held
        self._skip_lf = False  # the last read ended in CR: an LF that follows belongs to it
        self._line: list[bytes] = []
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes. Raises ValueError if an event exceeds MAX_EVENT_BYTES."""
        if (
            self.clean
            and chunk[-2:] == b"\n\n"
            and chunk[:6] == b"data: "
            and b"\r" not in chunk
            and chunk.find(b"\n") == len(chunk) - 2 > 6
        ):
            return [chunk[6:-2]]
        if self._start is not None:
            chunk = self._start + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._start = chunk
                return []
            self._start = None
            chunk = chunk.removeprefix(_BOM)
        return self._split(chunk)

    def finish(self) -> list[bytes]:
        """The event that the end of the body completes: the last one may lack its blank line."""
        events: list[bytes] = []
        rest, self._start = self._start, None
        if rest:
            events += self._split(rest)
        return events + self._split(b"\n\n")

    def _split(self, chunk: bytes) -> list[bytes]:
        if not chunk:
            return []
        if self._skip_lf and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._skip_lf = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._hold(chunk)
            return []
        if self._line:
            self._line.append(lines[0])
            lines[0] = b"".join(self._line)
            self._line = []
            self._line_size = 0
        rest = lines.pop()
        events = self._take(lines)
        self._hold(rest)
        self.clean = not rest and not self._data and not self._skip_lf
        return events

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    event = data[0] if len(data) == 1 else b"\n".join(data)
                    data.clear()
                    self._data_size = 0
                    if event:
                        events.append(event)
            elif line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_size += len(line)
            elif line == b"data":
                data.append(b"")
                self._data_size += len(line)
        return events

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._line.append(piece)
            self._line_size += len(piece)
            self.clean = False
        if self._line_size + self._data_size > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES >> 20} MiB")
