"""About the token's own account: who am I, my runs, my tokens, the end of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from flatout.site import accounts
from flatout.site.accounts import SCOPES
from flatout.site.api.auth import AnyToken, JsonOnly, Publisher, limited
from flatout.site.api.models import MadeToken, Me, NewToken, Token, errors
from flatout.site.errors import Forbidden, Refused
from flatout.site.state import address, site

router = APIRouter(tags=["me"])
_DAY_US = 86_400_000_000


@router.get("/me", summary="Whose token is this, and what may it?", responses=errors(401))
def me(request: Request, who: AnyToken) -> Me:
    with site(request).database.read() as conn:
        count = accounts.runs_of(conn, who.account_id)
    return Me(name=who.name, scopes=[s for s in SCOPES if who.may(s)], token_id=who.token_id, runs=count)


@router.delete(
    "/me", status_code=204, summary="Delete my data", responses=errors(401, 403),
    description="Closes the account for good: its runs become tombstones and their files go, unless another run has "
    "the same; its tokens end. What was done stays on record, without the name, which is free for others then. "
    "`confirm` must be the account's name.",
)  # fmt: skip
def close(request: Request, who: Publisher, confirm: Annotated[str, Query(max_length=40)]) -> Response:
    if confirm != who.name:
        raise Refused("confirm", "type the account's own name here; nothing was deleted")
    site(request).store.delete_account(who.account_id, who.name)
    return Response(status_code=204)


@router.get("/me/tokens", summary="My tokens, newest first", responses=errors(401))
def my_tokens(request: Request, who: AnyToken) -> list[Token]:
    with site(request).database.read() as conn:
        return [Token.model_validate(token) for token in accounts.list_tokens(conn, who.account_id)]


@router.post(
    "/me/tokens", status_code=201, summary="Make a token", responses=errors(401, 403, 409, 413, 415),
    dependencies=JsonOnly,
    description="A token can give no more than it has: the new one ends when it does at the latest. The "
    "new one's text is in this answer and nowhere else.",
)  # fmt: skip
def make_token(request: Request, response: Response, who: AnyToken, wanted: NewToken) -> MadeToken:
    limited(request, response, "token", f"account:{who.account_id}", address(request.scope))
    lacking = [scope for scope in wanted.scopes if not who.may(scope)]
    if lacking:
        raise Forbidden(f"The token lacks the scope “{lacking[0]}”, so it cannot give it.")
    expires = None if wanted.expires_days is None else accounts.now_us() + wanted.expires_days * _DAY_US
    with site(request).database.write() as conn:
        _, text = accounts.add_token(conn, who.name, wanted.scopes, wanted.label, expires, made_with=who)
        new = accounts.whose(conn, text)
        token = next(t for t in accounts.list_tokens(conn, who.account_id) if new is not None and t.id == new.token_id)
    return MadeToken(text=text, token=Token.model_validate(token))


@router.delete(
    "/me/tokens/{token_id}", status_code=204, summary="End a token", responses=errors(401, 404),
    description="Also the one that is used for it. `made_too`: with those that were made with it, and with "
    "those; for a token that somebody else may have had.",
)  # fmt: skip
def end_token(
    request: Request, who: AnyToken, token_id: Annotated[int, Path(ge=1, le=2**53)], made_too: bool = False
) -> Response:
    with site(request).database.write() as conn:
        accounts.revoke(conn, token_id, account_id=who.account_id, by=who.name, made_too=made_too)
    return Response(status_code=204)
