"""What the page, the rig's log and flatout's record say of the same cells, held against each other; see seed_page."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flatout.flags import DOUBTFUL_FLAGS, Flag, Status
from flatout.load.samples import Samples
from flatout.record import Cell, Record
from flatout.rig import RigConfig, Truth, running
from flatout.rig.config import profile_from_seed
from flatout.run import conduct
from flatout.run.events import CellDone, Control, Event, Note
from flatout.run.options import Options
from flatout.run.warmup import GO_S
from flatout.suite import Suite

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
SEED: Final = Path(__file__).parents[1] / "tests" / "fixtures" / "seed"
PAGE: Final = SEED / "speed-test.json"
EXPECTED: Final = SEED / "expected.toml"

RATE_WITHIN: Final = 0.01
TIME_WITHIN: Final = 0.02
TIME_SPARE_MS: Final = 1.0
"""On the clock of the run, not of the page: a thing of the machine, which time-scale does not shrink."""
OVER_FULL: Final = 1.05
EDGE: Final = 0.03  # so near the line a mean may fall on either side: gauges are read a few times a window only
TOKENS_PER_EVENT: Final = 4
"""The page's server drafted blocks of 8 tokens, so it sent several at once; it does not tell how many."""
RIG_LATE_MS: Final = 5.0
INTAKE_SHARE: Final = 0.01
LONGEST_S: Final = 900.0
"""What `--suite full` may take on a server with the page's speeds."""


@dataclass(frozen=True)
class Expected:
    """One cell of the page: its status there, ours, and why they differ (None where they do not)."""

    id: str
    phase: str
    context: str
    concurrency: int
    seed: str
    flatout: str
    why: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Part:
    """One run and the rig's log of it. `scale`: length of a second of the page on this run's clock."""

    record: Record
    directory: Path
    truth: Truth
    scale: float
    took_s: float

    def cell(self, cell_id: str) -> Cell | None:
        return next((c for c in self.record.cells if c.id == cell_id), None)


@dataclass(frozen=True)
class Figure:
    """A reading beside the rig's log and the page, all on the page's clock; None: not there.

    `covered`: the page's value lies in the reading's own 95 % interval.
    """

    name: str
    read: float
    log: float
    page: float | None
    log_ok: bool
    page_ok: bool | None
    covered: bool = False

    @property
    def verdict(self) -> str:
        """`ok`; `in interval` (the page's value lies in the reading's own); `OFF PAGE`; `OFF LOG`."""
        if not self.log_ok:
            return "OFF LOG"
        if self.page_ok is None or self.page_ok:
            return "ok"
        return "in interval" if self.covered else "OFF PAGE"


@dataclass(frozen=True)
class Held:
    """One cell held against everything. `disturbed`: what this machine did to it, in words (None: nothing)."""

    cell: Cell
    expected: Expected
    status: str
    figures: dict[str, Figure] = field(default_factory=dict)
    disturbed: str | None = None

    @property
    def status_ok(self) -> bool:
        return self.status == self.expected.flatout


def page_cells() -> dict[tuple[str, str, int], dict[str, Any]]:
    """The page's cells by phase, context label and concurrency."""
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    return {(c["phase"], c["context_label"], c["concurrency"]): c for c in cells}


def expected_cells() -> list[Expected]:
    return [Expected(**row) for row in tomllib.loads(EXPECTED.read_text(encoding="utf-8"))["cells"]]


def scaled(suite: Suite, scale: float) -> Suite:
    """The suite with its windows on the scaled clock."""
    return replace(suite, time_s=suite.time_s * scale, min_time_s=suite.min_time_s * scale)


def fixed(suite: Suite, window_s: float) -> Suite:
    """The decode cells alone, each with one window of fixed length."""
    return replace(suite, prefill=(), time_s=window_s, min_time_s=window_s, precision=None)


