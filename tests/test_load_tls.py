"""TLS, proxies and IPv6."""

from __future__ import annotations

import base64
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import trustme

from flatout.load.job import Proxy, Timeouts
from flatout.load.process import LoadPool, Outcome
from flatout.load.samples import FAILED, OK
from tests.load_server import END, SSE_HEAD, Peer, answer, chunk, event, job, run_once, serving


@pytest.fixture(scope="module")
def pool() -> Iterator[LoadPool]:
    with LoadPool() as pool:
        yield pool


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1", "::1").configure_cert(context)
    return context


def only_error(outcome: Outcome) -> str:
    s = outcome.samples
    assert s.outcome.tolist() == [FAILED]
    return s.error_texts[s.error[0]]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls(pool: LoadPool, tls: ssl.SSLContext, ca_file: str, host: str) -> None:
    with serving(lambda p: p.stream(answer(30), 0.003), tls=tls) as server:
        asked = job(server.port, 4, mode="closed", max_requests=12, scheme="https", host=host, ca_file=ca_file)
        outcome = run_once(pool, asked, 10)
    s = outcome.samples
    assert s.outcome.tolist() == [OK] * 12 and s.arrival_count.tolist() == [30] * 12
    assert server.connections >= 4 and (s.connect_ns > 0).sum() == 4
    assert outcome.checks[0].unstamped_reads == 0
    sent = np.sort([t for peer in server.peers for t, data in peer.sends if b'" t' in data])
    assert ((np.sort(s.t_ns) - sent) > 0).all()


def test_a_large_event_and_a_large_body_over_tls(pool: LoadPool, tls: ssl.SSLContext, ca_file: str) -> None:
    text, body = "x" * 3_000_000, b'{"x":"' + b"y" * 3_000_000 + b'"}'
    with serving(lambda p: p.stream([event("a"), event(text), *answer(1)]), tls=tls) as server:
        s = run_once(pool, job(server.port, scheme="https", ca_file=ca_file, body=body), 15).samples
    assert s.outcome.tolist() == [OK] and s.text_len.tolist() == [1, 3_000_000, 3] and server.peers[0].body == body


def test_close_delimited_over_tls(pool: LoadPool, tls: ssl.SSLContext, ca_file: str) -> None:
    def script(peer: Peer) -> bool:
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(answer(2)))
        peer.sock.unwrap()
        return True

    with serving(script, tls=tls) as server:
        asked = job(server.port, mode="closed", max_requests=3, scheme="https", ca_file=ca_file)
        s = run_once(pool, asked, 10).samples
    assert s.outcome.tolist() == [OK] * 3
    assert ((s.send_ns[1:] - s.end_ns[:-1]) < 500_000_000).all()  # its close_notify ends the answer, not our patience


def test_a_certificate_nobody_vouches_for(pool: LoadPool, tls: ssl.SSLContext) -> None:
    with serving(lambda p: p.stream(answer(1)), tls=tls) as server:
        outcome = run_once(pool, job(server.port, 3, mode="closed", scheme="https"), 5)
        assert "certificate is not trusted" in (outcome.error or "") and "--ca FILE" in (outcome.error or "")
        assert server.peers == []
        insecure = run_once(pool, job(server.port, scheme="https", insecure=True), 5)
    assert insecure.samples.outcome.tolist() == [OK]


def test_a_certificate_for_another_name(pool: LoadPool, authority: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("example.org").configure_cert(context)
    with serving(lambda p: p.stream(answer(1)), tls=context) as server:
        outcome = run_once(pool, job(server.port, scheme="https", ca_file=ca_file), 5)
    assert "not trusted" in only_error(outcome) and "127.0.0.1" in only_error(outcome)


def test_https_to_an_http_server_and_the_other_way(pool: LoadPool, tls: ssl.SSLContext) -> None:
    with serving(lambda p: p.stream(answer(1))) as server:  # waits for the end of a head that never comes
        outcome = run_once(pool, job(server.port, scheme="https", timeouts=Timeouts(connect_s=0.5)), 5)
        assert "could not finish TLS with" in only_error(outcome)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")).start()
        outcome = run_once(pool, job(listener.getsockname()[1], scheme="https"), 5)
        assert "does not speak TLS" in only_error(outcome) and "http://" in only_error(outcome)
    with serving(lambda p: None, tls=tls) as server:
        assert only_error(run_once(pool, job(server.port), 5))


def test_ipv6(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(2)), host="::1") as server:
        s = run_once(pool, job(server.port, host="::1"), 5).samples
        assert s.outcome.tolist() == [OK] and b"Host: [::1]:%d" % server.port in server.peers[0].head


