"""Leaderboards: names, pooling, places (pure), and their rows on both databases."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select

from flatout.compare.ratio import estimate
from flatout.site import boards, schema, subjects
from flatout.site.boards import Board, Pooled
from flatout.site.database import Database
from flatout.site.store import Store
from tests import site_database, site_records

database = site_database.database

K = 1024


@dataclass(frozen=True)
class Cell:
    phase: str
    context_tokens: int
    concurrency: int
    rate_tok_s: float | None
    each_tok_s: float | None = None
    status: str = "valid"
    spread: float | None = 0.004

    @property
    def sound(self) -> bool:
        return self.status in ("valid", "requests_queued")

    @property
    def rate_low(self) -> float | None:
        return None if self.rate_tok_s is None or self.spread is None else self.rate_tok_s * (1 - self.spread)

    @property
    def rate_high(self) -> float | None:
        return None if self.rate_tok_s is None or self.spread is None else self.rate_tok_s * (1 + self.spread)


def decode(n: int, each: float, context: int = 8 * K, **more: object) -> Cell:
    return Cell("decode", context, n, n * each, each, **more)  # type: ignore[arg-type]


def names(found: dict[Board, Pooled]) -> dict[str, float]:
    return {board.name: pooled.value for board, pooled in found.items()}


@given(
    st.one_of(
        st.builds(Board, st.sampled_from(["single", "prefill"]), st.integers(1, 2**31 - 1)),
        st.builds(Board, st.just("total"), st.integers(1, 2**31 - 1), st.integers(2, 2**31 - 1)),
        st.builds(Board, st.just("users"), st.integers(1, 2**31 - 1), st.sampled_from(boards.EACH_TOK_S)),
    )
)
def test_a_board_is_what_its_name_says(board: Board) -> None:
    assert boards.parse(board.name) == board
    assert len(board.name) <= 40
    assert board.title and board.about.endswith(".")


@given(st.text(max_size=60))
def test_any_other_name_is_no_board(text: str) -> None:
    found = boards.parse(text)
    assert found is None or found.name == text


@pytest.mark.parametrize(
    "name",
    [
        "single:0",
        "single:8192:1",
        "total:8192:1",
        "users:8192:31",
        "prefill:",
        "single:٨",
        "single:99999999999",
        "total:8192",
    ],
)
def test_operating_points_that_cannot_be(name: str) -> None:
    assert boards.parse(name) is None


def test_single_and_total_are_never_one_board() -> None:
    found = boards.pooled_boards([[decode(1, 100.0), decode(4, 80.0), Cell("prefill", 8 * K, 1, 9000.0)]])
    assert {board.name: held.value for board, held in found.items()} == {
        "single:8192": 100.0, "total:8192:4": 320.0, "prefill:8192": 9000.0,
        "users:8192:10": 4.0, "users:8192:20": 4.0, "users:8192:30": 4.0, "users:8192:50": 4.0,
    }  # fmt: skip


def test_only_valid_cells_are_ranked() -> None:
    cells = [
        decode(1, 100.0, status="doubtful"), decode(2, 90.0, status="requests_queued"),
        Cell("burst", 8 * K, 4, 500.0, 100.0), Cell("prefill", 8 * K, 1, None),
    ]  # fmt: skip
    assert names(boards.pooled_boards([cells])) == {}


def test_the_number_at_once_stops_at_the_first_miss() -> None:
    row = [decode(1, 60.0), decode(2, 45.0), decode(4, 28.0), decode(8, 31.0)]
    found = boards.pooled_boards([row])
    held = found[Board("users", 8 * K, 30)]
    assert (held.value, held.low, held.high) == (2.0, 2.0, 3.0)
    most = found[Board("users", 8 * K, 20)]
    assert (most.value, most.high) == (8.0, None), "nothing larger was tested: 8 or more"
    one = found[Board("users", 8 * K, 50)]
    assert (one.value, one.high) == (1.0, 1.0)
    assert Board("users", 8 * K, 50) not in boards.pooled_boards([[decode(1, 49.0), decode(2, 80.0)]])


def test_queued_requests_did_not_run_at_once() -> None:
    row = [decode(1, 60.0), decode(8, 40.0), decode(16, 40.0, status="requests_queued")]
    held = boards.pooled_boards([row])[Board("users", 8 * K, 30)]
    assert (held.value, held.high) == (8.0, None)
    row[-1] = decode(16, 20.0, status="requests_queued")
    held = boards.pooled_boards([row])[Board("users", 8 * K, 30)]
    assert (held.value, held.high) == (8.0, 15.0)


def test_repeats_with_other_concurrencies_are_pooled_cell_by_cell() -> None:
    one, two = [decode(1, 60.0), decode(4, 33.0)], [decode(4, 29.0), decode(16, 12.0)]
    held = boards.pooled_boards([one, two])[Board("users", 8 * K, 30)]
    assert held == Pooled(4.0, 4.0, 15.0, 2), "the mean of 33 and 29 is over 30"


def test_a_huge_matrix_stands_on_a_bounded_number_of_boards() -> None:
    cells = [decode(n, 100.0, context) for context in range(1, 200) for n in range(1, 20)]
    found = boards.pooled_boards([cells])
    assert len(found) == boards.MOST_BOARDS
    assert max(b.context_tokens for b in found) < 40, "the shortest contexts first"


rates = st.floats(0.01, 1e7)
spreads = st.one_of(st.none(), st.floats(1e-4, 0.5))


@given(st.lists(st.tuples(rates, spreads), min_size=1, max_size=8))
def test_pooled_is_the_geometric_mean_inside_its_interval(given_runs: list[tuple[float, float | None]]) -> None:
    runs = [estimate(v, None if s is None else v * (1 - s), None if s is None else v * (1 + s)) for v, s in given_runs]
    found = boards.pool([run for run in runs if run is not None])
    assert found is not None and found.runs == len(given_runs)
    logs = [math.log(v) for v, _ in given_runs]
    assert math.log(found.value) == pytest.approx(math.fsum(logs) / len(logs), abs=1e-9)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value * (1 + 1e-9) and found.value <= found.high * (1 + 1e-9)
        assert math.isfinite(found.high)
    elif len(given_runs) == 1:
        assert given_runs[0][1] is None


def test_the_pooled_interval_holds_the_truth() -> None:
    """Runs that scatter by 1 % around 100, each known to 0.2 %: the 95 % interval holds 100 about as often."""
    rng = random.Random(4)
    for n in (3, 5, 10):
        held = 0
        for _ in range(600):
            values = [100 * math.exp(rng.gauss(0, 0.01)) for _ in range(n)]
            found = boards.pool([e for v in values if (e := estimate(v, v * 0.998, v * 1.002)) is not None])
            assert found is not None and found.low is not None and found.high is not None
            held += found.low <= 100 <= found.high
        assert held / 600 > 0.92, (n, held / 600)


@dataclass(frozen=True)
class Row:
    value: float
    low: float | None
    high: float | None


def row(value: float, spread: float | None = 0.004) -> Row:
    return Row(value, None, None) if spread is None else Row(value, value * (1 - spread), value * (1 + spread))


def test_places_are_shared_where_no_difference_is_shown() -> None:
    assert boards.places([row(105.0), row(104.8), row(100.0), row(99.9), row(80.0)]) == [1, 1, 3, 3, 5]
    assert boards.places([row(100.0), row(98.0, None), row(93.0, None)]) == [1, 1, 3], "taken as known to ±3 %"
    assert boards.places([row(8.0), row(8.0), row(4.0)], counts=True) == [1, 1, 3]
    assert boards.places([]) == []


def test_a_vague_row_shares_no_better_place_than_the_one_above() -> None:
    assert boards.places([row(110.0), row(100.0), row(99.0, 0.2), row(90.0)]) == [1, 2, 2, 3]


def test_a_ranking_begins_with_its_largest() -> None:
    with pytest.raises(ValueError, match="largest"):
        boards.places([row(1.0), row(2.0)])


@settings(max_examples=60)
@given(st.lists(st.tuples(rates, spreads), max_size=30))
def test_places_never_fall_and_never_pass_their_row(given_rows: list[tuple[float, float | None]]) -> None:
    rows = [row(v, s) for v, s in sorted(given_rows, key=lambda r: -r[0])]
    found = boards.places(rows)
    assert found == sorted(found)
    assert all(1 <= place <= i for i, place in enumerate(found, 1))
    for i, place in enumerate(found):
        for j in range(place - 1):
            if found[j] < place and found[j] == j + 1 and place == i + 1 and i == j + 1:
                low = boards.lead(rows[j], rows[i]).low
                assert low is not None and low > 1 - 1e-6


def test_lead_is_the_ratio_with_its_interval() -> None:
    made = boards.lead(row(110.0), row(100.0))
    assert made.value == pytest.approx(1.1)
    assert made.low is not None and made.high is not None and 1.09 < made.low < 1.1 < made.high < 1.11


def published(store: Store, number: int = 0, **more: Any) -> str:
    made = store.publish(site_records.taken(store.settings, number, **more), account_id=None, who="local")
    return made.public_id


def counts(conn: Connection) -> dict[str, int]:
    return {row.board: row.configurations for row in conn.execute(select(schema.boards))}


def true_counts(conn: Connection) -> dict[str, int]:
    asked = select(schema.standings.c.board, func.count().label("n")).group_by(schema.standings.c.board)
    return {row.board: row.n for row in conn.execute(asked)}


def test_repeats_are_one_row_and_configurations_are_ranked(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    published(store, 1)
    newest = published(store, 2, speed=1.01)
    other = published(store, 3, gpu="B200", speed=2.0)
    with database.read() as conn:
        rows = boards.top(conn, "single:8192")
        assert [(r.public_id, r.place, r.runs) for r in rows] == [(other, 1, 1), (newest, 2, 2)]
        assert rows[1].low is not None and rows[1].low < rows[1].value < (rows[1].high or 0)
        assert rows[0].hardware.startswith("B200") and rows[0].model_key == rows[1].model_key
        mine = boards.top(conn, "single:8192", hardware=rows[1].hardware_key)
        assert [(r.public_id, r.place) for r in mine] == [(newest, 1)]
        assert boards.top(conn, "single:8192", model="none of that name") == []
        assert boards.top(conn, "total:8192:1") == [] == boards.top(conn, "single:77")
        infos = boards.all_boards(conn)
        assert {i.configurations for i in infos} == {2}
        assert [i.board.kind for i in infos] == sorted((i.board.kind for i in infos), key=boards.KINDS.index)
        assert counts(conn) == true_counts(conn)


def test_what_is_not_public_ends_or_lacks_hardware_is_not_ranked(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    unknown = {"describes": "client only", "facts": {}}
    published(store, 1, hardware=unknown)
    published(store, 2, state="failed", state_reason="the server died")
    with database.read() as conn:
        assert boards.all_boards(conn) == [] == boards.top(conn, "single:8192")
    queued = site_records.store(database, tmp_path, moderation="queue")
    waits = queued.publish(site_records.taken(store.settings, 3), account_id=None, who="ann").public_id
    with database.read() as conn:
        assert boards.top(conn, "single:8192") == []
    queued.approve(waits, who="mod")
    with database.read() as conn:
        assert [r.public_id for r in boards.top(conn, "single:8192")] == [waits]
    store.hide(waits, who="mod", reason="made up")
    with database.read() as conn:
        assert boards.all_boards(conn) == [] == boards.top(conn, "single:8192")


def test_a_withdrawn_repeat_leaves_the_others(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    one, two = published(store, 1), published(store, 2, speed=1.5)
    store.withdraw(two, who="operator", account_id=None, reason="wrong flags", moderator=True)
    with database.read() as conn:
        (row,) = boards.top(conn, "single:8192")
        assert (row.public_id, row.runs) == (one, 1)
        assert counts(conn) == true_counts(conn)


def test_many_at_once_leave_the_rankings_right(database: Database, tmp_path: Path) -> None:
    """Publishers of the same and of other configurations at once: no row twice, no count wrong."""
    store = site_records.store(database, tmp_path)
    takes = [site_records.taken(store.settings, i, gpu=f"GPU {i % 3}", speed=1 + i / 100) for i in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda taken: store.publish(taken, account_id=None, who="local"), takes, timeout=60))
    with database.read() as conn:
        rows = boards.top(conn, "single:8192")
        assert sorted(row.runs for row in rows) == [4, 4, 4]
        assert counts(conn) == true_counts(conn)


def subject(conn: Connection, kind: subjects.SubjectKind, key: str) -> subjects.Subject:
    of = subjects.heading(conn, kind, key)
    assert of is not None
    return subjects.subject(conn, of)


def test_a_subject_tells_what_is_fastest_and_by_how_much(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    for i, (gpu, engine, speed) in enumerate(
        [("B200", "vllm", 2.0), ("B200", "sglang", 2.001), ("H200", "vllm", 1.0), ("B200", "vllm", 1.5)]
    ):
        published(store, i, gpu=gpu, engine=engine, speed=speed, command=f"{engine} serve --flag {i}")
    with database.read() as conn:
        key = boards.top(conn, "single:8192")[0].model_key
        found = subject(conn, "model", key)
        assert found.runs == 4 and found.among == "hardware with engine"
        assert {f.board.kind for f in found.single} == {"single"} and {f.board.kind for f in found.total} == {"total"}
        point = next(f for f in found.single if f.board.name == "single:8192")
        assert [(r.engine, r.hardware.split()[0], r.place) for r in point.rows] == [
            ("sglang", "B200", 1), ("vllm", "B200", 1), ("vllm", "H200", 3),
        ]  # fmt: skip
        assert point.words == "no difference shown to the next"
        engine = subject(conn, "engine", "vllm")
        point = next(f for f in engine.single if f.board.name == "single:8192")
        assert [r.place for r in point.rows] == [1, 2], "of one hardware the best configuration alone"
        assert point.ahead is not None and point.ahead.value == pytest.approx(2.0)
        assert point.words.startswith("100 % faster than the next (95 % interval 99 % to 101 %")
        assert any(f.words.startswith("16 or more, as many as the next") for f in engine.users)
        assert subjects.heading(conn, "hardware", "nothing") is None
