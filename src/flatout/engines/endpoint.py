"""Where the server is: the user's URL, key and headers as one checked value. Pure: nothing is sent."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast
from urllib.parse import SplitResult, unquote, urlsplit

from flatout.engines.base import TargetError
from flatout.net import host_port, is_loopback

_CALLS: Final = ("/chat/completions", "/completions", "/models", "/responses", "/embeddings")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OPENAI: Final = ("https", "api.openai.com", 443)
_OWN_HEADERS: Final = ("host", "content-length", "transfer-encoding", "connection", "content-type", "accept")


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """An HTTP proxy. `authorization` is the value of Proxy-Authorization, or None."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go. `base_path` is what stands before `/chat/completions` ("/v1"); `headers` include the key."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base_path: str = "/v1"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str | None = None
    insecure: bool = False
    proxy: ProxyAddress | None = None

    @property
    def root_path(self) -> str:
        """The base path without its trailing `/v1`: an engine's own endpoints (/metrics, /props) hang there."""
        return self.base_path.removesuffix("/v1")

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{host_port(self.host, self.port)}"

    @property
    def url(self) -> str:
        return self.origin + self.base_path


def parse_address(
    url: str,
    *,
    key: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    ca_file: str | None = None,
    insecure: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Address:
    """A URL as users type it (`localhost:8000`, `http://[::1]:8000/v1`, a pasted `…/v1/chat/completions`).

    Credentials in the URL become a Basic `Authorization`, unless a key or header gives another. `environ` (default:
    the process's) supplies the proxy. Raises TargetError with the reason if it cannot be an HTTP server's address.
    """
    text = url.strip()
    if "://" not in text:
        text = "http://" + text
    parts = _split(text)
    scheme = cast("Literal['http', 'https']", parts.scheme)
    port = _port(parts) or (443 if scheme == "https" else 80)
    host = _host(parts.hostname or "")
    if ca_file is not None and not os.path.isfile(ca_file):  # noqa: PTH113
        raise TargetError("tls", f"--ca {ca_file}: there is no such file")
    return Address(
        scheme=scheme,
        host=host,
        port=port,
        base_path=_base_path(parts.path),
        headers=_headers(parts, key, headers),
        ca_file=ca_file,
        insecure=insecure,
        proxy=find_proxy(scheme, host, port, os.environ if environ is None else environ),
    )


def key_from_environment(url: str | None, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The API key that the environment holds for this server, and the name of its variable; (None, None) if none.

    FLATOUT_API_KEY is meant for whatever server is measured. OPENAI_API_KEY is the key to an account: it goes to
    https://api.openai.com, or to the server that OPENAI_BASE_URL names (same scheme, host and port), and nowhere else.
    """
    own = environ.get("FLATOUT_API_KEY", "").strip()
    if own:
        return own, "FLATOUT_API_KEY"
    key = environ.get("OPENAI_API_KEY", "").strip()
    here = _origin(url or "")
    if key and here is not None and here in (_OPENAI, _origin(environ.get("OPENAI_BASE_URL", ""))):
        return key, "OPENAI_API_KEY"
    return None, None


def _origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL as users type it; None where it is no URL of a server."""
    try:
        address = parse_address(url, environ={})
    except TargetError:
        return None
    return address.scheme, address.host.lower().rstrip("."), address.port


def _split(text: str) -> SplitResult:
    shown = re.sub(r"//[^/@]*@", "//", text)
    try:
        parts = urlsplit(text)
        hostname = parts.hostname
    except ValueError as error:
        raise TargetError("not_a_server", f"{shown!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise TargetError("not_a_server", f"{shown!r} is not an http:// or https:// URL")
    if parts.query or parts.fragment:
        raise TargetError(
            "not_a_server", f"{shown.partition('?')[0]!r} is followed by ?… or #…, which has no place here"
        )
    if not hostname:
        raise TargetError("not_a_server", f"{shown!r} names no host; give something like http://localhost:8000")
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError as error:
        raise TargetError("not_a_server", f"the port in {parts.scheme}://{parts.hostname} is no number") from error
    if port == 0:
        raise TargetError("not_a_server", "port 0 is no port that a server listens on")
    return port


def _host(host: str) -> str:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host.split("%")[0])
        except ValueError as error:
            raise TargetError("not_a_server", f"{host!r} is not an IPv6 address") from error
        return host
    try:
        name = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError as error:
        raise TargetError("not_a_server", f"{host!r} is not a host name") from error
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
        raise TargetError("not_a_server", f"{host!r} is not a host name")
    return name


def _base_path(path: str) -> str:
    """The API's base path. Without any path it is /v1, as everywhere; a pasted call's path is cut off."""
    path = re.sub(r"/{2,}", "/", path).rstrip("/")
    for call in _CALLS:
        path = path.removesuffix(call)
    if not re.fullmatch(r"[\x21-\x7e]*", path):
        raise TargetError("not_a_server", f"the path {path!r} has characters that a URL may not have")
    return path or "/v1"


def _headers(parts: SplitResult, key: str | None, given: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    headers: list[tuple[str, str]] = []
    for name, value in given:
        if not _HEADER_NAME.fullmatch(name):
            raise TargetError("not_a_server", f"{name!r} is not a header name; write --header 'Name: value'")
        if name.lower() in _OWN_HEADERS:
            raise TargetError("not_a_server", f"the header {name} is flatout's own and cannot be set")
        headers.append((name, _value(value, f"the header {name}")))
    has_auth = any(name.lower() == "authorization" for name, _ in headers)
    if key is not None and key.strip():
        if has_auth:
            raise TargetError("auth", "both an API key and an Authorization header were given; give one")
        headers.insert(0, ("Authorization", f"Bearer {_value(key.strip(), 'the API key')}"))
    elif parts.username and not has_auth:
        headers.insert(0, ("Authorization", _basic(parts.username, parts.password)))
    return tuple(headers)


def _value(value: str, what: str) -> str:
    value = value.strip()
    if not all(" " <= c <= "~" or c == "\t" for c in value):
        raise TargetError("auth", f"{what} has characters that HTTP headers cannot carry (a line end, or not ASCII)")
    return value


def _basic(username: str, password: str | None) -> str:
    return "Basic " + base64.b64encode(f"{unquote(username)}:{unquote(password or '')}".encode()).decode()


def find_proxy(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> ProxyAddress | None:
    """The proxy that the environment names for this server, as curl reads it; None for loopback and NO_PROXY.

    Raises TargetError for a proxy that is not plain HTTP (SOCKS, HTTPS), naming the variable.
    """
    if is_loopback(host) or _excluded(host, port, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    # Upper-case HTTP_PROXY can be set by a remote client where flatout runs under CGI; curl ignores it for that reason.
    own = ("http_proxy",) if scheme == "http" else ("https_proxy", "HTTPS_PROXY")
    for name in (*own, "all_proxy", "ALL_PROXY"):
        if environ.get(name):
            return _proxy(environ[name], name)
    return None


def _proxy(text: str, variable: str) -> ProxyAddress:
    try:
        parts = urlsplit(text if "://" in text else "http://" + text)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise TargetError("not_a_server", f"the proxy in {variable} is not a URL") from error
    if parts.scheme != "http" or not host:
        raise TargetError(
            "not_a_server",
            f"the proxy in {variable} is of kind {parts.scheme!r}; flatout speaks to plain HTTP proxies only: "
            f"unset it, or name this server in NO_PROXY",
        )
    authorization = _basic(parts.username, parts.password) if parts.username else None
    return ProxyAddress(host, port, authorization)


def _excluded(host: str, port: int, no_proxy: str) -> bool:
    """NO_PROXY: `*`, names (with all below them), addresses, networks; each with an optional port."""
    host = host.lower().rstrip(".")
    for entry in (e.strip().lower() for e in no_proxy.split(",")):
        if not entry:
            continue
        if entry == "*" or _in_network(host, entry):
            return True
        name, _, entry_port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
        if entry_port and entry_port != str(port):
            continue
        name = name.removeprefix("*").lstrip(".").strip("[]")
        if name and (host == name or host.endswith("." + name)):
            return True
    return False


def _in_network(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
