"""Where a record is published, and as whom: the site's address, and the token that may be sent there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flatout.net import is_loopback

SITE_VARIABLE: Final = "FLATOUT_SITE"
DEFAULT_SITE: Final = "http://127.0.0.1:8321"
TOKEN_VARIABLE: Final = "FLATOUT_TOKEN"
_TOKEN_SHAPE: Final = re.compile(r"flatout_[A-Za-z0-9_-]{43}")


class PublishError(Exception):
    """The record cannot be published as asked; the text says why, whether anything was sent, and what to do."""


class SiteTrouble(PublishError):
    """The site did not answer, or refused. `status`: of its answer, None where there was none."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def site_url(typed: str | None, environment: Mapping[str, str], *, insecure_http: bool = False) -> str:
    """The site's address without a slash at its end: as typed, else FLATOUT_SITE, else one on this machine.

    Raises PublishError: no address, or plain HTTP to another machine, where anybody on the way could read the token.
    """
    given = (typed or environment.get(SITE_VARIABLE) or DEFAULT_SITE).strip()
    source = "--to" if typed else SITE_VARIABLE if environment.get(SITE_VARIABLE) else "the default"
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


def token_file(environment: Mapping[str, str]) -> Path:
    """The user's own token file."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "flatout" / "token"


def has_token(file: Path | None, environment: Mapping[str, str]) -> bool:
    return file is not None or bool(environment.get(TOKEN_VARIABLE)) or token_file(environment).exists()


def find_token(file: Path | None, environment: Mapping[str, str]) -> str:
    """The token from `file`, else from FLATOUT_TOKEN, else from the user's token file.

    Raises PublishError: there is none, it cannot be read, others can read it, or it is no token of a flatout site.
    """
    if file is None and environment.get(TOKEN_VARIABLE):
        return _checked(environment[TOKEN_VARIABLE].strip(), TOKEN_VARIABLE)
    own = token_file(environment)
    if file is None and not own.exists():
        raise PublishError(
            f"there is no token: make one on the site (Account) or there with 'flatout site token add NAME', then put "
            f"it into {own} (chmod 600), into {TOKEN_VARIABLE}, or into a file of --token-file. Nothing was sent"
        )
    return _read(file if file is not None else own)


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PublishError(f"the token file {path} cannot be read: {error.strerror}. Nothing was sent") from error
    except UnicodeDecodeError:
        raise PublishError(f"{path} holds no token: it is no text. Nothing was sent") from None
    if mode & 0o077:
        raise PublishError(f"other users may read the token in {path}: chmod 600 {path}. Nothing was sent")
    return _checked(text, str(path))


def _checked(text: str, source: str) -> str:
    """Another service's key must never reach a site by mistake."""
    if not _TOKEN_SHAPE.fullmatch(text):
        raise PublishError(
            f"what {source} holds is no token of a flatout site (flatout_ and 43 characters). Nothing was sent"
        )
    return text
