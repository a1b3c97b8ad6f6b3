"""Does the self-check say so whenever the client, and not the server, made the number?

    python benchmarks/self_check.py [--seconds 3] [--load 16x200]

One load against the rig, undisturbed and with one disturbance a row: both cores kept busy, the reading process or the
rig frozen for a while. Beside each other: how far off the reading was from what the log says was sent, and whether the
self-check flagged the cell. A row is good if everything that is off is flagged and nothing else is.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from flatout.calibrate import bench, compare
from flatout.calibrate.bench import Scene
from flatout.calibration import Pair, Point
from flatout.load.process import LoadPool
from flatout.measure.checks import in_window
from flatout.measure.verdict import client_limits
from flatout.rig import RigConfig, RigHandle, running

GAP_MS = 2.0
"""A longest gap that is off by more than this shows a stall that the server did not have."""


@contextmanager
def frozen(pid: int, after_s: float, for_s: float) -> Iterator[None]:
    """The process stands still for a while inside the with block."""
    timers = [
        threading.Timer(after_s, os.kill, (pid, signal.SIGSTOP)),
        threading.Timer(after_s + for_s, os.kill, (pid, signal.SIGCONT)),
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.join()


@contextmanager
def busy(cores: list[int]) -> Iterator[None]:
    """A process on each core that never sleeps."""
    words = [sys.executable, "-c", "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"]
    hogs = [subprocess.Popen([*words, str(core)]) for core in cores]
    try:
        time.sleep(0.3)
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def off(point: Point) -> str | None:
    """What was read wrongly, None if all was right."""
    found = []
    rate = point.total_tok_s.relative
    if rate is None or abs(rate) > compare.RATE_ERROR:
        found.append(f"rate {percent(point.total_tok_s)}")
    if point.ttft_p50_ms.off is not None and abs(point.ttft_p50_ms.off) > compare.TTFT_ERROR_MS:
        found.append(f"TTFT {point.ttft_p50_ms.off:+.1f} ms")
    if point.itl_p50_ms.relative is not None and abs(point.itl_p50_ms.relative) > compare.ITL_ERROR:
        found.append(f"ITL p50 {percent(point.itl_p50_ms)}")
    gap = point.longest_gap_ms.off
    if gap is not None and abs(gap) > GAP_MS:
        found.append(f"longest gap {gap:+.0f} ms")
    if point.merged_share > compare.MERGED_SHARE:
        found.append(f"{point.merged_share:.0%} of the stamps")
    return ", ".join(found) or None


def percent(pair: Pair) -> str:
    return "–" if pair.relative is None else f"{pair.relative * 100:+.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--load", default="16x200")
    parser.add_argument("--rig-core", type=int, default=0)
    parser.add_argument("--core", type=int, default=1)
    args = parser.parse_args()
    streams, rate = int(args.load.split("x")[0]), float(args.load.split("x")[1])
    cores = [args.rig_core, args.core]
    cases: dict[str, Callable[[ExitStack, RigHandle, int], object]] = {
        "undisturbed": lambda stack, rig, pid: None,
        "both cores busy": lambda stack, rig, pid: stack.enter_context(busy(cores)),
        "reader frozen 50 ms": lambda stack, rig, pid: stack.enter_context(frozen(pid, 1.0, 0.05)),
        "reader frozen 0.3 s": lambda stack, rig, pid: stack.enter_context(frozen(pid, 1.0, 0.3)),
        "reader frozen 1.5 s": lambda stack, rig, pid: stack.enter_context(frozen(pid, 1.0, 1.5)),
        "rig frozen 1 s": lambda stack, rig, pid: stack.enter_context(frozen(rig.pid, 1.0, 1.0)),
    }
    print(f"{args.load}, window {args.seconds:g} s; load average {os.getloadavg()[0]:.1f}\n")
    print("| disturbance | read wrongly | merged events | self-check says | good |\n|---|---|---|---|---|")
    for name, disturb in cases.items():
        scene = Scene(name, "scale", streams, rate, lean=True, answers_s=1.0)
        with (
            running(RigConfig(), cores={args.rig_core}, lean=True) as rig,
            LoadPool(1, [args.core]) as pool,
            ExitStack() as stack,
        ):
            disturb(stack, rig, pool.pids[0])
            loaded = bench.load(scene, rig, pool, args.seconds)
        point = bench.point(scene, loaded)
        checks = in_window(loaded.outcome.checks, loaded.open_ns, loaded.close_ns)
        said = [text for check in checks for text in client_limits(check)]
        wrong = off(point)
        good = "yes" if bool(wrong) == bool(said) else "NO"
        print(f"| {name} | {wrong or 'nothing'} | {point.merged_share:.1%} | {'; '.join(said) or 'nothing'} | {good} |")


if __name__ == "__main__":
    main()
