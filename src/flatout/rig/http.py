"""HTTP/1.1 on the server's side: a request parser that takes any split of the bytes, and response heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

Headers = list[tuple[str, str]]

MAX_BODY_BYTES = 256 * 2**20

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Payload Too Large", 422: "Unprocessable Entity", 429: "Too Many Requests", 500: "Internal Server Error",
    501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(slots=True)
class Request:
    """One request, complete. Header names are lower case."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True

    @property
    def key(self) -> str:
        """The bearer token, or ''."""
        scheme, _, value = self.headers.get("authorization", "").partition(" ")
        return value.strip() if scheme.lower() == "bearer" else ""


@dataclass(slots=True)
class Reply:
    """A whole answer. `kind` is its content type; None takes the server's own for JSON, "" leaves it out."""

    status: int
    body: bytes = b""
    kind: str | None = None
    headers: Headers = field(default_factory=list)


class BadRequest(ValueError):
    """The bytes are no HTTP request."""


class RequestParser:
    """Feed bytes as they come; requests fall out when their last byte is in."""

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        self._done: list[Request] = []
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self.wants_continue = False  # the client waits for "100 Continue"; the caller answers and resets it

    def feed(self, data: bytes) -> list[Request]:
        """Raises BadRequest, after which the connection is of no more use."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise BadRequest("upgrades are not spoken here") from error
        except (httptools.HttpParserError, httptools.HttpParserCallbackError, ValueError) as error:
            raise BadRequest(str(error) or type(error).__name__) from error
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """No more bytes will come (the parser and this object hold each other)."""
        self._parser = None

    # -- called by httptools ---------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.wants_continue = self._headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            raise ValueError("the body is too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._done.append(
            Request(
                method=self._parser.get_method().decode("latin-1"),
                path=urlsplit(self._url.decode("latin-1")).path or "/",
                headers=self._headers,
                body=b"".join(self._body),
                keep_alive=bool(self._parser.should_keep_alive()),
            )
        )
        self._body = []


def response(status: int, body: bytes, headers: Headers, *, keep_alive: bool) -> bytes:
    """A whole response with its length."""
    return _head(status, [*headers, ("Content-Length", str(len(body)))], keep_alive=keep_alive) + body


def stream_head(headers: Headers, *, keep_alive: bool) -> bytes:
    """The head of a chunked event stream."""
    return _head(200, [*headers, ("Transfer-Encoding", "chunked")], keep_alive=keep_alive)


def _head(status: int, headers: Headers, *, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", *(f"{name}: {value}" for name, value in headers)]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