def measure(
    suite: Suite,
    scale: float,
    results: Path,
    *,
    rates: str,
    cores: Sequence[int] = (),
    say: bool = False,
    knobs: dict[str, Any] | None = None,
    **options: Any,
) -> Part:
    """Runs flatout against a rig with the page's speeds; `suite` is on the page's clock. `cores`: rig, then load."""
    profile = profile_from_seed(PAGE, rates="total" if rates == "total" else "per_request")
    planted = {"dialect": "sglang", "time_scale": scale, "tokens_per_event": TOKENS_PER_EVENT, "leftover": True}
    config = RigConfig.from_dict({**profile, **planted, **(knobs or {})})
    begun = time.monotonic()

    def listen(event: Event) -> None:
        at_s = time.monotonic() - begun
        if say and isinstance(event, CellDone) and event.cell.window is not None:
            print(f"  {at_s:6.0f} s  {event.cell.id:12} {event.cell.status}", file=sys.stderr, flush=True)
        elif say and isinstance(event, Note) and event.level == "warning":
            print(f"  {at_s:6.0f} s  {event.text}", file=sys.stderr, flush=True)

    load_cores = tuple(cores[1:2]) or None
    with running(config, cores=set(cores[:1]) or None) as rig:
        made = Options(url=rig.url, results=results, suite=scaled(suite, scale), load_cores=load_cores, **options)
        record, directory = conduct.run(made, listen, Control())
        return Part(record, directory, rig.log(), scale, time.monotonic() - begun)


def unscaled_s(part: Part) -> float:
    """How long the run takes on the page's own clock. Time in which the server worked is stretched by 1 / scale; the
    warm-up's goes of fixed length, and all that the client does while the server is idle, take what they took."""
    truth = part.truth
    edges = np.append(truth.level_ns, max(truth.taken_ns, int(truth.level_ns[-1]) if len(truth.level_ns) else 0))
    busy = (truth.level_running > 0) | (truth.level_waiting > 0)
    busy_s = float(np.diff(edges)[busy].sum()) / 1e9
    fixed_s = GO_S * sum(len(w.speeds) for w in part.record.warmups if w.unit == "events/s")
    return part.took_s + max(0.0, busy_s - fixed_s) * (1.0 / part.scale - 1.0)


# -- what the log says ---------------------------------------------------------------------------------------------
def window_of(cell: Cell) -> tuple[int, int]:
    assert cell.window is not None
    return cell.window.open_ns, cell.window.close_ns


def median(ended: Sequence[float], waiting: Sequence[float] = ()) -> float:
    """Median where of some it is only known that they waited so long (Kaplan and Meier's, step by step); nan: beyond
    all that ended."""
    rows = sorted([(value, False) for value in ended] + [(value, True) for value in waiting])
    share, left = 1.0, len(rows)
    for i, (value, cut) in enumerate(rows):
        if not cut:
            share *= 1.0 - 1.0 / left
            if share < 0.5 + 1e-9:
                later = [v for v, c in rows[i + 1 :] if not c]
                return (value + later[0]) / 2 if share > 0.5 - 1e-9 and later else value
        left -= 1
    return float("nan")


def log_ttft_ms(part: Part, samples: Samples, came: Mask, waiting: Mask | None = None, close_ns: int = 0) -> float:
    """Median TTFT by the log over the very requests of the reading, matched by request id; those that still wait as
    the window closes count as having waited until then at least."""
    number = {rid: i for i, rid in enumerate(part.truth.rid)}
    rows = [number[samples.request_ids[i]] for i in np.flatnonzero(came)]
    still = [] if waiting is None else [number[samples.request_ids[i]] for i in np.flatnonzero(waiting)]
    return median(part.truth.ttft_ms()[rows].tolist(), ((close_ns - part.truth.arrival_ns[still]) / 1e6).tolist())


def intake_ms(part: Part, samples: Samples, chosen: Mask) -> float:
    """Median time from a request's first byte sent to its last byte at the rig: long prompts on new connections wait
    for the rig to read."""
    rows = log_rows(part.truth, samples, chosen)
    waits = part.truth.arrival_ns[rows] - samples.send_ns[np.flatnonzero(chosen)]
    return float(np.median(waits)) / 1e6 if len(rows) else 0.0


