"""Bad input: one clear sentence each, the cell fails with the server's words, the rest goes on, nothing is lost."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flatout.engines.base import TargetError
from flatout.flags import MEASURED
from flatout.load.job import Timeouts
from flatout.record import Record, read
from flatout.run import conduct
from flatout.run.begin import ResumeError
from flatout.run.events import CellDone, Control, Doing, Note, Started
from tests.rigged import flags, measure, rig, suite, when

FLATOUT = [sys.executable, "-m", "flatout"]
SHORT = ["--contexts", "256", "--prefill", "none", "--concurrency", "1", "--time", "1", "--max-output", "64"]
SHORT += ["--no-warmup"]
UNCOUNTED = {"usage": "none", "refuse_fields": ["stream_options.continuous_usage_stats"]}
PLAIN = {"dialect": "vllm", "decode_tok_s": 300}


def run_cli(*words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FLATOUT, *words], capture_output=True, text=True, timeout=timeout_s, check=False)


def only_record(results: Path) -> Record:
    (path,) = results.glob("*/record.json")
    return read(path)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_url_that_is_no_server(tmp_path: Path) -> None:
    done = run_cli("run", f"http://127.0.0.1:{free_port()}", "--results", str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("flatout: ") and "nothing listens" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_wrong_key_and_a_wrong_model_are_named(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "api_key": "sk-right-1234567890"}) as server:
        with pytest.raises(TargetError, match="key is wrong") as caught:
            measure(server, tmp_path, key="sk-wrong-1234567890")
        assert caught.value.kind == "auth" and "sk-wrong" not in str(caught.value)
        with pytest.raises(TargetError, match="rig-model") as caught:
            measure(server, tmp_path, key="sk-right-1234567890", model="no-such")
        assert caught.value.kind == "model"
        run = measure(server, tmp_path, key="sk-right-1234567890")
    assert run.cell("d/256/1").status in MEASURED
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-right-1234567890" not in path.read_bytes()


def test_u2_an_untrusted_certificate_is_said_with_the_way_out(tmp_path: Path) -> None:
    import trustme

    authority, other = trustme.CA(), trustme.CA()
    chain = authority.issue_cert("127.0.0.1")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    cert.write_bytes(b"".join(b.bytes() for b in chain.cert_chain_pems))
    key.write_bytes(chain.private_key_pem.bytes())
    authority.cert_pem.write_to_path(ca)
    wrong = tmp_path / "wrong.pem"
    other.cert_pem.write_to_path(wrong)
    with rig({"dialect": "vllm", "certfile": str(cert), "keyfile": str(key)}) as server:
        for options in ({}, {"ca_file": str(wrong)}):
            with pytest.raises(TargetError, match=r"--ca|--insecure") as caught:
                measure(server, tmp_path / "r", **options)
            assert caught.value.kind == "tls"
        trusted = measure(server, tmp_path / "a", ca_file=str(ca))
        unchecked = measure(server, tmp_path / "b", insecure=True)
    assert trusted.cell("d/256/1").status in MEASURED and unchecked.cell("d/256/1").status in MEASURED
    assert trusted.record.protocol.tls


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"error_after_tokens": 5}, "error"),
        ({"truncate_after_tokens": 5}, "finish"),
        ({"truncate_after_tokens": 5, "truncate_mode": "reset"}, "reset"),
        ({"truncate_after_tokens": 5, "truncate_mode": "clean_end"}, "finish"),
        ({"bad_json_at": 3}, "JSON"),
        ({"hang_after_tokens": 5}, "no further token"),
        ({"html": True}, "HTML"),
    ],
)
def test_s3_s5_a_server_that_breaks_off_fails_its_cells(tmp_path: Path, knobs: dict, told: str) -> None:
    """It turns bad once the run has begun: the cells fail with its words, the record stands, exit code 3."""
    with rig(PLAIN) as server:
        run = measure(
            server, tmp_path, on_event=when(Started, "", lambda: server.control(**knobs)),
            suite=suite(concurrency=(1, 2), max_output=64), timeouts=Timeouts(2.0, 3.0, 0.8, 20.0),
        )  # fmt: skip
    assert read(run.directory).state == "finished"
    for cell in run.record.cells:
        assert cell.status == "failed", (cell.status, cell.reason)
        assert cell.decode is None or cell.decode.total_tok_s.value is None or cell.error
    words = " ".join(c.error or "" for c in run.record.cells)
    assert told.lower() in words.lower(), words
    assert conduct.exit_code(run.record) == conduct.EXIT_DOUBT


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 200, "die_after_tokens": 450}) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(1, 2, 4, 8, 16)), drain_s=2.0)
    states = [c.status for c in run.record.cells]
    assert states[0] in MEASURED and "failed" in states
    assert all(c.reason for c in run.record.cells if c.status not in ("valid",))
    assert conduct.exit_code(run.record) == conduct.EXIT_DOUBT
    assert read(run.directory) == run.record


def test_a_ten_megabyte_event_is_read(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 100, "huge_event_at": 20}) as server:
        run = measure(server, tmp_path)
    assert run.cell("d/256/1").decode is not None


def test_rate_limits_are_respected_counted_and_never_stormed(tmp_path: Path) -> None:
    """429 with Retry-After (generic server): no request before its time; the cell says how many were refused."""
    knobs = {"dialect": "openai", "decode_tok_s": 300, "rate_limit_per_s": 3.0, "retry_after_s": 1.0}
    with rig(knobs) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(2,)))
    cell, arrivals = run.cell("d/256/2"), run.truth.arrival_ns
    assert cell.status != "failed", cell.error
    assert sum(reason.startswith("refused") for reason in run.truth.reason) > 0
    span_s = (arrivals.max() - arrivals.min()) / 1e9
    assert len(arrivals) <= 6 * span_s + 12, "refused requests were repeated too fast"


def test_a_token_budget_is_kept(tmp_path: Path) -> None:
    with rig({"dialect": "openai", "decode_tok_s": 300}) as server:
        test = suite(prefill=(256,), concurrency=(1, 2, 4))
        run = measure(server, tmp_path, suite=test, max_tokens_total=3000)
    spent = sum(run.record.tokens_spent.values())
    assert 0 < spent <= 3000
    left = [c for c in run.record.cells if c.status == "not_run"]
    assert left and all("budget" in (c.reason or "") for c in left)


def test_u7_a_second_run_never_overwrites_the_first(tmp_path: Path) -> None:
    with rig(PLAIN) as server:
        first = measure(server, tmp_path)
        second = measure(server, tmp_path)
    assert first.directory != second.directory
    assert read(first.directory).id == first.record.id


def test_resume_measures_only_what_is_missing_and_refuses_another_server(tmp_path: Path) -> None:
    control = Control()
    test = suite(concurrency=(1, 2, 4))
    with rig(PLAIN) as server:
        stop = when(CellDone, "", lambda: control.stop("a test"))
        run = measure(server, tmp_path, control, stop, suite=test)
        record, directory = run.record, run.directory
        assert record.state == "interrupted" and [c.status in MEASURED for c in record.cells] == [True, False, False]
        assert all(c.reason for c in record.cells[1:])
        with pytest.raises(ResumeError, match="options"):
            measure(server, tmp_path, suite=suite(concurrency=(1, 2, 4), time_s=1.5, min_time_s=1.5), resume=directory)
        again = measure(server, tmp_path, suite=test, resume=directory)
    assert again.directory == directory and again.record.id == record.id
    assert again.record.cells[0] == record.cells[0], "what was measured stays as it is"
    assert all(c.status in MEASURED for c in again.record.cells)
    with rig({**PLAIN, "version": "9.9.9"}) as other, pytest.raises(ResumeError, match="version"):
        measure(other, tmp_path, suite=test, resume=directory)


def test_u3_ctrl_c_writes_a_partial_record_and_a_second_one_ends_at_once(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 100}) as server:
        words = [
            *FLATOUT, "run", server.url, "--results", str(tmp_path), "--contexts", "256", "--prefill", "none",
            "--concurrency", "1", "--time", "60", "--no-warmup", "--plain",
        ]  # fmt: skip
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _until_measuring(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 3, (out, err)
        record = only_record(tmp_path)
        assert record.state == "interrupted" and "user" in (record.state_reason or "")
        assert "Traceback" not in err
        assert not orphans("flatout.load")


def _until_measuring(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if "measuring" in process.stderr.readline():
            return
    raise AssertionError("it did not begin to measure")


def orphans(name: str) -> list[psutil.Process]:
    """Processes with that name in their command line whose parent is gone."""
    ours = [p for p in psutil.process_iter(["cmdline", "ppid"]) if name in " ".join(p.info["cmdline"] or [])]
    return [p for p in ours if p.info["ppid"] == 1]


def test_the_summary_as_json_is_json(tmp_path: Path) -> None:
    with rig(PLAIN) as server:
        done = run_cli("run", server.url, "--results", str(tmp_path), *SHORT, "--json")
    summary = json.loads(done.stdout)
    assert summary and done.returncode == conduct.exit_code(only_record(tmp_path)), (done.stdout, done.stderr)


def test_a_dry_run_generates_nothing(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "kv_tokens": 5000}) as server:
        done = run_cli("run", server.url, "--dry-run", "--suite", "quick", "--results", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "over capacity" in done.stdout and "KV need" in done.stdout
        assert len(server.log().arrival_ns) == 0
    assert not list(tmp_path.iterdir())


def test_a_burst_in_which_all_fail_is_failed_with_the_servers_words(tmp_path: Path) -> None:
    with rig(PLAIN) as server:
        spoil = when(Started, "", lambda: server.control(error_after_tokens=5))
        (cell,) = measure(server, tmp_path, on_event=spoil, requests=4).record.cells
    assert cell.status == "failed" and cell.error, (cell.status, cell.reason)


def test_refusals_of_a_burst_are_counted(tmp_path: Path) -> None:
    knobs = {"dialect": "openai", "decode_tok_s": 400, "rate_limit_per_s": 3.0, "retry_after_s": 1.0}
    with rig(knobs) as server:
        time.sleep(1.5)
        run = measure(server, tmp_path, requests=6)
    (cell,) = run.record.cells
    assert cell.burst is not None and cell.burst.rate_limited > 0
    assert cell.burst.completed == 6


def test_prompts_that_nobody_counts_are_marked_as_estimates(tmp_path: Path) -> None:
    with rig({"dialect": "openai", "decode_tok_s": 300, **UNCOUNTED}) as server:
        run = measure(server, tmp_path, suite=suite(prefill=(256,), decode=()))
    cell = run.cell("p/256")
    assert "tokens_estimated" in flags(cell) and run.record.prompts.exact is None
    assert cell.prefill is not None and all(s.prompt_tokens is None for s in cell.prefill.samples)
    low = cell.prefill.prefill_tok_s.low
    assert low is None or low >= 0


def test_a_budget_counts_prompts_that_the_server_does_not(tmp_path: Path) -> None:
    with rig({"dialect": "openai", "decode_tok_s": 300, **UNCOUNTED}) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(1,)))
        true = int(run.truth.prompt_tokens[run.truth.prompt_tokens >= 200].sum())
    assert run.record.tokens_spent["prompt"] >= 0.9 * true > 0


def test_a_server_that_dies_in_the_window_fails_the_cell(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 100}) as server:
        die = when(Doing, "measuring 256 × 2: 1", server.stop)
        test = suite(concurrency=(2,), time_s=3.0, min_time_s=3.0)
        (cell,) = measure(server, tmp_path, on_event=die, suite=test, drain_s=2.0).record.cells
    assert cell.status == "failed" and cell.decode is None, (cell.status, cell.reason)


def kill_the_load() -> None:
    """Kills this process's load processes."""
    children = [c for c in psutil.Process().children(recursive=True) if "flatout.load" in " ".join(c.cmdline())]
    assert children
    for child in children:
        child.kill()


