"""What a hostile publisher or visitor sends, and how the whole site takes it: bombs, bodies, names, numbers at the ends
of all floats, planted texts, secrets, forms from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import io
import json
import logging
import math
import os
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from flatout.compare.ratio import estimate
from flatout.load import samples as tables
from flatout.publish.client import Parcel
from flatout.publish.client import Site as Client
from flatout.publish.destination import SiteTrouble
from flatout.record import dump
from flatout.show import charts
from flatout.site import backup, boards, drawer, history, middleware, pages, reproductions
from flatout.site.errors import SiteError
from flatout.site.intake import take
from flatout.site.settings import Settings
from tests import records, site_records
from tests.fake_site import TOKEN, Reply, running
from tests.site_client import BASE, HTML, Open, Opened, body, content, opened, problem

KIB, MIB = 1024, 1024 * 1024
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


def packed(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def npz(arrays: Mapping[str, npt.NDArray[Any]], **raw: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            file = io.BytesIO()
            np.lib.format.write_array(file, array, version=(1, 0))
            archive.writestr(f"{name}.npy", file.getvalue() + raw.get(name, b""))
    return out.getvalue()


def requests(count: int, **values: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a cell's samples: so many equal requests, no arrivals."""
    names = tables.REQUEST_COLUMNS + tables.ARRIVAL_COLUMNS
    made: dict[str, npt.NDArray[Any]] = {
        n: np.full(count if n in tables.REQUEST_COLUMNS else 0, values.get(n, 0), dtype=tables.DTYPES[n]) for n in names
    }
    meta: dict[str, list[str]] = {"finish_names": [], "error_texts": [], "request_ids": []}
    return made | {"meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)}


def with_samples(number: int, cells: int = 1) -> dict[str, Any]:
    """A record whose decode cells, so many, name one file of samples."""
    made = site_records.content(number)
    cell = next(cell for cell in made["cells"] if cell["phase"] == "decode")
    made["cells"] = []
    for n in range(cells):
        made["cells"].append({**copy.deepcopy(cell), "id": f"c{n}", "concurrency": n + 1, "samples": "samples/a.npz"})
    return made


def send(site: Opened, who: dict[str, str], record: dict[str, Any], samples: bytes) -> httpx.Response:
    files = {
        "record": ("r", json.dumps(record).encode(), "application/json"),
        "samples": ("s", samples, "application/zip"),
    }
    answer: httpx.Response = site.http.post("/api/v1/runs", files=files, headers=who)
    return answer


# --- bombs ------------------------------------------------------------------------------------------------------------


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
    entries = {
        "samples/a.npz": b"\0" * 5_000_000, "../../evil.npz": b"x", "/etc/cron.d/evil": b"x",
        "samples\\..\\evil.npz": b"x", "samples/a\r\nb.npz": b"x",
    }  # fmt: skip
    record = content(70)
    record["cells"][0]["samples"] = "samples/a.npz"
    for data in (*(packed({name: held}) for name, held in entries.items()), b"PK\x03\x04nothing", b""):
        answer = send(shared, ann, record, data)
        assert answer.status_code in (413, 422), answer.text
    assert not [p for p in Path(shared.site.settings.files_url).rglob("*") if "evil" in p.name]


_BOMB = """
import sys
from pathlib import Path
from flatout.site.samples import _files
try:
    _files(open(sys.argv[1], "rb").read(), {"samples/a.npz"}, 64 * 1024 * 1024)
except Exception:
    pass
held = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(int(held["VmHWM"].split()[0]) // 1024)  # rusage tells the parent's peak where it was higher
"""


def test_a_zip_that_lies_about_its_size_is_unpacked_no_further(tmp_path: Path) -> None:
    """256 MiB behind an entry that claims 100 bytes: no more than what is allowed is ever made in memory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("samples/a.npz", "w") as file:
        for _ in range(256):
            file.write(bytes(MIB))
    data = bytearray(out.getvalue())
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, entry + 16, zlib.crc32(bytes(100)))
    struct.pack_into("<I", data, entry + 24, 100)
    (tmp_path / "bomb.zip").write_bytes(data)
    told = subprocess.run(
        [sys.executable, "-c", _BOMB, str(tmp_path / "bomb.zip")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(told.stdout) < 250, "MiB at the most"


def test_one_file_of_samples_that_every_cell_names_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty cells with a file of 370 KB that holds three million requests took the one drawing process all of its time,
    at every look at the page. It is refused; and drawn of such a record, were there one, is as much as of one cell."""
    record = json.dumps(with_samples(1, cells=60)).encode()
    with pytest.raises(SiteError, match="same file"):
        take(record, gzipped=False, settings=Settings(Path(), "", "", ""))
    reads = 0
    plain = charts._column

    def counted(file: IO[bytes]) -> npt.NDArray[np.int64]:
        nonlocal reads
        reads += 1
        return plain(file)

    monkeypatch.setattr(charts, "_column", counted)
    samples = packed({"samples/a.npz": npz(requests(300_000, send_ns=2_000_000_000, stream=127))})
    begun = time.process_time()
    drawer.run_page(record, samples, 1)
    assert reads == 4, "columns of one file"
    assert time.process_time() - begun < 5.0, "CPU seconds"
    reads = 0
    drawer.run_page(record, packed({"samples/a.npz": npz(requests(charts.MOST_ROWS + 1))}), 1)
    assert reads == 60, "the header of its first column, and no more"


def test_samples_that_do_not_fit_together_cost_the_chart_and_not_the_page() -> None:
    arrays = requests(10, send_ns=5_000_000_000, end_ns=6_000_000_000)
    arrays["first_token_ns"] = arrays["first_token_ns"][:2]
    record = json.dumps(with_samples(1)).encode()
    assert drawer.run_page(record, packed({"samples/a.npz": npz(arrays)}), 1)["head"]


def test_nothing_but_arrays_comes_with_samples(site: Opened) -> None:
    """What stands before, behind or between the arrays would be served from here: it goes, or the file is refused."""
    who = site.token()
    hidden = b"<script>hidden</script> my-hidden-words"
    plain = npz({"send_ns": np.zeros(3, dtype=np.int64)})
    behind = npz({"send_ns": np.zeros(3, dtype=np.int64)}, send_ns=hidden)
    for number, data in enumerate((hidden + plain, behind)):
        answer = send(site, who, with_samples(number), packed({"samples/a.npz": data}))
        if answer.status_code == 201:
            kept = site.site.store.samples(answer.json()["id"])
            assert kept is not None and hidden not in kept
            with (
                zipfile.ZipFile(io.BytesIO(kept)) as outer,
                zipfile.ZipFile(io.BytesIO(outer.read("samples/a.npz"))) as f,
            ):
                assert not any(hidden in f.read(name) for name in f.namelist())


def test_the_servers_words_are_looked_through_to_their_end(site: Opened) -> None:
    who = site.token()
    secret = "sk-proj-" + "A1b2C3d4E5f6G7h8" * 3
    for number, before in enumerate((0, 2_100)):
        meta = json.dumps({"error_texts": ["x" * before + f" key {secret}"]}).encode()
        data = npz({"meta": np.frombuffer(meta, dtype=np.uint8)})
        answer = send(site, who, with_samples(number), packed({"samples/a.npz": data}))
        assert answer.status_code == 422, f"a secret behind {before} characters was taken"
        assert secret not in answer.text


# --- bodies -----------------------------------------------------------------------------------------------------------


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


def scope(method: str, path: str, *headers: tuple[bytes, bytes], host: bytes = b"127.0.0.1") -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("192.0.2.7", 1), "headers": [(b"host", host), *headers],
    }  # fmt: skip


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


