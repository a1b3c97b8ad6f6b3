"""One request and its answer: raw bytes with stamps while it runs, decoded later in slices."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

import httptools

from flatout.load.decode import Decoder
from flatout.load.http import status_words

BATCH: Final = 64
"""Pieces of the body decoded between two looks at the clock: 0.1 ms."""
BODY_BYTES: Final = 65536  # of an answer that is no stream: enough for any error's words


class Exchange:
    """The answer as it comes in. The reader appends to `stamps`, `lags` and `ends` and feeds the parser; httptools
    calls the `on_*` attributes. `attention` asks the reader to look closer after a read: at the beginning, at the end.

    `parts`: undecoded pieces of the body; `ends[i]`: how many pieces there were after the i-th read not yet decoded.
    """

    __slots__ = (
        "_arrivals_noted", "_first_byte_ns", "_last_ns", "_parser", "_reads_decoded", "_whole", "asked", "attention",
        "complete", "connect_ns", "content_type", "counted", "decoder", "end_ns", "ends", "excess", "feed", "first",
        "headers", "keep_alive", "lags", "on_body", "parts", "reused", "rid", "round", "send_ns", "stamps", "status",
        "stream", "trouble", "wire_bytes",
    )  # fmt: skip

    def __init__(self, stream: int, number: int, asked: int, rid: str, *, keep_text: bool) -> None:
        self.stream = stream
        self.round = number
        self.asked = asked
        self.rid = rid
        self.first = False  # of its stream, with the body of the first round
        self.reused = False  # its connection had served a request before, or was idle for long
        self.send_ns = self.connect_ns = self.end_ns = -1
        self.parts: list[bytes] = []
        self.stamps = array("q")
        self.lags = array("i")
        self.ends = array("i")
        self.wire_bytes = 0
        self._reads_decoded = self._arrivals_noted = 0
        self._first_byte_ns = self._last_ns = -1  # of reads that are no longer in `stamps`
        self.counted = 0  # arrivals that a look has counted
        self.status = -1
        self.headers: dict[str, str] = {}
        self.content_type = ""
        self.keep_alive = False
        self.complete = False
        self.excess = False  # bytes after the end of the answer: the connection is out of step
        self.attention = True
        self.trouble: str | None = None
        self.decoder = Decoder(keep_text=keep_text)
        self._whole = 0
        self.on_body = self.parts.append  # straight into the list: no Python frame per piece
        self._parser: Any = httptools.HttpResponseParser(self)
        self.feed: Callable[[bytes], None] = self._parser.feed_data

    # called by httptools

    def on_message_begin(self) -> None:
        if self.complete and not self.excess:
            self.excess = True
            self._whole = len(self.parts)  # pieces beyond belong to no answer of ours

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete and len(self.headers) < 200:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self.content_type = self.headers.get("content-type", "").lower()
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", ""):
            self.trouble = f"the server compresses its answer ({coding[:40]}) although it was not asked to"

    def on_message_complete(self) -> None:
        if 100 <= self.status < 200:  # an interim answer; the real one follows
            self.status = -1
            self.headers.clear()
        else:
            self.complete = True
            self.attention = True

    # read by the driver

    @property
    def started(self) -> bool:
        return self.decoder.first_token_ns >= 0

    @property
    def answering(self) -> bool:
        return self.first_byte_ns >= 0

    @property
    def first_byte_ns(self) -> int:
        if self._first_byte_ns >= 0:
            return self._first_byte_ns
        return self.stamps[0] if self.stamps else -1

    @property
    def last_ns(self) -> int:
        if self.stamps:
            return self.stamps[-1]
        return self._last_ns if self._last_ns >= 0 else self.send_ns

    @property
    def reads_pending(self) -> int:
        return len(self.stamps) - self._reads_decoded

    def pending_stamps(self) -> array[int]:
        return self.stamps[self._reads_decoded :]

    def take_reads(self) -> tuple[array[int], array[int], array[int]]:
        """Stamps and lags of the reads so far, all decoded, and the arrivals that came in them; they are gone here."""
        self._first_byte_ns, self._last_ns = self.first_byte_ns, self.last_ns
        reads = self.stamps, self.lags, self.decoder.t_ns[self._arrivals_noted :]
        self.stamps, self.lags = array("q"), array("i")
        self._reads_decoded, self._arrivals_noted = 0, len(self.decoder.t_ns)
        return reads

    def at_eof(self, t_ns: int) -> None:
        """The server closed: that is the end of the answer, or something is missing."""
        self.end_ns = t_ns
        if self.complete:
            return
        framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        if self.status < 0:
            begun = "in the middle of the answer's head" if self.answering else "without an answer"
            self.trouble = self.trouble or f"the server closed the connection {begun}"
        elif framed:
            self.trouble = self.trouble or "the server closed the connection in the middle of the answer"
        self.complete = True

    # decoding, never while data waits to be read

    def decode(self, deadline_ns: int | None = None) -> bool:
        """Decodes what was read, until the deadline; True when nothing is left. A piece of the body takes the stamp of
        the read that brought it."""
        if self.status not in (200, -1):
            return self._keep_body()
        if self.status == -1:
            return True  # the head is not complete yet
        if self.excess and len(self.parts) > self._whole:
            del self.parts[self._whole :]
            self.ends[-1] = self._whole
        feed, feed_usual, parts, ends = self.decoder.feed, self.decoder.feed_usual, self.parts, self.ends
        begin, slowly = 0, 1
        while begin < len(parts):
            batch = parts[begin : begin + BATCH]
            stamps = self._part_stamps(begin, len(batch))
            taken = feed_usual(batch, stamps)
            slowly = 1 if taken else min(2 * slowly, BATCH)  # a stream of other events is not tried again at each
            for piece, t_ns in zip(batch[taken : taken + slowly], stamps[taken : taken + slowly], strict=True):
                feed(piece, t_ns)
                taken += 1
            begin += taken
            if deadline_ns is not None and monotonic_ns() > deadline_ns:
                break
        decoded = bisect_right(ends, begin)
        self._reads_decoded += decoded
        del parts[:begin]
        if not parts:
            del ends[:]
            self.wire_bytes = 0
            return True
        self.ends = array("i", [e - begin for e in ends[decoded:]])
        return False

    def _part_stamps(self, begin: int, count: int) -> array[int]:
        """The stamps of the reads that brought pieces `begin` … `begin + count - 1`."""
        first, ends = self._reads_decoded, self.ends
        read = bisect_right(ends, begin)
        if ends[read : read + count] == array("i", range(begin + 1, begin + count + 1)):  # a piece a read, as usual
            return self.stamps[first + read : first + read + count]
        stamps = array("q")
        for piece in range(begin, begin + count):
            while ends[read] <= piece:
                read += 1
            stamps.append(self.stamps[first + read])
        return stamps

    def _keep_body(self) -> bool:
        head = self.decoder.head
        for part in self.parts:
            if len(head) < BODY_BYTES:
                head += part[:BODY_BYTES]
        self.decoder.head = head
        self.parts.clear()
        self._reads_decoded = len(self.stamps)
        del self.ends[:]
        self.wire_bytes = 0
        return True

    def verdict(self) -> str | None:
        """Why this answer does not count, None if it does. Only once all is decoded."""
        if self.status not in (200, -1):
            return status_words(self.status, self.headers.get("location"), self.decoder.head)
        return self.decoder.verdict(self.content_type, self.trouble)

    def release(self) -> None:
        """Drops the parser, which points back here: collection is off, so no cycle may be left behind."""
        self._parser = None
        self.feed = _ignore
        self.parts = []


def _ignore(_data: bytes) -> None:
    return None
