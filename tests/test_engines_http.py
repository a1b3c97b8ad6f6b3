"""The control connection: each kind of bad server gives one clear sentence, and no secret in it; whatever a server
drips, and wherever it stalls, a call ends in time, or when the user stops."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpcore
import pytest
import trustme

from flatout.engines.base import TargetError
from flatout.engines.detect import connect
from flatout.engines.endpoint import parse_address
from flatout.engines.http import MAX_BYTES, ControlClient, RateLimited, header_secrets
from flatout.engines.probe import probe
from flatout.engines.wire import Backend, Stream, Until
from tests.engine_server import Answer, answer, capture, chat, serving, stream

KEY = "sk-verysecret-0123456789"


def client(url: str, **kwargs: Any) -> ControlClient:
    limits = {name: kwargs.pop(name) for name in ("timeout_s", "connect_timeout_s") if name in kwargs}
    return ControlClient(parse_address(url, environ={}, **kwargs), **{"timeout_s": 5.0, **limits})


def failure(raw: Answer, *, key: str | None = None, timeout_s: float = 5.0, path: str = "/models") -> TargetError:
    with serving({"*": raw}) as server, client(server.url, key=key, timeout_s=timeout_s) as c:
        with pytest.raises(TargetError) as caught:
            c.json("GET", path, api=True)
        assert str(caught.value).strip() and KEY not in str(caught.value)
        return caught.value


def refusal_of(c: ControlClient) -> TargetError:
    with pytest.raises(TargetError) as caught:
        c.json("GET", "/models", api=True)
    return caught.value


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_nothing_listens() -> None:
    with client(f"http://127.0.0.1:{free_port()}") as c, pytest.raises(TargetError, match="is the server running") as e:
        c.json("GET", "/models", api=True)
    assert e.value.kind == "refused"


def test_an_unknown_host() -> None:
    with client("http://no-such-host.invalid") as c, pytest.raises(TargetError, match="not known") as e:
        c.json("GET", "/models", api=True)
    assert e.value.kind == "dns"


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang"])
def test_a_missing_key_in_each_engines_words(engine: str) -> None:
    error = failure(capture(engine, "auth_models_nokey"))
    assert error.kind == "auth" and error.status == 401 and "--api-key" in str(error)


def test_a_wrong_key_is_said_to_be_wrong_and_never_echoed() -> None:
    error = failure(answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401), key=KEY)
    assert error.kind == "auth" and "key is wrong" in str(error)
    assert KEY not in str(error.words)


LONG_KEY = "kA9-" + "0123456789abcdef" * 3


@pytest.mark.parametrize("pad", [0, 30, 60, 79, 200, 250, 262, 270, 280, 290, 298, 3_950, 3_990])
@pytest.mark.parametrize("kind", ["error", "text", "not JSON", "location", "json instead of a stream", "not HTTP"])
def test_no_part_of_a_key_is_left_at_a_cut(pad: int, kind: str) -> None:
    """A server that echoes the key such that the cut goes through it, in every kind of message."""
    said = f"{'x' * pad} {LONG_KEY} and more {'y' * 300}"
    raw = {
        "error": answer({"error": {"message": said}}, 500),
        "text": answer(said, 400, content_type="text/plain"),
        "not JSON": answer(said),
        "location": answer("", 302, location=said),
        "json instead of a stream": answer({"error": said}),
        "not HTTP": b"SSH " + said.encode() + b"\r\n\r\n",
    }[kind]
    with serving({"*": raw}) as server, client(server.url, key=LONG_KEY) as c, pytest.raises(TargetError) as caught:
        if "stream" in kind:
            list(c.events("/chat/completions", b"{}"))
        else:
            c.json("GET", "/models", api=True)
    for text in (str(caught.value), caught.value.words or ""):
        assert not any(LONG_KEY[:n] in text for n in range(6, len(LONG_KEY) + 1)), text
        assert len(text) < 700


@pytest.mark.parametrize(
    ("raw", "kind", "part"),
    [
        (answer("<!doctype html><p>Welcome to nginx", content_type="text/html"), "not_a_server", "web page"),
        (answer("hello"), "not_a_server", "not JSON ('hello')"),
        (answer(""), "not_a_server", "not JSON"),
        (answer({"detail": "Not Found"}, 404), "not_found", "It says: Not Found"),
        (answer("<html>gone", 404, content_type="text/html"), "not_found", "answered 404"),
        (capture("llamacpp-loading", "get_v1_models"), "unavailable", "It says: Loading model"),
        (answer({"error": {"message": "CUDA error: out of memory"}}, 500), "http", "CUDA error: out of memory"),
        (answer({"error": f"bad header {KEY}"}, 500), "http", "bad header"),
        (answer({"message": "no"}, 400), "http", "refuses this request. It says: no"),
        (answer("", 302, location="https://elsewhere.example/v1"), "http", "redirects to https://"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not_a_server", "does not speak HTTP"),
        (b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "not_a_server", "another protocol"),
        (b"", "protocol", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "protocol", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nxxxx", "protocol", "compressed"),
    ],
)
def test_bad_answers(raw: bytes, kind: str, part: str) -> None:
    error = failure(raw, key=KEY)
    assert error.kind == kind
    assert part in str(error)


def test_a_very_long_error_is_shortened() -> None:
    assert len(str(failure(answer({"error": "x" * 100_000}, 500)))) < 600


def test_a_flood_is_cut_off() -> None:
    error = failure(answer(b"[" + b" " * (MAX_BYTES + 10)))
    assert error.kind == "protocol" and "8 MB" in str(error)


def test_too_many_requests_carries_the_wait() -> None:
    error = failure(answer({"error": {"message": "slow down"}}, 429, retry_after="7"))
    assert isinstance(error, RateLimited) and error.retry_after_s == 7.0 and error.kind == "rate_limited"


def test_deep_json_is_no_crash() -> None:
    assert failure(answer("[" * 100_000)).kind == "not_a_server"


def test_ask_tells_absent_from_ill() -> None:
    routes: dict[str, Answer] = {"GET /a": answer({"x": 1}), "GET /html": answer("<html>"), "GET /ill": answer("", 500)}
    with serving(routes) as s, client(s.url) as c:
        assert c.ask("GET", "/a") == {"x": 1}
        assert c.ask("GET", "/html") is None
        assert c.ask("GET", "/none") is None
        with pytest.raises(TargetError, match="the server failed"):
            c.ask("GET", "/ill")


def test_headers_and_paths_as_sent() -> None:
    with (
        serving({"*": answer({})}) as s,
        client(s.url + "/proxy/v1", key=KEY, headers=[("X-Team", "blue"), ("user-agent", "me")]) as c,
    ):
        c.json("GET", "/models", api=True)
        c.json("POST", "/tokenize", body={"content": "ä"})
        models, tokenize = s.seen
    assert (models.path, tokenize.path) == ("/proxy/v1/models", "/proxy/tokenize")
    assert models.headers["authorization"] == f"Bearer {KEY}" and models.headers["x-team"] == "blue"
    assert models.headers["user-agent"] == "me" and models.headers["host"] == s.url.removeprefix("http://")
    assert tokenize.json() == {"content": "ä"} and tokenize.headers["content-type"] == "application/json"


def test_events_of_a_stream() -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: ping\n\n"
    raw += b'data: {"a":1}\r\n\r\ndata:{"b":\ndata: 2}\n\n'
    with serving({"*": raw + b"data: [DONE]\n\ndata: no\n\n"}) as s, client(s.url) as c:
        assert list(c.events("/chat/completions", b"{}")) == [b'{"a":1}', b'{"b":\n2}']
    with serving({"*": stream({"a": 1}, done=False)[:-1]}) as s, client(s.url) as c:
        assert list(c.events("/chat/completions", b"{}")) == [b'{"a": 1}']


def test_a_refused_stream_has_status_and_words() -> None:
    refusal = answer({"detail": "Unexpected fields in the request: {'x'}"}, 422)
    with serving({"*": refusal}) as s, client(s.url) as c, pytest.raises(TargetError) as e:
        list(c.events("/chat/completions", b"{}"))
    assert e.value.status == 422 and "{'x'}" in str(e.value.words)


def test_a_server_that_does_not_stream() -> None:
    whole = {"*": answer({"choices": []})}
    with serving(whole) as s, client(s.url) as c, pytest.raises(TargetError, match="does not stream"):
        list(c.events("/chat/completions", b"{}"))


# TLS


def tls(ca: trustme.CA, *names: str) -> Callable[[Any], Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)

    def wrap(sock: Any) -> Any:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    return wrap


def test_tls_with_an_unknown_ca_names_both_ways_out(tmp_path: Path) -> None:
    ca = trustme.CA()
    pem = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(pem))
    with serving({"*": answer({"ok": 1})}, tls(ca, "localhost")) as s:
        with client(s.url) as c, pytest.raises(TargetError, match="--ca FILE, or --insecure") as e:
            c.json("GET", "/models", api=True)
        assert e.value.kind == "tls"
        with client(s.url, ca_file=str(pem)) as c:
            assert c.json("GET", "/models", api=True) == {"ok": 1}
        with client(s.url, insecure=True) as c:
            assert c.json("GET", "/models", api=True) == {"ok": 1}


def test_tls_with_another_name(tmp_path: Path) -> None:
    ca = trustme.CA()
    pem = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(pem))
    with serving({"*": answer({})}, tls(ca, "other.example")) as s, client(s.url, ca_file=str(pem)) as c:
        error = refusal_of(c)
    assert error.kind == "tls" and "name that the certificate is for" in str(error)


def test_https_to_a_plain_server_and_http_to_a_tls_server() -> None:
    with serving({"*": answer({})}) as s, client(s.url.replace("http:", "https:")) as c:
        with pytest.raises(TargetError, match="http:// server") as e:
            c.json("GET", "/models", api=True)
        assert e.value.kind == "tls"
    with serving({"*": answer({})}, tls(trustme.CA(), "localhost")) as s, client(s.url.replace("https:", "http:")) as c:
        assert "https server" in str(refusal_of(c))


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(TargetError, match="PEM"):
        client("https://localhost", ca_file=str(tmp_path / "ca.pem"))


# Proxies


def test_through_a_proxy_with_its_login() -> None:
    with serving({"*": answer({"by": "proxy"})}) as proxy:
        environ = {"http_proxy": proxy.url.replace("http://", "http://bob:pw-secret@")}
        address = parse_address("http://models.example:8000", environ=environ)
        with ControlClient(address, timeout_s=5) as c:
            assert c.json("GET", "/models", api=True) == {"by": "proxy"}
        (seen,) = proxy.seen
        assert seen.path == "http://models.example:8000/v1/models"
        assert seen.headers["proxy-authorization"].startswith("Basic ")
        assert any("Basic" in secret for secret in header_secrets(address))


def test_a_dead_proxy_is_named() -> None:
    address = parse_address("http://models.example", environ={"http_proxy": f"http://127.0.0.1:{free_port()}"})
    with ControlClient(address, timeout_s=5) as c, pytest.raises(TargetError, match="through the proxy"):
        c.json("GET", "/models", api=True)


def test_what_is_secret_of_an_address() -> None:
    def secrets(url: str = "http://h", **kwargs: Any) -> tuple[str, ...]:
        return header_secrets(parse_address(url, environ={}, **kwargs))

    assert secrets(key=KEY) == (f"Bearer {KEY}", KEY)
    assert "hunter22" in secrets("http://bob:hunter22@h")
    assert secrets(headers=[("X-Team", "blue")]) == ()
    assert secrets(headers=[("X-Api-Key", "abcd")]) == ("abcd",)
    assert secrets(headers=[("X-Project", "0123456789abcdef0123")]) == ("0123456789abcdef0123",)


# Deadlines: drips, stalls, kept connections

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
    with talking(DRIPS[kind]) as url, client(url, timeout_s=0.5) as c:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            c.request("GET", "/metrics")
        assert caught.value.kind in ("timeout", "protocol", "not_a_server"), caught.value
        assert time.monotonic() - begun < 5


def test_a_server_that_does_not_read_is_bounded() -> None:
    with talking(deaf) as url, client(url, timeout_s=0.5) as c:
        begun = time.monotonic()
        with pytest.raises(TargetError) as caught:
            c.request("POST", "/tokenize", body={"content": "x" * 30_000_000})
        assert caught.value.kind == "timeout" and time.monotonic() - begun < 5


@pytest.mark.parametrize("kind", ["body", "header lines"])
def test_a_streams_limit_holds_for_the_whole_stream(kind: str) -> None:
    with talking(DRIPS[kind]) as url, client(url) as c:
        with pytest.raises(TargetError) as caught:
            list(c.events("/chat/completions", b"{}", timeout_s=0.5))
        assert caught.value.kind == "timeout"


def test_the_limit_begins_anew_with_each_call_on_a_kept_connection() -> None:
    def talk(peer: socket.socket) -> None:
        while peer.recv(65536):
            time.sleep(0.15)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with talking(talk) as url, client(url, timeout_s=1.5) as c:
        assert [c.json("GET", "/a") for _ in range(12)] == [{}] * 12  # 1.8 s in all


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
    with talking(leaver) as url, client(url) as c:
        for _ in range(5):
            assert c.json(method, "/v1/models", body={"a": 1} if method == "POST" else None) == {}
    assert (len(leaver.connections), len(leaver.unanswered)) == (5, 4)


def test_however_many_kept_connections_were_given_up_the_call_is_answered() -> None:
    leaver = _Leaver(wait=threading.Barrier(4))
    with talking(leaver) as url, client(url) as c:
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
    with talking(leaver) as url, client(url) as c:
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
        client(url) as c,
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
        c = stack.enter_context(client(url, timeout_s=8.0, connect_timeout_s=0.3))
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
    text = "ä" * 1_000_000
    with serving({"*": lambda r: answer(r.body)}, tls(trustme.CA(), "localhost")) as server:
        c = client(server.url, insecure=True, timeout_s=20)
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
