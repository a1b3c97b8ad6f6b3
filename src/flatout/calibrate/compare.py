"""Truth beside reading: the sender's log and flatout's figures of the same window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from flatout.calibration import Pair
from flatout.load.job import SelfCheck
from flatout.load.samples import Samples
from flatout.measure.latency import LEAST_TOKENS, RESTARTS
from flatout.measure.verdict import client_limits
from flatout.record import DecodeFigures
from flatout.rig.truth import BLOCKED, SENT, Truth

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

RATE_ERROR: Final = 0.002
TTFT_ERROR_MS: Final = 0.5
ITL_ERROR: Final = 0.01
SENT_SHARE: Final = 0.95
"""Less of what was asked than this, with no socket full: the rig could not send it."""
APART_NS: Final = 500_000
"""Events of one request sent closer together than this cannot be told apart by any reader."""
MERGED_SHARE: Final = 0.02
LEAST_ITL_MS: Final = 0.1
ITL_GRAIN_MS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Stamps:
    """Error of each matched event's stamp in µs (stamp − the sender's clock just before its send), and whether it has
    the stamp of a later event, sent over 0.5 ms after it, because the client read both together. Shape: E."""

    error_us: F64
    merged: npt.NDArray[np.bool_]


def stamps(samples: Samples, truth: Truth, t0_ns: int, t1_ns: int) -> Stamps:
    """Every request's arrivals beside its sent events, by request id and order, of events sent in the window.

    Events that found the socket full are left out: they went later than their clock says.
    """
    number = {rid: i for i, rid in enumerate(truth.rid) if rid}
    owners = truth.event_request[truth.order]
    errors: list[F64] = []
    merges: list[npt.NDArray[np.bool_]] = []
    for r in range(samples.requests):
        at = number.get(samples.request_ids[r], -1)
        if at < 0:
            continue
        begin, end = np.searchsorted(owners, [at, at + 1])
        read_ns = samples.t_ns[samples.arrivals_of(r)]
        events = truth.order[begin:end][: len(read_ns)]
        read_ns = read_ns[: len(events)]
        sent_ns = truth.event_ns[events]
        later = np.concatenate((np.diff(sent_ns) > APART_NS, [False])) if len(events) else np.zeros(0, dtype=bool)
        same = np.concatenate((read_ns[1:] == read_ns[:-1], [False])) if len(events) else later
        keep = (sent_ns >= t0_ns) & (sent_ns < t1_ns) & ((truth.event_flags[events] & BLOCKED) == 0)
        errors.append((read_ns - sent_ns)[keep] / 1e3)
        merges.append((same & later)[keep])
    none = np.zeros(0)
    return Stamps(np.concatenate(errors) if errors else none, np.concatenate(merges) if merges else none.astype(bool))


def total_tok_s(figures: DecodeFigures, truth: Truth, t0_ns: int, t1_ns: int) -> Pair:
    return Pair(truth=truth.tok_s(t0_ns, t1_ns), reading=figures.total_tok_s.value)


def ttft_p50_ms(figures: DecodeFigures, samples: Samples, truth: Truth, t0_ns: int, t1_ns: int) -> Pair:
    """The median over the requests that the reading is about: sent after the launch with their first token in the
    window, else the launch's own."""
    restarts = figures.ttft_ms.whose == RESTARTS
    wanted = {rid for rid, number in zip(samples.request_ids, samples.round, strict=True) if (number > 0) == restarts}
    times = truth.ttft_ms()
    first = truth.first_ns
    chosen = np.array([rid in wanted for rid in truth.rid], dtype=bool) & ~np.isnan(times)
    if restarts:
        chosen &= (first >= t0_ns) & (first < t1_ns)
    true = float(np.median(times[chosen])) if chosen.any() else None
    return Pair(truth=true, reading=figures.ttft_ms.p50)


