"""What does reading cost? CPU per event of flatout, of a bare C reader (the floor), and of other tools, side by side.

    python benchmarks/cost.py [--loads 1x450,16x220,64x150,256x100,1000x50] [--patterns step,spread] [--seconds 3]
                              [--tools flatout,…] [--rig-core 0] [--core 1] [--rounds 1]

One sender (flatout.calibrate.hose, on --rig-core) for all; each reader alone on --core, one after the other, so that
the ratio of two in one row holds although other work moves both. Columns:

- floor: a C epoll loop with kernel stamps (floor.c, compiled here; mean of a run before flatout's and one after it);
- stamping: flatout's load process over a steady span of long streams, user and system time by the scheduler's count;
  with `decode`: and the decoding of what it read, once the streams ended;
- whole: all processes of `flatout run`, two runs of different length subtracted, so that start-up is not in it;
- the same difference for each other tool that is named by its environment (see peers.py), else a word why not.

Late: reads over 2 ms behind the kernel. Merged: reads that took together what came apart. Dropped: events in the
sender's log without an arrival. Stamp: error against the sender's clock. MiB: growth of the load process over the span
(allowed: 24 B a token and 64 MiB).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import floor
import peers
from flatout.calibrate import bench, compare
from flatout.calibrate.scenes import Scene
from flatout.calibrate.sender import lean
from flatout.load.process import LoadPool
from flatout.load.samples import CUT, Samples
from flatout.rig import RigConfig, RigHandle, Truth
from flatout.rig.truth import SENT

HEAD = (
    "load", "pattern", "events/s", "floor", "stamping", "ratio", "+ decode", "whole", "ratio", "stamp p50", "p99",
    "late", "merged", "dropped", "MiB (allowed)",
)  # fmt: skip


MEMORY_MIB, MEMORY_B_A_TOKEN = 64.0, 24.0


@dataclass(frozen=True)
class Stamping:
    cpu_us: float
    with_decode_us: float
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


def stamping(rig: RigHandle, streams: int, rate: float, pattern: str, seconds: float, core: int) -> Stamping:
    """The load process alone: long streams, so that nothing is decoded within the span."""
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
        time.sleep(seconds)
        used, close_ns = bench.cpu_s(pool.pids) - cpu, time.monotonic_ns()
        grown = resident(pool.pids[0]) - memory
        before_stop = bench.cpu_s(pool.pids)
        outcome = pool.stop()
        decoded = bench.cpu_s(pool.pids) - before_stop
    truth = rig.log()
    samples, check = outcome.samples, outcome.checks[0]
    events = floor.sent_in(truth, open_ns, close_ns)
    errors = compare.stamps(samples, truth, open_ns, close_ns)
    p50, p99 = np.percentile(errors.error_us, [50, 99])
    open_at_stop = samples.end_ns[samples.outcome == CUT]
    dropped = missing(truth, samples, int(open_at_stop.min()) - 50_000_000)
    return Stamping(
        used * 1e6 / events,
        used * 1e6 / events + decoded * 1e6 / len(samples.t_ns),
        events / ((close_ns - open_ns) / 1e9),
        float(p50), float(p99), check.late_reads, check.merged_reads, check.reads, dropped,
        grown / 2**20, MEMORY_MIB + MEMORY_B_A_TOKEN * events / 2**20,
    )  # fmt: skip


def missing(truth: Truth, samples: Samples, until_ns: int) -> int:
    """Events sent before `until_ns` of which no arrival came."""
    arrived = dict(zip(samples.request_ids, samples.arrival_count.tolist(), strict=True))
    early = (truth.event_ns < until_ns) & ((truth.event_flags & SENT) > 0)
    sent = np.bincount(truth.event_request[early], minlength=len(truth.rid))
    return sum(max(0, int(n) - arrived.get(rid, 0)) for rid, n in zip(truth.rid, sent, strict=True))


def tree_cpu_s(words: list[str], core: int, timeout_s: float, env: dict[str, str] | None = None) -> tuple[float, int]:
    """CPU seconds of a command and all that it started and waited for, and its exit code."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words, stdout=said, stderr=said, env=env, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
        deadline = time.monotonic() + timeout_s
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"{words[0]} did not end within {timeout_s:g} s")
            time.sleep(0.02)
        if process.returncode not in (0, 3):
            said.seek(0)
            raise RuntimeError(f"exit {process.returncode}: {said.read()[-400:].decode(errors='replace').strip()}")
    return usage.ru_utime + usage.ru_stime, process.returncode


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


