"""From samples of the machine to the figures of one time window: pure functions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Literal

from flatout.host.gpu import HARMFUL_REASONS, GpuReading

SERIES_POINTS = 120


@dataclass(frozen=True, slots=True)
class HostReading:
    """CPU time since the machine started, in seconds over all `cores`, and that of the watched processes.

    A process that cannot be read is None. `ram_used_bytes`: what is not available to a new process.
    """

    busy_s: float
    total_s: float
    cores: int
    ram_used_bytes: int | None = None
    process_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of everything, at `t_ns` on CLOCK_MONOTONIC."""

    t_ns: int
    host: HostReading
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class Stat:
    """Mean, smallest and largest of `samples` readings. A mean over readings at equal distances is one over time."""

    mean: float
    min: float
    max: float
    samples: int


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One GPU over the window. `throttle`: share of the samples (0..1) by reason; None where the sensor has none.

    `energy_j`: the difference of the GPU's own energy counter, or the integral of its power, as `energy_source` says.
    """

    use_percent: Stat | None = None
    memory_used_bytes: Stat | None = None
    sm_clock_mhz: Stat | None = None
    memory_clock_mhz: Stat | None = None
    power_w: Stat | None = None
    temperature_c: Stat | None = None
    throttle: dict[str, float] | None = None
    energy_j: float | None = None
    energy_source: Literal["counter", "integrated_power"] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A chart's line: seconds since the window's start, and the values; None where there was no reading."""

    t_s: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class TelemetrySummary:
    """The machine over one window. `missing`: for each field that is None (or GPUs that are not there), why.

    Over all GPUs: `power_w`, `energy_j` and `gpu_memory_used_bytes` are sums, `temperature_c` is of the hottest, use
    and clocks are means. `cpu_use_percent`: of all cores, 0..100. `process_cores`: CPU that each watched process used,
    in cores (1.0 = one core all the time). `throttle`: share of the samples in which any GPU gave the reason;
    `throttled_share`: in which any GPU gave a harmful one (see gpu.HARMFUL_REASONS).
    """

    t0_ns: int
    t1_ns: int
    interval_s: float
    samples: int
    cpu_use_percent: Stat | None = None
    ram_used_bytes: Stat | None = None
    process_cores: dict[str, Stat | None] = field(default_factory=dict)
    gpus: tuple[GpuSummary, ...] = ()
    gpu_use_percent: Stat | None = None
    gpu_memory_used_bytes: Stat | None = None
    sm_clock_mhz: Stat | None = None
    memory_clock_mhz: Stat | None = None
    power_w: Stat | None = None
    temperature_c: Stat | None = None
    throttle: dict[str, float] | None = None
    throttled_share: float | None = None
    energy_j: float | None = None
    energy_source: Literal["counter", "integrated_power"] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)


def summarise(
    samples: Sequence[Sample], t0_ns: int, t1_ns: int, *, interval_s: float, missing: Mapping[str, str]
) -> TelemetrySummary:
    """The summary of [t0_ns, t1_ns]; samples just outside are used to tell energy and CPU time at its edges.

    `samples` in order of time. `missing`: reasons that the sensors gave. Raises ValueError where t1_ns < t0_ns.
    """
    if t1_ns < t0_ns:
        raise ValueError(f"the window ends ({t1_ns}) before it starts ({t0_ns})")
    times = [sample.t_ns for sample in samples]
    first, last = bisect_left(times, t0_ns), bisect_right(times, t1_ns)
    inside = samples[first:last]
    if not inside:
        why = f"no sample fell into the window ({(t1_ns - t0_ns) / 1e9:.3g} s; one is taken every {interval_s:g} s)"
        return TelemetrySummary(t0_ns, t1_ns, interval_s, 0, missing={**missing, "samples": why})
    around = samples[max(0, first - 1) : last + 1]
    cpu, processes = _cpu_rates(samples[max(0, first - 1) : last])
    count = max(len(sample.gpus) for sample in around)
    gpus = tuple(_one_gpu(around, inside, index, t0_ns, t1_ns) for index in range(count))
    lines = _machine_lines(inside)
    throttle, throttled = _throttle([_reasons(sample) for sample in inside])
    energy, source = _total_energy(gpus)
    summary = TelemetrySummary(
        t0_ns,
        t1_ns,
        interval_s,
        len(inside),
        cpu_use_percent=_stat([rate for _, rate in cpu]),
        ram_used_bytes=_stat([sample.host.ram_used_bytes for sample in inside]),
        process_cores={name: _stat(rates) for name, rates in processes.items()},
        gpus=gpus,
        throttle=throttle,
        throttled_share=throttled,
        energy_j=energy,
        energy_source=source,
        missing=dict(missing),
        series=_series(inside, cpu, lines, t0_ns),
        **{name: _stat(values) for name, values in lines.items()},
    )
    _explain(summary, count)
    return summary


