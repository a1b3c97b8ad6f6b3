"""The known speeds that a calibration measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

TTFT_MS: Final = 20.0


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
