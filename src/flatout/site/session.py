"""Who looks at a page, and forms from our own pages only: the session names a token and ends as soon as the token does;
a form holds a secret of the session, and the browser says where it is from."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from markupsafe import Markup

from flatout.site.accounts import Who, who_by_token
from flatout.site.errors import Forbidden, Refused
from flatout.site.state import site

TOKEN: Final = "token"
"""The session's key for the number of the token it was opened with, and the token's epoch then."""
CSRF: Final = "csrf"
MOST_BYTES: Final = 64 * 1024
MOST_FIELDS: Final = 60
AGAIN: Final = "Go back, load the page again and send the form once more."


def viewer(request: Request) -> Who | None:
    """The person signed in; None for a visitor. Looked up once a request. Raises Unavailable."""
    if not hasattr(request.state, "viewer"):
        request.state.viewer = _look_up(request)
    return request.state.viewer  # type: ignore[no-any-return]


def _look_up(request: Request) -> Who | None:
    kept = (request.scope.get("session") or {}).get(TOKEN)
    if kept is None:
        return None
    who: Who | None = None
    if isinstance(kept, list) and len(kept) == 2 and all(isinstance(part, int) for part in kept):
        with site(request).database.read() as conn:
            who = who_by_token(conn, kept[0], kept[1])
    if who is None:
        request.session.clear()
    return who


def signed_in(request: Request, scope: str | None = None) -> Who:
    """The person signed in. Raises Forbidden: nobody is, or the token they signed in with may not."""
    who = viewer(request)
    if who is None:
        raise Forbidden("Sign in first: this page is for those who have an account here.")
    if scope is not None and not who.may(scope):
        raise Forbidden(f"The token that you signed in with may not do this: it lacks the scope “{scope}”.")
    return who


def enter(request: Request, who: Who) -> None:
    """Opens the session anew, so that nothing from before it can be used in it."""
    request.session.clear()
    request.session[TOKEN] = [who.token_id, who.epoch]
    request.state.viewer = who


def leave(request: Request) -> None:
    request.session.clear()
    request.state.viewer = None


def csrf_field(request: Request) -> Markup:
    """The hidden field that every form holds; the session keeps the same word."""
    word = request.session.get(CSRF)
    if not isinstance(word, str):
        word = request.session[CSRF] = secrets.token_urlsafe(24)
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
    fields = dict(reversed(pairs))
    check_word(request.session.get(CSRF), fields.get("csrf"))
    return fields


Form = Annotated[Mapping[str, str], Depends(posted)]


def check_word(kept: object, sent: str | None) -> None:
    """Raises Forbidden unless both are the same word."""
    if not isinstance(kept, str) or sent is None or not hmac.compare_digest(kept.encode(), sent.encode()):
        raise Forbidden("This form is not from a page of your present session. " + AGAIN)


def check_origin(request: Request) -> None:
    """Raises Forbidden where the browser says that another site sent the form. A browser that says nothing is believed
    to be an old one: the word in the form still guards."""
    word = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    known = {urlsplit(site(request).settings.base_url).netloc.lower(), request.headers.get("host", "").lower()}
    parts = urlsplit(origin or "")
    foreign = origin is not None and (parts.scheme not in ("http", "https") or parts.netloc.lower() not in known)
    if foreign or word not in (None, "same-origin", "none"):
        raise Forbidden("The form was sent from another site. " + AGAIN)
