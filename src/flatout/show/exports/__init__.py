"""What a record can be written as: each module here is one format, named as `--format` names it (`llama_bench` is
`llama-bench`).

A module holds `write(record)`, which returns text or bytes, and its docstring's first line says what it is. A new file
here is a new format: the list below is read from the folder.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.record import Record


class ExportError(Exception):
    """The export cannot be made; the text says why and what to do."""


def formats() -> list[str]:
    """The names of all formats."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def write(record: Record, name: str) -> str | bytes:
    """The record in one of the `formats()`. Raises ExportError: there is none of that name, or it cannot be made."""
    if name not in formats():
        raise ExportError(f"--format {name}: it is one of {', '.join(formats())}")
    content: str | bytes = import_module(f"{__name__}.{name.replace('-', '_')}").write(record)
    return content
