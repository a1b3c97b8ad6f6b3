"""Leaderboards: which operating points a run stands on, repeats pooled, places shared; and their rows in the database,
made anew for a configuration when one of its runs changes.

Single-stream decode, total throughput at a stated concurrency, prefill, and how many at once at a rate each are boards
of their own: no ranking mixes them. Only valid cells count: where requests queued, fewer ran than the board says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, Literal, Protocol

from sqlalchemy import Connection, delete, func, insert, select

from flatout.compare.ratio import Estimate, Ratio, estimate, of_samples, ratio, together
from flatout.flags import Status
from flatout.show import numbers
from flatout.site import schema
from flatout.site.database import unindexed, upsert
from flatout.site.index import PointRow
from flatout.site.schema import standings

Kind = Literal["single", "total", "prefill", "users"]
KINDS: Final[tuple[Kind, ...]] = ("single", "total", "prefill", "users")
EACH_TOK_S: Final = (10, 20, 30, 50)
"""Rates that each request must have on the boards that count requests."""
UNKNOWN_SHARE: Final = 0.03
"""A rate without an interval is placed as if it were known to ±3 %; the page says so."""
VAGUE: Final = 1.5
"""Upper over lower end of a publisher's interval that is too wide to agree or disagree with anybody."""
MOST_BOARDS: Final = 600
"""Of one configuration, shortest contexts first: a matrix of 24 contexts and 16 concurrencies has 500."""
_LARGEST: Final = 2**31 - 1
_NAME: Final = re.compile(
    r"(?:(?P<one>single|prefill):(?P<c>[1-9]\d{0,9})|(?P<two>total|users):(?P<c2>[1-9]\d{0,9}):(?P<n>[1-9]\d{0,9}))"
)


@dataclass(frozen=True, slots=True)
class Board:
    """An operating point that is ranked. `n`: concurrency (total; 1 for single and prefill), or the tok/s that each
    request must have (users)."""

    kind: Kind
    context_tokens: int
    n: int = 1

    @property
    def name(self) -> str:
        """As in URLs and tables: `single:8192`, `total:8192:32`, `prefill:32768`, `users:8192:30`."""
        head = f"{self.kind}:{self.context_tokens}"
        return head if self.kind in ("single", "prefill") else f"{head}:{self.n}"

    @property
    def title(self) -> str:
        context = numbers.context(self.context_tokens)
        return {
            "single": f"{context} × 1 decode",
            "total": f"{context} × {self.n:,} total",
            "prefill": f"{context} prefill",
            "users": f"{context}: most at once at ≥ {self.n} tok/s each",
        }[self.kind]

    @property
    def unit(self) -> str:
        return "requests at once" if self.kind == "users" else "tok/s"

    @property
    def about(self) -> str:
        """What is ranked, in a sentence."""
        context = numbers.context(self.context_tokens)
        return {
            "single": f"Decode speed of one request alone on the server, at a context of {context}.",
            "total": f"Tokens a second of {self.n:,} simultaneous requests together, each at a context of {context}.",
            "prefill": f"How fast a cold prompt of {context} tokens is read, alone on the server.",
            "users": f"The largest measured number of simultaneous requests at a context of {context} at which the "
            f"median request gets {self.n} tok/s or more, with no smaller number that misses it.",
        }[self.kind]


def parse(name: str) -> Board | None:
    """The board of that name, or None if there can be none."""
    match = _NAME.fullmatch(name) if name.isascii() else None
    if match is None:
        return None
    context, n = int(match["c"] or match["c2"]), int(match["n"] or 1)
    if context > _LARGEST or n > _LARGEST:
        return None
    kind: Kind = next(kind for kind in KINDS if kind in (match["one"], match["two"]))
    if (kind == "users" and n not in EACH_TOK_S) or (kind == "total" and n == 1):
        return None
    return Board(kind, context, n)


