"""Does a comparison tell equal speeds from unequal ones? Simulated runs through the code that measures and compares.

    python benchmarks/compare_sim.py [--pairs 400] [--cells 30] [--seed 1]

Each cell is tokens per bin of a window, noisy and correlated like an engine's (AR(1), r = 0.3), through
`measure.interval.rate_interval`, at a noise that makes intervals of about ±1 %. Prints, for runs of one cell and of
many: how often two runs of the same speed are called "no difference seen" (meant: in 95 % of the pairs or more, and a
pair of runs counts only if that is said of every one of its cells), and how often a true change of 2.5 % is found in a
cell (meant: 90 % or more). Then the same where only one cell of many changed, with repeats, and for TTFT and prefill.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flatout.compare import Comparison, Verdict, compare
from flatout.measure.interval import between_repeats, order_interval, rate_interval
from flatout.record import Cell, Distribution, Record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import records

F64 = npt.NDArray[np.float64]
Rng = np.random.Generator
BINS, SECONDS = 256, 10.0
CORRELATION = 0.3
KERNEL = CORRELATION ** np.arange(16)
SPREAD = 0.0532
"""Of a bin: makes the mean interval ±1 % wide (printed)."""
CHANGE = 1.025
TTFTS, PROMPTS = 24, 4


def bins(rng: Rng, tok_s: float, spread: float) -> F64:
    """Tokens per bin around a rate, correlated."""
    shocks = rng.normal(0.0, np.sqrt(1 - CORRELATION**2), BINS + len(KERNEL) - 1)
    return np.asarray(np.maximum(tok_s * SECONDS / BINS * (1 + spread * np.convolve(shocks, KERNEL, "valid")), 0.0))


def decode_cell(rng: Rng, n: int, change: float, spread: float) -> Cell:
    made = rate_interval(bins(rng, 100.0 * n * change, spread), bin_s=SECONDS / BINS)
    waits = np.sort(rng.lognormal(np.log(80.0 / change), 0.1, TTFTS))
    ends = order_interval(waits, 0.5)
    cell = records.decode("8K", 8192 + n, n, 1.0)
    assert cell.decode is not None and ends is not None
    cell.decode.total_tok_s = made
    cell.decode.ttft_ms = Distribution(p50=float(np.median(waits)), p50_low=ends[0], p50_high=ends[1], n=TTFTS)
    return cell


def prefill_cell(rng: Rng, n: int, change: float) -> Cell:
    rates = 20_000.0 * change * rng.lognormal(0.0, 0.01, PROMPTS)
    made = between_repeats(list(rates))
    cell = records.prefill("8K", 8192 + n, 1.0, 1.0)
    assert cell.prefill is not None
    cell.prefill.prefill_tok_s = made
    return cell


def run(rng: Rng, cells: int, changes: F64, drift: float = 0.0) -> Record:
    """One run. `drift`: spread of what a whole run has in common with none other (a start, a temperature)."""
    own = float(np.exp(rng.normal(0.0, drift))) if drift else 1.0
    return records.record([decode_cell(rng, n + 1, float(changes[n]) * own, SPREAD) for n in range(cells)])


def speeds(comparison: Comparison) -> list[Verdict]:
    return [cell.speed.verdict for cell in comparison.pairs[0].cells if cell.speed is not None]


def share(pairs: int, one: Callable[[], float]) -> str:
    """Mean over pairs, in percent with the simulation's own uncertainty (standard error)."""
    found = np.array([one() for _ in range(pairs)])
    return f"{found.mean() * 100:5.1f} % (± {found.std() / np.sqrt(pairs) * 100:.1f})"


def same(rng: Rng, cells: int) -> float:
    both = [run(rng, cells, np.ones(cells)) for _ in range(2)]
    return float(all(v == Verdict.SAME for v in speeds(compare(both))))


def same_cells(rng: Rng, cells: int) -> float:
    both = [run(rng, cells, np.ones(cells)) for _ in range(2)]
    return float(np.mean([v == Verdict.SAME for v in speeds(compare(both))]))


def found(rng: Rng, cells: int, changed: int) -> float:
    """Share of the changed cells that are called faster."""
    after = np.where(np.arange(cells) < changed, CHANGE, 1.0)
    verdicts = speeds(compare([run(rng, cells, np.ones(cells)), run(rng, cells, after)]))
    return float(np.mean([v == Verdict.FASTER for v in verdicts[:changed]]))


def repeats(rng: Rng, runs: int, change: float) -> float:
    """Whether the right thing is said of so many runs a side, 1 % apart."""
    sides = [run(rng, 1, np.array([c]), 0.01) for c in (1.0, change) for _ in range(runs)]
    (made,) = speeds(compare(sides, sides=[0] * runs + [1] * runs))
    return float(made == (Verdict.SAME if change == 1.0 else Verdict.FASTER))


def ttft_same(rng: Rng, cells: int) -> float:
    both = [run(rng, cells, np.ones(cells)) for _ in range(2)]
    return float(compare(both).pairs[0].count(Verdict.SAME, figure="ttft_ms") == cells)


def prefill_same(rng: Rng, cells: int) -> float:
    both = [records.record([prefill_cell(rng, n, 1.0) for n in range(cells)]) for _ in range(2)]
    return float(all(v == Verdict.SAME for v in speeds(compare(both))))


def half_width(rng: Rng) -> float:
    made = rate_interval(bins(rng, 1000.0, SPREAD), bin_s=SECONDS / BINS)
    return made.relative_half_width or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of one-cell runs; of many-cell runs a tenth")
    parser.add_argument("--cells", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    many, few, n = given.pairs, max(given.pairs // 10, 20), given.cells

    def line(what: str, pairs: int, one: Callable[[], float], of: str) -> None:
        print(f"  {what:<38} {share(pairs, one)} of {of}", flush=True)

    print(f"intervals: ±{np.mean([half_width(rng) for _ in range(2000)]) * 100:.2f} % in the mean, one window a cell\n")
    print("same speed twice is called 'no difference seen' (meant: >= 95 %)")
    line("runs of 1 cell", many, lambda: same(rng, 1), "pairs")
    line(f"runs of {n} cells, each by itself", few, lambda: same_cells(rng, n), "cell pairs")
    line(f"runs of {n} cells, in every cell", few * 2, lambda: same(rng, n), "pairs of runs")
    line(f"TTFT p50 of {TTFTS} requests, in {n} cells", few * 2, lambda: ttft_same(rng, n), "pairs of runs")
    line(f"prefill of {PROMPTS} prompts, in 7 cells", few * 5, lambda: prefill_same(rng, 7), "pairs of runs")
    print("\na true change of 2.5 % is found (meant: >= 90 %)")
    line("runs of 1 cell", many, lambda: found(rng, 1, 1), "pairs")
    line(f"runs of {n} cells, all of them changed", few, lambda: found(rng, n, n), "cell pairs")
    line(f"runs of {n} cells, one of them changed", few * 2, lambda: found(rng, n, 1), "pairs (many cells cost power)")
    print("\nwith 1 % between runs that no window shows, runs of 1 cell")
    for k in (1, 3, 5):
        line(f"{k} a side, same speed: no difference", many // 2, partial(repeats, rng, k, 1.0), "pairs")
    for k in (3, 5):
        line(f"{k} a side, 5 % faster: found", many // 2, partial(repeats, rng, k, 1.05), "pairs")


if __name__ == "__main__":
    main()
