"""For the rig's own tests: a rig in a thread, and a raw HTTP client that shows the bytes and when they came."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from flatout.rig import RigConfig, RigHandle, Truth
from flatout.rig.server import RigServer

F64 = npt.NDArray[np.float64]
TIMEOUT_S = 20.0


class RigThread:
    """A rig in a thread of this process, as `RigHandle` works a process. Its schedule is the same, and what it is late
    by stands in its log; starting it takes a tenth of the time."""

    stdout = stderr = None
    returncode = 0
    pid = os.getpid()

    def __init__(self, config: RigConfig) -> None:
        self.server = RigServer(config)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def terminate(self) -> None:
        self.server.stop()

    def wait(self, timeout: float) -> None:
        self._thread.join(timeout)


@contextmanager
def running(config: RigConfig) -> Iterator[RigHandle]:
    thread = RigThread(config)
    handle = RigHandle(cast(Any, thread), thread.server.url)
    try:
        yield handle
    finally:
        handle.stop()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    chunks: list[bytes] = field(default_factory=list)  # of a chunked body
    body: bytes = b""
    ended: bool = False  # the last chunk came, or the whole length
    reads: list[tuple[int, bytes]] = field(default_factory=list)  # (ns, bytes) of every recv

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[str]:
        return [line for line in b"".join(self.chunks).decode("utf-8", "replace").split("\n") if line]

    @property
    def payloads(self) -> list[str]:
        return [line[6:] for line in self.lines if line.startswith("data: ")]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.payloads if text != "[DONE]"]

    @property
    def done(self) -> bool:
        return "[DONE]" in self.payloads

    def texts(self, index: int = 0) -> list[str]:
        """Text of each event of one choice that has a text field at all."""
        out = []
        for event in self.events:
            for choice in event.get("choices") or []:
                if choice["index"] != index:
                    continue
                delta = choice.get("delta", {})
                text = choice.get("text") if "text" in choice else delta.get("content")
                if text is not None:
                    out.append(text)
        return out

    def usage(self) -> dict[str, Any]:
        """The last one; there must be one."""
        usage: dict[str, Any] = [event["usage"] for event in self.events if event.get("usage")][-1]
        return usage

    @property
    def completion_tokens(self) -> int:
        return int(self.usage()["completion_tokens"])

    def finish(self) -> str | None:
        reasons = [c.get("finish_reason") for event in self.events for c in event.get("choices") or []]
        return next((reason for reason in reasons if reason), None)


class Client:
    """One connection."""

    def __init__(self, url: str, *, cafile: str | None = None) -> None:
        parts = urlsplit(url)
        self.sock: socket.socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if cafile:
            context = ssl.create_default_context(cafile=cafile)
            self.sock = context.wrap_socket(self.sock, server_hostname=parts.hostname)
        self._left = b""

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, raw: bytes | None = None
    ) -> None:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: rig\r\nContent-Length: {len(data)}\r\n"
        if key:
            head += f"Authorization: Bearer {key}\r\n"
        self.sock.sendall(head.encode() + b"\r\n" + data)

    def _more(self, answer: Answer | None) -> bool:
        try:
            data = self.sock.recv(262_144)
        except ConnectionResetError:
            return False
        if answer is not None and data:
            answer.reads.append((time.monotonic_ns(), data))
        self._left += data
        return bool(data)

    def read(self, *, chunks: int | None = None) -> Answer:
        """The next answer; with `chunks` only until so many have come."""
        while b"\r\n\r\n" not in self._left:
            if not self._more(None):
                raise ConnectionError(f"closed before an answer, after {self._left!r}")
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        answer = Answer(int(first.split()[1]), headers)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while chunks is None or len(answer.chunks) < chunks:
                piece = self._chunk(answer)
                if piece is None:
                    return answer
                if not piece:
                    answer.ended = True
                    return answer
                answer.chunks.append(piece)
            return answer
        size = int(headers.get("content-length", 0))
        while len(self._left) < size and self._more(answer):
            pass
        answer.body, self._left = self._left[:size], self._left[size:]
        answer.ended = len(answer.body) == size
        return answer

    def read_rest(self) -> Answer:
        """The rest of a chunked answer whose beginning `read(chunks=…)` gave."""
        answer = Answer(200, {})
        while (piece := self._chunk(answer)) is not None:
            if not piece:
                answer.ended = True
                break
            answer.chunks.append(piece)
        return answer

    def _chunk(self, answer: Answer) -> bytes | None:
        while b"\r\n" not in self._left:
            if not self._more(answer):
                return None
        size_text, _, rest = self._left.partition(b"\r\n")
        size = int(size_text, 16)
        while len(rest) < size + 2:
            before = len(self._left)
            if not self._more(answer):
                return None
            rest += self._left[before:]
        self._left = rest[size + 2 :]
        return rest[:size]

    def call(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Answer:
        self.send(method, path, body, key=key)
        return self.read()

    def close(self) -> None:
        self.sock.close()


def get(url: str, path: str, **options: Any) -> Answer:
    client = Client(url)
    try:
        return client.call("GET", path, **options)
    finally:
        client.close()


def post(url: str, path: str, body: Any, **options: Any) -> Answer:
    client = Client(url)
    try:
        return client.call("POST", path, body, **options)
    finally:
        client.close()


def complete(url: str, tokens: int = 8, prompt: Any = "The quick brown fox", **more: Any) -> Answer:
    """A streamed completion with usage."""
    body = {"max_tokens": tokens, "prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    return post(url, "/v1/completions", {**body, **more})


def chat(url: str, tokens: int = 8, **more: Any) -> Answer:
    body = {
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": "Write a short story."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return post(url, "/v1/chat/completions", {**body, **more})


def start_stream(url: str, tokens: int, prompt: Any = "The quick brown fox", **more: Any) -> Client:
    """A client whose stream has been asked for, not yet read."""
    client = Client(url)
    body = {"max_tokens": tokens, "prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    client.send("POST", "/v1/completions", {**body, **more})
    return client


def together(url: str, *streams: tuple[int, Any]) -> list[Answer]:
    """The answers of streams (tokens, prompt) that are asked for one after the other and run together."""
    clients = [start_stream(url, tokens, prompt) for tokens, prompt in streams]
    answers = [client.read() for client in clients]
    for client in clients:
        client.close()
    return answers


def left(url: str, tokens: int, chunks: int = 2, **more: Any) -> None:
    """A stream that is hung up after so many chunks."""
    client = start_stream(url, tokens, **more)
    client.read(chunks=chunks)
    client.close()


def one(config: RigConfig, tokens: int, call: Callable[..., Answer] | None = None, **more: Any) -> tuple[Answer, Truth]:
    """One answer of a rig, and its log."""
    with running(config) as rig:
        answer = (call or complete)(rig.url, tokens, **more)
        return answer, rig.log()


def wait_for(check: Any, timeout_s: float = 10.0) -> None:
    """Until check() is true; fails the test after timeout_s."""
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def due_spans_s(truth: Truth) -> F64:
    """Seconds from each request's first token to its last as the rig's schedule has them: what held the rig up for a
    moment is in its log too (`event_late_us`), and taken off."""
    due = truth.event_ns - truth.event_late_us.astype(np.int64) * 1000
    assert np.all(truth.event_late_us >= 0), "nothing leaves before its time"
    return np.array([np.ptp(due[truth.event_request == r]) / 1e9 for r in range(len(truth.rid))])


def due_ttft_ms(truth: Truth) -> F64:
    """Time to each request's first token by the rig's schedule, from the request's arrival."""
    due = truth.event_ns - truth.event_late_us.astype(np.int64) * 1000
    first = np.array([due[truth.event_request == r].min() for r in range(len(truth.rid))])
    return np.asarray((first - truth.arrival_ns) / 1e6)


def metrics(url: str) -> dict[str, float]:
    """Name → value, summed over labels."""
    out: dict[str, float] = {}
    for line in get(url, "/metrics").body.decode().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            out[name] = out.get(name, 0.0) + float(value)
    return out
