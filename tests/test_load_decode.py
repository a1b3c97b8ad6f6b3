"""One response's bytes: events however they were cut, what each carried and when, and the usual ones' short cut."""

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

from flatout import protocol
from flatout.load import stream as stream_module
from flatout.load.decode import Decoder, not_a_stream
from flatout.load.samples import ANSWER, IDS_ONLY, OTHER, REASONING, REQUEST_COLUMNS, TOOL, Packed, Table
from flatout.load.stream import Exchange
from flatout.protocol import Splitter, read_event, read_usual, single_events

CAPTURES = Path(__file__).parent / "fixtures" / "captures"

# -- events ------------------------------------------------------------------------------------------------------------


def split(*chunks: bytes) -> list[bytes]:
    splitter = Splitter()
    events = [e for c in chunks for e in splitter.feed(c)]
    return events + splitter.finish()


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"data: a\n", [b"a"]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 4\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\xef\xbb", []),
        (b"data\n\n", []),
        (b"data: \n\n", []),
        (b"data\ndata: a\n\n", [b"\na"]),
        (b"dataset: a\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
        (b"data: [DONE]\n\n", [b"[DONE]"]),
    ],
)
def test_events(body: bytes, events: list[bytes]) -> None:
    assert split(body) == events
    assert split(*(body[i : i + 1] for i in range(len(body)))) == events


def test_an_event_comes_with_the_read_that_completes_it() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\ndata: b\n\nda") == [b"a", b"b"]
    assert splitter.feed(b"ta: c\r") == []
    assert splitter.feed(b"\n\r") == [b"c"]  # CR alone ends a line: no wait for what may follow
    assert splitter.feed(b"\ndata: d\n\n") == [b"d"]


def test_ten_megabytes_in_small_reads() -> None:
    text = b"x" * 10_000_000
    body = b"data: " + text + b"\n\ndata: b\n\n"
    assert split(*(body[i : i + 16384] for i in range(0, len(body), 16384))) == [text, b"b"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_EVENT_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="longer than 1 MiB"):
        split(*[b"data: " + b"x" * 65536] * 17)
    with pytest.raises(ValueError, match="longer than"):
        split(*[b"data: " + b"x" * 65530 + b"\n"] * 17)


LINES = st.sampled_from(b"data: a|data:b|data|data: {}|:c|||id: 1|event: e|x|\xef\xbb\xbf|\xff".split(b"|"))
BODIES = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


def cut_at(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(c % (len(body) + 1) for c in cuts)})
    return [body[a:b] for a, b in itertools.pairwise(places)]


@settings(deadline=None)
@given(st.one_of(BODIES, st.binary(max_size=300)), st.lists(st.integers(0, 10_000), max_size=40))
def test_any_cut_gives_the_same_events(body: bytes, cuts: list[int]) -> None:
    assert split(*cut_at(body, cuts)) == split(body)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), min_size=1), max_size=20))
def test_what_goes_in_comes_out(texts: list[str]) -> None:
    data = [t.encode("utf-8", "surrogatepass") for t in texts]
    assert split(b"".join(b"data: " + d + b"\n\n" for d in data)) == data


# -- what they carried -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("last", "running", "counts"),
    [
        (data(choices=[delta("stop", content="b")], usage={"completion_tokens": 9}), [-1, -1], (9, -1)),  # the total
        (data(choices=[delta("stop")], usage={"completion_tokens": 9}), [-1], (9, -1)),  # and no arrival
        (data(choices=[delta()], usage={"completion_tokens": 10**30, "prompt_tokens": -3}), [-1], (-1, -1)),
    ],
)
def test_a_total_is_no_running_count(last: bytes, running: list[int], counts: tuple[int, int]) -> None:
    d = decode(data(choices=[delta(content="a")]), last)
    assert (list(d.running_counts()), (d.completion, d.prompt)) == (running, counts)


def test_one_arrival_keeps_its_count() -> None:
    d = decode(data(choices=[delta("stop", content="all")], timings={"predicted_n": 4, "cache_n": 2}))
    assert (list(d.running_counts()), d.completion, d.cached) == ([4], 4, 2)


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


FIELDS = ["choices", "delta", "content", "usage", "completion_tokens", "index", "error", "message", "object", "text"]
FIELDS += ["timings", "predicted_n", "token_ids", "finish_reason", "tool_calls", "function", "arguments"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
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
    assert sum(column.itemsize for column in Table(keep_text=False).arrivals.values()) <= 24


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


# -- the short cut -----------------------------------------------------------------------------------------------------
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
