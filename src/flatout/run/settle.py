"""What a cell of the record takes from its verdict and from the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flatout import record as rec
from flatout.engines.redact import tidy
from flatout.flags import Flag, Status
from flatout.host.gpu import HARMFUL_REASONS
from flatout.host.summary import Stat, TelemetrySummary
from flatout.measure.verdict import Verdict

LENGTH_SHARE: Final = 0.02
"""A prompt that is off its label by more than this share is told beside the number."""
BLOCK_TOKENS: Final = 16
"""A cold prompt may share this much with what was sent before, besides the template's head: one block of a cache."""


def take_verdict(cell: rec.Cell, verdict: Verdict, error: str | None, redact: Callable[[str], str]) -> None:
    """Status, reason and flags; `error`: the server's words where the cell broke off."""
    cell.status = str(verdict.status)
    cell.reason = tidy(verdict.reason, redact, 1000) if verdict.reason else None
    cell.flags = [rec.Flag(name=flag.name, detail=redact(flag.detail)) for flag in verdict.flags]
    cell.error = tidy(error, redact) if error else None


def add_flag(cell: rec.Cell, name: str, detail: str) -> None:
    """Adds a flag that the figures alone do not show, once; a doubtful one takes the cell's status along."""
    if all(flag.name != name for flag in cell.flags):
        cell.flags.append(rec.Flag(name=name, detail=detail))
    if cell.status in (Status.VALID, Status.REQUESTS_QUEUED) and name in (Flag.CONTAMINATED, Flag.CLIENT_LIMITED):
        cell.status, cell.reason = Status.DOUBTFUL, detail


def note_length(cell: rec.Cell, counts: Sequence[int]) -> None:
    """Says so beside the number where the real prompts were not as long as the label says, by over LENGTH_SHARE."""
    asked = cell.context_tokens
    if not counts or not asked or max(abs(n - asked) for n in counts) <= LENGTH_SHARE * asked:
        return
    span = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    text = f"the prompts had {span} tokens, not {asked:,}"
    cell.reason = f"{cell.reason}; {text}" if cell.reason else text


def telemetry(summary: TelemetrySummary) -> rec.Telemetry:
    """The machine over a window: mean and largest of each reading, by name with unit."""
    stats = machine_stats(summary)
    return rec.Telemetry(
        means={name: s.mean for name, s in stats.items()},
        maxima={name: s.max for name, s in stats.items()},
        throttle=dict(summary.throttle or {}),
        energy_j=summary.energy_j,
        energy_how=summary.energy_source,
        reasons=dict(summary.missing),
        series={name: rec.Series(t_s=list(s.t_s), values=list(s.values)) for name, s in summary.series.items()},
    )


def machine_stats(summary: TelemetrySummary) -> dict[str, Stat]:
    """Readings that are there, by name; a watched process as `cores_of_<name>`."""
    names = (
        "cpu_use_percent", "ram_used_bytes", "gpu_use_percent", "gpu_memory_used_bytes", "sm_clock_mhz",
        "memory_clock_mhz", "power_w", "temperature_c",
    )  # fmt: skip
    readings = {name: getattr(summary, name) for name in names}
    readings |= {f"cores_of_{name}": stat for name, stat in summary.process_cores.items()}
    return {name: stat for name, stat in readings.items() if stat is not None}


def harmful(summary: TelemetrySummary) -> tuple[str, ...]:
    """Throttle reasons of the window that slow the hardware down (an idle GPU's low clocks do not)."""
    return tuple(name for name, share in (summary.throttle or {}).items() if share > 0 and name in HARMFUL_REASONS)
