"""The publishing client: what it shows, what it takes out, whom it asks, what it sends, and how it tries again."""

from __future__ import annotations

import getpass
import gzip
import hashlib
import io
import json
import os
import pty
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from flatout.cli import app
from flatout.engines.redact import Redactor
from flatout.publish import destination, preview
from flatout.publish.client import LONGEST_PAUSE_S, Parcel, Site
from flatout.publish.destination import PublishError, SiteTrouble
from flatout.record import RecordError, dump, parse
from tests import records
from tests.fake_site import TOKEN, FakeSite, Reply, running

SECRET = "sk-Zq81LmNx04TbWc77Yd"
ADA = Redactor(home="/home/ada", user="ada", hosts=["babbage.example.lan"])


@pytest.fixture
def site() -> Iterator[FakeSite]:
    with running() as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment without a token and a site of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLATOUT_")}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path / "config"), "TERM": "dumb"}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A result directory with samples, and with what a redaction that knew too little left behind."""
    made = json.loads(dump(records.seed_page()))
    made["note"] = f"for ada@example.org, the key was {SECRET}"
    made["engine"]["launch_command"]["value"] = f"vllm serve /home/eve/m --api-key {SECRET} two --port 8000"
    made["cells"][0]["samples"] = "samples/p-8192.npz"
    directory = tmp_path / "run"
    (directory / "samples").mkdir(parents=True)
    (directory / "samples" / "p-8192.npz").write_bytes(b"PK-npz-bytes")
    (directory / "record.json").write_text(json.dumps(made))
    return directory


def flatout(env: dict[str, str], *typed: object) -> Result:
    """Runs in this process, with that environment alone."""
    alone = {name: env.get(name) for name in {*os.environ, *env}}
    done = CliRunner().invoke(app, [str(word) for word in typed], env=alone)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def client(site: FakeSite, said: list[str] | None = None, slept: list[float] | None = None) -> Site:
    """A client that notes its pauses instead of sleeping."""
    noted = [] if slept is None else slept
    return Site(site.url, TOKEN, say=(said if said is not None else []).append, sleep=noted.append)


# --- what is shown and taken out ------------------------------------------------------------------------------------


def test_the_preview_is_the_very_bytes_that_are_sent_and_named(result: Path) -> None:
    made = preview.preview(result, ADA)
    content = json.loads(made.to_send)
    assert made.to_send == json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert made.content_hash == hashlib.sha256(made.to_send).hexdigest() and len(made.public_id) == 12
    assert parse(made.to_send) == made.record
    assert preview.preview(result, ADA).to_send == made.to_send


def test_planted_secrets_are_gone_and_only_their_places_are_shown(result: Path) -> None:
    made = preview.preview(result, ADA)
    text = preview.preview_text(made, None, "http://127.0.0.1:8321", "ada")
    for planted in (SECRET, "ada@example.org", "/home/eve"):
        assert planted.encode() not in made.to_send and planted not in text
    assert [change.place for change in made.changes] == ["engine.launch_command.value", "note"]
    command = made.changes[0]
    assert command.after == "vllm serve $HOME/m --api-key <redacted> <redacted> --port 8000"
    assert (
        command.before == f"vllm serve [9 characters]/m --api-key [{len(SECRET)} characters] [3 characters] --port 8000"
    )
    assert "taken out in 2 places" in text and f"{len(made.to_send):,} bytes" in text and "As:   ada" in text


def test_this_machines_names_go_and_versions_stay() -> None:
    content = json.loads(dump(records.seed_page()))
    content["note"] = "measured by ada on babbage"
    content["warnings"] = ["cannot read /home/ada/models/x"]
    content["engine"]["version"]["value"] = "0.5.6.3"
    made = preview.previewed(json.dumps(content).encode(), ADA, shown="x")
    assert made.record.note == "measured by <user> on <host>"
    assert made.record.warnings == ["cannot read $HOME/models/x"]
    assert made.record.engine.version.value == "0.5.6.3"


def test_a_clean_record_is_sent_as_it_is() -> None:
    content = json.loads(dump(records.every_kind()))
    made = preview.previewed(json.dumps(content, indent=3).encode(), ADA, shown="x")
    assert json.loads(made.to_send) == content and not made.changes
    assert "nothing had to be taken out" in preview.preview_text(made, None, "http://x", None)


