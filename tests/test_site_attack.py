"""What a hostile publisher or visitor tried, and how the site must take it: sizes that lie, drawings without end,
numbers at the ends of all floats, words hidden where nobody looks."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from flatout.load import samples as tables
from flatout.publish.client import Parcel
from flatout.publish.client import Site as Client
from flatout.publish.errors import SiteTrouble
from flatout.show.page import streams
from flatout.site import backup, drawer, drawings
from flatout.site.accounts import whose
from flatout.site.errors import SiteError
from flatout.site.intake import take
from flatout.site.settings import Settings
from tests import site_records
from tests.fake_site import TOKEN, FakeSite, Reply, running
from tests.site_client import Opened, content, opened

MIB = 1024 * 1024
LARGEST = (1e308, 0.9e308, 1.1e308)
SMALLEST = (1e-308, 1e-308, 1.1e-308)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Opened]:
    made = opened(tmp_path)
    yield made
    made.close()


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


# --- samples --------------------------------------------------------------------------------------------------------

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


def test_the_servers_words_are_looked_through_to_their_end(site: Opened) -> None:
    who = site.token()
    secret = "sk-proj-" + "A1b2C3d4E5f6G7h8" * 3
    for number, before in enumerate((0, 2_100)):
        meta = json.dumps({"error_texts": ["x" * before + f" key {secret}"]}).encode()
        data = npz({"meta": np.frombuffer(meta, dtype=np.uint8)})
        answer = send(site, who, with_samples(number), packed({"samples/a.npz": data}))
        assert answer.status_code == 422, f"a secret behind {before} characters was taken"
        assert secret not in answer.text


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


def test_samples_that_do_not_fit_together_cost_the_chart_and_not_the_page() -> None:
    arrays = requests(10, send_ns=5_000_000_000, end_ns=6_000_000_000)
    arrays["first_token_ns"] = arrays["first_token_ns"][:2]
    record = json.dumps(with_samples(1)).encode()
    assert drawer.run_page(record, packed({"samples/a.npz": npz(arrays)}), 1)["head"]


def test_one_file_of_samples_that_every_cell_names_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty cells with a file of 370 KB that holds three million requests took the one drawing process all of its time,
    at every look at the page. It is refused; and drawn of such a record, were there one, is as much as of one cell."""
    record = json.dumps(with_samples(1, cells=60)).encode()
    with pytest.raises(SiteError, match="same file"):
        take(record, gzipped=False, settings=Settings(Path(), "", "", ""))
    reads = 0
    plain = streams._column

    def counted(file: IO[bytes]) -> npt.NDArray[np.int64]:
        nonlocal reads
        reads += 1
        return plain(file)

    monkeypatch.setattr(streams, "_column", counted)
    samples = packed({"samples/a.npz": npz(requests(300_000, send_ns=2_000_000_000, stream=127))})
    begun = time.process_time()
    drawer.run_page(record, samples, 1)
    assert reads == 4, "columns of one file"
    assert time.process_time() - begun < 5.0, "CPU seconds"
    reads = 0
    drawer.run_page(record, packed({"samples/a.npz": npz(requests(streams.MOST_ROWS + 1))}), 1)
    assert reads == 60, "the header of its first column, and no more"


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[SMALLEST] * 4 + [LARGEST] * 4, [LARGEST] * 4 + [SMALLEST] * 4])
def test_numbers_at_both_ends_of_all_floats_break_no_page(site: Opened, steps: list[tuple[float, ...]]) -> None:
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


# --- what costs the others -------------------------------------------------------------------------------------------


