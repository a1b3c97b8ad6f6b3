"""The machine that this process runs on: what makes one result comparable with another."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flatout.host.gpu import GpuFacts, amd_facts_from_sysfs, apple_facts, grouped, open_sensor, sysctl

Kind = Literal["discrete_gpu", "unified_memory", "cpu_only"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that do not change during a run. `missing`: for each field that is None, why.

    `usable_cores`: what affinity and the container's limit leave of `logical_cores`, so possibly a fraction.
    `ram_limit_bytes`: the container's limit where it is below `ram_bytes`. `container`, `virtualisation`: what this
    runs in, None for nothing that was found.
    """

    kind: Kind
    kind_reason: str
    gpus: tuple[GpuFacts, ...]
    cpu_model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: float | None
    ram_bytes: int | None
    ram_limit_bytes: int | None
    os: str | None
    kernel: str | None
    architecture: str
    python: str
    container: str | None
    virtualisation: str | None
    wsl: bool
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        return sum(gpu.count for gpu in self.gpus)


def describe(root: Path = Path("/")) -> Machine:
    """Ask this machine. Needs no rights, raises nothing, takes some tens of milliseconds (NVML's start).

    `root`: where /proc, /sys and /etc are looked for (tests give a copy).
    """
    import psutil  # type: ignore[import-untyped, unused-ignore]

    missing: dict[str, str] = {}
    cpu = cpu_model(root)
    gpus, reason = find_gpus(root, cpu)
    kind, kind_reason = classify(gpus)
    if not gpus:
        missing["gpus"] = reason or "no GPU found"
    ram = psutil.virtual_memory().total
    limit = cgroup_memory_limit(root)
    kernel = platform.release() or None
    facts = {"cpu_model": cpu, "physical_cores": psutil.cpu_count(logical=False), "os": os_name(), "kernel": kernel}
    for name, value in facts.items():
        if value is None:
            missing[name] = "this system does not say"
    return Machine(
        kind=kind,
        kind_reason=kind_reason,
        gpus=gpus,
        cpu_model=cpu,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=usable_cores(root),
        ram_bytes=ram,
        ram_limit_bytes=limit if limit is not None and limit < ram else None,
        os=os_name(),
        kernel=kernel,
        architecture=platform.machine(),
        python=platform.python_version(),
        container=container(root),
        virtualisation=virtualisation(root),
        wsl="microsoft" in (kernel or "").lower(),
        missing=missing,
    )


def find_gpus(root: Path, cpu: str | None) -> tuple[tuple[GpuFacts, ...], str | None]:
    """The GPUs, equal ones counted together; the reason why a sensor is missing even where the GPUs are known."""
    sensor, reason = open_sensor()
    if sensor is not None:
        try:
            return grouped(sensor.facts()), None
        finally:
            sensor.close()
    gpus = apple_facts() or amd_facts_from_sysfs(root, apu="ryzen ai max" in (cpu or "").lower())
    return grouped(gpus), reason


def classify(gpus: tuple[GpuFacts, ...]) -> tuple[Kind, str]:
    """The machine's type, and the sentence that says why (see gpu.py for how memory is told apart)."""
    if not gpus:
        return "cpu_only", "no GPU was found"
    if any(gpu.memory == "shared" for gpu in gpus):
        return "unified_memory", "the GPU has no memory of its own: it shares the machine's"
    if any(gpu.memory == "coherent" for gpu in gpus):
        return (
            "unified_memory",
            "CPU and GPU share one address space over a coherent link; the GPU also has its own memory",
        )
    return "discrete_gpu", "the GPU has its own memory"


def cpu_model(root: Path = Path("/")) -> str | None:
    """The processor's name: from /proc/cpuinfo, the device tree (ARM boards), sysctl (macOS) or the platform module."""
    text = _read(root / "proc/cpuinfo") or ""
    found = re.search(r"(?m)^(?:model name|Model|cpu model)\s*:\s*(\S.*)$", text)
    if found:
        return " ".join(found[1].split())
    tree = _read(root / "proc/device-tree/model")
    if tree:
        return tree.strip().strip("\0")
    return sysctl("machdep.cpu.brand_string") if platform.system() == "Darwin" else platform.processor() or None


def os_name() -> str | None:
    """PRETTY_NAME of os-release; `macOS 15.1` or `Windows-11-…` elsewhere."""
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return platform.platform() or None


def usable_cores(root: Path = Path("/")) -> float | None:
    """The smaller of the affinity mask and the cgroup's CPU quota (version 2, then 1)."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = float(len(allowed(0))) if allowed else (float(os.cpu_count() or 0) or None)
    quota = cgroup_cpu_limit(root)
    if quota is None or cores is None:
        return cores if cores is not None else quota
    return min(cores, quota)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's folder of each hierarchy and all folders above it: any of them may hold the limit."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names == "":
            base = mount
        elif controller in names.split(","):
            base = mount / names if (mount / names).is_dir() else mount / controller
        else:
            continue
        inner = base / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder == base or base in folder.parents]
    return folders or [mount]


def cgroup_cpu_limit(root: Path = Path("/")) -> float | None:
    """Cores that the container may use, None for no limit."""
    limits: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = (*(_read(folder / "cpu.max") or "").split(), "", "")[:2]
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        if quota.strip().isdigit() and period.strip().isdigit() and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def cgroup_memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the container may use, None for no limit."""
    limits: list[int] = []
    for folder in _cgroup_folders(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
        # Version 1 writes "no limit" as the largest multiple of a page.
        if text.strip().isdigit() and int(text) < 2**62:
            limits.append(int(text))
    return min(limits, default=None)


def container(root: Path = Path("/")) -> str | None:
    """docker, podman, kubernetes, lxc …, or None where nothing says so."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    told = os.environ.get("container")  # noqa: SIM112 (systemd's interface spells it so)
    if told:
        return told
    for path, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / path).exists():
            return name
    found = re.search(r"docker|kubepods|libpod|lxc|containerd", _read(root / "proc/1/cgroup") or "")
    return found[0] if found else None


def virtualisation(root: Path = Path("/")) -> str | None:
    """The maker and product of a virtual machine where the firmware names them; else that there is a hypervisor."""
    flags = re.search(r"(?m)^(?:flags|Features)\s*:(.*)$", _read(root / "proc/cpuinfo") or "")
    if not flags or "hypervisor" not in flags[1].split():
        return None
    vendor, product = (_read(root / f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return " ".join(part.strip() for part in (vendor, product) if part) or "virtual machine"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
