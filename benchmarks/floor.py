"""The floor of reading streams: a bare C epoll reader, compiled here, against the same sender as flatout.

    python benchmarks/floor.py [--load 64x150] [--pattern step] [--seconds 3]

Prints its CPU per event. `cost.py` sets flatout beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flatout.rig import RigConfig, RigHandle, running
from flatout.rig.truth import SENT, Truth

SOURCE = Path(__file__).with_name("floor.c")


@dataclass(frozen=True)
class Reading:
    """One reader's work over a span of a run. `events`: that the sender's log has in the span."""

    cpu_us_per_event: float
    events: int
    events_s: float
    reads: int


class NoCompiler(Exception):
    """There is no C compiler here, so there is no floor."""


def compiled(into: Path) -> Path:
    """The reader as a program. Raises NoCompiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("no C compiler (cc, gcc or clang) is installed")
    program = into / "floor"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True, timeout=60)
    return program


def request(url: str, tokens: int) -> bytes:
    """One streamed request, whole."""
    fields = {
        "model": "rig-model", "messages": [{"role": "user", "content": "How fast is it?"}], "max_tokens": tokens,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    body = json.dumps(fields).encode()
    where = urlsplit(url).netloc
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def sent_in(truth: Truth, open_ns: int, close_ns: int) -> int:
    inside = (truth.event_ns >= open_ns) & (truth.event_ns < close_ns) & ((truth.event_flags & SENT) > 0)
    return int(inside.sum())


def measure(
    program: Path, rig: RigHandle, streams: int, rate: float, seconds: float, core: int, *, ordinary: bool = False
) -> Reading:
    """The floor's cost over `seconds` of a steady load; the sender is set to the load already. `ordinary`: at ordinary
    priority, not at the load process's own."""
    rig.reset()
    where = urlsplit(rig.url)
    warm_s = 1.0 + streams / 1000
    pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    words = [*pin, str(program), where.hostname or "", str(where.port), str(streams), str(warm_s), str(seconds)]
    words.append("ordinary" if ordinary else "real-time")
    asked = request(rig.url, round(rate * (seconds + warm_s + 30)))
    done = subprocess.run(words, input=asked, capture_output=True, timeout=seconds + warm_s + 30)
    if done.returncode:
        raise RuntimeError(f"the floor reader failed: {done.stderr.decode().strip()}")
    found = json.loads(done.stdout)
    events = sent_in(rig.log(), found["open_ns"], found["close_ns"])
    span_s = (found["close_ns"] - found["open_ns"]) / 1e9
    return Reading(found["cpu_s"] * 1e6 / events, events, events / span_s, found["reads"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--load", default="64x150")
    parser.add_argument("--pattern", default="step", choices=("step", "spread"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rig-core", type=int, default=0)
    parser.add_argument("--core", type=int, default=1)
    args = parser.parse_args()
    streams, rate = (float(part) for part in args.load.split("x"))
    config = RigConfig(decode_tok_s=rate, pattern=args.pattern)
    with tempfile.TemporaryDirectory() as folder, running(config, cores={args.rig_core}, lean=True) as rig:
        found = measure(compiled(Path(folder)), rig, int(streams), rate, args.seconds, args.core)
    print(f"{args.load} {args.pattern}: {found.cpu_us_per_event:.2f} µs an event at {found.events_s:,.0f} events/s")


if __name__ == "__main__":
    main()
