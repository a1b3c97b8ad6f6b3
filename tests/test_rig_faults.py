"""Each fault that the rig can plant, seen by a raw client and in the rig's log."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from flatout.rig import RigConfig
from flatout.rig import running as process_running
from flatout.rig.handle import RigError
from tests.rig_client import Client, chat, complete, get, one, post, running, start_stream, wait_for

DIALECTS = ["vllm", "sglang", "llamacpp", "openai"]


def fast(**knobs: Any) -> RigConfig:
    return RigConfig.from_dict({"decode_tok_s": 1000, "ttft_ms": 5, **knobs})


# -- usage -------------------------------------------------------------------------------------------------------------
def places(answer: Any) -> list[str]:
    """Where usage stands: none of the events, an event with text, one with choices, one with an empty list."""
    out = []
    for event in answer.events:
        if event.get("usage"):
            choices = event["choices"]
            text = choices and (choices[0].get("text") or choices[0].get("delta", {}).get("content"))
            out.append("text" if text else "choices" if choices else "empty")
    return out


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("call", [chat, complete])
def test_usage_stands_where_it_was_put(dialect: str, call: Any) -> None:
    wanted = {"none": [], "last_text": ["text"], "with_choices": ["choices"], "empty_choices": ["empty"]}
    with running(fast(dialect=dialect)) as rig:
        for mode, place in wanted.items():
            rig.control(usage=mode)
            answer = call(rig.url, 5)
            assert (places(answer), answer.finish(), answer.done) == (place, "length", True), mode
            assert not place or answer.completion_tokens == 5
        rig.control(usage="none")
        body = {"prompt": "hi", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        path = "/v1/chat/completions" if call is chat else "/v1/completions"
        assert not post(rig.url, path, body).json().get("usage")


def test_late_wrong_and_forced_usage() -> None:
    answer, truth = one(fast(dialect="vllm", usage_delay_ms=200, usage_extra_tokens=3), 5)
    assert answer.completion_tokens == 8 and truth.sent_tokens[0] == 5
    assert answer.reads[-1][0] - truth.last_ns[0] >= 195_000_000
    assert one(fast(dialect="vllm", force_include_usage=True), 2, stream_options={})[0].usage()


# -- the stream's shape ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp"])
def test_the_role_event_may_come_long_before_the_first_token_or_never(dialect: str) -> None:
    with running(fast(dialect=dialect, ttft_ms=600, role_event="at_once")) as rig:
        client = Client(rig.url)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
        client.send("POST", "/v1/chat/completions", body)
        early = client.read(chunks=1)
        assert early.events[0]["choices"][0]["delta"]["role"] == "assistant"
        early_ns = time.monotonic_ns()
        client.read_rest()
        client.close()
        truth = rig.log()
        assert early_ns < truth.first_ns[0] and truth.ttft_ms()[0] >= 600
        rig.control(role_event="none")
        assert all("role" not in e["choices"][0]["delta"] for e in chat(rig.url, 2).events if e["choices"])


def test_empty_null_and_comment_events() -> None:
    answer, truth = one(fast(empty_every=3, null_choices_every=4, comment_every_ms=5, ttft_ms=300), 24)
    assert answer.texts()[:-1].count("") == 8
    assert sum(1 for event in answer.events if event["choices"] is None) == 6
    assert answer.lines.count(": ping") >= 8 and answer.lines[0] == ": ping"
    assert truth.sent_tokens[0] == answer.completion_tokens == 24
    answer, _ = one(RigConfig(dialect="sglang", ttft_ms=100, comment_every_ms=20), 1)  # its head waits for a token
    assert answer.status == 200 and answer.lines[0] == ": ping"


@pytest.mark.parametrize(("dialect", "field"), [("vllm", "reasoning"), ("sglang", "reasoning_content")])
def test_reasoning_comes_first(dialect: str, field: str) -> None:
    answer, _ = one(fast(dialect=dialect, reasoning_tokens=4), 10, chat)
    deltas = [event["choices"][0]["delta"] for event in answer.events if event["choices"]]
    kinds = ["reasoning" if d.get(field) else "content" for d in deltas if d.get(field) or d.get("content")]
    assert kinds == ["reasoning"] * 4 + ["content"] * 6
    usage = answer.usage()
    counted = usage.get("reasoning_tokens") or usage["completion_tokens_details"]["reasoning_tokens"]
    assert (counted, usage["completion_tokens"]) == (4, 10)


def test_hidden_reasoning_is_billed_but_not_streamed() -> None:
    answer, truth = one(RigConfig(decode_tok_s=100, ttft_ms=5, hidden_tokens=20), 30, chat)
    assert len([text for text in answer.texts() if text]) == 10 and answer.completion_tokens == 30
    assert answer.usage()["completion_tokens_details"] == {"reasoning_tokens": 20}
    assert (truth.generated_tokens[0], truth.sent_tokens[0]) == (30, 10)
    assert truth.ttft_ms()[0] >= 195


def test_tool_calls_come_as_arguments() -> None:
    answer, _ = one(fast(tool_calls=True), 6, chat)
    deltas = [event["choices"][0]["delta"] for event in answer.events if event["choices"]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "look_up", "arguments": ""} and calls[0]["id"]
    assert [bool(call["function"]["arguments"]) for call in calls[1:]] == [True] * 6


def test_half_characters_give_empty_text_and_a_phrase_may_loop() -> None:
    texts = one(fast(dialect="vllm", utf8_every=4), 12)[0].texts()
    assert [text == "" for text in texts] == [False, False, False, True] * 3
    assert "\U0001f98a" in texts[4] and "\U0001f98a" in texts[8]
    assert "".join(one(fast(loop_text=" again and again"), 60)[0].texts()) == " again and again" * 20


def test_an_event_may_be_split_anywhere() -> None:
    answer, truth = one(fast(split_sends=5, decode_tok_s=100), 30)
    assert len(answer.texts()) == 31 and answer.done and len(truth.event_ns) == 30
    assert any(not data.endswith(b"\r\n") for _, data in answer.reads)


def test_a_huge_event_and_a_broken_one() -> None:
    answer, _ = one(fast(huge_event_at=3, bad_json_at=5), 8)
    assert max(map(len, answer.chunks)) > 10_000_000
    broken = []
    for text in answer.payloads[:-1]:
        try:
            json.loads(text)
        except json.JSONDecodeError:
            broken.append(text)
    assert len(broken) == 1 and len(answer.payloads) == 8 + 1 + 3


def test_no_done_and_no_finish() -> None:
    with running(fast(done_marker=False)) as rig:
        answer = complete(rig.url, 3)
        assert (answer.done, answer.ended, answer.finish()) == (False, True, "length")
        rig.control(finish_event=False)
        for answer in (complete(rig.url, 3), chat(rig.url, 3)):
            assert (answer.ended, answer.finish()) == (True, None)


# -- streams that break ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_inside_the_stream(dialect: str) -> None:
    answer, truth = one(fast(dialect=dialect, error_after_tokens=5), 50)
    assert answer.status == 200 and answer.done and answer.ended and answer.finish() is None
    assert answer.events[-1]["error"]["message"]
    assert (truth.reason, truth.sent_tokens[0], truth.level_running[-1]) == (["fault"], 5, 0)


@pytest.mark.parametrize("mode", ["close", "reset", "clean_end"])
def test_truncation(mode: str) -> None:
    answer, truth = one(fast(truncate_after_tokens=5, truncate_mode=mode), 50)
    assert (answer.ended, answer.done, answer.finish()) == (mode == "clean_end", False, None)
    assert (truth.reason, truth.sent_tokens[0]) == (["fault"], 5)
    assert mode == "reset" or len(answer.texts()) == 5  # a reset may throw away what was on its way


def silent(client: Client, seconds: float) -> bool:
    client.sock.settimeout(seconds)
    try:
        client.sock.recv(65_536)
    except TimeoutError:
        return True
    return False


def test_silence() -> None:
    with running(fast(hang_after_tokens=3)) as rig:
        client = start_stream(rig.url, 50)
        assert len(client.read(chunks=3).texts()) == 3
        assert silent(client, 0.3)
        client.close()
        for hang, answers in (("no_answer", False), ("no_event", True)):
            rig.control(hang=hang, hang_after_tokens=0)
            client = start_stream(rig.url, 50)
            if answers:
                wait_for(lambda c=client: c.sock.recv(4096).endswith(b"\r\n\r\n"))
            assert silent(client, 0.3)
            client.close()
        rig.control(hang="")
        assert complete(rig.url, 3).done


def test_the_server_may_die() -> None:
    with process_running(fast(die_after_tokens=40)) as rig:
        clients = [start_stream(rig.url, 500) for _ in range(2)]
        answers = [client.read() for client in clients]
        for client in clients:
            client.close()
        assert not any(answer.ended for answer in answers)
        assert 38 <= sum(len(answer.texts()) for answer in answers) <= 40
        wait_for(lambda: not rig.alive())
        with pytest.raises(RigError, match="does not answer"):
            rig.log()


def test_early_stop_ignores_ignore_eos() -> None:
    answer, _ = one(fast(stop_after_tokens=7), 50, ignore_eos=True)
    assert (answer.finish(), answer.completion_tokens) == ("stop", 7)


def test_slow_headers_hold_everything_back() -> None:
    with running(fast(headers_delay_ms=500)) as rig:
        client = start_stream(rig.url, 10)
        assert silent(client, 0.2)
        client.sock.settimeout(10)
        answer = client.read()
        client.close()
        assert answer.done and len(answer.texts()) == 11 and rig.log().ttft_ms()[0] >= 490


# -- answers that are none ---------------------------------------------------------------------------------------------
def test_html() -> None:
    answer, _ = one(fast(html=True), 8)
    assert answer.headers["content-type"] == "text/html" and answer.body.startswith(b"<!DOCTYPE html>")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rate_limits(dialect: str) -> None:
    with running(fast(dialect=dialect, reject_first=2, retry_after_s=3)) as rig:
        answers = [complete(rig.url, 1) for _ in range(3)]
        assert [answer.status for answer in answers] == [429, 429, 200]
        assert answers[0].headers["retry-after"] == "3"
        assert rig.log().reason == ["refused: rate", "refused: rate", "finished"]
        rig.control(reject_first=0, rate_limit_per_s=2)
        assert sorted(complete(rig.url, 1).status for _ in range(3)) == [200, 200, 429]


def test_loading() -> None:
    with running(fast(dialect="llamacpp", loading_s=1.5)) as rig:
        early = get(rig.url, "/v1/models")
        assert (early.status, early.json()["error"]["message"]) == (503, "Loading model")
        wait_for(lambda: get(rig.url, "/health").status == 200)
        assert complete(rig.url, 1).done


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unknown_fields(dialect: str) -> None:
    fields = ["ignore_eos", "stream_options.continuous_usage_stats"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    with running(fast(dialect=dialect, refuse_fields=fields)) as rig:
        refused = complete(rig.url, 1, ignore_eos=True)
        assert refused.status == 400 and "ignore_eos" in refused.body.decode()
        assert "continuous_usage_stats" in complete(rig.url, 1, stream_options=options).body.decode()
        assert complete(rig.url, 1).done
        rig.control(refuse_style="transformers")
        refused = complete(rig.url, 1, ignore_eos=True)
    assert (refused.status, refused.json()) == (422, {"detail": "Unexpected fields in the request: {'ignore_eos'}"})


PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/abort_request", "/abort_requests", "/rig/control"]
BODIES: list[Any] = [
    [],
    {"prompt": {}, "messages": [3], "request_ids": 5},
    {"messages": [{"content": [1]}], "prompt": [None], "stream_options": 3, "max_tokens": 10**30, "plant": 3},
    {"messages": 1, "n": [], "content": 4, "stall_now_s": "x"},
]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_http_or_strange_json_gets_a_400_and_the_rig_lives_on(dialect: str) -> None:
    with running(fast(dialect=dialect, dev_mode=True)) as rig:
        client = Client(rig.url)
        client.sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert client.read().status == 400
        client.close()
        for path in PATHS:
            for body in BODIES:
                assert post(rig.url, path, body).status in (200, 400, 404), (path, body)
        assert complete(rig.url, 1).done


def test_an_ask_for_continue_is_answered() -> None:
    with running(fast()) as rig:
        client = Client(rig.url)
        body = json.dumps({"prompt": "hi", "max_tokens": 1, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sock.sendall(head.encode())
        assert client.sock.recv(100).startswith(b"HTTP/1.1 100")
        client.sock.sendall(body)
        assert client.read().done
        client.close()
