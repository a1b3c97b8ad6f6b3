"""Accounts and their tokens. Only a token's hash is kept; the token itself is shown once, as it is made."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from flatout.site.database import now_us as now_us
from flatout.site.errors import Conflict, NotFound, Refused
from flatout.site.moderation import note, plain
from flatout.site.schema import accounts, runs, tokens

PREFIX: Final = "flatout_"
Scope = Literal["publish", "moderate"]
SCOPES: Final[tuple[Scope, ...]] = ("publish", "moderate")
"""publish: publish, and withdraw or delete one's own. moderate: the queue, hiding, reports, any run."""
NAME_RULE: Final = "2 to 39 of a-z, 0-9 and -, beginning and ending with a letter or digit"
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,37}[a-z0-9]$"
MOST_TOKENS: Final = 50
_TOKEN: Final = re.compile(r"flatout_[A-Za-z0-9_-]{43}")
_RESERVED: Final = frozenset(
    {"operator", "site", "local", "admin", "administrator", "moderator", "moderators", "anonymous", "visitor", "nobody"}
    | {"deleted", "flatout", "me", "root", "system", "support"}
)
_USED_EVERY_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Account:
    id: int
    name: str
    created_us: int


@dataclass(frozen=True, slots=True)
class Who:
    """Whose token it is, and what it may. `used_us`: when it was last seen, to the minute; `expires_us`: when it ends;
    `epoch`: of the sessions that it opens now."""

    account_id: int
    name: str
    scopes: frozenset[str]
    token_id: int
    used_us: int | None = None
    expires_us: int | None = None
    epoch: int = 0

    def may(self, scope: str) -> bool:
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is listed. `start`: its first characters, to know it by; `parent_id`: the token that it was made
    with."""

    id: int
    label: str
    start: str
    scopes: tuple[str, ...]
    created_us: int
    used_us: int | None
    expires_us: int | None
    revoked_us: int | None
    parent_id: int | None

    @property
    def works(self) -> bool:
        return self.revoked_us is None and (self.expires_us is None or self.expires_us > now_us())


def add_account(conn: Connection, name: str, *, by: str | None = None) -> Account:
    """A new account. Raises Refused (no such name is possible) and Conflict (the name is taken)."""
    _checked_name(name)
    if _account(conn, name) is not None:
        raise Conflict(f"the name {name} is taken; take another")
    made = now_us()
    try:
        with conn.begin_nested():  # two at once: the second must not spoil the transaction
            conn.execute(insert(accounts).values(name=name, created_us=made))
    except IntegrityError as error:
        raise Conflict(f"the name {name} is taken; take another") from error
    note(conn, by or name, "account made", detail=name)
    found = _account(conn, name)
    assert found is not None
    return Account(found.id, name, made)


def add_token(
    conn: Connection, name: str, scopes: Sequence[str] = ("publish",), label: str = "", expires_us: int | None = None,
    *, by: str | None = None, made_with: Who | None = None,
) -> tuple[Account, str]:  # fmt: skip
    """A new token for the account of that name, which is made if it is missing; its text is never seen again.

    `made_with`: the token that makes it, which may have these scopes (the caller looks) and with which it ends at the
    latest.

    Raises Refused: name, scopes, label or time are not possible; Conflict: the account is closed or has too many.
    """
    kept = _checked_scopes(scopes)
    told = _checked_label(label)
    made = now_us()
    if expires_us is not None and not made < expires_us < 2**62:
        raise Refused("expires", "the time at which the token ends lies in the past or too far away")
    if made_with is not None and made_with.expires_us is not None:
        expires_us = min(expires_us or made_with.expires_us, made_with.expires_us)
    row = _account(conn, name)
    if row is not None and row.closed_us is not None:
        raise Conflict(f"the account {name} is closed")
    account = Account(row.id, name, row.created_us) if row is not None else add_account(conn, name, by=by)
    if sum(token.works for token in list_tokens(conn, account.id)) >= MOST_TOKENS:
        raise Conflict(f"{name} has {MOST_TOKENS} tokens; revoke one that is not used any more")
    text = PREFIX + secrets.token_urlsafe(32)
    start = text[: len(PREFIX) + 4]
    conn.execute(
        insert(tokens).values(
            id=_number(conn), account_id=account.id, label=told, hash=_hash(text), start=start,
            scopes=" ".join(kept), created_us=made, expires_us=expires_us,
            parent_id=made_with.token_id if made_with is not None else None,
        )
    )  # fmt: skip
    note(conn, by or name, "token made", detail=f"{name}: {start}… {' '.join(kept)}")
    return account, text


def whose(conn: Connection, text: str) -> Who | None:
    """Whose token that is; None if it is none of ours, revoked, over, or its account closed."""
    if not _TOKEN.fullmatch(text):
        return None
    return _who(conn, tokens.c.hash == _hash(text))


def who_by_token(conn: Connection, token_id: int, epoch: int) -> Who | None:
    """The same for a session that was opened with that token, in that epoch: it ends when the token does, or when
    somebody signs out of a session of the token."""
    found = _who(conn, tokens.c.id == token_id)
    return found if found is not None and found.epoch == epoch else None


def end_sessions(conn: Connection, who: Who) -> None:
    """Ends every session that was opened with the token, wherever its cookie is; the token goes on."""
    conn.execute(update(tokens).where(tokens.c.id == who.token_id).values(epoch=tokens.c.epoch + 1))


def used(conn: Connection, who: Who) -> None:
    """Notes that the token was used. Call it when `stale_use` says so: once a minute is enough."""
    conn.execute(update(tokens).where(tokens.c.id == who.token_id).values(used_us=now_us()))


def stale_use(who: Who) -> bool:
    """The token's last use was noted over a minute ago."""
    return who.used_us is None or now_us() - who.used_us > _USED_EVERY_US


