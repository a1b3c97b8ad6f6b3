"""What a running site holds open, in every request as `site(request)`; it knows no page and no API."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from anyio import CapacityLimiter
from fastapi import Request

from flatout.site import accounts
from flatout.site.accounts import Who
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.drawings import Drawings
from flatout.site.errors import SiteError, Tombstone, no_run
from flatout.site.index import RunRow
from flatout.site.reasons import Reasons
from flatout.site.settings import Settings
from flatout.site.store import Store
from flatout.site.throttle import Throttle
from flatout.site.times import when

PUBLISHING: Final = 3
"""Records that are taken in at one time; further ones wait without a thread."""


@dataclass(frozen=True, slots=True)
class Site:
    """`publishing`: those who publish, few at a time."""

    settings: Settings
    database: Database
    blobs: Blobs
    store: Store
    throttle: Throttle
    drawings: Drawings
    reasons: Reasons
    publishing: CapacityLimiter

    @classmethod
    def open(cls, settings: Settings) -> Site:
        """Its database opened and brought up to date. Raises SiteError: the database or the files cannot be opened."""
        database = Database.open(settings.database_url)
        database.migrate()
        blobs = Blobs.open(settings.files_url)
        store = Store(database, blobs, settings)
        drawings = Drawings(store, settings.data_dir / "rendered")
        limiter = CapacityLimiter(PUBLISHING)
        return cls(settings, database, blobs, store, Throttle(settings), drawings, Reasons(settings), limiter)

    def whose(self, token: str, asking: str) -> Who | None:
        """Whose token it is; None for one that does not work, which is counted. `asking`: the address. Raises
        TooMany."""
        self.throttle.full("failed", asking)
        with self.database.read() as conn:
            who = accounts.whose(conn, token)
        if who is None:
            self.throttle.check("failed", asking)
        elif accounts.stale_use(who):  # good to know, but no reason to refuse anything
            with suppress(SiteError), self.database.write() as conn:
                accounts.used(conn, who)
        return who

    def visible(self, who: Who | None, run_id: str) -> RunRow:
        """The run's row if this one may see it. Raises NotFound (also for what waits for approval) and Tombstone."""
        row = self.store.row(run_id)
        moderator = who is not None and who.may("moderate")
        if row.state == "public" or (moderator and row.state != "deleted"):
            return row
        if row.state == "queued":
            if who is not None and row.account_id == who.account_id:
                return row
            raise no_run(run_id)
        raise Tombstone(row.state, row.state_reason, when(row.state_us), self.store.successor(row))

    def run_url(self, run_id: str) -> str:
        return f"{self.settings.base_url}/r/{run_id}"


def site(request: Request) -> Site:
    """The site that a request came to."""
    return cast(Site, request.app.state.site)


def address(scope: MutableMapping[str, Any]) -> str:
    """Who asks, for counting alone: it is written nowhere."""
    client = scope.get("client")
    return str(client[0]) if client and client[0] else "unknown"
