"""Reports, the queue, hiding, and what is kept of who did what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.site import moderation
from flatout.site.errors import Conflict, NotFound, Refused
from tests.site_client import Opened, body, opened, problem


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Opened]:
    made = opened(tmp_path)
    yield made
    made.close()


def test_report_look_hide_and_show_again(site: Opened) -> None:
    ann, mod = site.token("ann"), site.token("mod", ["moderate"])
    run = site.publish(body(), ann).json()["id"]
    made = site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "  no such\nmachine  "})
    assert made.status_code == 201
    site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "cooled with ice"}, headers=ann)
    queue = site.http.get("/api/v1/moderation/queue", headers=mod).json()
    assert [(r["reason"], r["by"], r["run"]) for r in queue["reports"]] == [
        ("no such\nmachine", None, run),
        ("cooled with ice", "ann", run),
    ]
    settled = site.http.post(f"/api/v1/reports/{made.json()['id']}/settle", json={"outcome": "it exists"}, headers=mod)
    assert settled.json()["settled_by"] == "mod" and settled.json()["outcome"] == "it exists"
    problem(site.http.post(f"/api/v1/reports/{made.json()['id']}/settle", json={"outcome": "no"}, headers=mod), 409)
    problem(site.http.post("/api/v1/reports/999/settle", json={"outcome": "no"}, headers=mod), 404)

    hidden = site.http.post(f"/api/v1/runs/{run}/hide", json={"reason": "measured with ice"}, headers=mod)
    assert hidden.json()["state"] == "hidden"
    told = problem(site.http.get(f"/api/v1/runs/{run}", headers=ann), 410)
    assert told["state"] == "hidden" and "measured with ice" in told["detail"]
    assert site.http.get(f"/api/v1/runs/{run}", headers=mod).json()["state_reason"] == "measured with ice"
    assert site.http.get("/api/v1/moderation/queue", headers=mod).json()["reports_all"] == 0  # settled by the hiding
    problem(site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "again"}), 409)
    assert site.http.get("/api/v1/runs").json()["runs"] == []
    assert site.http.post(f"/api/v1/runs/{run}/approve", headers=mod).json()["state"] == "public"

    kept = site.http.get("/api/v1/moderation/deeds", params={"run": run}, headers=mod).json()["deeds"]
    assert [(d["who"], d["what"]) for d in kept] == [
        ("mod", "approved"),
        ("mod", "report settled"),
        ("mod", "hidden"),
        ("mod", "report settled"),
        ("ann", "report made"),
        ("visitor", "report made"),
        ("ann", "published"),
    ]
    assert "measured with ice" in kept[2]["detail"] and all(d["at"] for d in kept)


def test_a_moderator_withdraws_any_run(site: Opened) -> None:
    ann, both = site.token("ann"), site.token("mod", ["moderate"])
    run = site.publish(body(), ann).json()["id"]
    done = site.http.post(f"/api/v1/runs/{run}/withdraw", json={"reason": "at the publisher's wish"}, headers=both)
    assert done.json()["state"] == "withdrawn"
    problem(site.http.post(f"/api/v1/runs/{run}/approve", headers=both), 409)
    problem(site.http.post(f"/api/v1/runs/{run}/hide", json={"reason": "and hidden"}, headers=both), 409)


def test_reports_of_one_run_are_bounded(site: Opened) -> None:
    run = site.publish(body(), site.token()).json()["id"]
    with site.site.database.write() as conn:
        first = moderation.report(conn, run, "number 0")
        for number in range(1, moderation.MOST_OPEN):
            moderation.report(conn, run, f"number {number}")
        with pytest.raises(Conflict, match="already"):
            moderation.report(conn, run, "one more")
        moderation.settle(conn, first, "looked at", who="mod", account_id=None)
        moderation.report(conn, run, "one more")
        assert len(moderation.reports_on(conn, run)) == moderation.MOST_OPEN + 1


def test_reports_are_limited_by_address(tmp_path: Path) -> None:
    site = opened(tmp_path, publish_per_hour=3)
    run = site.publish(body(), site.token()).json()["id"]
    said = [site.http.post(f"/api/v1/runs/{run}/report", json={"reason": f"number {n}"}) for n in range(4)]
    assert [a.status_code for a in said] == [201, 201, 201, 429]
    site.close()


@pytest.mark.parametrize("reason", ["", "  \n ", "x" * 2_001, "a\0b", "a\u202eb", "a\x1b[31mb"])
def test_reasons_that_cannot_be(site: Opened, reason: str) -> None:
    run = site.publish(body(), site.token()).json()["id"]
    with pytest.raises(Refused):
        moderation.checked_reason(reason)
    problem(site.http.post(f"/api/v1/runs/{run}/report", json={"reason": reason}), 422)


def test_words_of_any_script_are_a_reason() -> None:
    for text in ("zu schnell für ein H200", "速すぎる", "خیلی سریع می‌رود", "🙈 first line\nsecond line"):
        assert moderation.checked_reason(text) == text


def test_what_is_not_there(site: Opened) -> None:
    mod = site.token("mod", ["moderate"])
    for path in ("report", "hide", "withdraw"):
        headers = site.token("both", ["publish", "moderate"])
        asked = site.http.post(f"/api/v1/runs/abcdefgh2345/{path}", json={"reason": "of course"}, headers=headers)
        problem(asked, 404)
    problem(site.http.post("/api/v1/runs/abcdefgh2345/approve", headers=mod), 404)
    problem(site.http.get("/api/v1/moderation/deeds", params={"run": "abcdefgh2345"}, headers=mod), 404)
    with site.site.database.read() as conn, pytest.raises(NotFound):
        moderation.deeds(conn, "abcdefgh2345")


def test_a_run_is_hidden_with_its_reports_settled_or_not_at_all(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = site.token("mod", ["moderate"])
    run = site.publish(body(), site.token("ann")).json()["id"]
    site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "no such machine"})
    with monkeypatch.context() as broken:
        broken.setattr(moderation, "settle", lambda *_, **__: 1 / 0)
        problem(site.http.post(f"/api/v1/runs/{run}/hide", json={"reason": "made up"}, headers=mod), 500)
    assert site.http.get(f"/api/v1/runs/{run}").json()["state"] == "public"
    assert site.http.post(f"/api/v1/runs/{run}/hide", json={"reason": "made up"}, headers=mod).status_code == 200
    assert site.http.get("/api/v1/moderation/queue", headers=mod).json()["reports"] == []
