"""The machine, its sensors and the process behind a port: real where this machine has them, else simulated."""

from __future__ import annotations

import enum
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.host import gpu as gpu_room
from flatout.host.gpu import (
    NVML_REASONS,
    AmdSensor,
    GpuFacts,
    GpuReading,
    NvidiaSensor,
    amd_facts_from_sysfs,
    decode_nvml_reasons,
    grouped,
    open_sensor,
)
from flatout.host.hardware import HardwareError, HardwareSpec, hardware_from, hardware_of
from flatout.host.local import is_local, listening_process, process_info
from flatout.host.machine import (
    cgroup_cpu_limit,
    cgroup_memory_limit,
    classify,
    container,
    cpu_model,
    describe,
    virtualisation,
)
from flatout.host.summary import (
    HostReading,
    Sample,
    counter_difference,
    downsampled,
    integral,
    summarise,
)
from flatout.host.telemetry import PsutilHost, Sampler

S = 1_000_000_000


# --- facts --------------------------------------------------------------------------------------------------------


def test_this_machine() -> None:
    machine = describe()
    assert machine.ram_bytes == psutil.virtual_memory().total
    assert machine.logical_cores == psutil.cpu_count()
    assert machine.usable_cores is not None and 0 < machine.usable_cores <= (machine.logical_cores or 0)
    assert machine.python == ".".join(map(str, sys.version_info[:3]))
    assert machine.gpu_count == sum(gpu.count for gpu in machine.gpus)
    assert (machine.kind == "cpu_only") == (not machine.gpus)
    for name in ("cpu_model", "physical_cores", "os", "kernel"):
        assert getattr(machine, name) is not None or machine.missing[name]
    assert machine.gpus or machine.missing["gpus"]
    assert "uuid" not in {f.name for f in fields(GpuFacts)}


def _write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cgroup_version_2_takes_the_lowest_limit_above(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/a/b/memory.max": "2147483648\n",
            "sys/fs/cgroup/a/memory.max": "max\n",
        },
    )
    assert cgroup_cpu_limit(root) == 2.5
    assert cgroup_memory_limit(root) == 2**31


def test_cgroup_version_1(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup_cpu_limit(root) == 0.5
    assert cgroup_memory_limit(root) is None


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_cpu_limit(tmp_path) is None
    assert cgroup_memory_limit(tmp_path) is None


def test_processor_container_and_hypervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    root = _write(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name\t: AMD  EPYC 9654\nflags\t\t: fpu hypervisor avx\n",
            "sys/class/dmi/id/sys_vendor": "QEMU\n",
            "run/.containerenv": "",
        },
    )
    assert cpu_model(root) == "AMD EPYC 9654"
    assert virtualisation(root) == "QEMU"
    assert container(root) == "podman"
    bare = _write(tmp_path / "bare", {"proc/cpuinfo": "flags : fpu avx\n", "proc/device-tree/model": "Jetson\0"})
    assert virtualisation(bare) is None and container(bare) is None and cpu_model(bare) == "Jetson"


def test_unified_memory_is_told_apart() -> None:
    assert classify(())[0] == "cpu_only"
    assert classify((GpuFacts("nvidia", "H200"),))[0] == "discrete_gpu"
    assert classify((GpuFacts("nvidia", "GB10", memory="shared"),))[0] == "unified_memory"
    assert classify((GpuFacts("nvidia", "GH200", memory="coherent"),))[0] == "unified_memory"


def test_equal_gpus_are_counted() -> None:
    small, large = GpuFacts("nvidia", "L4"), GpuFacts("nvidia", "H200")
    assert grouped([large, small, large]) == (GpuFacts("nvidia", "H200", count=2), small)


def test_amd_from_the_kernel(tmp_path: Path) -> None:
    card = "sys/class/drm/card1/device/"
    other = "sys/class/drm/card0/device/vendor"
    root = _write(
        tmp_path, {card + "vendor": "0x1002\n", card + "mem_info_vram_total": "17163091968\n", other: "0x8086\n"}
    )
    assert amd_facts_from_sysfs(root) == (GpuFacts("amd", None, memory_bytes=17163091968),)
    assert amd_facts_from_sysfs(root, apu=True)[0].memory == "shared"


