"""The leaderboards in the database: made anew for a configuration when one of its runs changes, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select

from flatout.site.boards import KINDS, Agreed, Board, Run, parse, places, ranked_boards
from flatout.site.schema import boards, points, runs, standings
from flatout.site.sql import unindexed, upsert

MOST_RUNS: Final = 200
"""Of one configuration, the newest of each publisher: enough for any interval."""
MOST_ROWS: Final = 500
DOUBTFUL: Final = "doubtful"
_RANKED_STATES: Final = ("finished", "interrupted")


@dataclass(frozen=True, slots=True)
class Standing:
    """A configuration's row on a board. `place`: shared where no difference is shown. `value`, `low`, `high`: as in
    `boards.Pooled`; the run stands for the configuration in links: its newest. `others`, `doubtful`: as in
    `boards.Agreed`."""

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
    made = rows(repro_key, members, _cells(conn, [row.id for row in members]), first)
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
    newest = (unindexed(runs.c.started_us).desc(), runs.c.id.desc())
    shown = select(
        runs.c.id, runs.c.account_id, runs.c.trust, runs.c.model_key, runs.c.hardware_key, runs.c.engine_key,
        runs.c.started_us, func.row_number().over(partition_by=runs.c.account_id, order_by=newest).label("number"),
        func.min(runs.c.id).over(partition_by=runs.c.account_id).label("came"),
    ).where(
        runs.c.repro_key == repro_key,
        unindexed(runs.c.state) == "public",
        runs.c.run_state.in_(_RANKED_STATES),
        unindexed(runs.c.hardware_key) != "",
    ).subquery()  # fmt: skip
    order = (unindexed(shown.c.number), shown.c.came)
    found = conn.execute(select(shown).order_by(*order).limit(MOST_RUNS)).all()
    # a run that its publisher has replaced or taken back still tells when they came
    came = conn.execute(
        select(runs.c.account_id, func.min(runs.c.id).label("first"))
        .where(runs.c.repro_key == repro_key, unindexed(runs.c.state).in_(("public", "withdrawn")))
        .group_by(runs.c.account_id)
    ).all()
    first = {row.account_id: row.first for row in came}
    accounts = sorted({row.account_id for row in found}, key=lambda account: first[account])
    return sorted(found, key=lambda row: (row.started_us, row.id), reverse=True), accounts


def _cells(conn: Connection, ids: Sequence[int]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    if ids:
        for point in conn.execute(select(points).where(points.c.run_id.in_(ids))):
            found.setdefault(point.run_id, []).append(point)
    return found


def rows(
    repro_key: str, members: Sequence[Any], cells: Mapping[int, Sequence[Any]], first: Sequence[int | None]
) -> list[dict[str, Any]]:
    """Rows of the table for one configuration. `members`: its runs, newest first; `cells`: their points, by the runs'
    numbers; `first`: the publishers in the order in which they came."""
    made = []
    all_runs = [Run(row.account_id, row.trust == DOUBTFUL, cells.get(row.id, ())) for row in members]
    for board, value in ranked_boards(all_runs, first).items():
        stands = _standing(board, value, members, cells)
        made.append(
            {
                "board": board.name, "repro_key": repro_key, "model_key": stands.model_key,
                "hardware_key": stands.hardware_key, "engine_key": stands.engine_key, "value": value.pooled.value,
                "low": value.pooled.low, "high": value.pooled.high, "runs": value.pooled.runs, "run_id": stands.id,
                "others": value.others, "others_low": value.others_low, "others_high": value.others_high,
                "doubtful": value.doubtful,
            }
        )  # fmt: skip
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
    row = upsert(conn, boards)
    more = {"configurations": boards.c.configurations + row.excluded.configurations}
    conn.execute(row.on_conflict_do_update(index_elements=[boards.c.board], set_=more), rows)
    gone = [board for board, change in changes.items() if change < 0]
    if gone:
        conn.execute(delete(boards).where(boards.c.board.in_(gone), boards.c.configurations <= 0))


def top(
    conn: Connection, board: str, *, model: str | None = None, hardware: str | None = None, engine: str | None = None,
    limit: int = 100,
) -> list[Standing]:  # fmt: skip
    """The first rows of a board (of a model's, a piece of hardware's, an engine's configurations alone, by key), the
    fastest first; empty for a board or a key that is not there."""
    known = parse(board)
    if known is None:
        return []
    rows = first(conn, board, model=model, hardware=hardware, engine=engine, limit=limit)
    return placed(known, rows, standing_for(conn, [row.run_id for row in rows]))


def first(
    conn: Connection, board: str, *, model: str | None = None, hardware: str | None = None, engine: str | None = None,
    limit: int = 100,
) -> Sequence[Any]:  # fmt: skip
    """Rows of the table, the largest value first."""
    wanted = [standings.c.board == board]
    for column, key in (
        (standings.c.model_key, model), (standings.c.hardware_key, hardware), (standings.c.engine_key, engine),
    ):  # fmt: skip
        if key is not None:
            wanted.append(column == key)
    order = (standings.c.value.desc(), standings.c.repro_key.desc())
    return conn.execute(select(standings).where(*wanted).order_by(*order).limit(max(1, min(limit, MOST_ROWS)))).all()


def standing_for(conn: Connection, ids: Sequence[int]) -> dict[int, Any]:
    """What rows say of the runs that stand for them, by the runs' numbers."""
    shown = ("id", "public_id", "started_us", "history_key", "model", "hardware", "engine", "engine_version",
             "precision", "speculation")  # fmt: skip
    chosen = sorted(set(ids))
    found: dict[int, Any] = {}
    for i in range(0, len(chosen), MOST_ROWS):
        some = select(*(runs.c[name] for name in shown)).where(runs.c.id.in_(chosen[i : i + MOST_ROWS]))
        found |= {row.id: row for row in conn.execute(some)}
    return found


def placed(board: Board, rows: Sequence[Any], stand: Mapping[int, Any]) -> list[Standing]:
    """Rows of `first` with their places, and what `standing_for` found."""
    order = places(rows, counts=board.kind == "users")
    made = []
    for place, row in zip(order, rows, strict=True):
        run = stand[row.run_id]
        made.append(
            Standing(
                board, place, row.value, row.low, row.high, row.runs, row.repro_key, run.history_key, run.public_id,
                run.started_us, row.model_key, run.model, row.hardware_key, run.hardware, row.engine_key, run.engine,
                run.engine_version, run.precision, run.speculation, row.others or 0, row.others_low, row.others_high,
                bool(row.doubtful),
            )
        )  # fmt: skip
    return made


def all_boards(conn: Connection, *, limit: int = 1000) -> list[BoardInfo]:
    """The boards with most configurations, in the order of kinds, contexts and numbers."""
    order = (boards.c.configurations.desc(), boards.c.board.desc())
    found = conn.execute(select(boards).order_by(*order).limit(limit))
    known = [BoardInfo(board, row.configurations) for row in found if (board := parse(row.board)) is not None]
    return sorted(known, key=lambda i: (KINDS.index(i.board.kind), i.board.context_tokens, i.board.n))
