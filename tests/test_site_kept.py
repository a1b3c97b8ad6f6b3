"""Pages that are kept until one of their runs comes or goes: the same as drawn anew, after every change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from flatout.site import boards, drawings, reproductions, schema, subjects
from flatout.site.drawer import DRAWER
from flatout.site.drawings import Kept
from flatout.site.pages import boards as pages_of_boards
from flatout.site.state import Site
from flatout.site.store import Store
from tests import site_database, site_records
from tests.site_client import Opened, opened

MODEL, HARDWARE, ENGINE = "/models/qwen-qwen3.5-4b", "/hardware/h200-nvl-141-gb", "/engines/sglang"


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    DRAWER.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    url = site_database.new_url(request.param, tmp_path)
    made = opened(tmp_path, database_url=url)
    yield made
    made.close()
    site_database.drop(url)


def publish(site: Opened, number: int, *, who: str = "ann", replaces: str | None = None, **more: Any) -> str:
    query = {"replaces": replaces} if replaces is not None else {}
    made = site.publish(site_records.body(number, **more), site.token(who), **query)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def html(site: Opened, path: str) -> str:
    made = site.http.get(path, headers={"Accept": "text/html"})
    assert made.status_code == 200, (path, made.text)
    return str(made.text)


def pages(site: Opened, run: str) -> list[str]:
    return [MODEL, HARDWARE, ENGINE, f"/history/{site.site.store.row(run).history_key}"]


def as_new(site: Opened, path: str) -> str:
    """The page where nothing is kept."""
    drawn = site.site.drawings
    kept, drawn.kept = drawn.kept, Kept(site.site.settings.data_dir / "none")
    try:
        return html(site, path)
    finally:
        drawn.kept = kept


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was drawn, by the page's kind."""
    found: list[str] = []

    def told(kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            found.append(kind)
            return make(*given)

        return counted

    for kind in ("subject", "history", "board"):
        monkeypatch.setattr(pages_of_boards, f"_{kind}_body", told(kind, getattr(pages_of_boards, f"_{kind}_body")))
    monkeypatch.setattr(reproductions, "reproductions", told("repeats", reproductions.reproductions))
    return found


def test_a_page_is_drawn_once_until_a_run_comes_or_goes(site: Opened, drawn: list[str]) -> None:
    first = publish(site, 1)
    paths = pages(site, first)

    def same() -> None:
        """What is kept is what would be drawn; and it is drawn once, whoever looks."""
        drawn.clear()
        made = [html(site, path) for path in paths]
        assert drawn == ["subject"] * 3 + ["history"]
        assert [html(site, path) for path in paths] == made and len(drawn) == 4
        assert [as_new(site, path) for path in paths] == made

    same()
    second = publish(site, 2)
    same()
    assert "2 runs" in html(site, MODEL)
    third = publish(site, 3, replaces=second)  # as many as before
    same()
    assert third in html(site, MODEL) and second not in html(site, MODEL)
    site.site.store.hide(first, who="mod", reason="a test")
    same()
    assert first not in html(site, MODEL)
    site.site.store.approve(first, who="mod")
    same()
    site.site.store.withdraw(third, who="ann", account_id=site.site.store.row(third).account_id, reason="a test")
    same()
    site.site.store.withdraw(first, who="mod", account_id=None, moderator=True, reason="a test")
    assert site.http.get(MODEL, headers={"Accept": "text/html"}).status_code == 404, "the last one has gone"
    publish(site, 4)
    same()
    assert "1 run<" in html(site, MODEL), "and not what was kept when there was one"


def test_repeats_and_rankings_follow_every_run(site: Opened, drawn: list[str]) -> None:
    mine = publish(site, 1)
    paths = [f"/r/{mine}", "/boards/single:8192", f"/boards/single:8192?m={MODEL.rpartition('/')[2]}"]

    def same() -> str:
        drawn.clear()
        made = [html(site, path) for path in paths]
        assert drawn == ["repeats", "board", "board"]
        assert [html(site, path) for path in paths] == made and len(drawn) == 3
        assert [as_new(site, path) for path in paths] == made
        return made[0]

    assert "No other public run has this configuration" in same()
    again = publish(site, 2, who="bob")
    assert "1 other run of this configuration, 1 by other publishers" in same()
    newer = publish(site, 3, version="9.9")
    assert f'href="/r/{newer}">9.9' in same()
    site.site.store.hide(again, who="mod", reason="a test")
    assert "No other public run has this configuration" in same()
    # what is hidden is drawn for moderators, and not kept
    kept = site.site.drawings.kept
    before = set(kept._held)
    site.sign_in("mod", ("moderate",))
    assert "1 other run of this configuration" in html(site, f"/r/{again}")
    assert set(kept._held) == before


def test_what_others_publish_changes_which_points_are_shown(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows the operating points that most configurations of the whole site have."""
    monkeypatch.setattr(subjects, "POINTS", 1)
    publish(site, 1)
    shown = {number for number in (1, 8, 32) if f"/boards/single:{number * 1024}?" in html(site, MODEL)}
    other = min({1, 8} - shown)
    cells = [cell for cell in site_records.content()["cells"] if cell["context_tokens"] == other * 1024]
    publish(site, 2, model="other/model-1B", gpu="B200", engine="vllm", cells=cells)
    assert len(shown) == 1 and other not in shown
    assert f"/boards/single:{other * 1024}?" in html(site, MODEL) and html(site, MODEL) == as_new(site, MODEL)


def test_a_page_follows_what_another_process_does(site: Opened, tmp_path: Path, drawn: list[str]) -> None:
    """Two processes of one site, each with what it has kept."""
    other = opened(tmp_path, database_url=site.site.settings.database_url)
    first = publish(site, 1)
    paths = pages(site, first)
    here, there = ([html(one, path) for path in paths] for one in (site, other))
    assert here == there
    second = publish(other, 2)
    assert all(second in html(one, path) for one in (site, other) for path in (MODEL, paths[-1]))
    other.site.store.hide(second, who="mod", reason="a test")
    assert not any(second in html(one, path) for one in (site, other) for path in paths)
    other.close()


def test_what_was_drawn_while_a_run_was_away_is_not_taken_for_what_there_is_again(
    site: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is drawn just as a run is hidden lacks it; shown again, the run stands on it."""
    mine, other = publish(site, 1), publish(site, 2, who="bob")
    path = f"/history/{site.site.store.row(mine).history_key}"
    made = pages_of_boards._history_body

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(pages_of_boards, "_history_body", made)
        _another(site).hide(other, who="mod", reason="a test")
        return made(*given)

    monkeypatch.setattr(pages_of_boards, "_history_body", meanwhile)
    assert other not in html(site, path)
    _another(site).approve(other, who="mod")
    assert other in html(site, path) and html(site, path) == as_new(site, path)


def _another(site: Opened) -> Store:
    """The same site's store in another process, which nobody here hears of."""
    return Store(site.site.database, site.site.blobs, site.site.settings)


def test_rankings_made_anew_show_at_once(site: Opened) -> None:
    first = publish(site, 1)
    html(site, MODEL)
    with site.site.database.write() as conn:
        conn.execute(sa.update(schema.standings).values(value=schema.standings.c.value * 2, others=None))
    assert site.site.store.renew() == 1
    assert html(site, MODEL) == as_new(site, MODEL)
    with site.site.database.read() as conn:
        (row,) = boards.top(conn, "single:8192")
    assert row.public_id == first


def test_a_page_of_what_is_deleted_is_not_kept(site: Opened) -> None:
    """Nor is one of a run that another process of the site has deleted, after a minute."""
    mine = publish(site, 1, who="ann")
    for path in pages(site, mine):
        html(site, path)
    kept = site.site.drawings.kept
    assert {name.partition("-")[0] for name in kept._held} >= {"subject", "history"}
    account = site.site.store.row(mine).account_id
    assert account is not None
    site.site.store.listeners.clear()  # as if it were another's
    site.site.store.delete_account(account, "ann")
    held = {name: bytes(value) for name, value in kept._held.items()}
    assert any(mine.encode() in value for value in held.values())
    site.site.drawings.tidied_s -= drawings.TIDY_S
    other = publish(site, 2, who="bob", model="other/model-1B", gpu="B200", engine="vllm")
    others_page = f"/history/{site.site.store.row(other).history_key}"
    html(site, others_page)
    assert not any(mine.encode() in value for value in kept._held.values())
    before = dict(kept._held)
    site.site.drawings.tidied_s -= drawings.TIDY_S
    html(site, others_page)
    assert kept._held.keys() == before.keys(), "what has gone for a while takes nothing with it again"
    gone = site.site.store.row(mine).content_hash
    kept.get("run", gone, lambda: b"drawn while it went")
    site.site.drawings.tidied_s -= drawings.TIDY_S
    html(site, others_page)
    assert gone not in kept.hashes()


def test_a_history_whose_last_run_goes_meanwhile_is_not_there(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    first = publish(site, 1)
    key = site.site.store.row(first).history_key
    here: Site = site.site
    digest = pages_of_boards.digest

    def hidden(conn: Any, history_key: str) -> str | None:
        found = digest(conn, history_key)
        conn.commit()
        here.store.hide(first, who="mod", reason="a test")
        return found

    monkeypatch.setattr(pages_of_boards, "digest", hidden)
    answer = site.http.get(f"/history/{key}", headers={"Accept": "text/html"})
    assert answer.status_code == 404 and "No public run has this configuration" in answer.text