@dataclass(frozen=True, slots=True)
class Pooled:
    """Some runs' values as one: geometric mean, 95 % interval (None where it is not known), and how many runs. On a
    board that counts requests [low, high] is what the tested numbers leave open; `high` None: this many or more."""

    value: float
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a configuration. `account`: who published it; None: local results, which count as one publisher."""

    account: int | None
    doubtful: bool
    points: Sequence[PointRow]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the publishers of a configuration say on one board. `accounts`: whose runs are pooled; `others`: how many
    are shown to differ and left out, with the least and the largest of their values; `doubtful`: every run is."""

    pooled: Pooled
    accounts: frozenset[int | None]
    others: int
    others_low: float | None
    others_high: float | None
    doubtful: bool


@lru_cache(maxsize=4096)
def board_of(phase: str, context_tokens: int, concurrency: int) -> Board | None:
    """The board that ranks a cell's own rate; None for bursts and what can be no cell."""
    if context_tokens < 1 or concurrency < 1 or phase not in ("prefill", "decode"):
        return None
    if phase == "prefill":
        return Board("prefill", context_tokens)
    return Board("single" if concurrency == 1 else "total", context_tokens, concurrency)


def pooled_boards(runs: Sequence[Sequence[PointRow]]) -> dict[Board, Pooled]:
    """All boards that the repeats of one configuration stand on together, shortest contexts first, at most
    MOST_BOARDS."""
    cells: dict[tuple[str, int, int], list[PointRow]] = {}
    for run in runs:
        for point in run:
            if _usable(point):
                cells.setdefault((point.phase, point.context_tokens, point.concurrency), []).append(point)
    found: dict[Board, Pooled] = {}
    for (phase, context, n), same in cells.items():
        board = board_of(phase, context, n)
        pooled = pool_points(same) if board is not None else None
        if board is not None and pooled is not None:
            found[board] = pooled
    for context in {c for phase, c, _ in cells if phase == "decode"}:
        row = {n: same for (phase, c, n), same in cells.items() if phase == "decode" and c == context}
        for each in EACH_TOK_S:
            held = _held(row, each)
            if held is not None:
                found[Board("users", context, each)] = held
    return {board: found[board] for board in sorted(found, key=_order)[:MOST_BOARDS]}


def ranked_boards(runs: Sequence[Run], first: Sequence[int | None]) -> dict[Board, Agreed]:
    """All boards that a configuration stands on, shortest contexts first, at most MOST_BOARDS: each publisher's runs
    are pooled, then those publishers who agree (`agreed`). Doubtful runs count where there is no other alone.

    `first`: the publishers in the order in which they first published this configuration.
    """
    sound, doubtful = (_by_account(runs, first, doubtful=word) for word in (False, True))
    made: dict[Board, Agreed] = {}
    for board in _shared_out([*sound.values(), *doubtful.values()]):
        values = {account: there[board] for account, there in sound.items() if board in there}
        only = not values
        if only:
            values = {account: there[board] for account, there in doubtful.items() if board in there}
        made[board] = agreed(values, counts=board.kind == "users", doubtful=only)
    return made


def _by_account(
    runs: Sequence[Run], first: Sequence[int | None], *, doubtful: bool
) -> dict[int | None, dict[Board, Pooled]]:
    mine = {account: [r.points for r in runs if r.account == account and r.doubtful is doubtful] for account in first}
    return {account: pooled_boards(points) for account, points in mine.items() if points}


def _shared_out(found: Sequence[dict[Board, Pooled]]) -> list[Board]:
    """MOST_BOARDS of all, the first of each publisher before the second of any: nobody fills them alone."""
    rank: dict[Board, int] = {}
    for there in found:
        for number, board in enumerate(there):
            rank[board] = min(number, rank.get(board, number))
    chosen = sorted(rank, key=rank.__getitem__)[:MOST_BOARDS]
    return sorted(chosen, key=_order)


def _order(board: Board) -> tuple[int, int, int]:
    return board.context_tokens, KINDS.index(board.kind), board.n


