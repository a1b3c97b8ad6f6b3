"""Rows for a list of runs, newest first. The narrowest condition leads.

How many public runs can match stands in `names`. Each key has an index in the order of time, which is read until the
page is full while the other conditions are looked at row by row; only where no condition leads, the newest runs are.
So neither database has to guess which index to take, and SQLite needs no statistics.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, exists, or_, select, tuple_

from flatout.site.rows import RunRow, run_row, run_rows
from flatout.site.schema import names, points, runs
from flatout.site.sql import holds, unindexed

NARROW: Final = 1500
"""Runs of which all positions are read where a condition has too many keys to follow each."""
MOST_KEYS: Final = 12
_CHUNK: Final = 500
_COLUMNS: Final[Mapping[str, ColumnElement[str]]] = {
    "model": runs.c.model_key, "hardware": runs.c.hardware_key, "engine": runs.c.engine_key,
    "precision": runs.c.precision, "speculation": runs.c.speculation,
}  # fmt: skip
"""Kind of name → the column that holds its key."""
_TEXTS: Final = (runs.c.model, runs.c.hardware, runs.c.engine, runs.c.precision, runs.c.speculation)
_ID_SIGNS: Final = frozenset(string.ascii_lowercase + "234567")
_LEAST_ID: Final = 4


class Position(NamedTuple):
    """A row's place in the order of lists: later comes first, then the larger number."""

    started_us: int
    id: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list asks for. `keys`: by kind. `from_us` included, `before_us` not. `limit`: rows at most."""

    words: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    context_tokens: int | None = None
    from_us: int | None = None
    before_us: int | None = None
    after: Position | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class _Condition:
    """`where`: for row by row. `most`: public runs that can fulfil it. They are those with one of `keys` (column, key)
    and `ids`, where it can lead."""

    where: ColumnElement[bool]
    most: int
    keys: tuple[tuple[ColumnElement[str], str], ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def leads(self) -> bool:
        return (bool(self.keys) and len(self.keys) <= MOST_KEYS) or self.most <= NARROW


def public(conn: Connection, wanted: Wanted) -> list[RunRow]:
    """Public runs, newest first."""
    found = list(_conditions(conn, wanted))
    if any(condition.most <= 0 for condition in found):
        return []
    lead = min((c for c in found if c.leads), key=lambda c: c.most, default=None)
    rest = [c.where for c in found if c is not lead]
    if lead is None:
        return _rows(conn, walk(wanted, rest))
    if len(lead.keys) == 1 and not lead.ids:
        column, key = lead.keys[0]
        return _rows(conn, walk(wanted, [column == key, *rest]))
    return _led(conn, wanted, lead, rest)


def walk(wanted: Wanted, where: Sequence[ColumnElement[bool]], state: str = "public") -> Select[Any]:
    """The newest runs in that state that fulfil the conditions."""
    return _newest(run_rows().where(runs.c.state == state, *where), wanted)


def _newest(asked: Select[Any], wanted: Wanted) -> Select[Any]:
    order = (runs.c.started_us.desc(), runs.c.id.desc())
    return _within(asked, wanted).order_by(*order).limit(wanted.limit)


def _led(conn: Connection, wanted: Wanted, lead: _Condition, rest: Sequence[ColumnElement[bool]]) -> list[RunRow]:
    """The page from the newest positions of each of the leading condition's keys."""
    place = select(runs.c.started_us, runs.c.id)
    asked: list[Select[Any]] = []
    if len(lead.keys) <= MOST_KEYS:
        asked += [_newest(place.where(c == key, runs.c.state == "public", *rest), wanted) for c, key in lead.keys]
    else:
        for column in dict.fromkeys(column for column, _ in lead.keys):
            keys = [key for c, key in lead.keys if c is column]
            asked.append(_within(place.where(column.in_(keys), unindexed(runs.c.state) == "public", *rest), wanted))
    for i in range(0, len(lead.ids), _CHUNK):
        some = runs.c.id.in_(lead.ids[i : i + _CHUNK])
        asked.append(_within(place.where(some, unindexed(runs.c.state) == "public", *rest), wanted))
    seen = {Position(*row) for one in asked for row in conn.execute(one)}
    ids = [position.id for position in sorted(seen, reverse=True)[: wanted.limit]]
    rows = _rows(conn, run_rows().where(runs.c.id.in_(ids), unindexed(runs.c.state) == "public"))
    return sorted(rows, key=lambda row: (row.started_us, row.id), reverse=True)


