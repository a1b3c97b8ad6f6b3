"""What one run holds while it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flatout.calibration import Calibration
from flatout.engines.base import Live, TargetError
from flatout.engines.detect import Target
from flatout.engines.probe import Capabilities
from flatout.host.telemetry import Sampler
from flatout.load.process import JobRefused, LoadError, LoadPool
from flatout.load.samples import OK, REFUSED, Samples
from flatout.plan import Limits, PlannedCell
from flatout.protocol import Shape
from flatout.record import Cell, Record
from flatout.run.events import CellDone, Control, Doing, Listener, Note
from flatout.run.options import Options
from flatout.run.prompts import Prompter
from flatout.run.settle import machine_stats
from flatout.run.store import Store

LEAST_EVENTS: Final = 64
"""Events with content from which tokens an event are known well enough."""


class Stopped(Exception):
    """The user ended the run, or skipped the cell (`skip` true); what was measured so far stands."""

    def __init__(self, skip: bool = False) -> None:
        super().__init__("skipped by the user" if skip else "stopped")
        self.skip = skip


class Budget(Exception):
    """`--max-tokens-total` would be exceeded."""


@dataclass(slots=True)
class Baseline:
    """An unloaded server's answer to one small request: what a probe for idleness is held against. Milliseconds."""

    ttft_ms: float
    tpot_ms: float | None


