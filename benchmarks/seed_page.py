"""The page that started the project, measured again: flatout against a rig that has the page's speeds.

    python -m benchmarks.seed_page [--time-scale 0.2] [--parts totals,streams,undrained] [--cores 0,1]

Three parts, all with SGLang's leftover work after a hang-up planted:

    totals     `--suite full`, the rig makes the page's total tok/s true: all 55 statuses, totals, TTFT, prefill
    streams    the decode matrix again, the rig makes the page's per-request speeds true: per-request tok/s, ITL
    undrained  draining switched off and leftovers that nobody can cancel: which cells does flatout call contaminated?

The page's totals and per-request speeds contradict each other (leftover requests, windows with more or fewer restarts
than the mean), so no one server has both: hence two parts. Everything is held against the rig's own log of what it sent
in the same window, and against the page. Times and rates are printed on the page's clock. Exit code 1 if a status is
not the expected one, a reading is off its log or (beyond its own interval) off the page in a cell that this machine did
not disturb, if it disturbed over half of them, if the suite would take over 15 minutes unscaled, or if contamination is
missed or seen where there was none.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.seed_truth import (
    LONGEST_S,
    Figure,
    Fill,
    Held,
    Part,
    fills,
    fixed,
    hold,
    measure,
    missed,
    seed_contaminated,
    unscaled_s,
)  # fmt: skip

from flatout.suite import SUITES

STREAM_WINDOW_S: Final = 10.0
UNDRAINED_WINDOW_S: Final = 5.0
LEAST_CALM: Final = 0.5
"""Share of the measured cells that must be undisturbed: what is excused proves nothing."""


# -- printing ------------------------------------------------------------------------------------------------------
def _pair(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return ""
    page = "" if figure.page is None else f"{figure.page:,.{digits}f} → "
    off = "" if figure.page is None else f" ({figure.read / figure.page - 1:+.1%})"
    mark = "" if figure.verdict == "ok" else f" {figure.verdict}"
    return f"{page}{figure.read:,.{digits}f}{off}{mark}"


def table(totals: Sequence[Held], streams: Sequence[Held]) -> str:
    """The 55 rows, the page's value before the arrow and flatout's after it."""
    beside = {h.expected.id: h for h in streams}
    lines = [
        "| cell | status on the page | by flatout | total tok/s | TTFT ms | per request tok/s | ITL ms | machine |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for held in totals:
        e, other = held.expected, beside.get(held.expected.id)
        mine, more = held.figures, other.figures if other else {}
        name = f"{e.phase} {e.context}" + (f" x {e.concurrency}" if e.phase == "decode" else "")
        status = held.status + ("" if held.status_ok else " UNEXPECTED") + (" *" if e.why else "")
        machine = "disturbed" if held.disturbed or (other and other.disturbed) else ""
        cells = (
            name, e.seed, status, _pair(mine.get("tok_s"), 1), _pair(mine.get("ttft_ms"), 0),
            _pair(more.get("per_request_tok_s"), 1), _pair(more.get("itl_ms"), 2), machine,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(held: Sequence[Held], names: Sequence[str]) -> tuple[list[str], bool]:
    """One line a figure: the largest distance from log and page. False if a reading is off."""
    lines, good = [], True
    for name in names:
        found = [(h, h.figures[name]) for h in held if name in h.figures]
        if not found:
            continue
        calm = [f for h, f in found if not h.disturbed]
        paged = [f for f in calm if f.page]
        log = max((abs(f.read / f.log - 1) for f in calm), default=0.0)
        page = max((abs(f.read / f.page - 1) for f in paged if f.page), default=0.0)
        counts = {v: sum(f.verdict == v for _, f in found) for v in ("ok", "in interval", "OFF PAGE", "OFF LOG")}
        bad = [h.cell.id for h, f in found if f.verdict.startswith("OFF") and not h.disturbed]
        told = ", ".join(f"{n} {v}" for v, n in counts.items() if n)
        lines.append(
            f"{name}: at most {log:.2%} off the log, {page:.2%} off the page ({len(paged)} cells there); {told}"
        )
        if bad:
            lines.append(f"  off, on a machine that did not disturb: {', '.join(bad)}")
        good &= not bad
    return lines, good


def proven(name: str, held: Sequence[Held]) -> bool:
    """Says how much of the page was really held against it; False where this machine disturbed most of it."""
    measured = [h for h in held if h.figures]
    calm = sum(not h.disturbed for h in measured)
    enough = calm >= LEAST_CALM * len(measured)
    if not enough:
        told = f"this machine disturbed {len(measured) - calm} of {len(measured)} cells"
        _print(f"{name}: NOT PROVEN, {told}; use an idle one")
    return enough


def duration_line(part: Part) -> tuple[str, bool]:
    """How long the part takes with nothing scaled; False if that is longer than it may be."""
    seconds = unscaled_s(part)
    told = (
        f"unscaled, `--suite full` takes {seconds / 60:.1f} min on this server (at most {LONGEST_S / 60:.0f} are meant)"
    )
    return told + ("" if seconds <= LONGEST_S else ": TOO LONG"), seconds <= LONGEST_S


def contamination_lines(name: str, found: Sequence[Fill]) -> tuple[list[str], bool]:
    over, wrong = [f for f in found if f.over_full], missed(found)
    caught = sum(f.flagged for f in over)
    worst = max((f.ran / f.asked for f in found), default=0.0)
    lines = [
        f"{name}: {len(found)} cells measured, {len(over)} over-full by the rig's log (at worst {worst:.2f} times what "
        f"was asked), {caught} of them flagged, {sum(f.flagged and not f.over_full for f in found)} flagged otherwise"
    ]
    lines += [f"  WRONG {f.id}: {f.ran:.2f} ran, {f.asked} asked, flagged: {f.flagged}" for f in wrong]
    return lines, not wrong


def differences(held: Sequence[Held]) -> list[str]:
    told = [h.expected for h in held if h.expected.why]
    return [f"* {e.phase} {e.context} x {e.concurrency}: {e.why}" for e in told]


# -- the three parts -----------------------------------------------------------------------------------------------
def run_parts(args: argparse.Namespace, results: Path) -> bool:
    """Runs what was asked for and prints each part as it ends; True if all is as it should be."""
    full, good = SUITES["full"], True
    common = {"scale": args.time_scale, "results": results, "cores": args.cores, "say": True}
    totals, streams = list[Held](), list[Held]()
    if "totals" in args.parts:
        part = measure(full, rates="total", **common)
        totals = hold(part, "total")
        told, fine = summary(totals, ("tok_s", "ttft_ms", "per_request_tok_s", "itl_ms"))
        more, clean = contamination_lines("drained", fills(part))
        length, short = duration_line(part)
        good &= fine and clean and short and all(h.status_ok for h in totals) and len(totals) == 55
        _print(f"totals ({part.took_s:.0f} s):", *told, *more, length)
        good &= proven("totals", totals)
    if "streams" in args.parts:
        part = measure(fixed(full, STREAM_WINDOW_S), rates="per_request", **common)
        streams = hold(part, "per_request")
        told, fine = summary(streams, ("per_request_tok_s", "itl_ms"))
        more, clean = contamination_lines("drained", fills(part))
        good &= fine and clean
        _print(f"streams ({part.took_s:.0f} s):", *told, *more)
        good &= proven("streams", streams)
    if totals or streams:
        _print("", table(totals or streams, streams), *differences(totals), "")
    if "undrained" in args.parts:
        knobs = {"leftover_abortable": False}
        part = measure(fixed(full, UNDRAINED_WINDOW_S), rates="total", knobs=knobs, drain=False, **common)
        told, clean = contamination_lines("not drained", fills(part))
        good &= clean
        _print(f"undrained ({part.took_s:.0f} s):", *told)
        _print(f"the page itself: {seed_contaminated()} of its 30 measured cells over-full, none called so")
    return good


def _print(*lines: str) -> None:
    print("\n".join(lines), flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0 if all is as it should be, 1 if not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--time-scale", type=float, default=0.2, help="a second of the page on this run's clock")
    parser.add_argument("--parts", type=lambda t: t.split(","), default=["totals", "streams", "undrained"])
    parser.add_argument(
        "--cores",
        type=lambda t: [int(n) for n in t.split(",")],
        default=[0, 1],
        help="of the rig and of flatout (default 0,1)",
    )
    parser.add_argument("--results", type=Path, help="keep the records here (default: a temporary directory)")
    args = parser.parse_args(words)
    if hasattr(os, "sched_setaffinity") and len(args.cores) > 1:
        os.sched_setaffinity(0, set(args.cores[1:]))
    with tempfile.TemporaryDirectory() as directory:
        good = run_parts(args, args.results or Path(directory))
    print("all as it should be" if good else "NOT as it should be: see above")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
