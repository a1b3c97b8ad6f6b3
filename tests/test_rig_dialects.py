"""The rig's answers have the shapes of the real engines' captures (tests/fixtures/rig, distilled from raw bytes)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.rig import RigConfig, RigHandle
from tests.rig_client import Client, get, post, running

CAPTURES = Path(__file__).parent / "fixtures" / "rig"
DIALECTS = ("vllm", "sglang", "llamacpp")
MODELS = {"vllm": "tiny-qwen3", "sglang": "tiny-qwen3", "llamacpp": "tiny"}


def captured(dialect: str) -> dict[str, Any]:
    return json.loads((CAPTURES / f"{dialect}.json").read_text())


@pytest.fixture(scope="module", params=DIALECTS)
def rig(request: pytest.FixtureRequest) -> Iterator[tuple[str, RigHandle]]:
    config = RigConfig(dialect=request.param, model=MODELS[request.param], decode_tok_s=500, ttft_ms=5, model_len=4096)
    with running(config) as handle:
        yield request.param, handle


def skeleton(value: Any) -> Any:
    """Names and kinds, without the values."""
    if isinstance(value, dict):
        return {key: skeleton(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [skeleton(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


STREAMS = [
    "chat_stream_plain",
    "chat_stream_usage",
    "chat_stream_usage_continuous",
    "chat_stream_max1",
    "chat_stream_tokenids_timings",
    "completions_stream_plain",
    "completions_stream_usage",
    "completions_stream_usage_continuous",
    "completions_stream_tokenids_timings",
]


@pytest.mark.parametrize("case", STREAMS)
def test_streams_have_the_captured_shape(rig: tuple[str, RigHandle], case: str) -> None:
    dialect, handle = rig
    seen = captured(dialect)[case]
    body = seen.get("request") or captured(dialect)[case]["request"]
    path = "/v1/chat/completions" if case.startswith("chat") else "/v1/completions"
    answer = post(handle.url, path, body)
    assert answer.status == seen["status"]
    assert set(seen["headers"]) == set(answer.headers) - {"content-length"}
    if "chunks" not in seen:
        assert skeleton(answer.json()) == skeleton(seen["body"])
        return
    ours = [
        [
            text if text == "[DONE]" else skeleton(json.loads(text))
            for text in (part[6:] for part in chunk.decode().split("\n\n") if part)
        ]
        for chunk in answer.chunks
    ]
    theirs = [[item if item == "[DONE]" else skeleton(item) for item in chunk] for chunk in seen["chunks"]]
    assert ours[:3] == theirs[:3]
    assert ours[-3:] == theirs[-3:]
    # vLLM and SGLang sometimes put two tokens into one event by themselves.
    assert seen["n_chunks"] <= len(ours) <= seen["n_chunks"] + 2


@pytest.mark.parametrize("case", ["chat_nonstream", "completions_nonstream"])
def test_whole_answers_have_the_captured_shape(rig: tuple[str, RigHandle], case: str) -> None:
    dialect, handle = rig
    seen = captured(dialect)[case]
    path = "/v1/chat/completions" if case.startswith("chat") else "/v1/completions"
    answer = post(handle.url, path, seen["request"])
    ours, theirs = skeleton(answer.json()), skeleton(seen["body"])
    if dialect == "vllm":  # told only with --enable-prompt-tokens-details
        for usage in (ours["usage"], theirs["usage"]):
            usage.pop("prompt_tokens_details", None)
            usage.pop("completion_tokens_details", None)
    assert ours == theirs
    assert answer.json()["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize(
    ("case", "path", "body"),
    [
        ("chat_overflow_stream", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 5000}]}),
        ("completions_maxtokens_too_big", "/v1/completions", {"prompt": "hi", "max_tokens": 10_000_000}),
        (
            "chat_bad_maxtokens",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": -5},
        ),
    ],
)
def test_errors_use_the_engines_words(rig: tuple[str, RigHandle], case: str, path: str, body: dict[str, Any]) -> None:
    dialect, handle = rig
    seen = captured(dialect)[case]
    if "chunks" in seen:
        pytest.skip("llama.cpp starts a stream of any length; see test_rig_faults")
    answer = post(handle.url, path, {"stream": True, **body})
    assert answer.status == seen["status"]
    assert skeleton(answer.json()) == skeleton(seen["body"])

    def words(value: Any) -> str:
        text = value.get("message") or value["error"]["message"]
        return " ".join("".join(c for c in word if not c.isdigit()) for word in text.split())

    assert words(answer.json()) == words(seen["body"])


def test_broken_json_is_a_400(rig: tuple[str, RigHandle]) -> None:
    dialect, handle = rig
    client = Client(handle.url)
    client.send("POST", "/v1/chat/completions", raw=b'{"model": "x", "prompt": ')
    answer = client.read()
    assert answer.status == captured(dialect)["chat_badjson"]["status"]
    assert set(skeleton(answer.json())) == set(skeleton(captured(dialect)["chat_badjson"]["body"]))
    client.close()


def test_another_models_name(rig: tuple[str, RigHandle]) -> None:
    dialect, handle = rig
    seen = captured(dialect)["chat_wrongmodel_nonstream"]
    answer = post(handle.url, "/v1/chat/completions", seen["request"])
    assert answer.status == seen["status"]
    if answer.status == 404:
        assert answer.json() == seen["body"]
    elif dialect == "sglang":
        assert answer.json()["model"] == "no-such-model"


def covers(ours: Any, theirs: Any, where: str = "") -> None:
    """Every name and kind in `ours` stands in `theirs` too (null or a list may stand for anything)."""
    if isinstance(ours, dict):
        assert isinstance(theirs, dict), where
        for key, value in ours.items():
            assert key in theirs, f"{where}.{key} is not in the capture"
            covers(value, theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert isinstance(theirs, list), where
        if ours and theirs:
            covers(ours[0], theirs[0], f"{where}[0]")
    elif "NoneType" not in (ours, theirs):
        assert ours == theirs, where


@pytest.mark.parametrize(
    ("case", "method", "path"),
    [
        ("get_v1_models", "GET", "/v1/models"),
        ("post_tokenize", "POST", "/tokenize"),
        ("get_version", "GET", "/version"),
        ("get_slots", "GET", "/slots"),
        ("get_props", "GET", "/props"),
        ("get_load", "GET", "/load"),
        ("get_v1_loads", "GET", "/v1/loads"),
        ("get_get_server_info", "GET", "/get_server_info"),
        ("get_health", "GET", "/health"),
        ("get_root", "GET", "/"),
    ],
)
def test_endpoints_have_the_captured_shape(rig: tuple[str, RigHandle], case: str, method: str, path: str) -> None:
    dialect, handle = rig
    seen = captured(dialect)[case]
    client = Client(handle.url)
    answer = client.call(method, path, seen.get("request"))
    client.close()
    assert answer.status == seen["status"]
    if seen.get("body") is None:
        assert answer.body.decode() == seen.get("text", "")
    else:
        covers(skeleton(answer.json()), skeleton(seen["body"]))


def test_metrics_have_the_engines_names_types_and_labels(rig: tuple[str, RigHandle]) -> None:
    dialect, handle = rig
    seen = captured(dialect)["zz_metrics_after"]
    post(handle.url, "/v1/completions", {"prompt": "hi", "max_tokens": 2})
    text = get(handle.url, "/metrics").body.decode()
    # These exist only after an abort.
    types = {**seen["types"], "sglang:num_aborted_requests_total": "counter"}
    names = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert types.get(name) == kind, name
            names.add(name)
        elif "{" in line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = {item.split("=")[0] for item in rest.rpartition("}")[0].split(",")}
            assert labels <= set(seen["labels"].get(name, labels)), name
    assert len(names) >= 10


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp", "openai"])
def test_keys(dialect: str) -> None:
    with running(RigConfig(dialect=dialect, api_key="sk-right")) as handle:  # type: ignore[arg-type]
        bare = get(handle.url, "/v1/models")
        assert bare.status == 401
        assert get(handle.url, "/v1/models", key="sk-wrong").status == 401
        assert get(handle.url, "/v1/models", key="sk-right").status == 200
        if dialect != "openai":
            assert bare.json() == captured(dialect)["auth_models_nokey"]["body"]
            assert get(handle.url, "/metrics").status == (401 if dialect == "llamacpp" else 200)


@pytest.mark.timing
def test_sglang_sends_its_head_with_the_first_token_and_others_before() -> None:
    for dialect, waits in (("sglang", True), ("vllm", False), ("llamacpp", False), ("openai", False)):
        with running(RigConfig(dialect=dialect, ttft_ms=1000)) as handle:  # type: ignore[arg-type]
            client = Client(handle.url)
            client.send("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1, "stream": True})
            client.sock.settimeout(0.5)
            try:
                early = client.sock.recv(4096)
            except TimeoutError:
                early = b""
            client.close()
            assert (early == b"") is waits, dialect


def test_sglang_health_runs_a_generation() -> None:
    with running(RigConfig(dialect="sglang")) as handle:
        assert get(handle.url, "/health").status == 200
        truth = handle.log()
        assert truth.rid == ["health"]
        assert truth.end_ns[0] - truth.arrival_ns[0] >= 1_000_000_000
        assert truth.level_running.max() == 1
