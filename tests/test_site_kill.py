"""A power cut at any moment of a publish, and two processes at once: real processes, killed with SIGKILL.

`python -m tests.test_site_kill kill|together …` is the process that makes and ends them: it has everything imported and
forks, so that a process costs milliseconds and hundreds of moments can be tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from flatout.site.database import Database
from flatout.site.errors import Conflict, NotFound
from flatout.site.schema import runs
from flatout.site.store import Store
from tests import site_records
from tests.site_checks import nothing_half
from tests.site_database import database, new_url  # noqa: F401

ROUNDS = 30
AT_HAND = 6
PUBLISHERS = 4
SAME = 8
_TIMEOUT_S = 120


def helper(what: str, database: Database, folder: Path) -> dict[str, Any]:  # noqa: F811
    url = database.engine.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_site_kill", what, url, str(folder)],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def test_a_kill_at_any_moment_leaves_whole_runs_or_none(database: Database, tmp_path: Path) -> None:  # noqa: F811
    told = helper("kill", database, tmp_path)
    store = site_records.store(database, tmp_path)
    kept = nothing_half(store)
    assert told["killed"] == ROUNDS and told["broken_off"] > ROUNDS // 3, told
    with database.read() as conn:
        there = set(conn.scalars(sa.select(runs.c.public_id)))
    answered = set(told["answered"])
    assert answered <= there and len(answered) <= kept <= len(answered) + ROUNDS, "an answered run is lost"
    # what the kills left lying about goes, and every run stays
    store.sweep(older_than_s=-1)
    files = [path.name for path in Path(store.settings.files_url).rglob("*.*")]
    assert not [name for name in files if name.endswith(".part")] and nothing_half(store) == kept
    assert store.publish(site_records.taken(store.settings, 9_999_999), account_id=None, who="x").created


def test_processes_that_publish_the_same_records_make_one_run_each(
    database: Database,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = helper("together", database, tmp_path)
    assert told["wrong"] == [] and told["created"] == SAME
    assert nothing_half(site_records.store(database, tmp_path)) == SAME


# --- the helper -----------------------------------------------------------------------------------------------------


def _open(url: str, folder: Path) -> Store:
    return site_records.store(Database.open(url), folder)


def _warm(url: str, folder: Path) -> None:
    """Everything that is imported, read or compiled at first use, before the forks."""
    Database.open(url).close()
    warm = folder / "warm"
    warm.mkdir()
    store = _open(new_url("sqlite", warm), warm)
    store.publish(site_records.taken(store.settings, 0), account_id=None, who="x")
    store.database.close()


def _publish_forever(url: str, folder: Path, begin: int, out: int) -> None:
    """Publishes one after the other, with samples, in the place of the one before, and withdraws some; tells on `out`
    what it begins and what was answered."""
    store = _open(url, folder)
    before: str | None = None
    for number in range(begin, begin + 10_000):
        if (number - begin) % AT_HAND == 0:  # made beforehand, so that the end comes while one is published
            ready = {
                n: site_records.taken(store.settings, n, gpu=f"GPU {n % 3}") for n in range(number, number + AT_HAND)
            }
        taken = ready[number]
        os.write(out, f"begun {taken.public_id}\n".encode())
        replaces = before if number % 4 == 1 else None
        made = store.publish(taken, account_id=None, who="x", samples=b"z" * 5000 + b"%d" % number, replaces=replaces)
        os.write(out, f"answered {made.public_id}\n".encode())
        if number % 5 == 4:
            with contextlib.suppress(Conflict, NotFound):
                store.withdraw(made.public_id, who="x", account_id=None, moderator=True, reason="r")
            before = None
        else:
            before = made.public_id


def _kill(url: str, folder: Path) -> dict[str, Any]:
    """Each round another process, ended at a random moment after its first answer."""
    rng = random.Random(5)
    answered: list[str] = []
    killed = broken_off = 0
    for number in range(ROUNDS):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                _publish_forever(url, folder, number * 10_000, write_end)
            os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as told:
            first = [told.readline(), told.readline()]
            time.sleep(rng.random() * 0.08)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            lines = [line.decode().split() for line in [*first, *told.read().splitlines()] if line.strip()]
        killed += os.WIFSIGNALED(status)
        broken_off += lines[-1][0] == "begun"
        answered += [name for word, name in lines if word == "answered"]
    return {"killed": killed, "broken_off": broken_off, "answered": answered}


def _together(url: str, folder: Path) -> dict[str, Any]:
    """Some processes with the same records in the same order."""
    children = []
    go_read, go_write = os.pipe()
    for _ in range(PUBLISHERS):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            told: dict[str, Any] = {"created": 0, "wrong": []}
            try:
                os.close(go_write)
                store = _open(url, folder)
                ready = [site_records.taken(store.settings, number) for number in range(SAME)]
                os.read(go_read, 1)  # ends when the parent closes it
                for taken in ready:
                    told["created"] += store.publish(taken, account_id=None, who="x").created
            except BaseException as error:
                told["wrong"].append(repr(error))
            os.write(write_end, json.dumps(told).encode())
            os._exit(0)
        os.close(write_end)
        children.append((child, read_end))
    time.sleep(0.3)
    os.close(go_write)
    made: dict[str, Any] = {"created": 0, "wrong": []}
    for child, read_end in children:
        with os.fdopen(read_end, "rb") as told_by:
            told = json.loads(told_by.read())
        os.waitpid(child, 0)
        made = {name: made[name] + told[name] for name in made}
    return made


def main(what: str, url: str, folder: str) -> None:
    _warm(url, Path(folder))
    made = {"kill": _kill, "together": _together}[what](url, Path(folder))
    print(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
