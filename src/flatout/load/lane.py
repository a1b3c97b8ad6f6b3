"""One of the N simultaneous users as the driver keeps it, and how long it waits after a failure or a refusal."""

from __future__ import annotations

from flatout.load.connection import Connection
from flatout.load.exchange import Exchange
from flatout.load.framing import request_bytes, request_id
from flatout.load.job import Job, Stream

BACKOFF_S = 0.25
BACKOFF_MAX_S = 5.0
REFUSED_S = 0.5


class Lane:
    """`first`: the body of the first round is still to be sent (until one request of this lane has succeeded).
    `proved`: the last answer was good, so that the next request need not wait until this one is decoded."""

    __slots__ = (
        "connection", "done", "failures", "first", "number", "prepared", "proved", "refusals", "refused_since_ns",
        "reopened", "retried", "round", "sent_ns", "spare", "started", "stream", "token_ns",
    )  # fmt: skip

    def __init__(self, number: int, stream: Stream) -> None:
        self.number = number
        self.stream = stream
        self.connection: Connection | None = None
        self.spare: Connection | None = None
        self.prepared: tuple[Exchange, bytes] | None = None
        self.round = 0
        self.first = stream.first_body is not None
        self.failures = 0
        self.refusals = 0
        self.refused_since_ns = -1
        self.reopened = 0
        self.retried = False
        self.proved = False
        self.started = False
        self.sent_ns = self.token_ns = -1  # the first request, and its first token
        self.done = False

    def next_exchange(self, job: Job) -> Exchange:
        stream = self.stream
        asked = stream.first_asked_tokens if self.first else stream.asked_tokens
        offset = stream.first_rid_offset if self.first else stream.rid_offset
        rid = request_id(job.rid_prefix, self.number, self.round) if offset >= 0 else ""
        exchange = Exchange(self.number, self.round, asked, rid, keep_text=job.keep_text)
        exchange.first = self.first
        self.round += 1
        return exchange

    def request(self, head: bytes, exchange: Exchange) -> bytes:
        stream = self.stream
        if exchange.first and stream.first_body is not None:
            return request_bytes(head, stream.first_body, stream.first_rid_offset, exchange.rid)
        return request_bytes(head, stream.body, stream.rid_offset, exchange.rid)

    def failure_wait_s(self) -> float:
        return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** max(0, self.failures - 1))

    def refusal_wait_s(self, told: float | None, limit_s: float) -> float:
        """As long as the server asks (`told`), up to the limit; without its word exponentially longer, and lanes apart.

        Its word cannot shorten the wait at will: each further refusal in a row doubles the least that is waited, since
        a server that says "a millisecond" again and again would be stormed.
        """
        spread = 1 + self.number % 16 / 32
        further = min(max(self.refusals - 1, 0), 20)
        if not told:
            return min(REFUSED_S * 2.0**further * spread, limit_s)
        return min(max(told, min(BACKOFF_S * 2.0**further * spread, BACKOFF_MAX_S)), limit_s)