def first_late_ms(part: Part, samples: Samples, chosen: Mask) -> float:
    """Median time by which the first tokens of these requests left the rig behind its schedule."""
    truth, rows = part.truth, log_rows(part.truth, samples, chosen)
    firsts = np.isin(truth.event_request, rows) & np.isin(truth.event_ns, truth.first_ns[rows])
    return float(np.median(truth.event_late_us[firsts])) / 1e3 if firsts.any() else 0.0


def log_rows(truth: Truth, samples: Samples, chosen: Mask) -> Ints:
    """The log's numbers of the chosen requests, in the order of the samples."""
    number = {rid: i for i, rid in enumerate(truth.rid)}
    return np.array([number[samples.request_ids[i]] for i in np.flatnonzero(chosen)], dtype=np.int64)


def ttft_requests(cell: Cell, samples: Samples) -> tuple[Mask, Mask]:
    """The requests whose TTFT a decode cell's reading holds, as it says itself: those that got a token, and those that
    were still waiting when the window closed."""
    t0, t1 = window_of(cell)
    first = samples.first_token_ns
    assert cell.decode is not None
    late = (first < 0) | (first >= t1)
    open_then = (samples.send_ns < t1) & ((samples.end_ns < 0) | (samples.end_ns >= t0)) & late
    if (cell.decode.ttft_ms.whose or "").startswith("the launch"):
        launch = samples.round == 0
        return np.asarray(launch & ~late), np.asarray(launch & open_then)
    restarts = samples.round > 0
    return np.asarray(restarts & ~late & (first >= t0)), np.asarray(restarts & open_then)


def log_request_tok_s(truth: Truth, t0_ns: int, t1_ns: int) -> float:
    """Median over requests of tokens after the first event / time, of each request's part in the window."""
    inside = np.flatnonzero((truth.event_ns >= t0_ns) & (truth.event_ns < t1_ns) & ((truth.event_flags & 1) > 0))
    order = inside[np.argsort(truth.event_request[inside], kind="stable")]
    speeds = []
    for rows in np.split(order, np.flatnonzero(np.diff(truth.event_request[order])) + 1):
        tokens, t = truth.event_tokens[rows], truth.event_ns[rows]
        if len(rows) > 1 and tokens.sum() >= 16:
            speeds.append(float(tokens[1:].sum()) / (float(t[-1] - t[0]) / 1e9))
    return float(np.median(speeds)) if speeds else float("nan")


# -- holding against each other ------------------------------------------------------------------------------------
def server_status(cell: Cell, max_running: int, disturbed: bool) -> str:
    """The cell's status without what the measuring machine did to it: `client_limited` alone is not the server's, nor
    are, in a disturbed cell, tokens that the rig made while its cancel calls were late (`counters_disagree`)."""
    doubts = {flag.name for flag in cell.flags} & {str(flag) for flag in DOUBTFUL_FLAGS}
    excused = {str(Flag.CLIENT_LIMITED)} | ({str(Flag.COUNTERS_DISAGREE)} if disturbed else set())
    if cell.status != Status.DOUBTFUL or not doubts <= excused:
        return cell.status
    waiting = (cell.decode.waiting_server_mean or 0.0) if cell.decode else 0.0
    return str(Status.REQUESTS_QUEUED if cell.concurrency > max_running or waiting >= 0.5 else Status.VALID)


def near(value: float, truth: float, share: float, spare: float = 0.0) -> bool:
    return abs(value - truth) <= max(share * abs(truth), spare)


def rate(name: str, read: float, log: float, page: float | None, ends: tuple[float | None, float | None]) -> Figure:
    low, high = ends
    covered = page is not None and low is not None and high is not None and low <= page <= high
    page_ok = None if page is None else near(read, page, RATE_WITHIN)
    return Figure(name, read, log, page, near(read, log, RATE_WITHIN), page_ok, covered)


