"""What would be unsafe in a site that everybody can reach: `flatout site --public` refuses to start with any of it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from flatout.net import is_loopback
from flatout.site.settings import Settings

SECRET_CHARS: Final = 32
SECRET_DISTINCT: Final = 12
_WORDS: Final = re.compile(r"(?i)change|secret|password|example|flatout|default|qwerty|123456|abcdef|letmein")
_MAKE_ONE: Final = "python3 -c 'import secrets; print(secrets.token_urlsafe(48))' > FILE; chmod 600 FILE"


def unsafe(settings: Settings) -> list[str]:
    """What must change before the site may be public, one sentence each with what to type; empty: nothing."""
    return [*_secret(settings), *_reach(settings), *_limits(settings), *_local(settings)]


def _secret(settings: Settings) -> Iterator[str]:
    """The secret signs the cookies: who can guess or read it can sign in as anybody."""
    secret = settings.secret
    if not secret:
        yield f"there is no secret: make one ({_MAKE_ONE}) and name it with --secret-file FILE"
        return
    if len(secret) < SECRET_CHARS:
        yield f"the secret has {len(secret)} characters; it takes {SECRET_CHARS} random ones: {_MAKE_ONE}"
    elif len(set(secret)) < SECRET_DISTINCT or _WORDS.search(secret) or _repeats(secret):
        yield f"the secret looks made up, not random: {_MAKE_ONE}"
    path = settings.secret_file
    if path is None:
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        yield f"the secret's file {path} cannot be looked at ({error.strerror}): name it with --secret-file FILE"
        return
    if mode & 0o007:
        yield f"every user of this machine may read or change the secret: chmod 600 {path}"


def _repeats(text: str) -> bool:
    """The text is a shorter one said again and again."""
    return (text + text).find(text, 1) < len(text)


def _reach(settings: Settings) -> Iterator[str]:
    parts = urlsplit(settings.base_url)
    if not settings.secure:
        yield (
            f"the site's address {settings.base_url} is not https, so tokens and cookies could be read on the way: put "
            "a proxy with TLS in front and give --base-url https://NAME"
        )
    if not _real_name(parts.hostname or ""):
        yield (
            f"the site's address {settings.base_url} is no name that others can reach, and requests are checked "
            "against it: give --base-url https://NAME"
        )
    if not settings.proxies:
        yield (
            "no proxy is named, so all visitors would share its address and its limits: give --proxy with the address "
            "that the proxy connects from, such as --proxy 127.0.0.1"
        )
    if any(_everybody(proxy) for proxy in settings.proxies):
        yield "--proxy names everybody, so a visitor could pretend any address: name the proxy's own address"


def _real_name(host: str) -> bool:
    if is_loopback(host) or "." not in host:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _everybody(proxy: str) -> bool:
    return proxy == "*" or ipaddress.ip_network(proxy, strict=False).prefixlen == 0


def _limits(settings: Settings) -> Iterator[str]:
    if settings.publish_per_hour == 0:
        more = ", and anybody can make an account (--registration open)" if settings.registration == "open" else ""
        yield f"publishing has no limit{more}: give --publish-per-hour, such as 60"
    if settings.requests_per_minute == 0:
        yield "requests have no limit: give --requests-per-minute, such as 600"
    if settings.comparisons_per_minute == 0:
        yield "comparisons have no limit: give --comparisons-per-minute, such as 30"


def _local(settings: Settings) -> Iterator[str]:
    if settings.debug:
        yield "debug shows the site's insides to visitors: leave it out"
    if settings.results_dir is not None:
        yield "results that are picked up would be public at once: leave --results out and use flatout publish"