def test_a_machine_that_cannot_open_so_many_files_does_not_warm_what_those_cells_need(tmp_path: Path) -> None:
    with rig(PLAIN) as server:
        words = ["ulimit -Hn 200; ulimit -n 200; exec", *FLATOUT, "run", server.url, *SHORT, "--concurrency", "1,150"]
        words = " ".join([*words, "--results", str(tmp_path), "--plain"])
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=200, check=False)
        sent = server.log().rid
    record = only_record(tmp_path)
    by_id = {c.id: c for c in record.cells}
    assert by_id["d/256/1"].status in MEASURED, (done.stderr, by_id["d/256/1"].reason)
    cell = by_id["d/256/150"]
    assert cell.status == "not_run" and "allows 92 simultaneous requests, not 150" in (cell.reason or ""), cell
    assert len(sent) < 100, "150 contexts were sent for a cell that cannot run"


def test_a_load_process_that_is_killed_costs_its_cell_only(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 100}) as server:
        kill = when(Doing, "measuring 256 × 1:", kill_the_load)
        cells = measure(server, tmp_path, on_event=kill, suite=suite(concurrency=(1, 2))).record.cells
    assert [c.status == "failed" for c in cells] == [True, False]
    assert cells[1].status in MEASURED


def test_a_load_process_that_is_killed_in_the_second_go_leaves_the_first_and_the_next_cell(tmp_path: Path) -> None:
    knobs = {"dialect": "sglang", "decode_tok_s": 50, "leftover": True, "leftover_abortable": False}
    with rig(knobs) as server:
        kill = when(Note, "contaminated: once more", kill_the_load)
        test = suite(concurrency=(4, 8, 16), max_output=400)
        record = measure(server, tmp_path, on_event=kill, suite=test, drain=False).record
    first, second, third = record.cells
    assert second.attempts and second.status == "doubtful" and second.decode is not None, (second.status, second.reason)
    assert first.status in MEASURED and third.status in MEASURED, (third.status, third.reason)
    assert any("started anew" in w for w in record.warnings)


