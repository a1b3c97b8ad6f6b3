"""A tiny server that answers like a site, or like a broken proxy in front of one, as a test scripts it."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "flatout_" + "A1b2C3d4" * 5 + "xyz"


@dataclass
class Reply:
    """`drop`: the connection is closed instead of an answer; `after_s`: how long the answer takes."""

    status: int = 200
    body: dict[str, Any] | bytes = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    after_s: float = 0.0


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeSite:
    """`me` and `runs` hold the answers in order, the last one repeats; `seen` is every request that arrived."""

    def __init__(self) -> None:
        self.me = [Reply(200, {"name": "ada", "scopes": ["publish"], "token_id": 1, "runs": 0})]
        self.runs = [Reply(201, {"id": "abcdefghijkl", "url": "/r/abcdefghijkl", "state": "public", "created": True})]
        self.seen: list[Seen] = []
        self.url = ""

    def posts(self) -> list[Seen]:
        return [one for one in self.seen if one.method == "POST"]

    def record(self, number: int = -1) -> Any:
        return json.loads(gzip.decompress(self.posts()[number].body))

    def answer(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        replies = self.me if seen.path == "/api/v1/me" else self.runs
        return replies.pop(0) if len(replies) > 1 else replies[0]


@contextmanager
def running() -> Iterator[FakeSite]:
    """A fake site on a free port."""
    site = FakeSite()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = site.answer(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            time.sleep(reply.after_s)
            if reply.drop:
                self.close_connection = True
                self.connection.close()
                return
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a connection that a test drops

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
