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
from flatout.engines.probe import probe
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


@pytest.fixture(scope="module", params=DIALECTS)
def plain(request: pytest.FixtureRequest) -> Iterator[tuple[Target, Any]]:
    """One rig of each dialect for all tests that need nothing special of it."""
    with rig(dialect=request.param, max_running=2, kv_tokens=20_000, model_len=6_000) as made:
        yield made


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


def test_the_room_is_the_rigs(plain: tuple[Target, Any]) -> None:
    adapter = plain[0].adapter
    room = adapter.room()
    assert room.model_length.value == 6_000
    # llama.cpp can tell only slots x length.
    assert room.kv_tokens.value == (2 * 6_000 if adapter.name == "llamacpp" else 20_000)
    assert room.max_running.value == (None if adapter.name == "vllm" else 2)
    if adapter.name == "vllm":  # not in development mode
        assert adapter.forget_cache() is False and adapter.cancel(["x"]) is False


def test_gauges_follow_what_runs_and_waits(plain: tuple[Target, Any]) -> None:
    target = plain[0]
    idle = target.adapter.live()
    assert idle is not None and (idle.running, idle.waiting) == (0, 0)
    with load(target, streams=3, tokens=4000):

        def full() -> bool:
            live = target.adapter.live()
            return live is not None and live.running == 2 and live.waiting == 1

        assert soon(full)
    assert soon(lambda: (live := target.adapter.live()) is not None and live.running == 0 and live.waiting == 0)


def test_generated_tokens_are_counted(plain: tuple[Target, Any]) -> None:
    target, handle = plain
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


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_prompts_are_counted_exactly(plain: tuple[Target, Any], api: Any) -> None:
    target = plain[0]
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


@pytest.mark.parametrize(
    ("style", "field"),
    [
        ("engine", "ignore_eos"),
        ("engine", "stream_options.continuous_usage_stats"),
        ("transformers", "ignore_eos"),
        ("transformers", "rid"),
    ],
)
def test_refused_fields_are_dropped_with_the_servers_words(style: str, field: str) -> None:
    with rig(dialect="sglang", refuse_fields=[field], refuse_style=style) as (target, _):
        can = probe(target)
        names = [name for name, _ in can.fields]
        assert field in dict(can.dropped) and dict(can.dropped)[field]
        assert field not in names and (can.id_field is None) == (field == "rid")
        assert "stream_options.include_usage" in names and can.requests <= 8
        data = body(can.shape(target.model), "x", 3)
        assert [read_event(e) for e in target.client.events(PATHS["chat"], data)]


def test_a_key_is_needed_and_used() -> None:
    with rig(dialect="vllm", api_key="sk-rig-123456") as (target, handle):
        assert probe(target).reports.usage
        with pytest.raises(TargetError, match="--api-key") as caught:
            connect(handle.url, environ={})
    assert caught.value.kind == "auth"


def test_reasoning_and_odd_streams_are_no_trouble() -> None:
    odd = {"reasoning_tokens": 9, "empty_every": 3, "comment_every_ms": 5, "null_choices_every": 4, "utf8_every": 5}
    with rig(dialect="vllm", **odd) as (target, _):
        can = probe(target)
    assert can.reports.running_counts and json.dumps(can.fields)