def agreed(values: dict[int | None, Pooled], *, counts: bool, doubtful: bool = False) -> Agreed:
    """One value out of each publisher's, who come in the order in which they first published. Raises ValueError for no
    publisher.

    In the centre stands the median; of an even number, the one of the middle two who published first. Who is not shown
    to differ from it (the ratio's 95 % interval covers 1) is pooled with it, each with one weight. A publisher whose
    interval is wider than VAGUE counts only where all are: it would agree with anything. `counts`: numbers of requests,
    of which the centre's stands, and who agrees leaves it open as well.
    """
    narrow = {a: p for a, p in values.items() if counts or not _vague(p)} or values
    order = list(narrow)
    ranked = sorted(order, key=lambda a: narrow[a].value)
    centre = min(ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1], key=order.index)
    apart = [p.value for p in values.values() if not _same(values[centre], p, counts=counts)]
    alike = {a: p for a, p in narrow.items() if _same(narrow[centre], p, counts=counts)}
    runs = sum(p.runs for p in alike.values())
    middle = narrow[centre]
    if len(alike) > 1 and not counts:
        known = [e for e in (estimate(p.value, p.low, p.high) for p in alike.values()) if e is not None]
        middle = pool(known) or middle
    return Agreed(
        Pooled(middle.value, middle.low, middle.high, runs), frozenset(alike), len(apart), min(apart, default=None),
        max(apart, default=None), doubtful,
    )  # fmt: skip


def _vague(one: Pooled) -> bool:
    if one.low is None or one.high is None:
        return False
    return one.low <= 0 or one.high / one.low > VAGUE


def _same(one: Pooled, other: Pooled, *, counts: bool) -> bool:
    """The two are not shown to differ."""
    if counts:
        return max(one.value, other.value) <= min(math.inf if p.high is None else p.high for p in (one, other))
    made = lead(one, other)
    return made.low is None or made.high is None or made.low <= 1 <= made.high


def _usable(point: PointRow) -> bool:
    return point.sound and 0 < point.context_tokens <= _LARGEST and 0 < point.concurrency <= _LARGEST


def pool_points(points: Sequence[PointRow]) -> Pooled | None:
    """The rate of one cell over some runs; None where no run has a valid one."""
    usable = [p for p in points if p.status == Status.VALID]
    return pool([e for e in (estimate(p.rate_tok_s, p.rate_low, p.rate_high) for p in usable) if e is not None])


def pool(runs: Sequence[Estimate]) -> Pooled | None:
    """Geometric mean; its interval from the runs' own (independent), or from the spread between them (Student's t on
    logarithms), whichever is wider. None for no run."""
    if not runs:
        return None
    if len(runs) == 1:
        return Pooled(runs[0].value, runs[0].low, runs[0].high, 1)
    within = together([_as_ratio(run) for run in runs])
    between = of_samples(within.value, [run.value for run in runs])
    spans = [(e.low, e.high) for e in (within, between) if e is not None and e.low is not None and e.high is not None]
    low, high = max(spans, key=lambda s: math.inf if s[0] <= 0 else s[1] / s[0]) if spans else (None, None)
    if high is not None and not math.isfinite(high):
        low = high = None
    return Pooled(within.value, low, high, len(runs))


def _as_ratio(run: Estimate) -> Ratio:
    error = None if run.below is None or run.above is None else max(run.below, run.above)
    return Ratio(run.value, error=error)


def _held(row: dict[int, list[PointRow]], each_tok_s: float) -> Pooled | None:
    """The largest number at once at which each request gets the rate. Counts upwards and stops at the first that
    misses: a larger one that gets it again is luck. Where requests queue, the number did not run at once."""
    met: tuple[int, int] | None = None
    for n in sorted(row):
        rates = [p.each_tok_s for p in row[n] if p.each_tok_s is not None and 0 < p.each_tok_s < math.inf]
        if not rates:
            continue
        if math.fsum(math.log(r) for r in rates) / len(rates) < math.log(each_tok_s) - 1e-12:
            return None if met is None else Pooled(float(met[0]), float(met[0]), float(n - 1), met[1])
        valid = sum(p.status == Status.VALID for p in row[n])
        if valid:
            met = n, valid
    return None if met is None else Pooled(float(met[0]), float(met[0]), None, met[1])