def list_tokens(conn: Connection, account_id: int) -> list[Token]:
    """An account's tokens, newest first, those that do not work any more too."""
    query = select(tokens).where(tokens.c.account_id == account_id).order_by(tokens.c.created_us.desc(), tokens.c.id)
    return [_token(row) for row in conn.execute(query)]


def all_tokens(conn: Connection) -> list[tuple[str, Token]]:
    """(account's name, token) of every token, for the command line."""
    query = select(tokens, accounts.c.name).join(accounts).order_by(accounts.c.name, tokens.c.created_us)
    return [(row.name, _token(row)) for row in conn.execute(query)]


def revoke(
    conn: Connection, token_id: int, *, account_id: int | None = None, by: str = "operator", made_too: bool = False
) -> None:
    """Ends a token (of that account, if given) at once; with `made_too` also those that were made with it, and with
    those: for a token that somebody found. Without it a token can be replaced by one that it made. Again is no error.
    Raises NotFound."""
    query = select(tokens, accounts.c.name).join(accounts).where(tokens.c.id == token_id)
    if account_id is not None:
        query = query.where(tokens.c.account_id == account_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound("there is no such token; list them to see their numbers")
    ends = [row]
    for one in ends if made_too else ():  # it grows by what was made with each
        ends += conn.execute(select(tokens).where(tokens.c.parent_id == one.id, tokens.c.account_id == row.account_id))
    for one in ends:
        if one.revoked_us is None:
            conn.execute(update(tokens).where(tokens.c.id == one.id).values(revoked_us=now_us()))
            note(conn, by, "token revoked", detail=f"{row.name}: {one.start}…")


def account_named(conn: Connection, name: str) -> Account | None:
    """The open account of that name."""
    row = _account(conn, name)
    return Account(row.id, row.name, row.created_us) if row is not None and row.closed_us is None else None


def runs_of(conn: Connection, account_id: int) -> int:
    """How many runs the account has published that are not deleted."""
    query = select(func.count()).where(runs.c.account_id == account_id, runs.c.state != "deleted")
    return int(conn.execute(query).scalar_one())


def _who(conn: Connection, condition: Any) -> Who | None:
    query = select(tokens, accounts.c.name, accounts.c.closed_us).join(accounts).where(condition)
    row = conn.execute(query).one_or_none()
    if row is None or row.closed_us is not None or not _token(row).works:
        return None
    return Who(row.account_id, row.name, frozenset(row.scopes.split()), row.id, row.used_us, row.expires_us, row.epoch)


def _account(conn: Connection, name: str) -> Any:
    return conn.execute(select(accounts).where(accounts.c.name == name)).one_or_none()


def _token(row: Any) -> Token:
    return Token(
        row.id, row.label, row.start, tuple(row.scopes.split()), row.created_us, row.used_us, row.expires_us,
        row.revoked_us, row.parent_id,
    )  # fmt: skip


def _number(conn: Connection) -> int:
    """A token's number: at random, since SQLite would give a deleted token's to the next, and with it the sessions that
    it opened."""
    while True:
        number = secrets.randbelow(900_000_000) + 100_000_000
        if conn.execute(select(tokens.c.id).where(tokens.c.id == number)).first() is None:
            return number


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _checked_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise Refused("name", f"a name has {NAME_RULE}")
    if name in _RESERVED or name.startswith(("closed-", "deleted-")):
        raise Refused("name", "that name is kept for the site itself; take another")


def _checked_scopes(scopes: Iterable[str]) -> list[Scope]:
    asked = set(scopes)
    if not asked or not asked <= set(SCOPES):
        raise Refused("scopes", f"a token's scopes are one or more of: {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in asked]


def _checked_label(label: str) -> str:
    told = " ".join(label.split())
    if len(told) > 80 or not plain(told):
        raise Refused("label", "a label has at most 80 characters, all of them visible")
    return told