def row(args: argparse.Namespace, program: Path | None, load: str, pattern: str, folder: str) -> tuple[str, str | None]:
    streams, rate = int(load.split("x")[0]), float(load.split("x")[1])
    with lean(RigConfig(decode_tok_s=rate, pattern=pattern, ttft_ms=20.0), cores={args.rig_core}) as rig:
        floors = []
        if program:
            floors.append(floor.measure(program, rig, streams, rate, args.seconds, args.core).cpu_us_per_event)
        own = stamping(rig, streams, rate, pattern, args.seconds, args.core)
        if program:
            floors.append(floor.measure(program, rig, streams, rate, args.seconds, args.core).cpu_us_per_event)
        least = sum(floors) / len(floors) if floors else None
        lengths = (args.seconds, 3 * args.seconds)
        whole: float | None = None
        others: list[str] = []
        try:
            whole = marginal_us(rig, flatout_command(rig.url, streams, rate, folder), args.core, lengths)
        except RuntimeError as error:
            others.append(f"flatout: {error}")
        for name in args.tools:
            try:
                command = peers.by_time(name, rig.url, streams, rate, folder, args.book)
                cost = marginal_us(rig, command, args.core, lengths, peers.offline(folder))
                others.append(f"{name} {cost:.1f}" + (f" ({cost / least:.1f} × the floor)" if least else ""))
            except (RuntimeError, peers.Absent) as error:
                others.append(f"{name}: {str(error)[:200]}")
    cells = (
        load.replace("x", " × "), pattern, f"{own.events_s:,.0f}", word(least), word(own.cpu_us),
        word(own.cpu_us / least if least else None), word(own.with_decode_us), word(whole),
        word(whole / least if whole and least else None), word(own.stamp_p50_us), word(own.stamp_p99_us),
        f"{own.late / own.reads:.2%}", f"{own.merged / own.reads:.2%}", str(own.dropped),
        f"{own.memory_mib:.0f} ({own.allowed_mib:.0f})",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |", "; ".join(others) or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="1x450,16x220,64x150,256x100,1000x50")
    parser.add_argument("--patterns", default="step,spread")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tools", default=",".join(peers.TOOLS))
    parser.add_argument("--rig-core", type=int, default=0)
    parser.add_argument("--core", type=int, default=1)
    args = parser.parse_args()
    args.tools = [name for name in args.tools.split(",") if name and name != "flatout"]
    absent = {name: why for name in args.tools if (why := peers.absent(name))}
    args.tools = [name for name in args.tools if name not in absent]
    for name, why in absent.items():
        print(f"{name}: skipped, {why}")
    print(f"CPU in µs an event; load average {os.getloadavg()[0]:.1f} at the start\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    remarks = []
    with tempfile.TemporaryDirectory() as folder, peers.book() as args.book:
        try:
            program = floor.compiled(Path(folder))
        except floor.NoCompiler as error:
            program = None
            remarks.append(f"no floor: {error}")
        for _ in range(args.rounds):
            for load in args.loads.split(","):
                for pattern in args.patterns.split(","):
                    line, others = row(args, program, load, pattern, folder)
                    print(line, flush=True)
                    if others:
                        remarks.append(f"{load} {pattern}: {others}")
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end")
    for remark in remarks:
        print(f"- {remark}")


if __name__ == "__main__":
    main()
