"""One's own account: signing in with a token, one's runs and tokens, and the end of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from flatout.site import accounts, listing
from flatout.site.accounts import Who
from flatout.site.errors import Conflict, Forbidden, NotFound, Refused
from flatout.site.listing import Filter
from flatout.site.middleware import address
from flatout.site.pages import csrf
from flatout.site.pages.answers import READ
from flatout.site.pages.redirect import see_other
from flatout.site.pages.templating import page, site_of
from flatout.site.pages.viewer import enter, leave, signed_in, viewer

router: Final = APIRouter()
Form = Annotated[Mapping[str, str], Depends(csrf.posted)]
ROWS: Final = 100
DAYS: Final[Mapping[str, int | None]] = {"": None, "30": 30, "90": 90, "365": 365}
_DAY_US: Final = 86_400_000_000
_ONCE: Final = {"Cache-Control": "no-store"}
SAID: Final[Mapping[str, str]] = {
    "out": "You are signed out.",
    "revoked": "The token is revoked. Nothing that used it works any more.",
    "revoked-all": "The token is revoked, with those that were made with it. Nothing that used them works any more.",
    "deleted": "Your account is closed, and the content of your runs is deleted.",
}
WRONG: Final = "This token is not known here: it may have been revoked, have expired, or be another site's."


@router.api_route("/account", methods=READ)
def account(request: Request) -> Response:
    """The account of who is signed in; else the form to sign in."""
    who = viewer(request)
    said = SAID.get(request.query_params.get("said", ""))
    return _door(request, {}, said=said) if who is None else _own(request, who, {}, {}, said=said)


@router.post("/account/sign-in")
def sign_in(request: Request, form: Form) -> Response:
    """Opens a session for the token's account. Raises TooMany."""
    site = site_of(request)
    asking = address(request.scope)
    site.throttle.full("failed", asking)
    with site.database.read() as conn:
        who = accounts.whose(conn, form.get("token", "").strip())
    if who is None:
        site.throttle.check("failed", asking)
        return _door(request, {"token": WRONG})
    if accounts.stale_use(who):
        with site.database.write() as conn:
            accounts.used(conn, who)
    enter(request, who)
    return see_other("/account")


@router.post("/account/sign-out")
def sign_out(request: Request, form: Form) -> Response:
    """Ends the session, and every other that was opened with the same token: a copy of the cookie is worth nothing."""
    who = viewer(request)
    if who is not None:
        with site_of(request).database.write() as conn:
            accounts.end_sessions(conn, who)
    leave(request)
    return see_other("/account?said=out")


@router.api_route("/account/new", methods=READ)
def registering(request: Request) -> Response:
    """The form for a new account, where the site lets everybody make one. Raises Forbidden."""
    _registration(request)
    return _new(request, {}, {})


@router.post("/account/new")
def register(request: Request, form: Form) -> Response:
    """Makes an account and its first token, which is shown once. Raises Forbidden, TooMany."""
    _registration(request)
    site = site_of(request)
    name = form.get("name", "").strip()
    site.throttle.check("token", address(request.scope))  # refused names count, too: they tell which are taken
    try:
        with site.database.write() as conn:
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
    site, who = site_of(request), signed_in(request)
    try:
        scopes = [scope for scope in accounts.SCOPES if form.get(f"scope-{scope}")]
        if not all(who.may(scope) for scope in scopes):
            raise Refused("scopes", "a token can give no more than the one you signed in with")
        if form.get("days", "") not in DAYS:
            raise Refused("days", "choose one of the times")
        days = DAYS[form.get("days", "")]
        expires = None if days is None else accounts.now_us() + days * _DAY_US
        site.throttle.check("token", f"account:{who.account_id}")
        with site.database.write() as conn:
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
    site, who = site_of(request), signed_in(request)
    if not (token_id.isascii() and token_id.isdigit() and len(token_id) < 16):
        raise NotFound("There is no such token.")
    made_too = form.get("made") == "too"
    with site.database.write() as conn:
        accounts.revoke(conn, int(token_id), account_id=who.account_id, by=who.name, made_too=made_too)
        ended = accounts.who_by_token(conn, who.token_id, who.epoch) is None
    if ended:
        leave(request)
    return see_other("/account?said=revoked-all" if made_too else "/account?said=revoked")


@router.post("/account/delete")
def delete(request: Request, form: Form) -> Response:
    """Closes the account and deletes the content of its runs. Raises Forbidden."""
    site, who = site_of(request), signed_in(request, "publish")
    if form.get("confirm", "").strip() != who.name:
        return _own(request, who, form, {"confirm": "type the account's own name here; nothing was deleted"})
    site.store.delete_account(who.account_id, who.name)
    leave(request)
    return see_other("/account?said=deleted")


def _registration(request: Request) -> None:
    if site_of(request).settings.registration != "open":
        raise Forbidden("This site's operator makes the accounts: ask them for a token (flatout site token add NAME).")


def _door(request: Request, errors: Mapping[str, str], *, said: str | None = None) -> Response:
    status = 422 if errors else 200
    return page(request, "signin.html", "Sign in", status=status, headers=_ONCE, errors=errors, form={}, said=said)


def _new(request: Request, form: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    return page(
        request, "register.html", "A new account", status=422 if errors else 200, headers=_ONCE, errors=errors,
        form=form, rule=accounts.NAME_RULE,
    )  # fmt: skip


def _own(
    request: Request, who: Who, form: Mapping[str, str], errors: Mapping[str, str], *, said: str | None = None
) -> Response:
    site = site_of(request)
    with site.database.read() as conn:
        found = listing.find(
            conn, Filter(), limit=ROWS, secret=site.settings.secret, viewer=listing.Viewer(who.account_id, own=True)
        )
        tokens = accounts.list_tokens(conn, who.account_id)
    more: dict[str, Any] = {"rows": found.rows, "tokens": tokens, "form": form, "errors": errors, "said": said}
    return page(
        request, "account.html", who.name, status=422 if errors else 200, headers=_ONCE, scopes=accounts.SCOPES,
        days={"": "never", "30": "30 days", "90": "90 days", "365": "a year"}, more=bool(found.next),
        start_of={token.id: token.start for token in tokens},
        makers={token.parent_id for token in tokens if token.works}, **more,
    )  # fmt: skip
