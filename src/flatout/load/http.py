"""HTTP/1.1 on the wire: what is sent, and what an answer's head and status mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flatout import __version__
from flatout.load.job import RID_WIDTH, Endpoint
from flatout.net import host_port
from flatout.protocol import KEPT_CHARS, error_words, shorten

_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


def request_head(endpoint: Endpoint) -> bytes:
    """Everything before the value of Content-Length. Raises ValueError for a header or path that HTTP cannot carry."""
    authority = host_port(endpoint.host, endpoint.port, endpoint.scheme)
    target = endpoint.path
    headers = [("Host", authority)]
    if endpoint.proxy is not None and endpoint.scheme == "http":
        target = f"http://{authority}{endpoint.path}"
        if endpoint.proxy.authorization is not None:
            headers.append(("Proxy-Authorization", endpoint.proxy.authorization))
    given = {name.lower() for name, _ in endpoint.headers}
    defaults = (
        ("User-Agent", f"flatout/{__version__}"),
        ("Accept", "text/event-stream"),
        ("Content-Type", "application/json"),
    )
    headers += [(n, v) for n, v in defaults if n.lower() not in given]
    headers += [(n, v) for n, v in endpoint.headers if n.lower() not in _OURS]
    if not target.isascii() or any(c.isspace() or not c.isprintable() for c in target):
        raise ValueError(f"the path {target!r} cannot stand in a request: encode it with percent signs")
    return b"".join([f"POST {target} HTTP/1.1\r\n".encode(), _lines(headers), b"Content-Length: "])


def connect_head(endpoint: Endpoint) -> bytes:
    """The CONNECT request that opens a tunnel through the proxy."""
    authority = host_port(endpoint.host, endpoint.port)
    headers = [("Host", authority), ("User-Agent", f"flatout/{__version__}")]
    if endpoint.proxy is not None and endpoint.proxy.authorization is not None:
        headers.append(("Proxy-Authorization", endpoint.proxy.authorization))
    return b"".join([f"CONNECT {authority} HTTP/1.1\r\n".encode(), _lines(headers), b"\r\n"])


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    lines = []
    for name, value in headers:
        if not name or not set(name) <= _TOKEN:
            raise ValueError(f"{name!r} is no name for an HTTP header")
        if any(c in value for c in "\r\n\0"):
            raise ValueError(f"the value of the header {name} has a line break in it")
        try:
            lines.append(f"{name}: {value.strip()}\r\n".encode("latin-1"))
        except UnicodeEncodeError:
            raise ValueError(f"the value of the header {name} has characters that HTTP cannot carry") from None
    return b"".join(lines)


def request_id(prefix: str, stream: int, number: int) -> str:
    """An id of RID_WIDTH characters, unique to the stream and its request number under one prefix."""
    tail = f"-{stream}-{number}"
    room = RID_WIDTH - len(tail)
    return prefix[:room].ljust(room, "0") + tail


def request_bytes(head: bytes, body: bytes, rid_offset: int, rid: str) -> bytes:
    """One request, with its id written over the placeholder in the body."""
    start = head + b"%d\r\n\r\n" % len(body)
    if rid_offset < 0:
        return start + body
    return b"".join([start, body[:rid_offset], rid.encode(), body[rid_offset + RID_WIDTH :]])


def status_words(status: int, location: str | None, body: bytes) -> str:
    """A sentence for an answer whose status is not 200, with the server's own words at its end.

    Up to KEPT_CHARS of them: to be redacted, and only then cut, before the sentence is shown.
    """
    if 300 <= status < 400 and location:
        where = shorten(location.encode(), KEPT_CHARS)
        return f"HTTP {status} (give the address in it instead): the server redirects to {where}"
    words = error_words(body) if body.strip() else "no further words"
    hint = {401: " (is the API key right?)", 403: " (is the API key right?)", 404: " (is the path or the model right?)"}
    return f"HTTP {status}{hint.get(status, '')}: {words}"
