"""Each fault that the rig can plant, seen by a raw client and in the rig's log."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from flatout.rig import RigConfig, RigHandle
from flatout.rig import running as process_running
from flatout.rig.handle import RigError
from tests.rig_client import Client, chat, complete, due_spans_s, get, post, running, start_stream, wait_for


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


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
@pytest.mark.parametrize("call", [chat, complete])
def test_usage_stands_where_it_was_put(dialect: str, call: Any) -> None:
    wanted = {"none": [], "last_text": ["text"], "with_choices": ["choices"], "empty_choices": ["empty"]}
    with running(fast(dialect=dialect)) as rig:
        for mode, place in wanted.items():
            rig.control(usage=mode)
            answer = call(rig.url, 5)
            assert places(answer) == place, mode
            assert (answer.finish(), answer.done) == ("length", True)
            if place:
                assert answer.usage()["completion_tokens"] == 5
        rig.control(usage="none")
        body = {"prompt": "hi", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        path = "/v1/chat/completions" if call is chat else "/v1/completions"
        assert not post(rig.url, path, body).json().get("usage")


def test_late_and_wrong_usage() -> None:
    with running(fast(dialect="vllm", usage_delay_ms=200, usage_extra_tokens=3)) as rig:
        answer = complete(rig.url, 5)
        truth = rig.log()
    assert answer.usage()["completion_tokens"] == 8  # type: ignore[index]
    assert answer.reads[-1][0] - truth.last_ns[0] >= 195_000_000
    assert truth.sent_tokens[0] == 5


def test_usage_can_be_forced() -> None:
    with running(fast(dialect="vllm", force_include_usage=True)) as rig:
        answer = post(rig.url, "/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True})
    assert answer.usage() is not None


# -- the stream's shape ------------------------------------------------------------------------------------------------
def test_the_role_event_may_come_long_before_the_first_token_or_never() -> None:
    for dialect in ("vllm", "sglang", "llamacpp"):
        with running(RigConfig(dialect=dialect, ttft_ms=300, role_event="at_once")) as rig:  # type: ignore[arg-type]
            client = Client(rig.url)
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
            sent_ns = time.monotonic_ns()
            client.send("POST", "/v1/chat/completions", body)
            early = client.read(chunks=1)
            assert early.events[0]["choices"][0]["delta"]["role"] == "assistant"
            assert time.monotonic_ns() - sent_ns < 250_000_000
            client.read_rest()
            client.close()
            assert rig.log().ttft_ms()[0] >= 300
            rig.control(role_event="none")
            assert all("role" not in e["choices"][0]["delta"] for e in chat(rig.url, 2).events if e["choices"])


def test_empty_null_and_comment_events() -> None:
    with running(fast(empty_every=3, null_choices_every=4, comment_every_ms=5, ttft_ms=50)) as rig:
        answer = complete(rig.url, 24)
        truth = rig.log()
    assert answer.texts()[:-1].count("") == 8
    assert sum(1 for event in answer.events if event["choices"] is None) == 6
    assert answer.lines.count(": ping") >= 8
    assert answer.lines[0] == ": ping"
    assert truth.sent_tokens[0] == answer.usage()["completion_tokens"] == 24  # type: ignore[index]


def test_comments_go_out_before_the_first_token_in_sglang_too() -> None:
    with running(RigConfig(dialect="sglang", ttft_ms=100, comment_every_ms=20)) as rig:
        answer = complete(rig.url, 1)
    assert answer.status == 200 and answer.lines[0] == ": ping"


@pytest.mark.parametrize(("dialect", "field"), [("vllm", "reasoning"), ("sglang", "reasoning_content")])
def test_reasoning_comes_first(dialect: str, field: str) -> None:
    with running(fast(dialect=dialect, reasoning_tokens=4)) as rig:
        answer = chat(rig.url, 10)
    deltas = [event["choices"][0]["delta"] for event in answer.events if event["choices"]]
    kinds = ["reasoning" if d.get(field) else "content" if d.get("content") else "other" for d in deltas]
    assert [kind for kind in kinds if kind != "other"] == ["reasoning"] * 4 + ["content"] * 6
    usage = answer.usage()
    assert usage is not None
    told = usage.get("reasoning_tokens") or usage["completion_tokens_details"]["reasoning_tokens"]
    assert (told, usage["completion_tokens"]) == (4, 10)


def test_hidden_reasoning_is_billed_but_not_streamed() -> None:
    with running(RigConfig(decode_tok_s=100, ttft_ms=5, hidden_tokens=20)) as rig:
        answer = chat(rig.url, 30)
        truth = rig.log()
    assert len([text for text in answer.texts() if text]) == 10
    assert answer.usage()["completion_tokens"] == 30  # type: ignore[index]
    assert answer.usage()["completion_tokens_details"] == {"reasoning_tokens": 20}  # type: ignore[index]
    assert (truth.generated_tokens[0], truth.sent_tokens[0]) == (30, 10)
    assert truth.ttft_ms()[0] >= 195


def test_tool_calls_come_as_arguments() -> None:
    with running(fast(tool_calls=True)) as rig:
        answer = chat(rig.url, 6)
    calls = [
        e["choices"][0]["delta"]["tool_calls"][0]
        for e in answer.events
        if e["choices"] and "tool_calls" in e["choices"][0]["delta"]
    ]
    assert calls[0]["function"] == {"name": "look_up", "arguments": ""} and calls[0]["id"]
    assert [bool(call["function"]["arguments"]) for call in calls[1:]] == [True] * 6


def test_half_characters_give_empty_text() -> None:
    with running(fast(dialect="vllm", utf8_every=4)) as rig:
        texts = complete(rig.url, 12).texts()
    assert [text == "" for text in texts] == [False, False, False, True] * 3
    assert "\U0001f98a" in texts[4] and "\U0001f98a" in texts[8]


def test_a_phrase_may_loop() -> None:
    with running(fast(loop_text=" again and again")) as rig:
        text = "".join(complete(rig.url, 60).texts())
    assert text == " again and again" * 20


def test_an_event_may_be_split_anywhere() -> None:
    with running(fast(split_sends=5)) as rig:
        answer = complete(rig.url, 30)
        truth = rig.log()
    assert len(answer.texts()) == 31 and answer.done
    assert any(not data.endswith(b"\r\n") for _, data in answer.reads)
    assert len(truth.event_ns) == 30


def test_a_huge_event_and_a_broken_one() -> None:
    with running(fast(huge_event_at=3, bad_json_at=5)) as rig:
        answer = complete(rig.url, 8)
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
        for dialect_call in (complete, chat):
            rig.control(finish_event=False)
            answer = dialect_call(rig.url, 3)
            assert (answer.ended, answer.finish()) == (True, None)


# -- streams that break ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
def test_an_error_inside_the_stream(dialect: str) -> None:
    with running(fast(dialect=dialect, error_after_tokens=5)) as rig:
        answer = complete(rig.url, 50)
        truth = rig.log()
    assert answer.status == 200 and answer.done and answer.ended and answer.finish() is None
    assert answer.events[-1]["error"]["message"]
    assert truth.reason == ["fault"] and truth.sent_tokens[0] == 5
    assert truth.level_running[-1] == 0


@pytest.mark.parametrize("mode", ["close", "reset", "clean_end"])
def test_truncation(mode: str) -> None:
    with running(fast(truncate_after_tokens=5, truncate_mode=mode)) as rig:
        answer = complete(rig.url, 50)
        truth = rig.log()
    assert answer.ended is (mode == "clean_end")
    assert not answer.done and answer.finish() is None
    assert truth.sent_tokens[0] == 5 and truth.reason == ["fault"]
    if mode != "reset":  # a reset may throw away what was on its way
        assert len(answer.texts()) == 5


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
    with running(fast(stop_after_tokens=7)) as rig:
        answer = complete(rig.url, 50, ignore_eos=True)
    assert (answer.finish(), answer.usage()["completion_tokens"]) == ("stop", 7)  # type: ignore[index]


def test_slow_headers_hold_everything_back() -> None:
    with running(fast(headers_delay_ms=500)) as rig:
        client = start_stream(rig.url, 10)
        assert silent(client, 0.2)
        client.sock.settimeout(10)
        answer = client.read()
        client.close()
        truth = rig.log()
    assert answer.done and len(answer.texts()) == 11
    assert truth.ttft_ms()[0] >= 490


# -- answers that are none ---------------------------------------------------------------------------------------------
def test_html() -> None:
    with running(fast(html=True)) as rig:
        answer = complete(rig.url)
    assert answer.headers["content-type"] == "text/html" and answer.body.startswith(b"<!DOCTYPE html>")


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
def test_rate_limits(dialect: str) -> None:
    with running(fast(dialect=dialect, reject_first=2, retry_after_s=3)) as rig:
        answers = [complete(rig.url, 1) for _ in range(3)]
        assert [answer.status for answer in answers] == [429, 429, 200]
        assert answers[0].headers["retry-after"] == "3"
        assert rig.log().reason == ["refused: rate", "refused: rate", "finished"]
        rig.control(reject_first=0, rate_limit_per_s=2)
        assert sorted(complete(rig.url, 1).status for _ in range(3)) == [200, 200, 429]


def test_loading() -> None:
    with running(fast(dialect="llamacpp", loading_s=0.5)) as rig:
        early = get(rig.url, "/v1/models")
        assert (early.status, early.json()["error"]["message"]) == (503, "Loading model")
        wait_for(lambda: get(rig.url, "/health").status == 200)
        assert complete(rig.url, 1).done


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
def test_unknown_fields(dialect: str) -> None:
    fields = ["ignore_eos", "stream_options.continuous_usage_stats"]
    with running(fast(dialect=dialect, refuse_fields=fields)) as rig:
        refused = complete(rig.url, 1, ignore_eos=True)
        assert refused.status == 400 and "ignore_eos" in refused.body.decode()
        options = {"include_usage": True, "continuous_usage_stats": True}
        assert "continuous_usage_stats" in complete(rig.url, 1, stream_options=options).body.decode()
        assert complete(rig.url, 1).done
        rig.control(refuse_style="transformers")
        refused = complete(rig.url, 1, ignore_eos=True)
    assert (refused.status, refused.json()) == (422, {"detail": "Unexpected fields in the request: {'ignore_eos'}"})


def test_bytes_that_are_no_http_get_a_400_and_the_rig_lives_on() -> None:
    with running(fast()) as rig:
        client = Client(rig.url)
        client.sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert client.read().status == 400
        client.close()
        assert complete(rig.url, 1).done


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
def test_strange_json_gets_a_400_and_the_rig_lives_on(dialect: str) -> None:
    paths = [
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/abort_request",
        "/abort_requests",
        "/rig/control",
    ]
    bodies: list[Any] = [
        [],
        {"prompt": {}, "messages": [3], "request_ids": 5},
        {"messages": [{"content": [1]}], "prompt": [None], "stream_options": 3, "max_tokens": 10**30, "plant": 3},
        {"messages": 1, "n": [], "content": 4, "stall_now_s": "x"},
    ]
    with running(fast(dialect=dialect, dev_mode=True)) as rig:
        for path in paths:
            for body in bodies:
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


def rig_with_profile_leftovers(rig: RigHandle) -> None:
    """Ten requests are left over, as after a cell of another tool."""
    clients = [start_stream(rig.url, 100_000) for _ in range(10)]
    for client in clients:
        client.read(chunks=1)
        client.close()


def test_leftovers_make_the_next_streams_slower() -> None:
    with running(
        RigConfig(dialect="sglang", decode_table=((0.0, 1.0, 1000.0), (0.0, 11.0, 100.0)), leftover=True)
    ) as rig:
        complete(rig.url, 51)
        rig_with_profile_leftovers(rig)
        complete(rig.url, 51)
        truth = rig.log()
    alone, crowded = due_spans_s(truth)[[0, -1]]
    assert crowded > 0.48 and alone < 0.06
    assert truth.running_mean(truth.first_ns[-1], truth.last_ns[-1]) == pytest.approx(11, abs=0.1)
