"""How often do the intervals hold the truth? Synthetic cells of known speed through the code that measures real ones.

    python benchmarks/coverage.py [--traces 1000] [--seconds 10] [--only NAME]

Prints, for each kind of trace: how often an interval was claimed, how often the claimed ones hold the true rate (95 %
is meant, 93-97 % is good; exactly regular traces have nothing random to miss), its usual half width, and for p50 of the
time between tokens the same. Then the early end (several looks), and how often drift and two levels are named.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatout.load.samples import ANSWER, CUT, OK, Samples
from flatout.measure import interval, latency, tokens, trace, trend, window

F64 = npt.NDArray[np.float64]
Rng = np.random.Generator
STREAMS = 8
LIVE_BIN_S = 0.02
OUTPUT = 128
PREFILL_S = 0.1
GRAIN = 1e-6  # stamps are whole nanoseconds: a regular trace's interval may be narrower than they can tell
STEP_S = 0.02
LEAD_S = 1.0  # streams run so long before the window opens


@dataclass(frozen=True)
class Kind:
    """A maker of traces (arrival times in s and tokens, one pair a stream) with their true rate and true ITL median."""

    make: Callable[[Rng, float], list[tuple[F64, npt.NDArray[np.int64]]] | Samples]
    rate_tok_s: float
    itl_ms: float | None = None


def _times(rng: Rng, gaps: F64, seconds: float) -> F64:
    """Arrivals from -LEAD_S (random phase) to `seconds`."""
    t = -LEAD_S - rng.random() * gaps[0] + np.cumsum(gaps)
    return np.asarray(t[t < seconds])


def _ones(times: F64) -> tuple[F64, npt.NDArray[np.int64]]:
    return times, np.ones(len(times), dtype=np.int64)


def _count(seconds: float) -> int:
    return int((seconds + LEAD_S) / STEP_S * 1.8) + 100


def poisson(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Independent gaps, exponential."""
    return [_ones(_times(rng, rng.exponential(STEP_S, 2 * _count(seconds)), seconds)) for _ in range(STREAMS)]


