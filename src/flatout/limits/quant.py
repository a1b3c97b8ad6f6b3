"""How many bits a weight takes, part by part, from a config's `quantization_config`."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flatout.limits.shape import Precision, ShapeError

DTYPE_BYTES: Final[Mapping[str, float]] = {
    "float64": 8.0, "float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0,
    "float8_e4m3fn": 1.0, "float8_e5m2": 1.0,
}  # fmt: skip
_MOST_PATTERNS: Final = 20_000
_MOST_PATTERN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Quantization:
    """`bits`: of one weight in a quantised matrix with its share of scales and zero points. `head_bits`: the same
    for the vocabulary's matrices; None where they stay in the model's type. `skipped`: patterns of module names that
    stay in the model's type. `experts_only`: nothing but routed experts is quantised."""

    label: str
    bits: float
    compute: Precision
    head_bits: float | None = None
    skipped: tuple[str, ...] = ()
    experts_only: bool = False
    notes: tuple[str, ...] = field(default=())

    def skips(self, *modules: str) -> bool:
        """True where one of the modules (`layers.3.self_attn.q_proj`) is named as not quantised."""
        return any(_matches(pattern, module) for pattern in self.skipped for module in modules)


def _matches(pattern: str, module: str) -> bool:
    """A name, a part of one, or a glob. Regular expressions were turned into globs before: one from a file could
    run for ever."""
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, pattern + ".*")
    return module == pattern or module.startswith(pattern + ".") or f".{pattern}." in f".{module}."


def quantization_of(config: Mapping[str, Any] | None) -> Quantization | None:
    """What `quantization_config` says; None for no quantisation. Raises ShapeError for a method that is not known."""
    if not config:
        return None
    if not isinstance(config, Mapping):
        raise ShapeError("quantization_config is not a table of settings; give the bits by hand (--weight-bits)")
    found = _of_method(config)
    if any(_glob(pattern) is None for pattern in _patterns(config)):
        found = replace(found, notes=(*found.notes, "part of the list of unquantised modules is not understood"))
    return found


def _of_method(config: Mapping[str, Any]) -> Quantization:
    method = str(config.get("quant_method") or "").lower().replace("_", "-")
    if not method and "bits" in config:
        return _mlx(config)
    if method in ("fp8", "fbgemm-fp8"):
        return Quantization("FP8", 8.0, "fp8", skipped=_skipped(config))
    if method in ("awq", "gptq", "auto-round", "autoround", "intel/auto-round", "gptqmodel"):
        return _grouped(method, config)
    if method in ("exl2", "exl3"):
        bits = _number(config, "bits")
        return Quantization(f"{method.upper()} {bits:g}", bits, "bf16", head_bits=_number(config, "head_bits", bits))
    if method in ("bitsandbytes", "bnb"):
        return _bitsandbytes(config)
    if method == "mxfp4":
        skipped = _skipped(config)
        return Quantization("MXFP4", 4.25, "fp4", skipped=skipped, experts_only=not skipped)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    if method in ("modelopt", "modelopt-fp4"):
        return _modelopt(config)
    if method in ("eetq", "w8a8-int8"):
        return Quantization("INT8", 8.0, "int8", skipped=_skipped(config))
    raise ShapeError(f"the quantisation {method[:60]!r} is not known; give the weights' bits by hand (--weight-bits)")


def _grouped(method: str, config: Mapping[str, Any]) -> Quantization:
    """Integers with a 16-bit scale and a zero point of `bits` a group (AWQ, arXiv 2306.00978; GPTQ, 2210.17323)."""
    bits = _number(config, "bits", _number(config, "w_bit", 4.0))
    group = _number(config, "group_size", _number(config, "q_group_size", 128.0), least=-1.0)
    extra = (16.0 + bits) / group if group > 0 else 0.0
    head = bits + extra if config.get("lm_head") is True else None
    return Quantization(f"{method.upper()} {bits:g}-bit", bits + extra, "bf16", head, _skipped(config))


def _mlx(config: Mapping[str, Any]) -> Quantization:
    """MLX: groups with a 16-bit scale and a 16-bit bias, embeddings included."""
    bits, group = _number(config, "bits"), _number(config, "group_size", 64.0)
    total = bits + 32.0 / group
    return Quantization(f"{bits:g}-bit", total, "bf16", head_bits=total)


