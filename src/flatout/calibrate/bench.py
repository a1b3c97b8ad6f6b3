"""The known speeds, and one of them measured as a run measures a decode cell: launch, steady load, a window, stop."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import numpy as np

from flatout.calibrate import compare
from flatout.calibration import Point
from flatout.load.job import Endpoint, Job, Timeouts
from flatout.load.process import LoadPool, Outcome
from flatout.measure.cell import decode
from flatout.measure.checks import in_window
from flatout.protocol import PATHS, Shape
from flatout.rig import RigHandle, Truth
from flatout.rig.truth import BLOCKED
from flatout.run.requests import first_lengths, stream

TTFT_MS: Final = 20.0
START_S: Final = 30.0
SETTLE_S: Final = 0.3
PROMPT: Final = "Tell me how fast this machine reads."

_DEFAULTS: Final = {
    "ttft_ms": TTFT_MS, "burst_events": 1, "burst_one_send": False, "spec_accept_length": None, "usage_delay_ms": 0.0,
}  # fmt: skip
_COUNTS: Final = ("stream_options.include_usage", True), ("stream_options.continuous_usage_stats", True)


@dataclass(frozen=True, slots=True)
class Scene:
    """One setting of the sender. `knobs`: further ones of the rig. `stall_s`: a silence that begins inside the window.
    `running_counts`: ask the server for a token count in each event; without, usage comes once, at the end.
    `answers_s`: about how long one answer takes, so that several restarts fall into the window."""

    name: str
    kind: Literal["scale", "shape", "events", "streams"]
    streams: int
    stream_tok_s: float
    pattern: Literal["step", "spread"] = "step"
    tokens_per_event: int = 1
    lean: bool = False
    knobs: Mapping[str, Any] = field(default_factory=dict)
    stall_s: float = 0.0
    running_counts: bool = True
    answers_s: float = 1.0
    events_factor: float = 1.0

    @property
    def events_s(self) -> float:
        return self.streams * self.stream_tok_s / self.tokens_per_event * self.events_factor

    @property
    def max_tokens(self) -> int:
        return max(24, round(self.stream_tok_s * self.answers_s))


def _scale(streams: int, tok_s: float, pattern: Literal["step", "spread"], *, lean: bool = False) -> Scene:
    name = f"{streams} × {tok_s:g}, {'in step' if pattern == 'step' else 'spread'}"
    return Scene(name, "scale", streams, tok_s, pattern, lean=lean, answers_s=0.3 if streams == 1 else 1.0)


_FULL_SCALE: Final = (
    _scale(1, 450, "step"),
    _scale(4, 300, "step"),
    _scale(16, 220, "step"),
    _scale(16, 220, "spread"),
    _scale(64, 150, "step"),
    _scale(64, 150, "spread"),
    _scale(128, 120, "step", lean=True),
    _scale(256, 100, "step", lean=True),
    _scale(256, 100, "spread", lean=True),
)
_QUICK_SCALE: Final = (_scale(1, 450, "step"), _scale(16, 220, "step"), _scale(64, 150, "step"))

_SHAPES: Final = (
    Scene("2 tokens an event", "shape", 16, 200, tokens_per_event=2),
    Scene("8 tokens an event", "shape", 16, 200, "spread", tokens_per_event=8),
    Scene("bursts of 4 events", "shape", 16, 200, "spread", knobs={"burst_events": 4}),
    Scene("4 events in one send", "shape", 16, 200, knobs={"burst_events": 4, "burst_one_send": True}),
    Scene("1-5 tokens an event (drafts)", "shape", 16, 200, knobs={"spec_accept_length": 3.0, "spec_draft_tokens": 4},
          events_factor=1 / 3),
    Scene("a stall of 0.5 s", "shape", 16, 200, stall_s=0.5),
    Scene("usage at the end, 50 ms late", "shape", 16, 200, knobs={"usage_delay_ms": 50.0}, running_counts=False,
          answers_s=0.4),
)  # fmt: skip


def known_speeds(*, quick: bool) -> tuple[Scene, ...]:
    """The scale and the shapes of streams, in the order in which they are measured."""
    shapes = tuple(s for s in _SHAPES if not quick or s.stall_s or not s.running_counts)
    return (_QUICK_SCALE if quick else _FULL_SCALE) + shapes


def events_scene(events_s: float, streams: int = 256) -> Scene:
    """A load of so many events a second, in step."""
    return Scene(
        f"{events_s / 1e3:,.0f}K events/s", "events", streams, events_s / streams, lean=True, answers_s=1.0,
    )  # fmt: skip


def streams_scene(streams: int, events_s: float) -> Scene:
    """So many streams that make so many events a second together, in step."""
    return Scene(
        f"{streams:,} streams", "streams", streams, max(20.0, events_s / streams), lean=True, answers_s=2.0
    )  # fmt: skip


class SceneError(Exception):
    """The point could not be measured at all; the text says why."""


def job_for(scene: Scene, url: str, name: str) -> Job:
    """The load core's job: streams that restart, their first answers of evenly spread lengths."""
    where = urlsplit(url)
    fields = _COUNTS if scene.running_counts else _COUNTS[:1]
    shape = Shape(api="chat", model="rig-model", fields=fields, id_field="request_id")
    firsts = first_lengths(scene.streams, scene.max_tokens, scene.streams)
    return Job(
        name=name,
        mode="closed",
        api="chat",
        endpoint=Endpoint("http", where.hostname or "", where.port or 0, f"/v1{PATHS['chat']}"),
        timeouts=Timeouts(first_byte_s=START_S, idle_s=START_S),
        streams=tuple(stream(shape, PROMPT, scene.max_tokens, first) for first in firsts),
        rid_prefix=name,
    )


