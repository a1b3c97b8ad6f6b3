"""The list of runs: what was asked for in a short URL, the runs found, newest first, page by page.

A page begins after a (started, id) position, so pages stay right while runs come and go, and the hundredth costs as
much as the first. `search` finds the rows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from sqlalchemy import Connection, select

from flatout.show import numbers
from flatout.show.safe import clean
from flatout.site import search
from flatout.site.errors import Refused
from flatout.site.rows import RunRow
from flatout.site.schema import boards, names
from flatout.site.search import Position, Wanted
from flatout.suite import SuiteError, parse_context

LONGEST: Final = 200
"""Characters of a value in the URL; keys and labels are no longer."""
MOST_WORDS: Final = 8
MOST_ROWS: Final = 200
MOST_CHOICES: Final = 200
KEYS: Final[Mapping[str, str]] = {"m": "model", "h": "hardware", "e": "engine", "p": "precision", "s": "speculation"}
"""Parameter of the URL → kind of name."""
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
        return cls(q, **keys, context_tokens=_context(given), first=first, last=last, after=given.get("after") or None)

    def to_query(self) -> str:
        """The parameters as they stand in a URL behind `?`, without those that ask for nothing; '' for none."""
        told = {
            "q": self.q, **{name: getattr(self, kind) for name, kind in KEYS.items()},
            "c": None if self.context_tokens is None else _short(self.context_tokens),
            "from": self.first, "to": self.last, "after": self.after,
        }  # fmt: skip
        return urlencode([(name, str(value)) for name, value in told.items() if value])

    @property
    def empty(self) -> bool:
        """Nothing is asked for (a page's position aside)."""
        return self in (Filter(), Filter(after=self.after))


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
    wanted = _wanted(asked, secret, limit + 1)
    labels, notes = _names_of(conn, asked)
    if viewer.own or viewer.state is not None:
        rows = _special(conn, wanted, viewer)
    else:
        rows = [] if notes else search.public(conn, wanted)
        if viewer.account_id is not None or viewer.moderator:
            mine = None if viewer.moderator else viewer.account_id
            rows = _newest([*rows, *search.others(conn, wanted, states=("queued",), account_id=mine)])
    if not rows and not notes and asked.q:
        notes = (_NO_WORDS,)
    shown = rows[:limit]
    more = len(rows) > limit
    return Page(
        shown, position(shown[-1].started_us, shown[-1].id, secret) if more else None, labels, () if shown else notes
    )


def _special(conn: Connection, wanted: Wanted, viewer: Viewer) -> list[RunRow]:
    if viewer.own:
        if viewer.account_id is None:
            return []
        states = ("public", "queued", "hidden", "withdrawn") if viewer.state is None else (viewer.state,)
        return search.others(conn, wanted, states=states, account_id=viewer.account_id)
    if not viewer.moderator:
        return []
    return search.others(conn, wanted, states=(str(viewer.state),), account_id=None)


def _newest(rows: Sequence[RunRow]) -> list[RunRow]:
    return sorted(rows, key=lambda row: (row.started_us, row.id), reverse=True)


def _wanted(asked: Filter, secret: str, limit: int) -> Wanted:
    keys = {kind: key for kind in KEYS.values() if (key := getattr(asked, kind)) is not None}
    return Wanted(
        words=tuple(dict.fromkeys(asked.q.split())),
        keys=keys,
        context_tokens=asked.context_tokens,
        from_us=_us(asked.first) if asked.first else None,
        before_us=_us(asked.last + timedelta(days=1)) if asked.last else None,
        after=read_position(asked.after, secret) if asked.after else None,
        limit=limit,
    )


def _names_of(conn: Connection, asked: Filter) -> tuple[dict[str, str], tuple[str, ...]]:
    """(labels of the filter's keys by kind, what is said of those that are not there)."""
    labels: dict[str, str] = {}
    notes: list[str] = []
    for kind in KEYS.values():
        key = getattr(asked, kind)
        if key is None:
            continue
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
    """What there is to filter by."""
    found = {kind: _choices(conn, kind) for kind in KEYS.values()}
    return Choices(**found, context=_contexts(conn))


def _choices(conn: Connection, kind: str) -> list[Choice]:
    query = (
        select(names.c.key, names.c.label, names.c.runs)
        .where(names.c.kind == kind, names.c.runs > 0)
        .order_by(names.c.runs.desc(), names.c.key.desc())
        .limit(MOST_CHOICES)
    )
    return [Choice(row.key, row.label, row.runs) for row in conn.execute(query)]


def _contexts(conn: Connection) -> list[Choice]:
    """From the boards of one request alone, which every context has that was measured at all."""
    query = (
        select(boards.c.board, boards.c.configurations)
        .where(boards.c.kind == "single")
        .order_by(boards.c.configurations.desc(), boards.c.board.desc())
        .limit(MOST_CHOICES)
    )
    found = []
    for row in conn.execute(query):
        tokens = int(row.board.removeprefix("single:"))
        found.append((tokens, Choice(_short(tokens), numbers.context(tokens), row.configurations)))
    return [choice for _, choice in sorted(found, key=lambda pair: pair[0])]


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


def _context(given: Mapping[str, str]) -> int | None:
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
    return int((datetime(day.year, day.month, day.day, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000
