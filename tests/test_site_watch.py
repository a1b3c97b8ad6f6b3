"""Local results are picked up by themselves, each once, and again when they change."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from flatout.load.samples import Samples
from flatout.site.database import Database
from flatout.site.errors import Unavailable
from flatout.site.schema import takes
from flatout.site.store import MEASURED_FURTHER, PUBLIC, WITHDRAWN, Store
from flatout.site.watch import Watcher, pick_up
from tests import site_records
from tests.site_checks import nothing_half
from tests.site_database import database, new_url  # noqa: F401


@pytest.fixture
def store(database: Database, tmp_path: Path) -> Store:  # noqa: F811
    return site_records.store(database, tmp_path / "site", moderation="queue")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Store]:
    made = Database.open(new_url("sqlite", tmp_path))
    yield site_records.store(made, tmp_path / "site")
    made.close()


def put(results: Path, name: str, text: str | bytes, at_ns: int | None = None) -> Path:
    path = results / name / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if at_ns is not None:
        os.utime(path, ns=(at_ns, at_ns))
    return path


def outcomes(store: Store) -> dict[str, str | None]:
    with store.database.read() as conn:
        return {row.origin: row.outcome for row in conn.execute(sa.select(takes))}


def test_picked_up_once_and_again_when_measured_further(store: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert pick_up(store, results) == []
    put(results, "a", site_records.body(1, state="interrupted", state_reason="stopped by the user"))
    put(results, "b", site_records.body(2))
    first = pick_up(store, results)
    assert len(first) == 2 and pick_up(store, results) == []
    row = store.row(first[0])
    assert (row.origin, row.account_id, row.account, row.state) == ("a", None, None, PUBLIC)  # no queue for one's own
    put(results, "a", site_records.body(1))  # gone on with --resume
    (further,) = pick_up(store, results)
    old = store.row(first[0])
    assert old.state == WITHDRAWN and old.state_reason == MEASURED_FURTHER and store.successor(old) == further
    assert store.row(further).origin == "a" and store.row(first[1]).state == PUBLIC
    assert nothing_half(store) == 3 and outcomes(store) == {"a": None, "b": None}


def test_a_copy_or_a_touched_file_is_no_new_run(store: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    path = put(results, "a", site_records.body(1))
    assert len(pick_up(store, results)) == 1
    put(results, "copy", site_records.body(1))
    os.utime(path, (1_000_000, 1_000_000))
    assert pick_up(store, results) == [] and nothing_half(store) == 1
    shutil.rmtree(results)
    assert pick_up(store, results) == [] and nothing_half(store) == 1


def test_what_cannot_be_taken_is_written_down_and_not_tried_again(store: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    put(results, "broken", site_records.body(1)[:-300])
    put(results, "running", site_records.body(2, state="running"))
    put(results, "secret", site_records.body(3, note="key sk-proj-4f9aQ7LmZ2xW8vT1"))
    put(results, "other", "{}")
    put(results, "good", site_records.body(4))
    (results / "empty").mkdir()
    (results / "file").write_text("x")
    assert len(pick_up(store, results)) == 1
    told = outcomes(store)
    assert told["good"] is None and "JSON" in str(told["broken"]) and "not over" in str(told["running"])
    assert str(told["secret"]).startswith("note: ") and "sk-proj" not in json.dumps(told) and told["other"]
    stamps = dict(told)
    assert pick_up(store, results) == [] and outcomes(store) == stamps
    put(results, "broken", site_records.body(1))
    put(results, "running", site_records.body(2))
    assert len(pick_up(store, results)) == 2 and outcomes(store)["broken"] is None and nothing_half(store) == 3


def test_a_run_that_its_owner_withdrew_stays_so(store: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    path = put(results, "a", site_records.body(1))
    (run,) = pick_up(store, results)
    store.withdraw(run, who="me", account_id=None, moderator=True, reason="the laptop was hot")
    os.utime(path, (2_000_000, 2_000_000))
    assert pick_up(store, results) == [] and store.row(run).state == WITHDRAWN
    assert "withdrawn" in str(outcomes(store)["a"])


def test_samples_come_with_it(quick: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    content = site_records.content(1)
    for cell in content["cells"][:3]:
        cell["samples"] = f"samples/{cell['id'].replace('/', '-')}.npz"
    content["cells"][3]["samples"] = "samples/../../secret.npz"
    put(results, "a", json.dumps(content))
    (results / "secret.npz").write_bytes(b"not a sample")
    (results / "a" / "samples").mkdir()
    for cell in content["cells"][:2]:  # the third is not there
        (results / "a" / cell["samples"]).write_bytes(Samples.empty().to_bytes())
    (run,) = pick_up(quick, results)
    made = quick.samples(run)
    assert made is not None and made.count(b"samples/p-1024.npz") == 2 and b"secret" not in made
    put(results, "b", json.dumps({**content, "note": "other"}))
    shutil.copytree(results / "a" / "samples", results / "b" / "samples")
    (results / "b" / content["cells"][0]["samples"]).write_bytes(b"broken")
    (other,) = pick_up(quick, results)
    assert quick.samples(other) is None and quick.row(other).state == PUBLIC


def test_samples_that_are_no_files_are_left_out(quick: Store, tmp_path: Path) -> None:
    """A pipe, a device; a link to a file is one."""
    results = tmp_path / "results"
    content = site_records.content(1)
    for number, cell in enumerate(content["cells"][:4]):
        cell["samples"] = f"samples/{number}.npz"
    put(results, "a", json.dumps(content))
    samples = results / "a" / "samples"
    samples.mkdir()
    os.mkfifo(samples / "0.npz")
    (samples / "1.npz").symlink_to("/dev/zero")
    (samples / "2.npz").symlink_to(tmp_path / "there.npz")
    (samples / "3.npz").mkdir()
    (tmp_path / "there.npz").write_bytes(Samples.empty().to_bytes())
    (run,) = pick_up(quick, results)
    made = quick.samples(run)
    assert made is not None
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert archive.namelist() == ["samples/2.npz"]


def test_what_is_no_file_is_told_and_left(quick: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("pipe", "device", "linked", "folder"):
        (results / name).mkdir(parents=True)
    os.mkfifo(results / "pipe" / "record.json")
    (results / "device" / "record.json").symlink_to("/dev/zero")
    (results / "folder" / "record.json").mkdir()
    (tmp_path / "elsewhere.json").write_bytes(site_records.body(1))
    (results / "linked" / "record.json").symlink_to(tmp_path / "elsewhere.json")
    assert len(pick_up(quick, results)) == 1
    told = outcomes(quick)
    assert told["linked"] is None and "no file" in str(told["pipe"]) and "no file" in str(told["device"])
    assert told["folder"] and pick_up(quick, results) == []


def test_a_record_that_is_too_large_is_read_no_further(tmp_path: Path) -> None:
    made = Database.open(new_url("sqlite", tmp_path))
    store = site_records.store(made, tmp_path / "site", max_record_bytes=5_000)
    put(tmp_path / "results", "a", b"[" * 5_001)
    put(tmp_path / "results", "b", b"[" * 5_000)
    assert pick_up(store, tmp_path / "results") == []
    told = outcomes(store)
    made.close()
    assert "5,000 bytes" in str(told["a"]) and "5,000 bytes" not in str(told["b"])


def test_a_database_away_is_tried_again(quick: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    put(results, "a", site_records.body(1))

    def away(*_: object) -> str:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(quick.blobs, "put", away)
        with pytest.raises(Unavailable):
            pick_up(quick, results)
    assert outcomes(quick) == {} and len(pick_up(quick, results)) == 1


def test_the_watcher_looks_until_it_is_stopped(
    quick: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results = tmp_path / "results"
    watcher = Watcher(quick, results, every_s=0.02)
    watcher.start()
    try:
        put(results, "a", site_records.body(1))
        assert _soon(lambda: outcomes(quick) == {"a": None})
        with monkeypatch.context() as patch:

            def away(*_: object) -> str:
                raise Unavailable("away")

            patch.setattr(quick.blobs, "put", away)
            put(results, "b", site_records.body(2))
            assert _soon(lambda: "not picked up" in caplog.text)
            time.sleep(0.1)
            assert caplog.text.count("not picked up") == 1  # said once, not every five seconds
        assert _soon(lambda: outcomes(quick) == {"a": None, "b": None})
    finally:
        watcher.stop()
    put(results, "c", site_records.body(3))
    time.sleep(0.1)
    assert "c" not in outcomes(quick)


def _soon(holds: object) -> bool:
    assert callable(holds)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False
