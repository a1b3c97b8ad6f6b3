"""GPUs of this machine: what they are, and their sensors. NVIDIA by NVML, AMD by amdsmi, Apple by sysctl.

Each library is imported only when asked for and none is needed: where one is absent, the answer is None and a reason.
The AMD part follows amdsmi 7's Python interface and has been run against a substitute only, not against a card.

How unified memory is told apart (`memory` = "shared" or "coherent" instead of "own"):
- NVML answers "not supported" for the memory of an integrated GPU (GB10, Jetson): it has none of its own.
- NVML's addressing mode ATS: CPU and GPU walk the same page tables over NVLink-C2C (GH200, GB200, GB300). The GPU's
  memory is its own in size, and NVML reports it, but either side uses the other's: "coherent".
- AMD: memory of DDR type, or an APU by name (Strix Halo, MI300A). Apple silicon always shares.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

MemoryKind = Literal["own", "coherent", "shared"]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """`count` GPUs of one kind. `memory_bytes` is of one GPU; None where it is shared and has no size of its own.

    Serial numbers and UUIDs are not asked for: they name a machine and explain no number.
    """

    vendor: Literal["nvidia", "amd", "apple"]
    model: str | None
    count: int = 1
    memory_bytes: int | None = None
    memory: MemoryKind = "own"
    driver: str | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None where the sensor does not answer. `energy_mj` is a counter that only grows.

    `throttle`: names of what holds the clocks down now, empty for nothing. `use_percent`: share of the last sample
    period (1/6 to 1 s on NVIDIA) in which any kernel ran; it says nothing about how well the GPU was used.
    """

    use_percent: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    energy_mj: int | None = None


class GpuSensor(Protocol):
    """Where readings come from. `read` gives one reading a GPU, always in the same order, and does not raise."""

    def read(self) -> tuple[GpuReading, ...]: ...

    def missing(self) -> dict[str, str]:
        """Why fields of the readings are None: field name to reason."""
        ...

    def close(self) -> None: ...


# NVML's nvmlClocksEventReasons, bit by bit (the same values as the older nvmlClocksThrottleReasons).
NVML_REASONS = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "software_thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}

HARMFUL_REASONS = frozenset(
    ["hardware_slowdown", "software_thermal", "hardware_thermal", "power_brake", "board_limit", "reliability"]
)
"""Reasons for which a cell counts as throttled. `power_cap` does not: a large GPU at full load runs at its power limit,
which is part of the machine; it is reported with its share all the same."""


def decode_nvml_reasons(bits: int) -> tuple[str, ...]:
    """Names of the set bits; a bit that NVML got after this was written is `bit_<number>`."""
    return tuple(
        NVML_REASONS.get(1 << bit, f"bit_{bit}") for bit in range(max(bits, 0).bit_length()) if bits & (1 << bit)
    )


_COHERENT = re.compile(r"\bG[HB][23]00\b")
_INTEGRATED = re.compile(r"(?i)\b(?:GB10|Orin|Thor|Xavier|Tegra)\b")
_AMD_APU = re.compile(r"(?i)strix|\bMI300A\b|\b80[456]0S\b|\b\d{3}M\b|ryzen")


