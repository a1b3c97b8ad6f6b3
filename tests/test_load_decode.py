"""What one response carried, when: arrivals, counts, usage, verdicts."""

from __future__ import annotations

import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.load.decode import Decoder, not_a_stream
from flatout.load.samples import ANSWER, IDS_ONLY, OTHER, REASONING, REQUEST_COLUMNS, TOOL, Packed, Table


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, *, index: int = 0, ids: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": finish, "token_ids": ids}


def decode(*events: bytes, keep_text: bool = True) -> Decoder:
    """Event i at 100 + i ns."""
    decoder = Decoder(keep_text=keep_text)
    for i, chunk in enumerate(events):
        decoder.feed(chunk, 100 + i)
    decoder.finish_body(99 + len(events))
    return decoder


def add(table: Table, row: dict[str, int], d: Decoder, request_id: str) -> None:
    row = row | d.row() | {"finish": table.index(table.finish_names, d.finish)}
    table.add(row, d.arrivals(), request_id, "".join(d.texts or ()))


def test_the_usual_answer() -> None:
    d = decode(
        data(choices=[delta(role="assistant")]),
        data(choices=[delta(content="He")]),
        data(choices=[delta(content="llö")]),
        data(choices=[delta("length", content="")]),
        data(
            choices=[],
            usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        ),
        b"data: [DONE]\n\n",
    )
    assert (d.first_token_ns, d.first_answer_ns, list(d.t_ns)) == (101, 101, [101, 102])  # a role is no token
    assert list(d.text_len) == [2, 4] and d.text_bytes == 6
    assert (d.prompt, d.cached, d.completion, d.reasoning) == (5, 4, 2, -1)
    assert (d.finish, d.done, d.choices, d.error) == ("length", True, 1, None)
    assert "".join(d.texts or ()) == "Hellö"
    assert list(d.running_counts()) == [-1, -1]  # the total alone is no running count
    assert d.verdict("text/event-stream", None) is None


def test_reasoning_and_tools_are_tokens_and_the_first_answer_stands_apart() -> None:
    d = decode(
        data(choices=[delta(reasoning_content="hm")]),
        data(choices=[delta(reasoning="so")]),
        data(choices=[delta(tool_calls=[{"function": {"name": "f", "arguments": "{"}}])]),
        data(choices=[delta(content="a")]),
    )
    assert list(d.kind) == [REASONING, REASONING, TOOL, ANSWER]
    assert (d.first_token_ns, d.first_answer_ns) == (100, 102)
    assert "".join(d.texts or ()) == "hmsof{a"


def test_ids_without_text_are_tokens() -> None:
    d = decode(data(choices=[delta(content="", ids=[1, 2])]), data(choices=[delta(content="x", ids=[3])]))
    assert list(d.id_tokens) == [2, 1] and list(d.kind) == [IDS_ONLY, ANSWER]
    assert d.first_token_ns == 100 and d.first_answer_ns == 101


def test_running_counts() -> None:
    d = decode(
        data(choices=[delta(role="assistant")], usage={"completion_tokens": 0}),
        data(choices=[delta(content="a")], usage={"completion_tokens": 1}),
        data(choices=[delta(content="")], usage={"completion_tokens": 3}),  # generated, but no text yet
        data(choices=[delta(content="")], usage={"completion_tokens": 3}),  # nothing new
        data(choices=[delta(content="b")], usage={"completion_tokens": 4}),
        data(choices=[], usage={"completion_tokens": 5}),
    )
    assert list(d.t_ns) == [101, 102, 104]
    assert list(d.running_counts()) == [1, 3, 4]
    assert list(d.kind) == [ANSWER, 0, ANSWER]
    assert d.completion == 5


def test_a_total_on_the_last_text_is_no_running_count() -> None:
    d = decode(
        data(choices=[delta(content="a")]), data(choices=[delta("stop", content="b")], usage={"completion_tokens": 9})
    )
    assert list(d.running_counts()) == [-1, -1]
    assert d.completion == 9


def test_a_total_on_a_finish_without_text_is_no_arrival() -> None:
    d = decode(data(choices=[delta(content="a")]), data(choices=[delta("stop")], usage={"completion_tokens": 9}))
    assert list(d.t_ns) == [100]


def test_one_arrival_keeps_its_count() -> None:
    d = decode(data(choices=[delta("stop", content="all")], timings={"predicted_n": 4, "cache_n": 2}))
    assert list(d.running_counts()) == [4]
    assert (d.completion, d.cached) == (4, 2)


