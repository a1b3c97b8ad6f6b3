"""What came back: decodes finished answers in small slices, keeps the rows, and counts what there is so far.

The border between reading and decoding: the reader and the driver only append to `waiting` and `behind`, and call
`work` when nothing waits to be read. What is decoded on the way (an answer's beginning, one that was not proved yet)
goes through `Exchange.decode` as well.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection
from typing import Final

import numpy as np

from flatout.load.job import Counts
from flatout.load.samples import CUT, FAILED, OK, REFUSED, Table
from flatout.load.stream import Exchange
from flatout.load.watch import Watch

SLICE_NS: Final = 300_000
"""Longest decoding between two looks at the sockets."""
EAGER_BYTES: Final = 24 << 20
"""Raw bytes held at which answers still running are decoded too, whenever nothing waits to be read."""
FORCED_BYTES: Final = 48 << 20
"""Raw bytes held at which a slice is decoded even if something waits."""
READ_BYTES: Final = 64
"""Held with each read that is not decoded yet: the object around its bytes, its place in the list."""
FOLDED_READS: Final = 256
"""Reads of a running answer whose lags are kept until they are counted: its arrivals are all that grows with it."""
RETRY_STATUSES: Final = (429, 503)


class Ledger:
    """Finished answers wait in `waiting` for a free moment. `behind`: running answers to decode as far as they are."""

    def __init__(self, watch: Watch, *, keep_text: bool) -> None:
        self.table = Table(keep_text=keep_text)
        self.watch = watch
        self.waiting: deque[Exchange] = deque()
        self.behind: deque[Exchange] = deque()
        self.forced = False
        self._counts: _Bins | None = None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.behind)

    def work(self, deadline_ns: int) -> Exchange | None:
        """Decodes until the deadline; returns a finished answer once it is decoded whole, to be settled."""
        if self.waiting:
            exchange = self.waiting[0]
            if exchange.decode(deadline_ns):
                return self.waiting.popleft()
        elif self.behind and self.behind[0].decode(deadline_ns):
            exchange = self.behind.popleft()
            if len(exchange.stamps) > FOLDED_READS and not exchange.reads_pending:
                self._note_reads(exchange)
        return None

    def _note_reads(self, exchange: Exchange) -> None:
        """Counts what the watch must know of an answer's reads, all decoded, and drops them."""
        stamps, lags, arrivals = exchange.take_reads()
        self.watch.note(stamps, lags)
        self.watch.note_merged(arrivals, stamps, lags)

    def weigh(self, running: Collection[Exchange]) -> None:
        """Keeps memory bounded: starts decoding running answers when too many raw bytes are held."""
        held = sum(e.wire_bytes + READ_BYTES * e.reads_pending for e in (*running, *self.waiting))
        self.forced = held > FORCED_BYTES
        if held > EAGER_BYTES and not self.behind:
            self.catch_up(running)

    def catch_up(self, running: Collection[Exchange]) -> None:
        self.behind = deque(e for e in running if e.reads_pending)

    def settle(self, exchange: Exchange, *, cut: bool = False, refusable: bool = True) -> tuple[int, str | None]:
        """Writes the request's row; returns its outcome and, for one that failed or was refused, a sentence why."""
        exchange.decode()
        decoder = exchange.decoder
        if not cut and exchange.status == 200 and exchange.trouble is None:
            decoder.finish_body(exchange.last_ns)
        words = None if cut else exchange.verdict()
        if cut:
            outcome = CUT
        elif words is None:
            outcome = OK
        elif exchange.status in RETRY_STATUSES and not exchange.started and refusable:
            outcome = REFUSED
        else:
            outcome = FAILED
        row = {
            "stream": exchange.stream,
            "round": exchange.round,
            "send_ns": exchange.send_ns,
            "connect_ns": exchange.connect_ns,
            "first_byte_ns": exchange.first_byte_ns,
            "end_ns": exchange.end_ns,
            "http_status": exchange.status,
            "outcome": outcome,
            "asked_tokens": exchange.asked,
            "finish": self.table.index(self.table.finish_names, decoder.finish),
            "error": self.table.index(self.table.error_texts, words),
        }
        self.table.add(row | decoder.row(), decoder.arrivals(), exchange.rid, "".join(decoder.texts or ()))
        self._note_reads(exchange)
        if self._counts is not None:
            self._counts.fresh.extend(decoder.t_ns[exchange.counted :])
        exchange.release()
        return outcome, words

    def events(self, running: Collection[Exchange]) -> int:
        """Events with content so far; a read not decoded yet counts as one."""
        total = len(self.table.arrivals["t_ns"])
        return total + sum(len(e.decoder.t_ns) + e.reads_pending for e in (*running, *self.waiting))

    def counts(self, t0_ns: int, bin_ns: int, running: Collection[Exchange]) -> Counts:
        """Events with content per bin since `t0_ns`. What is not decoded by now counts one event a read."""
        bins = self._counts
        held = [*running, *self.waiting]
        if bins is None or (bins.t0_ns, bins.bin_ns) != (t0_ns, bin_ns):
            bins = self._counts = _Bins(t0_ns, bin_ns)
            bins.fresh.extend(self.table.arrivals["t_ns"])
            for exchange in held:
                exchange.counted = 0
        pending = array("q")
        for exchange in held:
            bins.fresh.extend(exchange.decoder.t_ns[exchange.counted :])
            exchange.counted = len(exchange.decoder.t_ns)
            if exchange.started:
                pending.extend(exchange.pending_stamps())
        bins.take()
        counts = bins.with_extra(pending)
        settled = self.table.requests
        firsts = settled["first_token_ns"] + array("q", (e.decoder.first_token_ns for e in held if e.started))
        lasts = settled["last_token_ns"] + array("q", (e.last_ns for e in self.waiting if e.started))
        decoding = bins.until(firsts, len(counts)) - bins.until(lasts, len(counts))
        return Counts(t0_ns=t0_ns, bin_ns=bin_ns, counts=tuple(counts.tolist()), decoding=tuple(decoding.tolist()))


class _Bins:
    """Counts per bin, grown as time goes on; each arrival is counted once, however often one looks."""

    def __init__(self, t0_ns: int, bin_ns: int) -> None:
        self.t0_ns, self.bin_ns = t0_ns, bin_ns
        self.fresh = array("q")
        self.counts = np.zeros(0, dtype=np.int64)

    def take(self) -> None:
        self.counts = self.with_extra(self.fresh)
        self.fresh = array("q")

    def with_extra(self, stamps: array[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        bins = (np.array(stamps, dtype=np.int64) - self.t0_ns) // self.bin_ns
        added = np.bincount(bins[bins >= 0], minlength=len(self.counts))
        added[: len(self.counts)] += self.counts
        return added

    def until(self, stamps: array[int], bins: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """(bins,) how many of the stamps (-1: none) lie before each bin's end."""
        at = np.array(stamps, dtype=np.int64)
        at = np.maximum(at[at >= 0] - self.t0_ns, 0) // self.bin_ns
        return np.cumsum(np.bincount(at, minlength=bins)[:bins])
