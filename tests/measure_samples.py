"""Samples for the tests of the measure room, written as requests and events instead of columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flatout.load.samples import ANSWER, CUT, OK, Samples, from_rows
from flatout.measure import trace
from flatout.measure.tokens import count

MS = 1_000_000
S = 1_000_000_000


@dataclass
class Event:
    """One arrival; -1: not told."""

    t_ns: int
    text_len: int = 4
    running: int = -1
    ids: int = -1
    kind: int = ANSWER


@dataclass
class Request:
    """One request; `end_ns` defaults to its last event."""

    events: list[Event] = field(default_factory=list)
    send_ns: int = 0
    stream: int = 0
    round: int = 0
    end_ns: int | None = None
    outcome: int = OK
    asked: int = 1024
    prompt: int = -1
    cached: int = -1
    completion: int = -1
    reasoning: int = -1
    choices: int = 1
    connect_ns: int = -1
    http_status: int = 200
    error: int = -1
    text: str = ""


def samples(requests: list[Request], error_texts: list[str] | None = None) -> Samples:
    rows, arrivals = [], []
    for r in requests:
        start = len(arrivals)
        arrivals += [(e.t_ns, e.running, e.ids, e.text_len, e.kind if e.text_len else 0) for e in r.events]
        token = [e.t_ns for e in r.events if e.text_len > 0 or e.ids > 0]
        first, last = (token[0], token[-1]) if token else (-1, -1)
        end = r.end_ns if r.end_ns is not None else max([e.t_ns for e in r.events], default=r.send_ns)
        finish = 0 if r.outcome == OK else -1
        text_bytes = sum(e.text_len for e in r.events)
        rows.append(
            (
                r.stream, r.round, r.send_ns, r.connect_ns, r.send_ns, first, first, last, end, r.http_status,
                r.outcome, finish, r.asked, r.prompt, r.cached, r.completion, r.reasoning, text_bytes, r.choices,
                r.error, start, len(r.events),
            )
        )  # fmt: skip
    return from_rows(
        rows,
        arrivals,
        finish_names=["length"],
        error_texts=error_texts,
        request_ids=["" for _ in requests],
        texts=[r.text for r in requests],
    )


def table_of(arrivals: Samples) -> trace.Trace:
    return trace.build(arrivals, count(arrivals))


def stream_of(
    times_ns: list[int], *, per_event: int = 1, running: bool = True, bytes_per_token: int = 4, **kwargs: object
) -> Request:
    """A request with `per_event` tokens at each of `times_ns`."""
    events = [
        Event(t, per_event * bytes_per_token, (i + 1) * per_event if running else -1) for i, t in enumerate(times_ns)
    ]
    return Request(events, **kwargs)  # type: ignore[arg-type]


def closed_loop(
    rng: np.random.Generator,
    *,
    streams: int = 4,
    gap_ns: int = 20 * MS,
    jitter: float = 0.0,
    ttft_ns: int = 50 * MS,
    output: int = 100,
    seconds: float = 10.0,
    per_event: int = 1,
    in_step: bool = False,
    running: bool = True,
) -> Samples:
    """N streams that restart as they end, first lengths spread; cut at `seconds`; gaps vary by `jitter` (normal)."""
    stop, requests = int(seconds * S), []
    for s in range(streams):
        t, number = 0 if in_step else int(rng.integers(0, gap_ns)), 0
        while t < stop:
            length = max(output * (s + 1) // streams, per_event) if number == 0 else output
            send = t
            times = [send + ttft_ns]
            for _ in range(length // per_event - 1):
                times.append(times[-1] + max(1000, int(gap_ns * (1.0 + jitter * rng.standard_normal()))))
            kept = [x for x in times if x < stop]
            done = len(kept) == len(times)
            requests.append(
                stream_of(
                    kept,
                    per_event=per_event,
                    running=running,
                    send_ns=send,
                    stream=s,
                    round=number,
                    end_ns=times[-1] if done else stop,
                    outcome=OK if done else CUT,
                    asked=length // per_event * per_event,
                    prompt=1000,
                    cached=990,
                    completion=length // per_event * per_event if done else -1,
                )
            )
            t, number = times[-1] + 1000, number + 1
    return samples(requests)
