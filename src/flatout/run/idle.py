"""What the server itself does: no cell starts before it is idle, and its gauges are read while load runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from flatout.engines.base import Live, TargetError
from flatout.engines.generic import Adapter
from flatout.load.samples import OK, Samples
from flatout.plan import PlannedCell
from flatout.run.prompts import SMALL_TOKENS
from flatout.run.requests import error_of, once, stream
from flatout.run.session import Baseline, Budget, Session, Stopped

FASTEST_S: Final = 0.1
SLOWEST_S: Final = 1.0
"""Between two readings of the gauges while load runs."""
LOOK_S: Final = 0.1
GONE_AFTER: Final = 10
"""Looks in a row that found nothing listening: the server is gone."""
PROBE_TOKENS: Final = 16
PROBE_TTFT_FACTOR: Final = 2.0
PROBE_TTFT_SPARE_MS: Final = 20.0
PROBE_TPOT_FACTOR: Final = 1.3


@dataclass(frozen=True, slots=True)
class Idle:
    """`idle`: True or False where it could be told, None where nothing tells. `how`: gauges, probe, or not checked.

    `live`: the gauges and counters at that moment, for the counters' difference over a cell.
    """

    idle: bool | None
    how: str
    waited_s: float
    note: str | None = None
    live: Live | None = None


def ensure_idle(session: Session, cell: PlannedCell | None = None) -> Idle:
    """Waits (at most `drain_s`) until the server runs nothing and nothing waits; by gauges, else by a probe.

    Raises Stopped if the user stops or skips meanwhile, and TargetError if the server is gone.
    """
    if not session.options.drain:
        return Idle(None, "not checked", 0.0, "draining is switched off", session.live())
    if session.gauges:
        return _by_gauges(session, cell)
    return _by_probe(session, cell)


def _by_gauges(session: Session, cell: PlannedCell | None) -> Idle:
    begun = time.monotonic()
    limit_s = session.options.drain_s
    last: Live | None = None
    shown = False
    refused = 0
    while True:
        waited_s = time.monotonic() - begun
        try:
            last = session.target.adapter.live() or last
            refused = 0
        except TargetError as error:
            refused += error.kind == "refused"
            if refused >= GONE_AFTER:
                raise
        if last is not None and last.running is not None and not last.running and not last.waiting:
            return Idle(True, "gauges", waited_s, None, last)
        if waited_s >= limit_s:
            break
        if waited_s > 1.0 and not shown:
            runs = "does not answer" if last is None or last.running is None else f"runs {last.running:g} requests"
            session.doing("draining", cell, f"the server to become idle (it {runs})", limit_s)
            shown = True
        session.check()
        session.control.sleep(LOOK_S)
    if last is None or last.running is None:
        return Idle(None, "gauges", waited_s, "the server's gauges did not answer", last)
    waiting = f", {last.waiting:g} wait" if last.waiting else ""
    note = f"after {waited_s:.0f} s the server still runs {last.running:g} requests{waiting} that are not ours"
    return Idle(False, "gauges", waited_s, note, last)


def idle_after(session: Session, cell: PlannedCell) -> Idle:
    """`ensure_idle` after a cell: neither a server that is gone by then, nor a stop, nor a budget that is used up takes
    anything away from what was measured. A stop is heard again at the next step."""
    try:
        return ensure_idle(session, cell)
    except (TargetError, Stopped, Budget) as error:
        return Idle(None, "not checked", 0.0, str(error))


def measure_baseline(session: Session) -> Baseline | None:
    """The unloaded server's answer to small requests, the fastest of three in each part: what is left over from
    before can only make it slower. None if none of them succeeded."""
    ttfts, tpots = [], []
    for _ in range(3):
        answer = _probe_once(session)
        if answer is not None:
            ttfts.append(answer.ttft_ms)
            if answer.tpot_ms is not None:
                tpots.append(answer.tpot_ms)
    if not ttfts:
        return None
    return Baseline(min(ttfts), min(tpots, default=None))


def _by_probe(session: Session, cell: PlannedCell | None) -> Idle:
    """Proves idleness with a small request held against its unloaded speed, again until it fits or time is up."""
    baseline = session.baseline
    if baseline is None:
        return Idle(None, "not checked", 0.0, "the server has no gauges and its unloaded speed is not known")
    begun = time.monotonic()
    pause_s = 0.2
    while True:
        answer = _probe_once(session)
        waited_s = time.monotonic() - begun
        if answer is not None:
            baseline = session.baseline = faster(baseline, answer)
        if answer is not None and _as_unloaded(answer, baseline):
            return Idle(True, "probe", waited_s)
        if waited_s >= session.options.drain_s:
            break
        session.doing("draining", cell, "a probe request to be as fast as on the idle server", session.options.drain_s)
        session.check()
        session.control.sleep(pause_s)
        pause_s = min(5.0, pause_s * 2)
    seen = "did not succeed" if answer is None else f"took {answer.ttft_ms:,.0f} ms to its first token"
    note = f"after {waited_s:.0f} s a probe request {seen}; on the idle server it took {baseline.ttft_ms:,.0f} ms"
    return Idle(False, "probe", waited_s, note)


def faster(one: Baseline, other: Baseline) -> Baseline:
    """The faster of two answers, in each part."""
    tpots = [t for t in (one.tpot_ms, other.tpot_ms) if t is not None]
    return Baseline(min(one.ttft_ms, other.ttft_ms), min(tpots, default=None))


def _as_unloaded(answer: Baseline, baseline: Baseline) -> bool:
    if answer.ttft_ms > PROBE_TTFT_FACTOR * baseline.ttft_ms + PROBE_TTFT_SPARE_MS:
        return False
    if answer.tpot_ms is None or baseline.tpot_ms is None:
        return True
    return answer.tpot_ms <= PROBE_TPOT_FACTOR * baseline.tpot_ms + 1.0


def _probe_once(session: Session) -> Baseline | None:
    prompt = session.prompter.small()
    session.afford(64, PROBE_TOKENS)
    samples = once(session, "probe", [stream(session.shape, prompt, PROBE_TOKENS)], SMALL_TOKENS).samples
    if samples.requests and bool((samples.send_ns < 0).all()):
        raise TargetError("refused", f"the server is gone: {error_of(samples)}")
    return answer_of(samples)


def answer_of(samples: Samples) -> Baseline | None:
    """TTFT and the mean time per arrival after the first, of a job of one request; None if it failed."""
    if samples.requests != 1 or samples.outcome[0] != OK or samples.first_token_ns[0] < 0:
        return None
    times = samples.t_ns[samples.arrivals_of(0)]
    tpot_ms = float(times[-1] - times[0]) / 1e6 / (len(times) - 1) if len(times) > 1 else None
    return Baseline(float(samples.first_token_ns[0] - samples.send_ns[0]) / 1e6, tpot_ms)


def interval_s(window_s: float) -> float:
    """How often to look: 40 times a window, between 0.1 and 1 s. A look costs the server a few milliseconds of one
    core (vLLM's page of metrics has 50 kB), so that it stays below a hundredth of its time at the usual lengths."""
    return min(SLOWEST_S, max(FASTEST_S, window_s / 40))


class Poller:
    """Context manager: from entry to exit `adapter.live()` is read every `every_s` in a thread of the conductor's
    process (never of the load's); the readings stand in `points`."""

    def __init__(self, adapter: Adapter, every_s: float, *, on: bool = True) -> None:
        self.points: list[Live] = []
        self.error: str | None = None
        self._adapter = adapter
        self._on = on
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gauges", daemon=True)

    def __enter__(self) -> Poller:
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)

    @property
    def latest(self) -> Live | None:
        return self.points[-1] if self.points else None

    def since(self, t_ns: int) -> list[Live]:
        return [p for p in self.points if p.t_ns >= t_ns]

    def _work(self) -> None:
        while not self._end.is_set():
            try:
                point = self._adapter.live()
                if point is not None:
                    self.points.append(point)
            except Exception as error:  # whatever a server's page does to an adapter, the next look is made
                self.error = str(error)
            self._end.wait(self._every_s)
