"""From measured values to the record's: figures, verdict, flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flatout import record as rec
from flatout.calibration import beyond
from flatout.engines.redact import tidy
from flatout.flags import Flag, Status
from flatout.host.gpu import HARMFUL_REASONS
from flatout.host.summary import Stat, TelemetrySummary
from flatout.load.job import SelfCheck
from flatout.load.process import Outcome
from flatout.load.samples import FAILED, Samples
from flatout.measure import cell as measure
from flatout.measure import figures as fig
from flatout.measure.checks import in_window
from flatout.measure.verdict import OWN_FILL, DecodeFacts, Verdict, decode_verdict, prefill_verdict
from flatout.plan import PlannedCell
from flatout.run.answers import error_of
from flatout.run.recount import recount

if TYPE_CHECKING:
    from flatout.run.decode import Measured
    from flatout.run.row import Row
    from flatout.run.session import Session


LENGTH_SHARE: Final = 0.02
BLOCK_TOKENS: Final = 16
"""A cold prompt may share this much with what was sent before, besides the template's head: one block of a cache."""


def rate(made: fig.Rate) -> rec.Rate:
    return rec.Rate(
        value=made.value, low=made.low, high=made.high, interval=made.kind, n=made.n or None, reason=made.reason
    )


def distribution(made: fig.Distribution, whose: str | None = None) -> rec.Distribution:
    histogram = None
    if made.histogram.weights:
        histogram = rec.Histogram(edges=list(made.histogram.edges), counts=list(made.histogram.weights))
    return rec.Distribution(
        p50=made.p50, p90=made.p90, p99=made.p99, max=made.max, mean=made.mean, n=made.n, censored=made.censored,
        p50_low=made.p50_low, p50_high=made.p50_high, p90_low=made.p90_low, p90_high=made.p90_high,
        p99_low=made.p99_low, p99_high=made.p99_high, whose=whose, reasons=dict(made.reasons), histogram=histogram,
    )  # fmt: skip


def as_distribution(made: fig.Rate) -> rec.Distribution:
    """A median of requests with its interval, as a distribution that has a middle only."""
    reasons = {"p50": made.reason} if made.value is None and made.reason else {}
    if made.value is not None and made.low is None and made.reason:
        reasons["interval"] = made.reason
    return rec.Distribution(p50=made.value, n=made.n, p50_low=made.low, p50_high=made.high, reasons=reasons)


def series(made: fig.Series) -> rec.Series | None:
    return rec.Series(t_s=list(made.t_s), values=list(made.values)) if made.t_s else None


def self_check(checks: Sequence[SelfCheck]) -> rec.SelfCheck | None:
    """The load processes' own checks as one: sums of counts, the worst of the rest."""
    if not checks:
        return None

    def worst(values: Sequence[int | None]) -> float | None:
        known = [v for v in values if v is not None]
        return max(known) / 1e6 if known else None

    return rec.SelfCheck(
        clock="kernel" if all(c.clock == "kernel" for c in checks) else "user",
        reads=sum(c.reads for c in checks),
        late_reads=sum(c.late_reads for c in checks),
        late_limit_ms=checks[0].late_limit_ns / 1e6,
        merged_reads=sum(c.merged_reads for c in checks),
        unstamped_reads=sum(c.unstamped_reads for c in checks),
        lag_p50_ms=worst([c.lag_p50_ns for c in checks]),
        lag_p99_ms=worst([c.lag_p99_ns for c in checks]),
        lag_worst_ms=worst([c.lag_worst_ns for c in checks]),
        cpu_share=max(c.cpu_s / c.wall_s for c in checks) if all(c.wall_s > 0 for c in checks) else None,
        gc_pauses=sum(c.gc_pauses for c in checks),
        gc_longest_ms=max(c.gc_longest_ns for c in checks) / 1e6,
        clock_steps=sum(c.realtime_offset_steps for c in checks),
        priority="real-time" if all(c.priority == "real-time" for c in checks) else "normal",
        pauses=sum(c.pauses for c in checks),
        pauses_total_ms=sum(c.pauses_total_ns for c in checks) / 1e6,
        pause_longest_ms=worst([ns for c in checks for ns in c.pause_ns]),
        pause_merged_events=sum(sum(c.pause_merged) for c in checks),
    )


def telemetry(made: TelemetrySummary) -> rec.Telemetry:
    """The machine over a window: mean and largest of each reading, by name with unit."""
    stats = machine_stats(made)
    return rec.Telemetry(
        means={name: s.mean for name, s in stats.items()},
        maxima={name: s.max for name, s in stats.items()},
        throttle=dict(made.throttle or {}),
        energy_j=made.energy_j,
        energy_how=made.energy_source,
        reasons=dict(made.missing),
        series={name: rec.Series(t_s=list(s.t_s), values=list(s.values)) for name, s in made.series.items()},
    )


