"""A site in one file, and back: between SQLite and PostgreSQL, and never over what is there."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import stat
import tarfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from flatout.site.backup import Counted, backup, restore
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.drawings import Kept
from flatout.site.errors import SiteError, Unavailable
from flatout.site.schema import accounts, metadata, names, reports, tokens
from flatout.site.settings import Settings
from flatout.site.store import Store, now_us
from tests import site_records
from tests.site_checks import nothing_half
from tests.site_database import drop, new_url
from tests.site_faults import largest_file

KINDS = ("sqlite", "postgresql")


def opened(settings: Settings) -> Store:
    return Store(Database.open(settings.database_url), Blobs.open(settings.files_url), settings)


def site(kind: str, folder: Path, **more: Any) -> Settings:
    folder.mkdir(exist_ok=True)
    return site_records.settings(folder, database_url=new_url(kind, folder), **more)


def fill(settings: Settings) -> None:
    """Of everything something: states, successors that come later, samples, tokens, reports, odd signs."""
    store = opened(settings)
    with store.database.write() as conn:
        for name in ("ann", "bob"):
            conn.execute(sa.insert(accounts).values(name=name, created_us=now_us()))
        conn.execute(
            sa.insert(tokens).values(
                account_id=1, label="Größe \u2028", hash="h" * 64, start="flatout_ab", scopes="publish", created_us=1
            )
        )
    runs = []
    for number in range(12):
        taken = site_records.taken(store.settings, number, gpu=f"GPU ☃ {number % 3}", speed=1 + number / 7)
        samples = b"zip %d" % (number % 3) if number % 4 else None
        runs.append(store.publish(taken, account_id=1 + number % 2, who="ann", samples=samples).public_id)
    store.withdraw(runs[0], who="ann", account_id=1, reason="wrong", successor=runs[8])
    store.hide(runs[1], who="mod", reason="\\N \t; DROP TABLE runs; --")
    with store.database.write() as conn:
        conn.execute(sa.insert(reports).values(run_id=3, account_id=2, reason="too fast", made_us=5))
    store.delete_account(2, "bob")
    store.database.close()


def everything(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, without the stamps of names, which are made by chance."""
    store = opened(settings)
    try:
        with store.database.read() as conn:
            return {
                table.name: sorted(
                    (tuple(row) for row in conn.execute(sa.select(*(c for c in table.c if c is not names.c.stamp)))),
                    key=repr,
                )
                for table in metadata.sorted_tables
            }
    finally:
        store.database.close()


def nothing_in(settings: Settings) -> bool:
    files = [path for path in Path(settings.files_url).rglob("*") if path.is_file()]
    return not any(everything(settings).values()) and not files


def close(*all_settings: Settings) -> None:
    for settings in all_settings:
        drop(settings.database_url)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path, Counted]:
    folder = tmp_path_factory.mktemp("backup")
    settings = site("sqlite", folder / "site")
    fill(settings)
    return settings, folder / "site.backup", backup(settings, folder / "site.backup")


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_all_of_it_comes_back(source: str, target: str, tmp_path: Path) -> None:
    ours = site(source, tmp_path / "ours")
    fill(ours)
    archive = tmp_path / "site.backup"
    made = backup(ours, archive)
    assert made == Counted(runs=12, files=6 + 3)  # half of the runs are deleted, and some samples are the same
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    theirs = site(target, tmp_path / "theirs", files_url=f"memory://{tmp_path.name}-{source}-{target}")
    assert restore(theirs, archive) == made
    assert everything(theirs) == everything(ours)
    store = opened(theirs)
    try:
        assert nothing_half(store) == 12
        # and it goes on: numbers are not used twice
        assert store.publish(site_records.taken(theirs, 500), account_id=1, who="ann").created
        with store.database.write() as conn:
            conn.execute(sa.insert(accounts).values(name="cleo", created_us=1))
        assert nothing_half(store) == 13
        again = tmp_path / "again.backup"
        assert backup(theirs, again).runs == 13
    finally:
        store.database.close()
        close(ours, theirs)


