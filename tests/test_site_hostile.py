"""Hostile input through the whole site: bodies, headers, names, records with planted texts, secrets."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import re
import socket
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from flatout.record import dump
from flatout.site import middleware, pages
from tests import records
from tests.site_client import BASE, Opened, body, content, opened, problem

KIB = 1024
PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 191 }}{% raw %}${7*191}<%= 7*191 %>",
    "a\r\nSet-Cookie: planted=1\r\n\r\n<b>",
    "../../../../etc/passwd",
    "\u202egnp.exe\u2066",
    "\0null\0",
    "'; DROP TABLE runs; --",
    "%s%n%00%0d%0a",
    "javascript:alert(1)",
    "\x1b]0;title\x07\x1b[2J",
    "a" * 5_000,
)
FIXED = re.compile(r"^(format|state|started|finished|.*\.(phase|source|describes|opened|started|finished))$")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    made = opened(tmp_path_factory.mktemp("hostile"), max_body_bytes=256 * KIB, max_record_bytes=512 * KIB,
                  max_samples_bytes=256 * KIB)  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module")
def ann(shared: Opened) -> dict[str, str]:
    return shared.token("ann")


def texts(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(place, container, key) of every text in a record."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        place = f"{path}.{key}" if path else str(key)
        if isinstance(item, str):
            yield place, value, key
        else:
            yield from texts(item, place)


# --- bodies ---------------------------------------------------------------------------------------------------------


def ask(site: Opened, asked: dict[str, Any], *parts: bytes) -> tuple[int, dict[str, str], bytes, int]:
    """(status, headers, body, parts of the request's body that were read) of a request as a server would hand it on.

    The parts never end: the last one comes again and again."""
    answers: list[Any] = []
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        assert read < 10_000, "the body is read without an end"
        return {"type": "http.request", "body": parts[min(read, len(parts)) - 1], "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(site.app(asked, receive, send))
    headers = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
    return answers[0]["status"], headers, b"".join(m.get("body", b"") for m in answers), read


@pytest.mark.parametrize(
    ("path", "kind", "most_kib"),
    [
        ("/api/v1/runs", "application/json", 256),
        ("/api/v1/runs", "multipart/form-data; boundary=x", 256 + 256 + 64),
        ("/api/v1/me/tokens", "application/json", 64),
    ],
)
def test_a_body_is_not_read_beyond_its_limit(
    shared: Opened, ann: dict[str, str], path: str, kind: str, most_kib: int
) -> None:
    """Without a length in front (chunked), nothing tells how large it will be."""
    asked = scope("POST", path, (b"authorization", ann["Authorization"].encode()), (b"content-type", kind.encode()))
    begin = b'--x\r\nContent-Disposition: form-data; name="record"; filename="a"\r\n\r\n' if "multi" in kind else b"{"
    status, headers, told, read = ask(shared, asked, begin, b" " * 4 * KIB)
    assert status == 413 and headers["connection"] == "close" and headers["content-type"] == "application/problem+json"
    assert read <= most_kib // 4 + 2 and b"larger than" in told


@pytest.mark.parametrize(("length", "code"), [("9" * 30, 413), ("300000", 413), ("-1", 400), ("1e3", 400), ("٣", 400)])
def test_a_length_that_lies(shared: Opened, length: str, code: int) -> None:
    """The server in front refuses most of these; the site must not depend on it."""
    status, _, _, read = ask(shared, scope("POST", "/api/v1/runs", (b"content-length", length.encode())), b"{")
    assert status == code and read == 0


def scope(method: str, path: str, *headers: tuple[bytes, bytes], host: bytes = b"127.0.0.1") -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("192.0.2.7", 1), "headers": [(b"host", host), *headers],
    }  # fmt: skip


def test_bombs_are_refused(shared: Opened, ann: dict[str, str]) -> None:
    cells = content()
    cells["cells"] = [dict(cells["cells"][0], id=f"p/{n}") for n in range(3_000)]
    bombs = {
        "gzip": gzip.compress(b" " * 50_000_000),
        "gzip in gzip": gzip.compress(gzip.compress(b"[" * 10_000_000)),
        "nested": gzip.compress(b'{"format":"flatout-record/1","cells":' + b"[" * 100_000),
        "nested closed": gzip.compress(b'{"a":' * 200 + b"1" + b"}" * 200),
        "numbers": gzip.compress(json.dumps(content()).replace("8192", "1" + "0" * 4_000).encode()),
        "float": gzip.compress(json.dumps(content()).replace("9000.0", "1e999").encode()),
        "many cells": gzip.compress(json.dumps(cells).encode()),
        "not gzip": b"\x1f\x8b\x08\x00 and so on",
        "cut off": gzip.compress(body())[:-9],
        "twice": gzip.compress(body()) * 2,
        "surrogate": gzip.compress(json.dumps(content()).replace("sglang", "\\ud800").encode()),
        "not utf-8": gzip.compress(body().replace(b"sglang", b"\xff\xfe")),
        "twice a key": gzip.compress(body().replace(b'"format"', b'"format":"flatout-record/1","format"', 1)),
        "empty": gzip.compress(b""),
        "nothing": b"",
    }
    headers = {**ann, "Content-Type": "application/json", "Content-Encoding": "gzip"}
    for name, bomb in bombs.items():
        answer = shared.http.post("/api/v1/runs", content=bomb, headers=headers)
        assert answer.status_code in (413, 422), name
        assert problem(answer, answer.status_code)["place"], name


def test_zip_bombs_and_paths_are_refused(shared: Opened, ann: dict[str, str]) -> None:
    zips = {}
    for name, entry, data in (
        ("large", "samples/a.npz", b"\0" * 5_000_000),
        ("path", "../../evil.npz", b"x"),
        ("absolute", "/etc/cron.d/evil", b"x"),
        ("backslash", "samples\\..\\evil.npz", b"x"),
        ("newline", "samples/a\r\nb.npz", b"x"),
    ):
        packed = BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(entry, data)
        zips[name] = packed.getvalue()
    zips |= {"no zip": b"PK\x03\x04nothing", "empty": b""}
    made = content(70)
    made["cells"][0]["samples"] = "samples/a.npz"
    for name, data in zips.items():
        files = {
            "record": ("r\r\nX: y", json.dumps(made), "application/json"),
            "samples": ("../s", data, "application/zip"),
        }
        answer = shared.http.post("/api/v1/runs", files=files, headers=ann)
        assert answer.status_code in (413, 422), (name, answer.text)
    assert not [p for p in Path(shared.site.settings.files_url).rglob("*") if "evil" in p.name]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": ""},
        {"Content-Type": "application/json", "Content-Encoding": "br"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip, gzip"},
        {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": "gzip"},
    ],
)
def test_other_types_are_refused(shared: Opened, ann: dict[str, str], headers: dict[str, str]) -> None:
    problem(shared.http.post("/api/v1/runs", content=body(), headers={**ann, **headers}), 415)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_another_sites_form_can_send_is_refused(shared: Opened, ann: dict[str, str], kind: str) -> None:
    """A browser sends these types across sites without asking first."""
    run = shared.publish(body(), ann).json()["id"]
    answer = shared.http.post(
        f"/api/v1/runs/{run}/report", content=b'{"reason":"planted"}', headers={"Content-Type": kind}
    )
    problem(answer, 415)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"--x\r\n",
        b"--x\r\n\r\n\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="record"\r\n\r\n{}\r\n--x--\r\n',
        b'--x\r\nContent-Disposition: form-data; name="record"; filename="a"\r\n\r\n{}\r\n' * 2 + b"--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="other"; filename="a"\r\n\r\n{}\r\n--x--\r\n',
        b"".join(b'--x\r\nContent-Disposition: form-data; name="p%d"\r\n\r\n1\r\n' % n for n in range(50))
        + b"--x--\r\n",
        b"--x\r\n" + b"A: b\r\n" * 5_000,
        b"\0" * 1_000,
    ],
)
def test_broken_multiparts_are_refused(shared: Opened, ann: dict[str, str], data: bytes) -> None:
    answer = shared.http.post(
        "/api/v1/runs", content=data, headers={**ann, "Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code in (400, 422), answer.text
    problem(answer, answer.status_code)


# --- names, headers, addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/..%2f..%2fetc%2fpasswd", "/api/v1/runs/%00", "/api/v1/runs/abcdefgh234%0a",
        "/api/v1/runs/ABCDEFGH2345", "/api/v1/runs/abcdefgh23456", "/api/v1/boards/single:8192%0d%0aX:%20y",
        "/api/v1/boards/" + "9" * 3_000, "/api/v1/runs/%ff%fe/record", "/api/v1/runs?after=" + "A" * 199,
        "/api/v1/runs?q=%00", "/api/v1/runs?c=99999999999999",
        "/api/v1/runs?from=9999999-01-01", "/api/v1/runs?limit=1e9", "/api/v1/compare?r=abcdefgh2345&r=%2e%2e",
        "/api/v1/runs?q=" + "%25_" * 40, "/api/v1/" + "a/" * 5_000, "/api/v1/runs?q=%ff%fe&m=%ed%a0%80",
    ],
)  # fmt: skip
def test_addresses_that_lead_nowhere(shared: Opened, path: str) -> None:
    answer = shared.http.get(path)
    assert answer.status_code in (200, 400, 404, 414, 422), answer.text
    if answer.status_code >= 400:
        told = problem(answer, answer.status_code)
        assert "passwd" not in json.dumps(told)
    assert "\r" not in "".join(answer.headers.values()) and "x" not in answer.headers


@given(st.text(max_size=60), st.sampled_from(["q", "m", "h", "e", "p", "s", "c", "from", "to", "after"]))
@bounded(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("\ud800", "q")
def test_any_filter_is_answered(shared: Opened, text: str, name: str) -> None:
    try:
        answer = shared.http.get("/api/v1/runs", params={name: text})
    except UnicodeEncodeError:
        return
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize(
    "host", [b"evil.example", b"127.0.0.1.evil.example", b"evil.example:8321", b"", b"[::1", b"a b"]
)
def test_another_name_is_refused(shared: Opened, host: bytes) -> None:
    for path in ("/api/v1/runs", "/", "/healthz"):
        status, _, told, _ = ask(shared, scope("GET", path, host=host), b"")
        assert status == 421 and b"evil" not in told


def test_links_are_made_of_the_sites_own_name(tmp_path: Path) -> None:
    site = opened(tmp_path, base_url="https://speed.example.org", public=True, host="0.0.0.0", proxies=("192.0.2.7",))
    sent = site.http.post(
        "/api/v1/runs", content=body(), headers={
            **site.token(), "Content-Type": "application/json", "X-Forwarded-Proto": "gopher",
            "X-Forwarded-For": "198.51.100.1",
        },
    )  # fmt: skip
    assert sent.json()["url"].startswith("https://speed.example.org/r/")
    told = site.http.get("/api/v1/runs", headers={"X-Forwarded-Host": "evil.example"})
    problem(told, 421)
    assert told.headers["strict-transport-security"] == "max-age=31536000"
    site.close()


def test_a_forged_address_does_not_escape_the_limit(tmp_path: Path) -> None:
    site = opened(tmp_path, requests_per_minute=5)
    for number in range(5):
        assert site.http.get("/api/v1/boards", headers={"X-Forwarded-For": f"198.51.100.{number}"}).status_code == 200
    problem(site.http.get("/api/v1/boards", headers={"X-Forwarded-For": "198.51.100.99"}), 429)
    site.close()


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("1.2.3.4, 198.51.100.1", "198.51.100.1"),
        ("1.2.3.4, 198.51.100.1, 10.0.0.9", "198.51.100.1"),
        ("<script>, 198.51.100.1:5000", "198.51.100.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("nonsense", "10.0.0.1"),
        ("198.51.100.1, nonsense", "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_a_proxy_is_believed_about_the_nearest_address_only(sent: str, counted: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    for proxies in (("10.0.0.0/8",), ()):
        asked = {**scope("GET", "/", (b"x-forwarded-for", sent.encode())), "client": ("10.0.0.1", 7)}
        asyncio.run(middleware.Clients(app, proxies)(asked, None, None))  # type: ignore[arg-type]
    assert seen == [counted, "10.0.0.1"]


def test_every_answer_is_guarded(tmp_path: Path) -> None:
    site = opened(tmp_path, requests_per_minute=20)
    headers = site.token()
    run = site.publish(body(), headers).json()["id"]
    answers = [
        site.http.get(path, headers={"Accept": accept})
        for path in (f"/api/v1/runs/{run}", "/api/v1/nothing", "/nothing", "/healthz", "/static/nothing", f"/r/{run}")
        for accept in ("text/html", "application/json")
    ]
    answers += [site.http.post("/api/v1/runs"), site.http.get("/", headers={"Host": "evil.example"})]
    while answers[-1].status_code != 429:
        answers.append(site.http.get("/api/v1/boards"))
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin" and answer.headers["permissions-policy"]
        assert "access-control-allow-origin" not in answer.headers  # not for whatever page is open in the browser
        assert "server" not in answer.headers and "x-powered-by" not in answer.headers
    site.close()


def test_in_public_any_page_may_read_the_api_and_nothing_else(tmp_path: Path) -> None:
    site = opened(tmp_path, base_url="https://speed.example.org", public=True, host="0.0.0.0")
    origin = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    read = site.http.get("/api/v1/runs", headers=origin)
    assert read.headers["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in read.headers
    for answer in (
        site.http.options("/api/v1/runs", headers=origin),
        site.http.post("/api/v1/runs", headers=origin),
        site.http.get("/", headers=origin),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    site.close()


# --- a real server: what comes slowly, and what no client library sends -----------------------------------------------


@pytest.fixture
def served(shared: Opened, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(middleware, "IDLE_S", 0.5)
    monkeypatch.setattr(middleware, "GRACE_S", 1.5)
    with listening(shared.app) as port:
        yield port


class listening:  # noqa: N801 (a context, used like a function)
    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, proxy_headers=False,
                                lifespan="off")  # fmt: skip
        self.server = uvicorn.Server(config)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self) -> int:
        self.thread.start()
        return int(self.socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)
        self.socket.close()


def talk(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Sends the parts and reads until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as wire:
        got = b""
        for part in parts:
            try:
                wire.sendall(part)
            except OSError:
                break
            time.sleep(pause_s)
        while True:
            try:
                data = wire.recv(65_536)
            except ConnectionResetError:
                return got
            if not data:
                return got
            got += data


def test_a_client_that_goes_away_is_no_fault(
    served: int, shared: Opened, ann: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {ann['Authorization']}\r\n"
    for kind in ("application/json", "multipart/form-data; boundary=x"):
        with socket.create_connection(("127.0.0.1", served), timeout=15) as wire:
            wire.sendall(f"{head}Content-Type: {kind}\r\nContent-Length: 1000\r\n\r\n--x".encode())
            time.sleep(0.2)
    time.sleep(0.5)
    assert shared.http.get("/healthz").status_code == 200 and "fault" not in caplog.text


def test_a_slow_body_is_ended(served: int, ann: dict[str, str]) -> None:
    head = (
        f"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {ann['Authorization']}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    ).encode()
    silent = talk(served, head, b"{")
    assert silent.startswith(b"HTTP/1.1 408") and b"connection: close" in silent.lower() and b"too slowly" in silent
    dripping = talk(served, head, *[b" "] * 12, pause_s=0.25)  # never silent for long, and never done
    assert dripping.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /api/v1/runs HTTP/1.1\r\n\r\n",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/runs HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"GET /api/v1/runs\0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GARBAGE\r\n\r\n",
    ],
)
def test_requests_that_no_client_sends(served: int, raw: bytes) -> None:
    answer = talk(served, raw)
    assert re.match(rb"HTTP/1\.1 4\d\d ", answer), answer
    assert b"Traceback" not in answer and b"evil" not in answer


# --- planted texts and secrets ----------------------------------------------------------------------------------------


def planted(payload: str, number: int) -> bytes:
    """A record with the payload in every text that may be any text."""
    made = json.loads(dump(records.every_kind()))
    made["id"] = f"planted-{number}"
    for place, holder, key in texts(made):
        if not FIXED.match(place) and not re.match(r"^(id|cells\.\d+\.(id|samples))$", place):
            holder[key] = payload
    return json.dumps(made).encode()


def test_planted_texts_are_text_everywhere(tmp_path: Path) -> None:
    site = opened(tmp_path)
    headers = site.token("mod", ["publish", "moderate"])
    kept = []
    for number, payload in enumerate(PAYLOADS):
        answer = site.publish(planted(payload, number), headers)
        assert answer.status_code in (201, 413, 422), answer.text
        if answer.status_code == 201:
            kept.append(answer.json()["id"])
    assert len(kept) >= 6
    paths = ["/api/v1/runs", "/api/v1/boards", "/", "/boards", f"/api/v1/compare?r={kept[0]}&r={kept[1]}"]
    paths += [f"/compare?r={kept[0]}&r={kept[1]}"]
    for run in kept:
        paths += [
            f"/api/v1/runs/{run}",
            f"/api/v1/runs/{run}/record",
            f"/r/{run}",
            f"/r/{run}/table.md",
            f"/r/{run}/embed",
        ]
        about = site.http.get(f"/api/v1/runs/{run}").json()
        keys = {"models": about["model"], "hardware": about["hardware"], "engines": about["engine"]}
        for kind, named in keys.items():
            if named["key"]:
                paths.append(f"/{kind}/{named['key']}")
    for path in paths:
        answer = site.http.get(path)
        assert answer.status_code < 500, (path, answer.text[:300])
        assert not [v for v in answer.headers.values() if "planted" in v or "\n" in v], path
        if "html" in answer.headers.get("content-type", ""):
            for told in ("<script>alert(1)", "<img src=x", "1337", "\u202e", 'href="javascript:', "\x1b"):
                assert told not in answer.text, (path, told)
    site.close()


SECRETS = (
    ("an API key", "sk-proj-Zk3vN8qLw2Xy7RtB9uHc4JmP6sDf1GaE5oTiVnWxQzKb"),
    ("a token of a hub", "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"),
    ("a bearer", "curl -H 'Authorization: Bearer 9f8e7d6c5b4a39281706f5e4d3c2b1a0' http://localhost:8000"),
    ("a flag", "vllm serve m --api-key 7hG2kQ9pLm4XvR8t"),
    ("a URL", "https://ann:p4ssW0rd77x@example.com/v1"),
    ("an e-mail address", "ask ann.example@mail-of-ann.org about it"),
    ("an address", "listening on 203.0.113.77"),
)
NEEDLES = (
    "Zk3vN8qLw2Xy",
    "QwErTyUiOp",
    "9f8e7d6c5b4a",
    "7hG2kQ9pLm4XvR8t",
    "p4ssW0rd77x",
    "ann.example",
    "203.0.113.77",
)


@given(st.randoms(use_true_random=False), st.sampled_from(range(len(SECRETS))))
@bounded(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_secret_anywhere_is_refused_and_never_repeated(
    shared: Opened, ann: dict[str, str], caplog: pytest.LogCaptureFixture, chance: random.Random, which: int
) -> None:
    caplog.clear()
    made = content(71)
    # four numbers with dots are a version where a version stands
    free = re.compile(r"^(engine\.(version|commit|build)|model\.revision)\.value$") if which == 6 else FIXED
    choices = [found for found in texts(made) if not FIXED.match(found[0]) and not free.match(found[0])]
    place, holder, key = chance.choice(choices)
    holder[key] = SECRETS[which][1]
    with caplog.at_level(logging.DEBUG):
        answer = shared.publish(json.dumps(made).encode(), ann)
    told = problem(answer, 422)
    assert told["place"] == place or place.startswith(told["place"] + "."), (told, place)
    everything_said = answer.text + caplog.text + repr(answer.headers)
    assert not [needle for needle in NEEDLES if needle in everything_said]
    stored = [p for p in shared.site.settings.data_dir.rglob("*") if p.is_file()]
    assert not [p for p in stored if NEEDLES[which].encode() in p.read_bytes()]


def test_a_secret_as_a_key_or_a_wrong_value_is_not_repeated(shared: Opened, ann: dict[str, str]) -> None:
    secret = SECRETS[0][1]
    broken = []
    for change in (
        lambda m: m.update({secret: 1}),
        lambda m: m["protocol"]["fields"].update({secret: 1}),
        lambda m: m.update(state=secret),
        lambda m: m.update(format=secret),
        lambda m: m["cells"][0].update(phase=secret),
        lambda m: m["cells"][0].update(concurrency=secret),
        lambda m: m["hardware"]["facts"].update({secret: secret}),
    ):
        made = content(72)
        change(made)
        broken.append(shared.publish(json.dumps(made).encode(), ann))
    broken.append(shared.http.post("/api/v1/me/tokens", json={secret: secret, "label": "x"}, headers=ann))
    broken.append(shared.http.post("/api/v1/me/tokens", json={"scopes": [secret]}, headers=ann))
    broken.append(shared.http.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"}))
    for answer in broken:
        assert answer.status_code in (401, 422) and NEEDLES[0] not in answer.text, answer.text


# --- forms ------------------------------------------------------------------------------------------------------------


def forms(routes: Iterable[Any]) -> Iterator[str]:
    """The paths that take a form, of routers within routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from forms(inner.routes)
        elif "POST" in (getattr(route, "methods", None) or ()) and not route.path.startswith("/api/"):
            yield route.path


def test_no_form_is_taken_without_its_word(shared: Opened) -> None:
    """Every form of every page, signed in, sent from elsewhere or with a wrong word: refused, and nothing is done."""
    mod = shared.token("mod", ["publish", "moderate"])
    run = shared.publish(body(73), mod).json()["id"]
    browser = TestClient(shared.app, base_url=BASE, follow_redirects=False, raise_server_exceptions=False)
    word = re.search(r'name="csrf" value="([^"]+)"', browser.get("/account").text)
    assert word is not None
    fields = {"csrf": word[1], "token": mod["Authorization"][7:]}
    assert browser.post("/account/sign-in", data={**fields, "csrf": "guessed"}).status_code == 403
    entered = browser.post("/account/sign-in", data=fields)
    assert entered.status_code == 303 and "mod" in browser.get("/account").text
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "secure" not in cookie  # over plain HTTP here
    word = re.search(r'name="csrf" value="([^"]+)"', browser.get("/account").text)
    assert word is not None and word[1] != fields["csrf"]  # the session began anew

    found = list(forms(pages.router.routes))
    assert len(found) >= 8
    said = {"confirm": "mod", "reason": "planted", "sure": "yes", "outcome": "planted", "name": "planted"}
    for path in found:
        address = re.sub(r"\{run_id\}", run, re.sub(r"\{(token|report)_id\}", "1", path))
        for headers, sent in (
            ({}, {}),
            ({}, {"csrf": ""}),
            ({}, {"csrf": fields["csrf"]}),  # of the session before
            ({"Origin": "https://evil.example"}, {"csrf": word[1]}),
            ({"Origin": "null"}, {"csrf": word[1]}),
            ({"Sec-Fetch-Site": "cross-site"}, {"csrf": word[1]}),
        ):
            answer = browser.post(address, data={**said, **sent}, headers=headers)
            assert answer.status_code == 403, (path, headers, answer.status_code)
        assert (
            browser.post(address, content="csrf=" + word[1], headers={"Content-Type": "text/plain"}).status_code == 422
        )
    assert shared.http.get(f"/api/v1/runs/{run}").json()["state"] == "public"
    assert shared.http.get("/api/v1/me", headers=mod).status_code == 200
    problem(browser.post("/api/v1/me/tokens", json={}), 401)  # a session is no token


def test_a_session_ends_with_its_token(shared: Opened) -> None:
    mod = shared.token("ended", ["publish", "moderate"])
    browser = TestClient(shared.app, base_url=BASE, follow_redirects=False, raise_server_exceptions=False)
    word = re.search(r'name="csrf" value="([^"]+)"', browser.get("/account").text)
    assert word is not None
    browser.post("/account/sign-in", data={"csrf": word[1], "token": mod["Authorization"][7:]})
    assert browser.get("/moderate").status_code == 200
    number = shared.http.get("/api/v1/me", headers=mod).json()["token_id"]
    assert shared.http.delete(f"/api/v1/me/tokens/{number}", headers=mod).status_code == 204
    assert browser.get("/moderate").status_code == 403
    browser.cookies.clear()
    browser.cookies.set("flatout_session", "eyJ0b2tlbiI6IDF9.forged.signature")
    assert browser.get("/moderate").status_code == 403


def test_cookies_go_over_https_alone_where_there_is_https(tmp_path: Path) -> None:
    site = opened(tmp_path, base_url="https://speed.example.org", public=True, host="0.0.0.0")
    cookie = site.http.get("/account").headers["set-cookie"].lower()
    assert "secure" in cookie and "httponly" in cookie and "samesite=lax" in cookie
    site.close()
