"""Several publishers of one configuration: who is pooled with whom, who is left out, and that it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from flatout.site import accounts, boards
from flatout.site.boards import Agreed, Board, Pooled, Run
from flatout.site.database import Database
from flatout.site.schema import runs
from flatout.site.schema import standings as ranked
from flatout.site.store import Store
from tests import site_database, site_records
from tests.site_client import Opened, opened
from tests.site_database import drop, new_url
from tests.test_site_boards import Cell, decode

database = site_database.database
K = 1024


def about(value: float, spread: float | None = 0.004, count: int = 1) -> Pooled:
    if spread is None:
        return Pooled(value, None, None, count)
    return Pooled(value, value / (1 + spread), value * (1 + spread), count)


def rate(**values: Pooled) -> Agreed:
    """Publishers in the order in which they came."""
    return boards.agreed(dict(enumerate(values.values())), counts=False)


def test_of_two_who_differ_the_first_stands() -> None:
    made = rate(ann=about(89.0), mallory=about(8.9, count=2))
    assert made.pooled == about(89.0) and made.accounts == {0}
    assert (made.others, made.others_low, made.others_high) == (1, 8.9, 8.9)
    assert rate(mallory=about(8.9), ann=about(89.0)).pooled.value == 8.9


def test_of_three_the_median_stands_whoever_came_first() -> None:
    made = rate(mallory=about(8.9), ann=about(89.0), bob=about(120.0))
    assert made.pooled.value == 89.0 and made.accounts == {1}
    assert (made.others, made.others_low, made.others_high) == (2, 8.9, 120.0)


def test_who_agrees_is_pooled_with_one_weight_each() -> None:
    made = rate(ann=about(100.0, count=1), bob=about(100.4, count=50), eve=about(50.0))
    assert made.pooled.value == pytest.approx((100.0 * 100.4) ** 0.5) and made.pooled.runs == 51
    assert made.pooled.low is not None and made.pooled.low < 100.0 and made.others == 1


def test_an_interval_that_agrees_with_everything_moves_nothing() -> None:
    for wide in (Pooled(9.0, 1e-300, 1e300, 1), Pooled(9.0, 0.0, 1e300, 1), Pooled(60.0, 30.0, 120.0, 1)):
        made = rate(mallory=wide, ann=about(89.0))
        assert made.pooled == about(89.0) and made.accounts == {1}
    assert rate(ann=Pooled(60.0, 30.0, 120.0, 1)).pooled.low == 30.0, "alone it stands as it is"


def test_an_interval_that_is_not_known_is_taken_as_three_percent() -> None:
    assert rate(ann=about(100.0), bob=about(102.0, None)).others == 0
    assert rate(ann=about(100.0), bob=about(104.0, None)).others == 1


def test_numbers_at_once_agree_where_they_leave_each_other_open() -> None:
    four, more, sixteen = Pooled(4.0, 4.0, 15.0, 1), Pooled(8.0, 8.0, None, 2), Pooled(16.0, 16.0, 31.0, 1)
    made = boards.agreed({1: four, 2: more}, counts=True)
    assert made.pooled == Pooled(4.0, 4.0, 15.0, 3) and made.others == 0
    made = boards.agreed({1: four, 2: sixteen}, counts=True)
    assert made.pooled == four and (made.others, made.others_low) == (1, 16.0)


values = st.floats(0.01, 1e6)
spreads = st.one_of(st.none(), st.floats(1e-4, 3.0))


@given(st.tuples(values, spreads))
def test_one_publisher_is_as_pooled_as_ever(given_one: tuple[float, float | None]) -> None:
    one = about(*given_one)
    assert boards.agreed({7: one}, counts=False) == Agreed(one, frozenset({7}), 0, None, None, False)


@given(st.lists(st.tuples(values, spreads), min_size=1, max_size=7), st.randoms())
def test_everybody_is_pooled_left_out_or_too_vague(given_all: list[tuple[float, float | None]], order: Any) -> None:
    publishers = dict(enumerate(about(*one) for one in given_all))
    made = boards.agreed(publishers, counts=False)
    assert made.accounts and made.others + len(made.accounts) <= len(publishers)
    inside = [publishers[a].value for a in made.accounts]
    assert min(inside) * (1 - 1e-9) <= made.pooled.value <= max(inside) * (1 + 1e-9)
    assert made.pooled.runs == len(made.accounts)
    if len(publishers) % 2 and len({p.value for p in publishers.values()}) == len(publishers):
        keys = list(publishers)
        order.shuffle(keys)
        again = boards.agreed({key: publishers[key] for key in keys}, counts=False)
        vague = any(p.low and p.high and p.high / p.low > boards.VAGUE for p in publishers.values())
        assert vague or again.accounts == made.accounts, "the median does not depend on who came first"


@given(st.lists(st.tuples(values, st.floats(1e-4, 3.0)), min_size=1, max_size=5))
def test_one_stranger_moves_the_first_by_no_more_than_its_own_interval(told: list[tuple[float, float]]) -> None:
    for value, spread in told:
        made = rate(ann=about(89.0), mallory=about(value, spread))
        assert 89.0 / boards.VAGUE < made.pooled.value < 89.0 * boards.VAGUE


def test_nobody_fills_the_boards_alone() -> None:
    many = Run(2, False, [decode(1, 50.0, context) for context in range(1, 2 * boards.MOST_BOARDS)])
    few = Run(1, False, [decode(1, 100.0, 100_000), Cell("prefill", 100_000, 1, 9000.0)])
    found = boards.ranked_boards([many, few], [2, 1])
    assert len(found) == boards.MOST_BOARDS and Board("single", 100_000) in found


def test_doubtful_runs_count_where_there_is_no_other() -> None:
    good = Run(1, False, [decode(1, 100.0)])
    doubtful = Run(1, True, [decode(1, 900.0), decode(4, 900.0)])
    found = boards.ranked_boards([good, doubtful], [1])
    single, total = found[Board("single", 8 * K)], found[Board("total", 8 * K, 4)]
    assert (single.pooled.value, single.pooled.runs, single.doubtful) == (100.0, 1, False)
    assert (total.pooled.value, total.doubtful) == (3600.0, True)
    stranger = Run(2, True, [decode(1, 900.0)])
    assert boards.ranked_boards([good, stranger], [2, 1])[Board("single", 8 * K)].others == 0


# --- in the database ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def without_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of the tests, which are too alike, would all be doubtful."""
    monkeypatch.setattr("flatout.site.audit.trust", lambda record, received_us: ("good", 0))


