"""A record's samples as one zip: each cell's file under the name that the record gives it."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flatout.publish.errors import PublishError
from flatout.record import Record

MAX_BYTES: Final = 512 * 1024 * 1024
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Packed:
    """`files` in the zip, `missing` of those that the record names."""

    data: bytes
    files: int
    missing: int


def pack(record: Record, directory: Path) -> Packed:
    """The samples beside a record. The same files make the same bytes. Raises PublishError."""
    names = sorted({cell.samples for cell in record.cells if cell.samples})
    there = [name for name in names if _inside(name, directory)]
    if not there:
        raise PublishError(
            f"--samples: there are no samples beside the record in {directory}; publish the result directory, or leave "
            "--samples out"
        )
    size = sum((directory / name).stat().st_size for name in there)
    if size > MAX_BYTES:
        raise PublishError(f"--samples: they have {size:,} bytes; a site takes far less. Leave --samples out")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # an .npz is compressed already
        for name in there:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), (directory / name).read_bytes())
    return Packed(out.getvalue(), len(there), len(names) - len(there))


def _inside(name: str, directory: Path) -> bool:
    """The record's word for a file is a word: nothing outside its directory is ever sent."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".npz":
        return False
    full = directory / path
    return full.is_file() and full.resolve().is_relative_to(directory.resolve())
