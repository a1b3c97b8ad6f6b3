"""How often do the intervals hold the truth? Synthetic cells of known speed through the code that measures real ones.

    python benchmarks/coverage.py [--traces 1000] [--seconds 10] [--only NAME]

Prints, for each kind of trace: how often an interval was claimed, how often the claimed ones hold the truth (95 % is
meant, 93-97 % is good; exactly regular traces have nothing random to miss), and its usual half width: of the rate, of
p50, p90 and p99 of the time between tokens, and of TTFT. The truth of a rate is known; that of a percentile is the
percentile of all traces of the kind together. Where a trace drifts, or changes rarely between two levels, the window
does not tell the long run, and no interval may be claimed; where all of the window is (nearly) at one level, nothing
in it can tell that there is another ("both levels seen" leaves those windows out). Then the early end (several looks),
and how often drift and two levels are named.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flatout.load.samples import ANSWER, CUT, OK, Samples
from flatout.measure import interval, latency, pauses, tokens, trace, trend, window
from flatout.measure.percentile import quantile
from flatout.record import QUANTILES, Distribution

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
    """A maker of traces (arrival times in s and tokens, one pair a stream) with their true rate; None: that of all
    traces together. `told`: whether a window, by its gaps in ms, shows what it is that it samples; others are not
    scored."""

    make: Callable[[Rng, float], list[tuple[F64, npt.NDArray[np.int64]]] | Samples]
    rate_tok_s: float | None = None
    told: Callable[[F64], bool] = lambda gaps_ms: True


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


def jittered_steps(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Steps in common, ±10 %."""
    return _in_step(rng, STEP_S * (1 + 0.1 * rng.standard_normal(_count(seconds))), seconds)


