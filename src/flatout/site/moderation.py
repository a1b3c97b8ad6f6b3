"""Reports about runs, the moderators' queue, and what was done by whom."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, func, insert, literal, or_, select, update

from flatout.site import schema
from flatout.site.database import now_us
from flatout.site.errors import Conflict, NotFound, Refused, no_run
from flatout.site.schema import accounts, reports, runs

LONGEST_REASON: Final = 2_000
LONGEST_SHOWN: Final = 500
"""Of a reason that stands on a run's page."""
MOST_OPEN: Final = 20
"""Open reports a run: more tell the moderators nothing new."""
MOST_SHOWN: Final = 200
REPORTABLE: Final = frozenset({"public"})
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Report:
    """`by`: the account that made it, None without one. `outcome`: what the moderators decided, None while open."""

    id: int
    public_id: str
    reason: str
    made_us: int
    by: str | None
    settled_us: int | None
    settled_by: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits to be looked at. `replaces`: the public run whose place it takes then."""

    public_id: str
    model: str
    hardware: str
    engine: str
    received_us: int
    who: str | None
    trust: str
    replaces: str | None


@dataclass(frozen=True, slots=True)
class Deed:
    at_us: int
    who: str
    what: str
    public_id: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Queue:
    """Runs that wait for approval and reports that are open, oldest first, at most `MOST_SHOWN` of each; and how many
    there are."""

    runs: list[Waiting]
    reports: list[Report]
    runs_all: int
    reports_all: int


def note(conn: Connection, who: str, what: str, *, run_id: int | None = None, detail: str | None = None) -> None:
    """Keeps that `who` did `what`. `run_id`: the run's row."""
    at = now_us()
    conn.execute(insert(schema.deeds).values(at_us=at, who=who[:60], what=what[:40], run_id=run_id, detail=detail))


def unnamed(conn: Connection, name: str, instead: str) -> None:
    """Takes the name of an account that is closed out of all deeds: somebody else may have it from now on."""
    kept = schema.deeds.c
    conn.execute(update(schema.deeds).where(kept.who == name).values(who=instead))
    told = and_(
        kept.what.in_(("account made", "token made", "token revoked")),
        or_(kept.detail == name, kept.detail.startswith(f"{name}: ", autoescape=True)),
    )
    rest = func.substr(kept.detail, len(name) + 1)
    conn.execute(update(schema.deeds).where(told).values(detail=literal(instead) + rest))


def report(
    conn: Connection, public_id: str, reason: str, *, account_id: int | None = None, moderator: bool = False
) -> int:
    """A report about a public run; its number. Raises NotFound (also for another's run that waits), Conflict (not
    public, or reported often enough) and Refused (no reason, or too long a one)."""
    told = checked_reason(reason)
    run = _run(conn, public_id)
    mine = account_id is not None and run.account_id == account_id
    if run.state == "queued" and not mine and not moderator:
        raise no_run(public_id)
    if run.state not in REPORTABLE:
        raise Conflict("the run is not public, so there is nothing to report")
    still = select(func.count()).where(reports.c.run_id == run.id, reports.c.settled_us.is_(None))
    if conn.execute(still).scalar_one() >= MOST_OPEN:
        raise Conflict("the run was reported several times already; the moderators will look at it")
    made = conn.execute(
        insert(reports)
        .values(run_id=run.id, account_id=account_id, reason=told, made_us=now_us())
        .returning(reports.c.id)
    ).scalar_one()
    note(conn, _name(conn, account_id) or "visitor", "report made", run_id=run.id, detail=f"report {made}")
    return int(made)


def queue(conn: Connection, *, limit: int = MOST_SHOWN) -> Queue:
    """What waits for a moderator."""
    old = runs.alias("old")
    waiting = (
        select(runs, accounts.c.name, old.c.public_id.label("replaces"))
        .outerjoin(accounts, runs.c.account_id == accounts.c.id)
        .outerjoin(old, and_(runs.c.replaces_id == old.c.id, old.c.state == "public"))
        .where(runs.c.state == "queued")
        .order_by(runs.c.received_us, runs.c.id)
        .limit(limit)
    )
    still = _reports().where(reports.c.settled_us.is_(None)).order_by(reports.c.id).limit(limit)
    return Queue(
        [
            Waiting(r.public_id, r.model, r.hardware, r.engine, r.received_us, r.name, r.trust, r.replaces)
            for r in conn.execute(waiting)
        ],
        [_report(row) for row in conn.execute(still)],
        int(conn.execute(select(func.count()).where(runs.c.state == "queued")).scalar_one()),
        int(conn.execute(select(func.count()).where(reports.c.settled_us.is_(None))).scalar_one()),
    )