def test_localhost_that_listens_on_ipv4_only(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(2))) as server:
        assert run_once(pool, job(server.port, 5, host="localhost"), 5).samples.outcome.tolist() == [OK] * 5


class Tunnel:
    """A tiny CONNECT proxy. `refuse`: answers 407 instead."""

    def __init__(self, *, refuse: bool = False, delay_s: float = 0.0) -> None:
        self.refuse, self.delay_s = refuse, delay_s
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        self.heads.append(head)
        if self.refuse:
            sock.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            sock.close()
            return
        host, port = head.split()[1].decode().rsplit(":", 1)
        with socket.create_connection((host.strip("[]"), int(port))) as server, sock:
            for part in (b"HTTP/1.1 200 Connection", b" established\r\nVia: x\r\n", b"\r\n"):
                sock.sendall(part)
                time.sleep(self.delay_s)
            while True:
                for ready in select.select([sock, server], [], [], 5)[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (server if ready is sock else sock).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()


def test_a_tunnel_for_https(pool: LoadPool, tls: ssl.SSLContext, ca_file: str) -> None:
    tunnel = Tunnel(delay_s=0.02)
    secret = "Basic " + base64.b64encode(b"u:p").decode()
    with serving(lambda p: p.stream(answer(3), 0.002), tls=tls) as server:
        proxy = Proxy("127.0.0.1", tunnel.port, secret)
        asked = job(server.port, 2, scheme="https", ca_file=ca_file, proxy=proxy, mode="closed", max_requests=4)
        s = run_once(pool, asked, 10).samples
    tunnel.close()
    assert s.outcome.tolist() == [OK] * 4 and (s.connect_ns[s.connect_ns > 0] > 40_000_000).all()
    assert len(tunnel.heads) == 2 and tunnel.heads[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1" % server.port)
    assert secret.encode() in tunnel.heads[0] and secret.encode() not in server.peers[0].head


def test_a_proxy_for_http_hears_the_whole_address(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(3))) as server:  # plays the proxy
        asked = job(8000, host="model.example", proxy=Proxy("127.0.0.1", server.port))
        s = run_once(pool, asked, 5).samples
    assert s.outcome.tolist() == [OK]
    assert server.peers[0].head.startswith(
        b"POST http://model.example:8000/v1/chat/completions HTTP/1.1\r\nHost: model.example:8000"
    )


def test_proxies_that_refuse_or_are_not_there(pool: LoadPool) -> None:
    tunnel = Tunnel(refuse=True)
    said = only_error(
        run_once(pool, job(443, scheme="https", host="h.example", proxy=Proxy("127.0.0.1", tunnel.port)), 5)
    )
    tunnel.close()
    assert "the proxy" in said and "refused the tunnel" in said and "407" in said
    gone = only_error(
        run_once(pool, job(443, scheme="https", host="h.example", proxy=Proxy("127.0.0.1", tunnel.port)), 5)
    )
    assert f"cannot connect to the proxy 127.0.0.1:{tunnel.port}" in gone


def test_events_in_one_tls_record_share_a_stamp(pool: LoadPool, tls: ssl.SSLContext, ca_file: str) -> None:
    def script(peer: Peer) -> None:
        peer.send(SSE_HEAD + chunk(event("a")))
        time.sleep(0.05)
        peer.send(chunk(event("b")) + chunk(event("c")))
        time.sleep(0.3)
        peer.send(b"".join(map(chunk, answer(0))) + END)

    with serving(script, tls=tls) as server:
        s = run_once(pool, job(server.port, scheme="https", ca_file=ca_file), 5).samples
    assert s.t_ns[1] == s.t_ns[2] and 0 <= s.t_ns[1] - server.peers[0].sends[1][0] < 10_000_000
