"""Each engine's adapter against what that engine really answers (tests/fixtures/captures)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.engines import ENGINES, generic, prometheus
from flatout.engines.base import TargetError
from flatout.engines.detect import Target, connect, engines
from flatout.engines.prometheus import parse
from flatout.record import Fact
from tests.engine_server import Answer, Request, Server, answer, capture, engine_routes, serving, text_of

SENTENCE_IDS = 23


@contextmanager
def target(routes: dict[str, Answer], **kwargs: Any) -> Iterator[tuple[Target, Server]]:
    with serving(routes) as server:
        made = connect(server.url, key="sk-test", environ={}, **kwargs)
        try:
            yield made, server
        finally:
            made.close()


# llama.cpp


def test_llamacpp_facts() -> None:
    with target(engine_routes("llamacpp")) as (t, _):
        a = t.adapter
        assert (a.name, a.verified, a.counters_live, a.has_gauges) == ("llamacpp", True, False, True)
        i, m, r = a.engine(), a.served_model(), a.room()
    assert t.model == "tiny"
    assert (i.version.value, i.build.value, i.commit.value) == ("b0", "b0-unknown", None)
    assert m.id.value == "tiny-qwen35-q8_0.gguf" and m.quantization.value == "Q8_0"
    assert (i.speculative_method.value, i.speculative_method.source) == ("none", "server")
    assert i.repository.value == "ggml-org/llama.cpp"
    assert (r.model_length.value, r.max_running.value) == (4096, 4)
    assert (r.kv_tokens.value, r.kv_tokens.source) == (16384, "derived")
    assert "--kv-unified" in str(r.kv_tokens.reason)


def test_llamacpp_gauges_by_metrics() -> None:
    with target(engine_routes("llamacpp")) as (t, s):
        s.seen.clear()
        live = t.adapter.live()
        assert live is not None and [f"{r.method} {r.path}" for r in s.seen] == ["GET /metrics"]
    assert (live.running, live.waiting, live.generated_total) == (0, 0, 1011)
    # The engine's own prompt counter leaves out what came from the cache.
    assert (live.prompt_total, live.prefix_hits_total, live.prefix_queries_total) == (1617 + 1990, 1990, 1617 + 1990)
    assert (live.kv_use, live.accept_length, live.preemptions_total) == (None, None, None)


def test_llamacpp_speculation_counters() -> None:
    routes = {**engine_routes("llamacpp"), **engine_routes("llamacpp-spec")}
    props = json.loads(text_of("llamacpp", "get_props"))
    props["default_generation_settings"]["params"]["speculative.types"] = "none,draft-simple"
    with target({**routes, "GET /props": answer(props)}) as (t, _):
        live = t.adapter.live()
        assert t.adapter.engine().speculative_method.value == "draft-simple"
    assert live is not None and (live.drafts_total, live.drafted_total, live.accepted_total) == (32, 125, 125)


def test_llamacpp_without_metrics_counts_busy_slots() -> None:
    routes = engine_routes("llamacpp")
    del routes["GET /metrics"]
    slots = [{"id": i, "n_ctx": 2048, "speculative": True, "is_processing": i < 3} for i in range(4)]
    with target({**routes, "GET /slots": answer(slots)}) as (t, s):
        s.seen.clear()
        live = t.adapter.live()
        assert [f"{r.method} {r.path}" for r in s.seen] == ["GET /slots"]
        assert t.adapter.room().kv_tokens.value == 8192
    assert live is not None and live.running == 3 and live.waiting is None and live.generated_total is None


def test_llamacpp_with_neither_has_no_gauges() -> None:
    routes = {k: v for k, v in engine_routes("llamacpp").items() if k not in ("GET /metrics", "GET /slots")}
    with target(routes) as (t, _):
        assert not t.adapter.has_gauges and t.adapter.live() is None
        assert t.adapter.room().kv_tokens.value == 16384


@pytest.mark.parametrize(
    ("argv", "n_ctx", "kv", "caveat"),
    [
        (["llama-server", "-m", "x.gguf", "-c", "16384", "-np", "4"], 4096, 16384, None),
        (["llama-server", "-m", "x.gguf", "-c", "4096", "-kvu", "-np", "4"], 4096, 4096, "unified"),
        (["llama-server", "-m", "x.gguf"], 32768, 32768, "unified"),
        (["llama-server", "-m", "x.gguf", "--no-kv-unified"], 8192, 32768, None),
        (None, 32768, 32768, "default"),
    ],
)
def test_llamacpp_unified_cache(argv: list[str] | None, n_ctx: int, kv: int, caveat: str | None) -> None:
    slots = [{"id": i, "n_ctx": n_ctx, "is_processing": False} for i in range(4)]
    with target({**engine_routes("llamacpp"), "GET /slots": answer(slots)}, argv=argv) as (t, _):
        fact = t.adapter.room().kv_tokens
    assert fact.value == kv
    assert (caveat or "") in (fact.reason or "") and (caveat is None) == (fact.reason is None)


def test_llamacpp_counts_tokens_and_chats() -> None:
    def tokenize(request: Any) -> bytes:
        body = request.json()
        return answer({"tokens": list(range(len(body["content"]) + (1 if body["add_special"] else 0)))})

    routes = {
        **engine_routes("llamacpp"),
        "POST /tokenize": tokenize,
        "POST /apply-template": lambda r: answer({"prompt": "<<" + r.json()["messages"][0]["content"] + ">>"}),
    }
    with target(routes) as (t, _):
        assert t.adapter.count_tokens("abc") == 3
        assert t.adapter.tokenize("ab") == [0, 1]
        assert t.adapter.count_chat_tokens("abc") == 3 + 4 + 1
    with target(engine_routes("llamacpp")) as (t, _):
        assert t.adapter.count_tokens("The quick brown fox") == SENTENCE_IDS
        assert t.adapter.count_chat_tokens("x") is None


def test_llamacpp_forgets_only_with_a_slot_path() -> None:
    with target(engine_routes("llamacpp")) as (t, s):
        assert t.adapter.forget_cache() is False
        for i in range(4):
            s.routes[f"POST /slots/{i}?action=erase"] = answer({"n_erased": 1})
        assert t.adapter.forget_cache() is True
        assert t.adapter.cancel(["a"]) is False


# vLLM


def test_vllm_facts() -> None:
    with target(engine_routes("vllm")) as (t, _):
        a = t.adapter
        assert (a.name, a.counters_live, a.has_gauges, a.wants.id_field) == ("vllm", True, True, None)
        i, m, r = a.engine(), a.served_model(), a.room()
        assert a.cancel(["x"]) is False and a.forget_cache() is False
    assert (i.version.value, i.commit.value) == ("0.32.0", None)
    assert (r.model_length.value, r.kv_tokens.value, r.kv_tokens.source) == (4096, 524288, "server")
    assert r.max_running.value is None and "--max-num-seqs" in str(r.max_running.reason)
    assert i.speculative_method.value is None and m.dtype.value is None and m.dtype.reason


def test_vllm_gauges() -> None:
    with target(engine_routes("vllm")) as (t, s):
        s.seen.clear()
        live = t.adapter.live()
        assert [r.path for r in s.seen] == ["/metrics"]
    assert live is not None
    assert (live.running, live.waiting, live.kv_use, live.preemptions_total) == (0, 0, 0, 0)
    assert (live.generated_total, live.prompt_total) == (802, 3511)
    assert (live.prefix_hits_total, live.prefix_queries_total) == (1280, 3511)
    assert (live.drafts_total, live.drafted_total, live.accepted_total) == (None, None, None)


def test_vllm_two_engines_two_models() -> None:
    def series(name: str, *values: float) -> str:
        return "".join(f'{name}{{engine="{i}",model_name="m"}} {v}\n' for i, v in enumerate(values))

    info = "".join(
        f'vllm:cache_config_info{{engine="{i}",num_gpu_blocks="100",block_size="16",kv_cache_size_tokens="None"}} 1\n'
        for i in range(2)
    )
    text = (
        series("vllm:num_requests_running", 3, 4)
        + series("vllm:kv_cache_usage_perc", 0.25, 0.75)
        + series("vllm:spec_decode_num_drafts_total", 10, 20)
        + series("vllm:spec_decode_num_draft_tokens_total", 30, 60)
        + series("vllm:spec_decode_num_accepted_tokens_total", 15, 20)
        + info
    )
    argv = ["vllm", "serve", "m", "--max-num-seqs", "64"]
    with target({**engine_routes("vllm"), "GET /metrics": answer(text)}, argv=argv) as (t, _):
        live, room = t.adapter.live(), t.adapter.room()
    assert live is not None and (live.running, live.kv_use) == (7, 0.5)
    assert (live.drafts_total, live.drafted_total, live.accepted_total) == (30, 90, 35)
    assert (room.kv_tokens.value, room.kv_tokens.source, room.max_running.value) == (3200, "derived", 128)


def test_vllm_hybrid_tells_its_own_kv_size() -> None:
    routes = {**engine_routes("vllm"), **engine_routes("vllm-qwen35")}
    with target(routes) as (t, _):
        assert t.adapter.room().kv_tokens.value == 1525201


def test_vllm_facts_from_its_command_line() -> None:
    speculative = '{"method":"eagle3","model":"some/draft","num_speculative_tokens":3}'
    argv = ["vllm", "serve", "m", "--max_num_seqs=32", "--dtype", "bfloat16", "--quantization", "fp8"]
    argv += ["--speculative-config", speculative, "--api-key", "sk-test-abcdefgh"]
    with target(engine_routes("vllm"), argv=argv, argv_source="typed") as (t, _):
        i, m, r = t.adapter.engine(), t.adapter.served_model(), t.adapter.room()
    assert (r.max_running.value, r.max_running.source) == (32, "typed")
    assert (m.dtype.value, m.quantization.value, m.dtype.source) == ("bfloat16", "fp8", "typed")
    assert (i.speculative_method.value, i.draft_model.value, i.draft_length.value) == ("eagle3", "some/draft", 3)
    assert i.launch_command.value is not None and "sk-test-abcdefgh" not in i.launch_command.value
    assert i.launch_command.value.startswith("vllm serve m")


def test_vllm_in_development_mode() -> None:
    told = capture("vllm-dev", "get_server_info")
    routes = {
        **engine_routes("vllm"),
        "GET /server_info?config_format=json": told,
        "POST /reset_prefix_cache": answer(""),
        "POST /abort_requests": answer({"status": "aborted"}),
    }
    with target(routes) as (t, s):
        i, m = t.adapter.engine(), t.adapter.served_model()
        assert (m.dtype.value, m.dtype.source, i.backend.value) == ("float16", "server", "cpu")
        assert i.speculative_method.value == "none" and m.quantization.value is None
        assert t.adapter.wants.id_field == "request_id"
        assert t.adapter.forget_cache() is True
        assert t.adapter.cancel([]) is True and not s.asked("POST /abort_requests")  # an empty list would abort all
        assert t.adapter.cancel(["a", "b"]) is True
        (aborted,) = s.asked("POST /abort_requests")
    assert aborted.json() == {"request_ids": ["chatcmpl-a", "cmpl-a-0", "chatcmpl-b", "cmpl-b-0"]}


def test_vllm_structured_configuration() -> None:
    config = {"scheduler_config": {"max_num_seqs": 48}, "model_config": {"dtype": "torch.bfloat16"}}
    config["speculative_config"] = {"method": "mtp", "num_speculative_tokens": 2}
    routes = {**engine_routes("vllm"), "GET /server_info?config_format=json": answer({"vllm_config": config})}
    with target(routes) as (t, _):
        assert t.adapter.room().max_running.value == 48
        i, m = t.adapter.engine(), t.adapter.served_model()
    assert (m.dtype.value, i.speculative_method.value, i.draft_length.value) == ("bfloat16", "mtp", 2)


def test_vllm_counts() -> None:
    with target(engine_routes("vllm")) as (t, s):
        assert t.adapter.count_tokens("x") == SENTENCE_IDS
        asked = {"model": "tiny-qwen3", "prompt": "x", "add_special_tokens": False}
        assert s.asked("POST /tokenize")[-1].json() == asked
        assert t.adapter.count_chat_tokens("x") == SENTENCE_IDS
        assert s.asked("POST /tokenize")[-1].json()["messages"] == [{"role": "user", "content": "x"}]


def test_a_development_version_tells_its_commit() -> None:
    version = answer({"version": "0.11.1rc2.dev123+gabc1234de.d20261130.cu128"})
    with target({**engine_routes("vllm"), "GET /version": version}) as (t, _):
        i = t.adapter.engine()
    assert (i.commit.value, i.build.value) == ("abc1234de", "gabc1234de.d20261130.cu128")


# SGLang


def test_sglang_facts() -> None:
    with target(engine_routes("sglang")) as (t, s):
        a = t.adapter
        assert (a.name, a.counters_live, a.has_gauges, a.wants.id_field) == ("sglang", False, True, "rid")
        i, m, r = a.engine(), a.served_model(), a.room()
        assert not any("health" in request.path for request in s.seen)  # it would run a generation
    assert (i.version.value, m.id.value, i.backend.value) == ("0.5.23", "models/tiny-qwen3", "torch_native")
    assert (i.speculative_method.value, i.speculative_method.source) == ("none", "server")
    assert (r.model_length.value, r.kv_tokens.value, r.max_running.value) == (4096, 65536, 4096)
    assert i.launch_command.source == "server"
    assert "--context-length 4096" in str(i.launch_command.value) and "sk-test" not in str(i.launch_command.value)


def test_sglang_gauges() -> None:
    with target(engine_routes("sglang")) as (t, s):
        s.seen.clear()
        live = t.adapter.live()
        assert [r.path for r in s.seen] == ["/metrics"]
    assert live is not None
    assert (live.running, live.waiting, live.kv_use, live.generated_total) == (0, 0, 0, 930)
    assert (live.prompt_total, live.prefix_hits_total, live.prefix_queries_total) == (3641, 2112, 3641)
    assert live.accept_length is None  # the gauge is 0 where nothing is speculated: no length at all


def test_sglang_speculation_over_two_ranks() -> None:
    info = json.loads(text_of("sglang", "get_get_server_info"))
    info |= {"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "d", "dp_size": 2}
    info |= {"speculative_dflash_block_size": 16, "version": "0.5.24.dev7+g0123abcd"}
    loads = {"loads": [{"max_total_num_tokens": 1000, "max_running_requests": 8}] * 2}
    text = "".join(
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="{tp}"}} {value}\n'
        for rank in (0, 1)
        for tp in (0, 1)
        for name, value in (("num_running_reqs", 3 + rank), ("spec_accept_length", 2.0 + rank))
    )
    routes = {**engine_routes("sglang"), "GET /get_server_info": answer(info), "GET /v1/loads": answer(loads)}
    with target({**routes, "GET /metrics": answer(text)}) as (t, _):
        i, r, live = t.adapter.engine(), t.adapter.room(), t.adapter.live()
    assert (i.speculative_method.value, i.draft_model.value, i.draft_length.value) == ("DFLASH", "d", 16)
    assert i.commit.value == "0123abcd"
    assert (r.kv_tokens.value, r.max_running.value) == (2000, 16)
    assert live is not None and (live.running, live.accept_length) == (7, 2.5)


def test_sglang_without_metrics_uses_its_loads() -> None:
    routes = engine_routes("sglang")
    del routes["GET /metrics"]
    loads = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5}] * 2}
    with target({**routes, "GET /v1/loads": answer(loads)}) as (t, s):
        s.seen.clear()
        live = t.adapter.live()
        assert [r.path for r in s.seen] == ["/v1/loads"]
    assert live is not None and (live.running, live.waiting, live.kv_use, live.generated_total) == (4, 2, 0.5, None)


def test_an_older_sglang_has_no_loads_but_its_server_info() -> None:
    routes = engine_routes("sglang")
    del routes["GET /v1/loads"]
    with target(routes) as (t, _):
        r = t.adapter.room()
    assert (r.kv_tokens.value, r.max_running.value) == (65536, 4096)


def test_sglang_cancels_each_by_its_id_and_never_all() -> None:
    routes = {**engine_routes("sglang"), "POST /abort_request": answer(""), "POST /flush_cache": answer("flushed")}
    with target(routes) as (t, s):
        assert t.adapter.cancel(["a", "", "b"]) is True
        assert [r.json() for r in s.asked("POST /abort_request")] == [{"rid": "a"}, {"rid": "b"}]
        assert t.adapter.forget_cache() is True
        s.routes["POST /flush_cache"] = answer("busy", 400)
        assert t.adapter.forget_cache() is False


# The others


def test_transformers_knows_little_and_says_why() -> None:
    with target(engine_routes("transformers"), argv=["transformers", "serve", "m", "--device", "cpu"]) as (t, _):
        a, i, r = t.adapter, t.adapter.engine(), t.adapter.room()
        assert (a.name, a.has_gauges, a.live()) == ("transformers", False, None)
        assert a.count_tokens("x") is None and a.cancel(["x"]) is False
    assert t.model == "models/tiny-qwen3"
    assert i.version.value is None and i.version.reason
    assert (i.backend.value, i.backend.source, r.max_running.value) == ("cpu", "host", 1)
    assert r.model_length.value is None and r.model_length.reason


def ollama_routes() -> dict[str, Answer]:
    """As docs.ollama.com describes them."""
    details = {"format": "gguf", "family": "qwen2", "parameter_size": "494.03M", "quantization_level": "Q4_K_M"}
    return {
        "GET /v1/models": answer({"object": "list", "data": [{"id": "qwen2.5:latest", "owned_by": "library"}]}),
        "GET /api/version": answer({"version": "0.12.6"}),
        "POST /api/show": answer({"details": details, "model_info": {"qwen2.context_length": 32768}}),
        "GET /api/ps": answer({"models": [{"name": "qwen2.5:latest", "digest": "a8b0c5", "context_length": 4096}]}),
    }


def test_ollama_from_its_documentation() -> None:
    with target(ollama_routes(), model="qwen2.5") as (t, s):
        a, i, r = t.adapter, t.adapter.engine(), t.adapter.room()
        m = a.served_model()
        assert (a.name, a.verified, a.has_gauges, t.model) == ("ollama", False, False, "qwen2.5:latest")
        assert (i.version.value, m.quantization.value, m.revision.value) == ("0.12.6", "Q4_K_M", "a8b0c5")
        assert r.model_length.value == 4096
        s.routes["GET /api/ps"] = answer({"models": []})
        assert t.adapter.room().model_length.value is None


@pytest.mark.parametrize(
    ("entry", "headers", "extra", "name"),
    [
        ({"owned_by": "organization_owner"}, {}, {}, "lmstudio"),
        ({"owned_by": "tensorrt_llm"}, {"version": "1"}, {"GET /version": answer({"version": "1.2"})}, "tensorrt-llm"),
        ({"owned_by": "system"}, {"openai-version": "2020-10-01"}, {}, "openai"),
        ({"owned_by": "me"}, {}, {}, "generic"),
    ],
)
def test_generic_recognises_names(
    entry: dict[str, Any], headers: dict[str, str], extra: dict[str, Answer], name: str
) -> None:
    models = answer({"data": [{"id": "m", "context_length": 8192, **entry}]}, **headers)
    with target({"GET /v1/models": models, **extra}) as (t, s):
        a = t.adapter
        assert a.name == name and len(s.seen) <= 7
        assert a.room().model_length.value == 8192 and a.room().kv_tokens.reason
        assert a.live() is None and a.cancel(["x"]) is False and a.forget_cache() is False
        assert (a.engine().name.value or "generic") == name


def test_generic_tgi() -> None:
    info = {"model_id": "m", "version": "3.3.4", "sha": "abc", "max_total_tokens": 4096, "max_concurrent_requests": 128}
    routes: dict[str, Answer] = {
        "GET /v1/models": answer({"data": [{"id": "m", "owned_by": "m"}]}),
        "GET /info": answer({**info, "router": "text-generation-router"}),
        "GET /metrics": answer("tgi_batch_current_size 3\ntgi_queue_size 2\n"),
    }
    with target(routes) as (t, _):
        live, r, i = t.adapter.live(), t.adapter.room(), t.adapter.engine()
        assert (t.adapter.name, t.adapter.verified) == ("tgi", False)
    assert live is not None and (live.running, live.waiting) == (3, 2)
    assert (r.model_length.value, r.max_running.value, i.version.value, i.commit.value) == (4096, 128, "3.3.4", "abc")


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang"])
def test_gauges_that_vanish_are_an_error_not_a_zero(engine: str) -> None:
    with target(engine_routes(engine)) as (t, s):
        s.routes["GET /metrics"] = answer("", 500)
        with pytest.raises(TargetError):
            t.adapter.live()
        s.routes["GET /metrics"] = answer("# nothing\n")
        live = t.adapter.live()
        assert live is not None and live.running is None and live.generated_total is None


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang", "transformers"])
def test_every_missing_fact_has_a_reason(engine: str) -> None:
    with target(engine_routes(engine)) as (t, _):
        answers = [t.adapter.engine(), t.adapter.served_model(), t.adapter.room()]
    for name, fact in (item for facts in answers for item in facts):
        if isinstance(fact, Fact):
            assert (fact.value is None) == (fact.source is None)
            assert fact.value is not None or fact.reason, name


METRIC_VALUE = st.one_of(
    st.floats().map(str),
    st.sampled_from(["1e308", "-1.7e308", "NaN", "+Inf", "-Inf", "1e999", "x", "", "-5", "9" * 400]),
    st.text(max_size=5),
)
LABELS = st.one_of(st.just(""), st.text(alphabet='{}",=\\ab \n', max_size=12), st.sampled_from(['{a="1"}', '{a="2"}']))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "generic"])
def test_any_metrics_text_gives_gauges_or_one_clear_error(engine: str) -> None:
    """Numbers that no sum can hold, NaN, series twice, lines that nearly are metrics, bytes that are no text."""
    names = sorted({name for names in engines()[engine].gauges.values() for name in names})
    line = st.builds("{}{} {}".format, st.sampled_from(names), LABELS, METRIC_VALUE)
    routes = {
        "GET /v1/models": answer({"data": [{"id": "m"}]}),
        "GET /metrics": answer("".join(f"{n} 1\n" for n in names)),
    }
    with target(routes, engine=engine) as (t, s):
        t.adapter.has_gauges = True  # type: ignore[misc]

        @settings(max_examples=60, deadline=None)
        @given(st.one_of(st.lists(line, max_size=30).map(lambda x: "\n".join(x).encode()), st.binary(max_size=80)))
        def check(text: bytes) -> None:
            s.routes["GET /metrics"] = answer(text)
            try:
                live = t.adapter.live()
            except TargetError as error:
                assert str(error).strip()
                return
            assert live is not None
            values = [getattr(live, name) for name in type(live).__slots__]
            assert all(value is None or math.isfinite(value) for value in values)

        check()


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "NaN", "-1e308", '"x"', "true", "[]"])
def test_any_numbers_in_sglangs_loads_give_gauges(value: str) -> None:
    entry = f'{{"num_running_reqs": {value}, "num_waiting_reqs": {value}, "token_usage": {value}}}'
    routes = {
        "GET /v1/models": answer({"data": [{"id": "m"}]}),
        "GET /v1/loads": answer(f'{{"loads": [{entry}, {entry}]}}'),
    }
    with target(routes, engine="sglang") as (t, _):
        live = t.adapter.live()
    assert live is not None and all(v is None or math.isfinite(v) for v in (live.running, live.waiting, live.kv_use))


TOKENIZERS = ["vllm", "sglang", "llamacpp"]


def slow_tokenizer(request: Request) -> bytes:
    time.sleep(2)
    return answer({"tokens": [1]})


@pytest.mark.parametrize("engine", TOKENIZERS)
@pytest.mark.parametrize(
    "bad",
    [
        slow_tokenizer,
        answer("", 500),
        answer("", 503),
        answer("", 429, retry_after="1"),
        answer({"error": "who are you?"}, 401),
        b"",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
        answer({"tokens": list(range(100_000)), "count": 0}),
        answer({"tokens": [], "count": 0}),
    ],
    ids=["hangs", "500", "503", "429", "401", "closes", "no HTTP", "breaks off", "too many", "none"],
)
def test_a_tokenizer_that_fails_or_lies_is_no_tokenizer_and_is_not_asked_again(
    engine: str, bad: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generic, "ASK_TIMEOUT_S", 0.4)
    routes = {"GET /v1/models": answer({"data": [{"id": "m"}]})}
    routes |= {f"POST {path}": bad for path in ("/tokenize", "/v1/tokenize", "/apply-template")}
    with target(routes, engine=engine) as (t, s):
        s.seen.clear()
        assert t.adapter.count_tokens("some words") is None
        assert 1 <= len(s.seen) <= 2
        asked = len(s.seen)
        assert t.adapter.tokenize("other words") is None and t.adapter.count_chat_tokens("words") is None
        assert len(s.seen) == asked


@pytest.mark.parametrize("engine", TOKENIZERS)
@pytest.mark.parametrize("ids", [[-1], [2**31], [1.5], ["1"], [True], {"0": 1}])
def test_what_are_no_token_ids_are_no_tokens(engine: str, ids: Any) -> None:
    routes = {"GET /v1/models": answer({"data": [{"id": "m"}]}), "POST /tokenize": answer({"tokens": ids})}
    with target(routes, engine=engine) as (t, _):
        assert t.adapter.tokenize("x") is None and t.adapter.count_tokens("x") is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "content", [None, [], {}, "x", 0, {"data": 1}, {"version": 3}, [{"n_ctx": "x"}], {"tokens": [None]}, {"loads": [1]}]
)
def test_no_answer_whatever_makes_an_adapter_crash(engine: str, content: Any) -> None:
    routes: dict[str, Answer] = {"GET /v1/models": answer({"data": [{"id": "m"}]}), "*": answer(content)}
    with target(routes, engine=engine) as (t, _):
        a = t.adapter
        assert a.name == engine
        a.engine(), a.served_model(), a.room(), a.forget_cache(), a.cancel(["x"])
        assert a.count_tokens("x") is None and a.tokenize("x") is None
        assert a.count_chat_tokens("x") is None
        a.live() if a.has_gauges else None


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_gauges_that_cannot_be_read_say_why(engine: str) -> None:
    """A page that is there and fails is told; one that is not there is nothing to tell."""
    routes = {
        k: v for k, v in engine_routes(engine).items() if k not in ("GET /metrics", "GET /slots", "GET /v1/loads")
    }
    with target({**routes, "GET /metrics": answer("overloaded", 500)}) as (t, _):
        assert not t.adapter.has_gauges and "500" in (t.adapter.gauges_reason or "")
    with target(routes) as (t, _):
        assert not t.adapter.has_gauges and t.adapter.gauges_reason is None


# Prometheus text: exact names, sums over series, NaN, replicas, hostile lines

NAMES = frozenset({"a:running", "a:tokens_total", "a:use", "a:info"})


def test_a_real_scrape_of_vllm() -> None:
    names = frozenset({"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:cache_config_info"})
    s = parse(text_of("vllm", "get_metrics"), names)
    assert set(s.series) == names
    assert s.total("vllm:generation_tokens_total") == 802
    assert s.total("vllm:prompt_tokens_total") == 3511
    assert s.labels("vllm:cache_config_info")[0]["kv_cache_size_tokens"] == "524288"


def test_a_real_scrape_of_sglang_sums_its_streaming_label() -> None:
    s = parse(text_of("sglang", "get_metrics"), frozenset({"sglang:generation_tokens_total"}))
    assert s.total("sglang:generation_tokens_total") == 136 + 794


def test_names_are_exact_not_prefixes() -> None:
    text = 'a:tokens_total_sum 5\na:tokens_total{x="1"} 2\na:tokens 7\nxa:tokens_total 9\n# a:tokens_total 8\n'
    assert parse(text, NAMES).total("a:tokens_total") == 2
    assert parse(text, NAMES).total("a:tokens") is None


def test_data_parallel_ranks_and_models_are_added_but_tensor_parallel_ranks_are_not() -> None:
    text = """
