"""Fixed-count mode (`--requests N`): all at once, cold, until all are done; the end-to-end rate."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from flatout import record as rec
from flatout.engines.redact import tidy
from flatout.load.process import Outcome
from flatout.load.samples import Samples
from flatout.measure import cell as measure
from flatout.measure import figures as fig
from flatout.measure.verdict import decode_verdict
from flatout.plan import Limits, PlannedCell, need, resolve, verdict_of
from flatout.run import figures, sends
from flatout.run.answers import error_of
from flatout.run.idle import ensure_idle
from flatout.run.once import once
from flatout.run.prompts import content_of
from flatout.run.recount import recount
from flatout.run.row import head_tokens
from flatout.run.store import now_iso
from flatout.suite import Suite, label

if TYPE_CHECKING:
    from flatout.run.session import Session


def plan(suite: Suite, limits: Limits, requests: int) -> list[PlannedCell]:
    """One cell a context: `requests` prompts of their own. What the server cannot hold at once waits in its queue, so
    only a request that is too long by itself is not sent."""
    cells = []
    for context in suite.decode or suite.prefill:
        tokens = resolve(context, limits, suite.max_output)
        alone = None if tokens is None else need(tokens, 1, suite.max_output, shared=False)
        verdict, reason = verdict_of(tokens, 1, suite.max_output, alone, limits, context=context)
        cells.append(
            PlannedCell(
                id=f"b/{tokens if tokens is not None else context}/{requests}",
                phase="burst",
                context=context,
                context_tokens=tokens,
                label=label(tokens, context),
                concurrency=requests,
                max_output=suite.max_output,
                need_tokens=None if tokens is None else need(tokens, requests, suite.max_output, shared=False),
                verdict=verdict,
                reason=reason,
                will_queue=limits.max_running is not None and requests > limits.max_running,
            )
        )
    return cells


def _cached(samples: Samples) -> float | None:
    told = samples.cached_tokens[samples.cached_tokens >= 0]
    return float(told.mean()) if len(told) else None


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
        streams.append(sends.stream(session.shape, content_of(prompt), planned.max_output))
    idle = ensure_idle(session, planned)
    session.order += 1
    cell.order, cell.started = session.order, now_iso()
    longest_s = session.options.timeouts.total_s
    session.doing(f"{n} requests of {planned.label} tokens at once", planned, "all to be done", longest_s)
    outcome = once(session, planned.id, streams, tokens)
    _settle(session, cell, outcome)
    if idle.idle is False and idle.note:
        figures.add_flag(cell, "contaminated", idle.note)
    cell.finished, cell.samples = now_iso(), session.store.write_samples(cell.id, outcome.samples)
    session.settle(cell)


def _settle(session: Session, cell: rec.Cell, outcome: Outcome) -> None:
    """Figures, verdict and checks of a burst."""
    samples = outcome.samples
    made = measure.burst_figures(samples, retokenised=recount(session, samples))
    sent = samples.send_ns[samples.send_ns >= 0]
    first = int(sent.min()) if len(sent) else time.monotonic_ns()
    machine = session.sampler.window(first, max(first, int(samples.end_ns.max()) if samples.requests else first))
    error = outcome.error or (error_of(samples) if not made.finished else None)
    facts = replace(
        measure.burst_facts(
            made,
            exact_length_asked=session.options.ignore_eos,
            self_checks=outcome.checks,
            throttle_reasons=figures.harmful(machine),
            error=error,
        ),
        asked_concurrency=cell.concurrency,
        max_running=session.limits.max_running,
        streams_started=None,
        restarts=False,
        refused=outcome.refused,
        cache_wanted="cold",
        cached_tokens=_cached(samples),
        expected_cached_tokens=head_tokens(session) + figures.BLOCK_TOKENS,
    )
    figures.take_verdict(session, cell, decode_verdict(facts))
    figures.note_length(cell, [int(p) for p in samples.prompt_tokens if p > 0])
    cell.error = tidy(error, session.target.redactor.text) if error else None
    cell.burst = _figures(made, outcome.refused) if error is None else None
    cell.tokens = rec.Tokens(
        source=", ".join(made.token_sources) or None, in_window=made.tokens, estimated_share=made.estimated_share
    )
    cell.self_check, cell.telemetry = figures.self_check(outcome.checks), figures.telemetry(machine)


def _figures(made: fig.BurstFigures, refused: int) -> rec.BurstFigures:
    return rec.BurstFigures(
        end_to_end_tok_s=figures.rate(made.total_tok_s),
        per_request_tok_s=figures.as_distribution(made.request_tok_s),
        duration_s=made.wall_s.value,
        ttft_ms=figures.distribution(made.ttft_ms, "all requests, sent at once and cold"),
        tpot_ms=figures.distribution(made.tpot_ms),
        itl_ms=figures.distribution(made.itl_ms),
        completed=made.finished,
        failed_requests=made.failed,
        rate_limited=refused,
        output_tokens=made.tokens,
        longest_gap_ms=made.longest_gap_ms,
    )
