"""What a run says of a server that has limits, leaves work over, stalls or lies: against the rig and its log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flatout.engines.base import Live
from flatout.engines.vllm import Vllm
from flatout.run import conduct
from flatout.run.events import Doing
from tests.rigged import flags, measure, rig, status, suite, total_is_the_logs, when


@pytest.fixture
def same_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prompts in each go: by how few tokens siblings with other (random) heads differ is chance."""
    monkeypatch.setattr("flatout.prompts.book.secrets.randbits", lambda bits: 1)


def test_queue_capacity_and_length_have_their_statuses(tmp_path: Path) -> None:
    knobs = {"dialect": "vllm", "decode_tok_s": 200, "model_len": 2048, "kv_tokens": 3000, "max_running": 4}
    with rig(knobs) as server:
        test = suite(decode=(256, 4096), concurrency=(1, 8, 16), max_output=64)
        run = measure(server, tmp_path, suite=test)
    assert status(run.cell("d/256/1")) == "valid"
    assert run.cell("d/4096/1").status == "over_length" and "2,048" in (run.cell("d/4096/1").reason or "")
    assert run.cell("d/256/16").status == "over_capacity"
    queued = run.cell("d/256/8")
    assert status(queued) == "requests_queued" and queued.decode is not None and queued.window is not None
    true_running = run.truth.running_mean(queued.window.open_ns, queued.window.close_ns)
    assert queued.decode.active_server_mean == pytest.approx(true_running, rel=0.05)
    assert "4" in (queued.reason or "")
    doubtful = any(c.status == "doubtful" for c in run.record.cells)
    assert conduct.exit_code(run.record) == (conduct.EXIT_DOUBT if doubtful else conduct.EXIT_OK)
    assert [c.id for c in run.record.cells] == run.record.plan.order


def test_l4_leftover_work_of_the_cell_before_is_drained(tmp_path: Path) -> None:
    """SGLang goes on after a hang-up; flatout cancels by request id and waits, so the next cell is clean."""
    knobs = {"dialect": "sglang", "decode_tok_s": 100, "leftover": True}
    with rig(knobs) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(4, 8), max_output=400))
    for cell in run.record.cells:
        assert status(cell) == "valid", (cell.status, cell.reason, cell.flags)
        assert cell.window is not None
        assert run.truth.running_mean(cell.window.open_ns, cell.window.close_ns) <= cell.concurrency * 1.01


def test_l4_leftover_work_is_flagged_where_draining_is_off(tmp_path: Path) -> None:
    knobs = {"dialect": "sglang", "decode_tok_s": 50, "leftover": True, "leftover_abortable": False}
    with rig(knobs) as server:
        test = suite(concurrency=(4, 8), max_output=400)
        run = measure(server, tmp_path, suite=test, drain=False)
    cell = run.cell("d/256/8")
    assert cell.window is not None
    assert run.truth.running_mean(cell.window.open_ns, cell.window.close_ns) > 8 * 1.05
    assert cell.status == "doubtful" and "contaminated" in flags(cell)
    assert cell.attempts, "a contaminated cell is measured once more"
    assert conduct.exit_code(run.record) == conduct.EXIT_DOUBT


def test_other_traffic_that_does_not_end_is_named(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 50}) as server:
        server.control(plant={"requests": 3, "tokens": 100_000, "context": 64})
        run = measure(server, tmp_path, drain_s=1.0)
    cell = run.cell("d/256/1")
    assert cell.status == "doubtful" and "contaminated" in flags(cell)
    assert any("not ours" in f.detail or "ran" in f.detail for f in cell.flags)


