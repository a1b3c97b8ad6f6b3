"""One's own account: signing in with a token, one's runs and tokens, and the end of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.site import accounts, listing
from flatout.site.accounts import Who
from flatout.site.answers import READ
from flatout.site.errors import Conflict, Forbidden, NotFound, Refused
from flatout.site.html import NOTHING, page, see_other
from flatout.site.listing import Filter
from flatout.site.session import Form, enter, leave, signed_in, viewer
from flatout.site.state import address, site

router: Final = APIRouter()
ROWS: Final = 100
DAYS: Final[Mapping[str, int | None]] = {"": None, "30": 30, "90": 90, "365": 365}
_DAY_US: Final = 86_400_000_000
_ONCE: Final = {"Cache-Control": "no-store"}
WRONG: Final = "This token is not known here: it may have been revoked, have expired, or be another site's."


@router.api_route("/account", methods=READ)
def account(request: Request) -> Response:
    """The account of who is signed in; else the form to sign in."""
    who = viewer(request)
    return _door(request) if who is None else _own(request, who)


@router.post("/account/sign-in")
def sign_in(request: Request, form: Form) -> Response:
    """Opens a session for the token's account. Raises TooMany."""
    who = site(request).whose(form.get("token", "").strip(), address(request.scope))
    if who is None:
        return _door(request, {"token": WRONG})
    enter(request, who)
    return see_other("/account")


@router.post("/account/sign-out")
def sign_out(request: Request, form: Form) -> Response:
    """Ends the session, and every other that was opened with the same token: a copy of the cookie is worth nothing."""
    who = viewer(request)
    if who is not None:
        with site(request).database.write() as conn:
            accounts.end_sessions(conn, who)
    leave(request)
    return see_other("/account?said=out")


@router.api_route("/account/new", methods=READ)
def registering(request: Request) -> Response:
    """The form for a new account, where the site lets everybody make one. Raises Forbidden."""
    _registration(request)
    return _new(request)


@router.post("/account/new")
def register(request: Request, form: Form) -> Response:
    """Makes an account and its first token, which is shown once. Raises Forbidden, TooMany."""
    _registration(request)
    here = site(request)
    name = form.get("name", "").strip()
    here.throttle.check("token", address(request.scope))  # refused names count, too: they tell which are taken
    try:
        with here.database.write() as conn:
            accounts.add_account(conn, name)  # two at once: the second is told, and gets no token for the first's
            _, text = accounts.add_token(conn, name, ("publish",), "first")
            who = accounts.whose(conn, text)
    except Refused as error:
        return _new(request, form, {error.place: error.text})
    except Conflict as error:
        return _new(request, form, {"name": str(error)})
    assert who is not None
    enter(request, who)
    return page(
        request, "token.html", "Your token", status=201, scripted=True, headers=_ONCE, token=text, first=True, name=name
    )


@router.post("/account/tokens")
def make_token(request: Request, form: Form) -> Response:
    """Makes another token, which is shown once and can do no more than the present one. Raises Forbidden, TooMany."""
    here, who = site(request), signed_in(request)
    try:
        scopes = [scope for scope in accounts.SCOPES if form.get(f"scope-{scope}")]
        if not all(who.may(scope) for scope in scopes):
            raise Refused("scopes", "a token can give no more than the one you signed in with")
        if form.get("days", "") not in DAYS:
            raise Refused("days", "choose one of the times")
        days = DAYS[form.get("days", "")]
        expires = None if days is None else accounts.now_us() + days * _DAY_US
        here.throttle.check("token", f"account:{who.account_id}")
        with here.database.write() as conn:
            _, text = accounts.add_token(conn, who.name, scopes, form.get("label", ""), expires, made_with=who)
    except Refused as error:
        return _own(request, who, form, {error.place: error.text})
    return page(
        request, "token.html", "A new token", status=201, scripted=True, headers=_ONCE, token=text, first=False,
        name=who.name,
    )  # fmt: skip


@router.post("/account/tokens/{token_id}/revoke")
def revoke(request: Request, token_id: str, form: Form) -> Response:
    """Ends a token of one's own, with those that it made if asked; with the present one the session ends. Raises
    Forbidden, NotFound."""
    here, who = site(request), signed_in(request)
    if not (token_id.isascii() and token_id.isdigit() and len(token_id) < 16):
        raise NotFound("There is no such token.")
    made_too = form.get("made") == "too"
    with here.database.write() as conn:
        accounts.revoke(conn, int(token_id), account_id=who.account_id, by=who.name, made_too=made_too)
        ended = accounts.who_by_token(conn, who.token_id, who.epoch) is None
    if ended:
        leave(request)
    return see_other("/account?said=revoked-all" if made_too else "/account?said=revoked")


@router.post("/account/delete")
def delete(request: Request, form: Form) -> Response:
    """Closes the account and deletes the content of its runs. Raises Forbidden."""
    here, who = site(request), signed_in(request, "publish")
    if form.get("confirm", "").strip() != who.name:
        return _own(request, who, form, {"confirm": "type the account's own name here; nothing was deleted"})
    here.store.delete_account(who.account_id, who.name)
    leave(request)
    return see_other("/account?said=deleted")


def _registration(request: Request) -> None:
    if site(request).settings.registration != "open":
        raise Forbidden("This site's operator makes the accounts: ask them for a token (flatout site token add NAME).")


def _door(request: Request, errors: Mapping[str, str] = NOTHING) -> Response:
    return page(request, "signin.html", "Sign in", headers=_ONCE, errors=errors)


def _new(request: Request, form: Mapping[str, str] = NOTHING, errors: Mapping[str, str] = NOTHING) -> Response:
    return page(
        request, "register.html", "A new account", headers=_ONCE, errors=errors, form=form, rule=accounts.NAME_RULE
    )


def _own(
    request: Request, who: Who, form: Mapping[str, str] = NOTHING, errors: Mapping[str, str] = NOTHING
) -> Response:
    here = site(request)
    with here.database.read() as conn:
        own = listing.find(
            conn, Filter(), limit=ROWS, secret=here.settings.secret, viewer=listing.Viewer(who.account_id, own=True)
        )
        tokens = accounts.list_tokens(conn, who.account_id)
    return page(
        request, "account.html", who.name, headers=_ONCE, scopes=accounts.SCOPES,
        days={"": "never", "30": "30 days", "90": "90 days", "365": "a year"}, rows=own.rows, more=bool(own.next),
        tokens=tokens, start_of={token.id: token.start for token in tokens},
        makers={token.parent_id for token in tokens if token.works}, form=form, errors=errors,
    )  # fmt: skip