def _stat(values: Sequence[float | None]) -> Stat | None:
    known = [value for value in values if value is not None]
    return Stat(sum(known) / len(known), min(known), max(known), len(known)) if known else None


def _cpu_rates(samples: Sequence[Sample]) -> tuple[list[tuple[int, float]], dict[str, list[float | None]]]:
    """CPU use between neighbouring samples: (time of the later one, percent), and cores used by process."""
    use: list[tuple[int, float]] = []
    processes: dict[str, list[float | None]] = {name: [] for sample in samples for name in sample.host.process_s}
    for before, after in pairwise(samples):
        span = after.host.total_s - before.host.total_s
        if span > 0:
            use.append((after.t_ns, 100 * min(max((after.host.busy_s - before.host.busy_s) / span, 0.0), 1.0)))
        seconds = (after.t_ns - before.t_ns) / 1e9
        for name, rates in processes.items():
            then, now = before.host.process_s.get(name), after.host.process_s.get(name)
            if then is not None and now is not None and seconds > 0:
                rates.append(max(now - then, 0.0) / seconds)
    return use, processes


def _combined(
    sample: Sample, name: str, combine: Callable[[list[float]], float], *, every: bool = False
) -> float | None:
    """One figure over the GPUs of a sample; `every`: only where each of them gave one (a sum with a gap is wrong)."""
    values = [getattr(gpu, name) for gpu in sample.gpus]
    known = [float(value) for value in values if value is not None]
    return combine(known) if known and (not every or len(known) == len(values)) else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _machine_lines(samples: Sequence[Sample]) -> dict[str, list[float | None]]:
    return {
        "gpu_use_percent": [_combined(sample, "use_percent", _mean) for sample in samples],
        "gpu_memory_used_bytes": [_combined(sample, "memory_used_bytes", sum, every=True) for sample in samples],
        "sm_clock_mhz": [_combined(sample, "sm_clock_mhz", _mean) for sample in samples],
        "memory_clock_mhz": [_combined(sample, "memory_clock_mhz", _mean) for sample in samples],
        "power_w": [_combined(sample, "power_w", sum, every=True) for sample in samples],
        "temperature_c": [_combined(sample, "temperature_c", max) for sample in samples],
    }


def _reasons(sample: Sample) -> frozenset[str] | None:
    told = [gpu.throttle for gpu in sample.gpus if gpu.throttle is not None]
    return frozenset(reason for reasons in told for reason in reasons) if told else None


def _throttle(samples: Sequence[frozenset[str] | None]) -> tuple[dict[str, float] | None, float | None]:
    """Share of the samples by reason, and the share with any harmful one."""
    told = [reasons for reasons in samples if reasons is not None]
    if not told:
        return None, None
    names = sorted({name for reasons in told for name in reasons})
    shares = {name: sum(name in reasons for reasons in told) / len(told) for name in names}
    return shares, sum(bool(reasons & HARMFUL_REASONS) for reasons in told) / len(told)


_GPU_STATS = tuple(field.name for field in fields(GpuSummary) if field.type == "Stat | None")


def _one_gpu(around: Sequence[Sample], inside: Sequence[Sample], index: int, t0_ns: int, t1_ns: int) -> GpuSummary:
    readings = [sample.gpus[index] for sample in inside if index < len(sample.gpus)]
    throttle, _ = _throttle([frozenset(r.throttle) if r.throttle is not None else None for r in readings])
    there = [(sample.t_ns, sample.gpus[index]) for sample in around if index < len(sample.gpus)]
    counter = [(t_ns, reading.energy_mj / 1000) for t_ns, reading in there if reading.energy_mj is not None]
    power = [(t_ns, reading.power_w) for t_ns, reading in there if reading.power_w is not None]
    energy = counter_difference(counter, t0_ns, t1_ns)
    source: Literal["counter", "integrated_power"] | None = "counter"
    if energy is None:
        energy = integral(power, t0_ns, t1_ns)
        source = "integrated_power" if energy is not None else None
    stats = {name: _stat([getattr(reading, name) for reading in readings]) for name in _GPU_STATS}
    return GpuSummary(**stats, throttle=throttle, energy_j=energy, energy_source=source)


