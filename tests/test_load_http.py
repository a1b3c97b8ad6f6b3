"""Request heads, request ids, Retry-After, and what a status means."""

from __future__ import annotations

import email.utils

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.load.driver import Lane
from flatout.load.http import (
    connect_head,
    request_bytes,
    request_head,
    request_id,
    status_words,
)
from flatout.load.job import RID_WIDTH, Endpoint, Proxy, Stream
from flatout.net import retry_after_s
from flatout.protocol import KEPT_CHARS


def test_head() -> None:
    head = request_head(Endpoint("http", "h", 8000, "/v1/x", (("Authorization", "Bearer k"), ("accept", "a/b"))))
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: h:8000\r\n")
    assert b"Authorization: Bearer k\r\n" in head and head.lower().count(b"accept: ") == 1
    assert head.endswith(b"Content-Length: ")


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        (Endpoint("http", "h", 80, "/"), b"h"),
        (Endpoint("https", "h", 443, "/"), b"h"),
        (Endpoint("https", "h", 80, "/"), b"h:80"),
        (Endpoint("http", "::1", 8000, "/"), b"[::1]:8000"),
    ],
)
def test_host(endpoint: Endpoint, host: bytes) -> None:
    assert b"\r\nHost: " + host + b"\r\n" in request_head(endpoint)


def test_proxy_heads() -> None:
    proxy = Proxy("p", 3128, "Basic eA==")
    head = request_head(Endpoint("http", "h", 8000, "/x", proxy=proxy))
    assert head.startswith(b"POST http://h:8000/x HTTP/1.1\r\n") and b"Proxy-Authorization: Basic eA==\r\n" in head
    inside = request_head(Endpoint("https", "h", 443, "/x", proxy=proxy))
    assert inside.startswith(b"POST /x HTTP/1.1\r\n") and b"Proxy" not in inside  # never to the server
    tunnel = connect_head(Endpoint("https", "::1", 443, "/x", proxy=proxy))
    assert tunnel.startswith(b"CONNECT [::1]:443 HTTP/1.1\r\n") and b"Proxy-Authorization: Basic eA==\r\n" in tunnel


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("http", "h", 1, "/a b"),
        Endpoint("http", "h", 1, "/a\r\nX: y"),
        Endpoint("http", "h", 1, "/ä"),
        Endpoint("http", "h", 1, "/", (("A", "b\r\nC: d"),)),
        Endpoint("http", "h", 1, "/", (("A b", "c"),)),
        Endpoint("http", "h", 1, "/", (("A", "\u2603"),)),
    ],
)
def test_what_http_cannot_carry_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match=r"path|header|HTTP"):
        request_head(endpoint)


def test_a_request_id_is_written_over_its_placeholder() -> None:
    body = b'{"rid":"' + b"?" * RID_WIDTH + b'","x":1}'
    sent = request_bytes(b"Content-Length: ", body, 8, request_id("run7", 3, 12))
    assert sent.startswith(b"Content-Length: %d\r\n\r\n" % len(body))
    assert sent.endswith(b'{"rid":"run7' + b"0" * 31 + b'-3-12","x":1}')


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 10**6)), min_size=2, max_size=30, unique=True),
    st.text("abc0123456789-", max_size=24),
)
def test_request_ids_are_unique_and_of_one_width(requests: list[tuple[int, int]], prefix: str) -> None:
    ids = [request_id(prefix, *r) for r in requests]
    assert {len(i) for i in ids} == {RID_WIDTH}
    assert len(set(ids)) == len(ids)


def test_retry_after() -> None:
    def told(value: str) -> float | None:
        return retry_after_s({"retry-after": value}, now_s=990.0)

    assert told("3") == 3 and told(" 0.5 ") == 0.5 and told("9" * 400)
    assert told(email.utils.formatdate(1000.0, usegmt=True)) == 10
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_s({}) is None
    assert told("0") == 0 and told(email.utils.formatdate(980.0, usegmt=True)) == 0
    for nothing in ("", "soon", "-3", "inf", "nan", "1e9", "٣"):
        assert told(nothing) is None


@settings(deadline=None)
@given(st.text())
def test_retry_after_never_crashes(value: str) -> None:
    told = retry_after_s({"retry-after": value})
    assert told is None or told >= 0


def test_waiting_grows_and_lanes_keep_apart() -> None:
    lane, other = Lane(0, Stream(b"", 1)), Lane(5, Stream(b"", 1))
    waits = []
    for _ in range(12):
        lane.refusals += 1
        waits.append(lane.refusal_wait_s(None, 60.0))
    assert waits[:3] == [0.5, 1.0, 2.0] and waits[-1] == 60.0
    other.refusals = 1
    assert 0.5 < other.refusal_wait_s(None, 60.0) < 1.0
    assert lane.refusal_wait_s(7.0, 60.0) == 7 and lane.refusal_wait_s(3600.0, 60.0) == 60
    assert lane.refusal_wait_s(0.0, 60.0) == lane.refusal_wait_s(None, 60.0)
    lane.failures = 100
    assert lane.failure_wait_s() == 5.0


@settings(deadline=None)
@given(st.one_of(st.text(), st.floats(allow_nan=True).map(str)), st.integers(0, 1000))
def test_no_word_of_the_server_makes_a_storm(value: str, number: int) -> None:
    """Whatever Retry-After says: a quarter of a second at least, and more with each refusal in a row."""
    lane = Lane(number, Stream(b"", 1))
    waits = []
    for _ in range(8):
        lane.refusals += 1
        waits.append(lane.refusal_wait_s(retry_after_s({"retry-after": value}), 60.0))
    assert all(0.25 <= wait <= 60 for wait in waits) and waits == sorted(waits)
    assert waits[4] >= 4.0 and sum(waits[:6]) > 10


def test_status_words() -> None:
    assert status_words(400, None, b'{"error":{"message":"too long"}}') == "HTTP 400: too long"
    assert "API key" in status_words(401, None, b'{"detail":"no"}')
    assert "redirects to http://b/v1" in status_words(307, "http://b/v1", b"")
    assert status_words(500, None, b"") == "HTTP 500: no further words"
    assert status_words(403, None, b"no").endswith(": no")  # the server's words last: a cut takes nothing of ours
    assert KEPT_CHARS < len(status_words(500, None, b"x" * 100_000)) < KEPT_CHARS + 100
    assert status_words(500, None, b'{"error":"\\ud800"}').startswith("HTTP 500: ")
