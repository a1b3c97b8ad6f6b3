"""Detection, adapters and probe against the rig in each dialect, checked with what the rig knows of itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flatout.engines.base import TargetError
from flatout.engines.detect import Target, connect
from flatout.engines.probe import probe, resolve
from flatout.protocol import PATHS, body, read_event
from flatout.rig import RigConfig, running

DIALECTS = ("vllm", "sglang", "llamacpp")


@contextmanager
def rig(**knobs: Any) -> Iterator[tuple[Target, Any]]:
    key = knobs.get("api_key")
    with running(RigConfig.from_dict({"decode_tok_s": 400, "ttft_ms": 2, **knobs})) as handle:
        target = connect(handle.url, key=key, environ={})
        try:
            yield target, handle
        finally:
            target.close()


def soon(what: Callable[[], bool], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return what()


@contextmanager
def load(target: Target, streams: int, tokens: int, rid: str | None = None) -> Iterator[None]:
    """Streams that run beside; closed at the end."""
    can = probe(target)
    stop = threading.Event()

    def one(index: int) -> None:
        shape = can.shape(target.model)
        data = body(shape, f"{index} words and more words", tokens, request_id=f"{rid}-{index}" if rid else None)
        events = target.client.events(PATHS["chat"], data, timeout_s=30)
        try:
            for _ in events:
                if stop.is_set():
                    return
        except TargetError:
            return

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_room_is_the_rigs(dialect: str) -> None:
    with rig(dialect=dialect, max_running=3, kv_tokens=6000, model_len=2000) as (target, _):
        assert target.adapter.name == dialect
        room = target.adapter.room()
    assert room.model_length.value == 2000
    assert room.kv_tokens.value is not None
    if dialect != "llamacpp":  # which can tell only slots x length
        assert room.kv_tokens.value == 6000
    assert room.max_running.value == (None if dialect == "vllm" else 3)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_gauges_follow_what_runs_and_waits(dialect: str) -> None:
    with rig(dialect=dialect, max_running=2) as (target, _):
        idle = target.adapter.live()
        assert idle is not None and (idle.running, idle.waiting) == (0, 0)
        with load(target, streams=3, tokens=4000):

            def full() -> bool:
                live = target.adapter.live()
                return live is not None and live.running == 2 and live.waiting == 1

            assert soon(full)
        assert soon(lambda: (live := target.adapter.live()) is not None and live.running == 0 and live.waiting == 0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_generated_tokens_are_counted(dialect: str) -> None:
    with rig(dialect=dialect) as (target, handle):
        can = probe(target)
        handle.reset()
        before = target.adapter.live()
        shape = can.shape(target.model)
        running_counts = []
        for raw in target.client.events(PATHS["chat"], body(shape, "Tell me a story.", 40)):
            event = read_event(raw)
            if event.text:
                running_counts.append(event.running)
        assert soon(lambda: (live := target.adapter.live()) is not None and live.running == 0)
        after = target.adapter.live()
        truth = handle.log()
    assert running_counts == list(range(1, 41))
    assert before is not None and after is not None
    assert (after.generated_total or 0) - (before.generated_total or 0) == 40
    assert int(truth.event_tokens.sum()) == 40


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_prompts_are_counted_exactly(dialect: str, api: Any) -> None:
    with rig(dialect=dialect) as (target, _):
        can = probe(target, api)
        text = "A first sentence, and then another one; 12 more of them follow."
        own = target.adapter.count_tokens(text)
        events = map(read_event, target.client.events(PATHS[can.api], body(can.shape(target.model), text, 2)))
        billed = [e.usage.prompt for e in events if e.usage is not None and e.usage.prompt is not None]
    assert own is not None and can.template_tokens is not None
    assert billed[-1] == own + can.template_tokens
    assert can.template_tokens == (9 if api == "chat" else 0)
    assert can.token_prompts is (api == "completions")


def test_sglang_leftovers_are_cancelled_by_their_ids() -> None:
    with rig(dialect="sglang", leftover=True, decode_tok_s=50) as (target, _):
        with load(target, streams=2, tokens=2000, rid="flatout-test"):
            assert soon(lambda: (live := target.adapter.live()) is not None and live.running == 2)
        live = target.adapter.live()
        assert live is not None and live.running == 2  # hung up, yet they go on
        assert target.adapter.cancel(["flatout-test-0", "flatout-test-1"]) is True
        assert soon(lambda: (live := target.adapter.live()) is not None and live.running == 0)


def test_vllm_in_development_mode_forgets_and_cancels() -> None:
    with rig(dialect="vllm", dev_mode=True) as (target, _):
        assert target.adapter.wants.id_field == "request_id"
        assert target.adapter.forget_cache() is True and target.adapter.cancel(["x"]) is True
    with rig(dialect="vllm") as (target, _):
        assert target.adapter.forget_cache() is False and target.adapter.cancel(["x"]) is False


@pytest.mark.parametrize("style", ["engine", "transformers"])
@pytest.mark.parametrize("field", ["ignore_eos", "stream_options.continuous_usage_stats", "rid"])
def test_refused_fields_are_dropped_with_the_servers_words(style: str, field: str) -> None:
    with rig(dialect="sglang", refuse_fields=[field], refuse_style=style) as (target, _):
        can = probe(target)
        names = [name for name, _ in can.fields]
        assert field in dict(can.dropped) and dict(can.dropped)[field]
        assert field not in names and (can.id_field is None) == (field == "rid")
        assert "stream_options.include_usage" in names and can.requests <= 8
        data = body(can.shape(target.model), "x", 3)
        assert [read_event(e) for e in target.client.events(PATHS["chat"], data)]


def test_an_ignored_ignore_eos_is_named() -> None:
    with rig(dialect="openai", stop_after_tokens=3) as (target, _):
        can = probe(target)
    assert "ignore_eos" in dict(can.ignored)


def test_min_tokens_carries_the_requests_own_limit() -> None:
    with rig(dialect="vllm", refuse_fields=["ignore_eos"]) as (target, _):
        can = probe(target)
    assert dict(resolve(can.fields, 77)).get("min_tokens") == 77 and "ignore_eos" in dict(can.dropped)


def test_without_usage_the_probe_says_so() -> None:
    with rig(dialect="openai", usage="none", refuse_fields=["stream_options.continuous_usage_stats"]) as (target, _):
        can = probe(target)
    assert not can.reports.usage and can.template_tokens is None and can.template_reason


def test_a_key_is_needed_and_used() -> None:
    with rig(dialect="vllm", api_key="sk-rig-123456") as (target, handle):
        assert probe(target).reports.usage
        with pytest.raises(TargetError, match="--api-key") as caught:
            connect(handle.url, environ={})
    assert caught.value.kind == "auth"


def test_a_wrong_model_names_the_right_one() -> None:
    with running(RigConfig(dialect="vllm")) as handle, pytest.raises(TargetError, match="rig-model"):
        connect(handle.url, model="other", environ={})


def test_rate_limits_are_waited_for() -> None:
    with rig(dialect="openai", reject_first=1, retry_after_s=0.2) as (target, _):
        told: list[str] = []
        assert probe(target, on_wait=told.append).api == "chat"
    assert told


@pytest.mark.parametrize(
    ("knobs", "part"),
    [
        ({"html": True}, "stream|JSON|page"),
        ({"error_after_tokens": 2}, "inside the stream"),
        ({"bad_json_at": 2}, "not JSON"),
        ({"truncate_after_tokens": 2}, "closed the connection"),
        ({"hang": "no_answer"}, "within"),
    ],
)
def test_broken_servers_are_one_clear_sentence(knobs: dict[str, Any], part: str) -> None:
    with rig(dialect="vllm", **knobs) as (target, _), pytest.raises(TargetError, match=part) as caught:
        probe(target, timeout_s=1.0)
    assert "Traceback" not in str(caught.value)


def test_loading_is_said_to_be_loading() -> None:
    with (
        running(RigConfig(dialect="llamacpp", loading_s=30)) as handle,
        pytest.raises(TargetError, match="oading") as e,
    ):
        connect(handle.url, environ={})
    assert e.value.kind == "unavailable"


def test_reasoning_and_odd_streams_are_no_trouble() -> None:
    odd = {"reasoning_tokens": 9, "empty_every": 3, "comment_every_ms": 5, "null_choices_every": 4, "utf8_every": 5}
    with rig(dialect="vllm", **odd) as (target, _):
        can = probe(target)
    assert can.reports.running_counts and json.dumps(can.fields)