def cpu_s(pids: Sequence[int]) -> float:
    """CPU time of the processes so far: by the scheduler's count in ns where there is one (Linux), else by ticks."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    total = 0.0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one load yielded: what was read, what was sent, the window, and the CPU s that reading took in it."""

    outcome: Outcome
    truth: Truth
    open_ns: int
    close_ns: int
    cpu_s: float


def measure(scene: Scene, rig: RigHandle, pool: LoadPool, window_s: float) -> Point:
    """Measures one scene. Raises SceneError, LoadError and RigError."""
    return point(scene, load(scene, rig, pool, window_s))


def load(scene: Scene, rig: RigHandle, pool: LoadPool, window_s: float) -> Loaded:
    """Runs one scene's load. Raises SceneError, LoadError and RigError."""
    knobs: dict[str, Any] = {
        **_DEFAULTS, "decode_tok_s": scene.stream_tok_s, "tokens_per_event": scene.tokens_per_event,
        "pattern": scene.pattern, **scene.knobs,
    }  # fmt: skip
    rig.control(**knobs)
    rig.reset()
    pool.start(job_for(scene, rig.url, f"cal{os.getpid() % 100_000}x{time.monotonic_ns() % 10**9}"))
    try:
        status = pool.wait(START_S, until=lambda s: s.started >= scene.streams)
        if status.started < scene.streams:
            why = status.error or status.last_error or f"{status.started} streams after {START_S:g} s"
            raise SceneError(f"{scene.name}: the load did not start ({why})")
        time.sleep(SETTLE_S)
        cpu = -cpu_s(pool.pids)
        open_ns = time.monotonic_ns()
        if scene.stall_s:
            time.sleep(window_s * 0.4)
            rig.control(stall_now_s=scene.stall_s)
        close_ns = open_ns + round(window_s * 1e9)
        time.sleep(max(0.0, (close_ns - time.monotonic_ns()) / 1e9))
        cpu += cpu_s(pool.pids)
        cpu_span_s = (time.monotonic_ns() - open_ns) / 1e9
    finally:
        outcome = pool.stop()
    return Loaded(outcome, rig.log(), open_ns, close_ns, cpu * window_s / cpu_span_s)


