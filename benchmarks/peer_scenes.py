"""The known server of peers.py: what is planted, and what really was, by the rig's own log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flatout.rig import RigConfig, RigHandle, Truth
from flatout.rig.truth import SENT, Ints

STREAMS, RATE, TTFT_MS, OUTPUT = 8, 100.0, 50.0, 200
LEFT_TOKENS = 6000
"""Of each left-over request: a minute of work if nobody comes, much longer than the slowest tool takes to start."""


@dataclass(frozen=True)
class Scene:
    """`knobs` of the rig; `stall_s`: one silence, once the load has begun; `plant`: work of others, before it."""

    about: str
    knobs: dict[str, Any] = field(default_factory=dict)
    stall_s: float = 0.0
    plant: dict[str, Any] | None = None

    def config(self) -> RigConfig:
        return RigConfig.from_dict({"dialect": "vllm", "ttft_ms": TTFT_MS, "decode_tok_s": RATE, **self.knobs})


SCENES = {
    "clean": Scene("nothing"),
    "stall": Scene("a silence of 2 s", stall_s=2.0),
    "leftover": Scene(
        "8 requests left over",
        {"capacity_tok_s": STREAMS * RATE},
        plant={"requests": STREAMS, "tokens": LEFT_TOKENS, "context": 256},
    ),
    "four": Scene("4 tokens an event, usage only at the end", {"dialect": "openai", "tokens_per_event": 4}),
    "usage": Scene("usage 0.5 s after the last text", {"usage_delay_ms": 500.0}),
    "role": Scene("the role's event at once", {"role_event": "at_once"}),
}


@dataclass(frozen=True)
class Known:
    """What really was. None: it cannot be said, since too few requests came."""

    total_tok_s: float | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None


def known(truth: Truth, scene: Scene, window_ns: tuple[int, int] | None = None) -> Known:
    """Total: tokens sent over the steady part of the run, from when all of the launch had arrived to when the first
    request that had no successor ended (so every stream's pauses are in it); in `window_ns` if the tool names one. TTFT
    and ITL: medians over the tool's requests, in that window or the whole run. Probes (requests of another length) are
    left out. Where work of others was planted, the truth is what the server does without it."""
    ours = np.array([reason != "leftover" for reason in truth.reason], dtype=bool) & (truth.sent_tokens > 0)
    mine = np.flatnonzero(ours & (truth.max_tokens >= OUTPUT // STREAMS))
    if len(mine) < STREAMS:
        return Known()
    first, last = truth.first_ns[mine], truth.last_ns[mine]
    arrived = np.sort(truth.arrival_ns[mine])
    newest = truth.arrival_ns[mine] >= arrived[-STREAMS]
    usage_ns = int(truth.config.get("usage_delay_ms", 0.0) * 1e6)
    steady = (int(arrived[STREAMS - 1]), int(last[newest].min()) + usage_ns)
    span = window_ns or (int(arrived[0]), int(last.max()))
    counted = mine[(first >= span[0]) & (first <= span[1])]
    ttft = float(np.median(truth.ttft_ms()[counted])) if len(counted) else None
    itl = truth.itl_ms(*span)
    if scene.plant:
        return Known(STREAMS * RATE, ttft, 1000.0 / RATE)
    total = truth.tok_s(*window_ns) if window_ns else _tok_s_of(truth, mine, *steady)
    return Known(total, ttft, float(np.median(itl)) if len(itl) else None)


def _tok_s_of(truth: Truth, mine: Ints, t0_ns: int, t1_ns: int) -> float | None:
    """Of the requests `mine`, in (t0, t1]."""
    if t1_ns <= t0_ns:
        return None
    sent = np.isin(truth.event_request, mine) & ((truth.event_flags & SENT) > 0)
    inside = sent & (truth.event_ns > t0_ns) & (truth.event_ns <= t1_ns)
    return float(truth.event_tokens[inside].sum()) / ((t1_ns - t0_ns) / 1e9)


@contextmanager
def planted(rig: RigHandle, scene: Scene) -> Iterator[None]:
    """Plants the scene's fault: left-over work now, a silence once STREAMS requests are half through."""
    if scene.plant:
        rig.control(plant=scene.plant)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            log = rig.log()
            if int(((log.max_tokens >= OUTPUT // 4) & (log.sent_tokens > OUTPUT // 2)).sum()) >= STREAMS:
                rig.control(stall_now_s=scene.stall_s)
                return

    thread = threading.Thread(target=watch, daemon=True)
    if scene.stall_s:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if scene.stall_s:
            thread.join(5.0)
