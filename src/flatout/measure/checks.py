"""Every two counts of the same tokens, held against each other; the client's watch on itself, cut to the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from flatout import record
from flatout.engines.base import Live
from flatout.load.job import LAG_BIN_NS, SelfCheck
from flatout.load.samples import OK, REFUSED, Samples
from flatout.measure import tokens

OVER_ASKED: Final = 3
"""An end token and the like may be billed beyond the limit."""
STOP_S: Final = 0.3
"""Time within which engines stop a request that was cut; what they generate in it is no disagreement."""


@dataclass(frozen=True, slots=True)
class CountPair:
    """Two counts of the same tokens. `slack`: tokens that `theirs` may exceed `ours` by for a known reason (work done
    after a request was cut)."""

    name: str
    ours: float
    theirs: float
    slack: float = 0.0


def in_window(checks: Sequence[SelfCheck], t0_ns: int, t1_ns: int) -> tuple[SelfCheck, ...]:
    """The self-checks with the lags and pauses that fall into [t0, t1) ns only, at least in part.

    Pauses that were too many to be listed may all have been in the window, and are taken for it.
    """
    return tuple(_cut(check, t0_ns, t1_ns) for check in checks)


def _cut(check: SelfCheck, t0_ns: int, t1_ns: int) -> SelfCheck:
    bins = zip(check.lag_t_ns, check.lag_max_ns, strict=True)
    lags = [(t, lag) for t, lag in bins if t0_ns - LAG_BIN_NS < t < t1_ns]
    listed = list(zip(check.pause_t_ns, check.pause_ns, check.pause_merged, strict=True))
    pauses = [(t, length, merged) for t, length, merged in listed if t < t1_ns and t + length > t0_ns]
    outside = len(listed) - len(pauses)
    outside_ns = sum(length for _, length, _ in listed) - sum(length for _, length, _ in pauses)
    return msgspec.structs.replace(
        check,
        lag_t_ns=tuple(t for t, _ in lags),
        lag_max_ns=tuple(lag for _, lag in lags),
        pauses=check.pauses - outside,
        pauses_total_ns=check.pauses_total_ns - outside_ns,
        pause_t_ns=tuple(t for t, _, _ in pauses),
        pause_ns=tuple(length for _, length, _ in pauses),
        pause_merged=tuple(merged for _, _, merged in pauses),
        watched_s=(t1_ns - t0_ns) / 1e9,
    )


def self_check(checks: Sequence[SelfCheck]) -> record.SelfCheck | None:
    """The load processes' own checks as one: sums of counts, the worst of the rest."""
    if not checks:
        return None

    def worst(values: Sequence[int | None]) -> float | None:
        known = [v for v in values if v is not None]
        return max(known) / 1e6 if known else None

    return record.SelfCheck(
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


def count_pairs(
    samples: Samples,
    counts: tokens.TokenCounts,
    request_tok_s: float | None,
    idle_before: Live | None,
    idle_after: Live | None,
) -> tuple[CountPair, ...]:
    """Every two counts of the same tokens: usage, ids, and the server's counter between two idle moments."""
    pairs = []
    if counts.usage_pair is not None:
        pairs.append(CountPair("events against final usage", *counts.usage_pair))
    if counts.ids_pair is not None:
        pairs.append(CountPair("running counts against token ids", *counts.ids_pair))
    over = _more_than_asked(samples, counts)
    if over is not None:
        pairs.append(over)
    before = idle_before.generated_total if idle_before is not None else None
    after = idle_after.generated_total if idle_after is not None else None
    if before is not None and after is not None and after >= before:
        own = float(counts.tokens.sum() + counts.hidden.sum())
        slack = _made_after_the_cut(samples, counts, request_tok_s or 0.0)
        pairs.append(CountPair("own tokens against the server's counter", own, after - before, slack))
    return tuple(pairs)


def _per_request(samples: Samples, counts: tokens.TokenCounts) -> npt.NDArray[np.float64]:
    """Tokens of each request, hidden reasoning included. Shape R."""
    made = [float(counts.tokens[samples.arrivals_of(r)].sum()) for r in range(samples.requests)]
    return np.array(made) + counts.hidden


def _more_than_asked(samples: Samples, counts: tokens.TokenCounts) -> CountPair | None:
    """No request can have more tokens than it asked for: a count that says so is wrong (T1). None if none does."""
    made, asked = _per_request(samples, counts), samples.asked_tokens * np.maximum(samples.choices, 1)
    over = (samples.asked_tokens > 0) & (made > asked + OVER_ASKED)
    if not over.any():
        return None
    return CountPair("tokens counted against tokens asked for", float(made[over].sum()), float(asked[over].sum()))


def _made_after_the_cut(samples: Samples, counts: tokens.TokenCounts, request_tok_s: float) -> float:
    """Tokens that the server may have counted after requests were cut: what they still lacked, at most STOP_S of it."""
    cut = (samples.outcome != OK) & (samples.outcome != REFUSED)
    lacking = np.maximum(samples.asked_tokens - _per_request(samples, counts), 0.0)
    return float(np.minimum(lacking, request_tok_s * STOP_S)[cut].sum())
