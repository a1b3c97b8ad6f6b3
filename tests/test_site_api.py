"""The API's main flow, on SQLite and on PostgreSQL: publish, list, read, compare, rank, withdraw, delete."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from flatout.load.samples import Samples
from flatout.site import reasons, schema
from flatout.site.errors import Refused, Unavailable
from flatout.site.store import Store
from tests import records
from tests.site_client import BASE, Open, Opened, body, content, problem, settings
from tests.site_database import database_url  # noqa: F401


@pytest.fixture
def both(database_url: str, open_site: Open) -> Opened:  # noqa: F811
    """On each of the two databases."""
    made: Opened = open_site(database_url=database_url)
    return made


def test_publish_read_compare_rank_withdraw(both: Opened) -> None:
    ann = both.token("ann")
    first = both.publish(body(1, tok_s=100.0), ann)
    assert first.status_code == 201 and first.json()["created"] and first.json()["state"] == "public"
    run = first.json()["id"]
    assert first.headers["location"] == f"/api/v1/runs/{run}" and first.json()["url"] == f"{BASE}/r/{run}"
    assert {check["level"] for check in first.json()["checks"]} <= {"good", "note", "doubt"}
    second = both.publish(body(2, tok_s=150.0), ann).json()["id"]

    got = both.http.get(f"/api/v1/runs/{run}").json()
    assert got["publisher"] == "ann" and got["model"]["label"] and got["single_tok_s"] == 100.0 and not got["samples"]
    assert got["checks"] == first.json()["checks"]
    record = both.http.get(f"/api/v1/runs/{run}/record")
    assert hashlib.sha256(record.content).hexdigest() == got["content_hash"] and record.json() == json.loads(
        body(1, tok_s=100.0)
    )
    again = both.http.get(f"/api/v1/runs/{run}/record", headers={"If-None-Match": record.headers["etag"]})
    assert again.status_code == 304 and not again.content

    listed = both.http.get("/api/v1/runs").json()
    assert {r["id"] for r in listed["runs"]} == {run, second} and listed["next"] is None
    compared = both.http.get("/api/v1/compare", params={"r": [run, second]}).json()
    cell = next(c for c in compared["pairs"][0]["cells"] if c["phase"] == "decode" and c["concurrency"] == 1)
    assert cell["figures"]["total_tok_s"]["ratio"] == pytest.approx(1.5)
    assert compared["sides"][0]["is"] and compared["format"] == "flatout-comparison/1"

    board = both.http.get("/api/v1/boards/single:8192").json()
    assert board["standings"][0]["runs"] == 2 and board["unit"] == "tok/s"
    assert "single:8192" in {b["board"] for b in both.http.get("/api/v1/boards").json()["boards"]}

    gone = both.http.post(
        f"/api/v1/runs/{run}/withdraw", json={"reason": "a fan was broken", "successor": second}, headers=ann
    )
    assert gone.json() == {"id": run, "state": "withdrawn", "reason": "a fan was broken", "successor": second}
    told = problem(both.http.get(f"/api/v1/runs/{run}"), 410)
    assert told["state"] == "withdrawn" and told["successor"] == second
    assert "a fan was broken. The run" in told["detail"] and told["reason"] == "a fan was broken"
    problem(both.http.get(f"/api/v1/runs/{run}/record"), 410)
    problem(both.http.get("/api/v1/compare", params={"r": [run, second]}), 410)
    assert both.http.get("/api/v1/boards/single:8192").json()["standings"][0]["runs"] == 1
    problem(both.publish(body(1, tok_s=100.0), ann), 409)


def test_the_same_record_twice_is_one_run(both: Opened) -> None:
    ann = both.token()
    first = both.publish(body(), ann)
    plain = {**ann, "Content-Type": "application/json; charset=utf-8"}
    spaced = json.dumps(dict(reversed(content().items())), indent=3).encode()
    for second in (
        both.publish(body(), ann),
        both.http.post("/api/v1/runs", content=spaced, headers=plain),
        both.http.post("/api/v1/runs", files={"record": ("x", body(), "application/json")}, headers=ann),
        both.http.post("/api/v1/runs", files={"record": ("x", gzip.compress(body()), "application/gzip")}, headers=ann),
    ):
        assert second.status_code == 200 and not second.json()["created"]
        assert second.json()["id"] == first.json()["id"]
    assert len(both.http.get("/api/v1/runs").json()["runs"]) == 1


def test_who_am_i_and_tokens(both: Opened) -> None:
    ann = both.token("ann", ["publish", "moderate"], label="first")
    me = both.http.get("/api/v1/me", headers=ann).json()
    assert me["name"] == "ann" and me["scopes"] == ["publish", "moderate"] and me["runs"] == 0
    made = both.http.post("/api/v1/me/tokens", json={"label": "second", "expires_days": 30}, headers=ann)
    assert made.status_code == 201
    second = {"Authorization": f"bearer {made.json()['text']}"}
    assert both.http.get("/api/v1/me", headers=second).json()["scopes"] == ["publish"]
    problem(both.http.post("/api/v1/me/tokens", json={"scopes": ["moderate"]}, headers=second), 403)
    tokens = both.http.get("/api/v1/me/tokens", headers=ann).json()
    assert [t["label"] for t in tokens] == ["second", "first"] and tokens[0]["expires"] and tokens[0]["used"]
    assert made.json()["text"] not in json.dumps(tokens)
    bob = both.token("bob")
    number = made.json()["token"]["id"]
    problem(both.http.delete(f"/api/v1/me/tokens/{number}", headers=bob), 404)
    assert both.http.delete(f"/api/v1/me/tokens/{number}", headers=ann).status_code == 204
    problem(both.http.get("/api/v1/me", headers=second), 401)
    assert not both.http.get("/api/v1/me/tokens", headers=ann).json()[0]["works"]


def test_scopes_and_owners_are_kept_apart(both: Opened) -> None:
    ann, bob, mod = both.token("ann"), both.token("bob"), both.token("mod", ["moderate"])
    run = both.publish(body(), ann).json()["id"]
    problem(both.publish(body(1), mod), 403)
    problem(both.http.get("/api/v1/moderation/queue", headers=ann), 403)
    problem(both.http.post(f"/api/v1/runs/{run}/hide", json={"reason": "because"}, headers=ann), 403)
    problem(both.http.post(f"/api/v1/runs/{run}/withdraw", json={"reason": "because"}, headers=bob), 403)
    problem(both.publish(body(2), bob, replaces=run), 403)
    problem(both.http.post(f"/api/v1/runs/{run}/withdraw", json={"reason": "because"}), 401)
    assert both.http.get(f"/api/v1/runs/{run}").json()["state"] == "public"


def test_a_moderated_site_shows_a_run_when_it_is_approved(
    database_url: str,  # noqa: F811
    open_site: Open,
) -> None:
    """And what it replaces stays until then."""
    site = open_site(database_url=database_url, moderation="queue")
    ann, bob, mod = site.token("ann"), site.token("bob"), site.token("mod", ["moderate"])

    def state(run: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        return dict(site.http.get(f"/api/v1/runs/{run}", headers=headers).json())

    sent = site.publish(body(1), ann).json()
    old = sent["id"]
    assert sent["state"] == state(old, ann)["state"] == state(old, mod)["state"] == "queued"
    for headers in ({}, bob):
        problem(site.http.get(f"/api/v1/runs/{old}", headers=headers), 404)
        problem(site.http.get(f"/api/v1/runs/{old}/record", headers=headers), 404)
    assert not site.http.get("/api/v1/runs").json()["runs"]
    queue = site.http.get("/api/v1/moderation/queue", headers=mod).json()
    assert [(w["id"], w["publisher"], w["replaces"]) for w in queue["runs"]] == [(old, "ann", None)]
    assert site.http.post(f"/api/v1/runs/{old}/approve", headers=mod).json()["state"] == state(old)["state"] == "public"
    new = site.publish(body(2), ann, replaces=old).json()["id"]
    assert (state(old)["state"], state(old)["replaced_by"]) == ("public", None), "nobody is told of what waits"
    assert state(new, ann)["replaces"] == old
    waiting = site.http.get("/api/v1/moderation/queue", headers=mod).json()["runs"]
    assert [(w["id"], w["replaces"]) for w in waiting] == [(new, old)]
    assert new in problem(site.publish(body(3), ann, replaces=old), 409)["detail"]
    problem(site.publish(body(3), ann, replaces="abcdefgh2345"), 404)
    site.http.post(f"/api/v1/runs/{new}/approve", headers=mod)
    gone = problem(site.http.get(f"/api/v1/runs/{old}"), 410)
    assert gone["successor"] == new and gone["reason"] and gone["state"] == "withdrawn"
    assert state(new)["replaces"] is None
    assert site.http.get("/api/v1/moderation/queue", headers=mod).json()["runs_all"] == 0


def test_deleting_my_data_leaves_tombstones(both: Opened) -> None:
    ann, bob = both.token("ann"), both.token("bob")
    run = both.publish(body(1), ann).json()["id"]
    other = both.publish(body(2), bob).json()["id"]
    both.http.post(f"/api/v1/runs/{other}/report", json={"reason": "too fast"}, headers=ann)
    problem(both.http.delete("/api/v1/me", headers=ann), 422)
    problem(both.http.delete("/api/v1/me", params={"confirm": "bob"}, headers=ann), 422)
    assert both.http.delete("/api/v1/me", params={"confirm": "ann"}, headers=ann).status_code == 204
    problem(both.http.get("/api/v1/me", headers=ann), 401)
    told = problem(both.http.get(f"/api/v1/runs/{run}"), 410)
    assert told["state"] == "deleted"
    with both.site.database.read() as conn:
        assert conn.scalars(select(schema.reports.c.account_id)).all() == [None]
        assert "ann" not in conn.scalars(select(schema.accounts.c.name)).all()
    left = [p for p in Path(both.site.settings.files_url).rglob("*") if p.is_file()]
    assert len(left) == 1  # bob's record
    assert both.http.get(f"/api/v1/runs/{other}").json()["state"] == "public"


def test_lists_go_page_by_page_and_filter(both: Opened) -> None:
    ann = both.token()
    ids = {both.publish(body(n), ann).json()["id"] for n in range(5)}
    other = both.publish(body(9, engine=records.engine(name=records.fact("vllm"))), ann).json()["id"]
    seen: list[str] = []
    after = None
    for _ in range(10):
        page = both.http.get("/api/v1/runs", params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [r["id"] for r in page["runs"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(seen) == sorted(ids | {other})
    key = both.http.get(f"/api/v1/runs/{other}").json()["engine"]["key"]
    assert [r["id"] for r in both.http.get("/api/v1/runs", params={"e": key}).json()["runs"]] == [other]
    assert both.http.get("/api/v1/runs", params={"m": "no such model"}).json()["runs"] == []
    problem(both.http.get("/api/v1/runs", params={"after": "nonsense"}), 422)
    problem(both.http.get("/api/v1/runs", params={"from": "yesterday"}), 422)


def test_limits_are_told_and_kept(open_site: Open) -> None:
    site = open_site(publish_per_hour=2, requests_per_minute=30)
    ann, bob = site.token("ann"), site.token("bob")
    first = site.publish(body(1), ann)
    assert first.headers["ratelimit"].startswith('"publish";r=1;') and "q=2" in first.headers["ratelimit-policy"]
    site.publish(body(2), ann)
    over = site.publish(body(3), ann)
    problem(over, 429)
    assert 0 < int(over.headers["retry-after"]) <= 3600
    problem(site.publish(body(3), bob), 429)  # another account from the same address
    answers = [site.http.get("/api/v1/boards") for _ in range(40)]
    assert answers[-1].status_code == 429 and "requests" in answers[0].headers["ratelimit"]
    assert site.http.get("/healthz").status_code == 200


def test_failed_tokens_are_counted_by_address(open_site: Open) -> None:
    site = open_site()
    good = site.token()
    wrong = {"Authorization": "Bearer flatout_" + "A" * 43}
    answers = [site.http.get("/api/v1/me", headers=wrong) for _ in range(25)]
    assert [a.status_code for a in answers] == [401] * 20 + [429] * 5
    assert len({a.text for a in answers[:20]}) == 1 and "retry-after" in answers[-1].headers
    assert site.http.get("/api/v1/me", headers=good).status_code == 429  # nobody learns that one of them was right
    assert site.http.get("/api/v1/boards").status_code == 200


def test_samples_go_in_and_come_out(site: Opened) -> None:
    ann, name = site.token(), "samples/d-8192-1.npz"
    told = content()
    told["cells"][1]["samples"] = name
    sent = json.dumps(told).encode()
    npz = Samples.empty().to_bytes()
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, npz)
    files = {"record": ("r", sent, "application/json"), "samples": ("s", packed.getvalue(), "application/zip")}
    made = site.http.post("/api/v1/runs", files=files, headers=ann)
    assert made.status_code == 201, made.text
    run = made.json()["id"]
    assert site.http.get(f"/api/v1/runs/{run}").json()["samples"] is True
    page = site.http.get(f"/r/{run}", headers={"Accept": "text/html"})
    assert f'href="/r/{run}/samples.zip"' in page.text
    for path in (f"/api/v1/runs/{run}/samples", f"/r/{run}/samples.zip"):
        got = site.http.get(path)
        assert got.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(BytesIO(got.content)) as archive:
            assert archive.namelist() == [name] and archive.read(name) == npz
        again = site.http.get(path, headers={"If-None-Match": got.headers["etag"]})
        assert again.status_code == 304 and not again.content


def test_the_log_tells_the_operator_why_and_nobody_else(
    site: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's reason, once a minute, without a password, an address that has one, or what was sent."""
    said = 'connection to "postgresql://site:geheim@db/x" failed: too many clients\nDETAIL: Key (note)=(mine) is there'
    now = [100.0]

    def gone(*_: object, **__: object) -> None:
        try:
            raise OperationalError("INSERT INTO runs VALUES (%s)", ("mine",), sqlite3.OperationalError(said))
        except OperationalError as error:
            raise Unavailable("the site's database cannot be used at the moment") from error

    monkeypatch.setattr(Store, "publish", gone)
    monkeypatch.setattr(site.site.reasons, "_now", lambda: now[0])
    ann = site.token()
    for _ in range(3):
        answer = site.publish(body(), ann)
        assert "clients" not in problem(answer, 503)["detail"] and int(answer.headers["retry-after"]) > 0
    now[0] += 61
    problem(site.publish(body(), ann), 503)
    lines = [r.getMessage() for r in caplog.records if "not available" in r.getMessage()]
    assert len(lines) == 2 and all("OperationalError: connection to" in line for line in lines), lines
    assert "too many clients" in lines[0] and "2 more of these before" in lines[1]
    assert not any(word in line for line in lines for word in ("geheim", "mine", "INSERT", "DETAIL"))


