"""A decode cell from top to bottom: idle server, warm prompts, launch, steady state, window, stop, idle again, figures,
verdict; once more if it was contaminated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flatout.calibration import beyond
from flatout.engines.base import Live, TargetError
from flatout.engines.redact import tidy
from flatout.flags import Flag, Status
from flatout.load.job import SelfCheck, Stream
from flatout.load.job import Status as LoadStatus
from flatout.load.process import MIN_BIN_NS, LoadError, Outcome
from flatout.load.samples import FAILED, Samples
from flatout.measure import cell as measure
from flatout.measure.checks import in_window, self_check
from flatout.measure.interval import early_end
from flatout.measure.pauses import FEW, even_ends, expected_deviation, pauses_ended
from flatout.measure.verdict import OWN_FILL, Given, contaminated, decode_verdict
from flatout.plan import PlannedCell
from flatout.record import Attempt, Cell, DecodeFigures, Window
from flatout.run import requests
from flatout.run.events import Gauges
from flatout.run.idle import Idle, Poller, ensure_idle, idle_after, interval_s
from flatout.run.prompts import content_of, recount
from flatout.run.row import Row, warm
from flatout.run.session import Budget, Session, Stopped
from flatout.run.settle import add_flag, harmful, note_length, take_verdict, telemetry
from flatout.run.store import now_iso
from flatout.suite import Suite

LOOKS: Final = 4
TICK_S: Final = 0.05
SHOW_S: Final = 0.25
LIVE_BINS: Final = 500
"""Of the shortest window: how fine the live counts are, within what is sensible for a look."""
EVEN_SHARE: Final = 0.5
"""Of the wanted precision: so much may a window's share of pauses cost at its possible ends."""
SPEED_SHARE: Final = 0.1
"""Of the shortest window: so long the streams must have written before it opens, to know when they will restart."""
NEARLY: Final = 0.95
"""Share of the expected requests that must run: at any moment a few are between two of their requests."""


@dataclass(slots=True)
class Measured:
    """What one go at a cell yielded. `window` None: it never became steady, `unsteady` says why."""

    outcome: Outcome
    points: list[Live]
    window: Window | None
    unsteady: str | None
    before: Idle
    after: Idle | None = None
    gauge_error: str | None = None


def look_times_s(suite: Suite) -> list[float]:
    """The window's possible ends, fixed before it opens: one for a fixed time, else LOOKS of them, geometrically from
    the shortest to the longest time."""
    if suite.precision is None or suite.min_time_s >= suite.time_s:
        return [suite.time_s]
    step = (suite.time_s / suite.min_time_s) ** (1 / (LOOKS - 1))
    return [suite.min_time_s * step**i for i in range(LOOKS - 1)] + [suite.time_s]


def work(session: Session, planned: PlannedCell, row: Row) -> None:
    """Measures the cell and settles it in the record; a failure becomes its status. Raises Stopped and Budget."""
    warm(session, row, planned)
    cell = session.cell(planned.id)
    session.order += 1
    cell.order, cell.started = session.order, now_iso()
    measured: Measured | None = None
    for attempt in range(2):
        try:
            measured = _measure(session, planned, row)
        except (Stopped, Budget, TargetError, LoadError) as error:
            if measured is None:
                raise
            session.recover(error)
            break  # the first go at the cell stands, with what is wrong with it
        _settle(session, planned, cell, measured, row)
        if attempt == 0 and _dirty(cell, planned):
            session.say(f"{planned.label} × {planned.concurrency} was contaminated: once more")
            rate = cell.decode.total_tok_s.value if cell.decode else None
            cell.attempts.append(Attempt(started=cell.started, reason="contaminated", total_tok_s=rate))
            session.store.write_samples(cell.id, measured.outcome.samples, attempt=1)
            cell.started = now_iso()
            continue
        break
    assert measured is not None
    cell.finished = now_iso()
    cell.samples = session.store.write_samples(cell.id, measured.outcome.samples)
    session.settle(cell)