def machine_stats(made: TelemetrySummary) -> dict[str, Stat]:
    """Readings that are there, by name; a watched process as `cores_of_<name>`."""
    names = (
        "cpu_use_percent", "ram_used_bytes", "gpu_use_percent", "gpu_memory_used_bytes", "sm_clock_mhz",
        "memory_clock_mhz", "power_w", "temperature_c",
    )  # fmt: skip
    found = {name: getattr(made, name) for name in names}
    found |= {f"cores_of_{name}": stat for name, stat in made.process_cores.items()}
    return {name: stat for name, stat in found.items() if stat is not None}


def harmful(made: TelemetrySummary) -> tuple[str, ...]:
    """Throttle reasons of the window that slow the hardware down (an idle GPU's low clocks do not)."""
    return tuple(name for name, share in (made.throttle or {}).items() if share > 0 and name in HARMFUL_REASONS)


def add_flag(cell: rec.Cell, name: str, detail: str) -> None:
    """Adds a flag that the figures alone do not show, once; a doubtful one takes the cell's status along."""
    if all(flag.name != name for flag in cell.flags):
        cell.flags.append(rec.Flag(name=name, detail=detail))
    if cell.status in (Status.VALID, Status.REQUESTS_QUEUED) and name in (Flag.CONTAMINATED, Flag.CLIENT_LIMITED):
        cell.status, cell.reason = Status.DOUBTFUL, detail


def take_verdict(session: Session, cell: rec.Cell, verdict: Verdict) -> None:
    text = session.target.redactor.text
    cell.status = str(verdict.status)
    cell.reason = tidy(verdict.reason, text, 1000) if verdict.reason else None
    cell.flags = [rec.Flag(name=str(note.flag), detail=text(note.detail)) for note in verdict.notes]


def settle_prefill(
    session: Session,
    cell: rec.Cell,
    samples: Samples,
    checks: Sequence[SelfCheck],
    machine: TelemetrySummary,
    error: str | None,
    head_tokens: int,
) -> None:
    """Fills a prefill cell from its cold requests."""
    made = measure.prefill_figures(
        samples, prompt_tokens=cell.context_tokens, head_tokens=head_tokens, block_tokens=BLOCK_TOKENS
    )
    facts = measure.prefill_facts(made, self_checks=checks, throttle_reasons=harmful(machine), error=error)
    take_verdict(session, cell, prefill_verdict(facts))
    cell.error = tidy(error, session.target.redactor.text) if error else None
    counts = [s.prompt_tokens for s in made.samples if s.prompt_tokens is not None]
    cell.prefill = rec.PrefillFigures(
        prefill_tok_s=rate(made.tok_s),
        ttft_ms=distribution(made.ttft_ms, "cold prompts, alone on the server"),
        prompt_tokens=counts[0] if counts and min(counts) == max(counts) else None,
        samples=[
            rec.PrefillSample(
                prompt_tokens=s.prompt_tokens, cached_tokens=s.cached_tokens, ttft_ms=s.ttft_ms, prefill_tok_s=s.tok_s,
                used=s.counted,
                note=tidy(s.reason, session.target.redactor.text) if s.reason else None,
            )
            for s in made.samples
        ],
    )  # fmt: skip
    note_length(cell, counts)
    cell.self_check = self_check(checks)
    cell.telemetry = telemetry(machine)


def note_length(cell: rec.Cell, counts: Sequence[int]) -> None:
    """Says so beside the number where the real prompts were not as long as the label says, by over LENGTH_SHARE."""
    asked = cell.context_tokens
    if not counts or not asked or max(abs(n - asked) for n in counts) <= LENGTH_SHARE * asked:
        return
    span = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    text = f"the prompts had {span} tokens, not {asked:,}"
    cell.reason = f"{cell.reason}; {text}" if cell.reason else text


