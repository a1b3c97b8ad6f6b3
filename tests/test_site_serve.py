"""Starting and ending the site: settings and where they come from, what is unsafe in public, port, signals, results."""

from __future__ import annotations

import base64
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flatout.net import is_loopback
from flatout.record import dump
from flatout.site import settings as site_settings
from flatout.site.errors import SettingsError
from flatout.site.settings import Settings, Typed, gathered, shown_database, unsafe
from tests import records
from tests.site_process import COMMAND, SiteProcess, environment, flatout

ROOT = Path(__file__).parents[1]
NAMES = st.sampled_from(sorted(Typed.model_fields))
SAFE_SECRET = "q7Jx0vN2m-RkT9_wLzYb4HcD8sGfA1eU"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


def make(typed: dict[str, Any], environment: dict[str, str] | None = None) -> Settings:
    """The settings where the environment holds nothing else."""
    with mock.patch.dict(os.environ, {"HOME": os.environ["HOME"], **(environment or {})}, clear=True):
        return site_settings.make(typed)


def made(tmp_path: Path, environment: dict[str, str] | None = None, **typed: Any) -> Settings:
    return make({"data": tmp_path / "data", **typed}, environment)


# --- settings -------------------------------------------------------------------------------------------------------


def test_nothing_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = make({}, {"XDG_DATA_HOME": str(tmp_path / "share")})
    assert got.data_dir == tmp_path / "share" / "flatout" / "site"
    assert got.database_url == f"sqlite:///{got.data_dir}/site.sqlite3" and got.files_url == f"{got.data_dir}/files"
    assert got.results_dir == tmp_path / "results" and got.base_url == "http://127.0.0.1:8321"
    assert stat.S_IMODE(got.data_dir.stat().st_mode) == 0o700


def test_the_secret_is_made_once_and_kept_for_the_user_alone(tmp_path: Path) -> None:
    first, second = made(tmp_path), made(tmp_path)
    assert (
        first.secret == second.secret and len(first.secret) >= 64 and first.secret_file == tmp_path / "data" / "secret"
    )
    assert stat.S_IMODE((tmp_path / "data" / "secret").stat().st_mode) == 0o600
    assert made(tmp_path / "other").secret != first.secret
    assert first.secret not in repr(first) and first.database_url not in repr(first)


def test_two_at_once_make_one_secret(tmp_path: Path) -> None:
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(made(tmp_path).secret)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(got) == 8 and len(set(got)) == 1
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["secret"]


def test_a_public_site_makes_no_secret(tmp_path: Path) -> None:
    got = made(tmp_path, public=True)
    assert got.secret == "" and not (tmp_path / "data" / "secret").exists() and got.results_dir is None
    assert made(tmp_path, {"FLATOUT_SITE_SECRET": SAFE_SECRET}, public=True).secret == SAFE_SECRET