def _at(points: Sequence[tuple[int, float]], t_ns: int) -> float | None:
    """The line's value at a time, between the two points around it; None outside them."""
    times = [point[0] for point in points]
    after = bisect_left(times, t_ns)
    if after == len(points):
        return None
    if times[after] == t_ns:
        return points[after][1]
    if after == 0:
        return None
    (then, low), (now, high) = points[after - 1], points[after]
    return low + (high - low) * (t_ns - then) / (now - then)


def counter_difference(points: Sequence[tuple[int, float]], t0_ns: int, t1_ns: int) -> float | None:
    """How much a counter grew in the window, read between samples at its edges; None where they do not reach around
    the window, or where the counter fell (its GPU was reset)."""
    start, end = _at(points, t0_ns), _at(points, t1_ns)
    fell = any(later[1] < earlier[1] for earlier, later in pairwise(points))
    return None if start is None or end is None or fell else end - start


def integral(points: Sequence[tuple[int, float]], t0_ns: int, t1_ns: int) -> float | None:
    """Watts to joules: trapezoids between samples, cut at the window's edges; None where they do not reach around."""
    start, end = _at(points, t0_ns), _at(points, t1_ns)
    if start is None or end is None:
        return None
    line = [(t0_ns, start), *(point for point in points if t0_ns < point[0] < t1_ns), (t1_ns, end)]
    return sum((b[1] + a[1]) / 2 * (b[0] - a[0]) / 1e9 for a, b in pairwise(line))


def _total_energy(
    gpus: Sequence[GpuSummary],
) -> tuple[float | None, Literal["counter", "integrated_power"] | None]:
    """The sum, where every GPU has one; named after the weaker source."""
    known = [gpu.energy_j for gpu in gpus if gpu.energy_j is not None]
    if not known or len(known) < len(gpus):
        return None, None
    return sum(known), ("counter" if all(gpu.energy_source == "counter" for gpu in gpus) else "integrated_power")


def _series(
    inside: Sequence[Sample], cpu: Sequence[tuple[int, float]], lines: Mapping[str, list[float | None]], t0_ns: int
) -> dict[str, Series]:
    points: dict[str, list[tuple[int, float | None]]] = {"cpu_use_percent": [(t_ns, value) for t_ns, value in cpu]}
    for name, values in lines.items():
        points[name] = [(sample.t_ns, value) for sample, value in zip(inside, values, strict=True)]
    reasons = [(sample.t_ns, _reasons(sample)) for sample in inside]
    points["throttled"] = [(t, None if r is None else float(bool(r & HARMFUL_REASONS))) for t, r in reasons]
    return {
        name: downsampled(line, t0_ns) for name, line in points.items() if any(value is not None for _, value in line)
    }


def downsampled(points: Sequence[tuple[int, float | None]], t0_ns: int, most: int = SERIES_POINTS) -> Series:
    """At most `most` points: neighbours averaged in groups of nearly equal size."""
    groups = min(len(points), most)
    cuts = [len(points) * k // groups for k in range(groups + 1)] if groups else [0]
    times: list[float] = []
    values: list[float | None] = []
    for start, end in pairwise(cuts):
        known = [value for _, value in points[start:end] if value is not None]
        times.append((sum(t_ns - t0_ns for t_ns, _ in points[start:end]) / (end - start)) / 1e9)
        values.append(_mean(known) if known else None)
    return Series(tuple(times), tuple(values))


def _explain(summary: TelemetrySummary, gpus: int) -> None:
    """Every None gets its reason."""
    missing = summary.missing
    same = {
        "gpu_use_percent": "use_percent",
        "gpu_memory_used_bytes": "memory_used_bytes",
        "throttled_share": "throttle",
    }
    if summary.cpu_use_percent is None:
        missing.setdefault("cpu_use_percent", "one sample only; CPU use needs two")
    for name, stat in summary.process_cores.items():
        if stat is None:
            missing.setdefault(f"process_cores.{name}", "the process could not be read twice in the window")
    for name in (*_machine_lines(()), "throttle", "throttled_share", "energy_j"):
        if getattr(summary, name) is None:
            if gpus == 0:
                why = missing.get("gpus", "no GPU sensor")
            elif name == "energy_j" and summary.power_w is not None:
                why = "no samples on both sides of the window's edges"
            else:
                why = missing.get(same.get(name, name), "the GPU's sensor gave no value in the window")
            missing.setdefault(name, why)