def test_a_comparison_is_bounded(site: Opened) -> None:
    """45 KB each as sent, and anybody may ask: 24 s of computing for each question, and 3.4 GiB."""
    who, ids = site.token(), []
    for number in range(4):
        record = site_records.content(number, model=f"m{number}")
        cells = [cell for cell in record["cells"] if cell["phase"] == "decode"]
        record["cells"] = [
            {**copy.deepcopy(cells[k % len(cells)]), "id": f"c{k}", "context": f"{k // 20 + 1}K",
             "context_tokens": 1024 * (k // 20 + 1), "concurrency": k % 20 + 1}
            for k in range(1500)
        ]  # fmt: skip
        ids.append(site.publish(json.dumps(record).encode(), who).json()["id"])
    asked = [("r", one) for one in ids]
    answers = [site.http.get("/api/v1/compare", params=asked), site.http.get("/compare", params=asked)]
    assert [answer.status_code for answer in answers] == [422, 422] and drawings.MOST_CELLS < 6_000
    assert all("6,000 cells" in answer.text for answer in answers)
    assert site.http.get("/api/v1/compare", params=asked[:2]).status_code == 200


# --- who sees what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["card.png", "badge.svg"])
def test_a_picture_of_a_run_that_waits_is_kept_by_nobody_else(tmp_path: Path, file: str) -> None:
    site = opened(tmp_path, moderation="queue")
    who = site.token()
    run = site.publish(json.dumps(content(1)).encode(), who).json()["id"]
    with site.site.database.read() as conn:
        known = whose(conn, who["Authorization"].removeprefix("Bearer "))
    assert known is not None
    word = site.http.get("/account").text.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": word, "token": who["Authorization"].removeprefix("Bearer ")}
    assert site.http.post("/account/sign-in", data=form, follow_redirects=False).status_code == 303
    answer = site.http.get(f"/r/{run}/{file}")
    site.close()
    assert answer.status_code == 200 and "public" not in answer.headers["cache-control"]


def test_a_run_that_waits_is_no_successor_for_strangers(tmp_path: Path) -> None:
    """Else its id stands on a tombstone that everybody reads, and anybody can ask which ids there are."""
    site = opened(tmp_path, moderation="queue")
    ann, bob = site.token("ann"), site.token("bob")
    anns = site.publish(json.dumps(content(1)).encode(), ann).json()["id"]
    bobs = site.publish(json.dumps(content(2)).encode(), bob).json()["id"]
    said = {"reason": "wrong", "successor": anns}
    answers: dict[str, Any] = {
        "successor": site.http.post(f"/api/v1/runs/{bobs}/withdraw", json=said, headers=bob),
        "withdraw": site.http.post(f"/api/v1/runs/{anns}/withdraw", json={"reason": "x"}, headers=bob),
        "replaces": site.publish(json.dumps(content(3)).encode(), bob, replaces=anns),
        "report": site.http.post(f"/api/v1/runs/{anns}/report", json={"reason": "x"}, headers=bob),
    }
    codes = {name: answer.status_code for name, answer in answers.items()}
    site.close()
    assert set(codes.values()) == {404}, codes


def test_signing_out_ends_the_session_wherever_its_cookie_is(site: Opened) -> None:
    token = site.token()["Authorization"].removeprefix("Bearer ")
    word = site.http.get("/account").text.partition('name="csrf" value="')[2].partition('"')[0]
    site.http.post("/account/sign-in", data={"csrf": word, "token": token}, follow_redirects=False)
    taken = site.http.cookies["flatout_session"]
    page = site.http.get("/account").text
    assert "Sign out" in page
    word = page.partition('name="csrf" value="')[2].partition('"')[0]
    site.http.post("/account/sign-out", data={"csrf": word}, follow_redirects=False)
    site.http.cookies.clear()
    assert "Sign out" not in site.http.get("/account", headers={"Cookie": f"flatout_session={taken}"}).text


def test_a_token_gives_no_more_time_than_it_has(site: Opened) -> None:
    ann = site.token()
    short = site.http.post("/api/v1/me/tokens", json={"expires_days": 1}, headers=ann).json()["text"]
    answer = site.http.post("/api/v1/me/tokens", json={}, headers={"Authorization": f"Bearer {short}"})
    assert answer.status_code == 403 or answer.json()["token"]["expires"] is not None


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


def _archive(path: Path, manifest: bytes) -> Path:
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("backup.json")
        info.size = len(manifest)
        archive.addfile(info, io.BytesIO(manifest))
    return path


@pytest.mark.parametrize(
    "manifest",
    [b"[" * 900_000, json.dumps({"format": backup.FORMAT, "tables": {}}).encode()],
    ids=["deep", "no revision"],
)
def test_a_hostile_backup_is_refused_in_words(tmp_path: Path, manifest: bytes) -> None:
    source = _archive(tmp_path / "b.tar", manifest)
    with pytest.raises(SiteError):
        backup.restore(site_records.settings(tmp_path), source)


@pytest.fixture
def fake() -> Iterator[FakeSite]:
    with running() as made:
        yield made


@pytest.mark.parametrize("link", ["http://[bad", "javascript:alert(1)", "file:///etc/passwd"])
def test_the_client_prints_no_link_that_is_none(fake: FakeSite, link: str) -> None:
    fake.runs = [Reply(201, {"id": "abcdefgh2345", "url": link, "state": "public", "created": True})]
    with Client(fake.url, TOKEN) as client, contextlib.suppress(SiteTrouble):
        assert client.publish(Parcel(b"{}")).url.startswith(("http://", "https://"))


def test_the_records_that_are_sent_here_are_fit_to_be_taken(tmp_path: Path) -> None:
    """What the tests above plant is all that is wrong with them."""
    settings = site_records.settings(tmp_path)
    assert take(json.dumps(with_samples(1)).encode(), gzipped=False, settings=settings).facts.cells == 1
