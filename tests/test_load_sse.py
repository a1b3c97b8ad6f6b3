"""Server-sent events, however the bytes were cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import protocol
from flatout.protocol import Splitter


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


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data: {}",
        b":c",
        b"",
        b"",
        b"id: 1",
        b"event: e",
        b"x",
        b"\xef\xbb\xbf",
        b"\xff",
    ]
)
BODIES = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(c % (len(body) + 1) for c in cuts)})
    return [body[a:b] for a, b in itertools.pairwise(places)]


@settings(deadline=None)
@given(st.one_of(BODIES, st.binary(max_size=300)), st.lists(st.integers(0, 10_000), max_size=40))
def test_any_cut_gives_the_same_events(body: bytes, cuts: list[int]) -> None:
    assert split(*pieces(body, cuts)) == split(body)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), min_size=1), max_size=20))
def test_what_goes_in_comes_out(texts: list[str]) -> None:
    data = [t.encode("utf-8", "surrogatepass") for t in texts]
    assert split(b"".join(b"data: " + d + b"\n\n" for d in data)) == data