def duration(name: str, read: float, log: float, page: float | None, spare: float) -> Figure:
    page_ok = None if page is None else near(read, page, TIME_WITHIN, spare)
    return Figure(name, read, log, page, near(read, log, TIME_WITHIN, spare), page_ok)


def hold(part: Part, rates: str) -> list[Held]:
    """Every cell of the part's plan that the page has, in the page's order."""
    pages = page_cells()
    found = []
    for expected in expected_cells():
        cell = part.cell(expected.id)
        if cell is None:
            continue
        page = pages[expected.phase, expected.context, expected.concurrency]
        limit = int(part.record.room.max_running.value or 0)
        figures, disturbed = dict[str, Figure](), None
        if cell.prefill is not None:
            figures = prefill_figures(part, cell, page)
            disturbed = prefill_disturbance(part, cell)
        elif cell.decode is not None and cell.window is not None:
            figures = decode_figures(part, cell, page, rates)
            disturbed = disturbance(part, cell)
        found.append(Held(cell, expected, server_status(cell, limit, disturbed is not None), figures, disturbed))
    return found


def prefill_figures(part: Part, cell: Cell, page: dict[str, Any]) -> dict[str, Figure]:
    """The page's prefill TTFT is 2 % below its own tokens / rate (its prompts were so much short of the label: fault
    C6), so the rate is held against the page, and the TTFT against tokens / the page's rate."""
    assert cell.prefill is not None and cell.prefill.prefill_tok_s.value is not None and cell.samples is not None
    s, tokens = part.scale, cell.context_tokens or 0
    samples = Samples.read(part.directory / cell.samples)
    log_ms = log_ttft_ms(part, samples, samples.first_token_ns >= 0) / s
    read_ms = (cell.prefill.ttft_ms.p50 or float("nan")) / s
    page_ms = tokens / page["total_tok_s"] * 1e3
    ttft = duration("ttft_ms", read_ms, log_ms, page_ms, TIME_SPARE_MS / s)
    # A rate of one prompt is as exact as its one duration is.
    read, log = cell.prefill.prefill_tok_s.value * s, tokens / log_ms * 1e3
    spare = page["total_tok_s"] * TIME_SPARE_MS / s / page_ms
    ok = near(read, page["total_tok_s"], RATE_WITHIN, spare)
    made = Figure("tok_s", read, log, page["total_tok_s"], near(read, log, RATE_WITHIN, spare), ok)
    return {"tok_s": made, "ttft_ms": ttft}


def agrees_with_itself(page: dict[str, Any]) -> bool:
    """Whether the page's time between tokens is that of its per-request speed (at 128K x 2 it is not: 5.5 and 4.4)."""
    speed, itl_ms = page["per_request_tok_s"], page["itl_ms"]
    return speed is not None and near(itl_ms, 1e3 / speed, TIME_WITHIN, TIME_SPARE_MS)


def decode_figures(part: Part, cell: Cell, page: dict[str, Any], rates: str) -> dict[str, Figure]:
    """Total and TTFT where the page's totals were made true, per-request speed and ITL where its streams were."""
    d, s, truth = cell.decode, part.scale, part.truth
    assert d is not None and cell.samples is not None
    t0, t1 = window_of(cell)
    total, one, spare = d.total_tok_s, d.per_request_tok_s, TIME_SPARE_MS / s
    made = {}
    ends = (None if total.low is None else total.low * s, None if total.high is None else total.high * s)
    if total.value is not None:
        wanted = page["total_tok_s"] if rates == "total" else None
        made["tok_s"] = rate("tok_s", total.value * s, truth.tok_s(t0, t1) * s, wanted, ends)
    if d.ttft_ms.p50 is not None:
        samples = Samples.read(part.directory / cell.samples)
        log_ms = log_ttft_ms(part, samples, *ttft_requests(cell, samples), close_ns=t1)
        # At a launch the first request meets an empty server, so only restarts have the page's TTFT (or one stream).
        restarts = cell.concurrency == 1 or not (d.ttft_ms.whose or "").startswith("the launch")
        made["ttft_ms"] = duration(
            "ttft_ms", d.ttft_ms.p50 / s, log_ms / s, page["ttft_ms"] if restarts and rates == "total" else None, spare
        )
    if one.p50 is not None:
        log = log_request_tok_s(truth, t0, t1) * s
        wanted = page["per_request_tok_s"] if rates == "per_request" else None
        made["per_request_tok_s"] = rate("per_request_tok_s", one.p50 * s, log, wanted, (None, None))
    if d.itl_ms.p50 is not None:
        log = float(np.median(truth.itl_ms(t0, t1))) / s
        wanted = page["itl_ms"] if rates == "per_request" and agrees_with_itself(page) else None
        made["itl_ms"] = duration("itl_ms", d.itl_ms.p50 / s, log, wanted, TIME_SPARE_MS)
    return made