class Ranked(Protocol):
    """A row of a ranking."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def places(rows: Sequence[Ranked], *, counts: bool = False) -> list[int]:
    """The place of each row; rows come with the largest value first (ValueError otherwise).

    A row is behind those that are shown to be faster: the 95 % interval of the ratio of the two lies above 1. No row
    stands before one above it. `counts`: exact numbers (requests at once), where only equal ones share.
    """
    values = [row.value for row in rows]
    if any(a < b for a, b in pairwise(values)):
        raise ValueError("a ranking begins with its largest value")
    if counts:
        return [values.index(value) + 1 for value in values]
    found: list[int] = []
    logs = [math.log(value) for value in values]
    errors = [_errors(row) for row in rows]
    for i, (mine, (_, above)) in enumerate(zip(logs, errors, strict=True)):
        faster = sum(logs[j] - mine > math.hypot(errors[j][0], above) for j in range(i))
        found.append(max(faster + 1, found[-1] if found else 1))
    return found


def _errors(row: Ranked) -> tuple[float, float]:
    """Half widths of the 95 % interval of the logarithm, downwards and upwards."""
    made = as_estimate(row)
    quantile = 1.959963984540054  # as in `estimate`, which divides by it
    return (made.below or 0.0) * quantile, (made.above or 0.0) * quantile


def as_estimate(row: Ranked) -> Estimate:
    """A row's value with its interval, or with ±3 % where it has none. Raises ValueError for what is not positive."""
    made = estimate(row.value, row.low, row.high)
    if made is not None and made.below is None:
        made = estimate(row.value, row.value / (1 + UNKNOWN_SHARE), row.value * (1 + UNKNOWN_SHARE))
    if made is None:
        raise ValueError(f"{row.value!r} is no rate")
    return made


def lead(first: Ranked, second: Ranked) -> Ratio:
    """How many times as fast the first is as the second, with its interval."""
    return ratio([as_estimate(second)], [as_estimate(first)])


MOST_RUNS: Final = 200
"""Of one configuration, the newest of each publisher: enough for any interval."""
MOST_ROWS: Final = 500
DOUBTFUL: Final = "doubtful"
_RANKED_STATES: Final = ("finished", "interrupted")


@dataclass(frozen=True, slots=True)
class Standing:
    """A configuration's row on a board. `place`: shared where no difference is shown. `value`, `low`, `high`: as in
    `Pooled`; the run stands for the configuration in links: its newest. `others`, `doubtful`: as in `Agreed`."""

    board: Board
    place: int
    value: float
    low: float | None
    high: float | None
    runs: int
    repro_key: str
    history_key: str
    public_id: str
    started_us: int
    model_key: str
    model: str
    hardware_key: str
    hardware: str
    engine_key: str
    engine: str
    engine_version: str | None
    precision: str
    speculation: str
    others: int
    others_low: float | None
    others_high: float | None
    doubtful: bool

    @property
    def or_more(self) -> bool:
        """Nothing larger was tested (boards that count requests)."""
        return self.board.kind == "users" and self.high is None

    @property
    def interval_known(self) -> bool:
        return self.low is not None and self.high is not None


_OF_ROW: Final = ("value", "low", "high", "runs", "repro_key", "model_key", "hardware_key", "engine_key", "others_low",
                  "others_high")  # fmt: skip
_OF_RUN: Final = ("history_key", "public_id", "started_us", "model", "hardware", "engine", "engine_version",
                  "precision", "speculation")  # fmt: skip
"""Fields of a Standing that are columns of its row and of the run that stands for it."""
_SCANNED: Final = 60


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """A board that has rows; `configurations`: how many."""

    board: Board
    configurations: int