def test_typed_goes_before_environment_before_file(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('port = 1000\ntitle = "from the file"\nresults = "runs"\nmoderation = "queue"\npublic = false\n')
    env = {"FLATOUT_SITE_CONFIG": str(config), "FLATOUT_SITE_PORT": "2000", "FLATOUT_SITE_TITLE": "environment"}
    got = made(tmp_path, env, port=3000)
    assert (got.port, got.title, got.moderation) == (3000, "environment", "queue")
    assert got.results_dir == tmp_path / "runs"  # a path in the file counts from the file
    assert made(tmp_path, {**env, "FLATOUT_SITE_RESULTS": "none"}).results_dir is None


def test_the_database_of_a_nearer_source_replaces_the_other_form(tmp_path: Path) -> None:
    secret = tmp_path / "database"
    secret.write_text("postgresql://u:hunter2@db/flatout\n")
    secret.chmod(0o600)
    config = tmp_path / "site.toml"
    config.write_text('database = "postgresql:///mine"\n')
    env = {"FLATOUT_SITE_CONFIG": str(config), "FLATOUT_SITE_DATABASE_FILE": str(secret)}
    got = made(tmp_path, env)
    assert got.database_url == "postgresql://u:hunter2@db/flatout" and "hunter2" not in repr(got)
    assert shown_database(got.database_url) == "postgresql://u@db/flatout"
    assert made(tmp_path, env, database="postgresql:///typed").database_url == "postgresql:///typed"


@pytest.mark.parametrize(
    ("typed", "env", "expected"),
    [
        ({"database": "postgresql://u:hunter2@db/x"}, {}, "everybody on this machine can read command lines"),
        ({"database": "mysql://db/x"}, {}, "postgresql://user@host/name or sqlite"),
        ({"base_url": "speed.example.org"}, {}, "base-url: it takes the address"),
        ({"base_url": "https://a.example/path"}, {}, "base-url"),
        ({"registration": "maybe"}, {}, "registration = 'maybe'.*closed or open"),
        ({"proxies": ["proxy.local"]}, {}, "proxies.*addresses or networks"),
        ({"title": "a\nb"}, {}, "title.*a line of text"),
        ({}, {"FLATOUT_SITE_PORT": "70000"}, "port = '70000' .FLATOUT_SITE_PORT.: it takes a whole number"),
        ({}, {"FLATOUT_SITE_PUBLIC": "perhaps"}, "public.*true or false"),
        ({}, {"FLATOUT_SITE_BASEURL": "x"}, "no setting FLATOUT_SITE_BASEURL.*is base_url meant"),
        ({"secret_file": "/nowhere/secret"}, {}, "secret-file /nowhere/secret: cannot be read"),
        ({"config": "/nowhere/site.toml"}, {}, "--config /nowhere/site.toml: cannot be read"),
        ({"database": "sqlite:///x", "database_file": "/x"}, {}, "either database or database-file"),
    ],
)
def test_settings_that_cannot_be_used(
    tmp_path: Path, typed: dict[str, Any], env: dict[str, str], expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        made(tmp_path, env, **typed)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot = 1\n", "no setting 'prot'; is port meant"),
        ("port = \n", "cannot be read"),
        ("port = true\n", "port = True"),
        ('secret = "x"\n', "no setting 'secret'"),
        ("zzz = 1\n", "there are data, database"),
    ],
)
def test_a_file_of_settings_with_a_mistake(tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "site.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=expected):
        made(tmp_path, config=config)


def test_a_password_lies_in_no_file_that_everybody_may_read(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('database = "postgresql://u:hunter2@db/x"\n')
    config.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        made(tmp_path, config=config)
    config.chmod(0o640)
    assert made(tmp_path, config=config).database_url.endswith("@db/x")


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="the folder cannot be made"):
        make({"data": tmp_path / "file" / "data"}, {})


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(Typed.model_fields)), st.text(max_size=12) | st.integers() | st.booleans(), max_size=4
    )
)
@example({"debug": 0})
@example({"public": 1})
def test_any_value_is_taken_or_refused_in_words(typed: dict[str, Any]) -> None:
    try:
        got = gathered(typed)
    except SettingsError as error:
        assert ":" in str(error)
        return
    assert got.model_fields_set <= set(typed)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9", "a.localhost", "LOCALHOST."])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_not_this_machine_alone(host: str) -> None:
    assert not is_loopback(host)


# --- safe in public -------------------------------------------------------------------------------------------------


@pytest.fixture
def safe(tmp_path: Path) -> Settings:
    file = tmp_path / "secret"
    file.write_text(SAFE_SECRET)
    file.chmod(0o600)
    return make(
        {
            "data": tmp_path / "data", "public": True, "secret_file": file, "base_url": "https://speed.example.org",
            "proxies": ["127.0.0.1"], "registration": "open",
        },
        {},
    )  # fmt: skip


def test_safe_settings_are_safe(safe: Settings) -> None:
    assert unsafe(safe) == []


@pytest.mark.parametrize(
    ("change", "expected", "to_type"),
    [
        ({"secret": ""}, "no secret", "--secret-file"),
        ({"secret": "x" * 20}, "has 20 characters", "secrets.token_urlsafe"),
        ({"secret": "change-me-please-0123456789-abcXYZ"}, "made up", "secrets.token_urlsafe"),
        ({"secret": "abcd1234EFGH5678" * 3}, "made up", "secrets.token_urlsafe"),
        ({"secret": "a" * 64}, "made up", "secrets.token_urlsafe"),
        ({"debug": True}, "debug", "leave it out"),
        ({"base_url": "http://speed.example.org"}, "not https", "--base-url https://"),
        ({"base_url": "https://127.0.0.1"}, "no name that others can reach", "--base-url"),
        ({"base_url": "https://speed"}, "no name that others can reach", "--base-url"),
        ({"base_url": "https://203.0.113.5"}, "no name that others can reach", "--base-url"),
        ({"publish_per_hour": 0}, "anybody can make an account", "--publish-per-hour"),
        ({"publish_per_hour": 0, "registration": "closed"}, "publishing has no limit:", "--publish-per-hour"),
        ({"requests_per_minute": 0}, "requests have no limit", "--requests-per-minute"),
        ({"comparisons_per_minute": 0}, "comparisons have no limit", "--comparisons-per-minute"),
        ({"results_dir": Path("/srv/results")}, "public at once", "flatout publish"),
        ({"proxies": ()}, "no proxy is named", "--proxy 127.0.0.1"),
        ({"proxies": ("*",)}, "names everybody", "own address"),
        ({"proxies": ("10.0.0.1", "0.0.0.0/0")}, "names everybody", "own address"),
    ],
)
def test_each_unsafe_setting_is_named_with_what_to_type(
    safe: Settings, change: dict[str, Any], expected: str, to_type: str
) -> None:
    found = unsafe(replace(safe, **change))
    assert len(found) == 1 and expected in found[0] and to_type in found[0], found


