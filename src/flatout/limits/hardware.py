"""What a machine can do at most: memory bandwidth and dense peak by precision, from makers' datasheets or by hand."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Final

from flatout.limits.shape import Precision
from flatout.record import Record

_CHAINS: Final[Mapping[Precision, tuple[str, ...]]] = {
    "bf16": ("bf16", "fp16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "fp8", "bf16", "fp16"),
    "fp4": ("fp4", "fp8", "bf16", "fp16"),
}
"""Where a GPU lacks a precision, the products run in the next wider one that it has."""
PRECISIONS: Final = ("fp16", "bf16", "fp8", "int8", "fp4")
_NOISE: Final = re.compile(
    r"\b(?:nvidia|geforce|amd|instinct|radeon|apple|intel|graphics|generation|edition|gpu|corporation|tm|r)\b"
)
_MEMORY: Final = re.compile(r"\b\d+ ?(?:gb|gib)\b")
_MOST: Final = 1e9


class LimitsHardwareError(ValueError):
    """The hardware is not known; `str()` says which are, and how to give its limits by hand."""


@dataclass(frozen=True, slots=True)
class HardwareLimits:
    """One GPU (or machine). `bandwidth_gb_s`: memory, decimal gigabytes a second. `tflops`: dense peak by precision
    (`PRECISIONS`), 10^12 operations a second; empty where the maker prints none. `source`: where the figures stand."""

    name: str
    bandwidth_gb_s: float
    tflops: Mapping[str, float] = field(default_factory=dict)
    memory_gb: float | None = None
    source: str = "by hand"

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth_gb_s * 1e9

    def peak_flops(self, precision: Precision) -> float | None:
        """FLOP/s at that precision or the next wider one that the GPU has; None where no peak is known. 16-bit: the
        larger of BF16 and FP16 (some GPUs run FP16 with 16-bit sums at twice the rate)."""
        for name in _CHAINS[precision]:
            if name in ("bf16", "fp16"):
                found = [self.tflops[key] for key in ("bf16", "fp16") if key in self.tflops]
                if found:
                    return max(found) * 1e12
            elif name in self.tflops:
                return self.tflops[name] * 1e12
        return None


def by_hand(
    bandwidth_gb_s: float, tflops: float | Mapping[str, float] | None = None, *, name: str = "as typed"
) -> HardwareLimits:
    """Limits from `--bandwidth` (GB/s) and `--tflops` (one figure for 16-bit products, or by precision). Raises
    LimitsHardwareError for what is no number above 0."""
    table = {"bf16": tflops} if isinstance(tflops, int | float) else dict(tflops or {})
    for what, value in {"bandwidth": bandwidth_gb_s, **table}.items():
        if what != "bandwidth" and what not in PRECISIONS:
            raise LimitsHardwareError(f"--tflops: {what!r} is no precision; known are {', '.join(PRECISIONS)}")
        if isinstance(value, bool) or not math.isfinite(value) or not 0 < value < _MOST:
            raise LimitsHardwareError(f"--{what} must be a number above 0, not {value!r}")
    return HardwareLimits(name, float(bandwidth_gb_s), {key: float(value) for key, value in table.items()})


def hardware(
    name: str | None, *, bandwidth_gb_s: float | None = None, tflops: float | Mapping[str, float] | None = None
) -> HardwareLimits:
    """The limits of a GPU by the name that its driver, its maker or people give it; figures by hand replace the
    table's. Raises LimitsHardwareError where the name is not known and no bandwidth is given."""
    found = find(name) if name else None
    if found is None:
        if bandwidth_gb_s is None:
            raise LimitsHardwareError(_unknown(name))
        return by_hand(bandwidth_gb_s, tflops, name=name or "as typed")
    if bandwidth_gb_s is None and tflops is None:
        return found
    typed = by_hand(found.bandwidth_gb_s if bandwidth_gb_s is None else bandwidth_gb_s, tflops)
    changed = " and ".join(
        what for what, value in (("bandwidth", bandwidth_gb_s), ("peak", tflops)) if value is not None
    )  # fmt: skip
    return replace(
        found, bandwidth_gb_s=typed.bandwidth_gb_s, tflops={**found.tflops, **typed.tflops},
        source=f"{found.source}; {changed} as typed",
    )  # fmt: skip


def _unknown(name: str | None) -> str:
    if not name:
        return "no hardware is named: give --gpu, or --bandwidth in GB/s (and --tflops)"
    close = difflib.get_close_matches(_plain(name), _aliases(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(dict.fromkeys(_aliases()[c].name for c in close))}? " if close else ""
    return f"the hardware {name[:80]!r} is not in the table; {hint}give --bandwidth in GB/s (and --tflops) by hand"


def find(name: str) -> HardwareLimits | None:
    """The table's entry for a name, or None."""
    plain = _plain(name)
    aliases = _aliases()
    if plain in aliases:
        return aliases[plain]
    return aliases.get(re.sub(r"\s+", " ", _MEMORY.sub("", plain)).strip())


def known() -> list[HardwareLimits]:
    """All entries, in the table's order."""
    return list(_table())


@cache
def _table() -> tuple[HardwareLimits, ...]:
    return tuple(entry for entry, _ in _entries())


@cache
def _aliases() -> dict[str, HardwareLimits]:
    return {_plain(alias): entry for entry, names in _entries() for alias in (entry.name, *names)}


@cache
def _entries() -> tuple[tuple[HardwareLimits, tuple[str, ...]], ...]:
    text = resources.files("flatout.limits").joinpath("hardware.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    return tuple((_entry(raw), tuple(raw.get("also", ()))) for raw in content["hardware"])


def _entry(raw: Mapping[str, Any]) -> HardwareLimits:
    return HardwareLimits(
        name=str(raw["name"]), bandwidth_gb_s=float(raw["bandwidth_gb_s"]),
        tflops={key: float(value) for key, value in raw.get("tflops", {}).items()},
        memory_gb=raw.get("memory_gb"), source=str(raw["source"]),
    )  # fmt: skip


def _plain(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` → `rtx 4090`: without makers, and with one space where any sign stood."""
    text = re.sub(r"[^a-z0-9+.]+", " ", name.lower()[:200])
    return re.sub(r"\s+", " ", _NOISE.sub(" ", text)).strip()


def hardware_of(record: Record) -> HardwareLimits | None:
    """The limits of the server's GPU as the record names it; None where the machine is not the server's, has no GPU
    that the table knows, or has several kinds."""
    if record.hardware.describes == "client only":
        return None
    facts = record.hardware.facts
    if "gpu_2" in facts:
        return None
    for key in ("gpu", "gpu_model", "gpu_name", "cpu"):
        fact = facts.get(key)
        if fact is not None and isinstance(fact.value, str):
            memory = facts.get("gpu_memory_gb") or facts.get("memory_gb")
            size = f" {memory.value:.0f}GB" if memory and isinstance(memory.value, int | float) else ""
            found = find(fact.value + size) or find(fact.value)
            if found is not None:
                return found
    return None
