"""The runs: the only writer of `runs` and `points`, and of what is counted from them.

A run is kept in this order: its files, then one transaction with everything else. So at any moment it is there whole,
or not at all; files that no run needs are swept later.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from flatout.record import Record, parse
from flatout.show.safe import clean
from flatout.site import audit, boards, index, moderation
from flatout.site.blobs import RECORDS, SAMPLES, Blobs
from flatout.site.database import Database, now_us
from flatout.site.errors import Conflict, Forbidden, Gone, NotFound, Unavailable, no_run
from flatout.site.index import Moved, Published, RunFacts, RunRow, run_row, run_rows
from flatout.site.intake import Taken
from flatout.site.schema import accounts, points, reports, runs, tokens

if TYPE_CHECKING:
    from flatout.site.settings import Settings

__all__ = ["DELETED", "HIDDEN", "PUBLIC", "QUEUED", "WITHDRAWN", "Published", "RunRow", "Store"]

PUBLIC: Final = "public"
QUEUED: Final = "queued"
HIDDEN: Final = "hidden"
WITHDRAWN: Final = "withdrawn"
DELETED: Final = "deleted"
MEASURED_FURTHER: Final = "measured further"
REPLACED: Final = "replaced by a later record of its publisher"
OWNERS_WISH: Final = "deleted at its publisher's wish"
SWEEP_AFTER_S: Final = 3600.0
_log: Final = logging.getLogger("flatout.site")
_REASON_CHARS: Final = 500
_KEPT_RECORDS: Final = 64  # parsed ones in memory
_KEPT_BYTES: Final = (
    400_000  # of canonical JSON; a longer record is parsed each time. In memory it takes ten times that
)
WIPED: Final[dict[str, Any]] = {
    **dict.fromkeys(("record_id", "model_key", "model", "hardware_key", "hardware", "engine_key", "engine", "precision",
                     "speculation", "repro_key", "history_key", "suite", "trust"), ""),
    **dict.fromkeys(("account_id", "origin", "samples_hash", "engine_version", "context_max", "single_tok_s",
                     "total_tok_s", "prefill_tok_s", "replaces_id")),
    **dict.fromkeys(("cells", "cells_measured", "cells_sound", "trust_notes", "bytes"), 0),
    "summary": "{}",
}  # fmt: skip
"""What a deleted run's row holds instead of what the record told."""


