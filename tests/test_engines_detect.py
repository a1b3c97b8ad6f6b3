"""From a URL to a target: base paths, models, engines behind gateways; any list of models whatever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engines.base import TargetError
from flatout.engines.detect import ENGINES, connect, engines, entries_of
from tests.engine_server import Answer, answer, engine_routes, serving

MODELS = answer({"data": [{"id": "a"}, {"id": "b", "aliases": ["bee"]}]})


def connected(routes: dict[str, Answer], path: str = "", **kwargs: Any) -> tuple[str, str, str, tuple[str, ...], int]:
    with serving(routes) as server:
        t = connect(server.url + path, environ={}, **kwargs)
        t.close()
        return t.adapter.name, t.model, t.address.base_path, t.notes, len(server.seen)


def refused(routes: dict[str, Answer], path: str = "", **kwargs: Any) -> TargetError:
    with serving(routes) as server, pytest.raises(TargetError) as caught:
        connect(server.url + path, environ={}, **kwargs)
    return caught.value


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang", "transformers"])
def test_each_engine_is_recognised(engine: str) -> None:
    name, _, base, notes, _ = connected(engine_routes(engine), key="sk-test")
    assert (name, base) == (engine, "/v1") and any("Recognised" in note for note in notes)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/models"])
def test_every_way_to_write_the_url(path: str) -> None:
    assert connected(engine_routes("vllm"), path)[2] == "/v1"


def test_a_server_below_a_path() -> None:
    routes = {k.replace(" /", " /gpu1/"): v for k, v in engine_routes("vllm").items()}
    for path in ("/gpu1", "/gpu1/", "/gpu1/v1"):
        name, _, base, _, _ = connected(routes, path)
        assert (name, base) == ("vllm", "/gpu1/v1")
    with serving(routes) as server:
        t = connect(server.url + "/gpu1", environ={})
        assert t.adapter.live() is not None and server.seen[-1].path == "/gpu1/metrics"


def test_an_api_that_has_no_v1() -> None:
    name, _, base, _, _ = connected({"GET /api/models": MODELS}, "/api", model="a")
    assert (name, base) == ("generic", "/api")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_behind_a_gateway_that_hides_the_owner(engine: str) -> None:
    routes = engine_routes(engine)
    length = {"max_model_len": 4096} if engine == "vllm" else {}
    routes["GET /v1/models"] = answer({"data": [{"id": "m", "owned_by": "gateway", **length}]}, server="nginx")
    with serving(routes) as server:
        t = connect(server.url, environ={})
        assert t.adapter.name == engine


def test_the_number_of_requests_is_small() -> None:
    name, _, _, _, requests = connected({"GET /v1/models": answer({"data": [{"id": "m"}]})})
    assert name == "generic" and requests <= 6


def test_the_only_model_is_taken_and_of_several_the_first_with_a_note() -> None:
    assert connected({"GET /v1/models": answer({"data": [{"id": "m"}]})})[1] == "m"
    _, model, _, notes, _ = connected({"GET /v1/models": MODELS})
    assert model == "a" and any("2 models" in n and "b" in n for n in notes)


@pytest.mark.parametrize(("asked", "model"), [("a", "a"), ("b", "b"), ("bee", "b")])
def test_a_named_model(asked: str, model: str) -> None:
    assert connected({"GET /v1/models": MODELS}, model=asked)[1] == model


def test_a_model_that_is_not_there_names_those_that_are() -> None:
    error = refused({"GET /v1/models": MODELS}, model="c")
    assert error.kind == "model" and "'c'" in str(error) and "a, b" in str(error)
    many = answer({"data": [{"id": f"m{i}"} for i in range(40)]})
    assert "and 28 more" in str(refused({"GET /v1/models": many}, model="c"))


def test_no_model_at_all() -> None:
    assert "name one with --model" in str(refused({"GET /v1/models": answer({"data": []})}))


def test_a_server_without_a_list_of_models() -> None:
    assert refused({}).kind == "not_found"
    name, model, base, notes, _ = connected({}, model="m")
    assert (name, model, base) == ("generic", "m", "/v1") and "as given" in notes[0]


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (answer("<html>hi</html>", content_type="text/html"), "not_a_server"),
        (answer({"hello": 1}), "not_a_server"),
        (answer("", 500), "http"),
        (answer({"error": "no"}, 401), "auth"),
        (answer({"error": "loading"}, 503), "unavailable"),
    ],
)
def test_what_is_no_openai_server(raw: bytes, kind: str) -> None:
    assert refused({"*": raw}).kind == kind
    assert refused({"*": raw}, model="m").kind == kind


def test_the_engine_can_be_named() -> None:
    assert connected({"GET /v1/models": answer({"data": [{"id": "m"}]})}, engine="vllm")[0] == "vllm"
    assert all(kind.name == name and kind.programs for name, kind in engines().items()) and "vllm" in ENGINES
    assert "no engine" in str(refused({}, engine="exllama"))


def test_the_key_is_in_no_note_and_no_error() -> None:
    key = "sk-verysecret-0123456789"
    with serving({"*": answer({"error": f"unknown key {key}"}, 401)}) as server, pytest.raises(TargetError) as caught:
        connect(server.url, key=key, environ={})
    assert key not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["data", "id", "x"]), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_a_list_of_models_or_one_clear_error(content: Any) -> None:
    try:
        entries = entries_of(json.loads(json.dumps(content)), "http://h/v1/models")
    except TargetError as error:
        assert error.kind == "not_a_server"
    else:
        assert all(isinstance(e["id"], str) and e["id"].strip() for e in entries)