def test_m10_a_stall_lowers_the_rate(tmp_path: Path) -> None:
    """The window's own length divides, so silence makes a server look slower, never faster."""
    with rig({"dialect": "vllm", "decode_tok_s": 100}) as server:
        stall = when(Doing, "measuring 256 × 4: 1 of", lambda: server.control(stall_now_s=60.0))
        test = suite(concurrency=(4,), time_s=2.0, min_time_s=2.0, max_output=1000)
        run = measure(server, tmp_path, on_event=stall, suite=test)
    cell = run.cell("d/256/4")
    assert cell.decode is not None and cell.window is not None
    assert 0 < run.truth.tok_s(cell.window.open_ns, cell.window.close_ns) < 0.9 * 400
    assert total_is_the_logs(run, cell.id, within=0.003)
    assert cell.decode.longest_gap_open and (cell.decode.longest_gap_ms or 0) > 100


def test_l2_no_number_where_not_all_streams_run(tmp_path: Path) -> None:
    knobs = {"dialect": "openai", "decode_tok_s": 100, "ttft_ms": 10, "prefill_tok_s": 400, "cache": False}
    with rig(knobs) as server:
        run = measure(server, tmp_path, steady_s=0.1, drain_s=5.0, suite=suite(concurrency=(2,)))
    cell = run.cell("d/256/2")
    assert cell.status == "no_steady_state" and cell.decode is None
    assert "first token" in (cell.reason or "")
    assert conduct.exit_code(run.record) == conduct.EXIT_DOUBT


@pytest.mark.usefixtures("same_heads")
def test_prompts_are_exact_and_cold_ones_are_cold(tmp_path: Path) -> None:
    """C1 to C5: by the tokenizer call, by usage of siblings, by token ids; each against the rig's log."""
    for dialect, options in (
        ("vllm", {}),
        ("openai", {}),
        ("llamacpp", {"api": "completions"}),
        ("sglang", {"api": "completions"}),
    ):
        with rig({"dialect": dialect, "decode_tok_s": 300, "prefill_tok_s": 50_000}) as server:
            test = suite(prefill=(300, 1000), decode=(300,), concurrency=(2,))
            run = measure(server, tmp_path / dialect, suite=test, **options)
        counts = {"vllm": "the server's tokenizer call", "openai": "usage of sibling prompts"}
        assert run.record.protocol.prompt_count == counts.get(dialect, "token ids")
        for tokens in (300, 1000):
            cell = run.cell(f"p/{tokens}")
            assert cell.prefill is not None
            used = [s for s in cell.prefill.samples if s.used]
            assert len(used) >= 3
            assert all((s.cached_tokens or 0) <= 16 + 8 for s in used)
            told = [s.prompt_tokens for s in used]
            near = 3 if dialect == "openai" else 0  # nothing counts before sending: what was really sent is recorded
            assert all(abs((n or 0) - tokens) <= near for n in told), (dialect, told)
            assert set(told) <= set(run.truth.prompt_tokens.tolist())
        decode = run.cell("d/300/2").decode
        assert decode is not None and decode.prompt_tokens_min is not None and decode.prompt_tokens_max is not None
        assert abs(decode.prompt_tokens_min - 300) <= near and abs(decode.prompt_tokens_max - 300) <= near


def test_a_server_that_cuts_prompts_in_silence_is_found_out(tmp_path: Path) -> None:
    with rig({"dialect": "openai", "decode_tok_s": 300, "model_len": 700, "truncate_silently": True}) as server:
        run = measure(server, tmp_path, suite=suite(prefill=(256, 2000), decode=(256, 2000), concurrency=(1,)))
    for cell in (run.cell("p/256"), run.cell("d/256/1")):
        assert status(cell) == "valid", (cell.status, cell.reason, cell.flags)
    for cell in (run.cell("p/2000"), run.cell("d/2000/1")):
        assert cell.status == "over_length" and "silence" in (cell.reason or "") and cell.decode is None