def reports_on(conn: Connection, public_id: str) -> list[Report]:
    """All reports about a run, newest first."""
    run = _run(conn, public_id)
    query = _reports().where(reports.c.run_id == run.id).order_by(reports.c.id.desc()).limit(MOST_SHOWN)
    return [_report(row) for row in conn.execute(query)]


def settle(conn: Connection, report_id: int, outcome: str, *, who: str, account_id: int | None) -> Report:
    """Closes a report with what was decided. Raises NotFound, Conflict (settled already) and Refused (no outcome)."""
    told = checked_reason(outcome, "outcome")
    found = conn.execute(_reports().where(reports.c.id == report_id)).one_or_none()
    if found is None:
        raise NotFound("there is no such report")
    done = conn.execute(
        update(reports)
        .where(reports.c.id == report_id, reports.c.settled_us.is_(None))
        .values(settled_us=now_us(), settled_by=account_id, outcome=told)
    )
    if not done.rowcount:
        raise Conflict("the report is settled already")
    note(conn, who, "report settled", run_id=found.run_id, detail=f"report {report_id}: {told}")
    return _report(conn.execute(_reports().where(reports.c.id == report_id)).one())


def settle_all(conn: Connection, public_id: str, outcome: str, *, who: str, account_id: int | None) -> int:
    """Closes every open report about a run, as one does by hiding it; how many there were."""
    run = _run(conn, public_id)
    query = select(reports.c.id).where(and_(reports.c.run_id == run.id, reports.c.settled_us.is_(None)))
    found = list(conn.execute(query).scalars())
    for report_id in found:
        settle(conn, report_id, outcome, who=who, account_id=account_id)
    return len(found)


def deeds(conn: Connection, public_id: str | None = None, *, limit: int = MOST_SHOWN) -> list[Deed]:
    """What was done, newest first: to one run, or at all. Raises NotFound."""
    kept = schema.deeds.c
    query = select(schema.deeds, runs.c.public_id).outerjoin(runs, kept.run_id == runs.c.id)
    if public_id is not None:
        query = query.where(kept.run_id == _run(conn, public_id).id)
    rows = conn.execute(query.order_by(kept.id.desc()).limit(limit))
    return [Deed(r.at_us, r.who, r.what, r.public_id, r.detail) for r in rows]


def checked_reason(reason: str, place: str = "reason", *, longest: int = LONGEST_REASON) -> str:
    """The reason without blanks around it and without characters that cannot be seen. Raises Refused."""
    told = "\n".join(line.strip() for line in reason.strip().splitlines())
    if not told:
        raise Refused(place, f"say the {place} in a few words; others will read it")
    if len(told) > longest:
        raise Refused(place, f"the {place} has {len(told):,} characters; {longest:,} are the most")
    if not plain(told.replace("\n", " ")):
        raise Refused(place, f"the {place} has characters that cannot be seen; leave them out")
    return told


def plain(text: str) -> bool:
    """No control characters, and none that cannot be seen or turn the direction of text; joiners are letters' parts."""
    return all(c in "\u200c\u200d" or unicodedata.category(c) not in _UNSEEN for c in text)


def _run(conn: Connection, public_id: str) -> Any:
    query = select(runs.c.id, runs.c.state, runs.c.account_id).where(runs.c.public_id == public_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise no_run(public_id)
    return row


def _name(conn: Connection, account_id: int | None) -> str | None:
    if account_id is None:
        return None
    name = conn.execute(select(accounts.c.name).where(accounts.c.id == account_id)).scalar_one_or_none()
    return None if name is None else str(name)


def _reports() -> Any:
    by, settler = accounts.alias("by"), accounts.alias("settler")
    return (
        select(reports, runs.c.public_id, by.c.name.label("by_name"), settler.c.name.label("settler_name"))
        .join(runs, reports.c.run_id == runs.c.id)
        .outerjoin(by, reports.c.account_id == by.c.id)
        .outerjoin(settler, reports.c.settled_by == settler.c.id)
    )


def _report(row: Any) -> Report:
    return Report(
        row.id, row.public_id, row.reason, row.made_us, row.by_name, row.settled_us, row.settler_name, row.outcome
    )