# --- NVML and amdsmi, simulated at the library's own functions -------------------------------------------------------


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with one GPU; change the dict to change the GPU. A value that is an int error code is raised."""
    card: dict[str, Any] = {
        "nvmlDeviceGetName": b"NVIDIA H200 NVL",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150754820096, used=4096),
        "nvmlDeviceGetAddressingMode": 0,
        "nvmlDeviceGetEnforcedPowerLimit": 600000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetPowerUsage": 512345,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
        "nvmlDeviceGetTotalEnergyConsumption": 123456,
        "nvmlDeviceGetClockInfo": 1785,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=77)],
    }

    def answer(name: str) -> Any:
        def call(*_: Any) -> Any:
            value = card[name]
            if isinstance(value, pynvml.NVMLError):
                card[name + ".asked"] = card.get(name + ".asked", 0) + 1
                raise value
            return value

        return call

    for name in card:
        monkeypatch.setattr(pynvml, name, answer(name))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.65.06")
    return card


def test_nvidia_facts_and_readings(nvml: dict[str, Any]) -> None:
    sensor, reason = open_sensor()
    assert isinstance(sensor, NvidiaSensor) and reason is None
    assert sensor.facts() == (GpuFacts("nvidia", "NVIDIA H200 NVL", 1, 150754820096, "own", "580.65.06", 600.0),)
    assert sensor.read() == (
        GpuReading(97.0, 4096, 1785.0, 1785.0, 512.345, 61.0, ("power_cap", "software_thermal"), 123456),
    )
    assert sensor.used_by([1, 77]) == (0,) and sensor.used_by([1]) is None
    assert sensor.missing() == {}
    machine = describe()
    assert machine.kind == "discrete_gpu" and machine.gpu_count == 1 and "gpus" not in machine.missing


def test_what_nvidia_does_not_support_is_none_with_a_reason_and_asked_once(nvml: dict[str, Any]) -> None:
    card = nvml
    card["nvmlDeviceGetMemoryInfo"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    card["nvmlDeviceGetName"] = "NVIDIA GB10"
    card["nvmlDeviceGetPowerUsage"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    sensor = NvidiaSensor()
    assert sensor.facts()[0].memory == "shared" and sensor.facts()[0].memory_bytes is None
    for _ in range(5):
        reading = sensor.read()[0]
        assert reading.memory_used_bytes is None and reading.power_w is None and reading.use_percent == 97.0
    assert card["nvmlDeviceGetMemoryInfo.asked"] == 2  # once for the facts, once for the readings
    assert card["nvmlDeviceGetPowerUsage.asked"] == 5  # a lost GPU may come back
    assert set(sensor.missing()) >= {"memory_used_bytes", "power_w"}
    assert describe().kind == "unified_memory"


def test_coherent_memory_by_addressing_mode_and_by_name(nvml: dict[str, Any]) -> None:
    card = nvml
    card["nvmlDeviceGetAddressingMode"] = pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS
    assert NvidiaSensor().facts()[0].memory == "coherent"
    card["nvmlDeviceGetAddressingMode"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    card["nvmlDeviceGetName"] = "NVIDIA GH200 480GB"
    assert NvidiaSensor().facts()[0].memory == "coherent"


def test_reason_names_match_nvml() -> None:
    named = {name: value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksEventReason")}
    named |= {name: value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksThrottleReason")}
    single = {value for value in named.values() if value and value & (value - 1) == 0}
    assert single <= set(NVML_REASONS)
    assert NVML_REASONS[pynvml.nvmlClocksEventReasonHwThermalSlowdown] == "hardware_thermal"
    assert NVML_REASONS[pynvml.nvmlClocksEventReasonSwPowerCap] == "power_cap"


@given(st.integers(-(2**70), 2**70))
def test_every_reason_bit_is_named(bits: int) -> None:
    names = decode_nvml_reasons(bits)
    assert len(names) == (bits.bit_count() if bits > 0 else 0) == len(set(names))


def _fake_amdsmi() -> ModuleType:
    class AmdSmiVramType(enum.IntEnum):
        HBM3 = 5
        DDR4 = 12
        GDDR6 = 18

    smi = ModuleType("amdsmi")
    answers: dict[str, Any] = {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": ["h"],
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 1000},
        "amdsmi_get_gpu_vram_info": {"vram_type": AmdSmiVramType.HBM3},
        "amdsmi_get_power_cap_info": {"power_cap": 750000000},
        "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
        "amdsmi_get_gpu_activity": {"gfx_activity": 88},
        "amdsmi_get_clock_info": {"clk": 2100},
        "amdsmi_get_temp_metric": 55,
        "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 420},
        "amdsmi_get_energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "amdsmi_get_violation_status": {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"},
    }
    for name, value in answers.items():
        setattr(smi, name, lambda *_, value=value: value)
    smi.AmdSmiVramType = AmdSmiVramType  # type: ignore[attr-defined]
    smi.AmdSmiClkType = enum.IntEnum("AmdSmiClkType", "GFX MEM")  # type: ignore[attr-defined]
    smi.AmdSmiTemperatureType = enum.IntEnum("AmdSmiTemperatureType", "EDGE HOTSPOT")  # type: ignore[attr-defined]
    smi.AmdSmiTemperatureMetric = enum.IntEnum("AmdSmiTemperatureMetric", "CURRENT")  # type: ignore[attr-defined]
    return smi


def test_amd_facts_and_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = _fake_amdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    sensor = AmdSensor()
    assert sensor.facts() == (GpuFacts("amd", "AMD Instinct MI300X", 1, 196592 * 2**20, "own", "6.12.12", 750.0),)
    assert sensor.read() == (GpuReading(88.0, 1000 * 2**20, 2100.0, 2100.0, 420.0, 55.0, ("power_cap",), 15300),)
    monkeypatch.setattr(smi, "amdsmi_get_gpu_asic_info", lambda _: {"market_name": "Radeon 8060S Graphics"})
    monkeypatch.setattr(smi, "amdsmi_get_energy_count", lambda _: 1 / 0)
    assert sensor.facts()[0].memory == "shared"
    assert sensor.read()[0].energy_mj is None and "division" in sensor.missing()["energy_mj"]


def test_apple_is_unified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_room.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(gpu_room.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(
        gpu_room, "sysctl", {"hw.memsize": "137438953472", "machdep.cpu.brand_string": "Apple M4 Max"}.get
    )
    facts = gpu_room.apple_facts()
    assert facts == (GpuFacts("apple", "Apple M4 Max", memory_bytes=2**37, memory="shared"),)
    assert classify(facts)[0] == "unified_memory"


# --- telemetry ----------------------------------------------------------------------------------------------------


@dataclass
class FakeGpu:
    """Gives the next reading of a list, the last one for ever."""

    readings: list[tuple[GpuReading, ...]]
    why: dict[str, str] = field(default_factory=dict)
    closed: bool = False
    broken: bool = False

    def read(self) -> tuple[GpuReading, ...]:
        if self.broken:
            raise RuntimeError("GPU is lost")
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def missing(self) -> dict[str, str]:
        return self.why

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeHost:
    """Two cores, one of them busy; the process uses half a core."""

    clock: FakeClock

    def read(self, processes: Mapping[str, int]) -> HostReading:
        now = self.clock.now_ns / S
        return HostReading(
            now, 2 * now, 2, 1000, {name: now / 2 if pid > 0 else None for name, pid in processes.items()}
        )


@dataclass
class FakeClock:
    now_ns: int = 10 * S

    def __call__(self) -> int:
        return self.now_ns


def _sampler(readings: list[tuple[GpuReading, ...]], **more: Any) -> tuple[Sampler, FakeClock]:
    clock = FakeClock()
    sampler = Sampler(
        0.5, gpu=FakeGpu(readings), host=FakeHost(clock), clock_ns=clock, processes={"server": 1, "gone": -1}, **more
    )
    sampler.open()
    return sampler, clock


def test_a_throttled_gpu_is_seen_with_its_share_of_the_time() -> None:
    cool = GpuReading(90.0, 100, 1980.0, 2619.0, 400.0, 60.0, ("power_cap",), None)
    hot = GpuReading(90.0, 100, 1200.0, 2619.0, 300.0, 88.0, ("power_cap", "hardware_thermal"), None)
    sampler, clock = _sampler([(cool,)] * 5 + [(hot,)] * 4 + [(cool,)])
    for _ in range(11):
        sampler.sample()
        clock.now_ns += S // 2
    seen = sampler.window(10 * S + 1, 15 * S)
    assert seen.samples == 10
    assert seen.throttle == {"power_cap": 1.0, "hardware_thermal": pytest.approx(0.4)}
    assert seen.throttled_share == pytest.approx(0.4)
    assert seen.temperature_c is not None and seen.temperature_c.max == 88.0
    assert seen.sm_clock_mhz is not None and seen.sm_clock_mhz.min == 1200.0
    assert seen.cpu_use_percent is not None and seen.cpu_use_percent.mean == pytest.approx(50.0)
    assert seen.process_cores["server"] is not None and seen.process_cores["server"].mean == pytest.approx(0.5)
    assert seen.process_cores["gone"] is None and "process_cores.gone" in seen.missing
    assert seen.energy_source == "integrated_power"
    assert seen.series["sm_clock_mhz"].values[4:8] == (1200.0,) * 4
    json.dumps(seen.missing)


def test_power_cap_alone_is_not_throttling_and_idle_is_none() -> None:
    sampler, clock = _sampler(
        [(GpuReading(throttle=("power_cap",)),), (GpuReading(throttle=("gpu_idle",)),), (GpuReading(throttle=()),)]
    )
    for _ in range(3):
        sampler.sample()
        clock.now_ns += S // 2
    seen = sampler.window(10 * S, 12 * S)
    assert seen.throttled_share == 0.0
    assert seen.throttle == {"power_cap": pytest.approx(1 / 3), "gpu_idle": pytest.approx(1 / 3)}


def test_energy_from_the_counter_and_over_two_gpus() -> None:
    readings = [(GpuReading(power_w=999.0, energy_mj=1000 * k * 150), GpuReading(power_w=100.0)) for k in range(9)]
    sampler, clock = _sampler(list(readings))
    for _ in range(9):
        sampler.sample()
        clock.now_ns += S // 2
    seen = sampler.window(10 * S + S // 4, 13 * S + S // 4)  # 3 s: 300 W by the counter, 100 W by its power
    assert [gpu.energy_source for gpu in seen.gpus] == ["counter", "integrated_power"]
    assert seen.gpus[0].energy_j == pytest.approx(900.0) and seen.gpus[1].energy_j == pytest.approx(300.0)
    assert seen.energy_j == pytest.approx(1200.0) and seen.energy_source == "integrated_power"
    assert seen.power_w is not None and seen.power_w.mean == pytest.approx(1099.0)
    chosen, clock = _sampler(list(readings), gpu_indices=[1])
    chosen.sample()
    assert [len(sample.gpus) for sample in chosen.samples] == [1]


def test_missing_is_none_with_a_reason_never_zero() -> None:
    sampler, clock = _sampler([(GpuReading(use_percent=50.0),)])
    assert isinstance(sampler._gpu, FakeGpu)
    sampler._gpu.why = {"power_w": "NVML: Not Supported"}
    for _ in range(3):
        sampler.sample()
        clock.now_ns += S // 2
    seen = sampler.window(10 * S, 11 * S)
    assert seen.power_w is None and seen.missing["power_w"] == "NVML: Not Supported"
    assert seen.energy_j is None and seen.missing["energy_j"]
    assert seen.throttle is None and seen.throttled_share is None and seen.missing["throttled_share"]
    assert "power_w" not in seen.series and "throttled" not in seen.series
    empty = sampler.window(50 * S, 51 * S)
    assert empty.samples == 0 and empty.cpu_use_percent is None and "no sample" in empty.missing["samples"]
    with pytest.raises(ValueError, match="before it starts"):
        sampler.window(2, 1)


def test_a_sensor_that_fails_in_mid_run_takes_nothing_else_with_it() -> None:
    sampler, clock = _sampler([(GpuReading(use_percent=50.0),)])
    for step in range(6):
        assert isinstance(sampler._gpu, FakeGpu)
        sampler._gpu.broken = step >= 2
        sampler.sample()
        clock.now_ns += S // 2
    seen = sampler.window(10 * S, 13 * S)
    assert seen.samples == 6 and seen.gpu_use_percent is not None and seen.gpu_use_percent.samples == 2
    assert seen.cpu_use_percent is not None and seen.cpu_use_percent.samples == 5
    assert "GPU is lost" in seen.missing["gpus"]


def test_the_thread_runs_stops_and_closes() -> None:
    gpu = FakeGpu([(GpuReading(use_percent=1.0),)])
    sampler = Sampler(0.02, gpu=gpu, processes={"me": os.getpid()})
    t0_ns = time.monotonic_ns()
    with sampler:
        limit = time.monotonic() + 20
        while len(sampler.samples) < 5 and time.monotonic() < limit:
            time.sleep(0.01)
        t1_ns = time.monotonic_ns()
        seen = sampler.window(t0_ns, t1_ns)
        assert sampler.samples[-1].t_ns >= t1_ns  # the window's end is covered
    assert seen.samples >= 5 and seen.ram_used_bytes is not None
    assert all(t0_ns <= sample.t_ns for sample in sampler.samples)
    assert gpu.closed and sampler.cost_ms is not None
    count = len(sampler.samples)
    sampler.stop()
    time.sleep(0.1)
    assert len(sampler.samples) == count
    with pytest.raises(ValueError, match="interval"):
        Sampler(0)


def test_process_time_is_what_the_process_really_used() -> None:
    host = PsutilHost()
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass\ninput()"], stdin=subprocess.PIPE
    )
    try:
        before, own = host.read({"me": os.getpid(), "no": 2**22 + 5}), time.process_time()
        limit = time.monotonic() + 30
        while sum(psutil.Process(child.pid).cpu_times()[:2]) < 0.3 and time.monotonic() < limit:
            time.sleep(0.02)
        while time.process_time() - own < 0.2:
            pass
        after = host.read({"me": os.getpid(), "no": 2**22 + 5})
        used = (after.process_s["me"] or 0) - (before.process_s["me"] or 0)
        most = time.process_time() - own + sum(psutil.Process(child.pid).cpu_times()[:2])
        assert 0.2 + 0.3 - 0.1 <= used <= most + 0.05  # the kernel counts in steps of 10 ms
        assert before.process_s["no"] is None
        assert after.total_s > before.total_s and after.busy_s >= before.busy_s
    finally:
        child.kill()
        child.wait(10)


_LINE = st.lists(
    st.tuples(st.integers(0, 10**9), st.floats(0, 1000)), min_size=2, max_size=20, unique_by=lambda p: p[0]
).map(sorted)


@given(_LINE, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_energy_adds_up(line: list[tuple[int, float]], a: float, b: float, c: float) -> None:
    low, high = line[0][0], line[-1][0]
    t0, t1, t2 = sorted(low + int((high - low) * part) for part in (a, b, c))
    parts, whole = [integral(line, t0, t1), integral(line, t1, t2)], integral(line, t0, t2)
    assert None not in parts and whole == pytest.approx(sum(p for p in parts if p is not None), abs=1e-6)
    most = max(value for _, value in line) * (t2 - t0) / 1e9
    assert whole is not None and -1e-9 <= whole <= most + 1e-6
    assert integral(line, low - 1, high) is None and integral(line, low, high + 1) is None


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_counter_difference(steps: list[int], a: float, b: float) -> None:
    points, total = [], 0
    for k, step in enumerate(steps):
        total += step
        points.append((k * S, float(total)))
    t0, t1 = sorted(int(points[-1][0] * part) for part in (a, b))
    grown = counter_difference(points, t0, t1)
    assert grown is not None and -1e-6 <= grown <= total - steps[0] + 1e-6
    assert counter_difference([*points, (points[-1][0] + S, -1.0)], t0, t1) is None


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=500), st.integers(1, 120))
def test_series_are_short_and_within_the_values(values: list[float | None], most: int) -> None:
    series = downsampled([(k * S, value) for k, value in enumerate(values)], 0, most)
    assert len(series.values) == len(series.t_s) == min(len(values), most)
    assert list(series.t_s) == sorted(series.t_s)
    known = [value for value in values if value is not None]
    shown = [value for value in series.values if value is not None]
    assert bool(known) == bool(shown)
    assert all(min(known) - 1e-6 <= value <= max(known) + 1e-6 for value in shown)


_READING = st.builds(
    GpuReading,
    use_percent=st.none() | st.floats(0, 100),
    power_w=st.none() | st.floats(0, 1000),
    throttle=st.none() | st.lists(st.sampled_from(["gpu_idle", "power_cap", "power_brake"]), unique=True).map(tuple),
    energy_mj=st.none() | st.integers(0, 10**9),
)
_HOSTS = st.builds(HostReading, st.floats(0, 1e6), st.floats(0, 1e6), st.just(2), st.none() | st.integers(0, 2**40))


@given(
    st.lists(st.tuples(st.integers(0, 10**10), _HOSTS, st.lists(_READING, max_size=3).map(tuple)), max_size=12),
    st.integers(0, 10**10),
    st.integers(0, 10**10),
)
def test_a_summary_explains_every_gap(
    raw: list[tuple[int, HostReading, tuple[GpuReading, ...]]], a: int, b: int
) -> None:
    samples = [Sample(*entry) for entry in sorted(raw, key=lambda entry: entry[0])]
    seen = summarise(samples, min(a, b), max(a, b), interval_s=0.5, missing={})
    assert seen.samples == sum(min(a, b) <= sample.t_ns <= max(a, b) for sample in samples)
    if seen.samples == 0:
        assert set(seen.missing) == {"samples"}
        return
    for name in ("cpu_use_percent", "gpu_use_percent", "power_w", "throttle", "throttled_share", "energy_j"):
        assert (getattr(seen, name) is None) == (name in seen.missing)
    assert seen.throttled_share is None or 0 <= seen.throttled_share <= 1
    assert all(len(series.values) <= 120 for series in seen.series.values())


# --- hardware by hand ---------------------------------------------------------------------------------------------


def test_hardware_by_hand_and_from_files(tmp_path: Path) -> None:
    wanted = HardwareSpec(
        "discrete_gpu", "H200 NVL", 2, 141.0, "580.65", 600.0, "EPYC 9654, 96 cores", 96, 768.0, "Ubuntu 24.04"
    )
    by_hand = (
        "type=Discrete GPU, gpu=H200 NVL,gpu-count=2,memory_gb=141,driver='580.65',power_limit_w=600,"
        "cpu=EPYC 9654, 96 cores,cores=96,ram_gb=768,os=Ubuntu 24.04"
    )
    assert hardware_from(by_hand) == wanted
    toml = tmp_path / "server.toml"
    toml.write_text(
        '[hardware]\ntype = "discrete_gpu"\ngpu = "H200 NVL"\ngpu_count = 2\nmemory_gb = 141\ndriver = "580.65"\n'
        'power_limit_w = 600\ncpu = "EPYC 9654, 96 cores"\ncores = 96\nram_gb = 768\nos = "Ubuntu 24.04"\n'
    )
    assert hardware_from(toml) == hardware_from(str(toml)) == wanted
    plain = tmp_path / "server.json"
    plain.write_text(json.dumps({"type": "cpu", "cpu": "M", "ram_gb": 24.5}))
    assert hardware_from(str(plain)) == HardwareSpec("cpu_only", cpu="M", ram_gb=24.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("H200", "no file and not key=value"),
        ("gpux=H200", "did you mean gpu?"),
        ("colour=red", "known are"),
        ("type=big", "discrete_gpu, unified_memory or cpu_only"),
        ("gpu=A,gpu_count=1.5", "whole number above 0"),
        ("gpu=A,memory_gb=-1", "number above 0"),
        ("memory_gb=nan", "number above 0"),
        ("ram_gb=many", "number above 0"),
        ("gpu=", "gpu must be text"),
        ("gpu=A,gpu=B", "given twice"),
        ("gpu_count=2", "needs gpu"),
        ("type=cpu_only,gpu=A", "cpu_only but a GPU"),
        ("nowhere/server.toml", "cannot be read"),
    ],
)
def test_wrong_hardware_says_what_to_do(text: str, words: str) -> None:
    with pytest.raises(HardwareError) as caught:
        hardware_from(text)
    assert words in str(caught.value) and str(caught.value).startswith("--hardware")


@pytest.mark.parametrize(
    ("name", "content"), [("a.toml", b"gpu = "), ("a.json", b"[1]"), ("a.json", b"{"), ("b.toml", b"\xff")]
)
def test_broken_hardware_files(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(HardwareError, match="--hardware"):
        hardware_from(path)


@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(st.sampled_from(["gpu", "=", ",", "type", "cpu", " ", "1", "a.json", "\0", "~"])).map("".join),
    )
)
def test_any_hardware_text_gives_a_spec_or_a_clear_error(text: str) -> None:
    try:
        spec = hardware_from(text)
    except HardwareError as error:
        assert str(error).startswith("--hardware")
    else:
        assert spec != HardwareSpec()


@given(
    st.dictionaries(
        st.sampled_from([f.name for f in fields(HardwareSpec)]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=20),
            st.lists(st.integers(), max_size=2),
        ),
    )
)
def test_any_hardware_values_are_checked(values: dict[str, Any]) -> None:
    try:
        spec = hardware_of(values)
    except HardwareError:
        return
    assert all(getattr(spec, name) is not None for name in values)
    assert spec.gpu_count is None or spec.gpu_count >= 1


# --- local or not -------------------------------------------------------------------------------------------------


def test_local_hosts() -> None:
    own = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "0.0.0.0", "http://127.0.0.1:80/v1", *own]:
        assert is_local(host), host
    for host in [
        "192.0.2.250",
        "2001:db8::1",
        "http://192.0.2.250:8000/",
        "no-such-name.invalid",
        "",
        "http://[",
        "::ffff:192.0.2.250",
    ]:
        assert not is_local(host), host


@given(st.text(max_size=30).filter(lambda text: not any(c.isalnum() for c in text)))
def test_odd_hosts_do_not_raise(host: str) -> None:
    assert is_local(host, timeout_s=2) in (True, False)


_SERVER = """
import socket, sys
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_the_process_behind_a_port() -> None:
    argv = [sys.executable, "-c", _SERVER, "--api-key", "sk-x"]
    started_s = time.time()
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        found = listening_process(port).process
        assert found is not None and found.pid == child.pid and found.argv == tuple(argv)
        assert found.exe_name and abs(found.started_unix_s - started_s) < 60
    finally:
        child.kill()
        child.wait(10)
    gone = listening_process(port)
    assert gone.process is None and str(port) in (gone.reason or "")
    assert process_info(child.pid) is None and process_info(-1) is None


