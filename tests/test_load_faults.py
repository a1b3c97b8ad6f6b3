"""Servers that refuse, fail, lie, hang or die: one clear sentence each, and the job goes on where it can."""

from __future__ import annotations

import email.utils
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from flatout.engines.redact import Redactor, tidy
from flatout.load.job import Stream, Timeouts
from flatout.load.process import JobRefused, LoadError, LoadPool, Outcome
from flatout.load.samples import CUT, FAILED, OK, REFUSED
from tests.load_server import DONE, END, SSE_HEAD, Peer, answer, chunk, event, job, run_once, serving


@pytest.fixture(scope="module")
def pool() -> Iterator[LoadPool]:
    with LoadPool() as pool:
        yield pool


def words(outcome: Outcome) -> str:
    """The error of the only request."""
    s = outcome.samples
    assert s.requests == 1 and s.outcome.tolist() == [FAILED], (s.outcome, s.error_texts)
    return s.error_texts[s.error[0]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def streamed(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(map(chunk, events)) + END


HTML = b"<html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 32\r\n\r\n" + b'{"error":{"message":"too long"}}', "HTTP 400: too long"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "HTTP 401 (is the API key right?): no further words"),
        (b"HTTP/1.1 307 T\r\nLocation: http://b/v1\r\nContent-Length: 0\r\n\r\n", "redirects to http://b/v1"),
        (b'HTTP/1.1 500 E\r\nContent-Length: 900\r\n\r\n{"detail":"half', 'HTTP 500: {"detail":"half'),
        (streamed(event("a"), b'data: {"error":{"message":"out of memory"}}\n\n', DONE), "out of memory"),
        (streamed(event("a"), b"data: {broken\n\n", DONE), "an event is not JSON: {broken"),
        (streamed(event("a")), "without a finish reason or [DONE]"),
        (SSE_HEAD + chunk(event("a")), "closed the connection in the middle of the answer: neither a finish reason"),
        (SSE_HEAD + chunk(event("a") + b'data: {"cho'), "in the middle of the answer"),
        (SSE_HEAD[:40], "in the middle of the answer's head"),
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "not HTTP"),
        (SSE_HEAD + chunk(event("a")) + b"zz\r\n", "not HTTP: "),
        (b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "another protocol (HTTP 101)"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(HTML) + HTML,
            "HTML, not with a stream",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + b'{"choices":[]}', 'it ignores "stream": true'),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
            "compresses its answer (gzip)",
        ),
        (b"HTTP/1.1 204 N\r\n\r\n", "HTTP 204"),
    ],
)
def test_one_sentence_each(pool: LoadPool, wire: bytes, said: str) -> None:
    def script(peer: Peer) -> bool:
        peer.send(wire)
        return True

    with serving(script) as server:
        outcome = run_once(pool, job(server.port), 5)
    assert said in words(outcome) and len(words(outcome)) < 400
    assert outcome.samples.send_ns[0] > 0 and outcome.samples.end_ns[0] > outcome.samples.send_ns[0]


def test_answers_without_an_end(pool: LoadPool) -> None:
    def endless(begin: bytes, more: bytes, total_s: float = 1.5) -> Outcome:
        def script(peer: Peer) -> None:
            peer.send(begin)
            for _ in range(200):
                peer.send(more)
                time.sleep(0.005)

        with serving(script) as server:
            return run_once(pool, job(server.port, timeouts=Timeouts(total_s=total_s)), 10)

    assert "head of the server's answer is longer than 1024 KiB" in words(
        endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 20000)
    )
    page = words(endless(b"HTTP/1.1 500 Oops\r\n\r\n", b"no " * 30000))
    assert page.startswith("HTTP 500: no no no")
    assert "not finished within" in words(endless(b"HTTP/1.1 200 OK\r\n\r\n", b"<p>" * 30000, 0.5))


def test_an_error_in_a_stream_that_stays_open_ends_it(pool: LoadPool) -> None:
    def script(peer: Peer) -> None:
        peer.send(SSE_HEAD + chunk(event("a")))
        time.sleep(0.05)
        peer.send(chunk(b'data: {"error":"engine dead"}\n\n'))
        time.sleep(4)

    with serving(script) as server:
        began = time.monotonic()
        outcome = run_once(pool, job(server.port), 10)
    assert "engine dead" in words(outcome) and time.monotonic() - began < 3


