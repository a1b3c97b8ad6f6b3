"""What every request passes on its way in, outermost first: headers of every answer, faults, who asks, under which
name, how often, and how much of a body comes how slowly. Plain ASGI: nothing is read or kept that need not be."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import socket
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.sessions import Session, SessionMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flatout.net import is_loopback
from flatout.site.problems import Refusal, anything, too_large
from flatout.site.settings import Settings
from flatout.site.state import address
from flatout.site.throttle import Throttle

API: Final = "/api/"
PUBLISH: Final = "/api/v1/runs"
FORM_BYTES: Final = 64 * 1024  # everything but a published run fits in here
LONGEST_URL: Final = 8_192
IDLE_S: Final = 20.0  # longest silence while a body comes in
GRACE_S: Final = 20.0
SLOWEST_BYTES_S: Final = 32 * 1024  # a body may take the grace and the time that its bytes take at this rate

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), browsing-topics=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}
CSP: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def stack(settings: Settings, throttle: Throttle) -> list[Middleware]:
    """The middleware in order."""
    return [
        Middleware(AnswerHeaders, settings=settings),
        Middleware(Faults),
        Middleware(Clients, proxies=settings.proxies),
        Middleware(Hosts, settings=settings),
        Middleware(Rates, throttle=throttle),
        Middleware(Bodies, settings=settings),
        Middleware(PageSessions, settings=settings),
    ]


class Layer:
    """One of them: requests pass `request`, the server's own messages pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.request if scope["type"] == "http" else self.app)(scope, receive, send)

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class AnswerHeaders(Layer):
    """Puts the headers that protect a visitor onto every answer; a page may bring its own policy."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self.open = settings.public
        # A site for oneself or a team is not to be read by whatever other page is open in the browser.
        self.always = {**HEADERS, "Cross-Origin-Resource-Policy": "cross-origin" if self.open else "same-origin"}
        if settings.secure:
            self.always["Strict-Transport-Security"] = "max-age=31536000"

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = scope["path"].startswith(API)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self.always)
                headers.setdefault("Content-Security-Policy", CSP)
                headers.setdefault("Cache-Control", "no-store" if api else "private, no-cache")
                if api and self.open and scope["method"] in ("GET", "HEAD"):
                    headers["Access-Control-Allow-Origin"] = "*"
            await send(message)

        await self.app(scope, receive, sending)


class Faults(Layer):
    """Errors that no route answered, and those of the middleware further in, become an answer with words."""

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            scope.setdefault("session", Session())  # what was refused before the session was read has an empty one
            response = anything(Request(scope), error)
            if not started:  # else the server closes the connection, which is what a cut answer must look like
                await response(scope, receive, send)


class Clients(Layer):
    """Who asks: the peer, or whom a proxy that is believed names. The nearest address that is no proxy of ours counts;
    what stands before it in X-Forwarded-For, the visitor may have made up."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        super().__init__(app)
        self.all = "*" in proxies
        self.networks = [ipaddress.ip_network(_bare(word) or word, strict=False) for word in proxies if word != "*"]

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = (scope.get("client") or ("", 0))[0]
        if self._ours(peer):
            scope = {**scope, **self._forwarded(Headers(scope=scope), peer, scope["scheme"])}
        await self.app(scope, receive, send)

    def _forwarded(self, headers: Headers, peer: str, scheme: str) -> dict[str, Any]:
        hops = [_bare(word) for line in headers.getlist("x-forwarded-for") for word in line.split(",")]
        client = peer
        for hop in reversed(hops):
            if hop is None:
                break
            client = hop
            if not self._ours(hop) or self.all:
                break
        proto = headers.getlist("x-forwarded-proto")[-1:] or [scheme]
        named = proto[0].rpartition(",")[2].strip().lower()
        kept = [(name, value) for name, value in headers.raw if name != b"x-forwarded-host"]
        if host := headers.getlist("x-forwarded-host"):
            name = host[-1].rpartition(",")[2].strip()
            kept = [(n, v) for n, v in kept if n != b"host"] + [(b"host", name.encode("latin-1"))]
        return {"client": (client, 0), "scheme": named if named in ("http", "https") else scheme, "headers": kept}

    def _ours(self, address: str) -> bool:
        if self.all:
            return True
        known = _bare(address)
        return known is not None and any(ipaddress.ip_address(known) in network for network in self.networks)


