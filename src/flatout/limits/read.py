"""A model's shape from whatever names it: a config, a config.json, a GGUF file, or a directory with one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flatout.limits.gguf import MAGIC, shape_of_gguf
from flatout.limits.hf import shape_of_config
from flatout.limits.shape import ModelShape, ShapeError

_MOST_CONFIG: Final = 64 * 1024 * 1024


def model_shape(config: Mapping[str, Any] | str | Path, *, weight_bits: float | None = None) -> ModelShape:
    """The model's shape from a Hugging Face config (a table, or the path of its `config.json`), a GGUF file, or a
    directory that holds one of them. `weight_bits`: bits of one quantised weight by hand, for a config only.

    Raises ShapeError: no such file, another format, or a kind of model that is not modelled.
    """
    if isinstance(config, Mapping):
        return shape_of_config(config, weight_bits=weight_bits)
    path = _file(Path(config).expanduser())
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if head == MAGIC:
                shape = shape_of_gguf(path)
            else:
                shape = _from_json(path, head + file.read(_MOST_CONFIG), weight_bits)
    except OSError as error:
        raise ShapeError(f"{path.name} cannot be read: {error.strerror or error}") from error
    return shape


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for candidate in (path / "config.json", *sorted(path.glob("*.gguf"))):
        if candidate.is_file():
            return candidate
    raise ShapeError(f"{path.name}/ holds neither a config.json nor a GGUF file")


def _from_json(path: Path, data: bytes, weight_bits: float | None) -> ModelShape:
    if len(data) > _MOST_CONFIG:
        raise ShapeError(f"{path.name} has more than {_MOST_CONFIG >> 20} MiB; a config.json is small")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"{path.name} is neither a GGUF file nor JSON ({str(error)[:120]})") from error
    if not isinstance(found, dict):
        raise ShapeError(f"{path.name} is JSON, but not a model's config")
    return shape_of_config(found, weight_bits=weight_bits)
