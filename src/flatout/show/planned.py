"""The plan before anything is sent (`--dry-run`): each cell's need and verdict, and what the run will cost."""

from __future__ import annotations

from flatout.plan import Limits, PlannedCell, estimate
from flatout.suite import Suite

_WORDS = {"measure": "measure", "over_length": "over length", "over_capacity": "over capacity", "not_run": "not run"}


def text(
    cells: list[PlannedCell], limits: Limits, suite: Suite, *, engine: str, model: str, budget: int | None = None
) -> str:
    """Plain lines: limits, a row a cell, the sums."""
    lines = [
        f"{suite.label} on {_clean(model)} ({_clean(engine)})",
        f"model length {_count(limits.model_length)} · KV cache {_count(limits.kv_tokens)} tokens · "
        f"runs {_count(limits.max_running)} at once",
        "",
        f"{'phase':<8} {'context':>9} {'at once':>8} {'KV need':>12}  verdict",
    ]
    for cell in cells:
        verdict = _WORDS[cell.verdict] + (" (will queue)" if cell.will_queue else "")
        row = f"{cell.phase:<8} {cell.label:>9} {cell.concurrency:>8} {_count(cell.need_tokens):>12}  {verdict}"
        lines.append(row + (f": {cell.reason}" if cell.reason else ""))
    made = estimate(cells, suite)
    minutes = f"{made.window_s / 60:.1f} min" if made.window_s >= 60 else f"{made.window_s:.0f} s"
    lines += [
        "",
        f"{made.measured} of {made.cells} cells to be measured; their windows last {minutes} at most; warming and",
        "restarts come on top",
        f"at least {made.cold_tokens:,} prompt tokens computed, {made.cached_tokens:,} more from the server's cache,",
        f"{made.output_tokens:,} tokens generated; a stream asks again until its window ends: fast servers get more",
    ]
    if budget is not None and budget < made.tokens:
        lines.append(f"--max-tokens-total {budget:,} does not reach for that: the last cells would not be run")
    return "\n".join(lines)


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _clean(word: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in word)