class Hosts(Layer):
    """Answers only to the site's own name. In public, a foreign one could poison links and caches; at home and in a
    network, it is how a web page reaches into this machine (DNS rebinding). A site for a network has this machine's
    names, too, and the address that the request came to."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self.shared = not settings.public and not is_loopback(settings.host)
        self.own = {(urlsplit(settings.base_url).hostname or "").lower()}
        self.words = f"This site answers at {settings.base_url} only."
        if self.shared:
            self.own |= _machine_names()
            self.words = (
                f"This site answers at {settings.base_url}, and at this machine's own name and address. For another "
                "name, its operator starts it with --base-url http://NAME:PORT."
            )

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1:
            raise Refusal(400, "The request must name one host.")
        if not self._is_own(hosts[0], scope):
            raise Refusal(421, self.words)
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
        if len(path) + len(scope.get("query_string", b"")) > LONGEST_URL:
            raise Refusal(414, f"An address here has at most {LONGEST_URL:,} characters.")
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            raise Refusal(400, "The address holds a character that no text has.")
        await self.app(scope, receive, send)

    def _is_own(self, host: str, scope: Scope) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.own or is_loopback(name):
            return True
        here = scope.get("server")  # where the connection came in: no web page can make that up
        return self.shared and here is not None and _bare(name) is not None and _bare(name) == _bare(str(here[0]))


class Rates(Layer):
    """Counts each address's requests. Files that never change and the check of life are free."""

    def __init__(self, app: ASGIApp, throttle: Throttle) -> None:
        super().__init__(app)
        self.throttle = throttle

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        free = scope["path"].startswith("/static/") or scope["path"] == "/healthz"
        left = None if free else self.throttle.check("requests", address(scope))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and left is not None:
                headers = MutableHeaders(scope=message)
                for name, value in left.headers().items():
                    headers.setdefault(name, value)  # a tighter limit, told by the route, stands
            await send(message)

        await self.app(scope, receive, sending)


class Bodies(Layer):
    """Ends a body that is too large, whatever its headers say, or comes too slowly."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self.record = settings.max_body_bytes
        self.both = settings.max_body_bytes + settings.max_samples_bytes + FORM_BYTES

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._limit(scope)
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Refusal(400, "The request's Content-Length is no number.")
        if len(length) > 15 or int(length) > limit:
            raise too_large(limit)
        got, ended, begun = 0, False, time.monotonic()

        async def receiving() -> Message:
            nonlocal got, ended
            if ended:  # now only the end of the connection is waited for
                return await receive()
            total = begun + GRACE_S + got / SLOWEST_BYTES_S - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, min(IDLE_S, total)))
            except TimeoutError as error:
                raise Refusal(408, "The content came too slowly; send it again over a better connection.") from error
            got += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if got > limit:
                raise too_large(limit)
            return message

        await self.app(scope, receiving, send)

    def _limit(self, scope: Scope) -> int:
        if scope["path"].rstrip("/") != PUBLISH or scope["method"] != "POST":
            return FORM_BYTES
        kind = Headers(scope=scope).get("content-type", "").lower()
        return self.both if kind.startswith("multipart/") else self.record


class PageSessions(Layer):
    """Signed cookies for pages alone: the API takes tokens, never a cookie."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        key = hashlib.sha256(b"flatout session\0" + settings.secret.encode()).hexdigest()
        self.with_session = SessionMiddleware(
            app, key, session_cookie=cookie(settings), same_site="lax", https_only=settings.secure
        )

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = scope["path"].startswith((API, "/static/")) or scope["path"] == "/healthz"
        await (self.app if plain else self.with_session)(scope, receive, send)


def cookie(settings: Settings) -> str:
    """The session cookie's name. With this prefix browsers take it from the very host and over HTTPS alone: a
    neighbour's page below the same domain cannot plant one."""
    return "__Host-flatout_session" if settings.secure else "flatout_session"


def _machine_names() -> set[str]:
    """What this machine is called by its neighbours."""
    name = socket.gethostname().rstrip(".").lower()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"} - {"", ".local"}


def _bare(word: str) -> str | None:
    """The address in one word of X-Forwarded-For, which may come with a port; None if it is none. An IPv4 address in
    IPv6's clothes (::ffff:127.0.0.1, as a socket for both has them) is itself."""
    text = word.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