JSON_KIND, FORM_KIND = "application/json", "multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("kind", "coding"),
    [
        ("text/plain", ""), ("application/x-www-form-urlencoded", ""), ("", ""), (JSON_KIND, "br"),
        (JSON_KIND, "gzip, gzip"), (FORM_KIND, "gzip"),
    ],
)  # fmt: skip
def test_other_types_are_refused(shared: Opened, ann: dict[str, str], kind: str, coding: str) -> None:
    headers = {**ann, "Content-Type": kind, **({"Content-Encoding": coding} if coding else {})}
    problem(shared.http.post("/api/v1/runs", content=body(), headers=headers), 415)
    if kind != JSON_KIND:  # a browser sends these across sites without asking first
        run = shared.publish(body(), ann).json()["id"]
        told = b'{"reason":"planted"}'
        problem(shared.http.post(f"/api/v1/runs/{run}/report", content=told, headers={"Content-Type": kind}), 415)


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


def test_links_are_made_of_the_sites_own_name(open_site: Open) -> None:
    site = open_site(base_url="https://speed.example.org", public=True, host="0.0.0.0", proxies=("192.0.2.7",))
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


def test_a_forged_address_does_not_escape_the_limit(open_site: Open) -> None:
    site = open_site(requests_per_minute=5)
    for number in range(5):
        assert site.http.get("/api/v1/boards", headers={"X-Forwarded-For": f"198.51.100.{number}"}).status_code == 200
    problem(site.http.get("/api/v1/boards", headers={"X-Forwarded-For": "198.51.100.99"}), 429)


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


