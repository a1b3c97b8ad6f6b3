"""The control connection: models, metrics, tokenize, the probe. Every failure becomes one sentence for the user."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from flatout import __version__
from flatout.engines.base import TargetError
from flatout.engines.endpoint import Address
from flatout.engines.redact import Redactor, tidy
from flatout.engines.wire import Connections, HandshakeTimeout, Stopped, Until
from flatout.net import host_port, retry_after_s, tls_context
from flatout.protocol import DONE, KEPT_CHARS, Splitter, error_words, shorten

MAX_BYTES: Final = 8 * 1024 * 1024
"""No answer to a control call is larger; a server that sends more is cut off."""

_SECRET_HEADER: Final = re.compile(r"(?i)auth|key|token|secret|cookie|password|credential")
_OPAQUE: Final = re.compile(r"[^\s]{20,}")
_ABSENT: Final = frozenset({400, 403, 404, 405, 406, 415, 422, 501})
"""Statuses that say: this server has no such call, or not in the way it runs."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, whatever its status. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


FAILURES: Final = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    OSError,  # also of TLS
)


class RateLimited(TargetError):
    """The server said 429 (or 503 with Retry-After). `retry_after_s` is what it asked for, None if it did not say."""

    def __init__(self, message: str, *, status: int, words: str | None, retry_after_s: float | None) -> None:
        super().__init__("rate_limited", message, status=status, words=words)
        self.retry_after_s = retry_after_s