def test_reasons_in_the_log_hold_no_password(tmp_path: Path) -> None:
    known = settings(
        tmp_path, database_url="postgresql://site:p%40ss-wort1@db/x", files_url="s3://key:sEcr3tKey99@bucket/x"
    )
    error = Unavailable("the files cannot be read")
    error.__cause__ = RuntimeError("403 for p@ss-wort1, sEcr3tKey99 and " + known.secret)
    line = reasons.told(error, reasons.secrets_of(known))
    assert "RuntimeError: 403 for" in line and not any(w in line for w in ("ss-wort1", "sEcr3tKey99", known.secret))
    full = OSError(28, "No space left on device", "/srv/site")
    assert reasons.told(full) == "OSError: [Errno 28] No space left on device: '/srv/site'"
    assert reasons.told(ValueError("what was sent")) == "ValueError"
    assert reasons.told(Refused("note", "a secret stands here")) == "note: a secret stands here"


def test_a_fault_has_a_number_and_no_trace_and_a_full_disk_is_said(
    site: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ann, errors = site.token(), iter([RuntimeError("sent: hunter2"), OSError(28, "No space left", "/secret/path")])

    def broken(*_: object, **__: object) -> None:
        raise next(errors)

    monkeypatch.setattr(Store, "row", broken)
    fault = problem(site.http.get("/api/v1/runs/abcdefgh2345", headers=ann), 500)
    assert fault["id"] in caplog.text and fault["id"] in fault["detail"] and "broken" in caplog.text
    for secret in ("hunter2", "Traceback", ann["Authorization"][7:], "192.0.2.7"):
        assert secret not in json.dumps(fault) and secret not in caplog.text
    full = problem(site.http.get("/api/v1/runs/abcdefgh2345"), 503)
    assert "disk is full" in full["detail"] and "/secret" not in json.dumps(full)


def test_the_description_is_complete(site: Opened) -> None:
    made = site.http.get("/api/v1/openapi.json").json()
    assert all(path.startswith("/api/v1/") for path in made["paths"])
    assert made["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, methods in made["paths"].items():
        for method, about in methods.items():
            assert about["summary"] and about["tags"], (method, path)
            for status, answer in about["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
            writes = method != "get" and not path.endswith("/report")
            assert not writes or about["security"] == [{"token": []}], (method, path)


def test_while_the_site_runs_local_results_appear_and_orphans_go(open_site: Open, tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "20261130T024100Z-model").mkdir(parents=True)
    (results / "20261130T024100Z-model" / "record.json").write_bytes(body())
    site = open_site(results_dir=results)
    orphan = Path(site.site.blobs.put("records", b"{}") and next(Path(site.site.settings.files_url).rglob("*.gz")))
    os.utime(orphan, (1_000_000_000, 1_000_000_000))
    end = time.monotonic() + 30
    with site.http:
        while not (runs := site.http.get("/api/v1/runs").json()["runs"]) or orphan.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
    assert [r["publisher"] for r in runs] == [None] and runs[0]["state"] == "public"
    assert not [t for t in threading.enumerate() if t.name in ("sweep", "flatout results")]


def test_a_misspelt_filter_is_not_a_list_of_everything(site: Opened) -> None:
    told = problem(site.http.get("/api/v1/runs", params={"modle": "x"}), 422)
    assert told["place"] == "query.modle" and "there are: after, c, e" in told["detail"]


def test_programs_get_problems_and_people_get_pages(site: Opened) -> None:
    assert "text/html" in site.http.get("/r/abcdefgh2345", headers={"Accept": "text/html"}).headers["content-type"]
    assert "text/html" in site.http.get("/nothing").headers["content-type"]
    problem(site.http.get("/r/abcdefgh2345", headers={"Accept": "application/json"}), 404)
    problem(site.http.get("/r/abcdefgh2345/record.json"), 404)
    problem(site.http.get("/api/v1/nothing", headers={"Accept": "text/html"}), 404)


def test_no_cookie_is_given_or_believed(site: Opened) -> None:
    answers = [site.http.get("/api/v1/runs"), site.http.get("/api/v1/me"), site.publish(body(), site.token())]
    assert not any("set-cookie" in a.headers for a in answers)
    problem(site.http.post("/api/v1/me/tokens", json={}, headers={"Cookie": "flatout_session=anything"}), 401)


def test_a_run_is_judged_by_the_time_at_which_it_came(site: Opened) -> None:
    """On its page, in lists and by the API alike, whenever one looks: it claims to have ended after it came."""
    run = site.publish(body(1), site.token("ann")).json()["id"]
    with site.site.database.write() as conn:
        conn.execute(schema.runs.update().values(received_us=schema.runs.c.started_us - 86_400_000_000))
    told = site.http.get(f"/api/v1/runs/{run}").json()["checks"]
    assert any(check["level"] == "doubt" and "received" in check["text"] for check in told), told


def test_a_configuration_is_ranked_once_a_change(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its runs move: rankings are made while every other writer waits."""
    from flatout.site import boards

    ann, made = site.token("ann"), []
    refresh = boards.refresh
    monkeypatch.setattr(boards, "refresh", lambda conn, key: (made.append(key), refresh(conn, key)))
    first = site.publish(body(1, tok_s=100.0), ann).json()["id"]
    assert len(made) == 1
    assert site.publish(body(1, tok_s=110.0), ann, replaces=first).status_code == 201
    assert len(made) == 2
    site.http.request("DELETE", "/api/v1/me", params={"confirm": "ann"}, headers=ann)
    assert len(made) == 3 and len(set(made)) == 1
