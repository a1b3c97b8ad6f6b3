"""A database for each test of the site: SQLite, and a real PostgreSQL that is started once a test process.

`from tests.site_database import database  # noqa: F401` in a test's file gives it the fixture.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from flatout.site.database import Database

_numbers = itertools.count(1)
_TEMPLATE = "site_template"
_PR_SET_PDEATHSIG = 1


class NoPostgres(Exception):
    """Why there is none to test with."""


@dataclass
class Server:
    """A running PostgreSQL without passwords on the loopback; `url(name)` of one of its databases."""

    port: int
    process: subprocess.Popen[bytes]
    directory: Path

    def url(self, name: str) -> str:
        return f"postgresql://flatout@127.0.0.1:{self.port}/{name}"

    def admin(self, *statements: str) -> None:
        engine = sa.create_engine(
            self.url("postgres").replace("postgresql:", "postgresql+psycopg:"),
            isolation_level="AUTOCOMMIT",
            poolclass=sa.NullPool,
        )
        with engine.connect() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
        self.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _programs() -> Path:
    """The directory of `initdb` and `postgres`: the newest version's, else on the path."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]) if p.parts[-3].isdigit() else 0
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise NoPostgres("PostgreSQL is not installed (initdb): `make postgres`")
    return Path(on_path).resolve().parent


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _dies_with_us() -> None:
    """Even if the tests are killed, their server is not left behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


@lru_cache(maxsize=1)
def server() -> Server:
    """The one server of this process, with the site's tables in a template. Raises NoPostgres."""
    programs, who = _programs(), _unprivileged()
    directory = Path(tempfile.mkdtemp(prefix="flatout-pg-", dir="/tmp"))
    if who:
        os.chown(directory, who["user"], who["group"])
    common: dict[str, Any] = {"cwd": directory, "stdin": subprocess.DEVNULL, **who}
    made = subprocess.run(
        [programs / "initdb", "-D", directory / "data", "-U", "flatout", "--auth=trust", "-E", "UTF8", "--locale=C",
         "--no-sync"],
        capture_output=True, text=True, timeout=120, check=False, **common,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        raise NoPostgres(f"initdb failed: {made.stderr[-300:]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (directory / "log").open("wb")
    process = subprocess.Popen(
        [programs / "postgres", "-D", directory / "data", "-k", directory, "-p", str(port),
         "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "full_page_writes=off",
         "-c", "max_connections=200", "-c", "shared_buffers=64MB"],
        stdout=log, stderr=log, preexec_fn=_dies_with_us, **common,
    )  # fmt: skip
    log.close()
    running = Server(port, process, directory)
    atexit.register(running.stop)
    _wait(running)
    running.admin(f"CREATE DATABASE {_TEMPLATE}")
    template = Database.open(running.url(_TEMPLATE))
    template.migrate()
    template.close()
    return running


def _wait(running: Server) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            running.admin("SELECT 1")
            return
        except sa.exc.OperationalError:
            if time.monotonic() > end or running.process.poll() is not None:
                log = (running.directory / "log").read_text(errors="replace")
                running.stop()
                raise NoPostgres(f"PostgreSQL did not start within 60 s: {log[-500:]}") from None
            time.sleep(0.05)


@lru_cache(maxsize=1)
def _migrated() -> bytes:
    """A file of SQLite with the site's tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.sqlite3"
        template = Database.open(f"sqlite:///{path}")
        template.migrate()
        template.close()
        return path.read_bytes()


def sqlite_url(path: Path) -> str:
    """The URL of a fresh file of SQLite with the site's tables; one that is there stays as it is."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_migrated())
        path.chmod(0o600)
    return f"sqlite:///{path}"


def new_url(kind: str, folder: Path, *, tables: bool = True) -> str:
    """The URL of a fresh database of that kind (`sqlite`, `postgresql`), with the site's tables or none.

    Skips the test where there is no PostgreSQL.
    """
    if kind == "sqlite":
        path = folder / f"site-{next(_numbers)}.sqlite3"
        return sqlite_url(path) if tables else f"sqlite:///{path}"
    try:
        running = server()
    except NoPostgres as error:
        pytest.skip(str(error))
    name = f"site_{os.getpid()}_{next(_numbers)}"
    running.admin(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if tables else 'template0'}")
    return running.url(name)


def drop(url: str) -> None:
    """A database of PostgreSQL that `new_url` made; SQLite's goes with its folder."""
    if not url.startswith("sqlite"):
        server().admin(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a fresh database with the site's tables."""
    url = new_url(request.param, tmp_path)
    yield url
    drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database with the site's tables, open."""
    url = new_url(request.param, tmp_path)
    made = Database.open(url)
    yield made
    made.close()
    drop(url)