def heavy_tail(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Steps in common, log-normal: one in a hundred is over six times the usual."""
    return _in_step(rng, 0.6 * STEP_S * rng.lognormal(0.0, 0.8, _count(seconds)), seconds)


def mixed(share: float) -> Callable[[Rng, float], list[tuple[F64, npt.NDArray[np.int64]]]]:
    """Each stream's own gaps, ±10 %, and stalls of 0.1 s that all streams have in common."""

    def make(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
        n = _count(seconds)
        stall = np.where(rng.random(n) < share, 5 * STEP_S * (1 + 0.1 * rng.standard_normal(n)), 0.0)
        gaps = [STEP_S * (1 + 0.1 * rng.standard_normal(n)) + stall for _ in range(STREAMS)]
        return [_ones(t[t < seconds]) for t in (np.cumsum(g) - LEAD_S for g in gaps)]

    return make


def two_modes(steps: int) -> Callable[[Rng, float], list[tuple[F64, npt.NDArray[np.int64]]]]:
    """Fast and slow phases of about so many steps each, three times apart, ±10 %."""

    def make(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
        n = 2 * _count(seconds)
        fast = (np.cumsum(rng.random(n) < 1 / steps) + rng.integers(0, 2)) % 2 == 1
        gaps = np.where(fast, 0.5 * STEP_S, 1.5 * STEP_S) * (1 + 0.1 * rng.standard_normal(n))
        return _in_step(rng, gaps, seconds)

    return make


def both_levels(gaps_ms: F64) -> bool:
    """Whether each level of `two_modes` takes a tenth of the window's time or more."""
    fast = float(gaps_ms[gaps_ms < 1e3 * STEP_S].sum() / gaps_ms.sum())
    return 0.1 <= fast <= 0.9


def drifting(rng: Rng, seconds: float) -> list[tuple[F64, npt.NDArray[np.int64]]]:
    """Steps in common, ±10 %, that get 10 % longer over the window."""
    gaps = STEP_S * (1 + 0.1 * rng.standard_normal(_count(seconds)))
    return _in_step(rng, gaps * (1 + 0.1 * (np.cumsum(gaps) - LEAD_S) / seconds), seconds)


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
    "independent gaps (Poisson)": Kind(poisson, STREAMS / STEP_S),
    "independent gaps, 10 %": Kind(jittered, STREAMS / STEP_S),
    "steps, 10 %": Kind(jittered_steps, STREAMS / STEP_S),
    "steps, heavy tail": Kind(heavy_tail, STREAMS / (0.6 * STEP_S * float(np.exp(0.32)))),
    "steps, autocorrelated 0.5": Kind(correlated(0.5), STREAMS / STEP_S),
    "steps, autocorrelated 0.9": Kind(correlated(0.9), STREAMS / STEP_S),
    "speculative, 1-5 tokens": Kind(speculative, 3 * STREAMS / STEP_S),
    "steps with stalls": Kind(stalls, STREAMS / (STEP_S * 1.18)),
    "gaps and common stalls, 1.2 %": Kind(mixed(0.012), STREAMS / (STEP_S * 1.06)),
    "gaps and common stalls, 3 %": Kind(mixed(0.03), STREAMS / (STEP_S * 1.15)),
    "fast and slow phases": Kind(bursts, STREAMS / STEP_S),
    "two modes, 10 steps": Kind(two_modes(10), STREAMS / STEP_S),
    "two modes, 200 steps": Kind(two_modes(200), STREAMS / STEP_S),
    "the same, both levels seen": Kind(two_modes(200), STREAMS / STEP_S, both_levels),
    "drifting by 10 %": Kind(drifting),
    "restarts, fixed length": Kind(restarts(0.0), STREAMS * OUTPUT / (PREFILL_S + (OUTPUT - 1) * STEP_S)),
    "restarts, varied length": Kind(restarts(0.4), STREAMS * OUTPUT / (PREFILL_S + (OUTPUT - 1) * STEP_S)),
    "regular steps": Kind(regular_steps, STREAMS / (STEP_S * 1.137)),
    "regular, streams apart": Kind(regular_apart, STREAMS / (STEP_S * 1.137)),
    "one slow regular stream": Kind(slow_regular, 1 / 0.091),
}


def waiting(make: Callable[[Rng, int], F64], launch: bool = False) -> Callable[[Rng, int], Samples]:
    """Requests of two tokens whose waits for the first token (s) `make` gives in the order of their first tokens; all
    sent after the launch, 50 ms apart, or (`launch`) all at once."""

    def samples(rng: Rng, n: int) -> Samples:
        waits = make(rng, n)
        first = waits if launch else 0.05 * np.arange(1, n + 1)
        found = as_samples([_ones(np.array([t, t + 0.01])) for t in first], 1e6)
        found.send_ns = 10_000_000_000 + np.round((first - waits) * 1e9).astype(np.int64)
        found.round = np.full(n, 0 if launch else 1, dtype=np.int32)
        found.outcome = np.full(n, OK, dtype=np.int8)
        return found

    return samples


def _wandering(rng: Rng, n: int) -> F64:
    x = rng.standard_normal(n)
    for i in range(1, n):
        x[i] = 0.8 * x[i - 1] + 0.6 * x[i]
    return np.asarray(0.1 * np.exp(0.3 * x))


WAITS = {
    "independent waits": waiting(lambda rng, n: 0.1 * rng.lognormal(0.0, 0.5, n)),
    "waits in groups of five": waiting(lambda rng, n: np.repeat(0.1 * rng.lognormal(0.0, 0.5, -(-n // 5)), 5)[:n]),
    "waits that wander, 0.8": waiting(_wandering),
    "a launch, one after the other": waiting(lambda rng, n: np.cumsum(0.02 * rng.lognormal(0.0, 0.3, n)), True),
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


@dataclass
class Scored:
    """Percentiles' intervals of many traces, to be held against the percentiles of all their values together."""

    values: list[F64] = field(default_factory=list)
    weights: list[F64] = field(default_factory=list)
    made: list[Distribution] = field(default_factory=list)
    told: list[bool] = field(default_factory=list)

    def add(self, values: F64, weights: F64, made: Distribution, told: bool = True) -> None:
        self.values.append(values)
        self.weights.append(weights)
        self.made.append(made)
        self.told.append(told)

    def scores(self) -> Iterator[Score]:
        """p50's, p90's and p99's."""
        values, weights = np.concatenate(self.values), np.concatenate(self.weights)
        for name, q in QUANTILES.items():
            truth, score = quantile(values, weights, np.zeros(len(values), dtype=np.bool_), q), Score()
            for one, told in zip(self.made, self.told, strict=True):
                if truth is not None and told:
                    score.add(getattr(one, f"{name}_low"), getattr(one, f"{name}_high"), truth[0])
            yield score


def fixed_window(kind: Kind, rng: Rng, traces: int, seconds: float) -> tuple[Score, list[Score]]:
    """Coverage of the rate's interval and of ITL p50's, p90's and p99's over `traces` traces with a window of
    `seconds`."""
    rates, itl = [], Scored()
    t0, t1 = 10_000_000_000, 10_000_000_000 + int(seconds * 1e9)
    for _ in range(traces):
        found = cell(kind, rng, seconds)
        table = trace.build(found, tokens.count(found))
        bins = window.pace_bins(table, found, t0, t1, interval.BINS)
        value = window.tokens_between(table, t0, t1) / seconds
        paused = pauses.pause_share(table, found, t0, t1)
        bin_s = seconds / interval.BINS
        rates.append(interval.rate_interval(bins, bin_s=bin_s, value=value, paused=paused))
        parts = latency.parts(found, table, t0, t1)
        itl.add(parts.gap_ms, parts.gap_tokens, latency.itl(parts, t0, t1), kind.told(parts.gap_ms))
    truth = kind.rate_tok_s or float(np.mean([r.value for r in rates if r.value is not None]))
    score = Score()
    for rate, told in zip(rates, itl.told, strict=True):
        if told:
            score.add(rate.low, rate.high, truth)
    return score, list(itl.scores())


def waits(make: Callable[[Rng, int], Samples], rng: Rng, traces: int, requests: int) -> list[Score]:
    """Coverage of TTFT p50's, p90's and p99's over `traces` windows with so many requests."""
    scored, none = Scored(), np.zeros(requests, dtype=np.int64)
    counts = tokens.TokenCounts(np.ones(2 * requests), none.astype(np.int8), none, None, None)
    t0, t1 = 10_000_000_000, 10_000_000_000 + 10**15
    for _ in range(traces):
        found = make(rng, requests)
        made = latency.ttft(found, trace.build(found, counts), t0, t1)
        scored.add((found.first_token_ns - found.send_ns) / 1e6, np.ones(requests), made)
    return list(scored.scores())


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
            paused=pauses.pause_share(table, found, base, t1),
            looks=len(looks_s),
        )
        score.add(result.low, result.high, kind.rate_tok_s or float("nan"))
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
    print(f"{'trace':30s} {'rate':>23s}  {'ITL p50':>23s}  {'p90':>23s}  {'p99':>23s}")
    for name, kind in KINDS.items():
        if args.only in name:
            rate, itl = fixed_window(kind, np.random.default_rng(args.seed), args.traces, args.seconds)
            print(f"{name:30s} " + "  ".join(s.text(args.traces) for s in (rate, *itl)), flush=True)
    print(f"\n{'TTFT of 120 and of 600 requests':30s} {'p50':>23s}  {'p90':>23s}  {'p99':>23s}")
    for name, make in WAITS.items():
        for n in (120, 600):
            if args.only in name:
                made = waits(make, np.random.default_rng(args.seed), args.traces, n)
                print(f"{name:30s} " + "  ".join(s.text(args.traces) for s in made), flush=True)
    looks = [args.seconds * share for share in (0.25, 0.5, 0.75, 1.0)]
    print(f"\nearly end within ±1 % at one of {', '.join(f'{x:g}' for x in looks)} s: coverage, width, mean length")
    for name, kind in KINDS.items():
        if args.only in name and kind.rate_tok_s is not None and "levels" not in name:
            score, length = adaptive_window(kind, np.random.default_rng(args.seed), args.traces, looks, 0.01)
            print(f"{name:30s} {score.text(args.traces)}   {length:5.1f} s", flush=True)
    print("\nnamed as drift / as two levels")
    for label, drifts, levels in changes(np.random.default_rng(args.seed), args.traces):
        print(f"{label:34s} {drifts:6.1%} {levels:6.1%}")


if __name__ == "__main__":
    main()
