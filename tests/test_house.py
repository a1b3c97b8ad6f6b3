"""The house stands: who may import whom, how long a file and a function may be, what the load core may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.record import schema

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flatout"
FILES = sorted(p for p in SOURCE.rglob("*.py"))

BEFORE: dict[str, set[str]] = {
    "suite": set(),
    "flags": set(),
    "plan": {"suite"},
    "target": set(),
    "host": set(),
    "prompt": set(),
    "load": {"target"},  # its event reader and plain values only; see test_the_load_process_loads_nothing_heavy
    "measure": {"load", "target", "flags"},
    "record": set(),
    "rig": set(),
    "engine": {"prompt"},
    "run": {"suite", "flags", "plan", "target", "host", "prompt", "load", "measure", "record", "calibration"},
    "show": {"record", "flags", "suite", "plan", "run", "load", "compare", "lint", "limits", "calibration"},
    "compare": {"record", "flags", "measure"},
    "lint": {"record", "flags", "suite", "compare", "limits"},
    "limits": {"record", "flags"},
    "calibration": {"record", "host"},
    "calibrate": {"load", "measure", "rig", "target", "run", "record", "host", "flags", "calibration"},
    "publish": {"record", "target", "show"},  # of target: redaction alone
    "site": {"record", "flags", "suite", "show", "compare", "lint", "limits", "calibration", "target", "run"},
}
"""Rooms that each room may import, besides itself. `show` takes from `run` the events, from `load` the samples only."""

TOP = {"cli", "cli_site", "command", "hosting", "reading", "typed", "__main__", "__init__"}


def room(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms of flatout that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "flatout" else [f"flatout.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("flatout.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_each_room_knows_only_the_rooms_before_it(path: Path) -> None:
    here = room(path)
    if here in TOP:
        return
    assert here in BEFORE, f"{here} is no room of the house"
    assert imports(path) - {here} <= BEFORE[here]


def test_show_takes_only_events_from_run() -> None:
    for path in (SOURCE / "show").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatout.run"):
                assert node.module == "flatout.run.events", path
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatout.load"):
                assert node.module == "flatout.load.samples", path


def test_the_site_takes_only_what_it_may() -> None:
    """Of the server's side redaction, of the conductor the writing of files: the site measures nothing."""
    for path in [*(SOURCE / "site").rglob("*.py"), *(SOURCE / "publish").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatout.target"):
                assert node.module == "flatout.target.redact", path
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatout.run"):
                assert node.module == "flatout.run.store", path


def test_the_rig_shares_no_code_with_load_and_measure() -> None:
    for path in (SOURCE / "rig").rglob("*.py"):
        assert not imports(path) & {"load", "measure", "target"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 500, "a file over 500 lines"
    if room(path) == "cli":
        return  # a command's signature lists its options
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{node.name} is over 60 lines"


def test_the_load_process_loads_nothing_heavy() -> None:
    code = "import sys, flatout.load.child; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    roots = {name.split(".")[0] for name in loaded.split()}
    assert not roots & {"httpx", "pydantic", "rich", "typer", "psutil", "prometheus_client", "pynvml"}


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom flatout.cli import app\n"
        "CliRunner().invoke(app, ['--help'])\nprint(' '.join(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    roots = {name.split(".")[0] for name in loaded.split()}
    assert not roots & {"httpx", "pydantic", "numpy", "psutil", "prometheus_client", "msgspec", "fastapi", "sqlalchemy"}


def test_the_schema_in_the_docs_is_the_records() -> None:
    """`python -m flatout.record > docs/flatout-record-1.schema.json` makes it again."""
    written = json.loads((ROOT / "docs" / "flatout-record-1.schema.json").read_text())
    assert written == schema()


def test_the_version_is_told_at_once() -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("flatout ") and time.monotonic() - begun < 30