class Store:
    """The runs of one site. Safe for many threads, and for several processes on one database.

    `listeners` are told of each run that came into another state, once that is certain.
    """

    def __init__(self, database: Database, blobs: Blobs, settings: Settings) -> None:
        self.database = database
        self.blobs = blobs
        self.settings = settings
        self.listeners: list[Callable[[Moved], None]] = []
        self._parsed = lru_cache(_KEPT_RECORDS)(lambda content_hash: parse(blobs.get(RECORDS, content_hash)))

    # --- writing --------------------------------------------------------------------------------------------------

    def publish(
        self, taken: Taken, *, account_id: int | None, who: str, samples: bytes | None = None,
        replaces: str | None = None, origin: str | None = None,
    ) -> Published:  # fmt: skip
        """Keeps a record; the same one again is the same run.

        `replaces`: the public id of an own run, which is withdrawn with this one as its successor, as soon as this one
        is public. `origin`: the local directory that it was picked up from. Raises Conflict if it was here and was
        taken back or hidden, or if `replaces` is in no state for it; NotFound, Forbidden for `replaces`; Unavailable,
        and then nothing is changed.
        """
        with self.database.read() as conn:
            found = _by_hash(conn, taken.content_hash)
            if found is None and replaces is not None:
                _replaceable(_theirs(conn, replaces, account_id), account_id)
        if found is not None:
            return self._again(found, account_id, samples)
        waits = self.settings.moderation == "queue" and origin is None
        received_us = now_us()
        row = {
            "account_id": account_id,
            "origin": clean(origin, 300) if origin else None,
            "state": QUEUED if waits else PUBLIC,
            "received_us": received_us,
            **columns_of(taken, received_us),
        }
        self.blobs.put(RECORDS, taken.canonical)
        row["samples_hash"] = self.blobs.put(SAMPLES, samples) if samples is not None else None
        try:
            with self._changing() as (conn, moved):
                found = _by_hash(conn, taken.content_hash)
                if found is None:
                    self._insert(conn, moved, row, taken.facts, who, replaces)
        except IntegrityError:  # another process has just published the same record
            with self.database.read() as conn:
                found = _by_hash(conn, taken.content_hash)
                same_id = conn.scalar(sa.select(runs.c.id).where(runs.c.public_id == taken.public_id))
            if found is None and same_id is not None:
                raise Conflict("another record has the same short id here: change the note and publish again") from None
            if found is None:
                raise
        if found is not None:
            return self._again(found, account_id, samples)
        return Published(taken.public_id, str(row["state"]), created=True)

    def withdraw(
        self, public_id: str, *, who: str, account_id: int | None, reason: str, successor: str | None = None,
        moderator: bool = False,
    ) -> None:  # fmt: skip
        """Takes a run back, for good; a tombstone with the reason stays. Withdrawing again changes nothing.

        Raises NotFound, Forbidden (somebody else's), Conflict (hidden by a moderator), Gone (deleted), Unavailable.
        """
        with self._changing() as (conn, moved):
            run = _theirs(conn, public_id, account_id, moderator=moderator)
            if not moderator and (run.account_id is None or run.account_id != account_id):
                raise Forbidden("this run is not yours: its publisher and the moderators can withdraw it")
            if run.state == WITHDRAWN:
                return
            if run.state == HIDDEN and not moderator:
                raise Conflict("a moderator has hidden this run; write to the site's operator")
            after = None
            if successor is not None:
                after = _theirs(conn, successor, account_id, moderator=moderator)
                if after.id == run.id or after.state in (WITHDRAWN, DELETED):
                    raise Conflict("the successor must be another run that is still there")
            moved.append(_state(conn, run, WITHDRAWN, who, reason, successor_id=after.id if after else None))

    def hide(self, public_id: str, *, who: str, reason: str, account_id: int | None = None) -> None:
        """A moderator's: out of lists and rankings, with the reason on its page, and what is open of the reports about
        it settled with that reason. `account_id`: the moderator's. Raises NotFound, Conflict, Gone."""
        with self._changing() as (conn, moved):
            run = _one(conn, public_id)
            if run.state == WITHDRAWN:
                raise Conflict("the run is withdrawn already")
            if run.state != HIDDEN:
                moved.append(_state(conn, run, HIDDEN, who, reason))
            outcome = f"hidden: {reason}"[: moderation.LONGEST_REASON]
            moderation.settle_all(conn, public_id, outcome, who=who, account_id=account_id)

    def approve(self, public_id: str, *, who: str, reason: str | None = None) -> None:
        """A moderator's: a run that waits or was hidden becomes public, and takes the place of the run that it was
        published to replace. Raises NotFound, Conflict, Gone."""
        with self._changing() as (conn, moved):
            run = _one(conn, public_id)
            if run.state == WITHDRAWN:
                raise Conflict("its publisher has withdrawn the run: only they can publish it again, as a new record")
            if run.state != PUBLIC:
                moved.append(_state(conn, run, PUBLIC, who, reason))
                moved += _supersede(conn, run.id, run.account_id, run.replaces_id, who, REPLACED)

    def delete_account(self, account_id: int, who: str) -> None:
        """Deletes an account, its tokens and the content of its runs; of each a bare tombstone stays.

        Its name is free again, so in the deeds `deleted-<number>` takes its place. Raises NotFound, Unavailable.
        """
        nobody = f"deleted-{account_id}"
        with self._changing() as (conn, moved):
            mine = conn.execute(
                run_rows().where(runs.c.account_id == account_id, runs.c.state != DELETED).order_by(runs.c.id)
            ).all()
            gone = conn.execute(
                sa.update(accounts)
                .where(accounts.c.id == account_id, accounts.c.closed_us.is_(None))
                .values(name=nobody, closed_us=now_us())
            )
            if gone.rowcount != 1:
                raise NotFound("there is no such account")
            conn.execute(sa.delete(tokens).where(tokens.c.account_id == account_id))
            conn.execute(sa.update(reports).where(reports.c.account_id == account_id).values(account_id=None))
            for run in mine:
                conn.execute(sa.delete(points).where(points.c.run_id == run.id))
                moved.append(_state(conn, run, DELETED, nobody, OWNERS_WISH, **WIPED))
            _deed(conn, nobody, "account deleted", None, f"{len(mine)} runs")
            moderation.unnamed(conn, who, nobody)
            needed = needed_files(conn)
        self._parsed.cache_clear()
        for run in mine:
            for kind, name in ((RECORDS, run.content_hash), (SAMPLES, run.samples_hash)):
                if name and (kind, name) not in needed:
                    with contextlib.suppress(Unavailable):  # then the next sweep does it
                        self.blobs.delete(kind, name)

    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        """Deletes files without a run; returns how many. Raises Unavailable."""
        with self.database.read() as conn:
            needed = needed_files(conn)
        return self.blobs.sweep(lambda kind, name: (kind, name) in needed, older_than_s)

    def renew(self) -> int:
        """Makes rankings anew that an earlier flatout made in another way; returns how many. Raises Unavailable."""
        with self.database.read() as conn:
            keys = boards.outdated(conn)
        for key in keys:  # each by itself: who publishes meanwhile waits for one alone
            with self._changing() as (conn, _):
                boards.refresh(conn, key)
                index.touch(conn, key)
        return len(keys)

    # --- reading --------------------------------------------------------------------------------------------------

    def row(self, public_id: str) -> RunRow:
        """A run in any state. Raises NotFound, Unavailable."""
        with self.database.read() as conn:
            return run_row(_one(conn, public_id, deleted=True))

    def successor(self, row: RunRow) -> str | None:
        """The public id of the run that stands in for a withdrawn one; None as long as that one waits for a
        moderator: a tombstone is read by everybody."""
        return self._named(row.successor_id, runs.c.state != QUEUED)

    def replaces(self, row: RunRow) -> str | None:
        """The public id of the public run whose place this one takes as soon as it is public itself."""
        return self._named(row.replaces_id, runs.c.state == PUBLIC) if row.state in (QUEUED, HIDDEN) else None

    def _named(self, run_id: int | None, *where: sa.ColumnElement[bool]) -> str | None:
        if run_id is None:
            return None
        with self.database.read() as conn:
            found = conn.scalar(sa.select(runs.c.public_id).where(runs.c.id == run_id, *where))
        return None if found is None else str(found)

    def record(self, public_id: str) -> Record:
        """Raises NotFound, Gone (deleted), Unavailable. Shared: nobody changes it."""
        row = self._there(public_id)
        return (self._parsed if row.bytes <= _KEPT_BYTES else self._parsed.__wrapped__)(row.content_hash)

    def content(self, public_id: str) -> bytes:
        """The canonical JSON, whose SHA-256 is the run's content hash. Raises as `record`."""
        return self.blobs.get(RECORDS, self._there(public_id).content_hash)

    def samples(self, public_id: str) -> bytes | None:
        """The zip of its samples. Raises as `record`."""
        row = self._there(public_id)
        return self.blobs.get(SAMPLES, row.samples_hash) if row.samples_hash else None

    def _there(self, public_id: str) -> RunRow:
        with self.database.read() as conn:
            return run_row(_one(conn, public_id))

    # --- parts of writing -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[Connection, list[Moved]]]:
        """A transaction in which runs change, one at a time. What is put into the list is ranked anew at its end, each
        configuration once, and told to the listeners as soon as it is certain."""
        moved: list[Moved] = []
        with self.database.write() as conn:
            self.database.one_at_a_time(conn)
            yield conn, moved
            for repro_key in dict.fromkeys(one.repro_key for one in moved):
                boards.refresh(conn, repro_key)
        for one in moved:
            for listener in self.listeners:
                try:
                    listener(one)
                except Exception as error:  # the change is made, whoever could not hear of it
                    _log.warning("a listener to changes of runs failed: %s", type(error).__name__)

    def _again(self, found: Any, account_id: int | None, samples: bytes | None) -> Published:
        if found.state in (WITHDRAWN, HIDDEN, DELETED):
            why = f": {found.state_reason}" if found.state_reason else ""
            raise Conflict(
                f"this record was here as /r/{found.public_id} and is {found.state} since {_day(found)}{why}"
            )
        if samples is not None and found.samples_hash is None and found.account_id == account_id:
            samples_hash = self.blobs.put(SAMPLES, samples)
            with self.database.write() as conn:
                conn.execute(
                    sa.update(runs)
                    .where(runs.c.id == found.id, runs.c.samples_hash.is_(None), runs.c.state.in_((PUBLIC, QUEUED)))
                    .values(samples_hash=samples_hash)
                )
        return Published(str(found.public_id), str(found.state), created=False)

    def _insert(
        self, conn: Connection, moved: list[Moved], row: dict[str, Any], facts: RunFacts, who: str, replaces: str | None
    ) -> None:
        run_id = insert_run(conn, row, facts)
        _deed(conn, who, "published" if row["state"] == PUBLIC else "published, waits", run_id, None)
        moved.append(Moved(*(str(row[name]) for name in ("public_id", "content_hash", "state", "repro_key"))))
        if replaces is None:
            return
        old = _theirs(conn, replaces, row["account_id"])
        _replaceable(old, row["account_id"])
        if row["state"] == QUEUED and old.state == PUBLIC:  # which stays so until this one is
            _nobody_waits_for(conn, old)
            conn.execute(sa.update(runs).where(runs.c.id == run_id).values(replaces_id=old.id))
        else:
            reason = MEASURED_FURTHER if row["origin"] else REPLACED
            moved += _supersede(conn, run_id, row["account_id"], old.id, who, reason)


