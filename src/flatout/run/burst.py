"""Fixed-count mode (`--requests N`): all at once, cold, until all are done; the end-to-end rate."""

from __future__ import annotations

import time

from flatout.flags import Flag
from flatout.load.process import Outcome
from flatout.measure import cell as measure
from flatout.measure.checks import self_check
from flatout.measure.verdict import Given, burst_verdict
from flatout.plan import PlannedCell
from flatout.record import Cell
from flatout.run.idle import ensure_idle
from flatout.run.prompts import content_of, recount
from flatout.run.requests import error_of, once, stream
from flatout.run.row import head_tokens
from flatout.run.session import Session
from flatout.run.settle import BLOCK_TOKENS, add_flag, harmful, note_length, take_verdict, telemetry
from flatout.run.store import now_iso


def work(session: Session, planned: PlannedCell) -> None:
    """Sends all of the cell's requests at one moment and settles the cell. Raises Stopped, Budget, TargetError."""
    cell = session.cell(planned.id)
    tokens, n = planned.context_tokens or 1, planned.concurrency
    session.afford(n * tokens, n * planned.max_output)
    streams = []
    for i in range(n):
        session.doing(f"making prompts of {planned.label} tokens: {i + 1} of {n}", planned)
        session.check()
        prompt = session.prompter.make(f"b/{tokens}/{i}", tokens)
        streams.append(stream(session.shape, content_of(prompt), planned.max_output))
    idle = ensure_idle(session, planned)
    session.order += 1
    cell.order, cell.started = session.order, now_iso()
    longest_s = session.options.timeouts.total_s
    session.doing(f"{n} requests of {planned.label} tokens at once", planned, "all to be done", longest_s)
    outcome = once(session, planned.id, streams, tokens)
    _settle(session, cell, outcome)
    if idle.idle is False and idle.note:
        add_flag(cell, Flag.CONTAMINATED, idle.note)
    cell.finished, cell.samples = now_iso(), session.store.write_samples(cell.id, outcome.samples)
    session.settle(cell)


def _settle(session: Session, cell: Cell, outcome: Outcome) -> None:
    """Figures, verdict and checks of a burst."""
    samples = outcome.samples
    measured = measure.burst(samples, rate_limited=outcome.refused, retokenised=recount(samples, session.count_answer))
    sent = samples.send_ns[samples.send_ns >= 0]
    first = int(sent.min()) if len(sent) else time.monotonic_ns()
    machine = session.sampler.window(first, max(first, int(samples.end_ns.max()) if samples.requests else first))
    error = outcome.error or (error_of(samples) if not measured.figures.completed else None)
    given = Given(
        asked=cell.concurrency,
        max_running=session.limits.max_running,
        cache_wanted="cold",
        expected_cached_tokens=head_tokens(session) + BLOCK_TOKENS,
        exact_length_asked=session.options.ignore_eos,
        self_checks=outcome.checks,
        throttle_reasons=harmful(machine),
        error=error,
    )
    take_verdict(cell, burst_verdict(measured, given), error, session.target.redactor.text)
    note_length(cell, [int(p) for p in samples.prompt_tokens if p > 0])
    cell.burst = measured.figures if error is None else None
    cell.tokens, cell.self_check, cell.telemetry = measured.tokens, self_check(outcome.checks), telemetry(machine)
