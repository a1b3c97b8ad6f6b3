"""The control connection's deadlines: whatever a server drips, and wherever it stalls, a call ends, or is stopped."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import httpcore
import pytest
import trustme

from flatout.engines.base import TargetError
from flatout.engines.detect import connect
from flatout.engines.endpoint import parse_address
from flatout.engines.http import ControlClient
from flatout.engines.probe import probe
from flatout.engines.wire import Backend, Stream, Until
from tests.engine_server import answer, chat, serving, stream

Talk = Callable[[socket.socket], None]
MODELS = answer({"data": [{"id": "m"}]})
CHAT = "POST /v1/chat/completions"


@contextlib.contextmanager
def talking(talk: Talk) -> Iterator[str]:
    """A server that does with each connection what `talk` does, until the client hangs up."""
    stop = threading.Event()

    def serve(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            talk(peer)

    def accept() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                peer.settimeout(20)
                threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join(5)


def drip(begin: bytes, drop: bytes) -> Talk:
    def talk(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(begin)
        while True:
            peer.sendall(drop)
            time.sleep(0.02)

    return talk


def silent(peer: socket.socket) -> None:
    while peer.recv(1):
        pass


def deaf(peer: socket.socket) -> None:
    """Takes a byte now and then: the client's write is what hangs."""
    while peer.recv(1):
        time.sleep(0.02)


DRIPS: dict[str, Talk] = {
    "header lines": drip(b"HTTP/1.1 200 OK\r\n", b"X-a: b\r\n"),
    "one endless header": drip(b"HTTP/1.1 200 OK\r\nX-a: ", b"b"),
    "interim answers": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "status line": drip(b"HTTP/1.1 200 ", b"O"),
    "body": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    "chunks": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk sizes": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-a: b\r\n"),
    "nothing": silent,
}


@pytest.mark.parametrize("kind", DRIPS)
def test_every_kind_of_drip_is_bounded_as_a_whole(kind: str) -> None:
    with talking(DRIPS[kind]) as url, ControlClient(parse_address(url, environ={}), timeout_s=0.5) as c:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            c.request("GET", "/metrics")
        assert caught.value.kind in ("timeout", "protocol", "not_a_server"), caught.value
        assert time.monotonic() - begun < 5


def test_a_server_that_does_not_read_is_bounded() -> None:
    with talking(deaf) as url, ControlClient(parse_address(url, environ={}), timeout_s=0.5) as c:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            c.request("POST", "/tokenize", body={"content": "x" * 30_000_000})
        assert caught.value.kind == "timeout" and time.monotonic() - begun < 5


@pytest.mark.parametrize("kind", ["body", "header lines"])
def test_a_streams_limit_holds_for_the_whole_stream(kind: str) -> None:
    with talking(DRIPS[kind]) as url, ControlClient(parse_address(url, environ={})) as c:
        with pytest.raises(TargetError) as caught:
            list(c.events("/chat/completions", b"{}", timeout_s=0.5))
        assert caught.value.kind == "timeout"


def test_the_limit_begins_anew_with_each_call_on_a_kept_connection() -> None:
    def talk(peer: socket.socket) -> None:
        while peer.recv(65536):
            time.sleep(0.3)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with talking(talk) as url, ControlClient(parse_address(url, environ={}), timeout_s=3.0) as c:
        assert [c.json("GET", "/a") for _ in range(12)] == [{}] * 12  # 3.6 s in all


# Connecting


class _Leaver:
    """Answers the first request of each connection as if more might come, and hangs up as the second one arrives."""

    def __init__(self, words: bytes = b"", wait: threading.Barrier | None = None) -> None:
        self.words, self.wait = words, wait
        self.connections: list[socket.socket] = []
        self.unanswered: list[bytes] = []

    def __call__(self, peer: socket.socket) -> None:
        self.connections.append(peer)
        with peer.makefile("rb") as lines:
            _whole(lines)
            if self.wait is not None:
                self.wait.wait(10)
            peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
            if head := _whole(lines):
                self.unanswered.append(head)
                peer.sendall(self.words)


def _whole(lines: BinaryIO) -> bytes:
    """The head of one request, whose body is read too; empty where the client closed instead."""
    head = b""
    while (line := lines.readline()).strip():
        head += line
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    if b"content-length:" in head.lower():
        lines.read(length)
    return head


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_kept_connection_that_the_server_gave_up_costs_no_call(method: str) -> None:
    """As llama.cpp does after each stream: whether the client sees it in time is a matter of half a millisecond."""
    leaver = _Leaver()
    with talking(leaver) as url, ControlClient(parse_address(url, environ={})) as c:
        for _ in range(5):
            assert c.json(method, "/v1/models", body={"a": 1} if method == "POST" else None) == {}
    assert (len(leaver.connections), len(leaver.unanswered)) == (5, 4)


