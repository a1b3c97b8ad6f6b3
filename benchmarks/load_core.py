"""The load core against the rig's log: stamp error and CPU per event.

    python benchmarks/load_core.py [--seconds 4] [--rig-core 0] [--load-core 1] [--loads 64x150,256x100,1000x50]

Error = the load core's stamp of an event minus the rig's clock just before it sent it (same machine, same clock), so it
holds the rig's own time in `send`. CPU: user and system of the load process over a steady span, by the kernel's
accounting, divided by the events sent in that span; streams are long, so that it holds reading and, once 24 MiB of raw
bytes are held (in seconds at 1000x50), the decoding of what is beyond. The stop column is the rest of the decoding, an
event of the job. Ranges move with what else the machine does; `cost.py` parts reading from decoding.
"""

from __future__ import annotations

import argparse
import time
from urllib.parse import urlsplit

import numpy as np
import psutil

from flatout.calibrate.compare import stamps
from flatout.load.job import Endpoint, Job, Stream, Timeouts
from flatout.load.process import LoadPool
from flatout.protocol import Shape, body
from flatout.rig import RigConfig, running

RID = "0" * 40
COLUMNS = (
    "| load | pattern | events/s | CPU µs/event | stop µs/event | error p50 µs | p99 µs | max ms | lag p99 µs | late "
    "| merged |"
)


def job_for(url: str, streams: int, tokens: int) -> Job:
    where = urlsplit(url)
    shape = Shape(
        api="chat",
        model="rig-model",
        fields=(("stream_options.include_usage", True), ("stream_options.continuous_usage_stats", True)),
        id_field="request_id",
    )
    data = body(shape, "How fast is it?", tokens, request_id=RID)
    stream = Stream(body=data, asked_tokens=tokens, rid_offset=data.index(RID.encode()))
    return Job(
        name="bench",
        mode="closed",
        api="chat",
        endpoint=Endpoint("http", where.hostname or "", where.port or 0, "/v1/chat/completions"),
        timeouts=Timeouts(),
        streams=(stream,) * streams,
        rid_prefix="bench",
        keep_text=False,
    )


def measure(streams: int, rate: float, pattern: str, args: argparse.Namespace) -> str:
    config = RigConfig(dialect="vllm", decode_tok_s=rate, pattern=pattern, ttft_ms=30.0)
    tokens = int(rate * (args.seconds + 10))
    with running(config, cores={args.rig_core}) as rig, LoadPool(1, cores=[args.load_core]) as pool:
        pool.start(job_for(rig.url, streams, tokens))
        status = pool.wait(30.0, until=lambda s: s.started >= streams)
        if status.started < streams:
            raise SystemExit(f"only {status.started} of {streams} streams started: {status.last_error}")
        time.sleep(0.5)
        process = psutil.Process(pool.pids[0])
        begin_ns, begin = time.monotonic_ns(), process.cpu_times()
        time.sleep(args.seconds)
        end, end_ns = process.cpu_times(), time.monotonic_ns()
        outcome = pool.stop()
        after = process.cpu_times()
        truth = rig.log()
    inside = int(((truth.event_ns >= begin_ns) & (truth.event_ns < end_ns)).sum())
    cpu_us = (end.user + end.system - begin.user - begin.system) * 1e6 / inside
    stop_us = (after.user + after.system - end.user - end.system) * 1e6 / len(outcome.samples.t_ns)
    error = stamps(outcome.samples, truth, 0, 1 << 62).error_us
    check = outcome.checks[0]
    p50, p99 = np.percentile(error, [50, 99])
    return (
        f"| {streams} × {rate:g} | {pattern} | {inside / (end_ns - begin_ns) * 1e9:.0f} | {cpu_us:.1f} | {stop_us:.1f} "
        f"| {p50:.1f} | {p99:.1f} | {error.max() / 1e3:.2f} | {(check.lag_p99_ns or 0) / 1e3:.0f} | {check.late_reads} "
        f"| {check.merged_reads} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rig-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--loads", default="64x150,256x100,1000x50")
    parser.add_argument("--patterns", default="step,spread")
    args = parser.parse_args()
    print(COLUMNS)
    print("|" + "---|" * (COLUMNS.count("|") - 1))
    for load in args.loads.split(","):
        streams, rate = load.split("x")
        for pattern in args.patterns.split(","):
            print(measure(int(streams), float(rate), pattern, args), flush=True)


if __name__ == "__main__":
    main()