def _dirty(cell: Cell, planned: PlannedCell) -> bool:
    running = cell.decode.active_server_mean if cell.decode else None
    return running is not None and contaminated(running, planned.concurrency)


def _measure(session: Session, planned: PlannedCell, row: Row) -> Measured:
    """One go at the cell, from the idle server to the idle server."""
    suite = session.options.suite
    session.afford(planned.concurrency * row.tokens, planned.concurrency * planned.max_output)
    before = ensure_idle(session, planned)
    streams, most = _streams(session, planned, row), _request_budget(session, planned, row)
    job = requests.job(session, planned.id, "closed", streams, most)
    every_s = interval_s(suite.time_s)
    with Poller(session.target.adapter, every_s, on=session.gauges) as poller:
        launch_ns = time.monotonic_ns()
        session.pool.start(job)
        load = _Watch(session, planned, poller, launch_ns)
        try:
            unsteady = load.steady()
            window = None if unsteady else load.window()
        except Stopped:
            _end(session, row)
            raise
        outcome = _end(session, row)
    if load.broke and job.max_requests is not None and outcome.error is None:
        raise Budget("the requests that --max-tokens-total leaves were used up before the window ended")
    after = idle_after(session, planned)
    return Measured(outcome, poller.points, window, unsteady or load.broke, before, after, poller.error)


def _end(session: Session, row: Row) -> Outcome:
    """Ends the load: its tokens are counted, and what it left behind is cancelled."""
    outcome = session.pool.stop()
    session.spend(outcome.samples, row.tokens)
    requests.hang_up(session, outcome)
    return outcome


def _streams(session: Session, planned: PlannedCell, row: Row) -> list[Stream]:
    n, most = planned.concurrency, planned.max_output
    firsts = requests.first_lengths(n, most, session.options.seed + n)
    prompts = row.prompts[:1] * n if session.options.suite.prompts == "shared" else row.prompts[:n]
    return [
        requests.stream(session.shape, content_of(prompt), most, first)
        for prompt, first in zip(prompts, firsts, strict=True)
    ]


