"""The list of runs: what was asked for in a short URL, the runs found, newest first, page by page.

A page begins after a (started, id) position, so pages stay right while runs come and go, and the hundredth costs as
much as the first. The narrowest condition leads: how many public runs can match stands in `names`. Each key has an
index in the order of time, which is read until the page is full while the other conditions are looked at row by row;
only where no condition leads, the newest runs are. So neither database has to guess which index to take, and SQLite
needs no statistics.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Connection, Select, exists, or_, select, tuple_

from flatout.show import numbers
from flatout.show.safe import clean
from flatout.site.database import holds, unindexed
from flatout.site.errors import Refused
from flatout.site.index import RunRow, run_row, run_rows
from flatout.site.schema import boards, names, points, runs
from flatout.suite import SuiteError, parse_context

LONGEST: Final = 200
"""Characters of a value in the URL; keys and labels are no longer."""
MOST_WORDS: Final = 8
MOST_ROWS: Final = 200
MOST_CHOICES: Final = 200
KEYS: Final[Mapping[str, str]] = {"m": "model", "h": "hardware", "e": "engine", "p": "precision", "s": "speculation"}
"""Parameter of the URL → kind of name."""
_OWN_STATES: Final = ("public", "queued", "hidden", "withdrawn")
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_POSITION: Final = struct.Struct(">qq")
_MARK_BYTES: Final = 12
_NO_WORDS: Final = (
    "No run fits all words. They are looked for in the names of models, hardware, engines, precisions and speculative "
    "methods; a record's id must be whole, a run's its first four characters or more."
)


@dataclass(frozen=True, slots=True)
class Filter:
    """What is looked for; None and empty: anything. Model, hardware, … by key. `first`, `last`: days, in UTC, both
    included. `after`: where the page begins, as `Page.next` gave it."""

    q: str = ""
    model: str | None = None
    hardware: str | None = None
    engine: str | None = None
    precision: str | None = None
    speculation: str | None = None
    context_tokens: int | None = None
    first: date | None = None
    last: date | None = None
    after: str | None = None

    @classmethod
    def from_query(cls, given: Mapping[str, str]) -> Filter:
        """The filter in a URL's parameters `q m h e p s c from to after`; others are left alone. Raises Refused where
        one is too long, or no context length or day."""
        for name in ("q", *KEYS, "c", "from", "to", "after"):
            if len(given.get(name, "")) > LONGEST:
                raise Refused(name, f"'{name}' has over {LONGEST} characters; write fewer")
        first, last = _day(given, "from"), _day(given, "to")
        if first and last and first > last:
            raise Refused("to", f"the days are the wrong way round: from {first} to {last}")
        q = clean(given.get("q", ""), LONGEST).strip()
        if len(q.split()) > MOST_WORDS:
            raise Refused("q", f"at most {MOST_WORDS} words are looked for at once")
        keys = {kind: clean(given[name], LONGEST).strip() or None for name, kind in KEYS.items() if given.get(name)}
        return cls(q, **keys, context_tokens=_tokens(given), first=first, last=last, after=given.get("after") or None)

    def to_query(self) -> str:
        """The parameters as they stand in a URL behind `?`, without those that ask for nothing; '' for none."""
        told = {
            "q": self.q, **{name: getattr(self, kind) for name, kind in KEYS.items()},
            "c": None if self.context_tokens is None else _short(self.context_tokens),
            "from": self.first, "to": self.last, "after": self.after,
        }  # fmt: skip
        return urlencode([(name, str(value)) for name, value in told.items() if value])

    @property
    def words(self) -> list[str]:
        return list(dict.fromkeys(self.q.split()))

    @property
    def keys(self) -> dict[str, str]:
        """By kind, those that are asked for."""
        return {kind: key for kind in KEYS.values() if (key := getattr(self, kind)) is not None}

    @property
    def empty(self) -> bool:
        """Nothing is asked for (a page's position aside)."""
        return self in (Filter(), Filter(after=self.after))


class Position(NamedTuple):
    """A row's place in the order of lists: later comes first, then the larger number."""

    started_us: int
    id: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A page of a list. `limit`: rows at most."""

    asked: Filter
    after: Position | None
    limit: int


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. An owner sees own runs that wait for a moderator, a moderator all of them. `own`: an owner's runs
    alone, in every state but deleted. `state`: the runs in that state alone (a moderator's lists)."""

    account_id: int | None = None
    moderator: bool = False
    own: bool = False
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Runs, newest first. `next`: the position of the page behind it, None on the last. `labels`: of the filter's
    keys, by kind. `notes`: why nothing can be found."""

    rows: list[RunRow]
    next: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Something to filter by, with the number of public runs (configurations, for a context)."""

    key: str
    label: str
    runs: int


@dataclass(frozen=True, slots=True)
class Choices:
    """By kind, most runs first, at most MOST_CHOICES each; contexts in tokens, shortest first."""

    model: list[Choice]
    hardware: list[Choice]
    engine: list[Choice]
    precision: list[Choice]
    speculation: list[Choice]
    context: list[Choice]


def find(conn: Connection, asked: Filter, *, limit: int, secret: str, viewer: Viewer | None = None) -> Page:
    """One page of at most `limit` (1 to 200) runs. Raises Refused for a position that this site did not give."""
    viewer = viewer or Viewer()
    limit = max(1, min(limit, MOST_ROWS))
    wanted = _Wanted(asked, read_position(asked.after, secret) if asked.after else None, limit + 1)
    labels, notes = _names_of(conn, asked)
    states = (viewer.state,) if viewer.state is not None else _OWN_STATES
    if viewer.own:
        rows = _others(conn, wanted, states, viewer.account_id) if viewer.account_id is not None else []
    elif viewer.state is not None:
        rows = _others(conn, wanted, states, None) if viewer.moderator else []
    else:
        rows = [] if notes else _public(conn, wanted)
        if viewer.account_id is not None or viewer.moderator:
            waiting = _others(conn, wanted, ("queued",), None if viewer.moderator else viewer.account_id)
            rows = _newest_first([*rows, *waiting])
    if not rows and not notes and asked.q:
        notes = (_NO_WORDS,)
    shown = rows[:limit]
    after = position(shown[-1].started_us, shown[-1].id, secret) if len(rows) > limit else None
    return Page(shown, after, labels, () if shown else notes)


def _newest_first(rows: Sequence[RunRow]) -> list[RunRow]:
    return sorted(rows, key=lambda row: (row.started_us, row.id), reverse=True)


def _names_of(conn: Connection, asked: Filter) -> tuple[dict[str, str], tuple[str, ...]]:
    """(labels of the filter's keys by kind, what is said of those that are not there)."""
    labels: dict[str, str] = {}
    notes: list[str] = []
    for kind, key in asked.keys.items():
        found = conn.execute(
            select(names.c.label, names.c.runs).where(names.c.kind == kind, names.c.key == key)
        ).first()
        if found is not None:
            labels[kind] = found.label
        if found is None or found.runs <= 0:
            notes.append(f"There is no public run with {_called(kind)} ‘{key}’.")
    return labels, tuple(notes)


def _called(kind: str) -> str:
    return {"speculation": "the speculative method", "hardware": "the hardware"}.get(kind, f"the {kind}")


def choices(conn: Connection) -> Choices:
    """What there is to filter by. Contexts are those of the boards of one request alone, which every context has that
    was measured at all."""
    made: dict[str, list[Choice]] = {}
    for kind in KEYS.values():
        there = select(names.c.key, names.c.label, names.c.runs).where(names.c.kind == kind, names.c.runs > 0)
        most = there.order_by(names.c.runs.desc(), names.c.key.desc()).limit(MOST_CHOICES)
        made[kind] = [Choice(*row) for row in conn.execute(most)]
    single = select(boards.c.board, boards.c.configurations).where(boards.c.kind == "single")
    most = single.order_by(boards.c.configurations.desc(), boards.c.board.desc()).limit(MOST_CHOICES)
    contexts = sorted((int(row.board.removeprefix("single:")), row.configurations) for row in conn.execute(most))
    return Choices(**made, context=[Choice(_short(tokens), numbers.context(tokens), n) for tokens, n in contexts])


def position(started_us: int, run_id: int, secret: str) -> str:
    """Where a page begins, as URLs have it: opaque, and signed so that only the site's own are looked up."""
    content = _POSITION.pack(started_us, run_id)
    return base64.urlsafe_b64encode(content + _mark(content, secret)).rstrip(b"=").decode()


def read_position(text: str, secret: str) -> Position:
    """The position in a URL. Raises Refused for one that this site did not give."""
    try:
        data = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    content, mark = data[: _POSITION.size], data[_POSITION.size :]
    if len(content) != _POSITION.size or not hmac.compare_digest(mark, _mark(content, secret)):
        raise Refused("after", "this place in the list is not known here: begin again with its first page")
    started_us, run_id = _POSITION.unpack(content)
    return Position(started_us, run_id)


def _mark(content: bytes, secret: str) -> bytes:
    key = hashlib.sha256(b"position\0" + secret.encode()).digest()
    return hmac.new(key, content, hashlib.sha256).digest()[:_MARK_BYTES]


def _day(given: Mapping[str, str], name: str) -> date | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    try:
        found = date.fromisoformat(text) if _DAY.fullmatch(text) and text.isascii() else None
    except ValueError:
        found = None
    if found is None or not 1970 <= found.year <= 9998:
        raise Refused(name, f"{clean(text, 40)!r} is no day; write it as 2026-11-30")
    return found


def _tokens(given: Mapping[str, str]) -> int | None:
    text = given.get("c", "").strip()
    if not text:
        return None
    try:
        found = parse_context(text if text.isascii() else "?")
    except SuiteError as error:
        raise Refused(
            "c", f"{clean(text, 40)!r} is no context length; write tokens (8192) or thousands (8k)"
        ) from error
    if isinstance(found, str):
        raise Refused(
            "c", "'max' and 'full' are different lengths on each server; write tokens (8192) or thousands (8k)"
        )
    return found


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _us(day: date) -> int:
    return (datetime(day.year, day.month, day.day, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


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
_PUBLIC: Final = runs.c.state == "public"
_UNINDEXED_PUBLIC: Final = unindexed(runs.c.state) == "public"


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


def _public(conn: Connection, wanted: _Wanted) -> list[RunRow]:
    """Public runs, newest first."""
    found = list(_conditions(conn, wanted.asked))
    if any(condition.most <= 0 for condition in found):
        return []
    lead = min((c for c in found if c.leads), key=lambda c: c.most, default=None)
    rest = [c.where for c in found if c is not lead]
    if lead is not None and (len(lead.keys) != 1 or lead.ids):
        return _led(conn, wanted, lead, rest)
    first = [column == key for column, key in lead.keys] if lead is not None else []
    return _rows(conn, _newest(run_rows().where(_PUBLIC, *first, *rest), wanted))


def _led(conn: Connection, wanted: _Wanted, lead: _Condition, rest: Sequence[ColumnElement[bool]]) -> list[RunRow]:
    """The page from the newest positions of each of the leading condition's keys."""
    place = select(runs.c.started_us, runs.c.id).where(*rest)
    asked: list[Select[Any]] = []
    some: list[ColumnElement[bool]] = []
    if len(lead.keys) <= MOST_KEYS:
        asked += [_newest(place.where(column == key, _PUBLIC), wanted) for column, key in lead.keys]
    else:
        for column in dict.fromkeys(column for column, _ in lead.keys):
            some.append(column.in_([key for c, key in lead.keys if c is column]))
    some += [runs.c.id.in_(lead.ids[i : i + _CHUNK]) for i in range(0, len(lead.ids), _CHUNK)]
    asked += [_within(place.where(where, _UNINDEXED_PUBLIC), wanted) for where in some]
    seen = {Position(*row) for one in asked for row in conn.execute(one)}
    ids = [position.id for position in sorted(seen, reverse=True)[: wanted.limit]]
    return _newest_first(_rows(conn, run_rows().where(runs.c.id.in_(ids), _UNINDEXED_PUBLIC)))


def _others(conn: Connection, wanted: _Wanted, states: Sequence[str], account_id: int | None) -> list[RunRow]:
    """Runs in these states, of one account or of all, newest first. They are few, or an account's: no counts lead."""
    asked = run_rows().where(*_plainly(wanted.asked))
    if account_id is not None:
        mine = _within(asked.where(runs.c.account_id == account_id, unindexed(runs.c.state).in_(states)), wanted)
        order = (unindexed(runs.c.started_us).desc(), runs.c.id.desc())
        return _rows(conn, mine.order_by(*order).limit(wanted.limit))
    rows = [row for state in states for row in _rows(conn, _newest(asked.where(runs.c.state == state), wanted))]
    return _newest_first(rows)[: wanted.limit]


def _rows(conn: Connection, asked: Select[Any]) -> list[RunRow]:
    return [run_row(row) for row in conn.execute(asked)]


def _newest(asked: Select[Any], wanted: _Wanted) -> Select[Any]:
    return _within(asked, wanted).order_by(runs.c.started_us.desc(), runs.c.id.desc()).limit(wanted.limit)


def _within(asked: Select[Any], wanted: _Wanted) -> Select[Any]:
    """The dates, and what lies behind the page's position."""
    if wanted.asked.first is not None:
        asked = asked.where(runs.c.started_us >= _us(wanted.asked.first))
    if wanted.asked.last is not None:
        asked = asked.where(runs.c.started_us < _us(wanted.asked.last + timedelta(days=1)))
    if wanted.after is not None:
        asked = asked.where(tuple_(runs.c.started_us, runs.c.id) < tuple_(*wanted.after))
    return asked


def _conditions(conn: Connection, asked: Filter) -> Iterator[_Condition]:
    for kind, key in asked.keys.items():
        column = _COLUMNS[kind]
        count = conn.scalar(select(names.c.runs).where(names.c.kind == kind, names.c.key == key)) or 0
        yield _Condition(unindexed(column) == key, count, ((column, key),))
    if asked.context_tokens is not None:
        yield _context(conn, asked.context_tokens)
    for word in asked.words:
        yield _word(conn, word)


def _context(conn: Connection, tokens: int) -> _Condition:
    """Runs that measured something at that context."""
    measured = select(points.c.run_id).where(points.c.context_tokens == tokens)
    here = _measured_at(tokens)
    if conn.execute(measured.offset(NARROW * 4).limit(1)).first() is not None:
        return _Condition(here, NARROW + 1)
    ids = tuple(conn.scalars(measured.distinct().limit(NARROW + 1)))
    return _Condition(here, len(ids), ids=ids)


def _measured_at(tokens: int) -> ColumnElement[bool]:
    return exists().where(points.c.run_id == runs.c.id, points.c.context_tokens == tokens)


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
        yield from conn.scalars(select(runs.c.id).where(where, _UNINDEXED_PUBLIC).limit(_CHUNK))


def _is_id(word: str) -> list[ColumnElement[bool]]:
    low = word.lower()
    told: list[ColumnElement[bool]] = [runs.c.record_id == word]
    if len(low) >= _LEAST_ID and set(low) <= _ID_SIGNS:
        # no sign of an id sorts behind z, whatever the database's language
        told.append(runs.c.public_id.between(low, low.ljust(16, "z")))
    return told


def _plainly(asked: Filter) -> Iterator[ColumnElement[bool]]:
    """The conditions as they stand, for rows whose names are not counted."""
    for kind, key in asked.keys.items():
        yield unindexed(_COLUMNS[kind]) == key
    if asked.context_tokens is not None:
        yield _measured_at(asked.context_tokens)
    for word in asked.words:
        yield or_(*_is_id(word), *(holds(column, word) for column in _TEXTS))