class NvidiaSensor:
    """NVML for each GPU. Raises in `__init__` what NVML raises: no library, no driver, no permission."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        self._missing: dict[str, str] = {}
        self._unsupported: set[tuple[int, str]] = set()
        self._reasons = getattr(
            pynvml, "nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )

    def _ask(self, index: int, field: str, call: Callable[[Any], Any]) -> Any:
        """One value, or None with its reason; what the GPU does not support is not asked again."""
        if (index, field) in self._unsupported:
            return None
        try:
            return call(self._handles[index])
        except self._nvml.NVMLError as error:
            self._missing.setdefault(field, f"NVML: {error}")
            unknown = (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if getattr(error, "value", None) in unknown:
                self._unsupported.add((index, field))
            return None

    def facts(self) -> tuple[GpuFacts, ...]:
        """One entry a GPU, ungrouped."""
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            return tuple(self._facts(index, driver) for index in range(len(self._handles)))
        return tuple(self._facts(index, None) for index in range(len(self._handles)))

    def _facts(self, index: int, driver: str | None) -> GpuFacts:
        nvml = self._nvml
        model = _text(self._ask(index, "model", nvml.nvmlDeviceGetName))
        memory = self._ask(index, "memory_bytes", nvml.nvmlDeviceGetMemoryInfo)
        mode = self._ask(index, "addressing_mode", getattr(nvml, "nvmlDeviceGetAddressingMode", _not_there))
        limit = self._ask(index, "power_limit_w", nvml.nvmlDeviceGetEnforcedPowerLimit)
        kind: MemoryKind = "own"
        if (index, "memory_bytes") in self._unsupported or _INTEGRATED.search(model or ""):
            kind = "shared"
        elif mode == getattr(nvml, "NVML_DEVICE_ADDRESSING_MODE_ATS", 2) or _COHERENT.search(model or ""):
            kind = "coherent"
        return GpuFacts(
            vendor="nvidia",
            model=model,
            memory_bytes=int(memory.total) if memory is not None else None,
            memory=kind,
            driver=driver,
            power_limit_w=limit / 1000 if limit is not None else None,
        )

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(index) for index in range(len(self._handles)))

    def _read(self, index: int) -> GpuReading:
        nvml = self._nvml
        use = self._ask(index, "use_percent", nvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(index, "memory_used_bytes", nvml.nvmlDeviceGetMemoryInfo)
        power_mw = self._ask(index, "power_w", nvml.nvmlDeviceGetPowerUsage)
        bits = self._ask(index, "throttle", self._reasons)
        return GpuReading(
            use_percent=float(use.gpu) if use is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            sm_clock_mhz=self._ask(index, "sm_clock_mhz", lambda h: float(nvml.nvmlDeviceGetClockInfo(h, 1))),
            memory_clock_mhz=self._ask(index, "memory_clock_mhz", lambda h: float(nvml.nvmlDeviceGetClockInfo(h, 2))),
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=self._ask(index, "temperature_c", lambda h: float(nvml.nvmlDeviceGetTemperature(h, 0))),
            throttle=decode_nvml_reasons(int(bits)) if bits is not None else None,
            energy_mj=self._ask(index, "energy_mj", lambda h: int(nvml.nvmlDeviceGetTotalEnergyConsumption(h))),
        )

    def used_by(self, pids: Iterable[int]) -> tuple[int, ...] | None:
        """Indices of the GPUs on which one of these processes computes; None where NVML names none of them (as from
        inside a container, where process numbers differ)."""
        wanted = set(pids)
        found: list[int] = []
        for index in range(len(self._handles)):
            running = self._ask(index, "processes", self._nvml.nvmlDeviceGetComputeRunningProcesses)
            if wanted & {process.pid for process in running or ()}:
                found.append(index)
        return tuple(found) or None

    def missing(self) -> dict[str, str]:
        return dict(self._missing)

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


class AmdSensor:
    """amdsmi for each GPU. Raises in `__init__` what amdsmi raises: not installed, no driver."""

    def __init__(self) -> None:
        import amdsmi

        self._smi: Any = amdsmi
        amdsmi.amdsmi_init()
        self._handles = list(amdsmi.amdsmi_get_processor_handles())
        self._missing: dict[str, str] = {}
        self._unsupported: set[tuple[int, str]] = set()

    def _ask(self, index: int, field: str, call: Callable[[Any], Any]) -> Any:
        if (index, field) in self._unsupported:
            return None
        try:
            value = call(self._handles[index])
        except Exception as error:  # amdsmi raises several unrelated classes, and AttributeError across versions
            self._missing.setdefault(field, f"amdsmi: {error}")
            self._unsupported.add((index, field))
            return None
        if value in ("N/A", "", None):
            self._missing.setdefault(field, "amdsmi: N/A")
            return None
        return value

    def facts(self) -> tuple[GpuFacts, ...]:
        """One entry a GPU, ungrouped."""
        return tuple(self._facts(index) for index in range(len(self._handles)))

    def _facts(self, index: int) -> GpuFacts:
        smi = self._smi
        model = _text(self._ask(index, "model", lambda h: smi.amdsmi_get_gpu_asic_info(h)["market_name"]))
        own = self._ask(index, "memory_bytes", lambda h: smi.amdsmi_get_gpu_vram_usage(h)["vram_total"])
        ddr = {int(kind) for kind in smi.AmdSmiVramType if re.match(r"(?:LP)?DDR", kind.name)}
        kind = self._ask(index, "memory", lambda h: smi.amdsmi_get_gpu_vram_info(h)["vram_type"])
        shared = kind in ddr or bool(_AMD_APU.search(model or ""))
        cap = self._ask(index, "power_limit_w", lambda h: smi.amdsmi_get_power_cap_info(h)["power_cap"])
        return GpuFacts(
            vendor="amd",
            model=model,
            memory_bytes=int(own) * 2**20 if own is not None else None,
            memory="shared" if shared else "own",
            driver=_text(self._ask(index, "driver", lambda h: smi.amdsmi_get_gpu_driver_info(h)["driver_version"])),
            power_limit_w=cap / 1e6 if cap else None,
        )

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(index) for index in range(len(self._handles)))

    def _read(self, index: int) -> GpuReading:
        smi = self._smi

        def clock(kind: str) -> Callable[[Any], Any]:
            return lambda h: float(smi.amdsmi_get_clock_info(h, smi.AmdSmiClkType[kind])["clk"])

        def hot(h: Any) -> float:
            kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            return float(smi.amdsmi_get_temp_metric(h, kind, metric))

        used = self._ask(index, "memory_used_bytes", lambda h: smi.amdsmi_get_gpu_vram_usage(h)["vram_used"])
        return GpuReading(
            use_percent=self._ask(
                index, "use_percent", lambda h: float(smi.amdsmi_get_gpu_activity(h)["gfx_activity"])
            ),
            memory_used_bytes=int(used) * 2**20 if used is not None else None,
            sm_clock_mhz=self._ask(index, "sm_clock_mhz", clock("GFX")),
            memory_clock_mhz=self._ask(index, "memory_clock_mhz", clock("MEM")),
            power_w=self._ask(index, "power_w", lambda h: _amd_power(smi.amdsmi_get_power_info(h))),
            temperature_c=self._ask(index, "temperature_c", hot),
            throttle=self._ask(index, "throttle", lambda h: _amd_throttle(smi.amdsmi_get_violation_status(h))),
            energy_mj=self._ask(index, "energy_mj", lambda h: _amd_energy(smi.amdsmi_get_energy_count(h))),
        )

    def missing(self) -> dict[str, str]:
        return dict(self._missing)

    def close(self) -> None:
        with suppress(Exception):  # shutting down a library that is already gone
            self._smi.amdsmi_shut_down()


def _amd_power(info: dict[str, Any]) -> float | None:
    """MI300 and later give the current power, earlier cards the average; what does not apply is N/A."""
    for key in ("current_socket_power", "average_socket_power", "socket_power"):
        if isinstance(info.get(key), int | float) and info[key] > 0:
            return float(info[key])
    return None


def _amd_energy(count: dict[str, Any]) -> int | None:
    """Counter times resolution in µJ, as mJ."""
    ticks = count.get("energy_accumulator", count.get("power"))
    return int(ticks * count["counter_resolution"] / 1000) if ticks else None


_AMD_REASONS = {
    "active_prochot_thrm": "hardware_thermal",
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "software_thermal",
    "active_vr_thrm": "hardware_slowdown",
    "active_hbm_thrm": "hardware_thermal",
}


def _amd_throttle(status: dict[str, Any]) -> tuple[str, ...] | None:
    known = {key: status.get(key) for key in _AMD_REASONS if isinstance(status.get(key), bool | int)}
    return tuple(sorted({_AMD_REASONS[key] for key, on in known.items() if on})) if known else None


def apple_facts() -> tuple[GpuFacts, ...]:
    """The GPU of Apple silicon: it has the chip's name and the machine's memory. Empty elsewhere."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return ()
    memory = sysctl("hw.memsize")
    return (
        GpuFacts(
            vendor="apple",
            model=sysctl("machdep.cpu.brand_string"),
            memory_bytes=int(memory) if memory and memory.isdigit() else None,
            memory="shared",
        ),
    )


