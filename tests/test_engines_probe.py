"""What a server understands: each engine's dialect, and servers that refuse, ignore or break."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.engines import probe as probe_module
from flatout.engines.base import MAX_TOKENS, TargetError
from flatout.engines.detect import connect
from flatout.engines.probe import Capabilities, probe, resolve
from flatout.protocol import Api, body
from tests.engine_server import Answer, Request, answer, capture, chat, engine_routes, serving, stream

CHAT = "POST /v1/chat/completions"
COMPLETIONS = "POST /v1/completions"


def probed(routes: dict[str, Answer], api: Api | None = None, **kwargs: Any) -> tuple[Capabilities, list[Request]]:
    engine = kwargs.pop("engine", None)
    with serving({"GET /v1/models": answer({"data": [{"id": "m"}]}), **routes}) as server:
        t = connect(server.url, environ={}, engine=engine)
        server.seen.clear()
        found = probe(t, api, **kwargs)
        t.close()
        return found, [r for r in server.seen if r.path.endswith("completions")]


def fields(c: Capabilities) -> list[str]:
    return [name for name, _ in c.fields]


# Real engines, played back


def test_llamacpp_tells_running_counts_by_its_timings() -> None:
    routes = {**engine_routes("llamacpp"), CHAT: capture("llamacpp", "chat_stream_tokenids_timings")}
    c, sent = probed(routes)
    assert c.api == "chat" and fields(c) == ["stream_options.include_usage", "timings_per_token", "ignore_eos"]
    assert c.reports.running_counts and c.reports.usage and c.reports.cached
    assert c.dropped == () and c.ignored == ()
    assert len(sent) == c.requests == 1


def test_vllm_tells_running_counts_but_no_cached_tokens() -> None:
    c, sent = probed({**engine_routes("vllm"), CHAT: capture("vllm", "chat_stream_temp1_continuous")})
    assert fields(c) == ["stream_options.include_usage", "stream_options.continuous_usage_stats", "ignore_eos"]
    assert c.reports.running_counts and c.reports.usage_every and not c.reports.cached and not c.reports.token_ids
    assert c.template_tokens == 25 - 23  # the capture's prompt and its tokenizer's answer
    assert sent[0].json()["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "return_token_ids" not in sent[0].json() and "min_tokens" not in sent[0].json()


def test_vllm_falls_back_to_token_ids() -> None:
    def chat_(request: Request) -> bytes:
        ids = request.json().get("return_token_ids")
        return capture("vllm", "chat_stream_tokenids_timings" if ids else "chat_stream_usage")

    def strip(raw: bytes) -> bytes:
        _, _, data = raw.partition(b"\r\n\r\n")
        events = [json.loads(e[6:]) for e in data.split(b"\n\n") if e.startswith(b"data: {")]
        last = max(i for i, e in enumerate(events) if e.get("usage"))
        for e in events[:last]:
            e.pop("usage", None)
        return stream(*events)

    c, _ = probed({**engine_routes("vllm"), CHAT: lambda r: strip(chat_(r))})
    assert c.reports.token_ids and not c.reports.running_counts
    assert "return_token_ids" in fields(c) and "stream_options.continuous_usage_stats" not in fields(c)
    assert c.ignored == (("stream_options.continuous_usage_stats", "no running token counts came with the events"),)


def test_sglang_takes_a_request_id() -> None:
    c, sent = probed({**engine_routes("sglang"), CHAT: capture("sglang", "chat_stream_temp1_continuous")})
    assert c.id_field == "rid" and sent[0].json()["rid"].startswith("flatout-probe")
    assert c.reports.running_counts and c.reports.cached


def test_transformers_refuses_by_name_and_loses_nothing_else() -> None:
    def chat_(request: Request) -> bytes:
        unknown = set(request.json()) - {"model", "messages", "max_tokens", "stream", "stream_options"}
        if unknown:
            return answer({"detail": f"Unexpected fields in the request: {unknown}"}, 422)
        return capture("transformers", "chat_stream_usage")

    c, sent = probed({**engine_routes("transformers"), CHAT: chat_}, engine="generic")
    assert c.dropped == (("ignore_eos", "Unexpected fields in the request: {'ignore_eos'}"),)
    assert fields(c) == ["stream_options.include_usage"] and len(sent) <= 8
    assert [name for name, _ in c.ignored] == ["stream_options.continuous_usage_stats"]
    assert c.reports.usage and not c.reports.running_counts
    c, _ = probed({**engine_routes("transformers"), CHAT: chat_})
    assert c.dropped == () and fields(c) == ["stream_options.include_usage"]


# Servers that refuse


def refusing(names: set[str], words: str, status: int = 400) -> Callable[[Request], bytes]:
    def chat_(request: Request) -> bytes:
        content = request.json()
        there = set(content) | set(content.get("stream_options", {}))
        if there & names:
            return answer({"error": {"message": words}}, status)
        return stream(chat("a", completion=1), chat("b", completion=2, finish="length"))

    return chat_


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_refusal_without_a_name_is_found_by_trying(status: int) -> None:
    c, sent = probed({CHAT: refusing({"ignore_eos"}, "invalid request", status)})
    assert [name for name, _ in c.dropped] == ["ignore_eos"] and "invalid request" in c.dropped[0][1]
    assert fields(c) == ["stream_options.include_usage", "stream_options.continuous_usage_stats"]
    assert len(sent) <= 8 + 5


def test_every_extra_refused_without_a_name() -> None:
    everything = {"ignore_eos", "stream_options", "rid", "min_tokens", "return_token_ids"}
    c, _ = probed({CHAT: refusing(everything, "bad")}, engine="sglang")
    assert fields(c) == [] and c.id_field is None
    assert {"ignore_eos", "rid", "stream_options.include_usage"} <= {name for name, _ in c.dropped}


def test_stream_options_refused_as_a_whole() -> None:
    c, _ = probed({CHAT: refusing({"stream_options"}, "unknown field stream_options")})
    assert fields(c) == ["ignore_eos"]


def test_another_name_for_the_limit() -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    c, sent = probed({CHAT: refusing({"max_tokens"}, words)})
    assert c.max_tokens_field == "max_completion_tokens" and "max_completion_tokens" in sent[-1].json()
    assert dict(c.dropped)["max_tokens"].startswith("Unsupported")
    assert b'"max_completion_tokens": 5' in body(c.shape("m"), "x", 5)


def test_what_no_request_satisfies_is_raised_in_the_servers_words() -> None:
    with pytest.raises(TargetError, match="model is broken") as caught:
        probed({CHAT: answer({"error": {"message": "model is broken"}}, 400)})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "raw",
    [
        answer({"detail": "Not Found"}, 404),
        answer({"error": {"message": "default chat template is no longer allowed; you must provide one"}}, 400),
        answer({"error": {"message": "This model does not support chat"}}, 400),
    ],
)
def test_without_a_chat_template_completions_are_taken(raw: bytes) -> None:
    plain = stream({"choices": [{"text": "a"}]}, {"choices": [{"text": "b", "finish_reason": "length"}]})
    c, _ = probed({CHAT: raw, COMPLETIONS: plain})
    assert c.api == "completions" and "Chat is not possible" in c.notes[0]
    with pytest.raises(TargetError):
        probed({CHAT: raw, COMPLETIONS: plain}, "chat")


def test_a_wrong_model_is_not_taken_for_a_missing_chat() -> None:
    with pytest.raises(TargetError, match="no-such-model"):
        probed({CHAT: capture("vllm", "chat_wrongmodel_nonstream")})


# Servers that ignore


def test_a_count_field_without_effect_is_left_out() -> None:
    c, _ = probed({CHAT: stream(chat("a"), chat("b", completion=2, finish="length"))})
    assert [name for name, _ in c.ignored] == ["stream_options.continuous_usage_stats"]
    assert "stream_options.continuous_usage_stats" not in fields(c) and "ignore_eos" in fields(c)


def test_a_count_that_never_moves_is_no_running_count() -> None:
    same = [chat(t, completion=8) for t in "abcd"]
    c, _ = probed({CHAT: stream(*same, chat("e", completion=8, finish="length"))})
    assert not c.reports.running_counts and c.reports.usage


def test_an_early_stop_in_spite_of_ignore_eos_turns_to_min_tokens() -> None:
    def chat_(request: Request) -> bytes:
        n, finish = (16, "length") if request.json().get("min_tokens") == 16 else (2, "stop")
        return stream(*(chat("x", completion=i + 1) for i in range(n)), chat("", completion=n, finish=finish))

    c, _ = probed({**engine_routes("vllm"), CHAT: chat_})
    assert ("min_tokens", MAX_TOKENS) in c.fields
    assert [name for name, _ in c.ignored] == ["ignore_eos"] and "ignore_eos" in fields(c)
    assert resolve(c.fields, 99)[-1] == ("min_tokens", 99)


def test_an_early_stop_that_nothing_prevents_is_named() -> None:
    c, _ = probed({CHAT: stream(chat("Paris", completion=1), chat("", completion=2, finish="stop"))})
    assert [name for name, _ in c.ignored] == ["ignore_eos"]


def test_no_usage_at_all() -> None:
    c, _ = probed({CHAT: stream(chat("a"), chat("b", finish="length"))})
    assert not c.reports.usage and not c.reports.cached and c.template_tokens is None and c.template_reason


def test_cached_tokens_told_only_where_there_are_any() -> None:
    seen: set[str] = set()

    def chat_(request: Request) -> bytes:
        text = request.json()["messages"][0]["content"]
        last = chat("b", completion=2, finish="length")
        if text in seen and len(text) > 1000:
            last["usage"]["prompt_tokens_details"] = {"cached_tokens": 640}
        seen.add(text)
        return stream(chat("a", completion=1), last)

    assert probed({CHAT: chat_})[0].reports.cached


# The template's part of a prompt


def counting(count: Callable[[str], int]) -> Callable[[Request], bytes]:
    def chat_(request: Request) -> bytes:
        prompt = count(request.json()["messages"][0]["content"])
        return stream(chat("a", completion=1, prompt=prompt), chat("b", completion=2, finish="length", prompt=prompt))

    return chat_


@pytest.mark.parametrize("overhead", [0, 1, 11])
def test_the_templates_tokens_from_prompts_that_grow(overhead: int) -> None:
    c, sent = probed({CHAT: counting(lambda text: overhead + len(text.split()))})
    assert c.template_tokens == overhead
    assert [r.json()["max_tokens"] for r in sent[-3:]] == [1, 1, 1]


def test_counts_that_do_not_grow_in_step_tell_nothing() -> None:
    c, _ = probed({CHAT: counting(lambda text: len(text.split()) ** 2)})
    assert c.template_tokens is None and "in step" in str(c.template_reason)


def test_the_templates_tokens_by_the_servers_own_tokenizer() -> None:
    routes = {**engine_routes("llamacpp"), CHAT: counting(lambda text: 7 + len(text))}
    routes["POST /tokenize"] = lambda r: answer({"tokens": [1] * len(r.json()["content"])})
    assert probed(routes)[0].template_tokens == 7


# Token ids as prompts


def completions(count: Callable[[Any], int | None]) -> Callable[[Request], bytes]:
    def made(request: Request) -> bytes:
        prompt = count(request.json()["prompt"])
        if prompt is None:
            return answer({"detail": "prompt must be a string."}, 400)
        usage = {"prompt_tokens": prompt, "completion_tokens": 1}
        return stream({"choices": [{"text": "a", "finish_reason": "length"}], "usage": usage})

    return made


@pytest.mark.parametrize(
    ("count", "taken"),
    [(len, True), (lambda p: None if isinstance(p, list) else 23, False), (lambda p: len(str(p)), False)],
)
def test_token_prompts_are_tried(count: Callable[[Any], int | None], taken: bool) -> None:
    c, _ = probed({**engine_routes("vllm"), COMPLETIONS: completions(count)}, "completions")
    assert c.api == "completions" and c.token_prompts is taken


def test_chats_take_no_token_prompts() -> None:
    assert not probed({CHAT: stream(chat("a", completion=1, finish="length"))})[0].token_prompts


# Waiting, breaking


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(probe_module._Prober, "_sleep", lambda _, wait_s: made.append(wait_s))
    return made


def test_a_wait_that_the_server_asks_for_is_kept(waits: list[float]) -> None:
    told: list[str] = []
    calls = iter([answer("", 429, retry_after="3"), answer("", 503, retry_after="1")])
    good = stream(chat("a", completion=1, finish="length"))
    c, _ = probed({CHAT: lambda r: next(calls, good)}, on_wait=told.append)
    assert waits == [3.0, 1.0] and "wait 3 s" in told[0] and c.reports.usage


@pytest.mark.parametrize("told", ["0", "0.001", "0.000000001"])
def test_no_word_of_the_server_makes_the_probe_a_storm(waits: list[float], told: str) -> None:
    with pytest.raises(TargetError, match="too many requests"):
        probed({CHAT: answer("", 429, retry_after=told)})
    assert waits == [0.25, 0.5, 1.0]


def test_a_tokenizer_that_fails_leaves_the_counting_to_usage() -> None:
    def chat_(request: Request) -> bytes:
        words = len(request.json()["messages"][0]["content"].split())
        return stream(
            chat("a", completion=1, prompt=words + 7), chat("b", completion=2, prompt=words + 7, finish="length")
        )

    for tokenizer in (answer("", 500), answer({"tokens": list(range(9999))}), b""):
        c, _ = probed({CHAT: chat_, "POST /tokenize": tokenizer}, engine="vllm")
        assert c.template_tokens == 7 and c.reports.usage


def test_waits_are_bounded(waits: list[float]) -> None:
    with pytest.raises(TargetError, match="too many requests"):
        probed({CHAT: answer("", 429, retry_after="3600")})
    assert waits == []
    with pytest.raises(TargetError, match="too many requests"):
        probed({CHAT: answer("", 429)})
    assert waits == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (stream({"error": {"message": "engine died", "code": 500}}), "engine died"),
        (stream(), "empty stream"),
        (answer(b"data: {oops\n\n", content_type="text/event-stream"), "not JSON"),
        (answer({"choices": [{"message": {"content": "hi"}}]}), "does not stream"),
        (answer("", 503), "not ready"),
        (answer("", 401), "--api-key"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\ndata: {}\n\n",
            "closed the conn",
        ),
    ],
)
def test_broken_streams_are_one_clear_error(raw: bytes, part: str) -> None:
    with pytest.raises(TargetError, match=part):
        probed({CHAT: raw})


def test_a_silent_stream_is_bounded() -> None:
    import time

    def slow(request: Request) -> bytes:
        time.sleep(1.5)
        return b""

    with pytest.raises(TargetError) as caught:
        probed({CHAT: slow}, timeout_s=0.3)
    assert caught.value.kind == "timeout"


def test_the_users_own_fields_are_sent_with_every_probe() -> None:
    extra = '{"chat_template_kwargs": {"enable_thinking": false}}'
    _, sent = probed({CHAT: stream(chat("a", completion=1, finish="length"))}, extra_body=extra, temperature=0.5)
    assert all(r.json()["chat_template_kwargs"] == {"enable_thinking": False} for r in sent)
    assert all(r.json()["temperature"] == 0.5 for r in sent)


EVENT = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda text, n, finish, ids: json.dumps({**chat(text, completion=n, finish=finish), "x": ids}).encode(),
        st.text(max_size=5),
        st.none() | st.integers(-5, 50),
        st.sampled_from([None, "stop", "length", "x"]),
        st.none() | st.lists(st.integers(), max_size=3),
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, max_size=5), st.sampled_from(["vllm", "llamacpp", "generic"]))
def test_any_stream_gives_capabilities_or_one_clear_error(events: list[bytes], engine: str) -> None:
    raw = answer(b"".join(b"data: " + e + b"\n\n" for e in events), content_type="text/event-stream")
    try:
        c, sent = probed({CHAT: raw}, engine=engine)
    except TargetError as error:
        assert str(error).strip()
    else:
        assert c.api == "chat" and len(sent) == c.requests <= 16