def _request_budget(session: Session, planned: PlannedCell, row: Row) -> int | None:
    """How many requests the cell may send before `--max-tokens-total` would be exceeded; None without that limit."""
    most = session.options.max_tokens_total
    if most is None:
        return None
    left = most - session.spent_prompt - session.spent_output
    return max(planned.concurrency, left // (row.tokens + planned.max_output))


class _Watch:
    """One running job, watched by the conductor."""

    def __init__(self, session: Session, planned: PlannedCell, poller: Poller, launch_ns: int) -> None:
        self._launch_ns = launch_ns
        self.broke: str | None = None
        self._session = session
        self._planned = planned
        self._poller = poller
        self._shown = 0.0
        self._last: tuple[int, int] | None = None
        self._pauses: Callable[[float], tuple[float, int]] = lambda _: (0.0, FEW)

    def steady(self) -> str | None:
        """Waits until the load is steady; None then, else why it is not. Raises Stopped."""
        limit_s = self._session.options.steady_s
        begun = time.monotonic()
        while True:
            self._session.check()
            status = self._session.pool.status()
            if status.error or status.ended:
                self.broke = status.error or "the load ended before the window opened"
                return self.broke
            missing = self._missing(status)
            if missing is None:
                return None
            waited_s = time.monotonic() - begun
            if waited_s > limit_s:
                return f"not steady after {limit_s:.0f} s of waiting for {missing}"
            self._show(f"launching {self._name()}", missing, limit_s - waited_s)
            time.sleep(TICK_S)

    def _missing(self, status: LoadStatus) -> str | None:
        """What is not yet so in a steady state (docs/definitions.md, "The window"); None if it is one."""
        asked = self._planned.concurrency
        limit = self._session.limits.max_running or asked
        expected = min(asked, limit)
        since_launch = self._poller.since(self._launch_ns)
        live = since_launch[-1] if since_launch else None
        running = live.running if live else None
        waiting = (live.waiting if live else None) or 0.0
        if running and waiting and running + waiting >= math.floor(NEARLY * asked):
            expected = min(expected, int(running))
        if status.started < expected:
            return f"the first token of all streams ({status.started} of {expected} have it)"
        if running is None:
            return "the server's gauges" if self._session.gauges and self._poller.error is None else None
        if running < math.ceil(NEARLY * expected):
            return f"the server to run {expected} requests (it runs {running:g})"
        if asked > limit and running + waiting < math.floor(NEARLY * asked):
            return f"the server to take all {asked} requests (it runs {running:g}, {waiting:g} wait)"
        return None

    def window(self) -> Window | None:
        """Opens the window now, and closes it at one of the times fixed beforehand; None if the load broke."""
        suite = self._session.options.suite
        looks = self._looks()
        opened, open_ns = now_iso(), time.monotonic_ns()
        ended_by = "fixed time" if len(looks) == 1 else "longest time"
        for index, at_s in enumerate(looks):
            close_ns = open_ns + round(at_s * 1e9)
            if not self._until(close_ns, looks[-1], open_ns):
                return None
            if index < len(looks) - 1 and self._precise_enough(open_ns, close_ns, index, len(looks)):
                ended_by = f"precision of {suite.precision:.2%} reached"
                break
        return Window(
            opened=opened, open_ns=open_ns, close_ns=close_ns, length_s=(close_ns - open_ns) / 1e9, ended_by=ended_by,
            looks_s=looks, steady_after_s=(open_ns - self._launch_ns) / 1e9,
        )  # fmt: skip

    def _looks(self) -> list[float]:
        """The window's possible ends: where precision is asked for, times at which the pauses between requests have
        their share."""
        suite, n = self._session.options.suite, self._planned.concurrency
        looks = look_times_s(suite)
        per_event = self._session.tokens_per_event
        if len(looks) < 2 or per_event is None or n > (self._session.limits.max_running or n):
            return looks
        seen = self._session.pool.status()
        written_s = (time.monotonic_ns() - seen.token_ns) / 1e9 if seen.token_ns >= 0 else 0.0
        self._session.control.sleep(max(0.0, SPEED_SHARE * suite.min_time_s - written_s))
        seen = self._session.pool.status()
        events = seen.events - n  # the first of each stream is where its writing begins
        if events <= 0 or not 0 <= seen.token_ns < seen.t_ns:
            return looks
        token_s = (seen.t_ns - seen.token_ns) / 1e9 * n / (events * per_event)
        age_s = (time.monotonic_ns() - seen.token_ns) / 1e9
        most = self._planned.max_output
        firsts = requests.first_lengths(n, most, self._session.options.seed + n)
        pause_s = (seen.token_ns - seen.sent_ns) / 1e9
        share = pause_s / (most * token_s + pause_s)
        self._pauses = lambda at_s: (share, pauses_ended(firsts, most, token_s, pause_s, age_s, at_s))
        assert suite.precision is not None
        return even_ends(firsts, most, token_s, pause_s, age_s, looks, EVEN_SHARE * suite.precision)

    def _until(self, close_ns: int, longest_s: float, open_ns: int) -> bool:
        """Waits until `close_ns`; False if the load broke. Raises Stopped."""
        while (left_s := (close_ns - time.monotonic_ns()) / 1e9) > 0:
            self._session.check()
            status = self._session.pool.status()
            if status.error or status.ended:
                self.broke = status.error or "the load ended inside the window"
                return False
            so_far_s = (time.monotonic_ns() - open_ns) / 1e9
            self._show(f"measuring {self._name()}: {so_far_s:.0f} of {longest_s:.0f} s", None, None)
            time.sleep(min(TICK_S, left_s))
        return True

    def _precise_enough(self, open_ns: int, close_ns: int, index: int, looks: int) -> bool:
        precision = self._session.options.suite.precision
        assert precision is not None
        bin_ns = min(max(round(self._session.options.suite.min_time_s * 1e9 / LIVE_BINS), MIN_BIN_NS), 10 * MIN_BIN_NS)
        counts = self._session.pool.look(bin_ns)
        first = math.ceil((open_ns - counts.t0_ns) / counts.bin_ns)
        last = (close_ns - counts.t0_ns) // counts.bin_ns
        # what an even end may be off goes into the interval, too: half of it into its half width
        target = precision * (1.0 - EVEN_SHARE / 2.0)
        bins = slice(first, last)
        return early_end(
            counts.counts[bins], counts.bin_ns / 1e9, target, index, looks, counts.decoding[bins],
            expected_deviation(*self._pauses((close_ns - open_ns) / 1e9)),
        )  # fmt: skip

    def _name(self) -> str:
        return f"{self._planned.label} × {self._planned.concurrency}"

    def _show(self, text: str, missing: str | None, until_s: float | None) -> None:
        now = time.monotonic()
        if now - self._shown < SHOW_S:
            return
        status, live = self._session.pool.status(), self._poller.latest
        rate, per_event = None, self._session.tokens_per_event
        if self._last is not None and status.t_ns > self._last[0]:
            rate = (status.events - self._last[1]) / ((status.t_ns - self._last[0]) / 1e9)
        self._shown, self._last = now, (status.t_ns, status.events)
        self._session.doing(text, self._planned, missing, until_s)
        self._session.listener(
            Gauges(
                self._planned.id,
                live.running if live else None,
                live.waiting if live else None,
                live.kv_use if live else None,
                status.in_flight,
                self._planned.concurrency,
                rate,
                rate * per_event if rate is not None and per_event is not None else None,
                self._session.machine_now(),
            )
        )


def _settle(session: Session, planned: PlannedCell, cell: Cell, measured: Measured, row: Row) -> None:
    """Fills the cell from one go at it; a later go overwrites all of it."""
    outcome, window = measured.outcome, measured.window
    cell.window, cell.decode, cell.tokens, cell.error = window, None, None, None
    if window is None:
        cell.self_check = self_check(outcome.checks)
        _settle_without_window(session, cell, measured)
        return
    checks = in_window(outcome.checks, window.open_ns, window.close_ns)
    cell.self_check = self_check(checks)
    machine = session.sampler.window(window.open_ns, window.close_ns)
    decoded = measure.decode(
        outcome.samples,
        t_open_ns=window.open_ns,
        t_close_ns=window.close_ns,
        context_tokens=row.tokens,
        live=measured.points,
        retokenised=recount(outcome.samples, session.count_answer),
        looks=len(window.looks_s),
        precision=session.options.suite.precision or 0.01,
        idle_before=measured.before.live if measured.before.idle else None,
        idle_after=measured.after.live if measured.after and measured.after.idle else None,
        run_tokens_per_byte=session.tokens_per_byte,
    )
    figures = decoded.figures
    error = outcome.error
    if error is None and _gone(outcome.samples, figures, planned):
        error = requests.error_of(outcome.samples)
    given = _given(session, planned, row, decoded, window, checks, harmful(machine), error)
    take_verdict(cell, decode_verdict(decoded, given), error, session.target.redactor.text)
    cell.telemetry, cell.tokens = telemetry(machine), decoded.tokens
    if cell.status == Status.FAILED:
        return
    cell.decode = figures
    _add_prompts(figures, row)
    note_length(cell, [n for n in (figures.prompt_tokens_min, figures.prompt_tokens_max) if n is not None])
    _note_idle(cell, measured.before)
    why = _beyond(session, outcome.samples, window)
    if why:
        add_flag(cell, Flag.CLIENT_LIMITED, why)
    if measured.gauge_error:
        session.warn(f"the server's gauges failed while {planned.id} ran: {measured.gauge_error}")


def _given(
    session: Session,
    planned: PlannedCell,
    row: Row,
    decoded: measure.Decode,
    window: Window,
    checks: tuple[SelfCheck, ...],
    throttle_reasons: tuple[str, ...],
    error: str | None,
) -> Given:
    """What the run knows of the cell. Waiting and running requests of a server that tells neither are the client's own
    in flight without a token, beyond the prefill that they need (requests ended a second x the context's cold TTFT)."""
    figures = decoded.figures
    running, waiting, active = figures.active_server_mean, figures.waiting_server_mean, figures.active_own_mean
    if not session.gauges and active is not None and decoded.own_decoding is not None:
        begun = (figures.completed or 0) + (figures.streams_started or 0)
        prefilling = begun / window.length_s * (row.cold_ttft_ms or 0.0) / 1e3
        waiting = max(0.0, active - decoded.own_decoding - prefilling)
        running = active - waiting
    return Given(
        asked=planned.concurrency,
        max_running=session.limits.max_running,
        running=running,
        waiting=waiting,
        cache_wanted="warm",
        expected_cached_tokens=_expected_cached(session, row),
        exact_length_asked=session.options.ignore_eos,
        self_checks=checks,
        throttle_reasons=throttle_reasons,
        error=error,
    )


def _gone(samples: Samples, figures: DecodeFigures, planned: PlannedCell) -> bool:
    """Whether the server died in the window: requests failed and none ended, or streams whose last request failed, and
    so many fewer in flight."""
    if not figures.failed_requests or not figures.completed:
        return bool(figures.failed_requests)
    last = {int(stream): row for row, stream in enumerate(samples.stream)}
    broken = sum(samples.outcome[row] == FAILED for row in last.values())
    active = figures.active_own_mean
    return broken > 0 and active is not None and active < OWN_FILL * planned.concurrency


def _expected_cached(session: Session, row: Row) -> int:
    """Cached tokens of a warm context: as seen when it was sent again, else its length less the rest that was seen to
    stay uncached in an earlier row; half of it where nothing was learned."""
    if row.cached_tokens is not None:
        return row.cached_tokens
    return (
        row.tokens // 2 if session.uncached_rest is None else max(row.tokens - session.uncached_rest, row.tokens // 2)
    )


def _beyond(session: Session, samples: Samples, window: Window) -> str | None:
    """Why this cell asked for more than this machine was shown to read rightly; None within that."""
    events_s = float(((samples.t_ns >= window.open_ns) & (samples.t_ns < window.close_ns)).sum()) / window.length_s
    streams = len(set(samples.stream.tolist()))
    return beyond(session.calibration, streams, events_s, len(session.pool.pids))


def _add_prompts(figures: DecodeFigures, row: Row) -> None:
    """What the row's contexts tell: cold TTFT, their lengths where no answer did, and whether they came from the
    server's cache, by its own count, else by what warming showed."""
    figures.cold_ttft_ms, figures.contexts_cached = row.cold_ttft_ms, row.warm
    if figures.prompt_tokens_min is None:
        counts = [p.counted_tokens for p in row.prompts if p.counted_tokens is not None]
        figures.prompt_tokens_min, figures.prompt_tokens_max = min(counts, default=None), max(counts, default=None)
    if figures.cached_tokens_mean is not None:
        figures.contexts_cached = figures.cached_tokens_mean >= row.tokens / 2


def _note_idle(cell: Cell, before: Idle) -> None:
    if before.idle is False and before.note:
        add_flag(cell, Flag.CONTAMINATED, before.note)
    elif before.idle is None:
        text = f"that the server was idle before is not proven: {before.note or 'nothing tells'}"
        cell.reason = f"{cell.reason}; {text}" if cell.reason else text


def _settle_without_window(session: Session, cell: Cell, measured: Measured) -> None:
    """No number: the load broke off, or did not become steady."""
    samples, error = measured.outcome.samples, measured.outcome.error
    failed = samples.error >= 0
    if error is None and failed.any() and not (samples.arrival_count > 0).any():
        error = requests.error_of(samples)
    words = tidy(error or measured.unsteady or "the load did not become steady", session.target.redactor.text)
    cell.flags, cell.telemetry = [], None
    if error:
        cell.status, cell.reason, cell.error = Status.FAILED, "broke off", words
    else:
        cell.status, cell.reason = Status.NO_STEADY_STATE, words