def itl_ms(figures: DecodeFigures, truth: Truth, t0_ns: int, t1_ns: int) -> tuple[Pair, Pair]:
    """p50 and p99 of the time between tokens, token-weighted; what was sent within 0.5 ms is one arrival, and a request
    counts with the part of it inside the window, where that has 16 tokens (docs/definitions.md)."""
    owner, at, tokens = truth.arrivals()
    inside = (at >= t0_ns) & (at < t1_ns)
    own = np.bincount(owner[inside], tokens[inside], len(truth.rid))
    keep = (np.diff(owner) == 0) & inside[1:] & inside[:-1] & (own[owner[1:]] >= LEAST_TOKENS)
    weights = tokens[1:][keep]
    times = np.repeat(np.diff(at)[keep] / weights / 1e6, weights)
    p50, p99 = percentiles(times)
    read = figures.itl_ms
    return Pair(truth=p50, reading=read.p50), Pair(truth=p99 if read.p99 is not None else None, reading=read.p99)


def percentiles(values: F64) -> tuple[float | None, float | None]:
    """p50 and p99; None of nothing."""
    p50, p99 = map(float, np.percentile(values, [50, 99])) if len(values) else (None, None)
    return p50, p99


def longest_gap_ms(figures: DecodeFigures, truth: Truth, t0_ns: int, t1_ns: int) -> Pair:
    """The longest silence between two events of a request that overlaps the window. One that the window's end left
    open is known as a lower bound only, and not compared."""
    gaps_ns, _ = truth.gaps_ns(t0_ns + 1, t1_ns)
    if figures.longest_gap_open or not len(gaps_ns):
        return Pair(reading=figures.longest_gap_ms)
    return Pair(truth=float(gaps_ns.max()) / 1e6, reading=figures.longest_gap_ms)


def sent_events(truth: Truth, t0_ns: int, t1_ns: int) -> npt.NDArray[np.bool_]:
    """(E) which events went out in the window."""
    inside = (truth.event_ns >= t0_ns) & (truth.event_ns < t1_ns)
    mask: npt.NDArray[np.bool_] = inside & ((truth.event_flags & SENT) > 0)
    return mask


@dataclass(frozen=True, slots=True)
class Verdict:
    """`held_by`: `client` where it did not read what was sent, `rig` where that did not send what was asked."""

    trusted: bool
    held_by: Literal["rig", "client"] | None
    reason: str | None


def judge(
    total: Pair,
    ttft: Pair,
    itl: Pair,
    checks: Sequence[SelfCheck],
    *,
    asked_events_s: float,
    sent_events_s: float,
    blocked: int,
    merged_share: float,
    estimated: bool,
) -> Verdict:
    """Was the point read rightly? The limits: 0.2 % of the rate (1 % where the server counts no token before the end,
    so that those of a cut request are estimated), 0.5 ms of the TTFT, 1 % (or 20 µs) of the time between tokens,
    2 % of events with another's stamp, and the signs of a late client that flag a cell. A late rig takes nothing from
    it: its log says when it really sent. A time between tokens below 0.1 ms is not judged (see `APART_NS`).
    """
    wrong = []
    rate_limit = 5 * RATE_ERROR if estimated else RATE_ERROR
    if total.relative is None:
        wrong.append("no rate was read")
    elif abs(total.relative) > rate_limit:
        wrong.append(f"total tok/s is {total.relative:+.2%} off")
    if ttft.off is not None and abs(ttft.off) > TTFT_ERROR_MS:
        wrong.append(f"TTFT p50 is {ttft.off:+.2f} ms off")
    judged = itl.truth is not None and itl.truth >= LEAST_ITL_MS
    if judged and itl.off is not None and abs(itl.off) > max(ITL_ERROR * (itl.truth or 0.0), ITL_GRAIN_MS):
        wrong.append(f"ITL p50 is {itl.off:+.3f} ms off")
    client = [text for check in checks for text in client_limits(check)]
    if blocked:
        client.append(f"{blocked:,} events found the client's socket full")
    if merged_share > MERGED_SHARE:
        client.append(f"{merged_share:.1%} of the events were read together with later ones and took their stamp")
    wrong += client
    if wrong:
        return Verdict(False, "client", "; ".join(dict.fromkeys(wrong)))
    if sent_events_s < SENT_SHARE * asked_events_s:
        short = f"the rig could send {sent_events_s:,.0f} of {asked_events_s:,.0f} events/s"
        return Verdict(True, "rig", short)
    return Verdict(True, None, None)
