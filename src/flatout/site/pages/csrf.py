"""Forms come from our own pages only: a secret of the session in each, and the browser's own word on where it is."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from markupsafe import Markup

from flatout.site.errors import Forbidden, Refused

KEY: Final = "csrf"
MOST_BYTES: Final = 64 * 1024
MOST_FIELDS: Final = 60
AGAIN: Final = "Go back, load the page again and send the form once more."


def field(request: Request) -> Markup:
    """The hidden field that every form holds; the session keeps the same word."""
    word = request.session.get(KEY)
    if not isinstance(word, str):
        word = request.session[KEY] = secrets.token_urlsafe(24)
    return Markup('<input type="hidden" name="csrf" value="{}">').format(word)


async def posted(request: Request) -> Mapping[str, str]:
    """A form's fields, the first of each name. Raises Forbidden (it came from elsewhere) and Refused (no form, too
    large)."""
    check_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused("form", "The form came in a way that this site does not read. " + AGAIN)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refused("form", f"The form is too large: at most {MOST_BYTES // 1024} KiB.")
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise Refused("form", "The form cannot be read. " + AGAIN) from error
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields.setdefault(name, value)
    check_word(request.session.get(KEY), fields.get("csrf"))
    return fields


def check_word(kept: object, sent: str | None) -> None:
    """Raises Forbidden unless both are the same word."""
    if not isinstance(kept, str) or sent is None or not hmac.compare_digest(kept.encode(), sent.encode()):
        raise Forbidden("This form is not from a page of your present session. " + AGAIN)


def check_origin(request: Request) -> None:
    """Raises Forbidden where the browser says that another site sent the form. A browser that says nothing is believed
    to be an old one: the word in the form still guards."""
    word = request.headers.get("sec-fetch-site")
    if word is not None and word not in ("same-origin", "none"):
        raise Forbidden("The form was sent from another site. " + AGAIN)
    origin = request.headers.get("origin")
    if origin is None:
        return
    known = {urlsplit(request.app.state.site.settings.base_url).netloc.lower(), request.headers.get("host", "").lower()}
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or parts.netloc.lower() not in known:
        raise Forbidden("The form was sent from another site. " + AGAIN)