def refresh(conn: Connection, repro_key: str) -> None:
    """Makes a configuration's rows on all boards anew from its public runs; none is left without one (how the runs of
    several publishers become one row: `boards.agreed`). The transaction holds `Database.one_at_a_time`, else two would
    make the same rows."""
    members, first = _members(conn, repro_key)
    made = standing_rows(repro_key, members, _cells(conn, [row.id for row in members]), first)
    had = set(conn.scalars(select(standings.c.board).where(standings.c.repro_key == repro_key)))
    if had:
        conn.execute(delete(standings).where(standings.c.repro_key == repro_key))
    if made:
        conn.execute(insert(standings), made)
    now = {row["board"] for row in made}
    _count(conn, {**dict.fromkeys(sorted(now - had), 1), **dict.fromkeys(sorted(had - now), -1)})


def _members(conn: Connection, repro_key: str) -> tuple[Sequence[Any], list[int | None]]:
    """The runs that are ranked, newest first, and their publishers in the order in which they came. Where there are
    more than MOST_RUNS, each publisher has the same share: nobody takes another's runs out by many of their own."""
    run = schema.runs.c
    newest = (unindexed(run.started_us).desc(), run.id.desc())
    shown = select(
        run.id, run.account_id, run.trust, run.model_key, run.hardware_key, run.engine_key,
        run.started_us, func.row_number().over(partition_by=run.account_id, order_by=newest).label("number"),
        func.min(run.id).over(partition_by=run.account_id).label("came"),
    ).where(
        run.repro_key == repro_key,
        unindexed(run.state) == "public",
        run.run_state.in_(_RANKED_STATES),
        unindexed(run.hardware_key) != "",
    ).subquery()  # fmt: skip
    order = (unindexed(shown.c.number), shown.c.came)
    found = conn.execute(select(shown).order_by(*order).limit(MOST_RUNS)).all()
    # a run that its publisher has replaced or taken back still tells when they came
    came = conn.execute(
        select(schema.runs.c.account_id, func.min(schema.runs.c.id).label("first"))
        .where(schema.runs.c.repro_key == repro_key, unindexed(schema.runs.c.state).in_(("public", "withdrawn")))
        .group_by(schema.runs.c.account_id)
    ).all()
    first = {row.account_id: row.first for row in came}
    accounts = sorted({row.account_id for row in found}, key=lambda account: first[account])
    return sorted(found, key=lambda row: (row.started_us, row.id), reverse=True), accounts


