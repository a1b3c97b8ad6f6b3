"""Records from what was typed: each a record or its directory, or a directory that holds the repeats of one side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.compare.pairs import MOST_RECORDS
from flatout.compare.result import CompareError
from flatout.record import Record, read


def read_sides(paths: Sequence[Path]) -> tuple[list[Record], list[int] | None, list[str]]:
    """(records, each one's side or None where `compare` shall group them, each one's name), for `compare`.

    A directory without a record of its own stands for one side: the records in the directories right below it. As soon
    as one is named, every path is a side. Raises CompareError and RecordError.
    """
    found = [(path, _runs(path)) for path in paths]
    if sum(len(runs) for _, runs in found) > MOST_RECORDS:
        raise CompareError(f"there are over {MOST_RECORDS} records below these paths")
    grouped = any(runs != [path] for path, runs in found)
    sides = [number for number, (_, runs) in enumerate(found) for _ in runs] if grouped else None
    return [read(run) for _, runs in found for run in runs], sides, [str(run) for _, runs in found for run in runs]


def _runs(path: Path) -> list[Path]:
    if not path.is_dir() or (path / "record.json").is_file():
        return [path]
    runs = sorted(inner.parent for inner in path.glob("*/record.json"))
    if not runs:
        raise CompareError(f"there is no record in {path}, nor in a directory right below it")
    return runs