def test_usage_from_any_event_and_the_last_value_of_each_field_wins() -> None:
    d = decode(
        data(choices=None, usage={"prompt_tokens": 5}),
        data(choices=[delta(content="a")], usage={"completion_tokens": 1}),
        data(choices=[], usage={"completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}),
    )
    assert (d.prompt, d.completion, d.reasoning) == (5, 2, 1)


def test_every_choice_counts() -> None:
    d = decode(
        data(choices=[delta(content="a"), delta(content="b", index=1)]), data(choices=[delta(index=3, content="c")])
    )
    assert d.choices == 4 and list(d.text_len) == [2, 1]


@pytest.mark.parametrize(
    ("events", "trouble", "words"),
    [
        ([data(choices=[delta(content="a")])], None, "without a finish reason or [DONE]"),
        ([data(choices=[delta(content="a")])], "the line broke", "the line broke: neither a finish reason"),
        ([], "the line broke", "the line broke"),
        ([data(choices=[delta("stop", content="a")])], None, None),
        ([data(choices=[delta("stop", content="a")])], "the line broke", None),
        ([data(choices=[delta(content="a")]), b"data: [DONE]\n\n"], None, None),
        ([data(error={"message": "out of memory"}), b"data: [DONE]\n\n"], None, "out of memory"),
        ([data(object="error", message="too long", code=400)], None, "too long"),
        ([b"data: {nonsense\n\n", b"data: [DONE]\n\n"], None, "not JSON: {nonsense"),
        ([b"data: [1]\n\n"], None, "not a JSON object"),
        ([b": ping\n\n"], None, "no stream of events"),
        ([], None, "empty body"),
        ([b"<!DOCTYPE html><html>Login"], None, "answered with HTML, not with a stream: <!DOCTYPE html><html>Login"),
        ([b'{"choices":[{"message":{"content":"a"}}]}'], None, 'it ignores "stream": true'),
        ([b'{"error":{"message":"no such model"}}'], None, "HTTP 200 with an error: no such model"),
        ([b'{"status":"ok"}'], None, "answered with JSON, not with a stream"),
    ],
)
def test_verdicts(events: list[bytes], trouble: str | None, words: str | None) -> None:
    verdict = decode(*events).verdict("", trouble)
    assert verdict == words if words is None else words in (verdict or "")


def test_content_type_names_what_was_answered() -> None:
    assert "(image/png)" in not_a_stream(b"\x89PNG", "image/png")
    assert "HTML" in not_a_stream(b"Hello", "text/html; charset=utf-8")


def test_a_nonsense_number_is_not_told() -> None:
    d = decode(data(choices=[delta(content="a")], usage={"completion_tokens": 10**30, "prompt_tokens": -3}))
    assert (d.completion, d.prompt, list(d.running_counts())) == (-1, -1, [-1])


FIELDS = ["choices", "delta", "content", "usage", "completion_tokens", "index", "error", "message", "object", "text"]
FIELDS += ["timings", "predicted_n", "token_ids", "finish_reason", "tool_calls", "function", "arguments"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=60), JSON.map(lambda v: b"data: " + json.dumps(v).encode() + b"\n\n")), max_size=6
    )
)
def test_nothing_crashes_the_decoder_or_its_row(events: list[bytes]) -> None:
    d = decode(*events)
    d.verdict("text/plain", None)
    table = Table(keep_text=True)
    add(table, dict.fromkeys(REQUEST_COLUMNS, 1), d, "")
    samples = table.pack().samples()
    assert samples.requests == 1 and len(samples.t_ns) == len(d.t_ns)


def test_requests_are_in_the_order_of_sending_and_own_their_arrivals() -> None:
    table = Table(keep_text=True)
    for send_ns, text in ((20, "b"), (10, "aa"), (30, "c")):
        d = decode(*(data(choices=[delta(content=c)]) for c in text), data(choices=[delta("stop")]))
        add(table, dict.fromkeys(REQUEST_COLUMNS, -1) | {"send_ns": send_ns, "stream": send_ns}, d, text)
    samples = table.pack().samples()
    assert samples.send_ns.tolist() == [10, 20, 30]
    assert samples.request_ids == samples.texts == ["aa", "b", "c"]
    assert [len(samples.t_ns[samples.arrivals_of(r)]) for r in range(3)] == [2, 1, 1]
    assert samples.finish_names == ["stop"] and samples.finish.tolist() == [0, 0, 0]