def _bitsandbytes(config: Mapping[str, Any]) -> Quantization:
    """NF4 with a 32-bit scale for 64 weights, or 0.127 bits a weight with double quantisation (QLoRA, arXiv
    2305.14314, section 3); LLM.int8."""
    skipped = _skipped(config)
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        extra = 0.127 if config.get("bnb_4bit_use_double_quant") else 0.5
        return Quantization("bitsandbytes 4-bit", 4.0 + extra, "bf16", skipped=skipped)
    return Quantization("bitsandbytes 8-bit", 8.0, "int8", skipped=skipped)


def _compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(first, Mapping) or not isinstance(weights, Mapping):
        raise ShapeError("quantization_config has no config_groups with weights; give the bits by hand (--weight-bits)")
    bits, size = _number(weights, "num_bits"), _number(weights, "group_size", 0.0, least=-1.0)
    is_float, acts = str(weights.get("type")) == "float", first.get("input_activations")
    quantised_acts = isinstance(acts, Mapping) and bool(acts)
    scale_bits = 8.0 if is_float and bits <= 4 else 16.0
    extra = scale_bits / size if size > 0 else 0.0
    compute: Precision = "bf16"
    if quantised_acts:
        act_bits = _number(acts, "num_bits", 8.0) if isinstance(acts, Mapping) else 8.0
        compute = ("fp4" if act_bits <= 4 else "fp8") if is_float else "int8"
    label = f"{'FP' if is_float else 'INT'}{bits:g}" + ("" if quantised_acts else " weights")
    notes = () if len(groups or ()) < 2 else ("several quantisation groups; the first is taken for all",)
    return Quantization(label, bits + extra, compute, skipped=_skipped(config), notes=notes)


def _modelopt(config: Mapping[str, Any]) -> Quantization:
    """NVIDIA ModelOpt. NVFP4: 4-bit floats with an 8-bit scale for 16 weights."""
    inner = config.get("quantization")
    settings = inner if isinstance(inner, Mapping) else config
    algorithm = str(settings.get("quant_algo") or "").upper()
    skipped = _skipped(settings) or _skipped(config)
    if "NVFP4" in algorithm:
        return Quantization("NVFP4", 4.5, "fp4", skipped=skipped)
    if algorithm.startswith("W4A16"):
        return Quantization("INT4 weights", 4.0 + 16.0 / _number(settings, "group_size", 128.0), "bf16", None, skipped)
    if "FP8" in algorithm:
        return Quantization("FP8", 8.0, "fp8", skipped=skipped)
    raise ShapeError(
        f"the ModelOpt quantisation {algorithm[:60]!r} is not known; give the weights' bits by hand (--weight-bits)"
    )


def _skipped(config: Mapping[str, Any]) -> tuple[str, ...]:
    globs = (_glob(pattern) for pattern in _patterns(config))
    return tuple(dict.fromkeys(glob for glob in globs if glob))


def _patterns(config: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "skip_modules"):
        value = config.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            found += [str(item)[:_MOST_PATTERN_CHARS] for item in value[:_MOST_PATTERNS]]
    return found


def _glob(pattern: str) -> str | None:
    """A module pattern as a glob without the model's own prefix; None for a regular expression that is more than dots
    and stars (it is left out, so that the limit comes out too high rather than too low), or one that names all."""
    if pattern.startswith("re:"):
        pattern = pattern[3:].removeprefix("^").removesuffix("$").replace(".*", "*").replace("\\.", ".")
        if re.search(r"[\\?+|^$(){}\[\]]", pattern):
            return None
    pattern = re.sub(r"\*+", "*", pattern)
    pattern = re.sub(r"^(?:language_model\.|model\.)+(?=.)", "", pattern)
    return pattern if pattern.strip("*.") else None


def _number(config: Mapping[str, Any], key: str, default: float | None = None, *, least: float = 0.0) -> float:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ShapeError(f"quantization_config: {key} is {str(value)[:60]!r}, not a number; give --weight-bits by hand")
    if not least <= value <= 4096:
        raise ShapeError(f"quantization_config: {key} is {value}; that cannot be; give --weight-bits by hand")
    return float(value)