@dataclass(slots=True)
class Session:
    """The parts of a running run, made by `run.begin`. `warm_sends`: sends after which a context is cached, learned.

    `uncached_rest`: tokens at the end of a warm prompt that were not cached when it was sent again, learned.
    `gauges`: the server tells how many requests it runs (its page may be there and say nothing). `cold_output`: tokens
    that a cold prompt asks for: one, or as many as it takes until one can be seen.
    """

    options: Options
    target: Target
    capabilities: Capabilities
    shape: Shape
    limits: Limits
    pool: LoadPool
    prompter: Prompter
    sampler: Sampler
    planned: list[PlannedCell]
    record: Record
    store: Store
    listener: Listener
    control: Control
    nonce: str
    recounter: Callable[[str], int] | None = None
    baseline: Baseline | None = None
    calibration: Calibration | None = None
    gauges: bool = False
    cold_output: int = 1
    warm_sends: int | None = None
    uncached_rest: int | None = None
    billed_tokens: int = 0
    billed_bytes: int = 0
    tokens_per_event: float | None = None
    spent_prompt: int = 0
    spent_output: int = 0
    jobs: int = 0
    order: int = 0
    pace_from: tuple[int, int] | None = None

    def say(self, text: str, level: str = "info") -> None:
        self.listener(Note(text, level))

    def warn(self, text: str) -> None:
        """A warning that belongs into the record too."""
        text = self.target.redactor.text(text)
        if text not in self.record.warnings:
            self.record.warnings.append(text)
            self.say(text, "warning")

    def doing(
        self, text: str, cell: PlannedCell | None = None, wait_for: str | None = None, until_s: float | None = None
    ) -> None:
        if cell is not None and self.pace_from is None:
            self.pace_from = (time.monotonic_ns(), self._settled())
        share, left_s = self.progress()
        self.listener(Doing(text, cell.id if cell else None, wait_for, until_s, share, left_s))

    def progress(self) -> tuple[float, float | None]:
        """Share of the cells that have their status, and the seconds left at the pace since the first cell began (None
        before one has its status: the warm-up tells nothing of the pace)."""
        total = sum(cell.verdict == "measure" for cell in self.planned)
        if not total:
            return 1.0, 0.0
        settled = self._settled()
        since_ns, before = self.pace_from or (0, settled)
        if settled == before:
            return settled / total, None
        spent_s = (time.monotonic_ns() - since_ns) / 1e9
        return settled / total, spent_s / (settled - before) * (total - settled)

    def _settled(self) -> int:
        """Cells to be measured that have their status."""
        finished = {cell.id for cell in self.record.cells if cell.finished is not None}
        return sum(cell.verdict == "measure" and cell.id in finished for cell in self.planned)

    def cell(self, cell_id: str) -> Cell:
        return next(c for c in self.record.cells if c.id == cell_id)

    def settle(self, cell: Cell) -> None:
        """Writes the record with this cell's result, and tells the listener."""
        self.store.write_record(self.record)
        self.listener(CellDone(cell))

    def live(self) -> Live | None:
        """The server's gauges now, or None where it has none or does not answer this once."""
        try:
            return self.target.adapter.live()
        except (TargetError, ArithmeticError, ValueError):
            return None

    def recover(self, error: Exception) -> None:
        """New load processes in place of those that died or hang, if that is what the error says."""
        if not isinstance(error, LoadError) or isinstance(error, JobRefused):
            return
        self.warn(f"{error}; the measuring processes were started anew")
        self.pool.restart()
        for i, pid in enumerate(self.pool.pids):
            self.sampler.watch(f"load_{i + 1}", pid)

    def machine_now(self) -> dict[str, float | None]:
        """The machine over the last two seconds, by name with unit."""
        now_ns = time.monotonic_ns()
        return {name: s.mean for name, s in machine_stats(self.sampler.window(now_ns - 2_000_000_000, now_ns)).items()}

    def check(self) -> None:
        """Raises Stopped if the user asked for it."""
        if self.control.stopping:
            raise Stopped
        if self.control.take_skip():
            raise Stopped(skip=True)

    def count_answer(self, text: str) -> int | None:
        """Tokens of an answer's text by `--tokenizer`, else by the server's own tokenizer call."""
        return (self.recounter or self.target.adapter.count_tokens)(text)

    @property
    def tokens_per_byte(self) -> float | None:
        """What usage billed so far per byte of streamed text; None before any answer ended."""
        return self.billed_tokens / self.billed_bytes if self.billed_bytes else None

    @property
    def limited(self) -> bool:
        """Whether a token budget was given."""
        return self.options.max_tokens_total is not None

    def afford(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raises Budget if sending this much more would exceed `--max-tokens-total`."""
        most = self.options.max_tokens_total
        spent = self.spent_prompt + self.spent_output
        if most is not None and spent + prompt_tokens + output_tokens > most:
            raise Budget(
                f"it would take about {prompt_tokens + output_tokens:,} tokens more; {spent:,} of the {most:,} that "
                "--max-tokens-total allows are spent"
            )

    def _learn_from_running_counts(self, samples: Samples) -> None:
        """Tokens an event, of requests that were cut and whose server counts in each event."""
        rows = [samples.arrivals_of(i) for i in range(samples.requests) if samples.arrival_count[i] > 0]
        last = [int(samples.running_tokens[row][-1]) for row in rows]
        events = int(samples.arrival_count.sum())
        if events >= LEAST_EVENTS and last and min(last) > 0:
            self.tokens_per_event = sum(last) / events

    def spend(self, samples: Samples, prompt_tokens: int) -> None:
        """Counts what these requests cost: as the server billed them; where it did not (cut ones, or no usage at all),
        the prompt's length `prompt_tokens`, and the answer's by what usage billed per byte so far, else by events."""
        sent = (samples.send_ns >= 0) & (samples.outcome != REFUSED)
        counted = samples.prompt_tokens >= 0
        self.spent_prompt += int(samples.prompt_tokens[counted].sum()) + prompt_tokens * int((sent & ~counted).sum())
        untold = samples.completion_tokens < 0
        per_byte = self.tokens_per_byte
        guess = samples.text_bytes * per_byte if per_byte is not None else samples.arrival_count
        self.spent_output += int(samples.completion_tokens.clip(min=0).sum()) + int(guess[untold].sum())
        whole = (samples.outcome == OK) & (samples.completion_tokens > 0) & (samples.text_bytes > 0)
        self.billed_tokens += int(samples.completion_tokens[whole].sum())
        self.billed_bytes += int(samples.text_bytes[whole].sum())
        done = samples.completion_tokens > 1
        events = int(samples.arrival_count[done].sum())
        if events >= LEAST_EVENTS:
            self.tokens_per_event = float(samples.completion_tokens[done].sum()) / events
        else:
            self._learn_from_running_counts(samples)
        self.record.tokens_spent = {"prompt": self.spent_prompt, "output": self.spent_output}