a:running{dp_rank="0",tp_rank="0",model="m"} 3
a:running{dp_rank="0",tp_rank="1",model="m"} 3
a:running{dp_rank="1",tp_rank="0",model="m"} 4
a:running{dp_rank="1",tp_rank="1",model="m"} 4
a:running{dp_rank="0",tp_rank="0",model="n"} 1
"""
    s = parse(text, NAMES)
    assert s.total("a:running") == 8
    assert s.mean("a:running") == 8 / 3


def test_nan_and_infinity_are_no_values() -> None:
    s = parse('a:use{i="0"} NaN\na:use{i="1"} 0.5\na:use{i="2"} +Inf\na:running NaN\n', NAMES)
    assert s.mean("a:use") == 0.5
    assert s.total("a:running") is None


def test_the_first_name_that_is_there_wins() -> None:
    s = parse("a:use 0.25\n", NAMES)
    assert s.mean("a:gone", "a:use") == 0.25
    assert s.mean("a:gone") is None


def test_absent_is_none_and_zero_is_zero() -> None:
    s = parse("a:running 0\n", NAMES)
    assert s.total("a:running") == 0.0
    assert s.total("a:tokens_total") is None


def test_timestamps_exemplars_tabs_escapes_and_exponents() -> None:
    text = (
        'a:running{m="x"} 2 1795999326000\n'
        'a:tokens_total{m="x"} 1.5e3 # {trace_id="abc"} 1.0 1520879607.789\n'
        'a:use{m="with \\"quotes\\", } and \\n"}\t0.5\n'
    )
    s = parse(text, NAMES)
    assert (s.total("a:running"), s.total("a:tokens_total"), s.mean("a:use")) == (2, 1500, 0.5)


def test_a_bad_line_costs_only_itself() -> None:
    s = parse('a:running{m="x} 2\na:tokens_total 7\na:use{} zero\n', NAMES)
    assert s.total("a:tokens_total") == 7


def test_a_sum_too_large_for_a_number_is_no_number() -> None:
    s = parse('a:use{i="0"} 1.7e308\na:use{i="1"} 1.7e308\n', NAMES)
    assert s.total("a:use") is None and s.mean("a:use") is None


@pytest.mark.parametrize("wanted", [0, 4_000])
def test_a_hundred_thousand_other_series_cost_little_and_change_nothing(wanted: int) -> None:
    other = "".join(f'a:other{{i="{i}"}} 1\na:tokens_total_bucket{{i="{i}"}} 1\n' for i in range(75_000))
    text = other + "".join(f'a:running{{i="{i}"}} 1\n' for i in range(wanted)) + other
    assert parse(text, NAMES).total("a:running") == (wanted or None)


def test_too_many_wanted_series_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(prometheus, "text_string_to_metric_families", parsed.append)
    text = "".join(f'a:running{{i="{i}"}} 1\n' for i in range(150_000))
    with pytest.raises(TargetError, match=r"over 4,000 series"):
        parse(text, NAMES)
    assert not parsed


def test_a_line_without_end_is_skipped() -> None:
    s = parse(f'a:running{{x="{"y" * 5_000_000}"}} 2\na:tokens_total 7\n', NAMES)
    assert s.total("a:running") is None and s.total("a:tokens_total") == 7


@given(st.text(max_size=300))
def test_any_text_gives_numbers_or_nothing(text: str) -> None:
    s = parse(text, NAMES)
    assert all(s.total(n) is None or math.isfinite(s.total(n) or 0.0) for n in NAMES)


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), LABELS, METRIC_VALUE), max_size=6))
def test_lines_that_nearly_are_metrics(lines: list[tuple[str, str, str]]) -> None:
    s = parse("\n".join(f"{n}{labels} {v}" for n, labels, v in lines), NAMES)
    for name in NAMES:
        total, mean = s.total(name), s.mean(name)
        assert (total is None) == (mean is None)
        assert mean is None or math.isfinite(mean)


@given(st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=8))
def test_the_sum_is_the_sum(values: list[float]) -> None:
    text = "".join(f'a:tokens_total{{engine="{i}"}} {v!r}\n' for i, v in enumerate(values))
    assert parse(text, NAMES).total("a:tokens_total") == math.fsum(values)
