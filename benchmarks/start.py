"""How fast does it start, and how much does it weigh?

    python benchmarks/start.py [--runs 15] [--no-install]

- `flatout --help`: median of the runs, and `python -c pass` beside it (what any Python program pays). Goal: < 0.3 s.
- What `flatout --help` imports, heaviest first (python -X importtime).
- The core install: `pip install .` without extras into a new environment, which is then removed; its size without pip
  and setuptools, by package. Goal: under 150 MB. Needs a package index, as any install; --no-install leaves it out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
HELP_GOAL_S, SIZE_GOAL_MB = 0.3, 150.0
TOOLS = ("pip", "setuptools", "wheel", "_distutils_hack", "pkg_resources")


def seconds_of(command: list[str], runs: int) -> list[float]:
    """Wall time of each run, after one that is not counted (files come into memory, bytecode is written)."""
    times = []
    for number in range(runs + 1):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        if number:
            times.append(time.perf_counter() - begun)
    return times


def imports(command: list[str], most: int = 12) -> list[tuple[str, float]]:
    """Own import time in ms by top-level package."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], check=True, capture_output=True, text=True, timeout=60
    )
    times: Counter[str] = Counter()
    for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr):
        times[name.split(".")[0]] += int(own)
    return [(name, us / 1e3) for name, us in times.most_common(most)]


def size_bytes(path: Path) -> int:
    """What the files hold; a hard link counts once."""
    seen: dict[tuple[int, int], int] = {}
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            status = file.stat()
            seen[(status.st_dev, status.st_ino)] = status.st_size
    return sum(seen.values())


def install() -> tuple[float, list[tuple[str, float]]]:
    """Size in MB of a new core install, all of it and by folder; the environment is removed again."""
    with tempfile.TemporaryDirectory() as folder:
        source, venv = Path(folder) / "source", Path(folder) / "venv"
        source.mkdir()
        for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, source / name)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
        command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, str(source)], check=True, timeout=600, stdout=subprocess.DEVNULL)
        library = next((venv / "lib").glob("python*/site-packages"))
        parts = [(p.name, size_bytes(p) / 1e6) for p in library.iterdir() if not p.name.startswith(TOOLS)]
        parts.sort(key=lambda part: -part[1])
        return sum(size for _, size in parts), parts


def verdict(value: float, goal: float) -> str:
    return "holds" if value < goal else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--no-install", action="store_true")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    bare = seconds_of([sys.executable, "-c", "pass"], args.runs)
    shown = seconds_of([sys.executable, "-m", "flatout", "--help"], args.runs)
    median = statistics.median(shown)
    print(f"flatout --help: median {median:.3f} s, least {min(shown):.3f} s, most {max(shown):.3f} s of {args.runs}")
    print(
        f"python -c pass: median {statistics.median(bare):.3f} s; goal {HELP_GOAL_S} s: {verdict(median, HELP_GOAL_S)}"
    )
    print("\n| import | own ms |\n|---|---|")
    for name, ms in imports(["-m", "flatout", "--help"]):
        print(f"| {name} | {ms:.1f} |")
    if args.no_install:
        return
    total, parts = install()
    print(f"\ncore install: {total:.0f} MB; goal {SIZE_GOAL_MB:.0f} MB: {verdict(total, SIZE_GOAL_MB)}")
    print("\n| part | MB |\n|---|---|")
    for name, size in parts[:14]:
        print(f"| {name} | {size:.1f} |")


if __name__ == "__main__":
    main()
