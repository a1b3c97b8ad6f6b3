"""A site in one file, and back: between SQLite and PostgreSQL, and never over what is there."""

from __future__ import annotations

import io
import json
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from flatout.site.backup import Counted, backup, restore
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.errors import SiteError, Unavailable
from flatout.site.schema import accounts, metadata, reports, tokens
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
                account_id=1,
                label="Größe \u2028 \"'",
                hash="h" * 64,
                start="flatout_ab",
                scopes="publish",
                created_us=1,
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
    store = opened(settings)
    try:
        with store.database.read() as conn:
            return {
                table.name: sorted((tuple(row) for row in conn.execute(sa.select(table))), key=repr)
                for table in metadata.sorted_tables
            }
    finally:
        store.database.close()


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
    assert not any(everything(theirs).values())
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
    "another format": _manifest(format="flatout-site-backup/2"),
    "a newer version": _manifest(revision="9999"),
    "no tables told": _manifest(tables={}),
    "a table is missing": lambda name, data: None if name.startswith("tables/points") else (name, data),
    "a table is damaged": _flip("tables/runs"),
    "a table is another": lambda name, data: None if name.startswith("tables/runs") else (
        name.replace("accounts", "runs") if name.startswith("tables/accounts") else name, data),
    "a file is missing": lambda name, data: None if name.startswith("files/samples") else (name, data),
    "a file is damaged": _flip("files/records"),
    "a sample is damaged": _flip("files/samples"),
    "files go elsewhere": lambda name, data: (name.replace("files/", "../files/"), data),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_backup_restores_nothing(
    how: str, kind: str, whole: tuple[Settings, Path, Counted], tmp_path: Path
) -> None:
    _, archive, _ = whole
    bad = rewritten(archive, tmp_path / "bad.backup", DAMAGE[how])
    theirs = site(kind, tmp_path / "theirs")
    with pytest.raises(SiteError) as told:
        restore(theirs, bad)
    assert not isinstance(told.value, Unavailable) and len(str(told.value)) > 20
    assert not any(everything(theirs).values())
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
        assert not any(everything(theirs).values())
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
