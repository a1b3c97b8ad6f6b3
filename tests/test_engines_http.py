"""The control connection: each kind of bad server gives one clear sentence, and no secret in it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from flatout.engines.base import TargetError
from flatout.engines.endpoint import parse_address
from flatout.engines.http import MAX_BYTES, ControlClient, RateLimited, header_secrets
from tests.engine_server import Answer, answer, capture, serving, stream

KEY = "sk-verysecret-0123456789"


def client(url: str, **kwargs: Any) -> ControlClient:
    timeout_s = kwargs.pop("timeout_s", 5.0)
    return ControlClient(parse_address(url, environ={}, **kwargs), timeout_s=timeout_s)


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


def test_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
        with client(url, timeout_s=0.3) as c, pytest.raises(TargetError, match=r"within 0\.3 s") as e:
            c.json("GET", "/models", api=True)
    assert e.value.kind == "timeout"


def test_a_server_that_drips_is_bounded_as_a_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        import threading
        import time

        def drip() -> None:
            peer, _ = s.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
                for _ in range(40):
                    try:
                        peer.sendall(b" ")
                    except OSError:
                        return
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
        with client(url, timeout_s=0.4) as c, pytest.raises(TargetError) as e:
            c.json("GET", "/models", api=True)
    assert e.value.kind == "timeout"


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
    with serving({"*": answer({})}) as s, client(s.url + "/proxy/v1", key=KEY, headers=[("X-Team", "blue")]) as c:
        c.json("GET", "/models", api=True)
        c.json("POST", "/tokenize", body={"content": "ä"})
        models, tokenize = s.seen
    assert (models.path, tokenize.path) == ("/proxy/v1/models", "/proxy/tokenize")
    assert models.headers["authorization"] == f"Bearer {KEY}" and models.headers["x-team"] == "blue"
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