def settle_decode(session: Session, planned: PlannedCell, cell: rec.Cell, measured: Measured, row: Row) -> None:
    """Fills a decode cell from one go at it; a later go overwrites all of it."""
    outcome, window = measured.outcome, measured.window
    cell.window, cell.decode, cell.tokens, cell.error = window, None, None, None
    checks = outcome.checks if window is None else in_window(outcome.checks, window.open_ns, window.close_ns)
    cell.self_check = self_check(checks)
    error = outcome.error or _fatal(measured, outcome)
    if window is None:
        _settle_without_window(session, cell, measured, error)
        return
    machine = session.sampler.window(window.open_ns, window.close_ns)
    precision = session.options.suite.precision
    made = measure.decode_figures(
        outcome.samples,
        t_open_ns=window.open_ns,
        t_close_ns=window.close_ns,
        context_tokens=row.tokens,
        live=measured.points,
        retokenised=recount(session, outcome.samples),
        looks=measured.looks,
        precision=precision or 0.01,
        idle_before=measured.before.live if measured.before.idle else None,
        idle_after=measured.after.live if measured.after and measured.after.idle else None,
        run_tokens_per_byte=session.tokens_per_byte,
    )
    if made.failed and error is None and (not made.completed or _gone(outcome.samples, made, planned)):
        error = error_of(outcome.samples)
    facts = measure.decode_facts(
        made,
        asked_concurrency=planned.concurrency,
        max_running=session.limits.max_running,
        cache_wanted="warm",
        expected_cached_tokens=_expected_cached(session, row),
        exact_length_asked=session.options.ignore_eos,
        self_checks=checks,
        throttle_reasons=harmful(machine),
        error=error,
    )
    if not session.gauges:
        facts = _seen_by_the_client(facts, made, row)
    take_verdict(session, cell, decode_verdict(facts))
    cell.error = tidy(error, session.target.redactor.text) if error else None
    cell.telemetry = telemetry(machine)
    cell.tokens = _tokens(made)
    if cell.status == Status.FAILED:
        return
    cell.decode = decode(made, row)
    real = (cell.decode.prompt_tokens_min, cell.decode.prompt_tokens_max)
    note_length(cell, [n for n in real if n is not None])
    if measured.before.idle is False and measured.before.note:
        add_flag(cell, Flag.CONTAMINATED, measured.before.note)
    elif measured.before.idle is None:
        text = f"that the server was idle before is not proven: {measured.before.note or 'nothing tells'}"
        cell.reason = f"{cell.reason}; {text}" if cell.reason else text
    why = _beyond(session, measured, window)
    if why:
        add_flag(cell, Flag.CLIENT_LIMITED, why)
    if measured.gauge_error:
        session.warn(f"the server's gauges failed while {planned.id} ran: {measured.gauge_error}")


def _gone(samples: Samples, made: fig.DecodeFigures, planned: PlannedCell) -> bool:
    """Whether the server died in the window: streams whose last request failed, and so many fewer in flight."""
    last = {int(stream): row for row, stream in enumerate(samples.stream)}
    broken = sum(samples.outcome[row] == FAILED for row in last.values())
    active = made.own_active.value
    return broken > 0 and active is not None and active < OWN_FILL * planned.concurrency


def _expected_cached(session: Session, row: Row) -> int:
    """Cached tokens of a warm context: as seen when it was sent again, else its length less the rest that was seen to
    stay uncached in an earlier row; half of it where nothing was learned."""
    if row.cached_tokens is not None:
        return row.cached_tokens
    return (
        row.tokens // 2 if session.uncached_rest is None else max(row.tokens - session.uncached_rest, row.tokens // 2)
    )


def _beyond(session: Session, measured: Measured, window: rec.Window) -> str | None:
    """Why this cell asked for more than this machine was shown to read rightly; None within that."""
    if session.calibration is None:
        return None
    times = measured.outcome.samples.t_ns
    events_s = float(((times >= window.open_ns) & (times < window.close_ns)).sum()) / window.length_s
    streams = len(set(measured.outcome.samples.stream.tolist()))
    return beyond(session.calibration, streams, events_s, len(session.pool.pids))


def _seen_by_the_client(facts: DecodeFacts, made: fig.DecodeFigures, row: Row) -> DecodeFacts:
    """Waiting and running requests of a server that tells neither: in flight without a token, beyond the prefill that
    they need (requests ended a second x the context's cold TTFT, its most)."""
    active, decoding = made.own_active.value, made.own_decoding.value
    if active is None or decoding is None:
        return facts
    prefilling = (made.completed + made.streams_started) / made.window_s * (row.cold_ttft_ms or 0.0) / 1e3
    waiting = max(0.0, active - decoding - prefilling)
    return replace(facts, server_waiting=waiting, server_running=active - waiting)


def _fatal(measured: Measured, outcome: Outcome) -> str | None:
    """The error that ended the load, if one did."""
    if measured.window is not None or measured.unsteady is None:
        return None
    failed = outcome.samples.error >= 0
    broke = outcome.error is not None or (bool(failed.any()) and not bool((outcome.samples.arrival_count > 0).any()))
    return error_of(outcome.samples) if broke else None


