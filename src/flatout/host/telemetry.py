"""What the machine did while a cell was measured: a thread that reads the sensors, and summaries of time windows.

A sample without a GPU costs well under 1 ms of CPU (`Sampler.cost_ms` says how much), so at the default of two samples
a second the measuring machine loses less than 0.2 % of one core.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from flatout.host.gpu import GpuReading, GpuSensor, open_sensor
from flatout.host.summary import HostReading, Sample, TelemetrySummary, summarise

DEFAULT_INTERVAL_S = 0.5
_KEPT_SAMPLES = 20_000  # 2.7 hours at the default; a cell's window is summarised as soon as it ends
_CHILDREN_EVERY_S = 10.0


class HostSensor(Protocol):
    """Where CPU and memory readings come from. `processes`: name to process id. Must not raise."""

    def read(self, processes: Mapping[str, int]) -> HostReading: ...


class PsutilHost:
    """CPU, memory and process times by psutil. A process stands for itself and its children: engines compute in
    worker processes. The list of children is renewed every ten seconds, since that costs more than all the rest."""

    def __init__(self) -> None:
        import psutil  # type: ignore[import-untyped, unused-ignore]

        self._psutil: Any = psutil
        self._trees: dict[int, dict[int, Any]] = {}
        self._seconds: dict[tuple[int, int], float] = {}
        self._renewed_s = 0.0

    def read(self, processes: Mapping[str, int]) -> HostReading:
        times = self._psutil.cpu_times()
        # Linux counts guest time inside user time, and waiting for I/O is idle time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        now = time.monotonic()
        if now - self._renewed_s >= _CHILDREN_EVERY_S or any(pid not in self._trees for pid in processes.values()):
            self._renewed_s = now
            self._trees = {pid: self._family(pid) for pid in processes.values()}
        return HostReading(
            busy_s=total - idle,
            total_s=total,
            cores=self._psutil.cpu_count() or 1,
            ram_used_bytes=self._ram_used(),
            process_s={name: self._process_s(pid) for name, pid in processes.items()},
        )

    def _ram_used(self) -> int | None:
        memory = self._psutil.virtual_memory()
        return int(memory.total - memory.available)

    def _family(self, pid: int) -> dict[int, Any]:
        try:
            parent = self._psutil.Process(pid)
            family = {pid: parent}
        except self._psutil.Error:
            return {}
        with suppress(self._psutil.Error):
            family.update({child.pid: child for child in parent.children(recursive=True)})
        return family

    def _process_s(self, pid: int) -> float | None:
        """CPU seconds of a process and its children so far; what a child that has ended used stays counted."""
        alive = False
        for child, process in self._trees.get(pid, {}).items():
            with suppress(self._psutil.Error):
                used = process.cpu_times()
                self._seconds[pid, child] = used.user + used.system
                alive = alive or child == pid
        return sum(s for (parent, _), s in self._seconds.items() if parent == pid) if alive else None


class Sampler:
    """Samples the machine in a background thread until stopped.

    `processes`: name to process id (the server, the load processes); `watch` adds one later. `gpu`: None looks for the
    machine's own sensor at `start`; tests give a simulated one. `gpu_indices`: the GPUs that the server uses, all where
    None. Times are CLOCK_MONOTONIC in nanoseconds, as everywhere.
    """

    def __init__(
        self,
        interval_s: float = DEFAULT_INTERVAL_S,
        *,
        processes: Mapping[str, int] | None = None,
        gpu: GpuSensor | None = None,
        gpu_indices: Sequence[int] | None = None,
        host: HostSensor | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not 0.01 <= interval_s <= 60:
            raise ValueError(f"the sampling interval must be between 0.01 and 60 s, not {interval_s}")
        self._interval_s = interval_s
        self._processes = dict(processes or {})
        self._gpu = gpu
        self._gpu_indices = tuple(gpu_indices) if gpu_indices is not None else None
        self._gpu_reason: str | None = None
        self._host = host
        self._clock_ns = clock_ns
        self._samples: deque[Sample] = deque(maxlen=_KEPT_SAMPLES)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cost_ns = 0
        self._taken = 0

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Open the sensors, take the first sample, and go on in the background. A second call does nothing."""
        if self._thread is not None:
            return
        self.open()
        self.sample()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="flatout-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread (waits at most 5 s for a sensor that hangs) and close the sensor; the samples stay."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join(5.0)
        if not thread.is_alive() and self._gpu is not None:
            self._gpu.close()

    def watch(self, name: str, pid: int) -> None:
        """Sample this process from now on, under this name."""
        with self._lock:
            self._processes = {**self._processes, name: pid}

    @property
    def cost_ms(self) -> float | None:
        """Mean CPU time of one sample in the sampling thread, None before the first."""
        return self._cost_ns / self._taken / 1e6 if self._taken else None

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    def open(self) -> None:
        """Find the sensors; `start` does it. None of them has to be there."""
        if self._host is None:
            self._host = PsutilHost()
        if self._gpu is None:
            self._gpu, self._gpu_reason = open_sensor()

    def sample(self) -> None:
        """Take one sample now. At most one is taken at a time; waits up to 2 s for one under way."""
        if self._host is None or not self._lock.acquire(timeout=2.0):
            return
        try:
            started = time.thread_time_ns()
            host = self._host.read(self._processes)
            gpus = self._read_gpus()
            self._samples.append(Sample(self._clock_ns(), host, gpus))
            self._cost_ns += time.thread_time_ns() - started
            self._taken += 1
        finally:
            self._lock.release()

    def _read_gpus(self) -> tuple[GpuReading, ...]:
        if self._gpu is None:
            return ()
        try:
            readings = self._gpu.read()
        except Exception as error:  # a driver that fails in mid-run must not take the other sensors with it
            self._gpu_reason = f"the GPU's sensor failed: {error or type(error).__name__}"
            return ()
        if self._gpu_indices is None:
            return readings
        return tuple(readings[index] for index in self._gpu_indices if 0 <= index < len(readings))

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._interval_s, time.monotonic())
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self.sample()

    def window(self, t0_ns: int, t1_ns: int) -> TelemetrySummary:
        """The summary of [t0_ns, t1_ns]. Takes a sample now where the last one is older than the window's end."""
        last = self._samples[-1].t_ns if self._samples else 0
        if self._thread is not None and last < t1_ns <= self._clock_ns():
            self.sample()
        missing = dict(self._gpu.missing()) if self._gpu is not None else {}
        if self._gpu_reason is not None:
            missing["gpus"] = self._gpu_reason
        return summarise(self.samples, t0_ns, t1_ns, interval_s=self._interval_s, missing=missing)