def test_what_came_before_a_failure_is_kept(pool: LoadPool) -> None:
    with serving(lambda p: p.send(streamed(event("a"), event("b"))) or True) as server:
        s = run_once(pool, job(server.port), 5).samples
    assert s.outcome.tolist() == [FAILED] and s.arrival_count.tolist() == [2] and s.texts == ["ab"]
    assert s.finish.tolist() == [-1] and s.completion_tokens.tolist() == [-1]


def test_a_reset_in_the_middle(pool: LoadPool) -> None:
    def script(peer: Peer) -> bool:
        peer.send(SSE_HEAD + chunk(event("a")))
        time.sleep(0.1)
        peer.reset()
        return True

    with serving(script) as server:
        assert "broke in the middle of the answer (connection reset by peer)" in words(
            run_once(pool, job(server.port), 5)
        )


def test_an_answer_before_the_body_is_read(pool: LoadPool) -> None:
    """413 and close while a large body is still on its way: the answer is heard, not the broken pipe."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool.start(job(listener.getsockname()[1], body=b"x" * 6_000_000))
        sock, _ = listener.accept()
        sock.recv(1000)
        sock.sendall(b'HTTP/1.1 413 Big\r\nConnection: close\r\nContent-Length: 17\r\n\r\n{"detail":"huge"}')
        pool.wait(5)
        outcome = pool.stop()
        sock.close()
    assert words(outcome) == "HTTP 413: huge"


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_respected_and_sent_again(pool: LoadPool, status: int) -> None:
    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.status(status, b'{"error":{"message":"slow down"}}', b"Retry-After: 1\r\n")
        else:
            peer.stream(answer(2))

    with serving(script) as server:
        pool.start(job(server.port))
        status_now = pool.wait(5)
        outcome = pool.stop()
    s = outcome.samples
    assert s.outcome.tolist() == [REFUSED, OK] and s.http_status.tolist() == [status, 200]
    assert (status_now.rate_limited, status_now.failed, status_now.finished) == (1, 0, 1)
    assert 1.0 <= (s.send_ns[1] - s.end_ns[0]) / 1e9 < 1.5
    assert s.error_texts[s.error[0]] == f"HTTP {status}: slow down"


def test_a_refusal_with_a_date_and_one_beyond_the_limit(pool: LoadPool) -> None:
    later = [email.utils.formatdate(time.time() + 3600, usegmt=True).encode(), b"7200"]

    def script(peer: Peer) -> None:
        if peer.number < 2:
            peer.status(429, b"{}", b"Retry-After: " + later[peer.number] + b"\r\n")
        else:
            peer.stream(answer(1))

    with serving(script) as server:
        s = run_once(pool, job(server.port, max_retry_after_s=0.3), 5).samples
    assert s.outcome.tolist() == [REFUSED, REFUSED, OK]
    assert all(0.3 <= (s.send_ns[i + 1] - s.end_ns[i]) / 1e9 < 0.6 for i in range(2))


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        (b"", 8, 8),  # at 0, about 0.5 and about 1.5 s
        (b"Retry-After: 0.001\r\n", 8, 12),  # at 0, about 0.25, 0.75 and 1.75 s
    ],
)
def test_a_refusing_server_is_never_stormed(pool: LoadPool, header: bytes, least: int, most: int) -> None:
    with serving(lambda p: p.status(429, b"{}", header)) as server:
        pool.start(job(server.port, 4, mode="closed"))
        pool.wait(1.2)
        outcome = pool.stop()
    assert least <= outcome.samples.requests <= most
    assert outcome.error is None and set(outcome.samples.outcome.tolist()) == {REFUSED}


def test_refused_for_longer_than_a_request_may_take_is_a_failure(pool: LoadPool) -> None:
    limits = Timeouts(total_s=0.4)
    with serving(lambda p: p.status(503, b'{"error":"loading"}')) as server:
        outcome = run_once(pool, job(server.port, timeouts=limits), 5)
    assert outcome.samples.outcome.tolist() == [REFUSED, FAILED]


def test_failures_back_off_and_end_the_job(pool: LoadPool) -> None:
    with serving(lambda p: p.status(500, b'{"error":"kaputt"}')) as server:
        pool.start(job(server.port, 2, mode="closed", give_up_after=3))
        status = pool.wait(10)
        outcome = pool.stop()
    assert status.ended and outcome.error == status.error
    assert "failed 3 times in a row" in (status.error or "") and "HTTP 500: kaputt" in (status.error or "")
    assert 5 <= len(server.peers) <= 6
    sent = sorted(t for p in server.peers for t, _ in p.sends)
    assert (sent[-1] - sent[0]) / 1e9 > 0.7


def test_a_success_in_between_clears_the_count(pool: LoadPool) -> None:
    def script(peer: Peer) -> None:
        if peer.number % 3 == 2:
            peer.stream(answer(1))
        else:
            peer.status(500, b"no")

    with serving(script) as server:
        outcome = run_once(pool, job(server.port, mode="closed", give_up_after=3, max_requests=9), 10)
    assert outcome.error is None and outcome.samples.outcome.tolist() == [FAILED, FAILED, OK] * 3


def test_failing_streams_are_not_stormed_either(pool: LoadPool) -> None:
    """An error in a 200 stream, found out only by decoding."""
    bad = streamed(event("a"), b'data: {"error":"no"}\n\n', DONE)
    with serving(lambda p: p.send(bad)) as server:
        outcome = run_once(pool, job(server.port, 2, mode="closed"), 5)
    assert len(server.peers) <= 6 and "no" in (outcome.error or "")


def test_nothing_listens(pool: LoadPool) -> None:
    outcome = run_once(pool, job(free_port()), 5)
    assert "nothing listens there (connection refused)" in words(outcome)
    assert outcome.samples.send_ns[0] == -1 and outcome.samples.http_status[0] == -1
    closed = run_once(pool, job(free_port(), mode="closed"), 5)
    assert "3 times in a row" in (closed.error or "") and "connection refused" in (closed.error or "")


def test_many_streams_and_nobody_there(pool: LoadPool) -> None:
    outcome = run_once(pool, job(free_port(), 300), 10)
    assert outcome.samples.outcome.tolist() == [FAILED] * 300


def test_no_such_host(pool: LoadPool) -> None:
    outcome = run_once(pool, job(80, host="no-such-host.invalid", timeouts=Timeouts(connect_s=8.0)), 10)
    assert "no-such-host.invalid" in (outcome.error or "") and outcome.samples.requests == 0


@pytest.mark.parametrize(
    ("limits", "script", "said"),
    [
        (Timeouts(first_byte_s=0.4), lambda p: time.sleep(3), "no token within 0.4 s (--first-token-timeout"),
        (
            Timeouts(first_byte_s=0.4),
            lambda p: (p.send(SSE_HEAD + chunk(event())), time.sleep(3)),
            "no token within 0.4 s",
        ),
        (
            Timeouts(idle_s=0.4),
            lambda p: (p.send(SSE_HEAD + chunk(event("a"))), time.sleep(3)),
            "no further token for 0.4 s (--idle",
        ),
        (Timeouts(total_s=0.6), lambda p: p.stream(answer(100), 0.05), "not finished within 0.6 s (--total-timeout"),
    ],
)
def test_limits(pool: LoadPool, limits: Timeouts, script, said: str) -> None:  # type: ignore[no-untyped-def]
    with serving(lambda p: script(p) and None) as server:
        began = time.monotonic()
        outcome = run_once(pool, job(server.port, timeouts=limits), 10)
    assert said in words(outcome) and time.monotonic() - began < 2


def test_connect_limit(pool: LoadPool) -> None:
    """A listener whose queue is full lets nobody in."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        time.sleep(0.1)
        outcome = run_once(pool, job(listener.getsockname()[1], timeouts=Timeouts(connect_s=0.5)), 10)
        for filler in fillers:
            filler.close()
    assert "could not connect to" in words(outcome) and "within 0.5 s (--connect-timeout" in words(outcome)


