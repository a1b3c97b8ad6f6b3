"""Real llama.cpp, in every run: identified, measured, exact to the token, launched and stopped, nothing leaked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from flatout.demo.model import ensure_model
from flatout.demo.start import EngineHandle, running
from flatout.flags import MEASURED
from flatout.load.samples import Samples
from flatout.record import read
from tests.rigged import measure, suite

SUITE = suite(prefill=(256, 600), decode=(256, 600), concurrency=(1, 2, 8))


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineHandle]:
    with running(parallel=4, ctx=4096) as handle:
        yield handle


def test_a_matrix_on_llama_cpp(engine: EngineHandle, tmp_path: Path) -> None:
    run = measure(engine, tmp_path, suite=SUITE)
    record = run.record
    assert record.engine.name.value == "llamacpp" and record.engine.launch_command.value is not None
    assert record.model.quantization.value and record.room.model_length.value == 1024
    assert record.room.max_running.value == 4 and record.room.kv_tokens.value == 4096
    assert record.hardware.describes == "server" and record.client.stamp_clock in ("kernel", "user")
    for cell in record.cells:
        if cell.concurrency == 8 and cell.context_tokens == 600:
            assert cell.status == "over_capacity" and cell.reason
            continue
        assert cell.status in MEASURED, (cell.id, cell.status, cell.reason)
        if cell.decode is not None:
            assert cell.decode.prompt_tokens_min == cell.decode.prompt_tokens_max == cell.context_tokens
            assert cell.tokens is not None and cell.tokens.source == "running counts"
            assert "cache_cold" not in [f.name for f in cell.flags]
        if cell.prefill is not None:
            assert cell.prefill.prompt_tokens == cell.context_tokens
            assert [s.cached_tokens for s in cell.prefill.samples if s.used]
    assert run.cell("d/256/8").status in ("requests_queued", "doubtful")


def test_every_figure_can_be_computed_again_from_the_samples(engine: EngineHandle, tmp_path: Path) -> None:
    run = measure(engine, tmp_path, suite=suite(concurrency=(2,)))
    cell = run.cell("d/256/2")
    assert cell.window is not None and cell.decode is not None and cell.samples is not None
    samples = Samples.read(run.directory / cell.samples)
    assert samples.texts is None, "generated text does not go into files"
    tokens = 0
    for r in range(samples.requests):
        rows = samples.arrivals_of(r)
        running_counts = np.concatenate(([0], samples.running_tokens[rows]))
        inside = (samples.t_ns[rows] >= cell.window.open_ns) & (samples.t_ns[rows] < cell.window.close_ns)
        tokens += int(np.diff(running_counts)[inside].sum())
    assert cell.decode.total_tok_s.value == pytest.approx(tokens / cell.window.length_s)


def test_completions_take_token_ids_where_the_server_does(engine: EngineHandle, tmp_path: Path) -> None:
    run = measure(engine, tmp_path, suite=suite(prefill=(300,), concurrency=(2,)), api="completions")
    assert run.record.protocol.prompt_count == "token ids"
    assert run.cell("p/300").prefill is not None and run.cell("p/300").prefill.prompt_tokens == 300  # type: ignore[union-attr]


def test_launch_starts_measures_and_stops_and_keeps_the_key_to_itself(tmp_path: Path) -> None:
    key = "sk-launch-0123456789abcdef"
    model = ensure_model()
    command = f"{sys.executable} -m flatout.demo --model {model} --parallel 2 --ctx 2048 --port 18987 --api-key {key}"
    words = [
        sys.executable, "-m", "flatout", "run", "--launch", command, "--api-key", key, "--contexts", "256",
        "--concurrency", "1", "--time", "1", "--max-output", "64",
        "--no-warmup", "--results", str(tmp_path / "r"), "--json",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert json.loads(done.stdout)
    (path,) = (tmp_path / "r").glob("*/record.json")
    record = read(path)
    assert "--api-key" in str(record.engine.launch_command.value) and record.engine.launch_command.source == "typed"
    for file in (tmp_path / "r").rglob("*"):
        assert not file.is_file() or key.encode() not in file.read_bytes(), file
    assert key not in done.stdout and key not in done.stderr
    assert not [p for p in psutil.process_iter(["cmdline"]) if "18987" in " ".join(p.info["cmdline"] or [])]


def test_a_server_that_will_not_start_says_why(tmp_path: Path) -> None:
    command = f"{sys.executable} -m flatout.demo --model {tmp_path / 'absent.gguf'} --port 18988"
    words = [sys.executable, "-m", "flatout", "run", "--launch", command, "--results", str(tmp_path / "r")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "absent.gguf" in done.stderr and "Traceback" not in done.stderr


def test_demo_ends_with_a_matrix_and_a_record(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flatout", "demo", "--results", str(tmp_path), "--plain"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 3), done.stderr
    (path,) = tmp_path.glob("*/record.json")
    record = read(path)
    assert record.state == "finished" and "random" in done.stderr
    assert len(record.cells) == 2 + 6 and all(c.status in MEASURED for c in record.cells)
    assert "Decode" in done.stdout and str(path) in done.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "flatout", "show", str(path.parent), "--md"], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0 and shown.stdout.count("|") > 20
