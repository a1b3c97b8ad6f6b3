"""Does flatout cry wolf? A clean rig, measured in many shapes: which flags are raised, and how often.

    python benchmarks/false_alarms.py [--seconds 2] [--only NAME]

The rig is a server in a process of its own that does nothing wrong: right counts, an idle start, a warm cache, a steady
speed with a little jitter. It runs before ordinary processes where the system allows that. Each flag on one of its
cells is a false alarm, unless the rig itself was not clean: cells in whose window it sent anything over 5 ms late, by
its own log, stand apart (this machine had no time for it). Goal: at most 1 % of the others flagged. About ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.flags import MEASURED, Status
from flatout.record import Cell
from flatout.rig import RigConfig, Truth, running
from flatout.run import conduct
from flatout.run.events import Control
from flatout.run.options import Options
from flatout.suite import Suite

CONTEXTS = (256, 1024, 4096, 8192)
CONCURRENCY = (1, 2, 4, 8, 16, 32)
MAX_OUTPUT = 96
GOAL = 0.01
RIG_LATE_US = 5_000
SPEEDS = {1: 120.0, 4: 100.0, 16: 70.0, 32: 50.0}
"""tok/s of one stream by how many decode: so fast that two seconds hold several answers of each."""
COMMON: dict[str, Any] = {
    "model_len": 32768, "ttft_ms": 15.0, "prefill_tok_s": 200_000.0, "decode_table": SPEEDS, "jitter_ms": 0.2,
}  # fmt: skip
SLOTS: dict[str, Any] = {"max_running": 32, "kv_tokens": 400_000}
"""llama.cpp tells how many slots it has, and they hold so many tokens."""
SHAPES: dict[str, dict[str, Any]] = {
    "vllm, in step": {"dialect": "vllm"},
    "vllm, spread, 4 tokens an event": {"dialect": "vllm", "pattern": "spread", "tokens_per_event": 4},
    "vllm, in step, no gauges": {"dialect": "vllm", "metrics": False, "report_cached": True},
    "vllm, speculative": {"dialect": "vllm", "spec_accept_length": 2.5},
    "sglang, spread": {"dialect": "sglang", "pattern": "spread"},
    "sglang, in step, 4 tokens an event": {"dialect": "sglang", "tokens_per_event": 4},
    "vllm, spread, no gauges": {"dialect": "vllm", "pattern": "spread", "metrics": False, "report_cached": True},
    "llama.cpp, in step": {"dialect": "llamacpp", **SLOTS},
    "llama.cpp, spread, no gauges": {"dialect": "llamacpp", "pattern": "spread", "metrics": False, **SLOTS},
}


@dataclass
class Tally:
    """Cells of a rig that was clean in them, and what was raised."""

    cells: int = 0
    flagged: int = 0
    disturbed: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)

    def add(self, shape: str, cell: Cell, late_us: int) -> Iterator[str]:
        """Counts a cell; a line for each of its flags, and for a status that is not `valid`."""
        excused = late_us > RIG_LATE_US
        more = f" (the rig itself was {late_us / 1000:.0f} ms late)" if excused else ""
        names = {flag.name for flag in cell.flags}
        self.cells += not excused
        self.disturbed += excused
        self.flagged += bool(names) and not excused
        for flag in cell.flags:
            self.flags[flag.name] += not excused
            yield f"  {shape}: {cell.id}: {flag.name}: {flag.detail}{more}"
        if cell.status != Status.VALID:
            self.other[cell.status] += not excused
            if cell.status not in MEASURED or not names:
                yield f"  {shape}: {cell.id}: status {cell.status}: {cell.reason}{more}"


def concurrency(knobs: dict[str, Any]) -> tuple[int, ...]:
    """Numbers of streams at which two seconds are long enough: a step of 1 to 8 tokens by chance needs many streams to
    be known to 5 %, and few would be flagged `low_samples` rightly."""
    return CONCURRENCY[-2:] if "spec_accept_length" in knobs else CONCURRENCY


def late_us(cell: Cell, truth: Truth) -> int:
    """How late the rig's latest event of the cell's window was, by its own log; 0 without a window (prefill)."""
    if cell.window is None:
        return 0
    inside = (truth.event_ns >= cell.window.open_ns) & (truth.event_ns < cell.window.close_ns)
    return int(truth.event_late_us[inside].max(initial=0))


def cells(knobs: dict[str, Any], seconds: float, results: Path) -> list[tuple[Cell, int]]:
    """One run over all contexts and numbers of streams against a rig of this shape: cells, and how late the rig was."""
    suite = Suite(
        "false-alarms", 1, CONTEXTS, CONTEXTS, concurrency(knobs), seconds, MAX_OUTPUT, min_time_s=seconds,
        about="short windows in many shapes",
    )  # fmt: skip
    with running(RigConfig.from_dict({**COMMON, **knobs}), cores={0}) as rig:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(rig.pid, os.SCHED_FIFO, os.sched_param(1))
        options = Options(url=rig.url, suite=suite, results=results, warmup=False)
        record, _ = conduct.run(options, lambda event: None, Control())
        truth = rig.log()
    unmeasured = (Status.NOT_RUN, Status.OVER_CAPACITY, Status.OVER_LENGTH)
    return [(cell, late_us(cell, truth)) for cell in record.cells if cell.status not in unmeasured]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    tally = Tally()
    for name, knobs in SHAPES.items():
        if args.only not in name:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as results:
            found = cells(knobs, args.seconds, Path(results))
        before = tally.flagged
        lines = [line for cell, late in found for line in tally.add(name, cell, late)]
        print(f"{name}: {len(found)} cells, {tally.flagged - before} flagged, {time.monotonic() - begun:.0f} s")
        print("\n".join(lines), end="\n" if lines else "", flush=True)
    if not tally.cells:
        print("no cell was measured while the rig was clean")
        return 2
    share = tally.flagged / tally.cells
    print(f"\n{tally.cells} cells of a clean rig, {tally.flagged} flagged ({share:.1%}); goal: at most {GOAL:.0%}")
    print(f"{tally.disturbed} more in which the rig itself was over {RIG_LATE_US / 1000:.0f} ms late")
    print("flags: " + (", ".join(f"{name} {n}" for name, n in tally.flags.most_common() if n) or "none"))
    print("statuses besides valid: " + (", ".join(f"{n} {k}" for n, k in tally.other.most_common() if k) or "none"))
    return 0 if share <= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