def disturbance(part: Part, cell: Cell) -> str | None:
    """Why the machine, not flatout, may have moved this cell's figures away from the page."""
    words, truth, (t0, t1) = [], part.truth, window_of(cell)
    late = truth.event_late_us[(truth.event_ns >= t0) & (truth.event_ns < t1)] / 1e3
    if len(late) and np.percentile(late, 99) > RIG_LATE_MS:
        words.append(f"the rig was {np.percentile(late, 99):.0f} ms late (p99)")
    assert cell.samples is not None and cell.decode is not None
    samples = Samples.read(part.directory / cell.samples)
    timed = ttft_requests(cell, samples)[0]
    intake, first_late = intake_ms(part, samples, timed), first_late_ms(part, samples, timed)
    if intake > max(TIME_SPARE_MS, INTAKE_SHARE * (cell.decode.ttft_ms.p50 or 0.0)):
        words.append(f"requests took {intake:.1f} ms to the rig (median)")
    if first_late > TIME_SPARE_MS:
        words.append(f"first tokens left the rig {first_late:.1f} ms late (median)")
    words += [flag.detail for flag in cell.flags if flag.name == Flag.CLIENT_LIMITED]
    return "; ".join(words) or None


def prefill_disturbance(part: Part, cell: Cell) -> str | None:
    """As `disturbance`, for cold prompts: how late their first tokens left the rig, in the median."""
    assert cell.samples is not None
    samples = Samples.read(part.directory / cell.samples)
    late = first_late_ms(part, samples, samples.first_token_ns >= 0)
    return f"first tokens left the rig {late:.1f} ms late (median)" if late > TIME_SPARE_MS else None


# -- contamination -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fill:
    """How full a decode cell's window was. `ran`: mean of running requests by the rig's log; `flagged`: by flatout."""

    id: str
    asked: int
    ran: float
    flagged: bool

    @property
    def over_full(self) -> bool:
        return self.ran > OVER_FULL * self.asked

    @property
    def at_the_line(self) -> bool:
        return abs(self.ran / self.asked - OVER_FULL) <= EDGE


def fills(part: Part) -> list[Fill]:
    """Of every decode cell that has a window."""
    made = []
    for cell in part.record.cells:
        if cell.phase == "decode" and cell.window is not None:
            ran = part.truth.running_mean(*window_of(cell))
            flagged = any(flag.name == Flag.CONTAMINATED for flag in cell.flags)
            made.append(Fill(cell.id, cell.concurrency, ran, flagged))
    return made


def missed(found: Iterable[Fill]) -> list[Fill]:
    """Over-full and not flagged, or flagged and not over-full; at the line both are right."""
    return [f for f in found if f.over_full != f.flagged and not f.at_the_line]


def seed_contaminated() -> int:
    """Measured cells of the page whose own average active is over 5 % above what was asked."""
    cells = page_cells().values()
    return sum(1 for c in cells if c["average_active"] and c["average_active"] > OVER_FULL * c["concurrency"])
