"""A small scripted HTTP server: it plays back captured answers of real engines, and misbehaves when told to."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent / "fixtures" / "captures"
Answer = bytes | Callable[["Request"], bytes]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """`routes`: "METHOD /path" to raw bytes of an answer, or a function that makes them. `seen`: what was asked."""

    url: str
    routes: dict[str, Answer]
    seen: list[Request] = field(default_factory=list)

    def asked(self, route: str) -> list[Request]:
        return [r for r in self.seen if f"{r.method} {r.path}" == route]


def answer(content: object, status: int = 200, **headers: str) -> bytes:
    """A raw answer: JSON for anything but text and bytes."""
    if isinstance(content, bytes):
        data = content
    else:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
    lines = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + data


def stream(*events: object, done: bool = True) -> bytes:
    """A raw answer with these server-sent events."""
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return answer(data + (b"data: [DONE]\n\n" if done else b""), content_type="text/event-stream")


def chat(
    text: str = "a", *, completion: int | None = None, finish: str | None = None, prompt: int = 20, **choice: object
) -> dict[str, Any]:
    """One chat event; `completion` gives it a usage."""
    event: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **choice}]}
    if completion is not None:
        event["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event


def capture(engine: str, name: str) -> bytes:
    return (CAPTURES / engine / f"{name}.http").read_bytes()


def text_of(engine: str, name: str) -> str:
    return capture(engine, name).partition(b"\r\n\r\n")[2].decode()


def engine_routes(engine: str) -> dict[str, Answer]:
    """The captured GETs and the tokenizer of an engine, as routes."""
    routes: dict[str, Answer] = {}
    for path in sorted((CAPTURES / engine).glob("get_*.http")):
        name = path.stem.removeprefix("get_")
        name = {"v1_models": "v1/models", "v1_loads": "v1/loads"}.get(name, name)
        routes[f"GET /{name}"] = path.read_bytes()
    if (CAPTURES / engine / "post_tokenize.http").exists():
        routes["POST /tokenize"] = capture(engine, "post_tokenize")
    return routes


class _Handler(socketserver.StreamRequestHandler):
    timeout = 20

    def handle(self) -> None:
        server: Server = self.server.told  # type: ignore[attr-defined]
        try:
            request = self._read()
        except (OSError, ValueError):
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\nInvalid HTTP request received.")
            return
        server.seen.append(request)
        route = f"{request.method} {request.path}"
        made = server.routes.get(route, server.routes.get("*", answer({"detail": "Not Found"}, 404)))
        data = made(request) if callable(made) else made
        head, gap, body = data.partition(b"\r\n\r\n")
        if gap and head.startswith(b"HTTP/"):
            kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            data = b"\r\n".join([*kept, b"connection: close"]) + gap + body
        try:
            self.wfile.write(data)
        except OSError:
            return

    def _read(self) -> Request:
        method, path, _ = self.rfile.readline().decode().split()
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Request(method, path, headers, self.rfile.read(int(headers.get("content-length", 0))))


class _Threading(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def serving(routes: dict[str, Answer], wrap: Callable[[Any], Any] | None = None) -> Iterator[Server]:
    """Serves on a free loopback port; `wrap` may wrap the listening socket (TLS)."""
    with _Threading(("127.0.0.1", 0), _Handler) as tcp:
        told = Server(f"http://127.0.0.1:{tcp.server_address[1]}", dict(routes))
        tcp.told = told  # type: ignore[attr-defined]
        if wrap is not None:
            tcp.socket = wrap(tcp.socket)
            told.url = told.url.replace("http://127.0.0.1", "https://localhost")
        thread = threading.Thread(target=tcp.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            tcp.shutdown()
            thread.join(5)
