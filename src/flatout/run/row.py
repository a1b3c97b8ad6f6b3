"""One context length: its prompts are made, sent cold (each alone: the prefill figure), warmed, and used by the row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from flatout.engines.redact import tidy
from flatout.flags import Flag
from flatout.host.summary import TelemetrySummary
from flatout.load.job import SelfCheck
from flatout.load.process import Outcome
from flatout.load.samples import OK, Samples, merge
from flatout.measure import cell as measure
from flatout.measure.checks import self_check
from flatout.measure.verdict import Given, prefill_verdict
from flatout.plan import PlannedCell
from flatout.prompts.book import SHARED_HEAD_WORDS, Prompt
from flatout.record import Cell
from flatout.run.idle import ensure_idle
from flatout.run.requests import answered, error_of, send_alone, ttft_ms
from flatout.run.session import Session
from flatout.run.settle import (
    BLOCK_TOKENS,
    LENGTH_SHARE,
    add_flag,
    harmful,
    note_length,
    take_verdict,
    telemetry,
)
from flatout.run.store import now_iso

MAX_WARM_SENDS: Final = 3
REDO_COLD: Final = 3
FIT_SENDS: Final = 3
MOST_COLD_OUTPUT: Final = 4096
CUT_SHARE: Final = 0.8
"""A prompt of which the server counts less than this share was cut: no fit is so far off."""
CACHED_SHARE: Final = 0.5
"""A context counts as cached once the server says so of over half of it (blocks and checkpoints leave a rest)."""
FASTER_SHARE: Final = 0.5
"""Where nothing reports cached tokens: a context counts as cached once its TTFT is below half of the cold one."""


@dataclass(slots=True)
class Row:
    """What a context length's cells share. `cold`: one request each, in order of `prompts` and what came before.

    `cached_tokens`: what the server had in its cache when a context was sent again (None: it does not tell).
    `warm`: whether the contexts are known to be cached; `to_warm`: nobody tried yet. `cut_to`: tokens that the server
    made of a longer prompt without a word (Ollama does), so that nothing of this length can be measured.
    """

    tokens: int
    prompts: list[Prompt] = field(default_factory=list)
    cold: list[Samples] = field(default_factory=list)
    cold_ttft_ms: float | None = None
    cached_tokens: int | None = None
    warm: bool | None = None
    to_warm: bool = True
    error: str | None = None
    cut_to: int | None = None


def streams_needed(cells: Sequence[PlannedCell], shared: bool) -> int:
    """Own contexts that the row's measured decode cells need."""
    most = max((c.concurrency for c in cells if c.phase == "decode" and c.verdict == "measure"), default=0)
    return min(most, 1) if shared else most


def prepare(session: Session, cells: Sequence[PlannedCell]) -> Row:
    """Makes the row's prompts and sends each of them cold, alone on the server; settles the row's prefill cell.

    Raises Stopped, Budget, TargetError, and LoadError from the pool.
    """
    prefill = next((c for c in cells if c.phase == "prefill" and c.verdict == "measure"), None)
    idle = ensure_idle(session, prefill)
    started, t_open = now_iso(), time.monotonic_ns()
    sends = _ColdSends(session, cells, prefill)
    while sends.todo:
        sends.next()
    row = sends.row
    if row.cut_to is not None:
        return row
    row.cold_ttft_ms = _median_ttft_ms(row.cold)
    if prefill is not None:
        machine = session.sampler.window(t_open, time.monotonic_ns())
        foreign = sends.foreign or (idle.note if idle.idle is False else None)
        _settle(session, session.cell(prefill.id), started, sends, machine, foreign)
    return row


def _settle(
    session: Session,
    cell: Cell,
    started: str,
    sends: _ColdSends,
    machine: TelemetrySummary,
    foreign: str | None,
) -> None:
    """Fills the prefill cell from its cold requests. `foreign`: what else ran on the server."""
    row, redact = sends.row, session.target.redactor.text
    samples = merge(row.cold)
    figures = measure.prefill(
        samples, prompt_tokens=cell.context_tokens, head_tokens=head_tokens(session), block_tokens=BLOCK_TOKENS
    )
    given = Given(1, self_checks=sends.checks, throttle_reasons=harmful(machine), error=row.error)
    take_verdict(cell, prefill_verdict(figures, given), row.error, redact)
    for sample in figures.samples:
        sample.note = tidy(sample.note, redact) if sample.note else None
    figures.rate_limited = sends.refused
    cell.prefill = figures
    note_length(cell, [s.prompt_tokens for s in figures.samples if s.prompt_tokens is not None])
    cell.self_check, cell.telemetry = self_check(sends.checks), telemetry(machine)
    if foreign:
        add_flag(cell, Flag.CONTAMINATED, foreign)
    session.order += 1
    cell.order, cell.started, cell.finished = session.order, started, now_iso()
    cell.samples = session.store.write_samples(cell.id, samples)
    session.settle(cell)