def point(scene: Scene, loaded: Loaded) -> Point:
    """The point out of what was read and what was sent. Raises SceneError if nothing was read."""
    outcome, truth, open_ns, close_ns = loaded.outcome, loaded.truth, loaded.open_ns, loaded.close_ns
    if not outcome.samples.requests:
        raise SceneError(f"{scene.name}: nothing was read")
    decoded = decode(outcome.samples, t_open_ns=open_ns, t_close_ns=close_ns, context_tokens=0)
    figures, log = decoded.figures, (truth, open_ns, close_ns)
    window_s = (close_ns - open_ns) / 1e9
    sent = compare.sent_events(truth, open_ns, close_ns)
    stamps = compare.stamps(outcome.samples, truth, open_ns, close_ns)
    total, ttft = compare.total_tok_s(figures, *log), compare.ttft_p50_ms(figures, outcome.samples, *log)
    itl_p50, itl_p99 = compare.itl_ms(figures, *log)
    blocked = int(((truth.event_flags[sent] & BLOCKED) > 0).sum())
    events = int(sent.sum())
    asked = _asked_events_s(scene, truth, open_ns, close_ns)
    merged = float(stamps.merged.mean()) if len(stamps.merged) else 0.0
    checks = in_window(outcome.checks, open_ns, close_ns)
    verdict = compare.judge(
        total, ttft, itl_p50, checks, asked_events_s=asked, sent_events_s=events / window_s, blocked=blocked,
        merged_share=merged, estimated=bool(decoded.tokens.estimated_share),
    )  # fmt: skip
    p50, p99 = compare.percentiles(stamps.error_us)
    lags = [c.lag_p99_ns for c in outcome.checks if c.lag_p99_ns is not None]
    late = truth.event_late_us[sent]
    return Point(
        name=scene.name, kind=scene.kind, sender="lean" if scene.lean else "rig", streams=scene.streams,
        stream_tok_s=scene.stream_tok_s, tokens_per_event=scene.tokens_per_event, pattern=scene.pattern,
        window_s=window_s, asked_events_s=asked, sent_events_s=events / window_s, total_tok_s=total, ttft_p50_ms=ttft,
        itl_p50_ms=itl_p50, itl_p99_ms=itl_p99, longest_gap_ms=compare.longest_gap_ms(figures, *log),
        events_matched=len(stamps.error_us), stamp_p50_us=p50, stamp_p99_us=p99,
        merged_share=merged,
        cpu_us_per_event=loaded.cpu_s * 1e6 / events if events else None,
        cpu_share=loaded.cpu_s / window_s / len(outcome.checks) if outcome.checks else None,
        lag_p99_us=max(lags) / 1e3 if lags else None, late_reads=sum(c.late_reads for c in outcome.checks),
        reads=sum(c.reads for c in outcome.checks),
        sender_late_p99_us=float(np.percentile(late, 99)) if len(late) else None, blocked=blocked,
        token_source=decoded.tokens.source or "", trusted=verdict.trusted,
        held_by=verdict.held_by, reason=verdict.reason,
    )  # fmt: skip


def _asked_events_s(scene: Scene, truth: Truth, open_ns: int, close_ns: int) -> float:
    """Events a second that the sender was set to, less the pauses between answers and a planted silence: those are
    part of the plan, and no weakness of the sender."""
    window_ns = close_ns - open_ns
    last = np.where(truth.end_ns >= 0, truth.last_ns, close_ns)
    decoding = np.minimum(last, close_ns) - np.maximum(truth.first_ns, open_ns)
    mean = float(np.maximum(decoding, 0)[truth.first_ns >= 0].sum()) / window_ns
    stalled = min(scene.stall_s * 1e9 / window_ns, 1.0)
    return scene.events_s * min(1.0, mean / scene.streams) * (1.0 - stalled)