def test_into_a_database_without_tables(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    ours, archive, made = whole
    theirs = site_records.settings(tmp_path)
    assert restore(theirs, archive) == made and everything(theirs) == everything(ours)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_restored_over_a_site(kind: str, whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    _, archive, _ = whole
    theirs = site(kind, tmp_path)
    store = opened(theirs)
    store.publish(site_records.taken(theirs, 77), account_id=None, who="x")
    store.database.close()
    before = everything(theirs)
    with pytest.raises(SiteError, match="not empty"):
        restore(theirs, archive)
    assert everything(theirs) == before
    close(theirs)


def test_a_backup_overwrites_nothing(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    ours, archive, _ = whole
    before = archive.read_bytes()
    with pytest.raises(SiteError, match="there already"):
        backup(ours, archive)
    assert archive.read_bytes() == before
    with pytest.raises(SiteError, match="no tables"):
        backup(site_records.settings(tmp_path), tmp_path / "none.backup")
    assert not [path for path in tmp_path.iterdir() if "backup" in path.name]


def test_a_site_with_a_file_missing_or_damaged_is_not_backed_up(tmp_path: Path) -> None:
    ours = site("sqlite", tmp_path / "ours")
    fill(ours)
    path = sorted(Path(ours.files_url).rglob("*.json.gz"))[0]
    good = path.read_bytes()
    for bad in (good[:-20], None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
            with pytest.raises(Unavailable, match="damaged"):
                backup(ours, tmp_path / "x.backup")
            continue
        with pytest.raises(SiteError, match="not there"):
            backup(ours, tmp_path / "x.backup")
    assert [p.name for p in tmp_path.iterdir()] == ["ours"]


def test_a_full_disk_leaves_no_half_backup(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    ours, archive, made = whole
    with largest_file(20_000), pytest.raises((OSError, Unavailable)):
        backup(ours, tmp_path / "x.backup")
    assert archive.stat().st_size > 20_000 and not list(tmp_path.iterdir())
    assert backup(ours, tmp_path / "x.backup") == made


def test_a_store_that_fails_while_restoring(
    whole: tuple[Settings, Path, Counted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, archive, made = whole
    theirs = site("sqlite", tmp_path / "theirs")
    with monkeypatch.context() as patch:

        def full(*_: Any) -> str:
            raise Unavailable("full")

        patch.setattr(Blobs, "put", full)
        with pytest.raises(Unavailable):
            restore(theirs, archive)
    assert nothing_in(theirs)
    assert restore(theirs, archive) == made


def rewritten(archive: Path, out: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    with tarfile.open(archive) as read, tarfile.open(out, "w") as write:
        for member in read:
            file = read.extractfile(member)
            assert file is not None
            made = change(member.name, file.read())
            if made is not None:
                info = tarfile.TarInfo(made[0])
                info.size = len(made[1])
                write.addfile(info, io.BytesIO(made[1]))
    return out


def _manifest(**more: Any) -> Callable[[str, bytes], tuple[str, bytes]]:
    def change(name: str, data: bytes) -> tuple[str, bytes]:
        return (name, json.dumps({**json.loads(data), **more}).encode() if name == "backup.json" else data)

    return change


def _flip(start: str) -> Callable[[str, bytes], tuple[str, bytes]]:
    def change(name: str, data: bytes) -> tuple[str, bytes]:
        at = len(data) // 2
        return (name, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if name.startswith(start) else data)

    return change


DAMAGE: dict[str, Callable[[str, bytes], tuple[str, bytes] | None]] = {
    "no manifest": lambda name, data: None if name == "backup.json" else (name, data),
    "manifest is no JSON": lambda name, data: (name, b"{" if name == "backup.json" else data),
    "another format": _manifest(format="flatout-site-backup/3"),
    "no tables told": _manifest(tables={}),
    "a table is missing": lambda name, data: None if name.startswith("tables/deeds") else (name, data),
    "a table is damaged": _flip("tables/runs"),
    "a table is another": lambda name, data: None if name.startswith("tables/runs") else (
        name.replace("accounts", "runs") if name.startswith("tables/accounts") else name, data),
    "a file is missing": lambda name, data: None if name.startswith("files/samples") else (name, data),
    "a file is damaged": _flip("files/records"),
    "a sample is damaged": _flip("files/samples"),
    "files go elsewhere": lambda name, data: (name.replace("files/", "../files/"), data),
}  # fmt: skip


@pytest.mark.parametrize(("how", "kind"), [*((how, "sqlite") for how in DAMAGE), ("a sample is damaged", "postgresql"),
                                           ("a table is damaged", "postgresql")])  # fmt: skip
def test_a_damaged_backup_restores_nothing(
    how: str, kind: str, whole: tuple[Settings, Path, Counted], tmp_path: Path
) -> None:
    _, archive, _ = whole
    bad = rewritten(archive, tmp_path / "bad.backup", DAMAGE[how])
    theirs = site(kind, tmp_path / "theirs")
    with pytest.raises(SiteError) as told:
        restore(theirs, bad)
    assert not isinstance(told.value, Unavailable) and len(str(told.value)) > 20
    assert nothing_in(theirs)
    assert {p.name for p in tmp_path.iterdir()} == {"bad.backup", "theirs"}
    close(theirs)


def test_what_is_no_archive(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    _, archive, _ = whole
    theirs = site("sqlite", tmp_path / "theirs")
    data = archive.read_bytes()
    for content in (b"", b"text" * 500, data[: len(data) // 2], data[:2000]):
        bad = tmp_path / "bad.backup"
        bad.write_bytes(content)
        with pytest.raises(SiteError):
            restore(theirs, bad)
        assert nothing_in(theirs)
    with pytest.raises(OSError):
        restore(theirs, tmp_path / "none")


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_of_a_site_that_is_written_to(kind: str, tmp_path: Path) -> None:
    """One state of it, whatever comes in meanwhile."""
    ours = site(kind, tmp_path / "ours")
    store = opened(ours)
    stopped = threading.Event()

    def publish() -> None:
        number = 0
        while not stopped.is_set():
            store.publish(site_records.taken(ours, number), account_id=None, who="x", samples=b"%d" % number)
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        made = [(path, backup(ours, path)) for path in (tmp_path / f"{number}.backup" for number in range(4))]
    finally:
        stopped.set()
        thread.join(60)
        store.database.close()
    for path, counted in made:
        theirs = site("sqlite", tmp_path / path.stem)
        assert restore(theirs, path) == counted
        back = opened(theirs)
        assert nothing_half(back) == counted.runs
        back.database.close()
    close(ours)


# --- made up by somebody ------------------------------------------------------------------------------------------


def _rows(table: str, **values: Any) -> Callable[[str, bytes], tuple[str, bytes]]:
    """Puts values into each row of a table; the manifest, which comes first, must be changed by `_retold`."""

    def change(name: str, data: bytes) -> tuple[str, bytes]:
        if name != f"tables/{table}.jsonl.gz":
            return name, data
        rows = [{**json.loads(line), **values} for line in gzip.decompress(data).splitlines()]
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        return name, gzip.compress(lines.replace(b'"DEEP"', b"[" * 100_000))

    return change


def _retold(archive: Path, out: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    """The archive with its tables changed and a manifest that tells of them as they are now."""
    changed = rewritten(archive, out.with_suffix(".first"), change)
    told: dict[str, Any] = {}
    with tarfile.open(changed) as read:
        for member in read:
            file = read.extractfile(member)
            if file is not None and member.name.startswith("tables/"):
                rows = gzip.decompress(file.read())
                name = member.name.removeprefix("tables/").removesuffix(".jsonl.gz")
                told[name] = {"rows": rows.count(b"\n"), "sha256": hashlib.sha256(rows).hexdigest()}
    made = rewritten(changed, out, _manifest(tables=told))
    changed.unlink()
    return made


MADE_UP: dict[str, tuple[str, dict[str, Any]]] = {
    "a name that moves the cursor": ("accounts", {"name": "ann\x1b[2J"}),
    "a name of two lines": ("accounts", {"name": "ann\n"}),
    "no name": ("accounts", {"name": ""}),
    "a name that is none": ("accounts", {"name": None}),
    "a name that is a number": ("accounts", {"name": 7}),
    "a time beyond all": ("accounts", {"created_us": 10**30}),
    "a time that is text": ("accounts", {"created_us": "DROP"}),
    "a time that is a list": ("accounts", {"created_us": [1]}),
    "a time that is true": ("accounts", {"created_us": True}),
    "a number that is none": ("accounts", {"created_us": math.nan}),
    "a state that there is not": ("runs", {"state": "best"}),
    "a hash that is a path": ("runs", {"content_hash": "../../" + "a" * 58}),
    "a hash that nothing has": ("runs", {"samples_hash": "a" * 64}),
    "half a sign": ("runs", {"state_reason": "\ud800"}),
    "what is nested too deeply": ("runs", {"state_reason": "DEEP"}),
    "runs that are one": ("runs", {"id": 1}),
    "an account that is not there": ("runs", {"account_id": 77}),
    "no sign": ("reports", {"reason": "a\0b"}),
    "a folder of two lines": ("runs", {"origin": "a\r\nSet-Cookie: b"}),
    "too long a folder": ("runs", {"origin": "m" * 301}),
}


@pytest.mark.parametrize(("how", "kind"), [*((how, "sqlite") for how in MADE_UP), ("a time beyond all", "postgresql"),
                                           ("no sign", "postgresql"), ("runs that are one", "postgresql")])  # fmt: skip
def test_what_no_site_can_hold_is_not_restored(
    how: str, kind: str, whole: tuple[Settings, Path, Counted], tmp_path: Path
) -> None:
    """Its hashes are right: whoever made the archive counted anew."""
    _, archive, _ = whole
    table, values = MADE_UP[how]
    bad = _retold(archive, tmp_path / "bad.backup", _rows(table, **values))
    theirs = site(kind, tmp_path / "theirs")
    with pytest.raises(SiteError, match="damaged") as told:
        restore(theirs, bad)
    assert str(told.value).isprintable() and len(str(told.value)) < 300
    assert nothing_in(theirs)
    close(theirs)


def test_what_a_record_tells_is_not_taken_from_rows(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    """Whatever else a row says of a run. (And the tests above change one thing alone.)"""
    ours, archive, made = whole
    theirs = site("sqlite", tmp_path / "s")
    boast = _rows("runs", single_tok_s=math.inf, model="a\r\nb", trust="good", public_id="mine", summary="[]")
    assert restore(theirs, _retold(archive, tmp_path / "b", boast)) == made
    assert everything(theirs) == everything(ours)


def _another_record(name: str, data: bytes, change: Callable[[dict[str, Any]], object]) -> tuple[str, bytes]:
    """A file of a record with its own hash, and a run that has it."""
    content = json.loads(gzip.decompress(data))
    change(content)
    made = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return f"files/records/{hashlib.sha256(made).hexdigest()}", gzip.compress(made)


@pytest.mark.parametrize(
    "change", [lambda content: content.update(cells=[{}]), lambda content: content.update(state="running"), dict.clear]
)
def test_a_record_that_is_none_is_not_restored(
    change: Callable[[dict[str, Any]], object], whole: tuple[Settings, Path, Counted], tmp_path: Path
) -> None:
    _, archive, _ = whole
    hashes: dict[str, str] = {}

    def files(name: str, data: bytes) -> tuple[str, bytes]:
        if not name.startswith("files/records/"):
            return name, data
        made = _another_record(name, data, change)
        hashes[name.rpartition("/")[2]] = made[0].rpartition("/")[2]
        return made

    def rows(name: str, data: bytes) -> tuple[str, bytes]:
        text = gzip.decompress(data) if name.startswith("tables/runs") else b""
        for old, new in hashes.items():
            text = text.replace(old.encode(), new.encode())
        return name, gzip.compress(text) if text else data

    changed = rewritten(archive, tmp_path / "files", files)
    theirs = site("sqlite", tmp_path / "theirs")
    with pytest.raises(SiteError, match="damaged"):
        restore(theirs, _retold(changed, tmp_path / "bad.backup", rows))
    assert nothing_in(theirs)


def test_a_backup_of_an_earlier_flatout_comes_back(tmp_path: Path) -> None:
    """`flatout-site-backup/1` held every table; what it says of each run is as the record is read today."""
    archive = tmp_path / "site.backup"
    archive.write_bytes(gzip.decompress((Path(__file__).parent / "fixtures/site/backup-1.tar.gz").read_bytes()))
    with tarfile.open(archive) as tar:
        told = {
            name: [json.loads(line) for line in gzip.decompress(file.read()).splitlines()]
            for name in ("accounts", "tokens", "runs", "points", "standings", "deeds")
            if (file := tar.extractfile(f"tables/{name}.jsonl.gz")) is not None
        }
    theirs = site("sqlite", tmp_path / "theirs")
    assert restore(theirs, archive) == Counted(runs=4, files=3)
    made = everything(theirs)
    for table in metadata.sorted_tables:
        if table.name in told:
            columns = table.c.keys()
            assert made[table.name] == sorted(((*map(row.get, columns),) for row in told[table.name]), key=repr)
    store = opened(theirs)
    assert nothing_half(store) == 4
    store.database.close()


@pytest.mark.parametrize(
    "more",
    [
        {"format": ["x"] * 1000}, {"tables": {"runs": 3}}, {"tables": {"runs": {"rows": "1", "sha256": ""}}},
        {"tables": {"runs": {"rows": True, "sha256": "0" * 64}}}, {"tables": "[" * 1000},
    ],
)  # fmt: skip
def test_a_manifest_that_somebody_made_up(
    more: dict[str, Any], whole: tuple[Settings, Path, Counted], tmp_path: Path
) -> None:
    _, archive, _ = whole
    theirs = site("sqlite", tmp_path / "theirs")
    with pytest.raises(SiteError) as told:
        restore(theirs, rewritten(archive, tmp_path / "bad.backup", _manifest(**more)))
    assert str(told.value).isprintable() and nothing_in(theirs)


def test_a_bomb_in_the_files_ends_at_the_limit(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    _, archive, _ = whole
    bomb = gzip.compress(bytes(2**26))
    name = hashlib.sha256(bytes(2**26)).hexdigest()
    theirs = site("sqlite", tmp_path / "theirs", max_record_bytes=2**20, max_samples_bytes=2**19)
    for member in (f"files/records/{name}", f"files/samples/{name}"):
        data = bomb if "records" in member else bytes(2**21)
        bad = rewritten(archive, tmp_path / "bad.backup", lambda n, d, m=member, b=data: (  # type: ignore[misc]
            (m, b) if n.startswith(m.rpartition("/")[0]) else (n, d)))  # fmt: skip
        tracemalloc.start()
        try:
            with pytest.raises(SiteError, match="othing was restored"):
                restore(theirs, bad)
            assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        finally:
            tracemalloc.stop()
        assert nothing_in(theirs)


def test_rows_without_end_end_where_the_manifest_says(whole: tuple[Settings, Path, Counted], tmp_path: Path) -> None:
    _, archive, _ = whole

    def more(name: str, data: bytes) -> tuple[str, bytes]:
        return name, gzip.compress(gzip.decompress(data) * 20_000) if name.startswith("tables/accounts") else data

    theirs = site("sqlite", tmp_path / "theirs")
    with pytest.raises(SiteError, match="accounts is not as it was"):
        restore(theirs, rewritten(archive, tmp_path / "bad.backup", more))
    assert nothing_in(theirs)


@bounded(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10**7), st.binary(min_size=1, max_size=40)), min_size=1, max_size=4))
def test_any_damage_is_told_in_words(
    whole: tuple[Settings, Path, Counted], tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]
) -> None:
    """What is damaged lies at the beginning for the most part, where the manifest and the tables are."""
    _, archive, _ = whole
    folder = tmp_path_factory.mktemp("damaged")
    data = bytearray(archive.read_bytes())
    for at, put in damage:
        at %= len(data) if at % 2 else 6_000
        data[at : at + len(put)] = put
    (folder / "bad").write_bytes(data)
    with contextlib.suppress(SiteError):  # where the padding was hit it is as good as before
        restore(site("sqlite", folder / "theirs"), folder / "bad")


@pytest.mark.parametrize("mask", [0o022, 0o000])
def test_nobody_else_reads_the_database(mask: int, tmp_path: Path) -> None:
    """Whatever the folder was made with, and though the file is of an earlier version."""
    before = os.umask(mask)
    try:
        tmp_path.chmod(0o755)
        ours = site_records.settings(tmp_path)
        (tmp_path / "site.sqlite3").touch(mode=0o666)
        store = opened(ours)
        store.database.migrate()
        store.publish(site_records.taken(ours, 1), account_id=None, who="x", samples=b"zip")
        Kept(tmp_path / "rendered").get("run", "ab" * 32, lambda: b"drawn")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert {modes["rendered"], modes["files"]} == {0o700}
        files = list(tmp_path.glob("site.sqlite3*"))
        assert len(files) == 3 and {modes[path.name] for path in files} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in Path(ours.files_url).rglob("*") if path.is_file()} == {
            0o600
        }
        store.database.close()
    finally:
        os.umask(before)
