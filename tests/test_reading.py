"""The commands that read records: what they write, print and return; what they say of bad input."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.record import dump
from tests import records

SEED = Path(__file__).parent / "fixtures" / "seed" / "speed-test.json"
MODEL = Path(__file__).parent / "fixtures" / "limits" / "qwen3.5-4b.json"


def flatout(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "record.json").write_text(dump(records.seed_page()))
    return tmp_path


def test_a_report_is_a_page_beside_the_record(run: Path) -> None:
    done = flatout("report", run)
    assert done.returncode == 0, done.stderr
    page = run / "page.html"
    assert done.stdout.strip() == str(page) and page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("form", ["--png", "--card"])
def test_pictures(run: Path, form: str) -> None:
    done = flatout("report", run, form, "-o", run / "x.png")
    assert done.returncode == 0, done.stderr
    assert (run / "x.png").read_bytes().startswith(b"\x89PNG")


def test_tables_and_exports_go_to_the_terminal(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(flatout("report", run, "--csv").stdout)))
    assert len(rows) == 55
    assert len(json.loads(flatout("report", run, "--json").stdout)) == 55
    assert flatout("report", run, "--md").stdout.count("|") > 100
    for name in ("llama-bench", "bencher", "github", "localmaxxing", "localmaxxing-all"):
        done = flatout("report", run, "--format", name)
        assert done.returncode == 0 and len(done.stdout) > 100, (name, done.stderr)
    parquet = flatout("report", run, "--parquet")
    assert parquet.returncode == 0 and (run / "cells.parquet").read_bytes()[:4] == b"PAR1"


def test_a_page_with_the_hardwares_limit(run: Path) -> None:
    done = flatout("report", run, "--model", MODEL, "--gpu", "H200 NVL")
    assert done.returncode == 0, done.stderr
    assert "limit" in (run / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--format", "nope"], "llama-bench"), (["--csv", "--md"], "one form"), (["--model", "/nope"], "nope")],
)
def test_what_does_not_go_together_is_wrong_use(run: Path, words: list[str], told: str) -> None:
    done = flatout("report", run, *words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "show", "compare", "lint", "limits"])
def test_what_is_no_record_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "record.json").write_text('{"format": "flatout-record/1", "id": NaN}')
    more = [tmp_path] if command == "compare" else ["--model", MODEL, "--gpu", "H200"] if command == "limits" else []
    done = flatout(command, tmp_path / "record.json", *more)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.startswith("flatout: "), done.stderr
    gone = flatout(command, tmp_path / "absent", *(["x"] if command == "compare" else more))
    assert gone.returncode == 2 and "Traceback" not in gone.stderr, gone.stderr


def test_compare_and_its_gate(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, two = records.seed_page(), records.seed_page()
    for cell in two.cells:
        if cell.decode is not None and cell.decode.total_tok_s.value is not None:
            rate = cell.decode.total_tok_s
            for part in ("value", "low", "high"):
                value = getattr(rate, part)
                setattr(rate, part, value * 0.9 if value is not None else None)
    (tmp_path / "a" / "record.json").write_text(dump(one))
    (tmp_path / "b" / "record.json").write_text(dump(two))
    plain = flatout("compare", tmp_path / "a", tmp_path / "b")
    assert plain.returncode == 0 and "slower" in plain.stdout
    same = flatout("compare", tmp_path / "a", tmp_path / "a", "--fail-if", "total_tok_s < -3%")
    assert same.returncode == 0, same.stdout + same.stderr
    broken = flatout("compare", tmp_path / "a", tmp_path / "b", "--fail-if", "total_tok_s < -3%", "--md")
    assert broken.returncode == 1
    assert json.loads(flatout("compare", tmp_path / "a", tmp_path / "b", "--json").stdout)
    wrong = flatout("compare", tmp_path / "a", tmp_path / "b", "--fail-if", "total_tok_s ?? 3")
    assert wrong.returncode == 2 and "--fail-if" in wrong.stderr


def test_lint_finds_what_is_wrong_with_the_seeds_page() -> None:
    done = flatout("lint", SEED)
    assert done.returncode == 1
    contaminated = done.stdout.split("Completed requests")[0]
    assert contaminated.count("were asked for") == 11
    assert "128K × 2" in done.stdout and "266,240" in done.stdout
    assert json.loads(flatout("lint", SEED, "--json").stdout)


def test_limits_of_the_seeds_page_and_beforehand() -> None:
    done = flatout("limits", SEED, "--model", MODEL)
    assert done.returncode == 0 and "251K" in done.stdout and "%" in done.stdout, done.stderr
    before = flatout("limits", "--model", MODEL, "--gpu", "H200", "--contexts", "8k", "--concurrency", "1,8")
    assert before.returncode == 0 and "8K" in before.stdout, before.stderr
    assert flatout("limits", SEED).returncode == 2
    assert flatout("limits", "--model", MODEL, "--gpu", "no such card").returncode == 2
