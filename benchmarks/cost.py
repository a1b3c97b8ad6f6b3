"""What does reading cost? CPU per event of flatout, of a bare C reader (the floor), and of other tools, side by side.

    python benchmarks/cost.py [--loads 1x450,16x220,64x150,256x100,1000x50] [--patterns step,spread] [--seconds 3]
                              [--tools flatout,…] [--rig-core 0] [--core 1] [--rounds 1]

One sender (flatout.rig.lean, on --rig-core) for all; each reader alone on --core, one after the other, so that
the ratio of two in one row holds although other work moves both. With --rounds, all of a row is done so many times and
its medians are printed. Columns, CPU in µs an event:

- floor: a C epoll loop with kernel stamps (floor.c, compiled here), before flatout's turn and after it, at the priority
  that flatout's load process takes (real-time, where allowed); in brackets at ordinary priority, at which a reader
  on a busy machine wakes late and reads many at once: cheaper, and wrong;
- stamping: flatout's load process over a steady span of long streams, told to decode nothing in it: user and system
  time by the scheduler's count;
- process: the load process as it is, decoding and all, from the span's beginning until it has handed over its samples;
- whole: all processes of `flatout run`, two runs of different length subtracted, so that start-up is not in it;
- below the table, the same difference for each other tool (see peers.py for its environment), else a word why not.

Stamp: error against the sender's clock, µs. Late: reads over 2 ms behind the kernel, since the launch. Merged: reads
that took together what came apart. Dropped: events in the sender's log without an arrival. MiB: most that the load
process grew in a span of twice the length and while it handed over its samples, its text kept (allowed: 24 B a token
and 64 MiB). Below the table, the goals beside what was read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import floor
import peers
from flatout.calibrate import bench, compare
from flatout.calibrate.bench import Scene
from flatout.load import process
from flatout.load.process import LoadPool, Outcome
from flatout.load.samples import CUT, Samples
from flatout.rig import RigConfig, RigHandle, Truth, running
from flatout.rig.truth import SENT
from peer_env import TOOLS, Absent, book, offline

HEAD = (
    "load", "pattern", "events/s", "floor (ordinary)", "stamping", "ratio", "process", "whole", "ratio", "stamp p50",
    "p99", "late", "merged", "dropped", "MiB (allowed)",
)  # fmt: skip

MEMORY_MIB, MEMORY_B_A_TOKEN = 64.0, 24.0
STAMPING_RATIO, WHOLE_RATIO, RATIO_FROM_STREAMS = 2.0, 2.5, 64
STAMP_P50_US, STAMP_P99_US = 10.0, 50.0
_UNDECODED = """
import sys
import flatout.load.ledger as ledger
ledger.EAGER_BYTES = ledger.FORCED_BYTES = 1 << 40
import os
os.sched_setaffinity(0, {int(sys.argv[2])})
from flatout.load.child import main
sys.exit(main(int(sys.argv[1])))
"""


@dataclass(frozen=True)
class Stamping:
    """One go. `process_us`, `late`, `merged`, `reads`, `dropped`, memory: of the load process as it is."""

    cpu_us: float
    process_us: float
    events_s: float
    stamp_p50_us: float
    stamp_p99_us: float
    late: int
    merged: int
    reads: int
    dropped: int
    memory_mib: float
    allowed_mib: float


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def undecoded() -> Iterator[None]:
    """Load processes that are started in here keep all that comes until the job ends."""
    before, process.COMMAND = process.COMMAND, ("-P", "-c", _UNDECODED)  # type: ignore[misc]
    try:
        yield
    finally:
        process.COMMAND = before  # type: ignore[misc]


class Peak:
    """The most memory of a process, in bytes, by a look every 5 ms."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(pid,), daemon=True)
        self._thread.start()

    def _watch(self, pid: int) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, resident(pid))

    def end(self) -> int:
        self._over.set()
        self._thread.join(5.0)
        return self.most


@dataclass(frozen=True)
class Span:
    """A job's steady span: CPU s of the load process in it, and until the samples were there; its growth in bytes."""

    outcome: Outcome
    truth: Truth
    open_ns: int
    close_ns: int
    cpu_s: float
    whole_s: float
    grown: int

    @property
    def events(self) -> int:
        return floor.sent_in(self.truth, self.open_ns, self.close_ns)


