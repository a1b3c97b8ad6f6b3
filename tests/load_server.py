"""A small scripted server on real sockets for the tests of the load core: a script answers each request as it likes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flatout.load.job import Endpoint, Job, Proxy, Stream, Timeouts
from flatout.load.process import LoadPool, Outcome

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


def event(content: str | None = None, *, finish: str | None = None, **more: object) -> bytes:
    delta = {"role": "assistant"} if content is None else {"content": content}
    return (
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}).encode()
        + b"\n\n"
    )


DONE = b"data: [DONE]\n\n"


def answer(tokens: int, *, finish: str | None = "stop", done: bool = True, usage: bool = True) -> list[bytes]:
    """The events of a usual answer: role, tokens, finish, usage, [DONE]."""
    events = [event(), *(event(f" t{i}") for i in range(tokens))]
    if finish:
        events.append(event("", finish=finish))
    if usage:
        events.append(
            b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n' % tokens
        )
    if done:
        events.append(DONE)
    return events


@dataclass
class Peer:
    """One request as the script sees it."""

    sock: socket.socket
    head: bytes
    body: bytes
    number: int  # of the request, over all connections
    connection: int
    served: int  # requests on this connection before
    sends: list[tuple[int, bytes]]

    def send(self, data: bytes) -> None:
        self.sends.append((time.monotonic_ns(), data))
        self.sock.sendall(data)

    def token_sends_ns(self) -> list[int]:
        """When each event with a token began to be sent."""
        return [t for t, data in self.sends if b'" t' in data]

    def stream(self, events: Sequence[bytes], gap_s: float = 0.0) -> None:
        """A whole chunked answer, an event a send."""
        self.send(SSE_HEAD)
        for data in events:
            self.send(chunk(data))
            if gap_s:
                time.sleep(gap_s)
        self.send(END)

    def status(self, status: int, body: bytes, headers: bytes = b"") -> None:
        self.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), headers) + body)

    def reset(self) -> None:
        """Ends the connection with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


Script = Callable[[Peer], bool | None]
"""Answers one request; True closes the connection afterwards."""


@dataclass
class Server:
    script: Script
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    hang_up: Callable[[Server, socket.socket], bool] | None = None  # True: closes this connection at once
    peers: list[Peer] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family, backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._socks: list[socket.socket] = []
        self._lock = threading.Lock()
        self._stop = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                number = self.connections
                self._socks.append(sock)
            if self.hang_up is not None and self.hang_up(self, sock):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        self.open_now += 1
        try:
            sock.settimeout(20)
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            self._requests(sock, connection)
        except (OSError, ssl.SSLError) as error:
            self.errors.append(repr(error))
        finally:
            self.open_now -= 1
            with contextlib.suppress(OSError):
                sock.close()

    def _requests(self, sock: socket.socket, connection: int) -> None:
        buffer = b""
        served = 0
        while not self._stop:
            while b"\r\n\r\n" not in buffer:
                data = sock.recv(65536)
                if not data:
                    return
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            length = next(
                (int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0
            )
            parts, have = [buffer], len(buffer)
            while have < length:
                parts.append(sock.recv(1 << 20))
                if not parts[-1]:
                    return
                have += len(parts[-1])
            whole = b"".join(parts)
            body, buffer = whole[:length], whole[length:]
            with self._lock:
                peer = Peer(sock, head, body, len(self.peers), connection, served, [])
                self.peers.append(peer)
            served += 1
            if self.script(peer):
                return

    def close(self) -> None:
        self._stop = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def serving(script: Script, **settings: object) -> Iterator[Server]:
    with Server(script, **settings) as server:  # type: ignore[arg-type]
        yield server


def job(
    port: int,
    streams: int = 1,
    *,
    mode: str = "once",
    host: str = "127.0.0.1",
    scheme: str = "http",
    body: bytes = b'{"stream":true}',
    proxy: Proxy | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    path: str = "/v1/chat/completions",
    headers: tuple[tuple[str, str], ...] = (),
    lanes: tuple[Stream, ...] | None = None,
    timeouts: Timeouts | None = None,
    **more: object,
) -> Job:
    """A job against a scripted server."""
    return Job(
        name="test",
        mode=mode,  # type: ignore[arg-type]
        api="chat",
        endpoint=Endpoint(scheme, host, port, path, headers, ca_file, insecure, proxy),  # type: ignore[arg-type]
        timeouts=timeouts or Timeouts(connect_s=5.0, first_byte_s=10.0, idle_s=10.0, total_s=20.0),
        streams=lanes or (Stream(body=body, asked_tokens=16),) * streams,
        **more,  # type: ignore[arg-type]
    )


def soon(check: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether check() comes true within so long."""
    end = time.monotonic() + within_s
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def run_once(pool: LoadPool, asked: Job, timeout_s: float) -> Outcome:
    """Starts a job, waits until it has ended (at most `timeout_s`) and stops it."""
    pool.start(asked)
    pool.wait(timeout_s)
    return pool.stop()
