"""The site and the client together, through the command line alone: tokens, publishing, faults, backup and restore.

The site is a process of its own; commands run in this one, which has everything imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from flatout.cli import app
from flatout.load.samples import Samples
from flatout.record import Record, dump
from tests import records
from tests.fake_site import Reply
from tests.fake_site import running as fake_site
from tests.site_process import COMMAND, SiteProcess, environment

SECRET = "sk-Zq81LmNx04TbWc77Yd"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def flatout(env: dict[str, str], *typed: object) -> Done:
    """A command of flatout, without a terminal."""
    unset = dict.fromkeys(name for name in os.environ if name not in env)
    done = CliRunner().invoke(app, [*map(str, typed)], env={**unset, **env})
    return Done(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def env(home: Path) -> dict[str, str]:
    return environment(home, FLATOUT_SITE_DATA=str(home / "data"), FLATOUT_SITE_RESULTS="none")


@pytest.fixture(scope="module")
def site(home: Path, env: dict[str, str]) -> Iterator[SiteProcess]:
    with SiteProcess(env, "--port", 0, cwd=home) as running:
        yield running


@pytest.fixture(scope="module")
def token(home: Path, env: dict[str, str]) -> Path:
    """A token file, made as the docs say, while the site may be running."""
    return new_token(env, home, "ada")


def new_token(env: dict[str, str], home: Path, name: str, *typed: object) -> Path:
    done = flatout(env, "site", "token", "add", name, *typed)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("flatout_") and done.stdout.count("\n") == 1 and done.stdout.strip() not in done.stderr
    )
    file = home / f"token-{name}"
    file.write_text(done.stdout)
    file.chmod(0o600)
    return file


def written(directory: Path, name: str, **more: object) -> Path:
    """A result directory whose record no other test has."""
    record: Record = records.seed_page().model_copy(update={"id": name, **more})
    (directory / name).mkdir()
    (directory / name / "record.json").write_text(dump(record))
    return directory / name


def publish(env: dict[str, str], site: SiteProcess | str, token: Path, record: Path, *typed: object) -> Done:
    to = site if isinstance(site, str) else site.url
    return flatout(env, "publish", record, "--to", to, "--token-file", token, "--yes", *typed)


def test_published_twice_is_one_run_that_proves_itself(
    site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path
) -> None:
    record = written(tmp_path, "twice")
    first, second = publish(env, site, token, record), publish(env, site, token, record)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout and first.stdout.startswith(f"{site.url}/r/")
    assert "had this very record already" in second.stderr and "already" not in first.stderr
    told = json.loads(publish(env, site, token, record, "--json").stdout)
    there = httpx.get(f"{told['url']}/record.json", timeout=30)
    assert hashlib.sha256(there.content).hexdigest() == told["content_hash"] and told["created"] is False
    assert json.loads(there.content) == json.loads((record / "record.json").read_text())
    page = httpx.get(told["url"], timeout=30)
    assert page.status_code == 200 and "Qwen3.5-4B" in page.text and "ada" in page.text


def test_what_redaction_takes_out_never_arrives(
    site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path
) -> None:
    record = written(tmp_path, "leaky", note=f"ask ada@example.org, key {SECRET}")
    done = publish(env, site, token, record)
    assert done.returncode == 0 and "note" in done.stderr and SECRET not in done.stderr, done.stderr
    content = httpx.get(f"{done.stdout.strip()}/record.json", timeout=30).text
    assert SECRET not in content and "ada@example.org" not in content and "<redacted>" in content


def test_the_server_looks_again_and_names_the_place(
    site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path
) -> None:
    raw = dump(records.seed_page().model_copy(update={"id": "raw", "note": f"key {SECRET}"}))
    answer = httpx.post(
        f"{site.url}/api/v1/runs", content=raw, timeout=30,
        headers={"Authorization": f"Bearer {token.read_text().strip()}", "Content-Type": "application/json"},
    )  # fmt: skip
    assert answer.status_code == 422 and answer.json()["place"] == "note" and SECRET not in answer.text


def test_samples_go_along_and_come_back(site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path) -> None:
    page = records.seed_page()
    first = page.cells[0].model_copy(update={"samples": "samples/first.npz"})
    record = written(tmp_path, "sampled", cells=[first, *page.cells[1:]])
    (record / "samples").mkdir()
    data = Samples.empty().to_bytes()
    (record / "samples" / "first.npz").write_bytes(data)
    (record / "samples" / "other.npz").write_bytes(b"named by no cell")
    done = publish(env, site, token, record, "--samples")
    assert done.returncode == 0 and "1 files of samples" in done.stderr, done.stderr
    link = done.stdout.strip()
    assert "samples.zip" in httpx.get(link, timeout=30).text
    got = httpx.get(f"{link}/samples.zip", timeout=30)
    with zipfile.ZipFile(io.BytesIO(got.content)) as archive:
        assert archive.namelist() == ["samples/first.npz"] and archive.read("samples/first.npz") == data


def test_corrected_runs_point_to_their_successor(
    site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path
) -> None:
    old = json.loads(publish(env, site, token, written(tmp_path, "old"), "--json").stdout)
    new = written(tmp_path, "new")
    for _ in range(2):
        done = publish(env, site, token, new, "--replaces", old["id"], "--json")
        assert done.returncode == 0, done.stderr
    gone = httpx.get(old["url"], timeout=30)
    assert gone.status_code == 410 and json.loads(done.stdout)["id"] in gone.text


def test_a_wrong_token_sends_nothing(site: SiteProcess, env: dict[str, str], tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("flatout_" + "w" * 43)
    wrong.chmod(0o600)
    record = written(tmp_path, "wrong")
    done = publish(env, site, wrong, record)
    assert done.returncode == 1 and "does not know this token" in done.stderr and done.stdout == ""
    assert "not known here" not in done.stderr  # one of the two is enough
    listed = httpx.get(f"{site.url}/api/v1/runs", timeout=30).json()["runs"]
    assert "wrong" not in {run["record_id"] for run in listed}


def test_a_token_is_listed_without_its_text_and_ends_at_once(
    site: SiteProcess, env: dict[str, str], home: Path, tmp_path: Path
) -> None:
    file = new_token(env, home, "eve", "--label", "laptop", "--days", 30)
    rows = {row["name"]: row for row in json.loads(flatout(env, "site", "token", "list", "--json").stdout)}
    assert rows["eve"]["label"] == "laptop" and rows["eve"]["state"] == "works" and rows["eve"]["ends"]
    text = flatout(env, "site", "token", "list").stdout
    assert "eve" in text and file.read_text().strip() not in text and rows["eve"]["begins"] in text
    assert publish(env, site, file, written(tmp_path, "before")).returncode == 0
    assert flatout(env, "site", "token", "revoke", rows["eve"]["id"]).returncode == 0
    after = publish(env, site, file, written(tmp_path, "after"))
    assert after.returncode == 1 and "does not know this token" in after.stderr
    again = {row["name"]: row["state"] for row in json.loads(flatout(env, "site", "token", "list", "--json").stdout)}
    assert again["eve"] == "revoked"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("add", "A B"), "a name has"),
        (("add", "ada", "--scopes", "rule"), "scopes are one or more of: publish, moderate"),
        (("add", "operator"), "kept for the site itself"),
        (("revoke", 12345), "there is no such token"),
    ],
)
def test_tokens_that_cannot_be(env: dict[str, str], typed: tuple[object, ...], expected: str) -> None:
    done = flatout(env, "site", "token", *typed)
    assert done.returncode == 2 and expected in done.stderr and done.stdout == ""


def test_options_may_stand_before_the_command(env: dict[str, str], tmp_path: Path) -> None:
    assert flatout(env, "site", "--data", tmp_path / "x", "token", "add", "zoe").returncode == 0
    names = json.loads(flatout(env, "site", "token", "list", "--json", "--data", tmp_path / "x").stdout)
    assert [row["name"] for row in names] == ["zoe"]


Strict = tuple[SiteProcess, dict[str, str]]


@pytest.fixture(scope="module")
def strict(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strict]:
    """A moderated site that takes five records an hour from here, none over a megabyte; with its environment."""
    own = {**env, "FLATOUT_SITE_DATA": str(tmp_path_factory.mktemp("strict")), "FLATOUT_SITE_MAX_RECORD_MB": "1"}
    typed = ("--port", 0, "--moderation", "queue", "--publish-per-hour", 5)
    with SiteProcess(own, *typed, cwd=Path(own["FLATOUT_SITE_DATA"])) as running:
        yield running, own


def test_too_large_is_told_in_words(strict: Strict, tmp_path: Path) -> None:
    site, own = strict
    record = written(tmp_path, "large", warnings=["slow " * 3_900] * 65)
    assert (record / "record.json").stat().st_size > 1_200_000
    done = publish(own, site, new_token(own, tmp_path, "bob"), record)
    assert done.returncode == 1 and "does not take so much at once" in done.stderr and "at most" in done.stderr


def test_a_moderated_site_says_that_the_run_waits_and_what_it_replaces_stays(strict: Strict, tmp_path: Path) -> None:
    site, own = strict
    token = new_token(own, tmp_path, "ada")
    done = publish(own, site, token, written(tmp_path, "waits"))
    assert done.returncode == 0 and "a moderator looks at it first" in done.stderr, done.stderr
    assert httpx.get(f"{site.url}/api/v1/runs", timeout=30).json()["runs"] == []
    old = done.stdout.strip().rpartition("/")[2]
    moderator = new_token(own, tmp_path, "mod", "--scopes", "moderate").read_text().strip()
    approved = httpx.post(
        f"{site.url}/api/v1/runs/{old}/approve", headers={"Authorization": f"Bearer {moderator}"}, timeout=30
    )
    assert approved.status_code == 200, approved.text
    done = publish(own, site, token, written(tmp_path, "new"), "--replaces", old)
    assert done.returncode == 0 and "a moderator looks at it first" in done.stderr, done.stderr
    assert "the run that it replaces stays as it is" in done.stderr
    assert [run["id"] for run in httpx.get(f"{site.url}/api/v1/runs", timeout=30).json()["runs"]] == [old]


def test_a_limit_is_waited_for_or_told(strict: Strict, tmp_path: Path) -> None:
    """The last of those that publish there."""
    site, own = strict
    token = new_token(own, tmp_path, "cleo")
    for number in range(6):
        done = publish(own, site, token, written(tmp_path, f"{number}"))
        if done.returncode:
            break
    assert number > 0 and done.returncode == 1 and "429" in done.stderr and "asks to wait" in done.stderr


def test_a_killed_site_has_all_it_had_and_gets_the_record_once(env: dict[str, str], tmp_path: Path) -> None:
    """Killed in the middle, started again while the client tries: one whole run, and the same link as ever."""
    own = {**env, "FLATOUT_SITE_DATA": str(tmp_path / "data")}
    token = new_token(own, tmp_path, "ada")
    record = written(tmp_path, "again")
    with SiteProcess(own, "--port", 0, cwd=tmp_path) as site:
        kept = publish(own, site, token, written(tmp_path, "kept")).stdout.strip()
        archive = tmp_path / "one.tar"
        done = flatout(own, "site", "backup", archive)
        assert done.returncode == 0 and ": 1 run, 1 file, " in done.stderr, done.stderr
        port = site.url.rpartition(":")[2]
        killer = threading.Timer(0.6, site.kill)
        killer.start()
        client = subprocess.Popen(
            [*COMMAND, "publish", str(record), "--to", site.url, "--token-file", str(token), "--yes", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own,
        )  # fmt: skip
        killer.join(timeout=10)
        time.sleep(0.5)
        with SiteProcess(own, "--port", port, cwd=tmp_path) as back:
            out, said = client.communicate(timeout=90)
            assert client.returncode == 0, said
            told = json.loads(out)
            listed = httpx.get(f"{back.url}/api/v1/runs", timeout=30).json()["runs"]
            assert {run["id"] for run in listed} == {told["id"], kept.rpartition("/")[2]} and len(listed) == 2
            content = httpx.get(f"{back.url}/r/{told['id']}/record.json", timeout=30).content
            assert hashlib.sha256(content).hexdigest() == told["content_hash"]
            assert httpx.get(kept, timeout=30).status_code == 200
            assert publish(own, back, token, record).stdout.strip() == told["url"]
    back_again = flatout({**env, "FLATOUT_SITE_DATA": str(tmp_path / "other")}, "site", "restore", archive)
    assert back_again.returncode == 0 and "1 run and 1 file are back" in back_again.stderr, back_again.stderr


def test_a_proxy_that_answers_502_for_a_while(env: dict[str, str], token: Path, tmp_path: Path) -> None:
    with fake_site() as proxy:
        proxy.me = [Reply(502, b"<html>502 Bad Gateway</html>"), *proxy.me]
        proxy.runs = [Reply(502, b"<html>"), *proxy.runs]
        done = publish(env, proxy.url, token, written(tmp_path, "behind"))
    assert done.returncode == 0 and done.stderr.count("it answers 502; trying again") == 2


def test_backup_and_restore_through_the_command_line(
    site: SiteProcess, env: dict[str, str], token: Path, tmp_path: Path
) -> None:
    link = publish(env, site, token, written(tmp_path, "kept")).stdout.strip()
    archive = tmp_path / "site.tar"
    done = flatout(env, "site", "backup", archive)
    assert done.returncode == 0 and re.search(r": \d+ runs?, \d+ files?, ", done.stderr), done.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    again = flatout(env, "site", "backup", archive)
    assert again.returncode == 2 and "is there already" in again.stderr
    other = {**env, "FLATOUT_SITE_DATA": str(tmp_path / "other")}
    back = flatout(other, "site", "restore", archive)
    assert back.returncode == 0, back.stderr
    twice = flatout(other, "site", "restore", archive)
    assert twice.returncode == 2 and "not empty" in twice.stderr
    with SiteProcess(other, "--port", 0, cwd=tmp_path) as copy:
        path = link.removeprefix(site.url)
        here, there = (httpx.get(f"{url}{path}/record.json", timeout=30).content for url in (site.url, copy.url))
        assert here == there
        assert publish(other, copy, token, written(tmp_path, "with-the-same-token")).returncode == 0
    broken = tmp_path / "broken.tar"
    broken.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert flatout({**env, "FLATOUT_SITE_DATA": str(tmp_path / "third")}, "site", "restore", broken).returncode == 2
    assert flatout(env, "site", "restore", tmp_path / "nothing").returncode == 2


def test_migrate_says_when_all_is_well(env: dict[str, str], tmp_path: Path) -> None:
    own = {**env, "FLATOUT_SITE_DATA": str(tmp_path / "data")}
    for _ in range(2):
        done = flatout(own, "site", "migrate")
        assert done.returncode == 0 and "is up to date" in done.stderr