def span(rig: RigHandle, streams: int, rate: float, pattern: str, seconds: float, core: int) -> Span:
    """The load process alone, with streams that outlast the span."""
    rig.reset()
    warm_s = 0.5 + streams / 1000
    scene = Scene("cost", "scale", streams, rate, pattern, lean=True, answers_s=seconds + warm_s + 60)  # type: ignore[arg-type]
    with LoadPool(1, [core]) as pool:
        job = bench.job_for(scene, rig.url, "cost")
        long = tuple(replace(stream, first_body=None, first_rid_offset=-1) for stream in job.streams)
        pool.start(replace(job, streams=long))
        status = pool.wait(30.0, until=lambda s: s.started >= streams)
        if status.started < streams:
            raise RuntimeError(f"only {status.started} of {streams} streams started: {status.last_error}")
        time.sleep(warm_s)
        memory, open_ns, cpu = resident(pool.pids[0]), time.monotonic_ns(), bench.cpu_s(pool.pids)
        peak = Peak(pool.pids[0])
        time.sleep(seconds)
        used, close_ns = bench.cpu_s(pool.pids) - cpu, time.monotonic_ns()
        outcome = pool.stop()
        whole = bench.cpu_s(pool.pids) - cpu
        grown = peak.end() - memory
    return Span(outcome, rig.log(), open_ns, close_ns, used, whole, grown)


def stamping(rig: RigHandle, streams: int, rate: float, pattern: str, seconds: float, core: int) -> Stamping:
    """The load process without decoding, and as it is."""
    with undecoded():
        bare = span(rig, streams, rate, pattern, seconds, core)
    real = span(rig, streams, rate, pattern, 2 * seconds, core)
    samples, check = real.outcome.samples, real.outcome.checks[0]
    errors = compare.stamps(samples, real.truth, real.open_ns, real.close_ns)
    p50, p99 = np.percentile(errors.error_us, [50, 99])
    open_at_stop = samples.end_ns[samples.outcome == CUT]
    dropped = missing(real.truth, samples, int(open_at_stop.min()) - 50_000_000)
    return Stamping(
        bare.cpu_s * 1e6 / bare.events,
        real.whole_s * 1e6 / real.events,
        real.events / ((real.close_ns - real.open_ns) / 1e9),
        float(p50), float(p99), check.late_reads, check.merged_reads, check.reads, dropped,
        real.grown / 2**20, MEMORY_MIB + MEMORY_B_A_TOKEN * real.events / 2**20,
    )  # fmt: skip


def missing(truth: Truth, samples: Samples, until_ns: int) -> int:
    """Events sent before `until_ns` of which no arrival came. A request that is not in the samples was another's,
    whose end the sender had not noticed yet."""
    arrived = dict(zip(samples.request_ids, samples.arrival_count.tolist(), strict=True))
    early = (truth.event_ns < until_ns) & ((truth.event_flags & SENT) > 0)
    sent = np.bincount(truth.event_request[early], minlength=len(truth.rid))
    return sum(max(0, int(n) - arrived[rid]) for rid, n in zip(truth.rid, sent, strict=True) if rid in arrived)