class ControlClient:
    """A small HTTP client for one server; safe to use from several threads. Close it after use.

    `timeout_s` bounds each call as a whole, `connect_timeout_s` its connecting (with TLS). `stopping`, which may be set
    and taken away at any time, is asked before each call and in every wait of it: once it is true, calls raise
    TargetError of the kind "stopped".
    """

    def __init__(
        self,
        address: Address,
        *,
        redactor: Redactor | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 10.0,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        self.address = address
        self.redactor = redactor or Redactor(secrets=header_secrets(address))
        self.timeout_s = timeout_s
        self.connect_timeout_s = connect_timeout_s
        self.stopping = stopping
        self._connections = Connections(_tls(address), _proxy(address), most=16)
        given = {name.lower() for name, _ in address.headers}
        ours = (("User-Agent", f"flatout/{__version__}"), ("Accept", "*/*"), ("Accept-Encoding", "identity"))
        self._headers = [("Host", host_port(address.host, address.port, address.scheme)), *address.headers]
        self._headers += [(name, value) for name, value in ours if name.lower() not in given]

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self, method: str, path: str, *, api: bool = False, body: object = None, timeout_s: float | None = None
    ) -> Reply:
        """One call, below the API's base path (`api`) or the server's root. Any status is an answer.

        Raises TargetError where no complete answer came: refused, dns, tls, timeout, not_a_server, protocol, stopped.
        """
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        url = self._url(path, api)
        with self._open(method, url, data, timeout_s) as (response, deadline):
            return Reply(response.status, _lower(response), self._read(response, url, deadline))

    def json(
        self, method: str, path: str, *, api: bool = False, body: object = None, timeout_s: float | None = None
    ) -> Any:
        """The JSON of a 2xx answer; raises TargetError for everything else."""
        reply = self.request(method, path, api=api, body=body, timeout_s=timeout_s)
        self.raise_for(reply, self._url(path, api))
        return self.decode(reply, self._url(path, api))

    def ask(
        self, method: str, path: str, *, api: bool = False, body: object = None, timeout_s: float | None = None
    ) -> Any | None:
        """JSON, or None where the server has no such call, not in this mode, or answers something else than JSON.

        Raises TargetError where it should have one but did not answer: transport failures, 401, 429, 5xx.
        """
        reply = self.request(method, path, api=api, body=body, timeout_s=timeout_s)
        if reply.status in _ABSENT or 300 <= reply.status < 400:
            return None
        self.raise_for(reply, self._url(path, api))
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            return None

    def events(self, path: str, body: bytes, *, timeout_s: float = 120.0) -> Iterator[bytes]:
        """The data of each server-sent event of one streamed API call, without `[DONE]`.

        `timeout_s` bounds the whole stream. Raises TargetError (with `status` and `words`) if it is refused, is not
        a stream, or breaks off.
        """
        url = self._url(path, True)
        with self._open("POST", url, body, timeout_s) as (response, deadline):
            if response.status != 200:
                reply = Reply(response.status, _lower(response), self._read(response, url, deadline))
                self.raise_for(reply, url)
                raise TargetError("http", f"{url} answered {reply.status} instead of a stream", status=reply.status)
            if "json" in _lower(response).get("content-type", ""):
                words = self.tidy(error_words(self._read(response, url, deadline)))
                message = f"{self.shown(url)} does not stream; it answered with one JSON document. It says: {words}"
                raise TargetError("protocol", message, status=200, words=words)
            yield from self._sse(response, url, deadline)

    def raise_if_stopped(self) -> None:
        """Raises TargetError ("stopped") once `stopping` says so."""
        if self.stopping is not None and self.stopping():
            raise TargetError("stopped", f"stopped before {self.address.origin} had answered all that was asked")

    def raise_for(self, reply: Reply, url: str) -> None:
        """Raises the TargetError that fits the status of `reply`; returns for 2xx."""
        if 200 <= reply.status < 300:
            return
        words = self.words(reply)
        said = f" It says: {words}" if words else ""
        status, where = reply.status, self.shown(url)
        if 300 <= status < 400:
            to = self.tidy(reply.headers.get("location", "elsewhere"))
            raise TargetError("http", f"{where} redirects to {to}; give flatout that URL instead", status=status)
        if status in (401, 403):
            hint = "the API key is wrong" if self._has_key() else "it wants an API key: give one with --api-key"
            raise TargetError("auth", f"{where} answered {status}: {hint}.{said}", status=status, words=words)
        if status == 407:
            raise TargetError("auth", f"the proxy wants a user and password (407) for {where}.{said}", status=status)
        if status == 429 or (status == 503 and "retry-after" in reply.headers):
            raise RateLimited(
                f"{where} answered {status}: too many requests for it now.{said}",
                status=status,
                words=words,
                retry_after_s=retry_after_s(reply.headers),
            )
        kind, meaning = _meaning(status)
        raise TargetError(kind, f"{where} answered {status}{meaning}.{said}", status=status, words=words)

    def words(self, reply: Reply) -> str | None:
        """The server's own words in an error, redacted and shortened; None for an empty or HTML body."""
        if not reply.content.strip() or _is_html(reply):
            return None
        return self.tidy(error_words(reply.content)) or None

    def tidy(self, text: str, limit: int = 300) -> str:
        """Words of the server on one line, redacted first and then shortened."""
        return tidy(text, self.redactor.text, limit)

    def shown(self, url: str) -> str:
        """A URL of this server for a message: as the user gave it, but for secrets in its path."""
        return self.address.origin + self.redactor.text(url.removeprefix(self.address.origin))

    def _has_key(self) -> bool:
        return any(name.lower() in ("authorization", "api-key", "x-api-key") for name, _ in self.address.headers)

    def _url(self, path: str, api: bool) -> str:
        return self.address.origin + (self.address.base_path if api else self.address.root_path) + path

    def decode(self, reply: Reply, url: str) -> Any:
        """The JSON of a reply; raises TargetError (not_a_server) with what came instead."""
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError) as error:
            if _is_html(reply):
                what = "answers with a web page, not JSON: this is not an OpenAI-compatible server, or not its API path"
            else:
                what = f"answers something that is not JSON ({self.tidy(shorten(reply.content, KEPT_CHARS), 80)!r})"
            raise TargetError("not_a_server", f"{self.shown(url)} {what}", status=reply.status) from error

    @contextlib.contextmanager
    def _open(
        self, method: str, url: str, data: bytes | None, timeout_s: float | None
    ) -> Iterator[tuple[httpcore.Response, float]]:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        until = Until(limit_s, self.stopping)
        connect = Until(min(limit_s, self.connect_timeout_s), self.stopping)
        headers = [*self._headers, ("Content-Length", str(len(data or b"")))] if method != "GET" else self._headers
        headers = [*headers, ("Content-Type", "application/json")] if data is not None else headers
        try:
            response = self._connections.request(method, url, headers, data or b"", connect=connect, until=until)
            with contextlib.closing(response):
                yield response, until.end_s
        except Stopped as stopped:
            raise TargetError("stopped", f"stopped before {self.shown(url)} had answered") from stopped
        except FAILURES as error:
            raise self._explain(error, method, url, limit_s) from error

    def _chunks(self, response: httpcore.Response, url: str, deadline: float) -> Iterator[bytes]:
        size = 0
        for chunk in response.iter_stream():
            size += len(chunk)
            if size > MAX_BYTES:
                raise TargetError("protocol", f"{self.shown(url)} sent over {MAX_BYTES >> 20} MB; cut off")
            if time.monotonic() > deadline:
                raise httpcore.ReadTimeout("the whole answer took too long")
            yield chunk

    def _read(self, response: httpcore.Response, url: str, deadline: float) -> bytes:
        if _lower(response).get("content-encoding", "identity").lower() not in ("", "identity"):
            raise TargetError("protocol", f"{self.shown(url)} sends compressed answers though asked not to")
        return b"".join(self._chunks(response, url, deadline))

    def _sse(self, response: httpcore.Response, url: str, deadline: float) -> Iterator[bytes]:
        splitter = Splitter()
        for chunk in itertools.chain(
            self._chunks(response, url, deadline), (b"\n\n",)
        ):  # the last event's end may be missing
            for event in splitter.feed(chunk):
                if event.strip() == DONE:
                    return
                yield event

    def _explain(self, error: BaseException, method: str, url: str, limit_s: float) -> TargetError:
        where = self.shown(url)
        causes = list(_causes(error))
        if any(isinstance(c, ssl.SSLError) for c in causes):
            return _explain_tls(causes, self.address, where)
        if isinstance(error, httpcore.ProxyError):
            return TargetError("http", f"the proxy did not let {where} through: {self.tidy(str(error))}")
        connect_s = min(limit_s, self.connect_timeout_s)
        if any(isinstance(c, HandshakeTimeout) for c in causes):
            return TargetError(
                "timeout",
                f"{where} took the connection, but the TLS handshake did not finish within {connect_s:g} s; is it an "
                "http:// server, or overloaded?",
            )
        if isinstance(error, httpcore.ConnectTimeout):
            return TargetError("timeout", f"no connection to {where} within {connect_s:g} s; is the host right?")
        if isinstance(error, httpcore.TimeoutException):
            return TargetError("timeout", f"no full answer to {method} {where} within {limit_s:g} s")
        if any(isinstance(c, socket.gaierror) for c in causes):
            return TargetError("dns", f"the host name {self._peer()!r} is not known (DNS); check the URL")
        if isinstance(error, httpcore.ConnectError):
            return self._explain_connect(causes, where)
        if isinstance(error, httpcore.RemoteProtocolError):
            if "disconnected" in str(error) or "incomplete" in str(error) or "peer closed" in str(error):
                message = (
                    f"{where} closed the connection before a full answer; is it still starting, or an https server?"
                )
                return TargetError("protocol", message)
            if "SWITCH" in str(error):  # h11's name for it
                message = f"{where} switches to another protocol (101), which nothing asked for: it is no API server"
                return TargetError("not_a_server", message)
            return TargetError("not_a_server", f"what answers at {where} does not speak HTTP ({self.tidy(str(error))})")
        return TargetError("protocol", f"the connection to {where} broke: {self.tidy(str(error) or repr(error))}")

    def _explain_connect(self, causes: list[BaseException], where: str) -> TargetError:
        if any(isinstance(c, ConnectionRefusedError) for c in causes):
            through = f" (through the proxy {self._peer()})" if self.address.proxy else ""
            return TargetError(
                "refused", f"nothing listens at {where}{through}; is the server running, and the port right?"
            )
        reason = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), str(causes[0]))
        return TargetError("refused", f"no connection to {where}: {reason}")

    def _peer(self) -> str:
        return self.address.proxy.host if self.address.proxy else self.address.host


