"""`--hardware`: the machine of a server that runs elsewhere, as the user describes it."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flatout.host.machine import Kind


class HardwareError(ValueError):
    """The description cannot be used; `str()` says what is wrong and what to write instead."""


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """What the user said about the server's machine; None for what was not said.

    `type`: see `Machine.kind`. `memory_gb`: of one GPU, or of the machine where it is unified, as the maker prints it.
    """

    type: Kind | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    memory_gb: float | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    cpu: str | None = None
    cores: int | None = None
    ram_gb: float | None = None
    os: str | None = None
    kernel: str | None = None
    note: str | None = None


_NAMES = tuple(field.name for field in fields(HardwareSpec))
_WHOLE = ("gpu_count", "cores")
_NUMBERS = ("memory_gb", "power_limit_w", "ram_gb")
_TYPES: dict[str, Kind] = {
    "discrete_gpu": "discrete_gpu",
    "discrete": "discrete_gpu",
    "gpu": "discrete_gpu",
    "unified_memory": "unified_memory",
    "unified": "unified_memory",
    "cpu_only": "cpu_only",
    "cpu": "cpu_only",
}
_EXAMPLE = 'for example: --hardware "type=discrete_gpu,gpu=H200 NVL,gpu_count=1,memory_gb=141,os=Ubuntu 24.04"'


def hardware_from(text_or_path: str | Path) -> HardwareSpec:
    """From a TOML or JSON file, or from `key=value,key=value` typed by hand (a comma inside a value is fine).

    In a file, the keys stand at the top or in a table `hardware`. Raises HardwareError.
    """
    text = str(text_or_path).strip()
    named_so = re.search(r"(?i)\.(?:toml|json)$", text) is not None and "=" not in text
    if isinstance(text_or_path, Path) or named_so or (text and _is_file(text)):
        return hardware_of(_from_file(text))
    if not text:
        raise HardwareError(f"--hardware is empty; name a TOML or JSON file, or write it out, {_EXAMPLE}")
    return hardware_of(_by_hand(text))


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _from_file(text: str) -> Mapping[str, Any]:
    path = Path(text)
    try:
        content = path.expanduser().read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise HardwareError(f"--hardware: {path.name} is not text (UTF-8)") from None
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise HardwareError(f"--hardware: {path.name!r} cannot be read ({why}); check the path") from None
    try:
        loaded = json.loads(content) if path.suffix.lower() == ".json" else tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise HardwareError(f"--hardware: {path.name} is not valid {kind}: {error}") from None
    if isinstance(loaded, dict) and isinstance(loaded.get("hardware"), dict):
        loaded = loaded["hardware"]
    if not isinstance(loaded, dict):
        raise HardwareError(f"--hardware: {path.name} must hold keys and values ({', '.join(_NAMES)})")
    return loaded


def _by_hand(text: str) -> Mapping[str, str]:
    pairs: dict[str, str] = {}
    for part in re.split(r",(?=\s*[A-Za-z_][\w-]*\s*=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise HardwareError(f"--hardware: '{part.strip()}' is no file and not key=value; {_EXAMPLE}")
        key = name.strip()
        if key in pairs:
            raise HardwareError(f"--hardware: {key} is given twice")
        pairs[key] = value.strip().strip("\"'")
    return pairs


def hardware_of(values: Mapping[str, Any]) -> HardwareSpec:
    """Check keys, types and what must fit together. Raises HardwareError."""
    checked: dict[str, Any] = {}
    for given, value in values.items():
        name = given.strip().lower().replace("-", "_")
        if name not in _NAMES:
            close = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_NAMES)}"
            raise HardwareError(f"--hardware: unknown key '{given}'; {hint}")
        checked[name] = _checked(name, value)
    spec = HardwareSpec(**checked)
    if spec.type == "cpu_only" and (spec.gpu or spec.gpu_count):
        raise HardwareError(
            "--hardware: type is cpu_only but a GPU is named; leave out gpu and gpu_count, or change type"
        )
    if spec.gpu_count is not None and spec.gpu is None:
        raise HardwareError("--hardware: gpu_count needs gpu, the GPU's model")
    return spec


def _checked(name: str, value: Any) -> Any:
    if name == "type":
        word = re.sub(r"[\s-]+", "_", str(value).strip().lower())
        if word not in _TYPES:
            raise HardwareError(f"--hardware: type is discrete_gpu, unified_memory or cpu_only, not '{value}'")
        return _TYPES[word]
    if name in _WHOLE or name in _NUMBERS:
        return _number(name, value, whole=name in _WHOLE)
    if not isinstance(value, str) or not value.strip():
        raise HardwareError(f"--hardware: {name} must be text, not {value!r}")
    if len(value) > 200 or not value.isprintable():
        raise HardwareError(f"--hardware: {name} must be one printable line of at most 200 characters")
    return value.strip()


def _number(name: str, value: Any, *, whole: bool) -> int | float:
    wrong = HardwareError(f"--hardware: {name} must be a {'whole ' if whole else ''}number above 0, not {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number) or number <= 0 or (whole and number != int(number)):
        raise wrong
    return int(number) if whole else number
