"""The rig keeps its schedule, queue, room and cache; checked over real sockets with the rig's own log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.rig import RigConfig, RigHandle
from flatout.rig import running as process_running
from flatout.rig.config import profile_from_seed
from flatout.rig.handle import RigError
from tests.rig_client import (
    Client,
    chat,
    complete,
    due_spans_s,
    due_ttft_ms,
    get,
    left,
    metrics,
    one,
    post,
    running,
    start_stream,
    together,
    wait_for,
)  # fmt: skip

SEED = Path(__file__).parent / "fixtures" / "seed" / "speed-test.json"
FOX = "The quick brown fox"


def config(**knobs: Any) -> RigConfig:
    return RigConfig.from_dict(knobs)


def levels(rig: RigHandle) -> tuple[int, int]:
    truth = rig.log()
    return int(truth.level_running[-1]), int(truth.level_waiting[-1])


# -- speed -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", ["step", "spread"])
@pytest.mark.parametrize("per_event", [1, 4])
def test_every_stream_gets_its_tokens_at_its_rate(pattern: str, per_event: int) -> None:
    with running(config(decode_tok_s=200, pattern=pattern, tokens_per_event=per_event)) as rig:
        answers = together(rig.url, *[(101, FOX)] * 4)
        truth = rig.log()
    for answer in answers:
        assert (answer.completion_tokens, answer.finish(), answer.done, answer.ended) == (101, "length", True, True)
        assert len(answer.texts()) == (102 if per_event == 1 else 27)
    assert truth.reason == ["finished"] * 4
    assert list(truth.sent_tokens) == list(truth.generated_tokens) == [101] * 4
    # 100 tokens after the first, at 200 a second each; the first gap joins the beat, up to a period sooner or later
    assert np.all(np.abs(due_spans_s(truth) - 0.5) < per_event / 200 + 0.001)
    assert all(truth.event_tokens[truth.event_request == r][0] == 1 for r in range(4))


def test_in_step_means_together_and_spread_means_apart() -> None:
    apart = {}
    for pattern in ("step", "spread"):
        with running(config(decode_tok_s=20, pattern=pattern)) as rig:
            together(rig.url, *[(8, FOX)] * 4)
            truth = rig.log()
        fourth = [truth.event_ns[truth.event_request == r][4] for r in range(4)]
        apart[pattern] = (max(fourth) - min(fourth)) / 1e6
    assert apart["step"] < 20 < apart["spread"]


@pytest.mark.parametrize("knobs", [{"capacity_tok_s": 400}, {"decode_table": {1: 400, 4: 100}}])
def test_the_capacity_is_shared_and_tables_follow_concurrency(knobs: dict[str, Any]) -> None:
    with running(config(**knobs)) as rig:
        complete(rig.url, 41)
        together(rig.url, *[(41, FOX)] * 4)
        spans_s = due_spans_s(rig.log())
    assert 0.095 < spans_s[0] < 0.105
    assert np.all(spans_s[1:] > 0.38)


def test_bursts_keep_the_mean_rate() -> None:
    with running(config(decode_tok_s=200, burst_events=5)) as rig:
        complete(rig.url, 101)
        truth = rig.log()
        gaps, _ = truth.gaps_ns()
        assert 0.47 < due_spans_s(truth)[0] < 0.53
        assert np.median(gaps) < 2e6 and np.sum(gaps > 15e6) >= 18
        rig.control(burst_one_send=True)
        answer = complete(rig.url, 101)
        assert len([1 for text in answer.texts() if text]) == 101
        truth = rig.log()
    sends = truth.event_ns[truth.event_request == 1]
    assert len(sends) == 101 and len(set(sends)) == 21


def test_jitter_does_not_add_up() -> None:
    _, truth = one(config(decode_tok_s=100, jitter_ms=1), 61)
    assert truth.gaps_ns()[0].std() > 0.5e6
    assert due_spans_s(truth)[0] == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
def test_speculative_decoding_varies_the_tokens_of_an_event_and_counts_them(dialect: str) -> None:
    with running(config(dialect=dialect, decode_tok_s=2000, spec_accept_length=3.0)) as rig:
        answer = complete(rig.url, 1201)
        seen = {name.partition(":spec_decode_num_")[2]: value for name, value in metrics(rig.url).items()}
        tokens = rig.log().event_tokens
    assert answer.completion_tokens == 1201 == tokens.sum()
    assert 1 + seen["accepted_tokens_total"] / seen["drafts_total"] == pytest.approx(3.0, abs=0.3)
    assert seen["draft_tokens_total"] == 7 * seen["drafts_total"]
    assert (len(set(tokens)) > 3) is (dialect == "vllm")


def test_a_stall_silences_all_streams_for_its_time() -> None:
    with running(config(decode_tok_s=100, stalls=[[0.2, 0.3]])) as rig:
        together(rig.url, *[(61, FOX)] * 3)
        truth = rig.log()
        (start_ns, end_ns) = truth.stall_ns[0]
        assert end_ns - start_ns == 300_000_000
        assert truth.tokens_between(start_ns + 3_000_000, end_ns) == 0
        assert truth.gaps_ns()[0].max() >= 300_000_000
        rig.control(stall_now_s=0.2)
        complete(rig.url, 3)
        assert rig.log().ttft_ms()[-1] >= 190


def test_time_scale_makes_everything_faster() -> None:
    _, truth = one(config(decode_tok_s=20, ttft_ms=1000, time_scale=0.05), 41)
    assert due_ttft_ms(truth)[0] == pytest.approx(50, abs=5)
    assert due_spans_s(truth)[0] == pytest.approx(0.1, abs=0.005)


# -- prefill and cache -------------------------------------------------------------------------------------------------
def test_prefill_costs_by_the_uncached_token_and_usage_tells_the_cache() -> None:
    text = "some words of a prompt that is long enough " * 40
    with running(config(dialect="sglang", ttft_ms=10, prefill_tok_s=2000)) as rig:
        n = post(rig.url, "/tokenize", {"prompt": text}).json()["count"]
        usages = [complete(rig.url, 2, text).usage() for _ in range(2)]
        assert post(rig.url, "/flush_cache", {}).status == 200
        usages += [complete(rig.url, 2, prompt).usage() for prompt in (text, "Other " + text)]
        truth = rig.log()
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, n - 1, 0, 0] == list(truth.cached_tokens)
    assert {usage["prompt_tokens"] for usage in usages[:3]} == {n}
    cold_ms, ttft_ms = 10 + n / 2, truth.ttft_ms()
    assert ttft_ms[0] >= cold_ms and ttft_ms[2] >= cold_ms and ttft_ms[1] < cold_ms / 2


@pytest.mark.parametrize(("knobs", "cached"), [({"cache": False}, [0, 0, 0]), ({"cache_after_sends": 2}, [0, 0, 496])])
def test_no_cache_and_late_caches(knobs: dict[str, Any], cached: list[int]) -> None:
    with running(config(ttft_ms=1, **knobs)) as rig:
        for _ in range(3):
            complete(rig.url, 1, "a prompt of some length " * 100)
        assert list(rig.log().cached_tokens) == cached


def test_serial_prefill_makes_requests_wait_for_each_other() -> None:
    with running(config(prefill_queue="serial", prefill_tok_s=1000, ttft_ms=0, decode_tok_s=1000)) as rig:
        together(rig.url, *((2, f"{name} " + "word " * 99) for name in "abc"))
        truth = rig.log()
    waits_ms = np.sort(truth.first_ns - truth.arrival_ns.min()) / 1e6
    assert waits_ms[0] >= 100 and waits_ms[1] >= 200 and waits_ms[2] >= 300


def test_long_prompts_do_not_hold_up_running_streams() -> None:
    prompt = "several words of a very long prompt " * 20_000
    with running(config(decode_tok_s=100, ttft_ms=5)) as rig:
        stream = start_stream(rig.url, 81)
        stream.read(chunks=5)
        big, again = complete(rig.url, 1, prompt), complete(rig.url, 1, prompt)
        stream.read_rest()
        stream.close()
        truth = rig.log()
    assert big.usage()["prompt_tokens"] == again.usage()["prompt_tokens"] > 100_000
    assert truth.late_ns()["p50"] < 20_000_000


# -- prompts and lengths -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp"])
def test_tokenize_agrees_with_usage_and_the_template_adds_what_it_says(dialect: str) -> None:
    text = "Words, 12345 numbers;\n\nlines and internationally long words \u00e9\U0001f98a"
    user = {"role": "user", "content": text}
    two = [{"role": "system", "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]}]
    with running(config(dialect=dialect, template_head_tokens=6, template_tail_tokens=3)) as rig:
        tokens = post(rig.url, "/tokenize", {"prompt": text, "content": text}).json()["tokens"]
        asked = (complete(rig.url, 1, text), complete(rig.url, 1, tokens))
        asked += (chat(rig.url, 1, messages=[user]), chat(rig.url, 1, messages=two))
        counts = [answer.usage()["prompt_tokens"] for answer in asked]
        if dialect == "vllm":
            assert post(rig.url, "/tokenize", {"messages": [user]}).json()["count"] == counts[2]
    n = len(tokens)
    assert counts == [n, n, n + 9, 2 * n + 12]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "openai"])
def test_lengths_over_the_model_are_refused(dialect: str) -> None:
    with running(config(dialect=dialect, model_len=64, decode_tok_s=1000)) as rig:
        asked = ((50, "word " * 30), (1, "word " * 100), (33, [1] * 31))
        assert [complete(rig.url, tokens, prompt).status for tokens, prompt in asked] == [400, 400, 200]
        assert rig.log().reason == ["refused: total_too_long", "refused: prompt_too_long", "finished"]


def test_lengths_over_the_model_are_cut_where_the_engine_does_so() -> None:
    with running(config(dialect="llamacpp", model_len=64, decode_tok_s=1000)) as rig:
        answer = complete(rig.url, 5000, [1] * 30)
        assert (answer.finish(), answer.completion_tokens) == ("length", 34)
        assert complete(rig.url, 1, [1] * 64).json()["error"]["n_ctx"] == 64
    answer, _ = one(config(model_len=64, truncate_silently=True, decode_tok_s=1000), 5, prompt=[1] * 500)
    assert answer.usage()["prompt_tokens"] == 64


def test_several_choices_and_prompts() -> None:
    with running(config(dialect="vllm", decode_tok_s=1000)) as rig:
        answer = complete(rig.url, 6, n=2)
        assert len(answer.texts(0)) == len(answer.texts(1)) == 6 and answer.texts(0) != answer.texts(1)
        assert answer.completion_tokens == 12
        batch = complete(rig.url, 6, ["one", "two three"])
        assert batch.usage() == {"prompt_tokens": 3, "total_tokens": 15, "completion_tokens": 12}
        assert rig.log().level_running.max() == 2


# -- queue and room ----------------------------------------------------------------------------------------------------
def test_a_limit_of_running_requests_makes_a_fifo_queue() -> None:
    with running(config(dialect="vllm", max_running=2, decode_tok_s=200)) as rig:
        clients = []
        for _ in range(5):
            clients.append(start_stream(rig.url, 101))
            time.sleep(0.01)
        wait_for(lambda: levels(rig) == (2, 3))
        seen = metrics(rig.url)
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (2, 3)
        for client in clients:
            assert client.read().ended
            client.close()
        truth = rig.log()
    assert list(np.argsort(truth.first_ns, kind="stable")) == [0, 1, 2, 3, 4]
    assert truth.level_running.max() == 2
    assert truth.running_mean(truth.first_ns[0], truth.end_ns[1]) == pytest.approx(2, abs=0.1)
    assert truth.waiting_mean(truth.arrival_ns[4], truth.end_ns[0]) == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize(("prompts", "most"), [([[i] * 400 for i in range(4)], 2), ([[7] * 400] * 4, 4)])
def test_the_room_counts_own_prompts_and_a_shared_one_once(prompts: list[list[int]], most: int) -> None:
    with running(config(kv_tokens=1000, decode_tok_s=500)) as rig:
        assert complete(rig.url, 700, [1] * 400).status == 400
        rig.reset()
        together(rig.url, *((50, prompt) for prompt in prompts))
        truth = rig.log()
    assert truth.reason == ["finished"] * 4 and truth.level_running.max() == most


def test_preemption_sends_the_youngest_back() -> None:
    with running(config(dialect="vllm", kv_tokens=260, preemption=True, decode_tok_s=500)) as rig:
        answers = together(rig.url, *((100, [i] * 50) for i in range(3)))
        seen, truth = metrics(rig.url), rig.log()
    assert seen["vllm:num_preemptions_total"] >= 1 and seen["vllm:kv_cache_usage_perc"] == 0
    assert [answer.completion_tokens for answer in answers] == list(truth.sent_tokens) == [100] * 3


# -- hang-ups, leftovers, aborts ---------------------------------------------------------------------------------------
def test_a_closed_stream_ends_at_once_by_default() -> None:
    with running(config(dialect="vllm", decode_tok_s=100)) as rig:
        left(rig.url, 10_000, chunks=3)
        wait_for(lambda: levels(rig) == (0, 0))
        truth = rig.log()
    assert truth.reason == ["client_closed"]
    assert truth.generated_tokens[0] == truth.sent_tokens[0] < 100


def test_leftovers_run_on_and_are_in_the_log_until_they_are_aborted() -> None:
    with running(config(dialect="sglang", decode_tok_s=200, leftover=True)) as rig:
        left(rig.url, 10_000, rid="mine")
        left(rig.url, 10_000)
        time.sleep(0.2)
        t0_ns = time.monotonic_ns()
        time.sleep(0.2)
        truth = rig.log()
        assert metrics(rig.url)["sglang:num_running_reqs"] == 2
        assert truth.running_mean(t0_ns, truth.taken_ns) == 2
        assert truth.tokens_between(t0_ns, truth.taken_ns) == 0
        assert truth.tokens_between(t0_ns, truth.taken_ns, leftover=True) > 40
        assert post(rig.url, "/abort_request", {"rid": "mine"}).status == 200
        assert levels(rig) == (1, 0)
        post(rig.url, "/abort_request", {"abort_all": True})
        assert levels(rig) == (0, 0)
        assert rig.log().reason == ["aborted", "aborted"]
        assert metrics(rig.url)["sglang:num_aborted_requests_total"] == 2


def test_vllm_has_its_own_calls_in_development_mode() -> None:
    with running(config(dialect="vllm", decode_tok_s=100, dev_mode=True, report_cached=True)) as rig:
        for cached in (0, 256):
            assert complete(rig.url, 1, [3] * 300).usage()["prompt_tokens_details"]["cached_tokens"] == cached
        assert post(rig.url, "/reset_prefix_cache", None).status == 200
        client = start_stream(rig.url, 10_000, [3] * 300, request_id="mine")
        client.read(chunks=2)
        assert post(rig.url, "/abort_requests", {"request_ids": ["mine"]}).status == 200
        assert client.read_rest().done
        client.close()
        truth = rig.log()
        assert (truth.reason[-1], truth.cached_tokens[-1], truth.rid[-1]) == ("aborted", 0, "mine")
        rig.control(dev_mode=False)
        assert post(rig.url, "/reset_prefix_cache", None).status == 404


def test_leftovers_may_end_by_themselves_or_refuse_to() -> None:
    with running(config(dialect="sglang", decode_tok_s=1000, leftover=True, leftover_abortable=False)) as rig:
        left(rig.url, 600)
        wait_for(lambda: rig.log().tokens_between(0, 2**62, leftover=True) > 50)
        post(rig.url, "/abort_request", {"abort_all": True})
        assert levels(rig) == (1, 0)
        wait_for(lambda: levels(rig) == (0, 0))
        truth = rig.log()
        assert (truth.reason[0], truth.generated_tokens[0]) == ("leftover", 600)
        assert metrics(rig.url)["sglang:generation_tokens_total"] == 600
        rig.control(leftover_limit_s=0.1)
        left(rig.url, 100_000)
        wait_for(lambda: levels(rig) == (0, 0))
        assert rig.log().generated_tokens[-1] < 2000


def test_planted_requests_run_and_slow_the_others() -> None:
    with running(config(capacity_tok_s=500)) as rig:
        rig.control(plant={"requests": 4, "tokens": 100_000, "context": 50})
        assert levels(rig) == (4, 0)
        complete(rig.url, 41)
        truth = rig.log()
    own = next(i for i, rid in enumerate(truth.rid) if not rid.startswith("planted"))
    assert due_spans_s(truth)[own] > 0.38


def test_leftovers_make_the_next_streams_slower() -> None:
    with running(config(dialect="sglang", decode_table=[[0, 1, 1000], [0, 11, 100]], leftover=True)) as rig:
        complete(rig.url, 51)
        clients = [start_stream(rig.url, 100_000) for _ in range(10)]
        for client in clients:
            client.read(chunks=1)
            client.close()
        complete(rig.url, 51)
        truth = rig.log()
    alone, crowded = due_spans_s(truth)[[0, -1]]
    assert crowded > 0.48 and alone < 0.06
    assert truth.running_mean(truth.first_ns[-1], truth.last_ns[-1]) == pytest.approx(11, abs=0.1)


def test_an_abort_tells_the_stream() -> None:
    with running(config(dialect="sglang", decode_tok_s=100)) as rig:
        client = start_stream(rig.url, 10_000)
        client.read(chunks=2)
        post(rig.url, "/abort_request", {"abort_all": True})
        answer = client.read_rest()
        client.close()
    assert answer.done and answer.usage()


# -- counters ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dialect", "name", "live"),
    [
        ("vllm", "vllm:generation_tokens_total", True),
        ("sglang", "sglang:generation_tokens_total", False),
        ("llamacpp", "llamacpp:tokens_predicted_total", False),
    ],
)
def test_generation_counters_move_when_the_engines_do(dialect: str, name: str, live: bool) -> None:
    with running(config(dialect=dialect, decode_tok_s=200)) as rig:
        client = start_stream(rig.url, 61)
        client.read(chunks=20)
        assert (metrics(rig.url)[name] > 0) is live
        client.read_rest()
        client.close()
        assert metrics(rig.url)[name] == 61
        rig.control(counter_factor=2.0)
        assert metrics(rig.url)[name] == 122


def test_gauges_may_be_old() -> None:
    with running(config(dialect="sglang", gauge_lag_ms=60_000)) as rig:
        assert metrics(rig.url)["sglang:num_running_reqs"] == 0
        client = start_stream(rig.url, 100)
        client.read(chunks=1)
        assert metrics(rig.url)["sglang:num_running_reqs"] == 0
        client.close()


# -- the process -------------------------------------------------------------------------------------------------------
def test_connections_are_kept_and_requests_may_come_close_together() -> None:
    with running(config(decode_tok_s=1000)) as rig:
        client = Client(rig.url)
        for _ in range(3):
            client.send("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 3, "stream": True})
        assert [len(client.read().texts()) for _ in range(3)] == [4, 4, 4]
        assert client.call("GET", "/v1/models").status == 200
        client.close()


def test_reset_begins_a_new_log_and_what_runs_goes_on_in_it() -> None:
    with running(config(decode_tok_s=200)) as rig:
        complete(rig.url, 3)
        client = start_stream(rig.url, 61)
        client.read(chunks=3)
        rig.reset()
        client.read_rest()
        client.close()
        truth = rig.log()
    assert truth.reason == ["finished"] and truth.level_running[0] == 1
    assert 30 < truth.event_tokens.sum() < 61


def test_ipv6_and_tls(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    cert = ca.issue_cert("::1", "localhost")
    chain, key, root = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(part.bytes() for part in cert.cert_chain_pems))
    key.write_bytes(cert.private_key_pem.bytes())
    root.write_bytes(ca.cert_pem.bytes())
    with running(config(host="::1", certfile=str(chain), keyfile=str(key), decode_tok_s=500)) as rig:
        assert rig.url.startswith("https://[::1]:")
        client = Client(rig.url, cafile=str(root))
        answer = client.call("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 50, "stream": True})
        client.close()
        assert len(answer.texts()) == 51
        assert rig.log().reason == ["finished"]


def test_a_reader_that_does_not_read_is_marked_in_the_log() -> None:
    with running(config(decode_tok_s=1_000_000, tokens_per_event=4000)) as rig:
        client = start_stream(rig.url, 1_500_000)
        wait_for(lambda: rig.log().blocked() > 0)
        answer = client.read()
        client.close()
        truth = rig.log()
    assert answer.completion_tokens == 1_500_000
    late = truth.event_flushed_ns - truth.event_ns
    assert late.max() > 0 and np.all(late >= 0)
    assert truth.blocked() == np.sum(late > 0)


def test_the_seed_profile_serves_at_its_speeds() -> None:
    with running(config(**profile_from_seed(SEED), dialect="sglang", time_scale=0.25, tokens_per_event=8)) as rig:
        for tokens in (1, 401):
            complete(rig.url, tokens, [5] * 8192, model="qwen")
        truth = rig.log()
        assert get(rig.url, "/get_server_info").json()["max_running_requests"] == 32
    assert due_ttft_ms(truth).tolist() == pytest.approx([220 * 0.25, 86 * 0.25], rel=0.1)
    assert due_spans_s(truth)[1] == pytest.approx(400 / 455.5 * 0.25, rel=0.05)


def test_what_cannot_start_says_why() -> None:
    with running(RigConfig()) as rig:
        port = int(rig.url.rsplit(":", 1)[1])
        with pytest.raises(RigError, match=f"port {port}"), process_running(RigConfig(port=port)):
            pass
        with pytest.raises(RigError, match="no knob called 'speed'"):
            rig.control(speed=3)