def _settle_without_window(session: Session, cell: rec.Cell, measured: Measured, error: str | None) -> None:
    words = tidy(error or measured.unsteady or "the load did not become steady", session.target.redactor.text)
    cell.flags, cell.telemetry = [], None
    if error:
        cell.status, cell.reason, cell.error = Status.FAILED, "broke off", words
    else:
        cell.status, cell.reason = Status.NO_STEADY_STATE, words


def _tokens(made: fig.DecodeFigures) -> rec.Tokens:
    pair = next((p for p in made.counts if "server" in p.name), None)
    return rec.Tokens(
        source=", ".join(made.token_sources) or None,
        in_window=made.window_tokens,
        estimated_share=made.estimated_share,
        reasoning_unstreamed=made.hidden_reasoning_tokens or None,
        own_total=pair.ours if pair else made.all_tokens,
        server_total=pair.theirs if pair else None,
        reason=None if pair else "the server has no counter of generated tokens that could be read when idle",
    )


def _cached(made: fig.DecodeFigures, row: Row) -> bool | None:
    """Whether the contexts came from the server's cache, by its own count, else by what warming showed."""
    if made.cached_tokens.value is not None:
        return made.cached_tokens.value >= row.tokens / 2
    return row.warm


def decode(made: fig.DecodeFigures, row: Row) -> rec.DecodeFigures:
    """The record's figures of a decode cell; values that are null say why in `reasons`."""
    numbers = {
        "active_own_mean": made.own_active,
        "active_server_mean": made.server_running,
        "waiting_server_mean": made.server_waiting,
        "kv_use_max": made.kv_use_max,
        "connect_ms": made.connect_ms,
        "mean_depth_tokens": made.mean_depth_tokens,
        "cached_tokens_mean": made.cached_tokens,
        "asked_tokens_mean": made.asked_mean,
        "output_tokens_mean": made.output_mean,
        "preemptions": made.preemptions,
        "looping_share": made.looping_share,
    }
    counts = sorted(made.prompt_tokens or [p.counted_tokens for p in row.prompts if p.counted_tokens is not None])
    whose = {"restarts": "requests sent after the launch", "launch": "the launch's own requests"}
    return rec.DecodeFigures(
        total_tok_s=rate(made.total_tok_s),
        per_request_tok_s=as_distribution(made.request_tok_s),
        ttft_ms=distribution(made.ttft_ms, whose[made.ttft_of] if made.ttft_of else None),
        cold_ttft_ms=row.cold_ttft_ms,
        ttft_answer_ms=distribution(made.ttft_answer_ms) if made.ttft_answer_ms is not None else None,
        tpot_ms=distribution(made.tpot_ms),
        itl_ms=distribution(made.itl_ms),
        longest_gap_ms=made.longest_gap_ms,
        longest_gap_open=made.longest_gap_open,
        completed=made.completed,
        output_tokens=made.window_tokens,
        prompt_tokens_min=counts[0] if counts else None,
        prompt_tokens_max=counts[-1] if counts else None,
        contexts_cached=_cached(made, row),
        acceptance=rec.Acceptance(
            length=made.acceptance.length, how=made.acceptance.kind, draft_share=made.acceptance.draft_share,
            reason=made.acceptance.reason,
        ),
        streams_started=made.streams_started,
        drift_change=made.drift.change if made.drift and made.drift.detected else None,
        two_modes_tok_s=(made.modes.low, made.modes.high) if made.modes else None,
        failed_requests=made.failed,
        rate_limited=made.refused,
        tok_s_series=series(made.tok_s_series),
        running_series=series(made.running_series),
        waiting_series=series(made.waiting_series),
        reasons={name: n.reason for name, n in numbers.items() if n.value is None and n.reason},
        active_own_mean=numbers["active_own_mean"].value,
        active_server_mean=numbers["active_server_mean"].value,
        waiting_server_mean=numbers["waiting_server_mean"].value,
        kv_use_max=numbers["kv_use_max"].value,
        connect_ms=numbers["connect_ms"].value,
        mean_depth_tokens=numbers["mean_depth_tokens"].value,
        cached_tokens_mean=numbers["cached_tokens_mean"].value,
        asked_tokens_mean=numbers["asked_tokens_mean"].value,
        output_tokens_mean=numbers["output_tokens_mean"].value,
        preemptions=numbers["preemptions"].value,
        looping_share=numbers["looping_share"].value,
    )  # fmt: skip