def people(store: Store, *names: str) -> list[int]:
    with store.database.write() as conn:
        return [accounts.add_account(conn, name).id for name in names]


def publish(store: Store, account: int | None, number: int, **more: Any) -> str:
    made = store.publish(site_records.taken(store.settings, number, **more), account_id=account, who="x")
    return made.public_id


def row_of(store: Store, board: str = "single:8192") -> boards.Standing:
    with store.database.read() as conn:
        (row,) = boards.top(conn, board)
    return row


def test_a_strangers_runs_change_no_row_and_are_told(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    ann, bob, mallory = people(store, "ann", "bob", "mallory")
    mine = publish(store, ann, 1)
    before = row_of(store)
    strange = [publish(store, mallory, number, speed=0.1) for number in range(2, 7)]
    row = row_of(store)
    assert (row.value, row.low, row.high, row.runs, row.public_id) == (before.value, before.low, before.high, 1, mine)
    assert row.others == 1 and row.others_low == row.others_high == pytest.approx(row.value * 0.1)
    also = publish(store, bob, 8, speed=1.0005)
    row = row_of(store)
    assert (row.runs, row.others, row.public_id) == (2, 1, also)
    for run in strange:
        store.hide(run, who="mod", reason="made up")
    assert row_of(store).others == 0
    users = row_of(store, "users:8192:10")
    assert users.value == 16.0 and users.runs == 2


def test_local_runs_are_one_publisher(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    (mallory,) = people(store, "mallory")
    for number in range(3):
        publish(store, None, number, speed=1 + number / 100)
    publish(store, mallory, 9, speed=5.0)
    assert (row_of(store).runs, row_of(store).others) == (3, 1)


def test_who_replaces_a_run_still_came_first(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    ann, mallory = people(store, "ann", "mallory")
    old = publish(store, ann, 1)
    publish(store, mallory, 2, speed=0.1)
    store.publish(site_records.taken(store.settings, 3), account_id=ann, who="ann", replaces=old)
    assert row_of(store).value > 50 and row_of(store).others == 1


def test_many_runs_of_one_take_no_others_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST_RUNS", 4)
    store = site_records.store(database, tmp_path)
    ann, mallory = people(store, "ann", "mallory")
    publish(store, ann, 1)
    for number in range(2, 9):
        publish(store, mallory, number, speed=0.1)
    assert row_of(store).value > 50 and (row_of(store).runs, row_of(store).others) == (1, 1)


def test_a_row_of_doubtful_runs_alone_says_so(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    one = publish(store, None, 1)
    assert not row_of(store).doubtful
    with database.write() as conn:
        conn.execute(sa.update(runs).values(trust="doubtful"))
        boards.refresh(conn, store.row(one).repro_key)
    assert row_of(store).doubtful
    other = publish(store, None, 2, speed=1.5)
    row = row_of(store)
    assert not row.doubtful and (row.runs, row.public_id) == (1, other)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_rows_of_an_earlier_flatout_are_made_anew(kind: str, tmp_path: Path) -> None:
    url = new_url(kind, tmp_path)
    database = Database.open(url)
    try:
        store = site_records.store(database, tmp_path)
        ann, mallory = people(store, "ann", "mallory")
        publish(store, ann, 1)
        publish(store, mallory, 2, speed=0.1)
        alone = publish(store, ann, 3, gpu="B200")
        database.migrate("0002")
        with database.write() as conn:  # as it was: everybody's runs in one
            conn.execute(sa.text("UPDATE standings SET value = 1, low = NULL, high = NULL, runs = 2"))
        database.migrate()
        with database.read() as conn:
            assert boards.outdated(conn) != [store.row(alone).repro_key] and len(boards.outdated(conn)) == 1
            assert all(row.place >= 1 for row in boards.top(conn, "single:8192"))
        assert store.renew() == 1 and store.renew() == 0
        with database.read() as conn:
            made = {
                row.repro_key: row for row in conn.execute(sa.select(ranked).where(ranked.c.board == "single:8192"))
            }
        assert made[store.row(alone).repro_key].value == 1, "one publisher, no doubts: as it was"
        (other,) = [row for key, row in made.items() if key != store.row(alone).repro_key]
        assert other.value > 50 and other.others == 1
    finally:
        database.close()
        drop(url)


# --- on pages -------------------------------------------------------------------------------------------------------


def test_pages_and_programs_are_told_who_disagrees(tmp_path: Path) -> None:
    site: Opened = opened(tmp_path)
    ann = site.publish(site_records.body(1), site.token("ann")).json()["id"]
    for number, name in ((2, "bob"), (3, "eve")):
        site.publish(site_records.body(number, speed=0.1 * number), site.token(name))
    site.publish(site_records.body(4), site.token("cyd"))
    site.publish(site_records.body(5), site.token("dan"))
    row = site.http.get("/api/v1/boards/single:8192").json()["standings"][0]
    assert row["others"] == 2 and row["others_low"] < row["others_high"] < row["value"] and row["doubtful"] is False
    run = site.site.store.row(ann)
    for path in ("/boards/single:8192", f"/models/{run.model_key}", f"/hardware/{run.hardware_key}"):
        page = site.http.get(path, headers={"Accept": "text/html"}).text
        assert "2 other publishers measured" in page and "they disagree" in page and "#h-repeats" in page, path
    assert 'id="h-repeats"' in site.http.get(f"/r/{ann}", headers={"Accept": "text/html"}).text
    site.close()