def tree_cpu_s(words: list[str], core: int, timeout_s: float, env: dict[str, str] | None = None) -> tuple[float, int]:
    """CPU seconds of a command and all that it started and waited for, and its exit code."""
    with tempfile.TemporaryFile() as said:
        started = subprocess.Popen(
            words, stdout=said, stderr=said, env=env, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
        deadline = time.monotonic() + timeout_s
        while True:
            pid, status, usage = os.wait4(started.pid, os.WNOHANG)
            if pid:
                started.returncode = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                started.kill()
                started.wait()
                raise RuntimeError(f"{words[0]} did not end within {timeout_s:g} s")
            time.sleep(0.02)
        if started.returncode not in (0, 3):
            said.seek(0)
            raise RuntimeError(f"exit {started.returncode}: {said.read()[-400:].decode(errors='replace').strip()}")
    return usage.ru_utime + usage.ru_stime, started.returncode


def marginal_us(
    rig: RigHandle,
    command: Callable[[float], list[str]],
    core: int,
    seconds: tuple[float, float],
    env: dict[str, str] | None = None,
) -> float:
    """CPU µs per event of a whole tool: the difference between a short run and a long one."""
    found = []
    for length_s in seconds:
        rig.reset()
        cpu, _ = tree_cpu_s(command(length_s), core, length_s + 150, env)
        found.append((cpu, floor.sent_in(rig.log(), 0, 2**62)))
    (cpu0, events0), (cpu1, events1) = found
    if events1 - events0 < 1000:
        raise RuntimeError(f"the longer run read no more ({events0} and {events1} events)")
    return (cpu1 - cpu0) * 1e6 / (events1 - events0)


def flatout_command(url: str, streams: int, rate: float, folder: str) -> Callable[[float], list[str]]:
    def made(seconds: float) -> list[str]:
        return [
            sys.executable, "-m", "flatout", "run", url, "--contexts", "256", "--prefill", "none", "--concurrency",
            str(streams), "--time", str(seconds), "--max-output", str(max(32, round(rate * 3))), "--prompts", "shared",
            "--no-warmup", "--load-processes", "1", "--plain", "--results", folder,
        ]  # fmt: skip

    return made


def word(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass
class Row:
    """All goes at one load in one pattern. `tools`: µs an event of others. `words`: what could not be measured."""

    load: str
    pattern: str
    floors: list[float] = field(default_factory=list)
    ordinary: list[float] = field(default_factory=list)
    own: list[Stamping] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tools: dict[str, list[float]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.load.replace('x', ' × ')} {self.pattern}"

    @property
    def streams(self) -> int:
        return int(self.load.split("x")[0])

    def times(self, value: float | None) -> float | None:
        """Over the floor."""
        least = middle(self.floors)
        return value / least if value is not None and least else None

    def of(self, name: str) -> float:
        """The median of a field of the load process's goes."""
        return statistics.median(getattr(one, name) for one in self.own)

    def share(self, name: str) -> float:
        return sum(getattr(one, name) for one in self.own) / sum(one.reads for one in self.own)

    def line(self) -> str:
        stamping, whole = self.of("cpu_us"), middle(self.whole)
        cells = (
            self.load.replace("x", " × "), self.pattern, f"{self.of('events_s'):,.0f}",
            f"{word(middle(self.floors))} ({word(middle(self.ordinary))})",
            word(stamping), word(self.times(stamping)), word(self.of("process_us")), word(whole),
            word(self.times(whole)), word(self.of("stamp_p50_us")), word(self.of("stamp_p99_us")),
            f"{self.share('late'):.3%}", f"{self.share('merged'):.3%}", str(max(one.dropped for one in self.own)),
            f"{max(one.memory_mib for one in self.own):.0f} ({self.of('allowed_mib'):.0f})",
        )  # fmt: skip
        return "| " + " | ".join(cells) + " |"


def go(row: Row, rig: RigHandle, program: Path | None, args: argparse.Namespace, folder: str) -> None:
    """One go at a row: the floor before and after flatout."""
    streams, rate = row.streams, float(row.load.split("x")[1])

    def floor_once() -> None:
        if program:
            row.floors.append(floor.measure(program, rig, streams, rate, args.seconds, args.core).cpu_us_per_event)

    def whole_of(name: str, command: Callable[[float], list[str]], env: dict[str, str] | None) -> list[float]:
        try:
            return [marginal_us(rig, command, args.core, (args.seconds, 3 * args.seconds), env)]
        except (RuntimeError, Absent) as error:
            row.words.append(f"{row.name}: {name}: {str(error)[:200]}")
            return []

    floor_once()
    row.own.append(stamping(rig, streams, rate, row.pattern, args.seconds, args.core))
    floor_once()
    if program:
        found = floor.measure(program, rig, streams, rate, args.seconds, args.core, ordinary=True)
        row.ordinary.append(found.cpu_us_per_event)
    row.whole += whole_of("flatout", flatout_command(rig.url, streams, rate, folder), None)
    floor_once()
    for name in args.tools:
        command = peers.by_time(name, rig.url, streams, rate, folder, args.book_url)
        row.tools.setdefault(name, []).extend(whole_of(name, command, offline(folder)))


def goals(rows: list[Row]) -> list[str]:
    """Each goal, and the rows that miss it with what was read."""
    heavy = [row for row in rows if row.streams >= RATIO_FROM_STREAMS]
    checks: list[tuple[str, list[tuple[Row, float | None, float]]]] = [
        (f"stamping at most {STAMPING_RATIO:g} × the floor, from {RATIO_FROM_STREAMS} streams",
         [(r, r.times(r.of("cpu_us")), STAMPING_RATIO) for r in heavy]),
        (f"the whole tool at most {WHOLE_RATIO:g} × the floor, from {RATIO_FROM_STREAMS} streams",
         [(r, r.times(middle(r.whole)), WHOLE_RATIO) for r in heavy]),
        (f"stamp error p50 at most {STAMP_P50_US:g} µs", [(r, r.of("stamp_p50_us"), STAMP_P50_US) for r in rows]),
        (f"stamp error p99 at most {STAMP_P99_US:g} µs", [(r, r.of("stamp_p99_us"), STAMP_P99_US) for r in rows]),
        ("no late read (% of reads)", [(r, 100 * r.share("late"), 0.0) for r in rows]),
        ("no event dropped", [(r, float(max(o.dropped for o in r.own)), 0.0) for r in rows]),
        (f"memory within {MEMORY_B_A_TOKEN:g} B a token and {MEMORY_MIB:g} MiB (MiB)",
         [(r, max(o.memory_mib - o.allowed_mib for o in r.own), 0.0) for r in rows]),
    ]  # fmt: skip
    lines = []
    for goal, found in checks:
        missed = [f"{row.name}: {value:.2g}" for row, value, most in found if value is not None and value > most]
        known = [value for _, value, _ in found if value is not None]
        told = (
            f"missed at {'; '.join(missed)}" if missed else f"met (worst {max(known):.2g})" if known else "not measured"
        )
        lines.append(f"- {goal}: {told}")
    return lines + against_ordinary(heavy)


def against_ordinary(rows: list[Row]) -> list[str]:
    """The same ratios beside the floor at ordinary priority."""
    pairs = [(row.of("cpu_us"), middle(row.whole), middle(row.ordinary)) for row in rows]
    stamping = [own / least for own, _, least in pairs if least]
    whole = [all_of_it / least for _, all_of_it, least in pairs if least and all_of_it is not None]
    if not stamping or not whole:
        return []
    spans = (
        f"stamping {min(stamping):.1f} to {max(stamping):.1f} ×, the whole tool {min(whole):.1f} to {max(whole):.1f} ×"
    )
    return [f"- beside the floor at ordinary priority: {spans}"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="1x450,16x220,64x150,256x100,1000x50")
    parser.add_argument("--patterns", default="step,spread")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--rig-core", type=int, default=0)
    parser.add_argument("--core", type=int, default=1)
    args = parser.parse_args()
    args.tools = [name for name in args.tools.split(",") if name and name != "flatout"]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not {args.rig_core, args.core} <= cores or args.rig_core == args.core:
        parser.error(
            f"two different cores of {sorted(cores)} are needed (--rig-core, --core): Linux, and two free cores"
        )
    if any(name not in TOOLS for name in args.tools):
        parser.error(f"--tools knows flatout, {', '.join(TOOLS)}")
    return args


def main() -> None:
    args = arguments()
    absent = {name: why for name in args.tools if (why := peers.absent(name))}
    args.tools = [name for name in args.tools if name not in absent]
    for name, why in absent.items():
        print(f"{name}: skipped, {why}")
    print(f"CPU in µs an event; load average {os.getloadavg()[0]:.1f} at the start\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    rows: list[Row] = []
    remarks = []
    with tempfile.TemporaryDirectory() as folder, book() as args.book_url:
        try:
            program = floor.compiled(Path(folder))
        except floor.NoCompiler as error:
            program = None
            remarks.append(f"no floor, and no ratios: {error}")
        for load in args.loads.split(","):
            for pattern in args.patterns.split(","):
                row = Row(load, pattern)
                config = RigConfig(decode_tok_s=float(load.split("x")[1]), pattern=pattern, ttft_ms=20.0)
                try:
                    with running(config, cores={args.rig_core}, lean=True) as rig:
                        for _ in range(args.rounds):
                            go(row, rig, program, args, folder)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    remarks.append(f"{row.name}: {error}")
                remarks += row.words
                if row.own:
                    rows.append(row)
                    print(row.line(), flush=True)
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end\n")
    if rows:
        print("\n".join(goals(rows)))
    for row in rows:
        for name, costs in row.tools.items():
            if costs:
                remarks.append(
                    f"{row.name}: {name} {word(middle(costs))} ({word(row.times(middle(costs)))} × the floor)"
                )
    for remark in remarks:
        print(f"- {remark}")


if __name__ == "__main__":
    main()
