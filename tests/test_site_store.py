"""The store: the same tests on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from flatout.record import parse
from flatout.site import database as database_module
from flatout.site.accounts import add_account, list_tokens, revoke
from flatout.site.accounts import add_token as make_token
from flatout.site.blobs import RECORDS, Blobs
from flatout.site.database import Database
from flatout.site.errors import Conflict, Forbidden, Gone, NotFound, SiteError, Unavailable
from flatout.site.index import Moved
from flatout.site.intake import Taken, take
from flatout.site.schema import accounts, deeds, runs, tokens
from flatout.site.store import DELETED, HIDDEN, PUBLIC, QUEUED, WITHDRAWN, Store, now_us
from tests import site_records
from tests.site_checks import nothing_half
from tests.site_database import database, new_url, server  # noqa: F401
from tests.site_faults import largest_file


@pytest.fixture
def store(database: Database, tmp_path: Path) -> Store:  # noqa: F811
    return site_records.store(database, tmp_path)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Store]:
    """On SQLite alone: for what no database decides."""
    made = Database.open(new_url("sqlite", tmp_path))
    yield site_records.store(made, tmp_path)
    made.close()


def account(store: Store, name: str) -> int:
    with store.database.write() as conn:
        made = sa.insert(accounts).values(name=name, created_us=now_us()).returning(accounts.c.id)
        return int(conn.execute(made).scalar_one())


def one(store: Store, number: int = 1, **more: Any) -> Taken:
    return site_records.taken(store.settings, number, **more)


def count(store: Store, table: sa.Table, *where: Any) -> int:
    with store.database.read() as conn:
        return int(conn.scalar(sa.select(sa.func.count()).select_from(table).where(*where)) or 0)


def doings(store: Store) -> list[tuple[str, str, str | None]]:
    with store.database.read() as conn:
        return [tuple(row) for row in conn.execute(sa.select(deeds.c.who, deeds.c.what, deeds.c.detail))]


# --- publish and read -----------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out(store: Store) -> None:
    ann = account(store, "ann")
    taken = one(store, 1)
    made = store.publish(taken, account_id=ann, who="ann", samples=b"a zip")
    assert made.created and made.state == PUBLIC and made.public_id == taken.public_id
    row = store.row(made.public_id)
    assert row.account == "ann" and row.state == PUBLIC and row.bytes == len(taken.canonical)
    assert row.content_hash == hashlib.sha256(store.content(made.public_id)).hexdigest()
    assert json.loads(store.content(made.public_id)) == site_records.content(1)
    assert store.record(made.public_id) == taken.record and store.record(made.public_id) is store.record(made.public_id)
    assert store.samples(made.public_id) == b"a zip"
    assert row.cells == 12 and row.cells_measured == 12 and row.context_max == 32 * 1024
    assert row.single_tok_s == max(p.rate_tok_s or 0 for p in taken.facts.points if p.concurrency == 1 == p.concurrency
                                   and p.phase == "decode")  # fmt: skip
    assert row.trust in ("good", "notes", "doubtful") and row.told()["statuses"] == {"valid": 12}
    assert doings(store) == [("ann", "published", None)]
    assert nothing_half(store) == 1


def test_the_same_record_again_is_the_same_run(store: Store) -> None:
    first = store.publish(one(store, 1), account_id=None, who="ann")
    pretty = json.dumps(site_records.content(1), indent=3, sort_keys=True).encode()
    again = take(pretty, gzipped=False, settings=store.settings)
    second = store.publish(again, account_id=None, who="bob")
    assert (second.public_id, second.created) == (first.public_id, False)
    assert count(store, runs) == 1 and nothing_half(store) == 1


def test_samples_may_follow(store: Store) -> None:
    ann = account(store, "ann")
    made = store.publish(one(store), account_id=ann, who="ann")
    assert store.samples(made.public_id) is None
    store.publish(one(store), account_id=None, who="bob", samples=b"not bob's to give")
    assert store.samples(made.public_id) is None
    store.publish(one(store), account_id=ann, who="ann", samples=b"later")
    store.publish(one(store), account_id=ann, who="ann", samples=b"other")
    assert store.samples(made.public_id) == b"later"


def test_a_corrected_record_takes_the_place_of_the_old(store: Store) -> None:
    ann, bob = account(store, "ann"), account(store, "bob")
    old = store.publish(one(store, 1), account_id=ann, who="ann").public_id
    with pytest.raises(Forbidden):
        store.publish(one(store, 2), account_id=bob, who="bob", replaces=old)
    with pytest.raises(NotFound):
        store.publish(one(store, 2), account_id=ann, who="ann", replaces="aaaaaaaaaaaa")
    assert count(store, runs) == 1
    new = store.publish(one(store, 2), account_id=ann, who="ann", replaces=old)
    again = store.publish(one(store, 2), account_id=ann, who="ann", replaces=old)
    assert new.created and not again.created and again.public_id == new.public_id
    gone = store.row(old)
    assert gone.state == WITHDRAWN and store.successor(gone) == new.public_id and gone.state_reason
    with pytest.raises(Conflict):
        store.publish(one(store, 3), account_id=ann, who="ann", replaces=old)
    assert nothing_half(store) == 2


def test_withdraw(store: Store) -> None:
    ann = account(store, "ann")
    run = store.publish(one(store, 1), account_id=ann, who="ann").public_id
    other = store.publish(one(store, 2), account_id=ann, who="ann").public_id
    with pytest.raises(Forbidden):
        store.withdraw(run, who="bob", account_id=ann + 1, reason="mine is faster")
    with pytest.raises(Conflict):
        store.withdraw(run, who="ann", account_id=ann, reason="wrong", successor=run)
    with pytest.raises(NotFound):
        store.withdraw("bbbbbbbbbbbb", who="ann", account_id=ann, reason="wrong")
    store.withdraw(run, who="ann", account_id=ann, reason="the fan\nwas \x00 broken", successor=other)
    store.withdraw(run, who="ann", account_id=ann, reason="again")
    row = store.row(run)
    assert row.state == WITHDRAWN and row.state_reason == "the fan was � broken" and store.successor(row) == other
    assert store.record(run).id  # a tombstone is what is shown; the content stays
    with pytest.raises(Conflict, match="withdrawn"):
        store.publish(one(store, 1), account_id=ann, who="ann")
    assert doings(store)[-1] == ("ann", "withdrawn", "the fan was � broken")
    assert nothing_half(store) == 2


def test_the_queue_and_hiding(database: Database, tmp_path: Path) -> None:  # noqa: F811
    store = site_records.store(database, tmp_path, moderation="queue")
    ann = account(store, "ann")
    run = store.publish(one(store), account_id=ann, who="ann")
    assert run.state == QUEUED and nothing_half(store) == 1
    store.approve(run.public_id, who="mod")
    store.approve(run.public_id, who="mod")
    assert store.row(run.public_id).state == PUBLIC and nothing_half(store) == 1
    store.hide(run.public_id, who="mod", reason="figures copied from elsewhere")
    assert store.row(run.public_id).state_reason == "figures copied from elsewhere" and nothing_half(store) == 1
    with pytest.raises(Conflict, match="hidden"):
        store.withdraw(run.public_id, who="ann", account_id=ann, reason="then not")
    with pytest.raises(Conflict, match="hidden"):
        store.publish(one(store), account_id=ann, who="ann")
    store.approve(run.public_id, who="mod", reason="it was theirs after all")
    assert store.row(run.public_id).state == PUBLIC
    store.withdraw(run.public_id, who="mod", account_id=None, moderator=True, reason="at the maker's wish")
    for act in (store.approve, store.hide):
        with pytest.raises(Conflict, match="withdrawn"):
            act(run.public_id, who="mod", reason="no")
    assert [what for _, what, _ in doings(store)] == ["published, waits", "approved", HIDDEN, "approved", WITHDRAWN]
    assert nothing_half(store) == 1


def test_delete_my_data(store: Store) -> None:
    ann, bob = account(store, "ann"), account(store, "bob")
    with store.database.write() as conn:
        token = {"label": "l", "hash": "h", "start": "s", "scopes": "publish", "created_us": 1}
        conn.execute(sa.insert(tokens).values(account_id=ann, **token))
    mine = store.publish(one(store, 1), account_id=ann, who="ann", samples=b"shared").public_id
    both = store.publish(one(store, 2), account_id=ann, who="ann", samples=b"ann's own").public_id
    theirs = store.publish(one(store, 3), account_id=bob, who="bob", samples=b"shared").public_id
    store.record(mine)
    store.delete_account(ann, "ann")
    for run in (mine, both):
        row = store.row(run)
        assert row.state == DELETED and row.account_id is None and row.state_reason and row.told() == {}
        assert not row.model and not row.record_id and row.samples_hash is None and row.single_tok_s is None
        for read in (store.record, store.content, store.samples):
            with pytest.raises(Gone):
                read(run)
    assert store.samples(theirs) == b"shared" and count(store, tokens) == 0
    assert count(store, accounts, accounts.c.name == "ann") == 0
    with pytest.raises(Conflict, match="deleted"):
        store.publish(one(store, 1), account_id=bob, who="bob")
    with pytest.raises(NotFound):
        store.delete_account(ann, "ann")
    assert nothing_half(store) == 3 and store.sweep(older_than_s=-1) == 0


def test_what_is_not_there_is_said(quick: Store) -> None:
    for wrong in ("", "aaaaaaaaaaaa", "../../etc", "a" * 400, "Ä", "a\x00b"):
        with pytest.raises(NotFound):
            quick.row(wrong)


# --- rankings and counts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_counts_and_rankings_are_right_after_any_row_of_deeds(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    who = [account(store, name) for name in ("ann", "bob")]
    known: list[str] = []
    for number in range(40):
        act = rng.choice(["publish", "publish", "publish", "replace", "withdraw", "hide", "approve"])
        run = rng.choice(known) if known else ""
        mine = store.row(run).account_id if run else None
        with contextlib.suppress(Conflict, NotFound, Gone):
            if act == "publish" or (act == "replace" and run):
                taken = one(
                    store, number, speed=rng.choice([1.0, 1.01, 1.4]), gpu=rng.choice(["H200 NVL", "L4"]),
                    quantization=rng.choice(["BF16", "fp8"]), version=rng.choice(["0.5.6", "0.5.7"]),
                    state=rng.choice(["finished", "finished", "failed"]),
                )  # fmt: skip
                owner = mine if act == "replace" else rng.choice(who)
                made = store.publish(taken, account_id=owner, who="x", replaces=run if act == "replace" else None)
                known.append(made.public_id)
            elif act == "withdraw":
                store.withdraw(run, who="x", account_id=mine, reason="r")
            elif act == "hide":
                store.hide(run, who="x", reason="r")
            elif act == "approve":
                store.approve(run, who="x")
    assert nothing_half(store) == len(known) > 10
    store.delete_account(who[0], "ann")
    assert nothing_half(store) == len(known)


# --- two at once ----------------------------------------------------------------------------------------------------


def test_many_at_once_with_the_same_record_make_one_run(store: Store) -> None:
    made: list[Any] = []
    start = threading.Barrier(6)

    def publish() -> None:
        for number in range(6):
            taken = one(store, number)
            start.wait(30)
            try:
                made.append(store.publish(taken, account_id=None, who="x", samples=b"zip"))
            except BaseException as error:
                made.append(error)

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not [m for m in made if isinstance(m, BaseException)]
    assert sum(m.created for m in made) == 6 == count(store, runs) and len(made) == 36
    assert nothing_half(store) == 6


def test_many_at_once_of_one_configuration_are_all_counted(store: Store) -> None:
    wrong: list[BaseException] = []
    start = threading.Barrier(4)

    def publish(first: int) -> None:
        ready = [one(store, number, speed=1 + number / 50) for number in range(first, first + 5)]
        start.wait(30)
        try:
            for taken in ready:
                store.publish(taken, account_id=None, who="x")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=publish, args=(number * 5,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and nothing_half(store) == 20


def test_two_corrections_of_one_run_at_once_leave_one(store: Store) -> None:
    ann = account(store, "ann")
    old = store.publish(one(store, 0), account_id=ann, who="ann").public_id
    ended: list[str] = []

    def correct(number: int) -> None:
        try:
            store.publish(one(store, number), account_id=ann, who="ann", replaces=old)
            ended.append("kept")
        except Conflict:
            ended.append("conflict")

    threads = [threading.Thread(target=correct, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == ["conflict", "conflict", "kept"] and nothing_half(store) == 2


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_for_files(store: Store) -> None:
    store.publish(one(store, 1), account_id=None, who="x")
    with largest_file(500), pytest.raises(Unavailable) as told:
        store.publish(one(store, 2), account_id=None, who="x")
    assert "disk" in str(told.value) and store.settings.files_url not in str(told.value)
    assert nothing_half(store) == 1 and not list(Path(store.settings.files_url).rglob("*.part"))
    assert store.publish(one(store, 2), account_id=None, who="x").created and nothing_half(store) == 2


def test_a_full_disk_for_the_database(quick: Store) -> None:
    for number in range(8):
        quick.publish(one(quick, number), account_id=None, who="x")
    path = Path(str(quick.database.engine.url.database))
    size = max(path.stat().st_size, path.with_name(path.name + "-wal").stat().st_size)
    assert size > 30_000
    before = count(quick, runs)
    with largest_file(25_000), pytest.raises(Unavailable):
        quick.publish(one(quick, 90), account_id=None, who="x")
    assert count(quick, runs) == before == nothing_half(quick)
    assert quick.publish(one(quick, 90), account_id=None, who="x").created and nothing_half(quick) == before + 1


def test_a_database_that_is_locked_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_MS", 200)
    opened = Database.open(new_url("sqlite", tmp_path))
    store = site_records.store(opened, tmp_path)
    with opened.write() as conn:
        conn.execute(sa.text("UPDATE names SET runs = runs"))
        with pytest.raises(Unavailable):
            store.publish(one(store, 1), account_id=None, who="x")
        assert count(store, runs) == 0  # readers do not wait for a writer
    assert store.publish(one(store, 1), account_id=None, who="x").created and nothing_half(store) == 1
    opened.close()


def test_a_database_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    url = new_url("postgresql", tmp_path)
    name = url.rsplit("/", 1)[1]
    opened = Database.open(url)
    store = site_records.store(opened, tmp_path)
    run = store.publish(one(store, 1), account_id=None, who="x").public_id
    server().admin(
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    for use in (lambda: store.row(run), lambda: store.publish(one(store, 2), account_id=None, who="x"), opened.ping):
        with pytest.raises(Unavailable) as told:
            use()
        assert name not in str(told.value)
    server().admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert store.row(run).public_id == run
    assert store.publish(one(store, 2), account_id=None, who="x").created and nothing_half(store) == 2
    opened.close()


def test_a_connection_cut_inside_a_transaction(tmp_path: Path) -> None:
    opened = Database.open(new_url("postgresql", tmp_path))
    store = site_records.store(opened, tmp_path)
    with pytest.raises(Unavailable), opened.write() as conn:
        conn.execute(sa.text("INSERT INTO names (kind, key, label, runs) VALUES ('model', 'half', 'half', 1)"))
        pid = conn.scalar(sa.text("SELECT pg_backend_pid()"))
        server().admin(f"SELECT pg_terminate_backend({pid})")
        conn.execute(sa.text("SELECT 1"))
    assert nothing_half(store) == 0
    opened.close()


def test_an_exception_takes_everything_back(store: Store) -> None:
    with pytest.raises(RuntimeError), store.database.write() as conn:
        conn.execute(sa.text("INSERT INTO names (kind, key, label, runs) VALUES ('model', 'half', 'half', 1)"))
        raise RuntimeError
    assert nothing_half(store) == 0


@pytest.mark.parametrize("what", ["points", "standings", "boards", "names", "deeds", "runs"])
def test_whichever_table_fails_nothing_is_half_written(store: Store, what: str) -> None:
    """Each statement of a publish fails once; the next try works."""
    store.publish(one(store, 1), account_id=None, who="x")

    def fail(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith((f"INSERT INTO {what} ", f"UPDATE {what} ")):
            raise sa.exc.OperationalError(statement, {}, Exception("disk full"))

    sa.event.listen(store.database.engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(Unavailable):
            store.publish(one(store, 2, model="Other/Model"), account_id=None, who="x")
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", fail)
    assert nothing_half(store) == 1
    assert store.publish(one(store, 2, model="Other/Model"), account_id=None, who="x").created
    assert nothing_half(store) == 2


def test_two_records_with_one_short_id(store: Store) -> None:
    """It takes a deliberate search for one; then it is a conflict, not a fault."""
    first = store.publish(one(store, 1), account_id=None, who="x")
    with pytest.raises(Conflict, match="short id"):
        store.publish(replace(one(store, 2), public_id=first.public_id), account_id=None, who="x")
    assert nothing_half(store) == 1


def test_deleting_goes_through_though_a_file_stays_for_the_sweep(quick: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = account(quick, "ann")
    run = quick.publish(one(quick, 1), account_id=ann, who="ann").public_id
    with monkeypatch.context() as patch:

        def away(*_: Any) -> None:
            raise Unavailable("away")

        patch.setattr(quick.blobs, "delete", away)
        quick.delete_account(ann, "ann")
    assert quick.row(run).state == DELETED
    with pytest.raises(Gone):
        quick.content(run)
    assert quick.sweep(-1) == 1 and nothing_half(quick) == 1


@pytest.mark.parametrize("content", [b"this is no database, but a text of a certain length" * 50, None])
def test_a_database_file_that_cannot_be_one(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "site.sqlite3"
    path.mkdir() if content is None else path.write_bytes(content)
    opened = Database.open(f"sqlite:///{path}")
    for use in (opened.ping, opened.migrate):
        with pytest.raises(Unavailable):
            use()
    opened.close()
    (tmp_path / "file").touch()
    with pytest.raises(SiteError, match="directory"):
        Database.open(f"sqlite:///{tmp_path}/file/below/site.sqlite3")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["{}/files", "file://{}/files", "memory://{}/files"])
def test_files_anywhere(url: str, tmp_path: Path) -> None:
    blobs = Blobs.open(url.format(tmp_path))
    data = b"{}" * 500
    name = blobs.put("records", data)
    assert name == hashlib.sha256(data).hexdigest() == blobs.put("records", data)
    assert blobs.get("records", name) == data and blobs.has("records", name) and len(blobs.raw("records", name)) < 100
    zipped = blobs.put("samples", b"zip")
    assert blobs.get("samples", zipped) == b"zip" == blobs.raw("samples", zipped)
    for kind, wrong in (("samples", name), ("records", "0" * 64), ("records", "../../x"), ("../x", name), ("", name)):
        with pytest.raises(NotFound):
            blobs.get(kind, wrong)
    assert blobs.sweep(lambda _k, _n: False, 3600) == 0
    assert blobs.sweep(lambda kind, _n: kind == "records", -1) == 1
    assert blobs.has("records", name) and not blobs.has("samples", zipped)
    blobs.delete("records", name)
    blobs.delete("records", name)
    assert not blobs.has("records", name)


def test_a_site_on_another_store(tmp_path: Path) -> None:
    opened = Database.open(new_url("sqlite", tmp_path))
    store = site_records.store(opened, tmp_path, files_url=f"memory://{tmp_path.name}")
    run = store.publish(one(store, 1), account_id=None, who="x", samples=b"zip").public_id
    assert json.loads(store.content(run)) == site_records.content(1) and nothing_half(store) == 1
    assert store.sweep(-1) == 0
    opened.close()


def test_a_store_that_fails_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    opened = Database.open(new_url("sqlite", tmp_path))
    store = site_records.store(opened, tmp_path, files_url=f"memory://{tmp_path.name}-fails")

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("bucket-name secret-host")

    with monkeypatch.context() as patch:
        for name in ("pipe_file", "cat_file"):
            patch.setattr(MemoryFileSystem, name, fail)
        with pytest.raises(Unavailable) as told:
            store.publish(one(store, 1), account_id=None, who="x")
        assert "secret-host" not in str(told.value)
    assert count(store, runs) == 0
    assert store.publish(one(store, 1), account_id=None, who="x").created and nothing_half(store) == 1
    opened.close()


def test_a_place_for_files_that_cannot_be_used() -> None:
    with pytest.raises(SiteError, match="nonsense"):
        Blobs.open("nonsense://x/y")


def test_a_place_for_files_whose_part_is_not_installed() -> None:
    code = "import sys; sys.modules['s3fs'] = None; from flatout.site.blobs import Blobs; Blobs.open('s3://bucket/x')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    last = made.stderr.strip().splitlines()[-1]
    assert made.returncode == 1 and last.startswith("flatout.site.errors.SiteError: files at s3:// cannot be used")


def test_a_file_that_changed_on_the_disk_is_not_given_out(quick: Store) -> None:
    run = quick.publish(one(quick, 1), account_id=None, who="x").public_id
    path = next(Path(quick.settings.files_url).rglob("*.json.gz"))
    whole = path.read_bytes()
    for broken in (whole[:-20], whole[:200] + b"\0\0\0\0" + whole[204:], b"", b"text"):
        path.write_bytes(broken)
        for read in (quick.content, quick.record):
            with pytest.raises(Unavailable, match="damaged"):
                read(run)
    path.unlink()
    with pytest.raises(NotFound):
        quick.content(run)
    # the same record again mends it
    quick.blobs.put(RECORDS, one(quick, 1).canonical)
    assert quick.record(run).id


def test_files_without_a_run_are_swept_when_they_are_old(quick: Store) -> None:
    quick.publish(one(quick, 1), account_id=None, who="x")
    orphan = quick.blobs.put(RECORDS, b"{}")
    half = next(Path(quick.settings.files_url).rglob("*.json.gz")).with_name(".x.json.gz.1.2.part")
    half.write_bytes(b"half")
    assert quick.sweep() == 0
    old = time.time() - 7200
    for path in Path(quick.settings.files_url).rglob("*.*"):
        os.utime(path, (old, old))
    quick.blobs.put(RECORDS, b"{}")  # wanted again just now, by a publish that is not through
    assert quick.sweep() == 1 and not half.exists() and quick.blobs.has(RECORDS, orphan)
    os.utime(Path(quick.settings.files_url) / "records" / orphan[:2] / f"{orphan}.json.gz", (old, old))
    assert quick.sweep() == 1 and not quick.blobs.has(RECORDS, orphan)
    assert nothing_half(quick) == 1


# --- what is kept of a record ---------------------------------------------------------------------------------------


def test_long_records_are_not_kept_in_memory(quick: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = quick.publish(one(quick), account_id=None, who="x").public_id
    assert quick.record(run) is quick.record(run) == parse(quick.content(run))
    monkeypatch.setattr("flatout.site.store._KEPT_BYTES", quick.row(run).bytes - 1)
    assert quick.record(run) is not quick.record(run) == parse(quick.content(run))


# --- waiting to take a place ----------------------------------------------------------------------------------------


@pytest.fixture
def queue(database: Database, tmp_path: Path) -> Store:  # noqa: F811
    return site_records.store(database, tmp_path, moderation="queue")


def shown(store: Store, number: int, owner: int, **more: Any) -> str:
    """A run that a moderator has let through."""
    made = store.publish(one(store, number), account_id=owner, who="ann", **more)
    assert made.state == QUEUED
    store.approve(made.public_id, who="mod")
    return made.public_id


def states(store: Store, *public_ids: str) -> list[str]:
    return [store.row(public_id).state for public_id in public_ids]


def test_what_waits_takes_its_place_when_it_is_public(queue: Store) -> None:
    ann = account(queue, "ann")
    old = shown(queue, 1, ann)
    new = queue.publish(one(queue, 2), account_id=ann, who="ann", replaces=old).public_id
    assert states(queue, old, new) == [PUBLIC, QUEUED] and queue.successor(queue.row(old)) is None
    assert queue.replaces(queue.row(new)) == old and nothing_half(queue) == 2
    queue.approve(new, who="mod")
    assert states(queue, old, new) == [WITHDRAWN, PUBLIC] and queue.successor(queue.row(old)) == new
    assert queue.replaces(queue.row(new)) is None and nothing_half(queue) == 2
    assert doings(queue)[-2:] == [("mod", "approved", None), ("mod", "withdrawn", queue.row(old).state_reason)]


@pytest.mark.parametrize("end", ["hide", "withdraw"])
def test_what_never_becomes_public_leaves_the_old_as_it_is(queue: Store, end: str) -> None:
    ann = account(queue, "ann")
    old = shown(queue, 1, ann)
    new = queue.publish(one(queue, 2), account_id=ann, who="ann", replaces=old).public_id
    if end == "hide":
        queue.hide(new, who="mod", reason="another machine than named")
    else:
        queue.withdraw(new, who="ann", account_id=ann, reason="wrong")
    assert states(queue, old) == [PUBLIC] and queue.successor(queue.row(old)) is None and nothing_half(queue) == 2
    third = shown(queue, 3, ann, replaces=old)
    assert states(queue, old, third) == [WITHDRAWN, PUBLIC] and queue.successor(queue.row(old)) == third
    if end == "hide":  # shown again: its place is taken, and it takes no other
        assert queue.replaces(queue.row(new)) is None
        queue.approve(new, who="mod")
        assert states(queue, old, new, third) == [WITHDRAWN, PUBLIC, PUBLIC] and nothing_half(queue) == 3


def test_one_waits_for_a_place_and_passes_it_on(queue: Store) -> None:
    ann = account(queue, "ann")
    old = shown(queue, 1, ann)
    second = queue.publish(one(queue, 2), account_id=ann, who="ann", replaces=old).public_id
    with pytest.raises(Conflict, match=second):
        queue.publish(one(queue, 3), account_id=ann, who="ann", replaces=old)
    third = queue.publish(one(queue, 3), account_id=ann, who="ann", replaces=second).public_id
    assert states(queue, old, second, third) == [PUBLIC, WITHDRAWN, QUEUED]
    assert queue.replaces(queue.row(third)) == old
    assert queue.successor(queue.row(second)) is None, "everybody reads a tombstone, and the third still waits"
    queue.approve(third, who="mod")
    assert queue.successor(queue.row(second)) == third
    assert states(queue, old, second, third) == [WITHDRAWN, WITHDRAWN, PUBLIC]
    assert queue.successor(queue.row(old)) == third and nothing_half(queue) == 3


def test_a_place_that_went_in_the_meantime_is_not_taken(queue: Store) -> None:
    ann = account(queue, "ann")
    old = shown(queue, 1, ann)
    new = queue.publish(one(queue, 2), account_id=ann, who="ann", replaces=old).public_id
    queue.withdraw(old, who="ann", account_id=ann, reason="a fan was broken")
    assert queue.replaces(queue.row(new)) is None
    queue.approve(new, who="mod")
    assert queue.row(old).state_reason == "a fan was broken" and states(queue, new) == [PUBLIC]


# --- deeds without a name, and who listens --------------------------------------------------------------------------


def test_who_closes_an_account_leaves_no_name(store: Store) -> None:
    with store.database.write() as conn:
        made, _ = make_token(conn, "ann", ["publish", "moderate"], "laptop", by="operator")
        make_token(conn, "ann-2", by="operator")
        revoke(conn, list_tokens(conn, made.id)[0].id)
    store.publish(one(store, 1), account_id=made.id, who="ann")
    store.hide(store.publish(one(store, 2), account_id=None, who="site").public_id, who="ann", reason="r")
    store.delete_account(made.id, "ann")
    told = doings(store)
    nobody = f"deleted-{made.id}"
    assert "ann" not in {who for who, _, _ in told}
    details = [detail or "" for _, _, detail in told]
    assert not any(detail == "ann" or detail.startswith("ann:") for detail in details)
    assert {("operator", "account made", nobody), (nobody, "hidden", "r"), (nobody, "published", None)} <= set(told)
    assert any(detail.startswith(f"{nobody}: flatout_") for detail in details)
    assert any(detail.startswith("ann-2: flatout_") for detail in details)  # somebody else's stays
    with store.database.write() as conn:
        assert add_account(conn, "ann").id != made.id


def test_who_listens_hears_of_each_change_once(quick: Store) -> None:
    heard: list[tuple[str, str]] = []

    def deaf(_: Moved) -> None:
        raise ValueError

    quick.listeners += [deaf, lambda run: heard.append((run.public_id, run.state))]
    ann = account(quick, "ann")
    first = quick.publish(one(quick, 1), account_id=ann, who="ann").public_id
    quick.publish(one(quick, 1), account_id=ann, who="ann")
    second = quick.publish(one(quick, 2), account_id=ann, who="ann", replaces=first).public_id
    quick.hide(second, who="mod", reason="r")
    quick.hide(second, who="mod", reason="r")
    quick.approve(second, who="mod")
    quick.delete_account(ann, "ann")
    assert heard == [
        (first, PUBLIC), (second, PUBLIC), (first, WITHDRAWN), (second, HIDDEN), (second, PUBLIC), (first, DELETED),
        (second, DELETED),
    ]  # fmt: skip