def others(conn: Connection, wanted: Wanted, *, states: Sequence[str], account_id: int | None) -> list[RunRow]:
    """Runs in these states, of one account or of all, newest first. They are few, or an account's: no counts lead."""
    where = [*_plainly(wanted)]
    if account_id is not None:
        mine = run_rows().where(runs.c.account_id == account_id, unindexed(runs.c.state).in_(states), *where)
        order = (unindexed(runs.c.started_us).desc(), runs.c.id.desc())
        return _rows(conn, _within(mine, wanted).order_by(*order).limit(wanted.limit))
    rows = [row for state in states for row in _rows(conn, walk(wanted, where, state))]
    return sorted(rows, key=lambda row: (row.started_us, row.id), reverse=True)[: wanted.limit]


def _rows(conn: Connection, asked: Select[Any]) -> list[RunRow]:
    return [run_row(row) for row in conn.execute(asked)]


def _within(asked: Select[Any], wanted: Wanted) -> Select[Any]:
    """The dates, and what lies behind the page's position."""
    if wanted.from_us is not None:
        asked = asked.where(runs.c.started_us >= wanted.from_us)
    if wanted.before_us is not None:
        asked = asked.where(runs.c.started_us < wanted.before_us)
    if wanted.after is not None:
        asked = asked.where(tuple_(runs.c.started_us, runs.c.id) < tuple_(wanted.after.started_us, wanted.after.id))
    return asked


def _conditions(conn: Connection, wanted: Wanted) -> Iterator[_Condition]:
    for kind, key in wanted.keys.items():
        column = _COLUMNS[kind]
        count = conn.scalar(select(names.c.runs).where(names.c.kind == kind, names.c.key == key)) or 0
        yield _Condition(unindexed(column) == key, count, ((column, key),))
    if wanted.context_tokens is not None:
        yield _context(conn, wanted.context_tokens)
    for word in wanted.words:
        yield _word(conn, word)


def _context(conn: Connection, tokens: int) -> _Condition:
    """Runs that measured something at that context."""
    measured = select(points.c.run_id).where(points.c.context_tokens == tokens)
    here = exists().where(points.c.run_id == runs.c.id, points.c.context_tokens == tokens)
    if conn.execute(measured.offset(NARROW * 4).limit(1)).first() is not None:
        return _Condition(here, NARROW + 1)
    ids = tuple(conn.scalars(measured.distinct().limit(NARROW + 1)))
    return _Condition(here, len(ids), ids=ids)


def _word(conn: Connection, word: str) -> _Condition:
    """Runs one of whose names holds the word, or whose id it is."""
    fits = (names.c.runs > 0, holds(names.c.label, word))
    found = conn.execute(select(names.c.kind, names.c.key, names.c.runs).where(*fits).limit(_CHUNK)).all()
    ids = tuple(_with_id(conn, word))
    if len(found) == _CHUNK:  # as good as everything
        keys = {kind: select(names.c.key).where(names.c.kind == kind, *fits) for kind in _COLUMNS}
        some = [unindexed(column).in_(keys[kind]) for kind, column in _COLUMNS.items()]
        return _Condition(or_(*some, unindexed(runs.c.id).in_(ids)), NARROW + 1)
    by_kind: dict[str, list[str]] = {}
    for row in found:
        if row.kind in _COLUMNS:
            by_kind.setdefault(row.kind, []).append(row.key)
    parts = [unindexed(_COLUMNS[kind]).in_(keys) for kind, keys in by_kind.items()]
    named = tuple((_COLUMNS[kind], key) for kind, keys in by_kind.items() for key in keys)
    return _Condition(
        or_(*parts, unindexed(runs.c.id).in_(ids)), sum(row.runs for row in found) + len(ids), named, ids
    )  # fmt: skip


def _with_id(conn: Connection, word: str) -> Iterator[int]:
    """Public runs of that record id, and those whose own id begins like that."""
    for where in _is_id(word):
        yield from conn.scalars(select(runs.c.id).where(where, unindexed(runs.c.state) == "public").limit(_CHUNK))


def _is_id(word: str) -> list[ColumnElement[bool]]:
    low = word.lower()
    told: list[ColumnElement[bool]] = [runs.c.record_id == word]
    if len(low) >= _LEAST_ID and set(low) <= _ID_SIGNS:
        # no sign of an id sorts behind z, whatever the database's language
        told.append(runs.c.public_id.between(low, low.ljust(16, "z")))
    return told


def _plainly(wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    """The conditions as they stand, for rows whose names are not counted."""
    for kind, key in wanted.keys.items():
        yield unindexed(_COLUMNS[kind]) == key
    if wanted.context_tokens is not None:
        yield exists().where(points.c.run_id == runs.c.id, points.c.context_tokens == wanted.context_tokens)
    for word in wanted.words:
        yield or_(*_is_id(word), *(holds(column, word) for column in _TEXTS))
