"""The site's address, and that a token may be sent there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from flatout.net import is_loopback
from flatout.publish.errors import PublishError

VARIABLE: Final = "FLATOUT_SITE"
DEFAULT: Final = "http://127.0.0.1:8321"


def site(typed: str | None, environment: Mapping[str, str], *, insecure_http: bool = False) -> str:
    """The site's address without a slash at its end: as typed, else FLATOUT_SITE, else one on this machine.

    Raises PublishError: no address, or plain HTTP to another machine, where anybody on the way could read the token.
    """
    given = (typed or environment.get(VARIABLE) or DEFAULT).strip()
    source = "--to" if typed else VARIABLE if environment.get(VARIABLE) else "the default"
    text = given if "://" in given else f"https://{given}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or parts.scheme not in ("http", "https") or port == 0 or not text.isascii() or not text.isprintable():
        raise PublishError(f"{source}: it takes the site's address, such as https://speed.example.org")
    if parts.username is not None or parts.query or parts.fragment or " " in text:
        raise PublishError(f"{source}: the site's address has no user, password, ? or #")
    if parts.scheme == "http" and not is_loopback(host) and not insecure_http:
        raise PublishError(
            f"{host} would get the token over plain HTTP, where anybody on the way can read it: use https://, or, on a "
            "network that you trust, --insecure-http"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