@pytest.mark.parametrize("half", ["\\ud800", "\\udfff", "\\ud83dx", "\\ude00\\ud83d"])
def test_half_a_surrogate_pair_ends_nothing(half: str) -> None:
    """Wherever it stands (text, reasoning, tools, finish, unknown fields, beside a field of a wrong type)."""
    made = [
        '{"choices":[{"index":0,"delta":{"content":"aS"}}]}',
        '{"choices":[{"index":0,"delta":{"reasoning_content":"aS"}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"aS"}}]}}]}',
        '{"choices":[{"index":0,"text":"aS"}],"x":{"S":"S"}}',
        '{"choices":[{"index":0,"delta":{"content":"a","reasoning":7}}],"x":"S"}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"S"}]}',
    ]
    d = decode(*(f"data: {event.replace('S', half)}\n\n".encode() for event in made))
    assert d.error is None and len(d.t_ns) == 5 and d.finish is not None and "\ufffd" in d.finish
    table = Table(keep_text=True)
    add(table, dict.fromkeys(REQUEST_COLUMNS, -1), d, "")
    wire = msgspec.msgpack.encode(table.pack())
    samples = msgspec.msgpack.decode(wire, type=Packed).samples()
    assert samples.texts is not None and samples.texts[0].count("a\ufffd") >= 3
    whole = decode(b'data: {"choices":[{"index":0,"text":"\\ud83d\\ude00"}]}\n\n')
    assert whole.texts == ["\U0001f600"]


def test_an_error_with_half_a_surrogate_pair_is_told() -> None:
    d = decode(b'data: {"error":{"message":"bad \\ud800 end"}}\n\n')
    assert d.error is not None and "bad" in d.error and "end" in d.error
    msgspec.msgpack.encode(d.error)


@pytest.mark.parametrize("depth", [900, 1100, 100_000])
def test_deep_events_end_in_a_sentence(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, "[" * depth + '"\\ud800"' + "]" * depth):
        d = decode(f'data: {{"choices":5,"error":{text}}}\n\n'.encode())
        assert d.error and len(d.error) < 5000


@given(st.text(min_size=1, max_size=300))
def test_a_finish_reason_is_short_and_on_one_line(finish: str) -> None:
    d = decode(data(choices=[delta(finish)]))
    assert d.finish is not None and len(d.finish) <= 40 and (d.finish.isprintable() or not d.finish)


def test_names_never_outgrow_their_column() -> None:
    table = Table(keep_text=False)
    for i in range(300):
        add(table, dict.fromkeys(REQUEST_COLUMNS, -1), decode(data(choices=[delta(f"reason {i}")])), "")
    samples = table.pack().samples()
    assert samples.finish.min() == 0 and samples.finish_names[samples.finish[-1]] == OTHER
    assert samples.texts is None


def test_an_arrival_costs_little() -> None:
    arrays = (array("q"), array("i"), array("i"), array("i"), array("b"))
    assert sum(a.itemsize for a in arrays) <= 24


CAPTURES = Path(__file__).parent / "fixtures" / "captures"

# arrivals, first and last running count, token ids, (prompt, cached, completion), finish, [DONE]
REAL = {
    "llamacpp/chat_stream_temp1_continuous": (64, -1, -1, 0, (25, 21, 64), "length", True),
    "llamacpp/chat_stream_tokenids_timings": (8, 1, 8, 0, (25, 21, 8), "length", True),
    "llamacpp/completions_stream_tokenids_timings": (8, 1, 8, 0, (23, 19, 8), "length", True),
    "sglang/chat_stream_temp1_continuous": (64, 1, 64, 0, (25, 24, 64), "length", True),
    "sglang/completions_stream_temp1_continuous": (64, 1, 64, 0, (23, 22, 64), "length", True),
    "transformers/chat_stream_usage": (32, -1, -1, 0, (25, -1, 32), "length", False),
    "vllm/chat_stream_plain": (32, -1, -1, 0, (-1, -1, -1), "length", True),
    "vllm/chat_stream_temp1_continuous": (64, 1, 64, 0, (25, -1, 64), "length", True),
    "vllm/chat_stream_tokenids_timings": (8, 1, 8, 8, (25, -1, 8), "length", True),
    "vllm/chat_stream_usage": (32, -1, -1, 0, (25, -1, 32), "length", True),
}


@pytest.mark.parametrize("name", REAL)
@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=60))
def test_what_real_engines_answered(name: str, cuts: list[int]) -> None:
    _, _, raw = (CAPTURES / f"{name}.http").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    places = sorted({0, len(raw), *(c % len(raw) for c in cuts)})
    d = decode(*(raw[a:b] for a, b in itertools.pairwise(places)))
    running = d.running_counts()
    ids = sum(i for i in d.id_tokens if i > 0)
    assert REAL[name] == (
        len(d.t_ns), running[0], running[-1], ids, (d.prompt, d.cached, d.completion), d.finish, d.done
    )  # fmt: skip
    assert d.verdict("text/event-stream", None) is None and d.choices == 1
