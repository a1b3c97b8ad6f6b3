"""The database: SQLite for one person or a team, PostgreSQL for many. One way to read, one to write."""

from __future__ import annotations

import os
import sqlite3
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from flatout.site.errors import SiteError, Unavailable

BUSY_MS: Final = 10_000
"""How long one writer waits for another before it gives up."""
AGAIN_S: Final = 0.02
_STATEMENT_MS: Final = 30_000
_CONNECTIONS: Final = 40  # as many as the server's threads
_WRITING: Final = "flatout_writing"
_LOCK_RUNS: Final = 0x666C6174  # PostgreSQL's advisory locks are numbers; any will do that nobody else takes
_LOCK_MIGRATION: Final = 0x666C6175
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_GONE: Final = (
    "the site's database cannot be used at the moment, so nothing was read or changed; try again in a minute. The "
    "operator finds the reason in the site's log"
)


class Database:
    """Open connections to one database. `write` has one transaction: all of it happens, or nothing."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Database:
        """Connects lazily: a database that does not answer is noticed by `ping`, `read` and `write`.

        `url`: `sqlite:///path` or `postgresql://user@host/name`. Raises SiteError for a URL that is no database of
        these, and where the driver for it is not installed.
        """
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise SiteError(
                "the database's URL cannot be read: write sqlite:///path or postgresql://user@host/name"
            ) from error
        kind = parsed.get_backend_name()
        if kind == "sqlite":
            if not parsed.database or parsed.database == ":memory:" or "memory" in str(parsed.query):
                raise SiteError("a database in memory keeps nothing and is not shared: give a path, sqlite:///site.db")
            return cls(_sqlite(parsed))
        if kind in ("postgresql", "postgres"):
            return cls(_postgresql(parsed))
        raise SiteError(f"the site keeps its data in SQLite or PostgreSQL, not in {kind[:40]!r}")

    @property
    def sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one state of the database on SQLite (on PostgreSQL each statement its own). Raises
        Unavailable."""
        with _told(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """As `read`, with one state of the whole database on PostgreSQL, too. Raises Unavailable."""
        level = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with _told(), self.engine.connect().execution_options(**level) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, committed at the end, rolled back at an exception. On SQLite writers wait for each other
        from the start (BEGIN IMMEDIATE). Raises Unavailable; IntegrityError passes."""
        with _told(), self.engine.connect().execution_options(**{_WRITING: True}) as connection, connection.begin():
            yield connection

    def one_at_a_time(self, connection: Connection) -> None:
        """Until the transaction ends no other one passes here: for changes of runs, and of what is counted from them.
        A transaction takes this lock before any other."""
        _lock(connection, _LOCK_RUNS)

    def migrate(self, target: str = "head") -> None:
        """Brings the tables to a version (`head`: this program's, `base`: none), up or down, in one transaction.

        Raises SiteError if the tables are of a newer version than this program, and Unavailable.
        """
        from alembic import command
        from alembic.runtime.migration import MigrationContext
        from alembic.script import ScriptDirectory
        from alembic.util import CommandError

        config = _alembic()
        script = ScriptDirectory.from_config(config)
        with self.write() as connection:
            _lock(connection, _LOCK_MIGRATION)
            config.attributes["connection"] = connection
            at = MigrationContext.configure(connection).get_current_revision()
            known = [one.revision for one in script.walk_revisions()]  # newest first
            if at is not None and at not in known:
                raise SiteError(
                    f"the database is of a newer version ({at[:40]}) than this flatout knows: update flatout; nothing "
                    "was changed"
                )
            goal = script.get_current_head() if target == "head" else target
            below = known[known.index(at) + 1 :] if at is not None else []
            try:
                if goal == "base" or goal in below:
                    command.downgrade(config, target)
                else:
                    command.upgrade(config, target)
            except CommandError as error:
                raise SiteError(f"there is no version {target[:40]!r} of the tables: {error}") from error

    def version(self) -> str | None:
        """Of the tables; None where there are none. Raises Unavailable."""
        from alembic.runtime.migration import MigrationContext

        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def ping(self) -> None:
        """Raises Unavailable if the database does not answer."""
        with self.read() as connection:
            connection.execute(sa.text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


def _alembic() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _lock(connection: Connection, number: int) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's writers are one at a time anyhow
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def _sqlite(url: sa.URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SiteError(
            f"the directory of the database cannot be made: {path.parent} ({error.strerror or error})"
        ) from error
    if "uri" not in url.query:
        _for_us_alone(path)
    engine = sa.create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=BUSY_MS / 1000,
        connect_args={"timeout": BUSY_MS / 1000, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def _settle(connection: sqlite3.Connection, _record: object) -> None:
        _write_ahead(connection)
        for pragma in (
            "synchronous=FULL",  # a commit is on the disk before it is answered: the power may fail
            "foreign_keys=ON",
            f"busy_timeout={BUSY_MS}",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # the driver begins nothing by itself (isolation_level None), so that a writer can lock from the start
        writing = connection.get_execution_options().get(_WRITING)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Sets the journal's mode, which stays with the file. SQLite does not wait for that as it does for all else: of two
    processes that start on a new file, one would fail at once."""
    end = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(AGAIN_S)


def _for_us_alone(path: Path) -> None:
    """Whatever the folder allows: hashes of tokens and runs that are not public are nobody else's. SQLite gives the
    files beside it the database's own mode."""
    with suppress(OSError):  # what is wrong with the file shows when it is used, in words
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(OSError):
            mode = file.stat().st_mode
            if mode & 0o077:
                file.chmod(mode & 0o700)


def _postgresql(url: sa.URL) -> Engine:
    # hosted ones write postgres://; the driver is ours, whatever the URL names
    url = url.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(
            url,
            pool_size=_CONNECTIONS // 2,
            max_overflow=0,
            pool_timeout=BUSY_MS / 1000,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": 5,
                "options": f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={BUSY_MS} -c timezone=UTC",
            },
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise SiteError(
            "PostgreSQL needs a driver that is not installed: pip install 'flatout[site,postgres]'"
        ) from error


@contextmanager
def _told() -> Iterator[None]:
    """The driver's errors as Unavailable, without their text: it may name hosts, files and statements."""
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable(_GONE) from error
    except DBAPIError as error:
        # a statement that breaks a rule of the tables is the caller's to settle, or a fault of ours: it must show
        theirs = (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.DataError, sa.exc.NotSupportedError)
        if isinstance(error, DatabaseError | sa.exc.InterfaceError) and not isinstance(error, theirs):
            raise Unavailable(_GONE) from error
        if error.connection_invalidated:
            raise Unavailable(_GONE) from error
        raise


LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Unindexed(GenericFunction[Any]):
    """The column as it is. SQLite, which has no statistics here, then leaves its indexes to other conditions; with
    them PostgreSQL chooses better itself."""

    inherit_cache = True


class Folded(GenericFunction[str]):
    """ASCII letters in lower case: what both databases can do alike."""

    inherit_cache = True


@compiles(Unindexed, "sqlite")
def _unindexed_sqlite(element: Any, compiler: Any, **more: Any) -> str:
    return f"+{compiler.process(element.clauses, **more)}"


@compiles(Unindexed, "postgresql")
def _unindexed_postgresql(element: Any, compiler: Any, **more: Any) -> str:
    return str(compiler.process(element.clauses, **more))


@compiles(Folded, "sqlite")
def _folded_sqlite(element: Any, compiler: Any, **more: Any) -> str:
    return f"lower({compiler.process(element.clauses, **more)})"


@compiles(Folded, "postgresql")
def _folded_postgresql(element: Any, compiler: Any, **more: Any) -> str:
    inner = compiler.process(element.clauses, **more)
    return f"translate({inner}, '{string.ascii_uppercase}', '{string.ascii_lowercase}')"


def now_us() -> int:
    """This moment in microseconds since 1970 (UTC)."""
    return time.time_ns() // 1000


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column's values, for conditions and orders that another index serves better."""
    return Unindexed(column, type_=column.type)


def holds(column: ColumnElement[str], word: str) -> ColumnElement[bool]:
    """The text holds the word, whatever the case of ASCII letters."""
    escaped = word.translate(LOWER).replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return Folded(column).like(f"%{escaped}%", escape="\\")


def upsert(conn: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that takes `on_conflict_do_update`."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)
