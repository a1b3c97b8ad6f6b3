"""The tables' versions: up, down, and as `schema` says, on both databases."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from flatout.site import migrations
from flatout.site.database import Database
from flatout.site.errors import SiteError, Unavailable
from flatout.site.schema import metadata
from tests import site_records
from tests.site_database import drop, new_url

BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


def _tables(database: Database) -> set[str]:
    with database.read() as conn:
        return set(sa.inspect(conn).get_table_names()) - {"alembic_version"}


@BOTH
def test_up_down_and_up_again(kind: str, tmp_path: Path) -> None:
    url = new_url(kind, tmp_path, tables=False)
    database = Database.open(url)
    try:
        assert database.version() is None and not _tables(database)
        for _ in range(2):
            database.migrate()
            assert _tables(database) == set(metadata.tables) and database.version() is not None
            database.migrate()  # again changes nothing
            taken = site_records.taken(site_records.settings(tmp_path), 1)
            kept = site_records.store(database, tmp_path).publish(taken, account_id=None, who="ann")
            assert kept.created
            database.migrate("base")
            assert not _tables(database) and database.version() is None
    finally:
        database.close()
        drop(url)


@BOTH
def test_the_migrations_make_what_the_schema_says(kind: str, tmp_path: Path) -> None:
    url = new_url(kind, tmp_path)
    database = Database.open(url)
    try:
        with database.read() as conn:
            context = MigrationContext.configure(conn, opts={"compare_type": True, "compare_server_default": True})
            assert compare_metadata(context, metadata) == []
    finally:
        database.close()
        drop(url)


@BOTH
def test_each_version_goes_back_to_the_one_before(kind: str, tmp_path: Path) -> None:
    """What an earlier version made is there again after its successor was taken back."""
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    versions = [one.revision for one in script.walk_revisions()][::-1]
    url = new_url(kind, tmp_path, tables=False)
    database = Database.open(url)
    try:
        seen: list[set[str]] = []
        for version in versions:
            database.migrate(version)
            assert database.version() == version
            seen.append(_tables(database))
        for version, tables in zip(versions[::-1], seen[::-1], strict=True):
            database.migrate(version)
            assert database.version() == version and _tables(database) == tables
    finally:
        database.close()
        drop(url)


@BOTH
def test_two_that_start_at_once_make_the_tables_once(kind: str, tmp_path: Path) -> None:
    url = new_url(kind, tmp_path, tables=False)
    wrong: list[BaseException] = []

    def start() -> None:
        database = Database.open(url)
        try:
            database.migrate()
            database.ping()
        except BaseException as error:
            wrong.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    database = Database.open(url)
    try:
        assert not wrong and _tables(database) == set(metadata.tables)
    finally:
        database.close()
        drop(url)


def test_a_new_file_that_another_process_writes_to_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself does not wait before it changes the journal's mode."""
    path = tmp_path / "site.sqlite3"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # as our own writers begin: for this lock it gives up at once
    other.execute("CREATE TABLE something (a)")
    ends = threading.Timer(0.5, lambda: other.execute("COMMIT"))
    ends.start()
    database = Database.open(f"sqlite:///{path}")
    try:
        database.ping()
        with database.read() as conn:
            assert conn.scalar(sa.text("PRAGMA journal_mode")) == "wal"
    finally:
        ends.join()
        other.close()
        database.close()


@BOTH
def test_tables_of_a_newer_flatout_are_left_alone(kind: str, tmp_path: Path) -> None:
    url = new_url(kind, tmp_path)
    database = Database.open(url)
    try:
        with database.write() as conn:
            conn.execute(sa.text("UPDATE alembic_version SET version_num = 'f00d'"))
        with pytest.raises(SiteError, match="newer version"):
            database.migrate()
        assert database.version() == "f00d" and _tables(database) == set(metadata.tables)
    finally:
        database.close()
        drop(url)


def test_a_version_that_is_not_there_is_said(tmp_path: Path) -> None:
    database = Database.open(new_url("sqlite", tmp_path))
    try:
        with pytest.raises(SiteError, match="no version 'nonsense'"):
            database.migrate("nonsense")
        assert _tables(database) == set(metadata.tables)
    finally:
        database.close()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://a@b/c", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"]
)
def test_what_is_no_database_of_ours_is_refused_in_words(url: str) -> None:
    with pytest.raises(SiteError) as told:
        Database.open(url)
    assert not isinstance(told.value, Unavailable) and "sqlite" in str(told.value).lower()


def test_a_postgres_that_does_not_answer_is_unavailable() -> None:
    database = Database.open("postgresql://nobody:hidden-word@127.0.0.1:1/none")
    for use in (database.ping, database.migrate):
        with pytest.raises(Unavailable) as told:
            use()
        assert "hidden-word" not in str(told.value) and "127.0.0.1" not in str(told.value)
    database.close()


def test_a_power_cut_cannot_take_a_commit_back(tmp_path: Path) -> None:
    """SQLite is told to have each commit on the disk, and to check what points where."""
    database = Database.open(new_url("sqlite", tmp_path))
    try:
        with database.read() as conn:
            assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert conn.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            assert conn.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    finally:
        database.close()