def _cells(conn: Connection, ids: Sequence[int]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    if ids:
        for point in conn.execute(select(schema.points).where(schema.points.c.run_id.in_(ids))):
            found.setdefault(point.run_id, []).append(point)
    return found


def standing_rows(
    repro_key: str, members: Sequence[Any], cells: Mapping[int, Sequence[Any]], first: Sequence[int | None]
) -> list[dict[str, Any]]:
    """Rows of the table for one configuration. `members`: its runs, newest first; `cells`: their points, by the runs'
    numbers; `first`: the publishers in the order in which they came."""
    made = []
    all_runs = [Run(row.account_id, row.trust == DOUBTFUL, cells.get(row.id, ())) for row in members]
    for board, value in ranked_boards(all_runs, first).items():
        stands = _standing(board, value, members, cells)
        keys = {name: getattr(stands, name) for name in ("model_key", "hardware_key", "engine_key")}
        others = {name: getattr(value, name) for name in ("others", "others_low", "others_high", "doubtful")}
        made.append(
            {"board": board.name, "repro_key": repro_key, "run_id": stands.id, **keys, **asdict(value.pooled), **others}
        )
    return made


def _standing(board: Board, value: Agreed, members: Sequence[Any], cells: Mapping[int, Sequence[Any]]) -> Any:
    """Of the runs that are pooled, the newest that has the operating point, valid or not: its page shows it."""
    pooled = [r for r in members if r.account_id in value.accounts and (r.trust == DOUBTFUL) is value.doubtful]
    return next((row for row in pooled if any(_on(board, p) for p in cells.get(row.id, ()))), pooled[0])


def outdated(conn: Connection) -> list[str]:
    """The configurations whose rows an earlier flatout made, which `refresh` shall make anew."""
    return list(conn.scalars(select(standings.c.repro_key).where(standings.c.others.is_(None)).distinct()))


def _on(board: Board, point: Any) -> bool:
    phase = "prefill" if board.kind == "prefill" else "decode"
    if point.phase != phase or point.context_tokens != board.context_tokens or not point.sound:
        return False
    return board.kind in ("prefill", "users") or bool(point.concurrency == board.n)


def _count(conn: Connection, changes: Mapping[str, int]) -> None:
    """Adds to the number of configurations of each board; a board without any goes."""
    rows = [{"board": b, "kind": b.partition(":")[0], "configurations": n} for b, n in sorted(changes.items())]
    if not rows:
        return
    row = upsert(conn, schema.boards)
    more = {"configurations": schema.boards.c.configurations + row.excluded.configurations}
    conn.execute(row.on_conflict_do_update(index_elements=[schema.boards.c.board], set_=more), rows)
    gone = [board for board, change in changes.items() if change < 0]
    if gone:
        conn.execute(delete(schema.boards).where(schema.boards.c.board.in_(gone), schema.boards.c.configurations <= 0))


def top(
    conn: Connection, board: str, *, model: str | None = None, hardware: str | None = None, engine: str | None = None,
    limit: int = 100,
) -> list[Standing]:  # fmt: skip
    """The first rows of a board (of a model's, a piece of hardware's, an engine's configurations alone, by key), the
    fastest first; empty for a board or a key that is not there."""
    known = parse(board)
    if known is None:
        return []
    keys = {"model_key": model, "hardware_key": hardware, "engine_key": engine}
    return _placed(conn, {known: _first(conn, known, keys, max(1, min(limit, MOST_ROWS)))})[known]


def fastest(
    conn: Connection, known: Sequence[Board], kind: str, key: str, competes: Sequence[str], limit: int
) -> dict[Board, list[Standing]]:
    """On the page of a model, a piece of hardware or an engine, by board: the best row of each of what competes there
    (columns of keys), among the first _SCANNED."""
    found: dict[Board, list[Any]] = {}
    of_row = attrgetter(*competes)
    for board in known:
        first_of: dict[tuple[str, ...], Any] = {}
        for row in _first(conn, board, {f"{kind}_key": key}, _SCANNED):
            first_of.setdefault(of_row(row), row)
        found[board] = list(first_of.values())[:limit]
    return _placed(conn, found)


def _first(conn: Connection, board: Board, keys: Mapping[str, str | None], limit: int) -> Sequence[Any]:
    """Rows of the table, the largest value first."""
    wanted = [standings.c[name] == key for name, key in keys.items() if key is not None]
    mine = select(standings).where(standings.c.board == board.name, *wanted)
    return conn.execute(mine.order_by(standings.c.value.desc(), standings.c.repro_key.desc()).limit(limit)).all()


def _placed(conn: Connection, found: Mapping[Board, Sequence[Any]]) -> dict[Board, list[Standing]]:
    """Rows of `_first` with their places, and what is told of the runs that stand for them."""
    columns = (schema.runs.c[name] for name in ("id", *_OF_RUN))
    ids = sorted({row.run_id for rows in found.values() for row in rows})
    runs = {run.id: run for run in conn.execute(select(*columns).where(schema.runs.c.id.in_(ids)))}
    return {
        board: [
            Standing(
                board, place, others=row.others or 0, doubtful=bool(row.doubtful),
                **{name: getattr(row, name) for name in _OF_ROW},
                **{name: getattr(runs[row.run_id], name) for name in _OF_RUN},
            )
            for place, row in zip(places(rows, counts=board.kind == "users"), rows, strict=True)
        ]
        for board, rows in found.items()
    }  # fmt: skip


def all_boards(conn: Connection, *, limit: int = 1000) -> list[BoardInfo]:
    """The boards with most configurations, in the order of kinds, contexts and numbers."""
    order = (schema.boards.c.configurations.desc(), schema.boards.c.board.desc())
    found = conn.execute(select(schema.boards).order_by(*order).limit(limit))
    known = [BoardInfo(board, row.configurations) for row in found if (board := parse(row.board)) is not None]
    return sorted(known, key=lambda i: (KINDS.index(i.board.kind), i.board.context_tokens, i.board.n))
