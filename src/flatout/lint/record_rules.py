"""Rules for what only a record has: intervals, percentiles, samples, windows, flags, its plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from flatout.flags import DOUBTFUL_FLAGS, MEASURED, Flag, Status
from flatout.lint import finding as f
from flatout.lint.finding import Finding, finding
from flatout.lint.rules import FEW
from flatout.lint.sheet import cell_name
from flatout.record import BurstFigures, Cell, DecodeFigures, Distribution, PrefillFigures, Rate, Record

_OFF = 0.01
_EPS = 1e-6
_OWN_MORE = 1.01
_LAUNCH = "launch"


def _name(cell: Cell) -> str:
    return cell_name(cell.phase, cell.context or str(cell.context_tokens), cell.concurrency)


def _figures(cell: Cell) -> DecodeFigures | PrefillFigures | BurstFigures | None:
    return {"decode": cell.decode, "prefill": cell.prefill, "burst": cell.burst}[cell.phase]


def intervals(cell: Cell) -> Iterator[Finding]:
    made = _figures(cell)
    if made is None:
        return
    for name in type(made).model_fields:
        value = getattr(made, name)
        if isinstance(value, Rate):
            wrong = _rate_wrong(value)
        elif isinstance(value, Distribution):
            wrong = _distribution_wrong(value)
        else:
            continue
        if wrong:
            yield finding(f.INTERVAL, _name(cell), f"{name}: {wrong}")


def _rate_wrong(rate: Rate) -> str | None:
    low, value, high = rate.low, rate.value, rate.high
    if value is not None and low is not None and high is not None and not low - _EPS <= value <= high + _EPS:
        return f"{value:.6g} lies outside of its interval {low:.6g} to {high:.6g}"
    if value is not None and value < 0:
        return f"{value:.6g} is negative"
    return None


def _distribution_wrong(found: Distribution) -> str | None:
    steps = [(n, v) for n in ("p50", "p90", "p99") if (v := getattr(found, n)) is not None]
    # a maximum that is only the longest uncut one may lie below a percentile
    if found.max is not None and not found.censored:
        steps.append(("max", found.max))
    for (a, x), (b, y) in pairwise(steps):
        if x > y * (1 + _EPS) + _EPS:
            return f"{a} {x:.6g} is above {b} {y:.6g}"
    if any(value < 0 for _, value in steps):
        return f"{min(v for _, v in steps):.6g} is negative"
    low, high = found.p50_low, found.p50_high
    if found.p50 is not None and low is not None and high is not None and not low - _EPS <= found.p50 <= high + _EPS:
        return f"p50 {found.p50:.6g} lies outside of its interval {low:.6g} to {high:.6g}"
    if not 0 <= found.censored <= max(found.n, 0):
        return f"{found.censored} of {found.n} samples are cut"
    return None


def samples(cell: Cell) -> Iterator[Finding]:
    """Medians of fewer than five (of three prompts), unless the record says so: by a flag, or as the launch's own."""
    if cell.status not in MEASURED or any(flag.name == Flag.LOW_SAMPLES for flag in cell.flags):
        return
    if cell.decode is not None and cell.phase == "decode":
        found = cell.decode.ttft_ms
        if found.p50 is not None and found.n < FEW and _LAUNCH not in (found.whose or ""):
            yield finding(f.FEW, _name(cell), f"TTFT is a median of {found.n}")
    if cell.prefill is not None and cell.phase == "prefill":
        used = sum(sample.used for sample in cell.prefill.samples)
        if cell.prefill.prefill_tok_s.value is not None and used < 3:
            yield finding(f.FEW, _name(cell), f"the prefill rate is a median of {used} prompts")


def prefill(cell: Cell) -> Iterator[Finding]:
    """Each sample's rate is its own tokens over its own TTFT."""
    if cell.prefill is None or cell.status not in MEASURED:
        return
    for sample in cell.prefill.samples:
        if not (sample.used and sample.prompt_tokens and sample.ttft_ms and sample.prefill_tok_s):
            continue
        asked = sample.prompt_tokens - (sample.cached_tokens or 0)
        made = sample.prefill_tok_s * sample.ttft_ms / 1e3
        if abs(made - asked) > _OFF * max(asked, 1) + 1:
            text = f"{sample.prefill_tok_s:,.1f} tok/s × {sample.ttft_ms:,.1f} ms = {made:,.0f} tokens; the prompt had "
            yield finding(f.PREFILL, _name(cell), text + f"{asked:,}")
            return


def status(cell: Cell) -> Iterator[Finding]:
    doubts = sorted(flag.name for flag in cell.flags if flag.name in DOUBTFUL_FLAGS)
    if cell.status in (Status.VALID, Status.REQUESTS_QUEUED) and doubts:
        text = f"the status is '{cell.status}', but it is flagged {', '.join(doubts)}"
        yield finding(f.STATUS, _name(cell), text)
    if cell.status in MEASURED and _figures(cell) is None:
        yield finding(f.STATUS, _name(cell), f"the status is '{cell.status}', but there are no figures")
    if cell.status == Status.DOUBTFUL and not doubts and not cell.reason:
        yield finding(f.STATUS, _name(cell), "it is doubtful, but nothing says why", "warning")


def window(cell: Cell) -> Iterator[Finding]:
    """The window's length against its own stamps, tokens against tokens, and the client's own requests."""
    if cell.window is not None and cell.status in MEASURED:
        length_s = (cell.window.close_ns - cell.window.open_ns) / 1e9
        if length_s <= 0 or abs(length_s - cell.window.length_s) > 1e-3 + 1e-3 * abs(length_s):
            text = f"open and close are {length_s:.6g} s apart, the length is {cell.window.length_s:.6g} s"
            yield finding(f.WINDOW, _name(cell), text)
    if cell.decode is None or cell.status not in MEASURED:
        return
    counted = cell.tokens.in_window if cell.tokens is not None else None
    shown = cell.decode.output_tokens
    if counted is not None and shown is not None and abs(counted - shown) > 0.5 + _OFF * abs(shown):
        yield finding(f.TOKENS, _name(cell), f"{counted:,.0f} tokens in the window, {shown:,.0f} output tokens")
    own = cell.decode.active_own_mean
    if own is not None and own > _OWN_MORE * cell.concurrency:
        text = f"the client itself had {own:.2f} requests in flight, {cell.concurrency} were asked for"
        yield finding(f.ACTIVE, _name(cell), text)


def plan(record: Record) -> Iterator[Finding]:
    have = {cell.id for cell in record.cells}
    missing = [name for name in record.plan.order if name not in have]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        told = ", ".join(name[:40] for name in missing[:5])
        yield finding(f.MISSING, "", f"{len(missing)} planned cells are not in the record: {told}{more}")


def negative(cell: Cell) -> Iterator[Finding]:
    """Counts and times of the record that are below 0, and shares that are no shares."""
    made = _figures(cell)
    if made is None:
        return
    for name in type(made).model_fields:
        value = getattr(made, name)
        if name in _SIGNED or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0 or not math.isfinite(value) or (name.endswith("_share") and value > 1):
            yield finding(f.NUMBER, _name(cell), f"{name} is {value:.6g}")


_SIGNED: Final = frozenset({"drift_change", "completed", "output_tokens", "active_server_mean", "failed_requests",
                            "cached_tokens_mean", "output_tokens_mean", "cold_ttft_ms"})  # fmt: skip
"""May be negative, or are looked at in the rules for all tables."""
ALL: Final[tuple[Callable[[Cell], Iterator[Finding]], ...]] = (
    status, window, intervals, samples, prefill, negative,
)  # fmt: skip