def test_a_secret_that_everybody_may_read_is_unsafe(safe: Settings) -> None:
    assert safe.secret_file is not None
    safe.secret_file.chmod(0o644)
    assert len(unsafe(safe)) == 1 and "chmod 600" in unsafe(safe)[0]
    safe.secret_file.chmod(0o640)  # a group of its own may: systemd and root-owned files
    assert unsafe(safe) == []
    safe.secret_file.unlink()
    assert "cannot be looked at" in unsafe(safe)[0]


def test_random_secrets_are_not_taken_for_made_up_ones(safe: Settings) -> None:
    """The same 500 each time: a random one may hold a made-up word by chance."""
    chance = random.Random(1)
    made = [base64.urlsafe_b64encode(chance.randbytes(48)).decode() for _ in range(500)]
    assert all(unsafe(replace(safe, secret=secret)) == [] for secret in made)


def test_public_with_everything_wrong_starts_nothing_and_lists_all(tmp_path: Path, env: dict[str, str]) -> None:
    done = flatout(env, "site", "--public", "--data", tmp_path / "d", "--publish-per-hour", 0, "--port", 0)
    assert done.returncode == 2 and done.stderr.count("\n  - ") == 5, done.stderr
    for words in ("no secret", "not https", "no name", "no proxy", "no limit"):
        assert words in done.stderr
    assert not (tmp_path / "d" / "site.sqlite3").exists()


# --- docs and deploy ------------------------------------------------------------------------------------------------


def test_the_docs_list_every_setting_and_no_other() -> None:
    text = (ROOT / "docs" / "site.md").read_text()
    table = text[text.index("| setting |") :].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(Typed.model_fields) - {"debug"}


def test_the_settings_in_the_docs_are_safe(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SAFE_SECRET)
    file.chmod(0o640)
    got = make({"config": ROOT / "docs" / "site" / "site.toml", "data": tmp_path / "data", "secret_file": file}, {})
    assert got.public and unsafe(got) == [] and got.moderation == "queue"


def test_the_containers_settings_are_safe(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text() + (ROOT / "deploy" / "Containerfile").read_text()
    env = dict(re.findall(r"(FLATOUT_SITE_[A-Z_]+)(?:: |=)\"?([^\s\"]+)", text))
    env |= {
        "FLATOUT_SITE_DATA": str(tmp_path), "FLATOUT_SITE_SECRET": SAFE_SECRET,
        "FLATOUT_SITE_DATABASE": "postgresql://flatout:abc@db/flatout", "FLATOUT_SITE_BASE_URL": "https://a.example",
    }  # fmt: skip
    got = make({}, env)
    assert got.public and unsafe(got) == [] and got.host == "0.0.0.0" and got.proxies == ("172.30.83.0/24",)


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, env: dict[str, str]) -> Iterator[SiteProcess]:
    with SiteProcess(env, "--data", tmp_path / "data", "--port", 0, cwd=tmp_path) as running:
        yield running