def header_secrets(address: Address) -> tuple[str, ...]:
    """What must never be shown of an address: keys and opaque header values, with and without their scheme, and logins.

    A header such as `X-Team: blue` is no secret: taking "blue" out of every message would only harm them.
    """
    values = [value for name, value in address.headers if _SECRET_HEADER.search(name) or _OPAQUE.fullmatch(value)]
    if address.proxy is not None and address.proxy.authorization:
        values.append(address.proxy.authorization)
    found: list[str] = []
    for value in values:
        scheme, _, rest = value.partition(" ")
        found += [value, rest]
        if scheme.lower() == "basic":
            with contextlib.suppress(ValueError):
                found.append(base64.b64decode(rest, validate=True).decode("utf-8", "replace").partition(":")[2])
    return tuple(dict.fromkeys(secret for secret in found if len(secret) >= 4))


def _meaning(status: int) -> tuple[str, str]:
    if status == 404:
        return "not_found", ": there is no such path (not an OpenAI-compatible server, or another base URL)"
    if status == 503:
        return "unavailable", ": it is not ready (loading, or overloaded)"
    if status >= 500:
        return "http", ": the server failed"
    return "http", ": it refuses this request"


def _proxy(address: Address) -> tuple[str, list[tuple[bytes, bytes]]] | None:
    if address.proxy is None:
        return None
    login = address.proxy.authorization
    headers = [(b"Proxy-Authorization", login.encode())] if login else []
    return f"http://{host_port(address.proxy.host, address.proxy.port)}", headers


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.scheme == "http":
        return None
    try:
        return tls_context(address.ca_file, insecure=address.insecure)
    except OSError as error:
        raise TargetError("tls", f"--ca {address.ca_file} is no file of PEM certificates ({error})") from error


def _explain_tls(causes: list[BaseException], address: Address, where: str) -> TargetError:
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message or str(cause)
            if cause.verify_code in (18, 19, 20, 21):  # self-signed, or by a CA that is not known here
                hint = "give its CA with --ca FILE, or --insecure to go on without checking"
            elif cause.verify_code in (62, 64):
                hint = "use the name that the certificate is for, or --insecure to go on without checking"
            else:
                hint = "--insecure goes on without checking"
            return TargetError("tls", f"the TLS certificate of {where} cannot be trusted ({why}): {hint}")
    reason = next((c.reason for c in causes if isinstance(c, ssl.SSLError) and c.reason), None) or str(causes[0])
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return TargetError("tls", f"{where} does not speak TLS ({reason}); is it an http:// server?")
    hint = "; is it an http:// server?" if "EOF" in reason else ""
    return TargetError("tls", f"TLS with {where} failed ({reason}){hint}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _lower(response: httpcore.Response) -> dict[str, str]:
    """The headers, names in lower case; of several of one name all, as one list (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _is_html(reply: Reply) -> bool:
    start = reply.content[:200].lstrip().lower()
    return "html" in reply.headers.get("content-type", "") or start.startswith((b"<!doctype", b"<html"))
