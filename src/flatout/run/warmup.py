"""The short unmeasured load at the beginning: engines compile and capture graphs when first used."""

from __future__ import annotations

import time
from typing import Final

from flatout.load.job import Stream
from flatout.plan import PlannedCell
from flatout.record import Warmup
from flatout.run.prompts import content_of
from flatout.run.requests import answered, error_of, hang_up, job, send_alone, stream, ttft_ms
from flatout.run.session import Session

MOST_GOES: Final = 5
REPEATS_WITHIN: Final = 0.05
GO_S: Final = 1.5
START_S: Final = 300.0
BIN_NS: Final = 10_000_000
LONG_FROM_TOKENS: Final = 4096


def repeats(values: list[float | None]) -> bool:
    """Whether the last two speeds agree within REPEATS_WITHIN."""
    if len(values) < 2 or values[-1] is None or values[-2] is None:
        return False
    return abs(values[-1] - values[-2]) <= REPEATS_WITHIN * max(values[-1], values[-2])


def work(session: Session) -> None:
    """Warms up in both directions: the most streams at the shortest context, and the longest context once; each again
    until the speed repeats. Its prompts are never measured. Raises Stopped, Budget.

    The largest cell's graphs are those of its number of streams, and those of its length; both are met here without
    filling the whole KV cache first.
    """
    measured = [c for c in session.planned if c.verdict == "measure"]
    decode = [c for c in measured if c.phase == "decode"]
    if decode:
        most = max(decode, key=lambda c: (c.concurrency, -(c.context_tokens or 0)))
        least = min(decode, key=lambda c: (c.concurrency, c.context_tokens or 0))
        for cell in dict.fromkeys((most, least)):
            session.record.warmups.append(_streams(session, cell, least.context_tokens or 1))
    if measured:
        longest = max(measured, key=lambda c: c.context_tokens or 0)
        session.record.warmups.append(_long(session, longest))


def _streams(session: Session, cell: PlannedCell, tokens: int) -> Warmup:
    n = min(cell.concurrency, session.limits.max_running or cell.concurrency)
    what = f"{n} at once, {tokens:,} tokens of prompt"
    session.afford(n * tokens * 2, n * cell.max_output)
    prompts = [session.prompter.make(f"w/{tokens}/{n}/{i}", tokens) for i in range(n)]
    speeds: list[float | None] = []
    for _ in range(MOST_GOES):
        session.doing(f"warming up: {what}", wait_for=_so_far(speeds, "events/s"))
        session.check()
        session.afford(n * tokens * 2, n * cell.max_output * 2)
        speed, error = _go(session, [stream(session.shape, content_of(p), cell.max_output) for p in prompts], tokens)
        if error:
            return Warmup(
                what=what, speeds=speeds, unit="events/s", repeats=False, note=session.target.redactor.text(error)
            )
        speeds.append(speed)
        if repeats(speeds):
            break
    return Warmup(what=what, speeds=speeds, unit="events/s", repeats=repeats(speeds))


def _so_far(speeds: list[float | None], unit: str) -> str:
    """What a warm-up waits for: an engine compiles and captures graphs when first used."""
    known = [f"{speed:,.0f}" for speed in speeds if speed is not None]
    return "the speed to repeat" + (f" (so far {', '.join(known[-3:])} {unit})" if known else "")


def _go(session: Session, streams: list[Stream], tokens: int) -> tuple[float | None, str | None]:
    """One go of GO_S, from when all streams have their first token. Events/s, and the error if it broke."""
    session.pool.start(job(session, "warm-up", "closed", streams, 2 * len(streams) if session.limited else None))
    try:
        status = session.pool.wait(START_S, lambda s: s.started >= len(streams) or session.control.stopping)
        open_ns = time.monotonic_ns()
        if not status.ended and not status.error:
            session.control.sleep(GO_S)
        counts = session.pool.look(BIN_NS)
        close_ns = time.monotonic_ns()
    finally:
        outcome = session.pool.stop()
        session.spend(outcome.samples, tokens)
        hang_up(session, outcome)
    session.check()
    if outcome.error:
        return None, outcome.error
    first, last = (open_ns - counts.t0_ns) // BIN_NS + 1, (close_ns - counts.t0_ns) // BIN_NS
    inside = counts.counts[first:last]
    return (sum(inside) / (len(inside) * BIN_NS / 1e9) if inside else None), None


def _long(session: Session, cell: PlannedCell) -> Warmup:
    tokens = cell.context_tokens or 1
    what = f"1 alone, {tokens:,} tokens of prompt"
    speeds: list[float | None] = []
    goes = MOST_GOES if tokens < LONG_FROM_TOKENS else 1
    for go in range(goes):
        session.doing(f"warming up: {what}", wait_for=_so_far(speeds, "tok/s"))
        session.check()
        session.afford(tokens, 1)
        samples = send_alone(session, "warm-up", session.prompter.make(f"w/{tokens}/long/{go}", tokens)).samples
        if not answered(samples):
            words = session.target.redactor.text(error_of(samples))
            return Warmup(what=what, speeds=speeds, unit="prompt tok/s", repeats=False, note=words)
        speeds.append(tokens / ttft_ms(samples) * 1e3)
        if repeats(speeds):
            break
    note = None if goes > 1 else "a long prompt is sent once only: its cold samples are three"
    return Warmup(what=what, speeds=speeds, unit="prompt tok/s", repeats=repeats(speeds), note=note)