def _supersede(
    conn: Connection, run_id: int, account_id: int | None, old_id: int | None, who: str, reason: str
) -> list[Moved]:
    """Withdraws what a run takes the place of, unless its publisher or a moderator took it out of public before; one
    that waits passes on what it waited to replace."""
    moved: list[Moved] = []
    waits = conn.scalar(sa.select(runs.c.state).where(runs.c.id == run_id)) == QUEUED
    while old_id is not None:
        old = conn.execute(run_rows().where(runs.c.id == old_id)).one()
        if old.state not in (PUBLIC, QUEUED) or old.account_id != account_id or (waits and old.state == PUBLIC):
            break
        moved.append(_state(conn, old, WITHDRAWN, who, reason, successor_id=run_id))
        old_id = old.replaces_id
    conn.execute(sa.update(runs).where(runs.c.id == run_id).values(replaces_id=old_id if waits else None))
    return moved


def _state(conn: Connection, run: Any, state: str, who: str, reason: str | None, **more: Any) -> Moved:
    """The run in another state, with everything that is counted from it but rankings. `more`: columns."""
    told = clean(reason, _REASON_CHARS) if reason else None
    values = {"successor_id": None, **more, "state": state, "state_reason": told, "state_us": now_us()}
    conn.execute(sa.update(runs).where(runs.c.id == run.id).values(values))
    if (run.state == PUBLIC) != (state == PUBLIC):
        index.count(conn, run._mapping, +1 if state == PUBLIC else -1)
    _deed(conn, who, {PUBLIC: "approved"}.get(state, state), run.id, told)
    return Moved(str(run.public_id), str(run.content_hash), state, str(run.repro_key))


