"""The short cut for the usual event gives what the long way gives: for any events, however they were cut into reads."""

from __future__ import annotations

import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.load import stream as stream_module
from flatout.load.decode import Decoder
from flatout.load.stream import Exchange
from flatout.protocol import Splitter, read_event, read_usual, single_events

CAPTURES = Path(__file__).parent / "fixtures" / "captures"

MAYBE_COUNT = st.sampled_from([0, 1, 7, None, 2**31 - 1, 2**31, -1, "x"])
TEXT = st.one_of(st.sampled_from(["", " a", "hé", "\ud800", "\n"]), st.none())


def optional(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


DELTA = optional(
    content=TEXT, reasoning=TEXT, reasoning_content=TEXT, refusal=TEXT, role=st.just("assistant"),
    tool_calls=st.sampled_from([None, [], [{"function": {"name": "f", "arguments": "{"}}]]),
    function_call=st.sampled_from([None, {"name": "f"}]),
)  # fmt: skip
CHOICE = optional(
    index=st.sampled_from([0, 0, 0, 1, None]), text=TEXT, delta=st.one_of(DELTA, st.none()),
    finish_reason=st.sampled_from([None, None, "stop"]), token_ids=st.sampled_from([None, [], [5], [5, 6]]),
)  # fmt: skip
USAGE = optional(
    prompt_tokens=MAYBE_COUNT, completion_tokens=MAYBE_COUNT, reasoning_tokens=MAYBE_COUNT,
    prompt_tokens_details=st.sampled_from([None, {}, {"cached_tokens": 3}, {"cached_tokens": None}]),
    completion_tokens_details=st.sampled_from([None, None, {"reasoning_tokens": 2}]),
)  # fmt: skip
EVENT = optional(
    choices=st.one_of(st.lists(CHOICE, max_size=2), st.none()), usage=st.one_of(USAGE, st.none()),
    timings=st.sampled_from([None, {"predicted_n": 4, "cache_n": 2}, {"predicted_n": 5}, {}]),
    error=st.sampled_from([None, {"message": "no"}, "no"]), object=st.sampled_from(["chat.completion.chunk", "error"]),
)  # fmt: skip
PLAIN = st.builds(
    lambda text, count: {
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        "usage": {"prompt_tokens": 9, "completion_tokens": count, "prompt_tokens_details": None},
    },
    st.sampled_from([" a", "bc", "é"]),
    st.integers(0, 500),
)
EVENTS = st.lists(st.one_of(PLAIN, PLAIN, EVENT), max_size=12)


def written(event: Any, ending: str = "\n\n") -> bytes:
    return f"data: {json.dumps(event)}{ending}".encode()


@settings(deadline=None)
@given(EVENTS)
def test_a_usual_event_is_read_as_any_other(events: list[dict[str, Any]]) -> None:
    data = [json.dumps(e).encode() for e in events]
    found = read_usual(data)
    assert len(found.texts) == len(found.running) == len(found.ids) <= len(data)
    last = {"prompt": -1, "cached": -1, "reasoning": -1}
    for i, text in enumerate(found.texts):
        event = read_event(data[i])
        assert (event.reasoning if found.reasoning else event.text) == text != ""
        assert not (event.text if found.reasoning else event.reasoning) and not event.tool
        assert (event.running, event.ids, event.finish, event.error) == (found.running[i], found.ids[i], None, None)
        assert event.choices == 1
        for name in last:
            told = getattr(event.usage, name, None)
            last[name] = last[name] if told is None else told
    assert last == {"prompt": found.prompt, "cached": found.cached, "reasoning": found.reasoning_tokens}


def columns(d: Decoder) -> dict[str, Any]:
    names = [n for n in Decoder.__slots__ if not n.startswith("_") and n != "texts"]
    return {n: getattr(d, n) for n in names} | {"texts": "".join(d.texts or ()), "running": list(d.running_counts())}


def by_exchange(pieces: list[list[bytes]], batch: int) -> Decoder:
    """Reads of a chunked answer, each of some pieces, decoded in slices as the load process does."""
    made = Exchange(0, 0, 10, "", keep_text=True)
    made.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for i, read in enumerate(pieces):
        made.stamps.append(1000 + i)
        made.lags.append(0)
        for piece in read:
            made.feed(b"%x\r\n%b\r\n" % (len(piece), piece))
        made.ends.append(len(made.parts))
        if i % 5 == 4:
            made.decode(0)  # a slice that has no time left
    before, stream_module.BATCH = stream_module.BATCH, batch
    try:
        while not made.decode(0):
            assert made.reads_pending
    finally:
        stream_module.BATCH = before
    assert not made.reads_pending and not made.parts
    return made.decoder


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.one_of(PLAIN, PLAIN, PLAIN, EVENT).flatmap(
                lambda e: st.sampled_from(["\n\n", "\n\n", "\n\n", "\r\n\r\n", "\n", "\r"]).map(lambda n: written(e, n))
            ),
            st.sampled_from([b": ping\n\n", b"data: [DONE]\n\n", b"data: {\n\n", b"\n", b"data: {}\r\n\r\n"]),
        ),
        max_size=14,
    ),
    st.lists(st.integers(0, 5000), max_size=6),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_the_short_cut_changes_nothing(parts: list[bytes], cuts: list[int], batch: int, together: int) -> None:
    """Events cut anywhere, `together` pieces a read: the columns are those of the long way, piece by piece."""
    places = {c % (sum(map(len, parts)) + 1) for c in cuts} | set(itertools.accumulate(map(len, parts), initial=0))
    whole = b"".join(parts)
    pieces = [whole[a:b] for a, b in itertools.pairwise(sorted(places))]
    reads = [pieces[i : i + together] for i in range(0, len(pieces), together)]
    slow = Decoder(keep_text=True)
    for i, read in enumerate(reads):
        for piece in read:
            slow.feed(piece, 1000 + i)
    assert columns(by_exchange(reads, batch)) == columns(slow)


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"data: {}\n\n", b"data: {a\n\n"])), max_size=8))
def test_single_events_are_what_a_splitter_finds(chunks: list[bytes]) -> None:
    splitter = Splitter()
    splitter.feed(b"data: x\n\n")
    for data, chunk in zip(single_events(chunks), chunks, strict=False):
        assert splitter.feed(chunk) == [data] and splitter.clean


def test_a_short_cut_needs_a_first_token_and_a_border() -> None:
    usual = written({"choices": [{"delta": {"content": "a"}}]})
    d = Decoder(keep_text=False)
    assert d.feed_usual([usual], array("q", [1])) == 0  # the first token has its own time
    d.feed(usual, 1)
    d.feed(usual[:20], 2)
    assert d.feed_usual([usual], array("q", [3])) == 0
    d.feed(usual[20:], 4)
    assert d.feed_usual([usual, b"data: [DONE]\n\n", usual], array("q", [5, 6, 7])) == 1
    assert list(d.t_ns) == [1, 4, 5]


@pytest.mark.parametrize("engine", ["llamacpp", "sglang", "vllm"])
def test_nearly_all_that_engines_send_is_usual(engine: str) -> None:
    raw = (CAPTURES / engine / "chat_stream_temp1_continuous.http").read_bytes().replace(b"\r\n", b"\n")
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")]
    found, at = 0, 0
    while at < len(events):
        taken = len(read_usual(events[at:]).texts)
        found, at = found + taken, at + (taken or 1)
    assert len(events) - found <= 4  # the role, the finish, the usage