class _ColdSends:
    """The cold sends of one context length. Keys: `c/…` for the contexts that the decode cells use, `x/…` for those
    that only the prefill figure needs (first, so that they push no context out of the cache)."""

    def __init__(self, session: Session, cells: Sequence[PlannedCell], prefill: PlannedCell | None) -> None:
        suite, tokens = session.options.suite, cells[0].context_tokens
        assert tokens is not None
        contexts = streams_needed(cells, suite.prompts == "shared")
        extra = max(0, suite.prefill_samples - contexts) if prefill else 0
        self.row = Row(tokens)
        self.checks: list[SelfCheck] = []
        self.todo = [f"x/{tokens}/{i}" for i in range(extra)] + [f"c/{tokens}/{i}" for i in range(contexts)]
        self._session, self._prefill, self._label = session, prefill, cells[0].label
        self.refused = 0
        self._what = "prefill" if prefill else "filling the cache with"
        self._redo = REDO_COLD if prefill else 0
        self._tries: list[Prompt] = []
        self._retries = 1
        self.foreign: str | None = None

    def next(self) -> None:
        """Sends the next one; empties `todo` where nothing of this length can be measured."""
        session, row = self._session, self.row
        key = self.todo.pop(0)
        number = len(row.cold) + 1
        session.doing(f"{self._what} {self._label}: cold prompt {number} of {number + len(self.todo)}", self._prefill)
        session.check()
        session.afford(row.tokens, session.cold_output)
        prompt = session.prompter.make(key, row.tokens)
        self._alone()
        outcome = send_alone(session, f"cold {key}", prompt, session.cold_output)
        self.checks += outcome.checks
        if self._again(prompt, outcome.samples):
            self.todo.insert(0, key)
            return
        row.cold.append(outcome.samples)
        self.refused += outcome.refused
        session.prompter.used(key, _with_count(prompt, outcome.samples))
        self._look(outcome)
        if row.error or row.cut_to is not None:
            self.todo.clear()
        elif key.startswith("c/"):
            if not _take(row, self._tries, prompt, outcome.samples):
                self.todo.insert(0, key)  # its count is known now and is not as asked: another beginning
        elif _too_warm(session, outcome.samples) and self._redo:
            self._redo -= 1
            self.todo.insert(0, f"{key}+")

    def _alone(self) -> None:
        """Prefill is measured alone on the server: whatever runs before a send is waited for, and named if it stays."""
        live = self._session.live() if self._session.gauges else None
        if live is not None and (live.running or live.waiting):
            idle = ensure_idle(self._session, self._prefill)
            if idle.idle is False:
                self.foreign = idle.note

    def _again(self, prompt: Prompt, samples: Samples) -> bool:
        """Whether to send another instead: nothing could be seen of the answer, or the tokenizer call was wrong."""
        session = self._session
        if not answered(samples) and not _silent(samples) and self._retries:
            self._retries -= 1
            session.say(f"a cold prompt failed and is sent again: {session.target.redactor.text(error_of(samples))}")
            session.control.sleep(0.5)
            return True
        if _silent(samples) and session.cold_output < MOST_COLD_OUTPUT:
            session.cold_output = min(MOST_COLD_OUTPUT, 16 * session.cold_output)
            return True
        if prompt.counted_by == "tokenize" and _far_off(samples, self.row.tokens) and session.prompter.distrust():
            session.warn("the server's tokenizer call and its usage disagree: prompts are fitted by usage from now on")
            return True
        return False

    def _look(self, outcome: Outcome) -> None:
        """What makes this length impossible: an error, a prompt cut in silence, a count that cannot be."""
        row, samples = self.row, outcome.samples
        if not answered(samples):
            row.error = outcome.error or error_of(samples)
            return
        counted = int(samples.prompt_tokens[0])
        if 0 < counted < CUT_SHARE * row.tokens:
            row.cut_to = counted
        elif counted * CUT_SHARE > row.tokens:
            row.error = f"the server counts {counted:,} tokens in a prompt that should have {row.tokens:,}"


