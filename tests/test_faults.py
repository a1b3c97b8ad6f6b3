"""docs/faults.md names, for each known fault, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS = {"T": 8, "M": 12, "L": 8, "C": 7, "S": 8, "U": 8}
WITHOUT_OPEN_LOOP = {"M7", "M8"}


def test_every_fault_has_its_tests() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \| .* \| (.*) \|$", (ROOT / "docs" / "faults.md").read_text(), re.M)
    assert [name for name, _ in rows] == [f"{k}{i}" for k, n in COUNTS.items() for i in range(1, n + 1)]
    for name, cell in rows:
        tests = re.findall(r"`(\w+\.py)::(\w+)`", cell)
        assert bool(tests) != (name in WITHOUT_OPEN_LOOP), name
        for file, function in tests:
            assert f"def {function}(" in (ROOT / "tests" / file).read_text(), f"{name}: {file}::{function}"