def test_however_many_kept_connections_were_given_up_the_call_is_answered() -> None:
    leaver = _Leaver(wait=threading.Barrier(4))
    with talking(leaver) as url, ControlClient(parse_address(url, environ={})) as c:
        callers = [threading.Thread(target=c.json, args=("GET", "/v1/models")) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(10)
        leaver.wait = None
        assert c.json("GET", "/v1/models") == {}
    assert (len(leaver.connections), len(leaver.unanswered)) == (5, 4)


def test_what_came_on_a_kept_connection_is_not_asked_for_again() -> None:
    leaver = _Leaver(words=b"HTPP/1.1 200 OK\r\n\r\n")
    with talking(leaver) as url, ControlClient(parse_address(url, environ={})) as c:
        c.json("GET", "/v1/models")
        with pytest.raises(TargetError, match="does not speak HTTP"):
            c.json("GET", "/v1/models")
    assert len(leaver.connections) == 1


def test_a_new_connection_that_closes_without_an_answer_is_not_tried_again() -> None:
    connections = []

    def talk(peer: socket.socket) -> None:
        connections.append(peer)
        peer.recv(65536)

    with (
        talking(talk) as url,
        ControlClient(parse_address(url, environ={})) as c,
        pytest.raises(TargetError, match="closed the connection before a full answer"),
    ):
        c.json("GET", "/v1/models")
    assert len(connections) == 1


def test_a_tls_handshake_that_does_not_finish_is_named() -> None:
    for talk in (silent, drip(b"", b"")):
        with talking(talk) as url:
            address = parse_address(url.replace("http:", "https:"), environ={})
            with ControlClient(address, timeout_s=8.0, connect_timeout_s=0.4) as c:
                begun = time.monotonic()
                with pytest.raises(TargetError, match=r"TLS handshake did not finish within 0\.4 s") as caught:
                    c.request("GET", "/models")
            assert caught.value.kind == "timeout" and time.monotonic() - begun < 5


def test_the_connect_limit_is_the_given_one() -> None:
    """A listen queue that is full swallows further connections."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        c = stack.enter_context(ControlClient(parse_address(url, environ={}), timeout_s=8.0, connect_timeout_s=0.3))
        with pytest.raises(TargetError, match=r"no connection to .* within 0\.3 s") as caught:
            c.request("GET", "/models")
        assert caught.value.kind == "timeout"


def test_a_name_whose_look_up_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: free.wait(20) and [])
    address = parse_address("http://slow.example", environ={})
    with ControlClient(address, connect_timeout_s=0.3) as c, pytest.raises(TargetError) as caught:
        c.request("GET", "/models")
    free.set()
    assert caught.value.kind == "timeout"


def test_of_several_addresses_the_one_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"*": answer({"ok": 1})}) as server, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        port = int(server.url.rpartition(":")[2])
        found = [(socket.AF_INET, 1, 6, "", ("127.0.0.1", p)) for p in (dead.getsockname()[1], port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
        with ControlClient(parse_address("http://two.example", environ={})) as c:
            assert c.json("GET", "/x") == {"ok": 1}


def test_tls_through_these_sockets_carries_large_answers_both_ways() -> None:
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)

    def wrap(sock: Any) -> Any:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    text = "ä" * 1_000_000
    with serving({"*": lambda r: answer(r.body)}, wrap) as server:
        c = ControlClient(parse_address(server.url, insecure=True, environ={}), timeout_s=20)
        assert c.json("POST", "/echo", body=text) == text
        c.close()


def test_what_httpcore_asks_of_a_connection() -> None:
    with talking(silent) as url:
        made = Backend().connect_tcp("127.0.0.1", int(url.rpartition(":")[2]), timeout=5.0)
        assert isinstance(made, Stream) and made.get_extra_info("ssl_object") is None
        assert made.get_extra_info("is_readable") is False and made.get_extra_info("other") is None
        with pytest.raises(httpcore.ReadTimeout):
            made.read(10, timeout=Until(0.05))
        made.close()


# Stopping


@pytest.mark.parametrize("kind", DRIPS)
def test_every_wait_ends_when_the_user_stops(kind: str) -> None:
    with talking(DRIPS[kind]) as url:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            connect(url, environ={}, stopping=lambda: time.monotonic() - begun > 0.3)
        # An answer that is no HTTP may be found out before.
        assert caught.value.kind == "stopped" or kind in ("interim answers", "status line")
        assert time.monotonic() - begun < 5


def test_connecting_and_a_handshake_end_when_the_user_stops() -> None:
    with talking(silent) as url:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            connect(url.replace("http:", "https:"), environ={}, stopping=lambda: time.monotonic() - begun > 0.3)
        assert caught.value.kind == "stopped" and time.monotonic() - begun < 5


@pytest.mark.parametrize("after", range(6))
def test_nothing_more_is_asked_once_the_user_stops(after: int) -> None:
    """Also where a call's failure is taken for an answer that is not there (recognising the engine)."""
    with serving({"GET /v1/models": MODELS}) as server:
        with pytest.raises(TargetError) as caught:
            connect(server.url, environ={}, stopping=lambda: len(server.seen) >= after)
        assert caught.value.kind == "stopped" and len(server.seen) == after


def test_after_connecting_the_server_can_still_be_told_to_stop() -> None:
    stop = False
    with serving({"GET /v1/models": MODELS, "*": answer({})}) as server:
        t = connect(server.url, environ={}, stopping=lambda: stop)
        stop = True
        assert t.client.request("POST", "/abort_request").status == 200
        t.close()


@pytest.mark.parametrize("routes", [{CHAT: answer("", 429, retry_after="50")}, {CHAT: answer("", 429)}])
def test_a_probe_that_waits_for_a_refusing_server_ends_when_the_user_stops(routes: dict[str, Any]) -> None:
    with serving({"GET /v1/models": MODELS, **routes}) as server:
        t = connect(server.url, environ={})
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            probe(t, stopping=lambda: time.monotonic() - begun > 0.3)
        assert caught.value.kind == "stopped" and time.monotonic() - begun < 5
        assert t.client.stopping is None
        t.close()


def test_a_probe_in_whose_stream_nothing_comes_ends_when_the_user_stops() -> None:
    def slow(_: Any) -> bytes:
        time.sleep(3)
        return stream(chat("a", completion=1, finish="length"))

    with serving({"GET /v1/models": MODELS, CHAT: slow}) as server:
        t = connect(server.url, environ={})
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            probe(t, stopping=lambda: time.monotonic() - begun > 0.3)
        assert caught.value.kind == "stopped" and time.monotonic() - begun < 2.5
        t.close()