def _silent(samples: Samples) -> bool:
    """Answered, but with nothing to be seen: half a character, or reasoning that is not streamed."""
    ended = samples.requests == 1 and samples.outcome[0] == OK and samples.first_token_ns[0] < 0
    return bool(ended)


def _far_off(samples: Samples, tokens: int) -> bool:
    counted = int(samples.prompt_tokens[0])
    return counted > 0 and abs(counted - tokens) > max(2, LENGTH_SHARE * tokens)


def _take(row: Row, tries: list[Prompt], prompt: Prompt, samples: Samples) -> bool:
    """Takes a context into the row if the server's own count is as asked; after FIT_SENDS tries the nearest of them.

    False: make another. Prompts that were counted before they were sent need no second try.
    """
    tries.append(_with_count(prompt, samples))
    off = [abs((t.counted_tokens or t.asked_tokens) - t.asked_tokens) for t in tries]
    if off[-1] and prompt.counted_by == "sibling_usage" and len(tries) < FIT_SENDS:
        return False
    row.prompts.append(tries[off.index(min(off))])
    tries.clear()
    return True


def head_tokens(session: Session) -> int:
    """Tokens that every prompt begins with: the template's, and words that two heads may share by chance."""
    return (session.capabilities.template_tokens or 0) + SHARED_HEAD_WORDS


def _too_warm(session: Session, samples: Samples) -> bool:
    return int(samples.cached_tokens[0]) > head_tokens(session) + BLOCK_TOKENS


def _with_count(prompt: Prompt, samples: Samples) -> Prompt:
    counted = int(samples.prompt_tokens[0])
    return prompt.with_usage(counted) if counted > 0 else prompt


def _median_ttft_ms(cold: Sequence[Samples]) -> float | None:
    times = [ttft_ms(s) for s in cold if answered(s)]
    return float(np.median(times)) if times else None


def warm(session: Session, row: Row, cell: PlannedCell) -> None:
    """Sends the row's contexts again until they are cached, once a row; how many sends that takes is learned on the
    run's first.

    At most three sends a context, the cold one counted (some hybrids cache only at the second or third). Where the
    server says that the first is not cached after three, the row's others are not sent in vain.
    """
    if not row.to_warm or not row.prompts or row.error:
        return
    row.to_warm = False
    if session.warm_sends is None:
        session.doing(f"warming {cell.label}: how many sends until it is cached", cell)
        session.warm_sends = _learn(session, row)
        if session.warm_sends is None:
            return
        rest = row.prompts[1:]
    else:
        rest = row.prompts
    for i, prompt in enumerate(rest):
        for _ in range(session.warm_sends - 1):
            session.doing(
                f"warming {cell.label}: context {len(row.prompts) - len(rest) + i + 1} of {len(row.prompts)}", cell
            )
            session.check()
            session.afford(row.tokens, 1)
            _note_cached(row, send_alone(session, f"warm {row.tokens}/{i}", prompt).samples)


def _learn(session: Session, row: Row) -> int | None:
    """Sends after which a context is cached: found when the next one after it is. MAX_WARM_SENDS if nobody can tell,
    None if it is not cached by then: contexts of another length may be."""
    for sent in range(1, MAX_WARM_SENDS):
        session.check()
        session.afford(row.tokens, 1)
        samples = send_alone(session, f"warm {row.tokens}/0", row.prompts[0]).samples
        if _note_cached(row, samples):
            if row.cached_tokens is not None:
                session.uncached_rest = int(samples.prompt_tokens[0]) - row.cached_tokens
            return sent
    if row.warm is False:
        session.warn(
            "a context that was sent three times is still not in the server's prefix cache, so each request computes "
            "its prompt anew: is the cache switched off, or too small?"
        )
        return None
    return MAX_WARM_SENDS


def _note_cached(row: Row, samples: Samples) -> bool:
    """Takes down whether this answer came from the cache: by its count, else by its TTFT. True if it did."""
    if not answered(samples):
        return False
    cached, prompt = int(samples.cached_tokens[0]), int(samples.prompt_tokens[0])
    if cached >= 0:
        row.warm = cached >= CACHED_SHARE * max(prompt, 1)
        if row.warm:
            row.cached_tokens = max(row.cached_tokens or 0, cached)
        return row.warm
    if row.cold_ttft_ms is not None and ttft_ms(samples) < FASTER_SHARE * row.cold_ttft_ms:
        row.warm = True
        return True
    return False
