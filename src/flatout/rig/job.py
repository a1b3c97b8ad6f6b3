"""One request inside the engine, and the counters that the metrics show."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from flatout.rig.tokens import Prompt
from flatout.rig.truth import Record


class State(Enum):
    WAITING = 0
    PREFILL = 1
    DECODE = 2
    DONE = 3


class Sink(Protocol):
    """Where a job's tokens go."""

    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        """n more tokens of each choice, due then; `hold`: the bytes may wait for the next call."""

    def finished(self, job: Job, finish: str) -> None:
        """The job ended by itself (length, stop) or was aborted (abort)."""


@dataclass(slots=True, eq=False)
class Job:
    """`done`, `max_tokens` and `target` are per choice; times are the engine's own ns (they stand still in a stall)."""

    number: int  # in the log
    record: Record
    prompt: Prompt
    max_tokens: int
    target: int  # where it ends
    finish: str = "length"  # how it ends there
    choices: int = 1
    stream: bool = True
    sink: Sink | None = None
    fixed_ns: int | None = None  # replaces the whole time to first token
    state: State = State.WAITING
    done: int = 0
    cached: int = 0
    leftover: bool = False
    leftover_end_ns: int | None = None
    slot: int = -1
    phase: float = 0.0
    ready_ns: int = 0  # no event of the common step before
    prefill_start_ns: int = 0
    first_ns: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    seen: bool = False  # its first token exists (a preempted job has it too)


@dataclass(slots=True)
class Counters:
    """Totals since start. `_live` ones move with each token, the others as requests end."""

    generated_live: int = 0
    generated: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  # by streaming or not
    prompt: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    requests: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    prompt_live: int = 0  # moves as a prefill ends
    cached_live: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    aborted: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    steps: int = 0
    step_streams: int = 0  # sum over steps of the streams in it
    longest: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    realtime_decode: int = 0  # SGLang's: brought up to date every 40 steps