def jittered(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Independent gaps, ±10 %."""
    return [
        _ones(_times(rng, STEP_S * (1 + 0.1 * rng.standard_normal(_count(seconds))), seconds)) for _ in range(STREAMS)
    ]


def _in_step(rng: Rng, gaps: F64, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    times = _times(rng, gaps, seconds)
    return [_ones(times + 1e-6 * s) for s in range(STREAMS)]


def regular_steps(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """All streams at each step of constant length."""
    return _in_step(rng, np.full(_count(seconds), STEP_S * 1.137), seconds)


def slow_regular(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """One stream, a token every 91 ms."""
    return [_ones(_times(rng, np.full(_count(seconds), 0.091), seconds))]


def regular_apart(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Constant gaps, each stream with a phase of its own."""
    return [_ones(_times(rng, np.full(_count(seconds), STEP_S * 1.137), seconds)) for _ in range(STREAMS)]


def correlated(phi: float) -> Callable[[Rng, float], list[tuple[F64, npt.NDArray[np.int64]]]]:
    """Steps of all streams together whose length is an AR(1) process, ±15 %."""

    def make(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
        noise = rng.standard_normal(_count(seconds))
        x = np.empty(len(noise))
        x[0] = noise[0]
        for i in range(1, len(noise)):
            x[i] = phi * x[i - 1] + np.sqrt(1 - phi * phi) * noise[i]
        return _in_step(rng, STEP_S * np.maximum(1 + 0.15 * x, 0.1), seconds)

    return make


def speculative(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Steps in common, 1 to 5 tokens each by chance (mean 3)."""
    times = _times(rng, STEP_S * (1 + 0.05 * rng.standard_normal(_count(seconds))), seconds)
    return [(times + 1e-6 * s, rng.integers(1, 6, len(times))) for s in range(STREAMS)]


def stalls(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Steps in common; one in fifty takes ten times as long (another's prefill)."""
    long = rng.random(_count(seconds)) < 0.02
    return _in_step(rng, np.where(long, 10 * STEP_S, STEP_S), seconds)


def bursts(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Fast and slow phases of about 10 steps each."""
    n = _count(seconds)
    fast = np.cumsum(rng.random(n) < 0.1) % 2 == rng.integers(0, 2)
    return _in_step(rng, np.where(fast, 0.5 * STEP_S, 1.5 * STEP_S), seconds)


def as_samples(streams: list[tuple[F64, npt.NDArray[np.int64]]], seconds: float) -> Samples:
    """Samples of streams that are cut at `seconds`; time 0 is at 10 s."""
    n, base = len(streams), 10_000_000_000
    counts = np.array([len(t) for t, _ in streams], dtype=np.int32)
    ns = np.concatenate([np.round(t * 1e9).astype(np.int64) + base for t, _ in streams])
    running = np.concatenate([np.cumsum(k) for _, k in streams]).astype(np.int32)
    text = 4 * np.concatenate([k for _, k in streams]).astype(np.int32)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)

    def full(value: int, dtype: type[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
        return np.full(n, value, dtype=dtype)

    i32, i64, i8 = np.int32, np.int64, np.int8
    return Samples(
        stream=np.arange(n, dtype=i32), round=full(0, i32), send_ns=full(base - 2_000_000_000, i64),
        connect_ns=full(-1, i64), first_byte_ns=ns[starts], first_token_ns=ns[starts], first_answer_ns=ns[starts],
        last_token_ns=ns[starts + counts - 1], end_ns=full(base + int(seconds * 1e9), i64), http_status=full(200, i32),
        outcome=full(CUT, i8), finish=full(-1, i8), asked_tokens=full(10**6, i32), prompt_tokens=full(100, i32),
        cached_tokens=full(-1, i32), completion_tokens=full(-1, i32), reasoning_tokens=full(-1, i32),
        text_bytes=full(0, i64), choices=full(1, i32), error=full(-1, i32), arrival_start=starts, arrival_count=counts,
        t_ns=ns, running_tokens=running, id_tokens=np.full(len(ns), -1, dtype=i32), text_len=text,
        kind=np.full(len(ns), ANSWER, dtype=i8),
    )  # fmt: skip


def restarts(spread: float) -> Callable[[Rng, float], Samples]:
    """Streams that begin again as their answer ends: OUTPUT tokens (± `spread` of it), a prefill of 0.1 s ± 10 %, gaps
    of ± 10 %; the first answers are cut so that restarts come evenly."""

    def make(rng: Rng, seconds: float) -> Samples:
        pieces, rows = [], []
        for stream in range(STREAMS):
            now, number = -LEAD_S, 0
            while now < seconds:
                length = round(OUTPUT * (1 + spread * rng.uniform(-1, 1)))
                length = max(2, round(length * (stream + 1) / STREAMS) if number == 0 else length)
                gaps = STEP_S * (1 + 0.1 * rng.standard_normal(length - 1))
                first = now + PREFILL_S * (1 + 0.1 * rng.standard_normal())
                times = first + np.concatenate(([0.0], np.cumsum(gaps)))
                kept = times[times < seconds]
                if len(kept):
                    pieces.append(_ones(kept))
                    rows.append((stream, number, now, times[-1], len(kept) == length))
                now, number = float(times[-1]), number + 1
        found = as_samples(pieces, seconds)
        base = 10_000_000_000
        found.stream = np.array([r[0] for r in rows], dtype=np.int32)
        found.round = np.array([r[1] for r in rows], dtype=np.int32)
        found.send_ns = np.array([base + round(r[2] * 1e9) for r in rows], dtype=np.int64)
        ended = np.array([r[4] for r in rows])
        found.outcome = np.where(ended, OK, CUT).astype(np.int8)
        ends = np.array([base + round(min(r[3], seconds) * 1e9) for r in rows], dtype=np.int64)
        found.end_ns = ends
        return found

    return make


KINDS = {
    "independent gaps (Poisson)": Kind(poisson, STREAMS / STEP_S, 1e3 * STEP_S * float(np.log(2))),
    "independent gaps, 10 %": Kind(jittered, STREAMS / STEP_S, 1e3 * STEP_S),
    "steps, autocorrelated 0.5": Kind(correlated(0.5), STREAMS / STEP_S, 1e3 * STEP_S),
    "steps, autocorrelated 0.9": Kind(correlated(0.9), STREAMS / STEP_S, 1e3 * STEP_S),
    "speculative, 1-5 tokens": Kind(speculative, 3 * STREAMS / STEP_S),
    "steps with stalls": Kind(stalls, STREAMS / (STEP_S * 1.18)),
    "fast and slow phases": Kind(bursts, STREAMS / STEP_S),
    "restarts, fixed length": Kind(restarts(0.0), STREAMS * OUTPUT / (PREFILL_S + (OUTPUT - 1) * STEP_S)),
    "restarts, varied length": Kind(restarts(0.4), STREAMS * OUTPUT / (PREFILL_S + (OUTPUT - 1) * STEP_S)),
    "regular steps": Kind(regular_steps, STREAMS / (STEP_S * 1.137), 1e3 * STEP_S * 1.137),
    "regular, streams apart": Kind(regular_apart, STREAMS / (STEP_S * 1.137), 1e3 * STEP_S * 1.137),
    "one slow regular stream": Kind(slow_regular, 1 / 0.091, 91.0),
}


def cell(kind: Kind, rng: Rng, seconds: float) -> Samples:
    made = kind.make(rng, seconds)
    return made if isinstance(made, Samples) else as_samples(made, seconds)


@dataclass
class Score:
    """Hits among claims."""

    claims: int = 0
    hits: int = 0
    width: float = 0.0

    def add(self, low: float | None, high: float | None, truth: float) -> None:
        if low is None or high is None:
            return
        self.claims += 1
        self.hits += low * (1 - GRAIN) <= truth <= high * (1 + GRAIN)
        self.width += (high - low) / 2 / truth

    @property
    def coverage(self) -> float:
        return self.hits / self.claims if self.claims else float("nan")

    def text(self, traces: int) -> str:
        if not self.claims:
            return "     never claimed      "
        return f"{self.claims / traces:6.1%} {self.coverage:7.1%} ±{self.width / self.claims:6.2%}"


def fixed_window(kind: Kind, rng: Rng, traces: int, seconds: float) -> tuple[Score, Score]:
    """Coverage of the rate's interval and of ITL p50's over `traces` traces with a window of `seconds`."""
    rate, itl = Score(), Score()
    t0, t1 = 10_000_000_000, 10_000_000_000 + int(seconds * 1e9)
    for _ in range(traces):
        found = cell(kind, rng, seconds)
        table = trace.build(found, tokens.count(found))
        bins = window.pace_bins(table, found, t0, t1, interval.BINS)
        value = window.tokens_between(table, t0, t1) / seconds
        pauses = window.pause_deviation(table, found, t0, t1)
        bin_s = seconds / interval.BINS
        result = interval.rate_interval(bins, bin_s=bin_s, value=value, relative_deviation=pauses)
        rate.add(result.low, result.high, kind.rate_tok_s)
        if kind.itl_ms is not None:
            times = latency.itl(latency.parts(found, table, t0, t1), t0, t1)
            itl.add(times.p50_low, times.p50_high, kind.itl_ms)
    return rate, itl


def adaptive_window(kind: Kind, rng: Rng, traces: int, looks_s: list[float], target: float) -> tuple[Score, float]:
    """Coverage where the window ends at the first of `looks_s` with an interval within `target`, and mean length."""
    score, total = Score(), 0.0
    base = 10_000_000_000
    for _ in range(traces):
        found = cell(kind, rng, looks_s[-1])
        table = trace.build(found, tokens.count(found))
        for i, end in enumerate(looks_s):
            edges = base + np.arange(0, end + 1e-9, LIVE_BIN_S) * 1e9
            counts, _ = np.histogram(found.t_ns, edges)
            if interval.early_end(counts.tolist(), LIVE_BIN_S, target, i, len(looks_s)):
                break
        total += end
        t1 = base + int(end * 1e9)
        bins = window.pace_bins(table, found, base, t1, interval.BINS)
        result = interval.rate_interval(
            bins,
            bin_s=end / interval.BINS,
            value=window.tokens_between(table, base, t1) / end,
            relative_deviation=window.pause_deviation(table, found, base, t1),
            looks=len(looks_s),
        )
        score.add(result.low, result.high, kind.rate_tok_s)
    return score, total / traces


def changes(rng: Rng, traces: int) -> list[tuple[str, float, float]]:
    """How often drift and two levels are named, on 256 bins of 5 % noise."""
    rows = []
    ramp, n = np.linspace(-0.5, 0.5, interval.BINS), interval.BINS
    steady = np.ones(n)
    for name, shape in (
        ("steady", steady), ("ramp of 5 %", 1 + 0.05 * ramp), ("ramp of 10 %", 1 + 0.10 * ramp),
        ("36 % slower for a third", np.where(np.arange(n) < n // 3, 0.64, 1.0)),
        ("cold start: 40 % slower for 10 %", np.where(np.arange(n) < n // 10, 0.6, 1.0)),
    ):  # fmt: skip
        drifts = levels = 0
        for _ in range(traces):
            bins = 100 * shape * (1 + 0.05 * rng.standard_normal(n))
            found = trend.drift(bins, least_change=0.02)
            drifts += bool(found and found.detected)
            levels += trend.modes(trend.batches(bins), least=3) is not None
        rows.append((name, drifts / traces, levels / traces))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.traces} traces a row, window {args.seconds:g} s; claims, coverage, half width")
    print(f"{'trace':30s} {'rate: claim cover width':>24s}   {'ITL p50: claim cover width':>24s}")
    for name, kind in KINDS.items():
        if args.only in name:
            rate, itl = fixed_window(kind, np.random.default_rng(args.seed), args.traces, args.seconds)
            print(f"{name:30s} {rate.text(args.traces)}   {itl.text(args.traces) if kind.itl_ms else '-'}", flush=True)
    looks = [args.seconds * share for share in (0.25, 0.5, 0.75, 1.0)]
    print(f"\nearly end within ±1 % at one of {', '.join(f'{x:g}' for x in looks)} s: coverage, width, mean length")
    for name, kind in KINDS.items():
        if args.only in name:
            score, length = adaptive_window(kind, np.random.default_rng(args.seed), args.traces, looks, 0.01)
            print(f"{name:30s} {score.text(args.traces)}   {length:5.1f} s", flush=True)
    print("\nnamed as drift / as two levels")
    for label, drifts, levels in changes(np.random.default_rng(args.seed), args.traces):
        print(f"{label:34s} {drifts:6.1%} {levels:6.1%}")


if __name__ == "__main__":
    main()