def test_every_answer_is_guarded(open_site: Open) -> None:
    site = open_site(requests_per_minute=20)
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


def test_in_public_any_page_may_read_the_api_and_nothing_else(open_site: Open) -> None:
    site = open_site(base_url="https://speed.example.org", public=True, host="0.0.0.0")
    origin = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    read = site.http.get("/api/v1/runs", headers=origin)
    assert read.headers["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in read.headers
    for answer in (
        site.http.options("/api/v1/runs", headers=origin),
        site.http.post("/api/v1/runs", headers=origin),
        site.http.get("/", headers=origin),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


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


def test_planted_texts_are_text_everywhere(open_site: Open) -> None:
    """Every page and file of runs with a payload in every text that may be any text, and of lists that ask for it."""
    site = open_site()
    mod = site.token("mod", ["publish", "moderate"])
    answers = [site.publish(planted(payload, number), mod) for number, payload in enumerate(PAYLOADS)]
    assert {answer.status_code for answer in answers} <= {201, 413, 422}
    runs = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    assert len(runs) >= 6
    bad = PAYLOADS[0] + PAYLOADS[1] + PAYLOADS[2]
    runs.append(site.run(50, model=bad, gpu=bad, engine=bad, version=bad, speculation=bad, quantization=bad))
    paths = ["/api/v1/runs", "/api/v1/boards", "/", "/boards", "/boards/single:8192", f"/?q={bad}&c={bad}&m={bad}"]
    paths += [f"{kind}?r={runs[0]}&r={runs[1]}" for kind in ("/api/v1/compare", "/compare")]
    for run in runs:
        row = site.site.store.row(run)
        paths += [f"/api/v1/runs/{run}", f"/api/v1/runs/{run}/record", f"/history/{row.history_key}"]
        paths += [f"/r/{run}{part}" for part in ("", "/table.md", "/embed", "/cells.csv", "/badge.svg")]
        keys = {"models": row.model_key, "hardware": row.hardware_key, "engines": row.engine_key}
        paths += [f"/{kind}/{key}" for kind, key in keys.items() if key]
    for path in paths:
        answer = site.http.get(path)
        assert answer.status_code < 500, (path, answer.text[:300])
        assert not [v for v in answer.headers.values() if "planted" in v or "\n" in v], path
        if "html" in answer.headers.get("content-type", "") or path.endswith(".svg"):
            for bad in ("<script>alert(1)", "<img src=x", "1337", "\u202e", 'href="javascript:', "\x1b"):
                assert bad not in answer.text, (path, bad)


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


# --- forms and sessions -----------------------------------------------------------------------------------------------


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
    mine = Opened(shared.app, shared.site, browser)
    before, token = mine.word("/account"), mod["Authorization"][7:]
    guessed = browser.post("/account/sign-in", data={"csrf": "guessed", "token": token}, headers=HTML)
    assert guessed.status_code == 403 and "form" in guessed.text
    entered = browser.post("/account/sign-in", data={"csrf": before, "token": token})
    assert entered.status_code == 303 and "mod" in browser.get("/account").text
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "secure" not in cookie  # over plain HTTP here
    word = mine.word("/account")
    assert word != before  # the session began anew
    paths = list(forms(pages.router.routes))
    assert len(paths) >= 8
    fields = {"confirm": "mod", "reason": "planted", "sure": "yes", "outcome": "planted", "name": "planted"}
    elsewhere = [{"Origin": origin} for origin in ("https://evil.example", "null", f"{BASE}.evil.example")]
    elsewhere += [{"Sec-Fetch-Site": place} for place in ("cross-site", "same-site")]
    for path in paths:
        address = re.sub(r"\{run_id\}", run, re.sub(r"\{(token|report)_id\}", "1", path))
        tries: list[tuple[dict[str, str], dict[str, str]]] = [({}, {}), ({}, {"csrf": ""}), ({}, {"csrf": before})]
        tries += [(headers, {"csrf": word}) for headers in elsewhere]
        for headers, sent in tries:
            answer = browser.post(address, data={**fields, **sent}, headers=headers)
            assert answer.status_code == 403, (path, headers, answer.status_code)
        for kind in ("text/plain", "multipart/form-data; boundary=x"):
            assert browser.post(address, content=f"csrf={word}", headers={"Content-Type": kind}).status_code == 422
    assert shared.http.get(f"/api/v1/runs/{run}").json()["state"] == "public"
    assert shared.http.get("/api/v1/me", headers=mod).status_code == 200
    problem(browser.post("/api/v1/me/tokens", json={}), 401)  # a session is no token


def test_a_session_ends_wherever_its_cookie_is(site: Opened) -> None:
    site.sign_in("mod", ("publish", "moderate"))
    cookie = {"Cookie": f"flatout_session={site.http.cookies['flatout_session']}"}
    assert site.page("/moderate").status_code == 200
    site.send("/account/sign-out", "/account")
    site.http.cookies.clear()
    forged = {"Cookie": "flatout_session=eyJ0b2tlbiI6IDF9.forged.signature"}
    assert [site.page("/moderate", **headers).status_code for headers in (cookie, forged)] == [403, 403]


# --- numbers at both ends of all floats, which anybody may publish ----------------------------------------------------


VALUES = st.one_of(
    st.sampled_from([5e-324, 1e-308, 1e-300, 1.0, 1e300, 1e304, 1e308, sys.float_info.max]),
    st.floats(min_value=5e-324, allow_infinity=False),
)


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    """A value with any interval that holds it, or none."""
    value = draw(VALUES)
    low = draw(st.one_of(st.none(), st.just(0.0), st.floats(0.0, value)))
    high = draw(st.one_of(st.none(), st.floats(value, allow_infinity=False)))
    return value, low, high


Rate = tuple[float, float | None, float | None]
FALL: list[Rate] = [(1e308, 0.9e308, 1.1e308)] * 4 + [(1e-308, 1e-308, 1.1e-308)] * 4


@bounded(max_examples=200)
@given(st.lists(rates(), min_size=1, max_size=8))
@example(FALL)
def test_what_is_pooled_is_a_number(found: list[Rate]) -> None:
    pooled = boards.pool([one for one in (estimate(*rate) for rate in found) if one is not None])
    assert pooled is not None and 0 < pooled.value < math.inf
    assert pooled.high is None or (math.isfinite(pooled.high) and pooled.low is not None)


@bounded(max_examples=200)
@given(st.lists(rates(), min_size=1, max_size=8))
@example(FALL)
def test_a_ranking_of_anything_has_places(found: list[Rate]) -> None:
    rows = [boards.Pooled(value, low, high, 1) for value, low, high in sorted(found, key=lambda rate: -rate[0])]
    places = boards.places(rows)
    assert places[0] == 1 and places == sorted(places)
    led = boards.lead(rows[0], rows[-1])
    assert 0 < led.value < math.inf and (led.low is None or led.low <= led.value)


@bounded(max_examples=150)
@given(st.lists(rates(), min_size=4, max_size=12))
@example(FALL)
@example(FALL[::-1])
def test_a_history_of_anything_is_told(found: list[Rate]) -> None:
    made = history.change_points([history.Dated(n, *rate, public_id=f"{n}") for n, rate in enumerate(found)])
    for shift in made:
        assert 0 < shift.change.value < math.inf and shift.change.p is not None


def test_the_widest_fall_is_a_shift() -> None:
    (shift,) = history.change_points([history.Dated(n, *rate, public_id=f"{n}") for n, rate in enumerate(FALL)])
    assert shift.index == 4 and shift.change.value < 1e-300


@bounded(max_examples=150)
@given(rates(), st.lists(rates(), min_size=1, max_size=4))
@example(FALL[0], FALL[4:])
def test_anything_agrees_or_not(mine: Rate, others: list[Rate]) -> None:
    def cell(rate: Rate) -> SimpleNamespace:
        return SimpleNamespace(rate_tok_s=rate[0], rate_low=rate[1], rate_high=rate[2])

    key = ("prefill", 8192, 1)
    (made,) = reproductions.agree({key: cell(mine)}, [{key: cell(other)} for other in others])
    assert 0 < made.difference.value < math.inf


@pytest.mark.parametrize("steps", [FALL, FALL[::-1]])
def test_numbers_at_both_ends_of_all_floats_break_no_page(site: Opened, steps: list[Rate]) -> None:
    """A hostile account publishes runs of somebody else's configuration."""
    ann, mallory = site.token("ann"), site.token("mallory")
    ids = []
    for number, (value, low, high) in enumerate([(100.0, 90.0, 110.0), *steps]):
        record = content(1)
        record["prompts"]["run_nonce"] = f"{number:08x}"
        record["started"] = f"2026-11-01T00:{number:02}:00.000+00:00"
        for cell in record["cells"]:
            rate = cell["prefill"]["prefill_tok_s"] if cell["prefill"] else cell["decode"]["total_tok_s"]
            rate.update(value=value, low=low, high=high)
        answer = site.publish(json.dumps(record).encode(), mallory if number else ann)
        if answer.status_code == 201:
            ids.append(answer.json()["id"])
        else:
            assert answer.status_code == 422 and number, "only what no machine can be may be refused"
    row = site.site.store.row(ids[0])
    paths = [f"/r/{ids[0]}", f"/history/{row.history_key}", "/boards/prefill:8192", f"/engines/{row.engine_key}"]
    if len(ids) > 1:
        paths += [f"/api/v1/compare?r={ids[1]}&r={ids[-1]}", f"/api/v1/compare?r={ids[-1]}&r={ids[1]}"]
    codes = {path: site.http.get(path).status_code for path in paths}
    assert all(code in (200, 422) for code in codes.values()), codes


def test_runs_of_one_account_do_not_drown_anothers(site: Opened) -> None:
    """Two runs by a stranger, of the same configuration at a tenth of the speed, in a board's row of 89 tok/s."""
    ann, mallory = site.token("ann"), site.token("mallory")
    site.publish(site_records.body(1), ann)
    before = site.http.get("/api/v1/boards/single:8192").json()["standings"][0]
    for number in (2, 3):
        site.publish(site_records.body(number, speed=0.1), mallory)
    after = site.http.get("/api/v1/boards/single:8192").json()["standings"][0]
    told = ("value", "low", "high", "runs", "run")
    assert [after[name] for name in told] == [before[name] for name in told]
    assert after["others"] == 1 and after["others_low"] == after["others_high"] < before["value"] / 5


# --- local results, backups, the client -------------------------------------------------------------------------------


_PICK_UP = """
import sys
from pathlib import Path
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.store import Store
from flatout.site.watch import pick_up
from tests import site_records
folder = Path(sys.argv[1])
settings = site_records.settings(folder)
database = Database.open(settings.database_url)
database.migrate()
print(len(pick_up(Store(database, Blobs.open(settings.files_url), settings), folder / "results")))
"""


@pytest.mark.parametrize("kind", ["endless", "fifo"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    results = tmp_path / "results"
    (results / "a").mkdir(parents=True)
    path = results / "a" / "record.json"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    (results / "b").mkdir()
    (results / "b" / "record.json").write_bytes(site_records.body(1))

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * 1024 * MIB, 3 * 1024 * MIB))

    told = subprocess.run(
        [sys.executable, "-c", _PICK_UP, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False,
        preexec_fn=bounded, cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert told.stdout.strip() == "1", told.stderr[-300:]


@pytest.mark.parametrize(
    "manifest",
    [b"[" * 900_000, json.dumps({"format": backup.FORMAT, "tables": {}}).encode()],
    ids=["deep", "no revision"],
)
def test_a_hostile_backup_is_refused_in_words(tmp_path: Path, manifest: bytes) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        info = tarfile.TarInfo("backup.json")
        info.size = len(manifest)
        archive.addfile(info, io.BytesIO(manifest))
    with pytest.raises(SiteError):
        backup.restore(site_records.settings(tmp_path), tmp_path / "b.tar")


@pytest.mark.parametrize("link", ["http://[bad", "javascript:alert(1)", "file:///etc/passwd"])
def test_the_client_prints_no_link_that_is_none(link: str) -> None:
    with running() as fake:
        fake.runs = [Reply(201, {"id": "abcdefgh2345", "url": link, "state": "public", "created": True})]
        with Client(fake.url, TOKEN) as client, contextlib.suppress(SiteTrouble):
            assert client.publish(Parcel(b"{}")).url.startswith(("http://", "https://"))