def test_a_stop_while_draining_keeps_what_was_measured(tmp_path: Path) -> None:
    control = Control()
    with rig({"dialect": "sglang", "decode_tok_s": 100, "leftover": True, "leftover_abortable": False}) as server:
        stop = when(Doing, "draining", lambda: control.stop("a test"))
        run = measure(server, tmp_path, control, stop, suite=suite(concurrency=(2, 4), max_output=600))
    assert run.record.state == "interrupted" and run.record.cells[0].decode is not None
    assert run.record.cells[0].finished and read(run.directory) == run.record


def test_leftover_work_does_not_spoil_what_an_idle_server_is_known_by(tmp_path: Path) -> None:
    """No gauges: the unloaded speed is taken before anything ran, so that slower probes later tell of what is left."""
    knobs = {"dialect": "openai", "capacity_tok_s": 400, "leftover": True, "leftover_limit_s": 4.0}
    with rig(knobs) as server:
        test = suite(concurrency=(1,), time_s=1.5, min_time_s=1.5, max_output=400)
        run = measure(server, tmp_path, suite=test, warmup=True, drain_s=20.0)
    cell = run.cell("d/256/1")
    assert cell.decode is not None and cell.window is not None and cell.decode.total_tok_s.value is not None
    running = run.truth.running_mean(cell.window.open_ns, cell.window.close_ns)
    assert running <= 1.05 or "contaminated" in flags(cell), running


def test_a_run_without_stderr_measures_all_the_same(tmp_path: Path) -> None:
    with rig(PLAIN) as server:
        words = [*FLATOUT, "run", server.url, *SHORT, "--results", str(tmp_path)]
        done = subprocess.run(["bash", "-c", " ".join(words) + " 2>&-"], capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 3) and only_record(tmp_path).cells[0].status in MEASURED, done.stdout