def test_prefill_speed_is_that_of_the_log(tmp_path: Path) -> None:
    with rig({"dialect": "sglang", "prefill_tok_s": 5000, "ttft_ms": 5}) as server:
        run = measure(server, tmp_path, suite=suite(prefill=(2000,), decode=(), prefill_samples=5))
    cell = run.cell("p/2000")
    assert status(cell) == "valid", (cell.status, cell.reason, cell.flags)
    assert cell.prefill is not None and cell.prefill.ttft_ms.p50 is not None
    cold = run.truth.ttft_ms()[run.truth.prompt_tokens == 2000]
    assert cell.prefill.ttft_ms.p50 == pytest.approx(float(sorted(cold)[len(cold) // 2]), rel=0.02)
    assert cell.prefill.prefill_tok_s.value == pytest.approx(2000 / (cell.prefill.ttft_ms.p50 / 1e3), rel=0.02)


def test_a_hybrids_cache_takes_more_than_one_send(tmp_path: Path) -> None:
    with rig({"dialect": "sglang", "decode_tok_s": 300, "prefill_tok_s": 5000, "cache_after_sends": 2}) as server:
        run = measure(server, tmp_path, suite=suite(decode=(1000,), concurrency=(2,)))
    cell = run.cell("d/1000/2")
    assert status(cell) == "valid" and "cache_cold" not in flags(cell), (cell.reason, cell.flags)
    assert cell.decode is not None and cell.decode.cold_ttft_ms is not None and cell.decode.ttft_ms.p50 is not None
    assert cell.decode.ttft_ms.p50 < cell.decode.cold_ttft_ms / 2


def test_a_cache_that_is_off_is_said(tmp_path: Path) -> None:
    with rig({"dialect": "sglang", "decode_tok_s": 300, "prefill_tok_s": 20_000, "cache": False}) as server:
        run = measure(server, tmp_path, suite=suite(decode=(1000,), concurrency=(4,)))
    assert "cache_cold" in flags(run.cell("d/1000/4"))
    assert any("prefix cache" in w for w in run.record.warnings)
    launched = next(rid for rid in run.truth.rid if rid.endswith("-1-0"))  # the first job of several streams
    assert launched.split("-")[2] == "7", "four cold contexts, the first twice more, and the others not in vain"


def test_contexts_too_short_for_the_cache_do_not_keep_longer_ones_cold(tmp_path: Path) -> None:
    knobs = {"dialect": "vllm", "decode_tok_s": 300, "prefill_tok_s": 20_000, "cache_block_tokens": 128}
    with rig({**knobs, "report_cached": True}) as server:
        run = measure(server, tmp_path, suite=suite(decode=(100, 1000), concurrency=(2,)))
    assert "cache_cold" not in flags(run.cell("d/1000/2"))
    made = run.cell("d/1000/2").decode
    assert made is not None and made.cached_tokens_mean is not None and made.cached_tokens_mean > 800


def test_t7_early_stop_and_s8_looping_are_flagged(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 300, "stop_after_tokens": 20}) as server:
        run = measure(server, tmp_path / "stop")
    assert "early_stop" in flags(run.cell("d/256/1"))
    with rig({"dialect": "vllm", "decode_tok_s": 300, "loop_text": "all work and no play "}) as server:
        run = measure(server, tmp_path / "loop", suite=suite(max_output=200))
    assert "looping" in flags(run.cell("d/256/1"))
    assert run.cell("d/256/1").status == "doubtful"


def test_burst_mode_counts_from_the_first_send_to_the_last_end(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 200}) as server:
        run = measure(server, tmp_path, requests=6)
    cell = run.cell("b/256/6")
    assert status(cell) == "valid", (cell.status, cell.reason, cell.flags)
    assert cell.burst is not None and cell.burst.completed == 6
    mine = run.truth.max_tokens == 64
    span_s = (run.truth.end_ns[mine].max() - run.truth.arrival_ns[mine].min()) / 1e9
    assert cell.burst.end_to_end_tok_s.value == pytest.approx(6 * 64 / span_s, rel=0.03)


def test_shared_prompts_are_one_context_and_part_of_the_suites_name(tmp_path: Path) -> None:
    with rig({"dialect": "sglang", "decode_tok_s": 300}) as server:
        run = measure(server, tmp_path, suite=suite(prompts="shared", concurrency=(4,)))
    assert run.record.plan.suite.endswith("+shared")
    assert len([k for k in run.record.prompts.hashes if k.startswith("c/")]) == 1
    assert status(run.cell("d/256/4")) == "valid"


def test_more_tokens_than_asked_for_is_no_sound_count(tmp_path: Path) -> None:
    """A generic server that bills more than `max_tokens` allows: the count is wrong, and nothing else would tell."""
    with rig({"dialect": "openai", "decode_tok_s": 300, "usage_extra_tokens": 64}) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(2,)))
    cell = run.cell("d/256/2")
    assert cell.status == "doubtful" and "counters_disagree" in flags(cell)


