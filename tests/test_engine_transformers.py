"""`transformers serve` itself, on a CPU: one request at a time, no gauges, no tokenizer call, no limits, no [DONE].

`make test-transformers` makes the environment and runs this. About two minutes on two cores.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from flatout import record as rec
from flatout.engines.detect import Target, connect
from flatout.engines.probe import probe
from flatout.prompts.text import generate
from tests.engines import serving as s

pytestmark = [pytest.mark.transformers, pytest.mark.timeout(600)]

CONTEXTS = {"256": 256, "1k": 1024}
CONCURRENCY = (1, 2, 4)


@pytest.fixture(scope="module")
def python() -> Path:
    return s.python_of("FLATOUT_TRANSFORMERS", "test-transformers")


@pytest.fixture(scope="module")
def model(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return s.make_model(python, tmp_path_factory.mktemp("transformers") / "model")


@pytest.fixture(scope="module")
def server(python: Path, model: Path) -> Iterator[s.Served]:
    port = s.free_port()
    command = [str(python.with_name("transformers")), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    log = model.with_name("transformers.log")
    with s.serving([*command, "--device", "cpu"], port, log, env={}, limit_s=120) as served:
        yield served


@pytest.fixture
def target(server: s.Served) -> Iterator[Target]:
    made = connect(server.url, environ={})
    yield made
    made.close()


def test_it_is_recognised(target: Target, python: Path, model: Path) -> None:
    asked = "from importlib.metadata import version; print(version('transformers'))"
    installed = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    assert (target.adapter.name, target.model) == ("transformers", str(model))
    assert not target.adapter.has_gauges
    # It tells its version nowhere; where that cannot be read from its process, the reason must stand there.
    version = target.adapter.engine().version
    assert version.value == installed or (version.value is None and version.reason)


def test_the_template_is_counted_by_the_probe(target: Target, model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    found = probe(target)
    assert found.api == "chat"
    assert found.reports.usage
    assert not found.reports.running_counts and not found.reports.token_ids and not found.reports.cached
    assert found.template_tokens is not None
    for seed in range(3):
        text = generate(seed, 400)
        own = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert s.bill(target.client.address.origin, target.model, text, 1)[0] == own + found.template_tokens


def test_a_probe_by_the_protocol_alone_survives_its_refusals(server: s.Served) -> None:
    """It answers 422 to every field that it does not know."""
    target = connect(server.url, engine="generic", environ={})
    try:
        found = probe(target)
    finally:
        target.close()
    dropped = dict(found.dropped)
    assert "ignore_eos" in dropped
    assert "ignore_eos" not in dict(found.fields)
    assert found.reports.usage


@pytest.fixture(scope="module")
def measured(server: s.Served, tmp_path_factory: pytest.TempPathFactory) -> s.Run:
    words = [server.url, "--contexts", ",".join(CONTEXTS), "--concurrency", ",".join(map(str, CONCURRENCY))]
    # Short answers: usage comes with an answer's end only, and on a busy machine 20 tokens may take a second.
    words += ["--time", "4", "--max-output", "32"]
    return s.flatout_run(words, tmp_path_factory.mktemp("matrix"), limit_s=400)


def decode_cells(record: rec.Record) -> list[rec.Cell]:
    return [cell for cell in record.cells if cell.phase == "decode"]


def test_every_cell_is_measured(measured: s.Run) -> None:
    record = measured.record
    assert record.state == "finished", measured.output
    s.assert_measured(measured)
    planned = [(cell.context_tokens, cell.concurrency) for cell in decode_cells(record)]
    assert planned == [(tokens, n) for tokens in CONTEXTS.values() for n in CONCURRENCY]
    assert record.engine.adapter == "transformers"


def test_prompts_are_exactly_as_long_as_the_label(measured: s.Run) -> None:
    for cell in measured.record.cells:
        if cell.phase == "decode":
            assert cell.decode is not None
            assert (cell.decode.prompt_tokens_min, cell.decode.prompt_tokens_max) == (cell.context_tokens,) * 2
        else:
            assert cell.prefill is not None
            assert {sample.prompt_tokens for sample in cell.prefill.samples} == {cell.context_tokens}


def test_tokens_come_from_usage_and_the_rate_from_the_samples(measured: s.Run) -> None:
    """Each token is one event here, so that events are a second count of the same tokens."""
    for cell in decode_cells(measured.record):
        assert cell.tokens is not None and cell.window is not None and cell.decode is not None
        assert cell.tokens.source is not None and cell.tokens.source.split(", ")[0] == "usage"
        events = s.events_in_window(s.columns(measured, cell), cell.window)
        assert cell.tokens.in_window is not None
        assert cell.tokens.in_window == pytest.approx(events, rel=0.02, abs=2)
        assert cell.decode.total_tok_s.value == pytest.approx(cell.tokens.in_window / cell.window.length_s, rel=0.001)


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