def test_it_starts_says_where_keeps_its_secrets_and_ends_cleanly(site: SiteProcess) -> None:
    assert site.url.startswith("http://127.0.0.1:")
    assert "nothing yet; runs that end there come by themselves" in site.wait_for("picks up")
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:  # a head without end is cut off
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for number in range(2_000):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))
            answer = connection.recv(100)
        except OSError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    alive = httpx.get(f"{site.url}/healthz", timeout=30)
    assert alive.status_code == 200 and alive.json() == {"status": "ok"} and "server" not in alive.headers
    token = "flatout_" + "Q" * 43
    for path in ("/nothing", "/api/v1/me", "/%00", "/r/x" + "y" * 9000):
        httpx.get(site.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    if Path("/proc").exists():
        typed = Path(f"/proc/{site.process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        assert (Path(typed.split("--data ")[1].split()[0]) / "secret").read_text().strip() not in typed
    assert site.end(signal.SIGINT) == 0
    log = "\n".join(line for line in site.lines if "flatout site" not in line)
    assert site.lines[-1] == "stopped" and not any(word in log for word in (token, "127.0.0.1", "Traceback"))


def test_it_ends_on_sigterm_though_connections_stay_open(site: SiteProcess) -> None:
    host, port = site.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(3)]
    idle[0].sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 100\r\n\r\n{")  # fmt: skip
    idle[1].sendall(b"GET / HT")
    time.sleep(0.3)
    assert site.end(signal.SIGTERM, within_s=40) in (0, 1)
    for connection in idle:
        connection.close()


def test_a_taken_port_is_told_in_words(tmp_path: Path, env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = flatout(env, "site", "--data", tmp_path / "d", "--port", port)
    assert done.returncode == 2 and f"port {port} is in use" in done.stderr and "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.name.invalid", "a..b"])
def test_an_address_that_is_not_this_machines(tmp_path: Path, env: dict[str, str], host: str) -> None:
    done = flatout(env, "site", "--data", tmp_path / "d", "--port", 0, "--host", host)
    assert done.returncode == 2 and f"--host {host}: this machine" in done.stderr


def test_without_the_extra_it_says_what_to_install(env: dict[str, str]) -> None:
    code = (
        "import sys\nfor name in ('fastapi', 'sqlalchemy', 'jinja2'): sys.modules[name] = None\n"
        "sys.argv = ['flatout', 'site']\nfrom flatout.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 2 and "pip install 'flatout[site]'" in done.stderr and "fastapi" in done.stderr


def test_the_password_of_the_database_is_never_shown(tmp_path: Path, env: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://u:hunter2@127.0.0.1:{free.getsockname()[1]}/x"
    done = flatout({**env, "FLATOUT_SITE_DATABASE": url}, "site", "--data", tmp_path / "d", "--port", 0)
    assert done.returncode == 2 and "hunter2" not in done.stderr + done.stdout and "Traceback" not in done.stderr
    assert "cannot be used: " in done.stderr and "refused" in done.stderr  # the operator is told why
    done = flatout(env, "site", "--database", url, "--data", tmp_path / "d", "--port", 0)
    assert done.returncode == 2 and "FLATOUT_SITE_DATABASE" in done.stderr and "hunter2" not in done.stderr


def test_results_are_picked_up_and_new_ones_too(tmp_path: Path, env: dict[str, str]) -> None:
    results = tmp_path / "results"
    for name, state in (("one", "finished"), ("two", "interrupted"), ("three", "running")):
        (results / name).mkdir(parents=True)
        record = records.seed_page().model_copy(update={"state": state, "id": name})
        (results / name / "record.json").write_text(dump(record))
    with SiteProcess(env, "--data", tmp_path / "data", "--port", 0, cwd=tmp_path) as site:
        line = site.wait_for("picks up")
        assert f"{results}: 2 runs, 1 left out" in line, line
        assert "three" in site.wait_for("three:")
        assert len(httpx.get(f"{site.url}/api/v1/runs", timeout=30).json()["runs"]) == 2
        (results / "four").mkdir()
        late = records.every_kind().model_copy(update={"id": "four"})
        (results / "four" / "record.json").write_text(dump(late))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = httpx.get(f"{site.url}/api/v1/runs", timeout=30).json()["runs"]
            if len(found) == 3:
                break
            time.sleep(0.5)
        assert {run["record_id"] for run in found} == {"one", "two", "four"}
        assert {run["publisher"] for run in found} == {None}


def test_a_site_for_the_network_picks_nothing_up_unasked(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "results" / "one" / "record.json").write_text(dump(records.seed_page()))
    typed = ("--data", tmp_path / "data", "--port", 0, "--host", "0.0.0.0")
    with SiteProcess({**env, "FLATOUT_SITE_BASE_URL": "http://localhost"}, *typed, cwd=tmp_path) as site:
        site.wait_for("everybody who reaches this machine")
        site.end()
        assert not any("picks up" in line for line in site.lines)


def test_help_is_told_without_the_sites_packages(env: dict[str, str]) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom flatout.cli import app\n"
        "for words in (['site', '--help'], ['site', 'token', 'add', '--help'], ['publish', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0, words\nprint(' '.join(sys.modules))"
    )
    loaded = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True, check=True, timeout=60, env=env)
    roots = {name.split(".")[0] for name in loaded.stdout.split()}
    heavy = roots & {"fastapi", "sqlalchemy", "uvicorn", "httpx", "numpy", "jinja2", "alembic"}
    assert not heavy


def test_a_home_is_found_wherever_a_path_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment files and containers expand no `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secret").write_text("s" * 40 + "\n")
    (tmp_path / "database").write_text("postgresql://ann:word@db/flatout\n")
    (tmp_path / "database").chmod(0o600)
    (tmp_path / "site.toml").write_text('results = "~/results"\n')
    got = make(
        {},
        {
            "FLATOUT_SITE_SECRET_FILE": "~/secret", "FLATOUT_SITE_DATABASE_FILE": "~/database",
            "FLATOUT_SITE_CONFIG": "~/site.toml", "FLATOUT_SITE_DATA": "~/data",
        },
    )  # fmt: skip
    assert got.secret == "s" * 40 and got.secret_file == tmp_path / "secret"
    assert got.database_url.endswith("@db/flatout") and got.data_dir == tmp_path / "data"
    assert got.results_dir == tmp_path / "results"