def test_known_keys_are_looked_for_whatever_they_look_like() -> None:
    content = json.loads(dump(records.seed_page()))
    content["note"] = "hello plain-words-as-key"
    made = preview.previewed(
        json.dumps(content).encode(), preview.redactor(None, {"OPENAI_API_KEY": "plain-words-as-key"}), shown="x"
    )
    assert made.record.note == "hello <redacted>" and made.changes[0].before == "hello [18 characters]"


@pytest.mark.parametrize("state", ["finished", "interrupted", "failed"])
def test_ended_runs_can_be_published(state: str) -> None:
    record = records.seed_page().model_copy(update={"state": state})
    assert preview.previewed(dump(record).encode(), ADA, shown="x").record.state == state


def test_running_and_broken_records_are_refused_in_words(tmp_path: Path) -> None:
    running_record = records.seed_page().model_copy(update={"state": "running"})
    with pytest.raises(PublishError, match=r"has not ended.*--resume"):
        preview.previewed(dump(running_record).encode(), ADA, shown="results/x")
    (tmp_path / "cut.json").write_text(dump(records.seed_page())[:500])
    with pytest.raises(RecordError, match="cut off"):
        preview.preview(tmp_path / "cut.json", ADA)
    with pytest.raises(RecordError, match="no record"):
        preview.preview(tmp_path / "nothing", ADA)


def test_harmful_text_does_nothing_to_the_terminal() -> None:
    content = json.loads(dump(records.seed_page()))
    content["note"] = "\x1b]0;owned\x07\u202e gone " + SECRET
    made = preview.previewed(json.dumps(content).encode(), ADA, shown="x")
    text = preview.preview_text(made, None, "http://x", "a\x1b[2Jda")
    assert not any(ord(c) < 32 and c != "\n" for c in text) and "\u202e" not in text


COUNT = re.compile(r"\[\d+ characters?\]")
pieces = st.lists(st.text(max_size=8), min_size=5, max_size=5)
MARKS = ("<redacted>", "<user>", "$HOME", "<host>", "")


@given(pieces, pieces)
def test_a_mask_shows_nothing_but_what_is_sent_and_counts(kept: list[str], hidden: list[str]) -> None:
    before = "".join(a + b for a, b in zip(kept, [*hidden[:4], ""], strict=True))
    after = "".join(a + b for a, b in zip(kept, MARKS, strict=True))
    assert all(chunk in after for chunk in COUNT.split(preview.masked(before, after)))