def test_a_title_is_not_taken_for_a_command() -> None:
    child = subprocess.Popen(["sglang::scheduler"], executable=sys.executable, stdin=subprocess.PIPE)
    try:
        limit, info = time.monotonic() + 10, process_info(child.pid)
        while (info is None or "title" not in (info.argv_reason or "")) and time.monotonic() < limit:
            time.sleep(0.05)  # it has no command line at all, or its parent's, until it has started
            info = process_info(child.pid)
        assert info is not None and info.argv is None and "title" in (info.argv_reason or "")
    finally:
        child.kill()
        child.wait(10)


def test_what_may_not_be_read_is_none_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kind: str) -> Any:
        raise psutil.AccessDenied

    address = SimpleNamespace(port=8000)
    listening = SimpleNamespace(status=psutil.CONN_LISTEN, laddr=address, pid=None)
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [listening])
    assert "another user" in (listening_process(8000).reason or "")
    monkeypatch.setattr(psutil, "net_connections", refused)
    assert "administrator" in (listening_process(8000).reason or "")


def test_a_forwarder_is_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=8000), pid=os.getpid())
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [listening])
    monkeypatch.setattr(psutil.Process, "name", lambda self: "docker-proxy")
    found = listening_process(8000)
    assert found.process is None and "docker-proxy" in (found.reason or "")
