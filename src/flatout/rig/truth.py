"""The truth: what the rig really sent and when. `Log` is written inside the server, `Truth` is read outside."""

from __future__ import annotations

import io
import json
import zipfile
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Flags of an event.
SENT = 1  # went to the client
LEFTOVER = 2  # generated for a client that is gone (or a planted request)
BLOCKED = 4  # the socket was full: the bytes went later, see event_flushed_ns
HIDDEN = 8  # billed reasoning that is not streamed

NEVER = -1  # in a stamp: it did not happen
TOGETHER_NS = 500_000


@dataclass(slots=True)
class Record:
    """One request, in ns of CLOCK_MONOTONIC; NEVER where a thing did not happen."""

    rid: str
    arrival_ns: int  # when the kernel got the request's last bytes (read by the rig, where there is no stamp)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    max_tokens: int = 0
    admitted_ns: int = NEVER
    first_ns: int = NEVER  # send of the first event with tokens
    last_ns: int = NEVER
    end_ns: int = NEVER
    generated_tokens: int = 0  # sent or not
    sent_tokens: int = 0
    reason: str = "open"  # finished, aborted, client_closed, leftover, fault, "refused: …", open (still running)


@dataclass(slots=True)
class Log:
    """Compact columns: 21 bytes an event."""

    records: list[Record] = field(default_factory=list)
    t_ns: array[int] = field(default_factory=lambda: array("q"))
    request: array[int] = field(default_factory=lambda: array("i"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    late_us: array[int] = field(default_factory=lambda: array("i"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    flushed: dict[int, int] = field(default_factory=dict)  # event -> when its last byte went, where that was later
    level_ns: array[int] = field(default_factory=lambda: array("q"))
    running: array[int] = field(default_factory=lambda: array("i"))
    waiting: array[int] = field(default_factory=lambda: array("i"))
    stall_ns: array[int] = field(default_factory=lambda: array("q"))  # start, end, start, end, …

    def open(self, record: Record) -> int:
        """Its number."""
        self.records.append(record)
        return len(self.records) - 1

    def event(self, t_ns: int, request: int, tokens: int, late_ns: int, flags: int) -> int:
        """Its number."""
        self.t_ns.append(t_ns)
        self.request.append(request)
        self.tokens.append(tokens)
        self.late_us.append(min(late_ns // 1000, 2**31 - 1) if late_ns > 0 else 0)
        self.flags.append(flags)
        return len(self.flags) - 1

    def level(self, t_ns: int, running: int, waiting: int) -> None:
        self.level_ns.append(t_ns)
        self.running.append(running)
        self.waiting.append(waiting)

    def to_npz(self, config_json: str, now_ns: int) -> bytes:
        """Everything so far as the bytes of an .npz file, which `Truth.from_npz` reads."""
        records = self.records
        words = {"rid": [r.rid for r in records], "reason": [r.reason for r in records]}
        words_json = json.dumps(words | {"config": json.loads(config_json)}).encode()
        flushed = np.array(self.t_ns, dtype=np.int64)
        for event, when in self.flushed.items():
            flushed[event] = when
        arrays: dict[str, Any] = {
            "words": np.frombuffer(words_json, dtype=np.uint8),
            "taken_ns": np.array([now_ns]),
            "event_flushed_ns": flushed,
            "stall_ns": np.array(self.stall_ns, dtype=np.int64).reshape(-1, 2),
        }
        arrays |= {name: np.array([getattr(r, name) for r in records], dtype=np.int64) for name in _RECORD_NUMBERS}
        arrays |= {name: np.array(getattr(self, column), dtype=dtype) for name, (column, dtype) in _COLUMNS.items()}
        out = io.BytesIO()
        np.savez(out, **arrays)
        return out.getvalue()


_RECORD_NUMBERS = (
    "arrival_ns", "admitted_ns", "first_ns", "last_ns", "end_ns", "prompt_tokens", "cached_tokens", "max_tokens",
    "generated_tokens", "sent_tokens",
)  # fmt: skip
_COLUMNS: dict[str, tuple[str, type[np.integer[Any]]]] = {
    "event_ns": ("t_ns", np.int64), "event_request": ("request", np.int32), "event_tokens": ("tokens", np.int32),
    "event_late_us": ("late_us", np.int32), "event_flags": ("flags", np.uint8), "level_ns": ("level_ns", np.int64),
    "level_running": ("running", np.int32), "level_waiting": ("waiting", np.int32),
}  # fmt: skip

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Truth:
    """What the rig did, as arrays. Stamps are ns of CLOCK_MONOTONIC; -1 says that a thing did not happen.

    Per request, in order of arrival: rid, reason, arrival_ns … sent_tokens (shape R).
    Per event with tokens, in order of time: event_ns (taken right before send), event_flushed_ns (when its last byte
    had gone to the kernel: equal unless the socket was full), event_request, event_tokens, event_late_us (behind the
    schedule), event_flags (shape E). Per change: level_ns, level_running, level_waiting. stall_ns: rows (start, end).
    """

    rid: list[str]
    reason: list[str]
    config: dict[str, Any]
    taken_ns: int
    arrival_ns: Ints
    admitted_ns: Ints
    first_ns: Ints
    last_ns: Ints
    end_ns: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    max_tokens: Ints
    generated_tokens: Ints
    sent_tokens: Ints
    event_ns: Ints
    event_flushed_ns: Ints
    event_request: NDArray[np.int32]
    event_tokens: NDArray[np.int32]
    event_late_us: NDArray[np.int32]
    event_flags: NDArray[np.uint8]
    level_ns: Ints
    level_running: NDArray[np.int32]
    level_waiting: NDArray[np.int32]
    stall_ns: Ints

    @classmethod
    def from_npz(cls, data: bytes) -> Truth:
        """Raises ValueError if the bytes are no log of a rig."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            words = json.loads(arrays.pop("words").tobytes())
            return cls(**words, taken_ns=int(arrays.pop("taken_ns")[0]), **arrays)
        except (KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"this is no log of a rig: {error}") from error

    def _sent(self) -> NDArray[np.bool_]:
        return (self.event_flags & SENT) > 0

    def tokens_between(self, t0_ns: int, t1_ns: int, *, leftover: bool = False) -> int:
        """Tokens whose event was sent in [t0, t1); with `leftover` also those generated for nobody."""
        inside = (self.event_ns >= t0_ns) & (self.event_ns < t1_ns)
        if not leftover:
            inside &= self._sent()
        return int(self.event_tokens[inside].sum())

    def tok_s(self, t0_ns: int, t1_ns: int) -> float:
        """Total tokens a second sent in [t0, t1)."""
        return self.tokens_between(t0_ns, t1_ns) / ((t1_ns - t0_ns) / 1e9)

    def running_mean(self, t0_ns: int, t1_ns: int) -> float:
        """Time-weighted mean of the requests running in [t0, t1), leftovers included; nan for an empty span."""
        return self._level_mean(self.level_running, t0_ns, t1_ns)

    def waiting_mean(self, t0_ns: int, t1_ns: int) -> float:
        """As running_mean, for the queue."""
        return self._level_mean(self.level_waiting, t0_ns, t1_ns)

    def _level_mean(self, level: NDArray[np.int32], t0_ns: int, t1_ns: int) -> float:
        if t1_ns <= t0_ns:
            return float("nan")
        edges = np.clip(np.concatenate(([t0_ns], self.level_ns, [t1_ns])), t0_ns, t1_ns)
        values = np.concatenate(([0], level)).astype(np.float64)
        return float((np.diff(np.maximum.accumulate(edges)) * values).sum() / (t1_ns - t0_ns))

    def ttft_ms(self) -> NDArray[np.float64]:
        """Per request: send of the first tokens − arrival of the request; nan where no token was sent. Shape R."""
        out = (self.first_ns - self.arrival_ns) / 1e6
        return np.where(self.first_ns >= 0, out, np.nan)

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """(S) the events that were sent, by request, then time."""
        sent = np.flatnonzero(self._sent())
        return sent[np.lexsort((self.event_ns[sent], self.event_request[sent]))]

    def gaps_ns(self, t0_ns: int | None = None, t1_ns: int | None = None) -> tuple[Ints, Ints]:
        """Gaps between a request's neighbouring events that were sent, and the tokens that each gap brought.

        With t0 and t1 only gaps that end in [t0, t1). Order: by request, then time. Both of shape G.
        """
        keep = self._neighbours(self.event_request[self.order], self.event_ns[self.order], t0_ns, t1_ns)
        return np.diff(self.event_ns[self.order])[keep], self.event_tokens[self.order][1:][keep].astype(np.int64)

    @staticmethod
    def _neighbours(owner: NDArray[Any], at: Ints, t0_ns: int | None, t1_ns: int | None) -> NDArray[np.bool_]:
        """Which arrivals follow another of the same request, and lie in [t0, t1)."""
        keep: NDArray[np.bool_] = np.diff(owner) == 0
        if t0_ns is not None:
            keep &= at[1:] >= t0_ns
        if t1_ns is not None:
            keep &= at[1:] < t1_ns
        return keep

    def arrivals(self) -> tuple[Ints, Ints, Ints]:
        """Request, time and tokens of what was sent, ordered by request, then time; a request's events within 0.5 ms
        after the first of them are one arrival, at the time of the last: no reader can tell them apart. All shape A."""
        owner, at = self.event_request[self.order], self.event_ns[self.order]
        starts = np.ones(len(owner), dtype=bool)
        begun, last = 0, -1
        for i, (request, t) in enumerate(zip(owner.tolist(), at.tolist(), strict=True)):
            if request == last and t - begun <= TOGETHER_NS:
                starts[i] = False
            else:
                begun, last = t, request
        first = np.flatnonzero(starts)
        if not len(first):
            return owner.astype(np.int64), at, at
        tokens = np.add.reduceat(self.event_tokens[self.order].astype(np.int64), first)
        return owner[first].astype(np.int64), at[np.append(first[1:], len(at)) - 1], tokens

    def itl_ms(self, t0_ns: int | None = None, t1_ns: int | None = None) -> NDArray[np.float64]:
        """Time between tokens, token-weighted: an arrival with k tokens after a gap g stands k times as g/k. With t0
        and t1 only gaps that end in [t0, t1)."""
        owner, at, tokens = self.arrivals()
        keep = self._neighbours(owner, at, t0_ns, t1_ns)
        return np.repeat(np.diff(at)[keep] / tokens[1:][keep] / 1e6, tokens[1:][keep])

    def late_ns(self) -> dict[str, float]:
        """How far behind its schedule the rig itself was: p50, p99, max over all events; empty where none was sent."""
        late = self.event_late_us[self._sent()] * 1000.0
        if not len(late):
            return {}
        return {"p50": float(np.percentile(late, 50)), "p99": float(np.percentile(late, 99)), "max": float(late.max())}

    def blocked(self) -> int:
        """Events that found the socket full: the reader was slower than the rig."""
        return int(((self.event_flags & BLOCKED) > 0).sum())
