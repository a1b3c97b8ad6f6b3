"""Every picture of a page in README and docs, from measurements that flatout makes here.

    python -m benchmarks.pictures [--seed RECORD] [--demo RECORD]        # make pictures

`page-wide.png`, `page-phone.png`: flatout against the rig with the published page's speeds (a part of its matrix,
nothing scaled); `page-demo.png`, `page-demo-dark.png`: `flatout demo`. `--seed`, `--demo`: a run's directory made
before, instead of a new one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.seed_truth import PAGE, TOKENS_PER_EVENT
from tests.chromium import ARGUMENTS, CHROMIUM, NONE

from flatout.rig import RigConfig, running
from flatout.rig.config import profile_from_seed

DOCS: Final = Path(__file__).parents[1] / "docs"
MATRIX: Final = (
    "--contexts", "8k,16k,32k,64k", "--concurrency", "1,2,4,8,16", "--time", "3", "--max-output", "4096",
    "--hardware", "gpu=flatout's rig", "--plain",
)  # fmt: skip
WIDE: Final = (1280, 1500)
PHONE: Final = (390, 900)


def run(*words: str, results: Path) -> Path:
    """`flatout …` in that folder, as a person types it. Returns the run's directory; exits where nothing came out."""
    results.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("flatout")), *words, "--results", "."]
    if subprocess.run(command, check=False, cwd=results).returncode not in (0, 3):
        raise SystemExit(f"no run came out of: {' '.join(words)}")
    return max(results.glob("*/record.json")).parent


def seed(results: Path) -> Path:
    config = RigConfig.from_dict(
        {**profile_from_seed(PAGE, rates="total"), "dialect": "sglang", "tokens_per_event": TOKENS_PER_EVENT}
    )
    with running(config) as rig:
        return run("run", rig.url, *MATRIX, results=results)


def shoot(record: Path, name: str, size: tuple[int, int], *, dark: bool = False) -> None:
    """A screenshot of the record's page, as the first screens of a window of that size show it."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit(NONE)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "flatout", "report", str(record), "-o", str(page_file)], check=True)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
        )
        page.goto(page_file.as_uri())
        page.screenshot(path=DOCS / name)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=Path, help="the directory of a run against the rig")
    parser.add_argument("--demo", type=Path, help="the directory of a demo run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = args.seed or seed(Path(folder) / "seed")
        shoot(measured, "page-wide.png", WIDE)
        shoot(measured, "page-phone.png", PHONE)
        demo = args.demo or run("demo", "--plain", results=Path(folder) / "demo")
        shoot(demo, "page-demo.png", WIDE)
        shoot(demo, "page-demo-dark.png", WIDE, dark=True)
    print(f"pictures are in {DOCS}")


if __name__ == "__main__":
    main()
