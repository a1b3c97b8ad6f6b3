"""Requests that are sent once and waited for, and hanging up."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flatout.engines.base import Live, TargetError
from flatout.load.job import Stream
from flatout.load.process import Outcome
from flatout.load.samples import CUT, FAILED, REFUSED
from flatout.prompts.book import Prompt
from flatout.run import sends
from flatout.run.events import Gauges
from flatout.run.prompts import content_of
from flatout.run.session import Stopped

if TYPE_CHECKING:
    from flatout.run.session import Session


def hang_up(session: Session, outcome: Outcome) -> None:
    """Tells the engine to stop what was cut, where closing the stream is not enough for it."""
    samples = outcome.samples
    unfinished = (samples.outcome == CUT) | ((samples.outcome == FAILED) & (samples.finish < 0))
    left = [samples.request_ids[i] for i in np.flatnonzero(unfinished)]
    left = [request_id for request_id in left if request_id]
    if left and session.shape.id_field:
        try:
            session.target.adapter.cancel(left)
        except TargetError as error:
            session.warn(f"the engine's cancel call failed: {error}")


def once(session: Session, name: str, streams: list[Stream], prompt_tokens: int) -> Outcome:
    """Sends each body once, waits for all to end (bounded by the requests' own limits), and returns what came.

    `prompt_tokens`: length of each prompt, for the account where the server counts none.

    Raises Stopped if the user stops or skips meanwhile, after hanging up.
    """
    session.pool.start(session.job(name, "once", streams))
    limits = session.options.timeouts
    longest_s = limits.connect_s + limits.total_s + 30.0
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        status = session.pool.wait(0.5)
        if status.ended:
            break
        session.listener(Gauges(None, in_flight=status.in_flight, asked=len(streams), machine=session.machine_now()))
        if session.control.stopping or session.control.take_skip():
            _account(session, session.pool.stop(), prompt_tokens)
            raise Stopped(skip=not session.control.stopping)
    return _without_refusals(_account(session, session.pool.stop(), prompt_tokens))


def _account(session: Session, outcome: Outcome, prompt_tokens: int) -> Outcome:
    """Every end of a job: its tokens are counted, and what it left behind is cancelled."""
    session.spend(outcome.samples, prompt_tokens)
    hang_up(session, outcome)
    return outcome


def _without_refusals(outcome: Outcome) -> Outcome:
    """A request that a rate limit refused and that was answered later counts by its last try."""
    refused = outcome.samples.outcome == REFUSED
    if not refused.any():
        return outcome
    kept = outcome.samples if refused.all() else outcome.samples.select(~refused)
    return replace(outcome, samples=kept, refused=int(refused.sum()))


def send_alone(session: Session, name: str, prompt: Prompt, max_tokens: int = 1) -> Outcome:
    """Sends one prompt and waits for its end. Cached tokens that usage does not tell are taken from the server's own
    prefix-cache counter, where it has one: nothing else runs, so its difference is this prompt's."""
    before = session.live()
    streams = [sends.stream(session.shape, content_of(prompt), max_tokens)]
    outcome = once(session, name, streams, prompt.asked_tokens)
    samples = outcome.samples
    if samples.requests == 1 and samples.cached_tokens[0] < 0 and before is not None:
        hits = _prefix_hits(before, session.live())
        if hits is not None and 0 <= hits <= max(int(samples.prompt_tokens[0]), 0):
            samples.cached_tokens[0] = hits
    return outcome


def _prefix_hits(before: Live, after: Live | None) -> int | None:
    if after is None or before.prefix_hits_total is None or after.prefix_hits_total is None:
        return None
    return round(after.prefix_hits_total - before.prefix_hits_total)