SERVER = """
import socket, sys, time
sys.path.insert(0, sys.argv[1])
from tests.load_server import *
server = Server(lambda p: p.stream(answer(10000), 0.01))
print(server.port, flush=True)
time.sleep(60)
"""


def test_a_server_killed_in_the_middle(pool: LoadPool) -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    with subprocess.Popen([sys.executable, "-c", SERVER, root], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        pool.start(job(port, 3, mode="closed"))
        assert pool.wait(5, until=lambda s: s.started == 3).started == 3
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        status = pool.wait(10)
        outcome = pool.stop()
    s = outcome.samples
    assert status.ended and "connection refused" in (outcome.error or "")
    broken = [s.error_texts[s.error[i]] for i in range(s.requests) if s.arrival_count[i]]
    assert len(broken) == 3 and all("in the middle of the answer" in b for b in broken)


def test_a_silent_server_is_cut_on_stop(pool: LoadPool) -> None:
    with serving(lambda p: time.sleep(2)) as server:
        pool.start(job(server.port, 2, mode="closed"))
        status = pool.wait(10, until=lambda s: s.sent == 2)
        assert (status.in_flight, status.started, status.sent) == (2, 0, 2)
        outcome = pool.stop()
    s = outcome.samples
    assert s.outcome.tolist() == [CUT, CUT] and s.first_byte_ns.tolist() == [-1, -1] == s.error.tolist()


def test_stop_while_connecting_or_waiting(pool: LoadPool) -> None:
    with serving(lambda p: p.status(429, b"", b"Retry-After: 50\r\n")) as server:
        pool.start(job(server.port, mode="closed"))
        pool.wait(5, until=lambda s: s.rate_limited > 0)
        outcome = pool.stop()
    assert outcome.samples.outcome.tolist() == [REFUSED] and outcome.error is None
    pool.start(job(free_port(), mode="closed", give_up_after=100))
    outcome = pool.stop()
    assert outcome.launch_ns == -1 and "before all connections were open" in (outcome.error or "")


SECRET = "sk-" + "0123456789abcdef" * 3
SAID = f"{'x' * 290} your key {SECRET} is bad"


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % len(SAID) + SAID.encode(),
        f"HTTP/1.1 302 X\r\nLocation: /{SAID[140:300]}{SECRET}\r\nContent-Length: 0\r\n\r\n".encode(),
        SSE_HEAD + chunk(b"data: " + json.dumps({"error": SAID}).encode() + b"\n\n") + END,
        SSE_HEAD + chunk(b"data: {" + SAID.encode() + b"\n\n") + END,
        SSE_HEAD + chunk(b"<p>" + SAID[140:].encode()) + END,
        SSE_HEAD + chunk(b'{"a": "' + SAID[140:].encode() + b'"}') + END,
        SSE_HEAD + chunk(SAID[140:].encode()) + END,
    ],
    ids=["status", "location", "error event", "no JSON", "HTML", "JSON", "text"],
)
def test_what_a_server_says_is_kept_whole_until_it_can_be_redacted(pool: LoadPool, wire: bytes) -> None:
    """A key in any kind of error comes out whole, so that the redactor finds it, and nothing of it is shown."""

    def script(peer: Peer) -> bool:
        peer.send(wire)
        return True

    with serving(script) as server:
        said = words(run_once(pool, job(server.port), 5))
    shown = tidy(said, Redactor([SECRET], home="", user="", hosts=[]).text, 300)
    assert SECRET in said and len(shown) <= 300
    assert not any(SECRET[:n] in shown for n in range(6, len(SECRET)))


def test_what_cannot_begin_is_told_at_the_start(pool: LoadPool) -> None:
    for bad, said in (
        (job(1, scheme="https", ca_file="/nowhere/ca.pem"), "CA file /nowhere/ca.pem"),
        (job(1, headers=(("A", "b\nc"),)), "line break"),
        (job(1, lanes=(Stream(b"", 1),), rid_prefix="x" * 25), "24 characters"),
    ):
        with pytest.raises(LoadError, match=said) as caught:
            pool.start(bad)
        assert isinstance(caught.value, JobRefused)
    with serving(lambda p: p.stream(answer(1))) as server:  # and the pool is still good
        assert run_once(pool, job(server.port), 5).samples.outcome.tolist() == [OK]