@pytest.mark.usefixtures("same_heads")
def test_a_tokenizer_call_that_lies_is_not_trusted(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 300}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vllm, "count_chat_tokens", lambda self, text: max(1, len(text) // 40))
        run = measure(server, tmp_path, suite=suite(prefill=(300,), decode=(300,), concurrency=(1,)))
    assert any("disagree" in w for w in run.record.warnings)
    cell = run.cell("p/300")
    assert cell.prefill is not None
    told = [s.prompt_tokens for s in cell.prefill.samples if s.used]
    assert all(abs((n or 0) - 300) <= 6 for n in told), told
    assert set(told) <= set(run.truth.prompt_tokens.tolist())


def test_t5_reasoning_that_is_not_streamed_does_not_stop_the_run(tmp_path: Path) -> None:
    with rig({"dialect": "openai", "decode_tok_s": 400, "hidden_tokens": 50}) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(2,), max_output=200))
    cell = run.cell("d/256/2")
    assert cell.decode is not None and cell.tokens is not None and cell.status != "failed", cell.reason
    assert cell.tokens.reasoning_unstreamed


def test_what_a_server_repeats_of_a_key_reaches_no_file(tmp_path: Path) -> None:
    """A finish reason, an error, in the samples too: everything the server says is redacted before it is written."""
    key = "sk-abcdefghijklmnop1234567890"
    with rig({"dialect": "openai", "api_key": key, "decode_tok_s": 300, "loop_text": f"{key} "}) as server:
        measure(server, tmp_path, key=key)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".npz":
            with np.load(path) as archive:
                data += archive["meta"].tobytes()
        assert key.encode() not in data and key[3:20].encode() not in data, path


def test_gauges_that_say_nothing_are_replaced_by_probes(tmp_path: Path) -> None:
    with rig({"dialect": "vllm", "decode_tok_s": 300}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vllm, "live", lambda self: Live(t_ns=1))
        run = measure(server, tmp_path, drain_s=20.0)
    assert run.cell("d/256/1").decode is not None
    assert any("watched by probes" in w for w in run.record.warnings)


def test_t5_the_first_answer_stands_apart_from_the_first_token(tmp_path: Path) -> None:
    thinking = 20
    with rig({"dialect": "vllm", "decode_tok_s": 200, "reasoning_tokens": thinking}) as server:
        run = measure(server, tmp_path, suite=suite(concurrency=(4,), max_output=60, time_s=3.0, min_time_s=3.0))
    cell = run.cell("d/256/4")
    assert cell.decode is not None and cell.decode.ttft_answer_ms is not None and cell.window is not None
    truth, waits = run.truth, []
    for request in range(len(truth.arrival_ns)):
        events = truth.event_ns[truth.event_request == request]
        if len(events) > thinking and cell.window.open_ns <= events[thinking] < cell.window.close_ns:
            waits.append((events[thinking] - truth.arrival_ns[request]) / 1e6)
    assert cell.decode.ttft_answer_ms.n == len(waits) > 5
    assert cell.decode.ttft_answer_ms.p50 == pytest.approx(float(np.median(waits)), abs=1.0)
    assert cell.decode.ttft_ms.p50 is not None and cell.decode.ttft_answer_ms.p50 > cell.decode.ttft_ms.p50 + 50
