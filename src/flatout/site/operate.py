"""What the operator does from the command line: tokens, migration, backup and restore. Each is kept as a deed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from flatout.site import accounts, reasons
from flatout.site.backup import backup as backup
from flatout.site.backup import restore as restore
from flatout.site.database import Database
from flatout.site.settings import Settings
from flatout.site.times import when

OPERATOR: Final = "operator"
DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """A new token: its text is known now and never again."""

    name: str
    text: str
    scopes: tuple[str, ...]
    expires: str | None


@contextmanager
def database(settings: Settings) -> Iterator[Database]:
    """The site's database, brought up to date. Raises SiteError."""
    opened = Database.open(settings.database_url)
    try:
        opened.migrate()
        yield opened
    finally:
        opened.close()


def token_add(settings: Settings, name: str, scopes: Sequence[str], label: str, days: int | None) -> Made:
    """A token for the account of that name, which is made if it is missing. Raises SiteError."""
    expires_us = None if days is None else accounts.now_us() + days * DAY_US
    with database(settings) as opened, opened.write() as conn:
        account, text = accounts.add_token(conn, name, scopes, label, expires_us, by=OPERATOR)
    return Made(account.name, text, tuple(scopes), _day(expires_us))


def token_list(settings: Settings) -> list[dict[str, str | int | None]]:
    """Every token in words, without its text: number, name, how it begins, scopes, label, days, state."""
    with database(settings) as opened, opened.read() as conn:
        tokens = accounts.all_tokens(conn)
    return [
        {
            "id": token.id,
            "name": name,
            "begins": f"{token.start}…",
            "scopes": " ".join(token.scopes),
            "label": token.label,
            "made": _day(token.created_us),
            "used": _day(token.used_us),
            "ends": _day(token.expires_us),
            "state": "works" if token.works else "revoked" if token.revoked_us is not None else "over",
        }
        for name, token in tokens
    ]


def token_revoke(settings: Settings, token_id: int) -> None:
    """Ends a token at once. Raises NotFound."""
    with database(settings) as opened, opened.write() as conn:
        accounts.revoke(conn, token_id, by=OPERATOR)


def migrate(settings: Settings) -> None:
    """Brings the database up to this flatout's schema. Raises SiteError."""
    with database(settings):
        pass


def reason(error: BaseException) -> str | None:
    """Why the database or the files cannot be used, in the driver's or the system's words, for the operator alone: the
    site's own words for visitors leave it out. Holds no statement and no password."""
    below = reasons.cause(error)
    driver = isinstance(below, OSError) or type(below).__module__.partition(".")[0] in ("sqlite3", "psycopg")
    return reasons.words(below) if below is not None and driver else None


def _day(at_us: int | None) -> str | None:
    """`2026-11-30`, UTC."""
    return (when(at_us) or "")[:10] or None