@given(st.text(max_size=60), st.text(max_size=60))
def test_texts_that_do_not_go_together_show_a_count_alone(before: str, after: str) -> None:
    assert all(chunk in after for chunk in COUNT.split(preview.masked(before, after)))


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.just(f"--api-key {SECRET}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_changes_are_complete_and_hold_no_secret(tree: Any) -> None:
    after = preview.redacted(tree, ADA)
    found = list(preview.changes(tree, after))
    assert bool(found) == (tree != after)
    assert SECRET not in json.dumps(after) and all(SECRET not in c.before + c.after for c in found)


# --- address and token ----------------------------------------------------------------------------------------------


def test_the_sites_address() -> None:
    assert destination.site_url(None, {}) == "http://127.0.0.1:8321"
    assert destination.site_url(None, {"FLATOUT_SITE": "https://a.example/"}) == "https://a.example"
    assert (
        destination.site_url("speed.example.org", {"FLATOUT_SITE": "https://a.example"}) == "https://speed.example.org"
    )
    assert destination.site_url("http://[::1]:9/x/", {}) == "http://[::1]:9/x"
    assert destination.site_url("http://10.0.0.7:8321", {}, insecure_http=True) == "http://10.0.0.7:8321"


@pytest.mark.parametrize("typed", ["http://10.0.0.7:8321", "http://speed.example.org", "http://127.0.0.1.evil.example"])
def test_no_token_goes_over_plain_http_to_another_machine(typed: str) -> None:
    with pytest.raises(PublishError, match="plain HTTP"):
        destination.site_url(typed, {})


@pytest.mark.parametrize(
    "typed",
    [
        "ftp://x.example", "https://u:p@x.example", "https://x.example/?a", "https://", "https://x:99999", "h\u00e4h",
        "a b", "https://x.example/\r\nHost: y",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_site(typed: str) -> None:
    with pytest.raises(PublishError):
        destination.site_url(typed, {})


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_address_is_used_or_refused_in_words(typed: str) -> None:
    try:
        url = destination.site_url(typed, {})
    except PublishError:
        return
    assert url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]", "http://"))


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(PublishError, match=r"there is no token.*flatout site token add.*Nothing was sent"):
        destination.find_token(None, env)
    own = destination.token_file(env)
    own.parent.mkdir()
    own.write_text(TOKEN + "\n")
    own.chmod(0o644)
    with pytest.raises(PublishError, match="chmod 600"):
        destination.find_token(None, env)
    own.chmod(0o600)
    assert destination.find_token(None, env) == TOKEN
    other = TOKEN[:-1] + "0"
    assert destination.find_token(None, {**env, "FLATOUT_TOKEN": other}) == other
    assert destination.find_token(own, {**env, "FLATOUT_TOKEN": other}) == TOKEN


@pytest.mark.parametrize("text", ["sk-1234567890", "", "flatout_short", TOKEN + "\nmore", "hf_" + "a" * 40])
def test_another_services_key_is_never_sent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(PublishError, match="no token of a flatout site") as caught:
        destination.find_token(file, {})
    assert not text or text not in str(caught.value)


# --- samples --------------------------------------------------------------------------------------------------------


def test_samples_are_packed_under_the_records_names(result: Path) -> None:
    record = preview.preview(result, ADA).record
    packed = preview.pack_samples(record, result)
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        assert archive.namelist() == ["samples/p-8192.npz"] and archive.read("samples/p-8192.npz") == b"PK-npz-bytes"
    assert (packed.files, packed.missing) == (1, 0) and preview.pack_samples(record, result).data == packed.data


@pytest.mark.parametrize("name", ["../outside.npz", "/etc/passwd", "samples/link.npz", "samples/x.txt"])
def test_a_record_cannot_have_other_files_sent(result: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.npz").write_bytes(b"private")
    (result / "samples" / "link.npz").symlink_to(tmp_path / "outside.npz")
    (result / "samples" / "x.txt").write_bytes(b"private")
    record = preview.preview(result, ADA).record
    record.cells[0].samples = name
    with pytest.raises(PublishError, match="no samples beside the record"):
        preview.pack_samples(record, result)


# --- the talk -------------------------------------------------------------------------------------------------------


def test_asks_who_and_sends_gzip(site: FakeSite) -> None:
    with client(site) as there:
        assert there.me().name == "ada"
        done = there.publish(Parcel(b'{"a":1}'))
    assert done.url == f"{site.url}/r/abcdefghijkl" and done.created and done.state == "public"
    post = site.posts()[0]
    assert post.headers["authorization"] == f"Bearer {TOKEN}" and post.headers["content-encoding"] == "gzip"
    assert gzip.decompress(post.body) == b'{"a":1}' and post.path == "/api/v1/runs"


def test_samples_go_along_in_one_form_and_the_same_parcel_is_the_same_bytes(site: FakeSite) -> None:
    with client(site) as there:
        for _ in range(2):
            there.publish(Parcel(b'{"a":1}', samples=b"PKzip", replaces="zyxwvutsrqpo"))
    first, second = site.posts()
    assert first.body == second.body and first.path == "/api/v1/runs?replaces=zyxwvutsrqpo"
    assert first.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert b'name="record"' in first.body and b"application/gzip" in first.body
    assert b'name="samples"' in first.body and b"PKzip" in first.body and b"application/zip" in first.body


@pytest.mark.parametrize(
    "first",
    [Reply(502, b"<html>bad gateway</html>"), Reply(drop=True), Reply(503, {"detail": "The database does not answer."}),
     Reply(504, b""), Reply(500, b"proxy")],
    ids=["502", "dropped", "503", "504", "500 of a proxy"],
)  # fmt: skip
def test_passing_trouble_is_tried_again(site: FakeSite, first: Reply) -> None:
    site.runs = [first, first, Reply(200, {"id": "abcdefghijkl", "url": "/r/abcdefghijkl", "state": "public"})]
    said: list[str] = []
    slept: list[float] = []
    with client(site, said, slept) as there:
        done = there.publish(Parcel(b"{}"))
    assert not done.created and len(site.posts()) == 3 and len({p.body for p in site.posts()}) == 1
    assert len(slept) == 2 and 0.5 <= slept[0] < slept[1] and "trying again" in said[0]
    if first.status == 503:
        assert "The database does not answer" in said[0]


def test_the_site_is_waited_for_as_long_as_it_asks(site: FakeSite) -> None:
    soon = formatdate(time.time() + 20, usegmt=True)
    site.runs = [Reply(429, {}, {"Retry-After": "7"}), Reply(503, {}, {"Retry-After": soon}), *site.runs]
    slept: list[float] = []
    with client(site, slept=slept) as there:
        there.publish(Parcel(b"{}"))
    assert slept[0] == 7 and 15 < slept[1] <= 20


@pytest.mark.parametrize(
    "header", ["3600", "9" * 400, formatdate(time.time() + 9e6, usegmt=True)], ids=["hour", "endless", "date"]
)
def test_a_longer_wait_is_left_to_the_person(site: FakeSite, header: str) -> None:
    site.runs = [Reply(429, {"detail": "Too many requests from here."}, {"Retry-After": header})]
    slept: list[float] = []
    with client(site, slept=slept) as there, pytest.raises(SiteTrouble, match="asks to wait") as caught:
        there.publish(Parcel(b"{}"))
    assert not slept and "Too many requests from here" in str(caught.value) and "taken once" in str(caught.value)


@pytest.mark.parametrize("header", ["", "soon", "-5", "1e9", "Wed, 99 Foo 2026", "٣"])
def test_a_retry_after_that_says_nothing_is_none(site: FakeSite, header: str) -> None:
    site.runs = [Reply(503, {}, {"Retry-After": header.encode().decode("latin-1")}), *site.runs]
    slept: list[float] = []
    with client(site, slept=slept) as there:
        there.publish(Parcel(b"{}"))
    assert len(slept) == 1 and slept[0] < LONGEST_PAUSE_S


def test_tries_end_and_say_what_is_known(site: FakeSite) -> None:
    site.me = [Reply(502, b"")]
    site.runs = [Reply(drop=True)]
    with client(site) as there:
        with pytest.raises(SiteTrouble, match=r"answers 502 \(5 tries\)\. .*no record was sent"):
            there.me()
        with pytest.raises(SiteTrouble, match=r"connection was lost.*not known whether the record arrived"):
            there.publish(Parcel(b"{}"))


def test_nobody_there(site: FakeSite) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Site(url, TOKEN, sleep=lambda _: None) as there, pytest.raises(SiteTrouble, match="nothing answers there"):
        there.me()


@pytest.mark.parametrize(
    ("status", "problem", "expected"),
    [
        (401, {"title": "x", "detail": "This token is not known."}, "does not know this token"),
        (403, {"detail": "The token lacks the scope."}, "does not allow this: The token lacks"),
        (413, {"detail": "larger than the 4 MiB"}, "not take so much at once: larger than the 4 MiB"),
        (422, {"detail": "a secret stands here", "place": "note"}, r"refuses the record: a secret.*\(at note\)"),
        (409, {"detail": "it was withdrawn"}, "it was withdrawn"),
        (404, None, "is no flatout site"),
        (418, {"detail": "\x1b[2Jteapot"}, "the site answers 418: \ufffd"),
        (500, {"detail": "Tell the operator the number 17."}, "number 17"),
    ],
)
def test_refusals_are_told_in_words(site: FakeSite, status: int, problem: dict[str, Any] | None, expected: str) -> None:
    kind = {"Content-Type": "application/problem+json"}
    site.runs = [Reply(status, problem if problem is not None else b"<html>", kind)]
    with client(site) as there, pytest.raises(SiteTrouble, match=expected) as caught:
        there.publish(Parcel(b"{}"))
    assert len(site.posts()) == 1 and caught.value.status == status


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_token_follows_no_redirect(site: FakeSite, status: int) -> None:
    with running() as elsewhere:
        site.me = [Reply(status, b"", {"Location": f"{elsewhere.url}/api/v1/me"})]
        with client(site) as there, pytest.raises(SiteTrouble, match=f"sends on to {elsewhere.url}"):
            there.me()
        assert elsewhere.seen == []


@pytest.mark.parametrize(
    "reply",
    [Reply(200, b"<html>hello"), Reply(200, b"[1]"), Reply(200, {"name": 5, "scopes": ["publish"]}), Reply(204, b"")],
)
def test_what_is_no_site_is_noticed_before_anything_is_sent(site: FakeSite, reply: Reply) -> None:
    site.me = [reply]
    with client(site) as there, pytest.raises(SiteTrouble, match="is no flatout site"):
        there.me()


def test_an_endless_answer_is_cut_off(site: FakeSite) -> None:
    site.me = [Reply(200, b" " * 3_000_000)]
    with client(site) as there, pytest.raises(SiteTrouble, match="larger than"):
        there.me()


def test_a_call_is_bounded_as_a_whole(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.publish.client.CALL_S", 0.3)
    site.me = [Reply(after_s=3.0)]
    begun = time.monotonic()
    with client(site) as there, pytest.raises(SiteTrouble, match="does not answer in time"):
        there.me()
    assert time.monotonic() - begun < 60


def test_a_certificate_that_nobody_signed_ends_it_at_once() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    got = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            raw, _ = listener.accept()
            raw.settimeout(10)
            try:
                with context.wrap_socket(raw, server_side=True) as tls:
                    got.append(tls.recv(1000))
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        with Site(url, TOKEN, sleep=lambda _: None) as there, pytest.raises(SiteTrouble, match="certificate"):
            there.me()
        thread.join(timeout=10)
    assert not any(got)


# --- the command ----------------------------------------------------------------------------------------------------


def test_publish_prints_the_link_alone_on_stdout(site: FakeSite, home: dict[str, str], result: Path) -> None:
    done = flatout({**home, "FLATOUT_TOKEN": TOKEN, "FLATOUT_SITE": site.url}, "publish", result, "--yes")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{site.url}/r/abcdefghijkl\n"
    assert "As:   ada" in done.stderr and "taken out in" in done.stderr and site.url in done.stderr
    assert [one.path for one in site.seen] == ["/api/v1/me", "/api/v1/runs"]
    sent = json.dumps(site.record())
    assert SECRET not in sent + done.stderr and "ada@example.org" not in sent + done.stderr
    assert TOKEN not in done.stderr and getpass.getuser() not in ("ada",)


def test_publish_as_json_names_what_was_taken_out(site: FakeSite, home: dict[str, str], result: Path) -> None:
    env = {**home, "FLATOUT_TOKEN": TOKEN}
    done = flatout(env, "publish", result, "--to", site.url, "--yes", "--json", "--samples")
    told = json.loads(done.stdout)
    assert told["url"] == f"{site.url}/r/abcdefghijkl" and told["created"] is True
    assert told["redacted"] == ["engine.launch_command.value", "note"] and len(told["content_hash"]) == 64
    assert "1 files of samples" in done.stderr and b"PK" in site.posts()[0].body


def test_a_dry_run_asks_nobody(site: FakeSite, home: dict[str, str], result: Path) -> None:
    done = flatout(home, "publish", result, "--to", site.url, "--dry-run")
    assert done.exit_code == 0 and "taken out in 2 places" in done.stdout and "nothing was sent" in done.stderr
    exact = flatout(home, "publish", result, "--to", site.url, "--dry-run", "--json")
    assert json.loads(exact.stdout)["note"].endswith("the key was <redacted>") and SECRET not in exact.stdout
    assert site.seen == []


def test_nobody_is_asked_where_nobody_can_answer(site: FakeSite, home: dict[str, str], result: Path) -> None:
    done = flatout({**home, "FLATOUT_TOKEN": TOKEN}, "publish", result, "--to", site.url)
    assert done.exit_code == 2 and "--yes" in done.stderr and "Nothing was sent" in done.stderr
    assert site.posts() == [] and done.stdout == ""


def test_the_token_is_checked_before_anything_is_sent(site: FakeSite, home: dict[str, str], result: Path) -> None:
    site.me = [Reply(401, {"detail": "not known"}, {"Content-Type": "application/problem+json"})]
    done = flatout({**home, "FLATOUT_TOKEN": TOKEN}, "publish", result, "--to", site.url, "--yes")
    assert done.exit_code == 1 and "does not know this token" in done.stderr and site.posts() == []
    site.me = [Reply(200, {"name": "ada", "scopes": ["moderate"]})]
    done = flatout({**home, "FLATOUT_TOKEN": TOKEN}, "publish", result, "--to", site.url, "--yes")
    assert done.exit_code == 2 and "may not publish" in done.stderr and site.posts() == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("--to", "http://192.0.2.7"), "plain HTTP"),
        (("--token-file", "/nowhere/token"), "cannot be read"),
        ((), "there is no token"),
    ],
)
def test_use_that_cannot_work_is_told_in_words(
    home: dict[str, str], result: Path, typed: tuple[str, ...], expected: str
) -> None:
    done = flatout(home, "publish", result, "--yes", *typed)
    assert done.exit_code == 2 and expected in done.stderr and "Traceback" not in done.stderr


def in_terminal(env: dict[str, str], typed: list[str], asked: str, answer: bytes | None) -> tuple[int, str]:
    """Runs the command in a terminal; at `asked` types `answer`, or Ctrl-C. Returns exit code and what was shown."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", *typed],
        stdin=other,
        stdout=other,
        stderr=other,
        env=env,
        start_new_session=True,
    )
    os.close(other)
    shown, end, begun = b"", time.monotonic() + 60, asked
    try:
        while time.monotonic() < end:
            if not select.select([main], [], [], 1.0)[0]:
                if answer is None and not asked and begun and process.poll() is None:
                    process.send_signal(signal.SIGINT)  # as a person would, once more
                continue
            try:
                part = os.read(main, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
            if asked and asked.encode() in shown:
                asked = ""
                if answer is None:
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(main, answer)
        return process.wait(timeout=30), shown.decode()
    finally:
        process.kill()
        process.wait(timeout=10)
        os.close(main)


@pytest.mark.parametrize(("answer", "code", "posts"), [(b"y\n", 0, 1), (b"n\n", 1, 0), (b"\n", 1, 0), (None, 130, 0)])
def test_the_question(
    site: FakeSite, home: dict[str, str], result: Path, answer: bytes | None, code: int, posts: int
) -> None:
    env = {**home, "FLATOUT_TOKEN": TOKEN}
    done, shown = in_terminal(env, ["publish", str(result), "--to", site.url], "Publish this? [y/N]", answer)
    assert done == code and len(site.posts()) == posts, shown
    assert ("nothing was sent" in shown) == (posts == 0)
    assert SECRET not in shown and shown.index("taken out in 2 places") < shown.index("Publish this?")


def test_an_interrupted_sending_says_that_it_may_have_arrived(
    site: FakeSite, home: dict[str, str], result: Path
) -> None:
    site.runs = [Reply(201, {"id": "abcdefghijkl", "url": "/r/x", "state": "public"}, after_s=20.0)]
    env = {**home, "FLATOUT_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "publish", str(result), "--to", site.url, "--yes"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not site.posts() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "may have arrived" in said and "Traceback" not in said


# --- what the site says of what it took -----------------------------------------------------------------------------


def took(site: FakeSite, **told: Any) -> list[str]:
    said: list[str] = []
    content = {"id": "abcdefghijkl", "url": f"{site.url}/r/abcdefghijkl", "state": "public", "created": True, **told}
    site.runs = [Reply(201, content)]
    with Site(site.url, TOKEN, say=said.append) as there:
        assert there.publish(Parcel(b"{}")).url == content["url"]
    return said


def test_the_sites_hash_must_be_that_of_what_was_sent(site: FakeSite) -> None:
    assert took(site, content_hash=hashlib.sha256(b"{}").hexdigest()) == []
    with pytest.raises(SiteTrouble, match="keeps something else"):
        took(site, content_hash=hashlib.sha256(b"[]").hexdigest())
    (note,) = took(site)
    assert "does not say under which hash" in note


def test_a_link_to_another_address_is_said(site: FakeSite) -> None:
    good = hashlib.sha256(b"{}").hexdigest()
    (note,) = took(site, content_hash=good, url="https://elsewhere.example/r/abcdefghijkl")
    assert "leads to another address" in note


@pytest.mark.parametrize("there", ["http://[bad", "javascript:alert(1)", "file:///etc/passwd", "https://a:b@c/"])
def test_where_it_is_sent_on_to_is_told_as_a_link_only_if_it_is_one(site: FakeSite, there: str) -> None:
    site.runs = [Reply(302, {}, {"Location": there})]
    with Site(site.url, TOKEN) as client, pytest.raises(SiteTrouble, match="sends on to an address that is none"):
        client.publish(Parcel(b"{}"))
    site.runs = [Reply(201, {"id": "abcdefghijkl", "url": there, "state": "public", "created": True})]
    with Site(site.url, TOKEN) as client, pytest.raises(SiteTrouble, match="does not say where it is"):
        client.publish(Parcel(b"{}"))