def columns_of(taken: Taken, received_us: int) -> dict[str, Any]:
    """The columns of `runs` that come from the record and the moment when the site got it."""
    trust, notes = audit.trust(taken.record, received_us)
    return {
        "public_id": taken.public_id,
        "content_hash": taken.content_hash,
        "bytes": len(taken.canonical),
        "trust": trust,
        "trust_notes": notes,
        **{f.name: getattr(taken.facts, f.name) for f in fields(RunFacts) if f.name != "points"},
    }


def insert_run(conn: Connection, row: Mapping[str, Any], facts: RunFacts) -> int:
    """A new run with its points, counted if it is public, ranked not yet; returns its number."""
    run_id = int(conn.execute(sa.insert(runs).values(row).returning(runs.c.id)).scalar_one())
    if facts.points:
        conn.execute(sa.insert(points), [{"run_id": run_id, **asdict(point)} for point in facts.points])
    if row["state"] == PUBLIC:
        index.count(conn, row, +1)
    return run_id


def _one(conn: Connection, public_id: str, *, deleted: bool = False) -> Any:
    """Raises NotFound, and Gone for a deleted one unless `deleted`."""
    found = conn.execute(run_rows().where(runs.c.public_id == public_id[:16])).first()
    if found is None or found.public_id != public_id:
        raise no_run(public_id)
    if found.state == DELETED and not deleted:
        raise Gone(f"the run was deleted on {_day(found)}: {found.state_reason}")
    return found


def _theirs(conn: Connection, public_id: str, account_id: int | None, *, moderator: bool = False) -> Any:
    """As `_one`, for an account: another's run that waits for a moderator is not there."""
    found = _one(conn, public_id)
    if found.state == QUEUED and found.account_id != account_id and not moderator:
        raise no_run(public_id)
    return found


def _by_hash(conn: Connection, content_hash: str) -> Any | None:
    return conn.execute(sa.select(runs).where(runs.c.content_hash == content_hash)).first()


def _day(run: Any) -> str:
    return datetime.fromtimestamp((run.state_us or run.received_us) / 1e6, UTC).strftime("%Y-%m-%d")


def _replaceable(old: Any, account_id: int | None) -> None:
    if old.account_id != account_id:
        raise Forbidden("the run that this one is to replace is not yours")
    if old.state not in (PUBLIC, QUEUED):
        raise Conflict(f"the run that this one is to replace is {old.state} already")


def _nobody_waits_for(conn: Connection, old: Any) -> None:
    """Of two that wait to take one place, the second approved would find it taken."""
    waits = conn.scalar(sa.select(runs.c.public_id).where(runs.c.state == QUEUED, runs.c.replaces_id == old.id))
    if waits is not None:
        raise Conflict(
            f"the run {waits} of yours waits already to take the place of {old.public_id}: name that one with "
            "`replaces`, or withdraw it"
        )


def needed_files(conn: Connection) -> set[tuple[str, str]]:
    """The files that runs need."""
    needed: set[tuple[str, str]] = set()
    for row in conn.execute(sa.select(runs.c.content_hash, runs.c.samples_hash).where(runs.c.state != DELETED)):
        needed.add((RECORDS, row.content_hash))
        if row.samples_hash:
            needed.add((SAMPLES, row.samples_hash))
    return needed


def _deed(conn: Connection, who: str, what: str, run_id: int | None, detail: str | None) -> None:
    moderation.note(conn, clean(who, 60), what, run_id=run_id, detail=detail)