def sysctl(name: str) -> str | None:
    """One value of macOS's sysctl, or None."""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def amd_facts_from_sysfs(root: Path = Path("/"), *, apu: bool = False) -> tuple[GpuFacts, ...]:
    """AMD GPUs as the kernel lists them, without amdsmi. `apu`: the processor's name says that the GPU is its part."""
    found: list[GpuFacts] = []
    for device in sorted((root / "sys/class/drm").glob("card*/device")):
        if re.fullmatch(r"card\d+", device.parent.name) and _read_line(device / "vendor") == "0x1002":
            size = _read_line(device / "mem_info_vram_total")
            model = _read_line(device / "product_name")
            shared = apu or bool(_AMD_APU.search(model or ""))
            memory = int(size) if size and size.isdigit() else None
            found.append(GpuFacts("amd", model, memory_bytes=memory, memory="shared" if shared else "own"))
    return tuple(found)


def open_sensor() -> tuple[NvidiaSensor | AmdSensor | None, str | None]:
    """The GPU sensor of this machine, or None and the reason why there is none."""
    reasons: list[str] = []
    for name, kind in (("NVIDIA", NvidiaSensor), ("AMD", AmdSensor)):
        try:
            sensor = kind()
        except ImportError:
            reasons.append(f"{name}: its Python library is not installed")
        except Exception as error:  # whatever a vendor's library raises without its driver
            reasons.append(f"{name}: {error or type(error).__name__}")
        else:
            if sensor._handles:
                return sensor, None
            sensor.close()
            reasons.append(f"{name}: the driver lists no GPU")
    if apple_facts():
        return None, "Apple's GPU sensors need administrator rights (powermetrics)"
    return None, "no GPU sensor (" + "; ".join(reasons) + ")"


def grouped(gpus: Iterable[GpuFacts]) -> tuple[GpuFacts, ...]:
    """Equal GPUs counted, in the order of their first."""
    counts: dict[GpuFacts, int] = {}
    for gpu in gpus:
        counts[gpu] = counts.get(gpu, 0) + gpu.count
    return tuple(replace(gpu, count=count) for gpu, count in counts.items())


def _not_there(_handle: Any) -> None:
    return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if value is not None else None


def _read_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().strip("\0") or None
    except OSError:
        return None
