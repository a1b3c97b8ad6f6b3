"""The site's pages asked without a browser: what stands on them, forms, headers, files, what is kept of drawings."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from flatout.flags import Status
from flatout.show import page as report_page
from flatout.site import answers, drawings, html, session
from flatout.site.drawer import DRAWER, NOT_AGAIN_MOST_S, NOT_AGAIN_S, Busy, Drawer, DrawingFailed, Failures, unpacked
from flatout.site.drawings import Ahead, Kept
from flatout.site.errors import Forbidden, NotFound, Unavailable
from flatout.site.history import Dated, change_points
from flatout.site.pages import pictures
from tests import page_records, records, site_records
from tests.site_client import Opened, opened

HTML = {"Accept": "text/html"}
PAGES = ("/", "/boards", "/boards/single:8192", "/compare", "/about", "/account")


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    DRAWER.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Opened]:
    made = opened(tmp_path)
    yield made
    made.close()


def published(site: Opened, number: int = 0, who: str = "ann", replaces: str | None = None, **more: Any) -> str:
    query = {"replaces": replaces} if replaces is not None else {}
    made = site.publish(site_records.body(number, **more), site.token(who), **query)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def get(site: Opened, path: str, **more: Any) -> Any:
    return site.http.get(path, headers={**HTML, **more.pop("headers", {})}, follow_redirects=False, **more)


class Text(HTMLParser):
    """What a reader sees, and the fields of forms."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.fields: dict[str, str] = {}
        self.links: list[str] = []
        self.quiet = 0
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.quiet += tag in ("style", "script")
        if tag == "input":
            self.fields[told.get("name") or ""] = told.get("value") or ""
        if tag == "a":
            self.links.append(told.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        self.quiet -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.quiet:
            self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())


def text(answer: Any) -> str:
    return Text(answer.text).text


def word(site: Opened, path: str) -> str:
    """The secret of a form."""
    return Text(get(site, path).text).fields["csrf"]


def send(site: Opened, path: str, form: str, headers: dict[str, str] | None = None, **fields: str) -> Any:
    """A form as a browser sends it; `form`: the page that it stands on."""
    told = {"csrf": word(site, form), **fields}
    return site.http.post(path, data=told, headers={**HTML, **(headers or {})}, follow_redirects=False)


def sign_in(site: Opened, name: str = "ann", scopes: tuple[str, ...] = ("publish",)) -> str:
    token = site.token(name, scopes)["Authorization"].removeprefix("Bearer ")
    made = send(site, "/account/sign-in", "/account", token=token)
    assert (made.status_code, made.headers["location"]) == (303, "/account")
    return token


# --- lists, filters -----------------------------------------------------------------------------------------------


def test_an_empty_site_says_what_to_do(site: Opened) -> None:
    told = text(get(site, "/"))
    assert (
        "No runs yet" in told and "flatout run http://localhost:8000" in told and "--to http://127.0.0.1:8321" in told
    )
    assert "Nothing is ranked yet" in text(get(site, "/boards"))


def test_a_local_site_names_the_folder_that_it_picks_up(tmp_path: Path) -> None:
    site = opened(tmp_path, results_dir=tmp_path / "results")
    assert str(tmp_path / "results") in text(get(site, "/")) and "flatout demo" in text(get(site, "/"))
    site.close()


def test_the_list_shows_figures_and_filters(site: Opened) -> None:
    first = published(site, 1, model="Qwen/Qwen3.5-4B", gpu="RTX 4090", engine="vllm", version="0.14.1")
    other = published(site, 2, model="google/gemma-3-27b-it", gpu="MI355X", engine="sglang", speed=3.0)
    made = get(site, "/")
    told = text(made)
    assert f'href="/r/{first}"' in made.text and f'href="/r/{other}"' in made.text
    assert "Qwen/Qwen3.5-4B" in told and "vllm 0. 14. 1" in told and "12 of 12" in told
    assert told.index("google/gemma") < told.index("Qwen/Qwen3.5-4B BF16"), "the newest first"
    rate = site_records.content(1)["cells"][3]["decode"]["total_tok_s"]["value"]
    assert f"{rate:.1f}" in told
    only = get(site, "/?m=google-gemma-3-27b-it&q=")
    assert first not in only.text and other in only.text
    assert 'href="/?"' in only.text and "model: google/gemma-3-27b-it" in text(only)
    assert "No run is like that" in text(get(site, "/?m=nothing-of-the-kind"))
    wrong = get(site, "/?from=yesterday&m=google-gemma-3-27b-it")
    assert wrong.status_code == 422 and "yesterday" in text(wrong) and "Nothing was searched" in text(wrong)


def test_pages_of_the_list_follow_each_other(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.site.pages.runs.ROWS", 2)
    ids = [published(site, number) for number in range(5)]
    seen: list[str] = []
    path: str | None = "/?e=sglang"
    for _ in range(3):
        assert path is not None
        made = get(site, path)
        seen += re.findall(r'name="r" value="(\w{12})"', made.text)
        path = next((link for link in Text(made.text).links if "after=" in link), None)
        assert path is None or path.startswith("/?e=sglang&after=")
    assert seen == ids[::-1] and path is None
    assert get(site, "/?after=made-up").status_code == 422


# --- a run --------------------------------------------------------------------------------------------------------


def test_a_runs_page_is_the_reports_own_with_its_checks(site: Opened) -> None:
    run = published(site, 1)
    published(site, 2, speed=1.001)
    made = get(site, f"/r/{run}")
    record = site.site.store.record(run)
    parts = report_page.fragment(record)
    assert made.status_code == 200 and str(parts.head) in made.text and str(parts.rest) in made.text
    told = text(made)
    row = site.site.store.row(run)
    assert row.content_hash in told and "How far to trust it" in told and "more checks" in told
    assert "1 other run of this configuration, all by the same publisher" in told and "agrees" in told
    assert f'content="http://127.0.0.1:8321/r/{run}/card.png"' in made.text
    assert f'href="/history/{row.history_key}"' in made.text and 'href="#d/8192/4"' in made.text
    assert made.text.count("<h1>") == 1 and made.text.count("<main") == 1


def test_the_reports_page_is_the_same_around_its_fragment() -> None:
    for record in (records.seed_page(), records.every_kind()):
        made, parts = report_page.render(record), report_page.fragment(record, files=True)
        assert str(parts.head) in made and parts.style in made and parts.script in made
        assert all(str(part) in made for part in (parts.head, parts.rest[:2000]))
        assert "data:application/gzip" not in report_page.fragment(record).body


def test_files_of_a_run(site: Opened) -> None:
    run = published(site, 3)
    row, record = site.site.store.row(run), site.site.store.record(run)
    made = site.http.get(f"/r/{run}/record.json")
    assert (
        hashlib.sha256(made.content).hexdigest() == row.content_hash
        and "attachment" in made.headers["content-disposition"]
    )
    assert site.http.get(f"/r/{run}/record.json", headers={"If-None-Match": made.headers["etag"]}).status_code == 304
    cells = site.http.get(f"/r/{run}/cells.csv")
    assert cells.text.count("\n") == len(record.cells) + 1 and cells.headers["content-type"].startswith("text/csv")
    table = site.http.get(f"/r/{run}/table.md")
    assert "| " in table.text and f"http://127.0.0.1:8321/r/{run}" in table.text
    assert table.headers["content-type"].startswith("text/plain")
    whole = site.http.get(f"/r/{run}/page.html")
    assert whole.text == report_page.render(record) and "attachment" in whole.headers["content-disposition"]
    assert whole.headers["content-security-policy"].startswith("default-src 'none'")
    picture = site.http.get(f"/r/{run}/card.png")
    assert picture.content.startswith(b"\x89PNG") and picture.headers["content-type"] == "image/png"
    assert site.http.get(f"/r/{run}/samples.zip", headers=HTML).status_code == 404
    assert site.http.head(f"/r/{run}/record.json").status_code == 200


def test_the_badge_tells_one_speed_at_its_operating_point(site: Opened) -> None:
    run = published(site, 4)
    cells = {cell["id"]: cell for cell in site_records.content(4)["cells"]}
    best = max(cells[f"d/{c * 1024}/1"]["decode"]["total_tok_s"]["value"] for c in (1, 8, 32))
    made = site.http.get(f"/r/{run}/badge.svg")
    root = ET.fromstring(made.text)
    assert "".join(root.itertext()).count(f"{best:.1f} tok/s · 1K × 1") == 2
    other = site.http.get(f"/r/{run}/badge.svg?board=total:8192:16").text
    assert f"{cells['d/8192/16']['decode']['total_tok_s']['value']:.1f} tok/s · 8K × 16" in other
    assert "no valid figure · 8K × 64" in site.http.get(f"/r/{run}/badge.svg?board=total:8192:64").text
    assert site.http.get(f"/r/{run}/badge.svg?board=fastest", headers=HTML).status_code == 404
    assert "script" not in made.text and "href" not in made.text


def test_the_frame_may_stand_in_other_pages_and_nothing_else_may(site: Opened) -> None:
    run = published(site, 5)
    made = get(site, f"/r/{run}/embed")
    rules = made.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", made.text, re.S)
    assert style is not None and "frame-ancestors *" in rules and "script-src" not in rules and "'self' data:" in rules
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in rules
    for path in (*PAGES, f"/r/{run}"):
        assert "frame-ancestors 'none'" in get(site, path).headers["content-security-policy"], path


def test_every_page_holds_to_its_policy(site: Opened) -> None:
    run = published(site, 6)
    history = site.site.store.row(run).history_key
    for path in (*PAGES, f"/r/{run}", f"/history/{history}", "/models/qwen-qwen3.5-4b", f"/r/{run}/report", "/nothing"):
        made = get(site, path)
        rules = made.headers["content-security-policy"]
        assert rules.startswith("default-src 'none'; style-src 'self'") and "form-action 'self'" in rules, path
        assert not re.search(r"\sstyle=|\son\w+=|javascript:", made.text), path
        assert "<style" not in made.text and made.text.count("<script") == ("script-src" in rules), path
        outside = re.findall(r'(?:src|href|action)="(?:https?:)?//(?!127\.0\.0\.1:8321)', made.text)
        assert outside == [], path


# --- states -------------------------------------------------------------------------------------------------------


def test_a_withdrawn_run_leaves_a_stone_with_reason_and_successor(site: Opened) -> None:
    old, new = published(site, 7), published(site, 8)
    sign_in(site)
    form = f"/r/{old}/withdraw"
    assert "tick this, too" in text(send(site, form, form, reason="wrong flags", sure=""))
    empty = send(site, form, form, reason="  ", sure="yes")
    assert empty.status_code == 422 and 'aria-invalid="true" aria-describedby="e-reason"' in empty.text
    unknown = send(site, form, form, reason="wrong flags", sure="yes", successor="aaaaaaaaaaaa")
    assert unknown.status_code == 422 and "aaaaaaaaaaaa" in text(unknown)
    made = send(site, form, form, reason="wrong flags", sure="yes", successor=f"http://127.0.0.1:8321/r/{new}")
    assert (made.status_code, made.headers["location"]) == (303, f"/r/{old}")
    stone = get(site, f"/r/{old}")
    assert stone.status_code == 410 and "wrong flags" in text(stone) and f'href="/r/{new}"' in stone.text
    assert "on 2" not in text(stone) and text(stone).count("This run was withdrawn") == 1  # each thing is told once
    assert re.search(r"\d{4}-\d\d-\d\d", text(stone))
    assert old not in get(site, "/").text and site.http.get(f"/r/{old}/record.json").status_code == 410
    assert site.http.get(f"/r/{old}/badge.svg").status_code == 410


def test_only_its_publisher_withdraws_a_run(site: Opened) -> None:
    run = published(site, 9, who="bert")
    assert get(site, f"/r/{run}/withdraw").status_code == 403
    sign_in(site, "ann")
    assert "Withdraw" not in text(get(site, f"/r/{run}"))
    form = f"/r/{run}/withdraw"
    made = send(site, form, form, reason="mine now", sure="yes")
    assert made.status_code == 403 and get(site, f"/r/{run}").status_code == 200


def test_a_queued_run_is_seen_by_owner_and_moderators(tmp_path: Path) -> None:
    site = opened(tmp_path, moderation="queue")
    run = published(site, 10)
    assert get(site, f"/r/{run}").status_code == 404 and run not in get(site, "/").text
    sign_in(site, "ann")
    assert "waits for a moderator" in text(get(site, f"/r/{run}")) and "Make it public" not in text(
        get(site, f"/r/{run}")
    )
    assert get(site, "/moderate").status_code == 403
    sign_in(site, "mod", ("publish", "moderate"))
    assert run in get(site, "/moderate").text
    made = send(site, f"/moderate/{run}/approve", "/moderate")
    assert made.headers["location"] == f"/r/{run}?said=approved"
    site.http.cookies.clear()
    assert get(site, f"/r/{run}").status_code == 200 and run in get(site, "/").text
    sign_in(site, "ann")
    new = published(site, 11, replaces=run)
    words = f"takes the place of /r/{run} , which stays public until then"
    assert words in text(get(site, f"/r/{new}"))
    sign_in(site, "mod", ("publish", "moderate"))
    assert words in text(get(site, "/moderate")) and get(site, f"/r/{run}").status_code == 200
    send(site, f"/moderate/{new}/approve", "/moderate")
    site.http.cookies.clear()
    stone = get(site, f"/r/{run}")
    assert stone.status_code == 410 and f'href="/r/{new}"' in stone.text
    site.close()


def test_reports_are_made_hidden_upon_and_settled(site: Opened) -> None:
    run, other = published(site, 11), published(site, 12)
    form = f"/r/{run}/report"
    assert send(site, form, form, reason="").status_code == 422
    assert send(site, form, form, reason="no such card").headers["location"] == f"/r/{run}?said=reported"
    assert send(site, f"/r/{other}/report", f"/r/{other}/report", reason="cooled with ice").status_code == 303
    sign_in(site, "mod", ("moderate",))
    told = get(site, "/moderate")
    assert "no such card" in text(told) and "cooled with ice" in text(told) and "a visitor" in text(told)
    number = re.search(r"/moderate/reports/(\d+)/settle", told.text)
    assert number is not None
    assert send(site, f"/moderate/reports/{number[1]}/settle", "/moderate", outcome="").status_code == 422
    assert send(site, f"/moderate/reports/{number[1]}/settle", "/moderate", outcome="it is real").status_code == 303
    assert send(site, f"/moderate/{other}/hide", "/moderate", reason="").status_code == 422
    assert (
        send(site, f"/moderate/{other}/hide", "/moderate", reason="ice").headers["location"]
        == f"/r/{other}?said=hidden"
    )
    assert "Reports: 0" in text(get(site, "/moderate")) and "hidden" in text(get(site, f"/r/{other}"))
    site.http.cookies.clear()
    stone = get(site, f"/r/{other}")
    assert stone.status_code == 410 and "This run was hidden" in text(stone) and "ice" in text(stone)


# --- accounts -----------------------------------------------------------------------------------------------------


def test_signing_in_and_out(site: Opened) -> None:
    assert "Sign in" in text(get(site, "/account"))
    wrong = send(site, "/account/sign-in", "/account", token="flatout_" + "x" * 43)
    assert wrong.status_code == 422 and "not known here" in text(wrong) and "xxx" not in text(wrong)
    assert "x" * 8 not in wrong.text, "three may stand in a random word of a form"
    token = sign_in(site)
    told = get(site, "/account")
    assert "ann" in text(told) and token not in told.text and told.headers["cache-control"] == "no-store"
    cookie = next(iter(site.http.cookies.jar))
    assert cookie.has_nonstandard_attr("httponly") and cookie.get_nonstandard_attr("samesite") == "lax"
    assert send(site, "/account/sign-out", "/account").headers["location"] == "/account?said=out"
    assert "Your runs" not in text(get(site, "/account"))


def test_a_session_ends_with_its_token(site: Opened) -> None:
    sign_in(site)
    made = send(site, "/account/tokens", "/account", **{"label": "second", "scope-publish": "yes", "days": "30"})
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    second = re.search(r"flatout_[\w-]{43}", made.text)
    assert second is not None and second[0] not in get(site, "/account").text, "it is shown once"
    first = re.findall(r"/account/tokens/(\d+)/revoke", get(site, "/account").text)[-1]
    assert send(site, f"/account/tokens/{first}/revoke", "/account").status_code == 303
    assert "Your runs" not in text(get(site, "/account"))
    assert send(site, "/account/sign-in", "/account", token=second[0]).status_code == 303


def test_a_token_gives_no_more_than_it_has(site: Opened) -> None:
    sign_in(site)
    made = send(site, "/account/tokens", "/account", **{"label": "x", "scope-moderate": "yes"})
    assert made.status_code == 422 and "no more than" in text(made)
    none = send(site, "/account/tokens", "/account", label="x")
    assert none.status_code == 422 and "scopes" in text(none)
    assert send(site, "/account/tokens/99999/revoke", "/account").status_code == 404
    assert send(site, "/account/tokens/x'y/revoke", "/account").status_code == 404


def test_an_account_is_made_where_the_site_lets_everybody(tmp_path: Path, site: Opened) -> None:
    assert get(site, "/account/new").status_code == 403
    other = opened(tmp_path / "open", registration="open")
    assert send(other, "/account/new", "/account/new", name="X!").status_code == 422
    made = send(other, "/account/new", "/account/new", name="carol")
    assert made.status_code == 201 and re.search(r"flatout_[\w-]{43}", made.text)
    assert "carol" in text(get(other, "/account"))
    taken = send(other, "/account/new", "/account/new", name="carol")
    assert taken.status_code == 422 and "taken" in text(taken)
    other.close()


def test_my_data_is_deleted_with_what_was_drawn_of_it(site: Opened, tmp_path: Path) -> None:
    run, kept = published(site, 13), published(site, 14, who="bert")
    for one in (run, kept):
        assert get(site, f"/r/{one}").status_code == 200
    assert get(site, f"/compare?r={run}&r={kept}").status_code == 200
    hashes = {one: site.site.store.row(one).content_hash for one in (run, kept)}
    assert len(list((tmp_path / "rendered").iterdir())) == 2
    sign_in(site)
    assert "nothing was deleted" in text(send(site, "/account/delete", "/account", confirm="bert"))
    assert send(site, "/account/delete", "/account", confirm="ann").headers["location"] == "/account?said=deleted"
    stone = get(site, f"/r/{run}")
    assert stone.status_code == 410 and "This run was deleted" in text(stone)
    left = [path.name for path in (tmp_path / "rendered").iterdir()]
    assert len(left) == 1 and hashes[kept] in left[0]
    assert get(site, f"/r/{kept}").status_code == 200


@pytest.mark.parametrize("how", ["delete", "withdraw", "hide", "replace"])
def test_what_is_not_public_any_more_is_not_kept_either(site: Opened, tmp_path: Path, how: str) -> None:
    """At once, whichever way it goes, and though a comparison in memory was made of it."""
    headers = site.token("ann", ("publish", "moderate"))
    run = site.publish(site_records.body(15), headers).json()["id"]
    kept = published(site, 16, who="bert")
    for path in (f"/r/{run}", f"/r/{run}/page.html", f"/r/{run}/card.png", f"/r/{kept}", f"/compare?r={run}&r={kept}"):
        assert get(site, path).status_code == 200
    mine = site.site.store.row(run).content_hash
    assert len([path for path in (tmp_path / "rendered").iterdir() if mine in path.name]) == 3
    api = f"/api/v1/runs/{run}"
    if how == "delete":
        done = site.http.delete("/api/v1/me", params={"confirm": "ann"}, headers=headers)
    elif how == "replace":
        done = site.publish(site_records.body(17), headers, replaces=run)
    else:
        done = site.http.post(f"{api}/{how}", json={"reason": "a fan was broken"}, headers=headers)
    assert done.status_code < 300
    there = [path.name for path in (tmp_path / "rendered").iterdir()]
    assert len(there) == 1 and site.site.store.row(kept).content_hash in there[0]
    assert mine not in str(site.site.drawings.kept._held) and "comparison" not in str(site.site.drawings.kept._held)


def test_a_hidden_run_is_drawn_for_moderators_and_not_kept(site: Opened, tmp_path: Path) -> None:
    run = published(site, 18)
    sign_in(site, "mod", ("moderate",))
    site.site.store.hide(run, who="mod", reason="r")
    told = text(get(site, f"/r/{run}"))
    assert "This run is hidden" in told and "One request alone" in told
    assert not (tmp_path / "rendered").exists() and not site.site.drawings.kept.hashes()


# --- forms from elsewhere -----------------------------------------------------------------------------------------


def test_a_form_without_its_word_is_refused(site: Opened) -> None:
    token = site.token("ann")["Authorization"].removeprefix("Bearer ")
    path = "/account/sign-in"
    assert site.http.post(path, data={"token": token}, headers=HTML).status_code == 403
    assert site.http.post(path, data={"token": token, "csrf": "guessed"}, headers=HTML).status_code == 403
    mine = word(site, "/account")
    other = opened(site.site.settings.data_dir)
    get(other, "/account")
    assert other.http.post(path, data={"token": token, "csrf": mine}, headers=HTML).status_code == 403
    other.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8321.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "text/plain"},
    ],
)
def test_a_form_from_another_site_is_refused(site: Opened, headers: dict[str, str]) -> None:
    token = site.token("ann")["Authorization"].removeprefix("Bearer ")
    made = send(site, "/account/sign-in", "/account", headers=headers, token=token)
    assert made.status_code in (403, 422) and "form" in text(made).lower()
    assert "Your runs" not in text(get(site, "/account"))


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://127.0.0.1:8321"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}]
)
def test_a_form_of_our_own_is_taken(site: Opened, headers: dict[str, str]) -> None:
    token = site.token("ann")["Authorization"].removeprefix("Bearer ")
    assert send(site, "/account/sign-in", "/account", headers=headers, token=token).status_code == 303


@given(st.one_of(st.none(), st.integers(), st.text(max_size=40)), st.one_of(st.none(), st.text(max_size=40)))
def test_only_the_kept_word_passes(kept: object, sent: str | None) -> None:
    if isinstance(kept, str) and kept == sent:
        session.check_word(kept, sent)
        return
    with pytest.raises(Forbidden):
        session.check_word(kept, sent)


# --- comparisons, boards, subjects, histories ---------------------------------------------------------------------


def test_runs_are_compared_and_swapped(site: Opened) -> None:
    a, b = published(site, 20), published(site, 21, speed=1.2, version="0.6.0")
    made = get(site, f"/compare?r={a}&r={b}")
    assert made.status_code == 200 and "12 faster" in text(made) and f'href="/compare?r={b}&amp;r={a}"' in made.text
    assert "Not equal: version" in text(made)
    swapped = get(site, f"/compare?r={b}&r=http://127.0.0.1:8321/r/{a}%23d/8192/1")
    assert "12 slower" in text(swapped)
    one = text(get(site, f"/compare?r={a}"))
    assert "Pick another below" in one and "Other runs of this model" in one
    wrong = get(site, f"/compare?r={a}&r=aaaaaaaaaaaa")
    assert "there is no run" in text(wrong) and get(site, "/compare?r=zzz").status_code == 404
    cells = [records.burst("8K", 8192, 4, 100.0).model_dump()]
    odd = published(site, 22, cells=cells)
    assert "Comparison of two runs" in text(get(site, f"/compare?r={a}&r={odd}"))


def test_too_many_sides_are_said(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.site.pages.compare.MOST_SIDES", 2)
    ids = [published(site, number) for number in (23, 24, 25)]
    told = text(get(site, "/compare?" + "&".join(f"r={i}" for i in ids)))
    assert "At most 2 runs" in told and "Add a run" not in told


def test_boards_rank_and_say_how(site: Opened) -> None:
    slow = published(site, 30, model="a/slow", command="x --a")
    fast = published(site, 31, model="a/fast", speed=2.0, command="x --b")
    near = published(site, 32, model="a/near", speed=2.001, command="x --c")
    made = get(site, "/boards/single:8192")
    told = text(made)
    order = re.findall(r'<a href="/r/(\w{12})"', made.text)
    assert order == [near, fast, slow] and told.count("shared by 2") == 2
    assert "Decode speed of one request alone" in told and "Not ranked" in told and "±0.4 %" in told
    assert "place is one more than the number of rows shown to be faster" in told
    assert "number of rows with a larger number" in text(get(site, "/boards/users:8192:10"))
    assert made.text.count('class="whisk"') == 3
    only = get(site, "/boards/single:8192?m=a-slow")
    assert re.findall(r'<a href="/r/(\w{12})"', only.text) == [slow]
    assert "No configuration with these filters" in text(get(site, "/boards/single:8192?m=none"))
    assert "or more" in text(get(site, "/boards/users:8192:10"))
    for wrong in ("total:8192", "single:x", "users:8192:11", "a" * 300):
        assert get(site, f"/boards/{wrong}").status_code == 404
    all_of_them = get(site, "/boards")
    assert 'href="/boards/total:8192:16"' in all_of_them.text and "In front" in text(all_of_them)


def test_subjects_and_histories(site: Opened) -> None:
    runs = [
        published(site, 40 + i, speed=1.0 if i < 4 else 1.3, version="1.0" if i < 4 else "1.1", command="x --a")
        for i in range(8)
    ]
    for path in ("/models/qwen-qwen3.5-4b", "/hardware/h200-nvl-141-gb", "/engines/sglang"):
        told = text(get(site, path))
        assert "8 runs" in told and "One request alone" in told and "the only one" in told, path
    assert get(site, "/models/none").status_code == 404 and get(site, f"/hardware/{'h' * 500}").status_code == 404
    made = get(site, f"/history/{site.site.store.row(runs[0]).history_key}")
    told = text(made)
    assert "2 versions of the engine" in told and "+30 %" in made.text and "at the step: engine 1.0 → 1.1" in told
    assert made.text.count('class="dot"') == 8 * 12 and 'class="version"' in made.text
    assert get(site, f"/history/{'0' * 64}").status_code == 404


# --- what does not work -------------------------------------------------------------------------------------------


def test_errors_are_pages_with_words(site: Opened) -> None:
    missing = get(site, "/r/aaaaaaaaaaaa")
    assert missing.status_code == 404 and "Not found" in text(missing) and "All runs" in text(missing)
    assert "There is no run 'aaaaaaaaaaaa' here." in text(missing)
    assert get(site, "/nothing/at/all").status_code == 404
    assert site.http.get("/r/aaaaaaaaaaaa/record.json", headers={"Accept": "application/json"}).json()["status"] == 404
    assert get(site, "/static/none.css").status_code == 404 and get(site, "/static/../secret").status_code == 404


def test_a_database_that_is_gone_is_said_on_a_page(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(site)

    def gone(*_: object) -> Any:
        raise Unavailable("The database does not answer.")

    monkeypatch.setattr(type(site.site.database), "read", gone)
    for path in ("/", "/account", "/boards"):
        made = get(site, path)
        assert (
            made.status_code == 503 and "does not answer" in text(made) and made.headers["cache-control"] == "no-store"
        )


def test_texts_of_a_record_stay_texts(site: Opened) -> None:
    bad = "<script>pwned()</script>\"'><img src=x onerror=pwned()>\u202eevil{{7*7}}"
    run = published(site, 50, model=bad, gpu=bad, engine=bad, version=bad, speculation=bad, quantization=bad)
    row = site.site.store.row(run)
    paths = ["/", f"/r/{run}", f"/compare?r={run}", f"/models/{row.model_key}", f"/history/{row.history_key}",
             f"/hardware/{row.hardware_key}", f"/engines/{row.engine_key}", "/boards/single:8192", f"/r/{run}/embed",
             "/?q=%3Cscript%3Epwned()%3C/script%3E&c=%22%3E%3Cb%3E&m=%3Cscript%3E"]  # fmt: skip
    for path in paths:
        made = get(site, path)
        assert made.status_code in (200, 422), path
        assert "<script>pwned" not in made.text and "<img" not in made.text and "\u202e" not in made.text, path
        assert "evil49" not in made.text and ("evil{{7*7}}" in made.text or path.startswith("/?")), path


# --- bodies, drawing, keeping -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=3000), st.sampled_from([0, 6])), max_size=6))
def test_pieces_in_a_row_are_one_gzip_member(parts: list[tuple[bytes, int]]) -> None:
    pieces = [answers.piece(plain, level) for plain, level in parts]
    made = answers.gzipped(pieces)
    unpacked = zlib.decompressobj(wbits=31)
    plain = b"".join(p for p, _ in parts)
    assert unpacked.decompress(made) == plain and unpacked.eof and not unpacked.unused_data
    assert gzip.decompress(made) == plain


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=4),
       st.dictionaries(st.text(max_size=8), st.binary(max_size=400), max_size=4))  # fmt: skip
def test_what_is_packed_comes_out(meta: dict[str, str], pieces: dict[str, bytes]) -> None:
    packed = answers.pack(meta, pieces)
    told, found = answers.unpack(packed)
    assert told == meta and {name: one.plain for name, one in found.items()} == pieces
    if pieces:
        with pytest.raises(ValueError):
            answers.unpack(packed + b"x")


def test_a_page_comes_compressed_and_is_told_when_it_is_known(site: Opened) -> None:
    run = published(site, 60)
    plain = get(site, f"/r/{run}", headers={"Accept-Encoding": "identity"})
    zipped = get(site, f"/r/{run}", headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip" and zipped.text == plain.text
    assert "content-encoding" not in plain.headers and plain.headers["etag"] != zipped.headers["etag"]
    again = get(site, f"/r/{run}", headers={"Accept-Encoding": "identity", "If-None-Match": plain.headers["etag"]})
    assert again.status_code == 304 and not again.content and "content-security-policy" in again.headers
    assert get(site, f"/r/{run}", headers={"Accept-Encoding": "gzip;q=0"}).headers.get("content-encoding") is None
    assert plain.headers["cache-control"] == "public, no-cache"
    sign_in(site)
    mine = get(site, "/", headers={"Accept-Encoding": "gzip"})
    assert mine.headers["cache-control"] == "private, no-cache" and "content-encoding" not in mine.headers


def test_static_files_are_kept_for_good_under_their_own_address(site: Opened) -> None:
    sheets = re.findall(r'href="(/static/[^"]+)"', get(site, "/").text)
    assert len(sheets) == 3
    for path in sheets:
        assert "immutable" in site.http.get(path).headers["cache-control"]
        assert "immutable" not in site.http.get(path.partition("?")[0]).headers["cache-control"]


def test_a_thing_is_drawn_once_and_found_again(tmp_path: Path) -> None:
    kept, made = Kept(tmp_path / "r"), []
    of = "ab" * 32

    def make() -> bytes:
        made.append(1)
        return b"drawn"

    threads = [threading.Thread(target=lambda: kept.get("run", of, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and Kept(tmp_path / "r").get("run", of, make) == b"drawn" and len(made) == 1
    assert kept.hashes() == {of}
    kept.forget([of])
    assert not list((tmp_path / "r").iterdir()) and kept.get("run", of, make) == b"drawn" and len(made) == 2


def test_what_is_forgotten_while_it_is_drawn_is_not_kept(tmp_path: Path) -> None:
    kept, of = Kept(tmp_path / "r"), "ef" * 32

    def make() -> bytes:
        kept.forget([of])
        return b"drawn"

    assert kept.get("run", of, make) == b"drawn" and not kept.hashes()
    assert kept.get("run", of, lambda: b"drawn") == b"drawn" and kept.hashes() == {of}


# --- drawn before anybody asks ------------------------------------------------------------------------------------


def until(true: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.02)


def test_a_run_is_drawn_before_its_first_visitor_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = opened(tmp_path, moderation="queue")
    old = published(site, 19)
    site.site.store.approve(old, who="mod")
    store = site.site.store
    with site.http:
        hashes = {store.row(old).content_hash}
        until(lambda: site.site.drawings.kept.hashes() >= hashes, "the newest to be drawn as the site starts")
        run = published(site, 20)
        hashes.add(store.row(run).content_hash)
        until(lambda: site.site.drawings.kept.hashes() >= hashes, "what was published to be drawn")
        store.approve(run, who="mod")

        def never(*_: object) -> None:
            raise AssertionError("it was drawn again")

        monkeypatch.setattr(DRAWER, "draw", never)
        for one in (old, run):
            assert get(site, f"/r/{one}").status_code == 200
    assert not site.site.drawings.ahead.thread.is_alive()


def test_who_waits_for_a_drawing_goes_first() -> None:
    mine = Drawer()
    mine._lock.acquire()
    with pytest.raises(Busy):
        mine.draw("run", ahead=True)
    mine._waiting = 1  # somebody is about to have it
    mine._lock.release()
    with pytest.raises(Busy):
        mine.draw("run", ahead=True)
    assert mine.busy and mine._process is None


def test_the_newest_is_drawn_first_and_what_is_too_much_is_left() -> None:
    drawn: list[str] = []
    busy = threading.Event()
    busy.set()

    def draw(public_id: str) -> None:
        if busy.is_set():
            raise Busy
        drawn.append(public_id)
        if public_id == "r150":
            raise NotFound("gone in the meantime")
        if public_id == "r149":
            raise ValueError

    mine = Ahead(draw)
    for number in range(200):
        mine.add(f"r{number}")
    mine.start()
    time.sleep(0.3)
    assert not drawn
    busy.clear()
    until(lambda: len(drawn) >= drawings.MOST_WAITING, "all to be drawn")
    mine.add("last")
    until(lambda: drawn[-1] == "last", "the last")
    mine.stop()
    assert drawn[:-1] == [f"r{number}" for number in range(199, 99, -1)]


def test_a_full_disk_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    kept = Kept(tmp_path / "r")
    assert kept.get("run", "cd" * 32, lambda: b"drawn") == b"drawn"


def test_kept_files_are_bounded(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(6):
        kept.get("run", f"{number:064x}", lambda: b"x" * 100)
    (tmp_path / f"run-{'0' * 64}-{'f' * 12}").write_bytes(b"of another version")
    (tmp_path / "not ours").write_bytes(b"stays")
    kept.sweep(most_bytes=250)
    assert len(list(tmp_path.iterdir())) == 2 + 1 and (tmp_path / "not ours").exists()


def test_drawing_that_dies_costs_its_page_and_not_the_next() -> None:
    mine = Drawer()
    content = site_records.body(70)
    try:
        assert mine.draw("run", content, None, 1)["title"].startswith("Qwen3.5-4B on H200")
        assert mine._process is not None
        mine._process.kill()
        mine._process.wait(5)
        assert "No card" not in mine.draw("comparison", [content, content], ["a", "b"])["body"]
        assert mine.draw("card", json.dumps({**json.loads(content), "cells": []}).encode()) == b""
    finally:
        mine.close()


def test_drawing_that_takes_too_long_is_ended_and_not_tried_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Drawer()
    content, other = site_records.body(71), site_records.body(72)
    now = [1000.0]
    try:
        mine.warm()
        monkeypatch.setattr("flatout.site.drawer.time", SimpleNamespace(monotonic=lambda: now[0]))
        with monkeypatch.context() as patch:
            patch.setattr("flatout.site.drawer.LONGEST_S", 0.0)
            with pytest.raises(Unavailable, match="too long"):
                mine.draw("run", content, None, 1)
        assert mine._process is None
        for ahead in (False, True):
            with pytest.raises(Unavailable, match="too long"):
                mine.draw("run", content, None, 1, ahead=ahead)
        assert mine._process is None  # nothing was tried
        assert mine.draw("run", other, None, 1)["card"] == "yes"
        now[0] += NOT_AGAIN_S + 1
        assert mine.draw("run", content, None, 1)["card"] == "yes"
        now[0] += 1
        assert mine.draw("run", content, None, 1)["card"] == "yes" and not mine._failures._known
    finally:
        mine.close()


def test_what_fails_again_rests_longer_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now, failures = [0.0], Failures()
    monkeypatch.setattr("flatout.site.drawer.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("flatout.site.drawer.MOST_REMEMBERED", 10)
    rests = []
    for _ in range(12):
        failures.add("run", (b"a", [b"b"]), Unavailable("no"))
        begun = now[0]
        while True:
            try:
                failures.check("run", (b"a", [b"b"]))
                break
            except Unavailable as error:
                assert str(error) == "no"
                now[0] += 1
        rests.append(now[0] - begun)
    assert rests[:3] == [NOT_AGAIN_S, 2 * NOT_AGAIN_S, 4 * NOT_AGAIN_S] and rests[-1] == NOT_AGAIN_MOST_S
    failures.add("card", (b"a",), DrawingFailed("KeyError"))
    failures.check("card", (b"b",))
    failures.check("run", (b"a",))
    with pytest.raises(DrawingFailed, match="KeyError"):
        failures.check("card", (b"a",))
    for number in range(50):
        failures.add("card", (number,), Unavailable("no"))
    assert len(failures._known) == 10


_GREEDY = """
import sys, time
from multiprocessing.connection import Connection
from flatout.site import drawer
drawer.MOST_MEMORY_BYTES = 300 * 1024 * 1024
drawer.MOST_CPU_S = 1.0
drawer.WORKS = {"memory": lambda: len(bytearray(2**30)), "cpu": lambda: sum(iter(int, 1)), "fine": lambda: 1}
drawer.serve(Connection(int(sys.argv[1])))
"""


def test_the_drawing_process_is_bounded() -> None:
    """Memory it is refused; of the processor's time it gets what is allowed, and ends."""
    ours, theirs = Pipe()
    process = subprocess.Popen([sys.executable, "-c", _GREEDY, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    theirs.close()
    try:
        assert ours.poll(60) and ours.recv() == "ready"
        told = []
        for work in ("fine", "memory", "fine"):
            ours.send((work, ()))
            assert ours.poll(30)
            told.append(ours.recv())
        assert told == [(True, 1), (False, "MemoryError"), (True, 1)]
        ours.send(("cpu", ()))
        assert process.wait(30) == -signal.SIGXCPU
    finally:
        process.kill()
        process.wait(10)
        ours.close()


def test_samples_come_out_of_their_zip_by_their_own_names(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("../../d-8192-1.npz", b"a")
        file.writestr("readme.txt", b"b")
    folder = tmp_path / "in"
    folder.mkdir()
    assert unpacked(packed.getvalue(), folder) == folder and unpacked(None, folder) is None
    assert [path.name for path in folder.iterdir()] == ["d-8192-1.npz"] and len(list(tmp_path.iterdir())) == 1


# --- small drawings -----------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.none(), st.floats(min_value=0, max_value=1e14, allow_nan=False))


@given(st.lists(st.tuples(st.floats(min_value=1e-3, max_value=1e14), NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_traces_are_svg_whatever_the_figures(found: list[tuple[float, float | None, float | None]]) -> None:
    runs = [Dated(i * 10**12, value, low, high, "abc", f"v{i // 4}<") for i, (value, low, high) in enumerate(found)]
    made = pictures.trace(runs, change_points(runs), 'a "label" <b>')
    root = ET.fromstring(made)
    assert sum(1 for node in root.iter() if node.get("class") == "dot") == len(runs)
    assert "nan" not in made and "inf" not in made


@given(st.lists(st.integers(0, 40), min_size=2, max_size=pictures.MOST_DOTS))
def test_names_of_versions_do_not_cover_each_other(versions: list[int]) -> None:
    runs = [Dated(i * 10**12, 100.0, 99.0, 101.0, "abc", f"0.{v}.1") for i, v in enumerate(versions)]
    root = ET.fromstring(pictures.trace(runs, [], "x"))
    at = f"{pictures.TOP - 12:.1f}"
    spans = []
    for node in root.iter():
        if node.tag.endswith("text") and node.get("y") == at:
            x, wide = float(node.get("x", "")), pictures.CHAR_WIDE * len(node.text or "")
            spans.append((x, x + wide) if node.get("text-anchor") == "start" else (x - wide, x))
    spans.sort()
    assert all(one[1] <= other[0] + 0.2 for one, other in pairwise(spans)) and len(spans) <= pictures.MOST_NAMED
    changes = [new for old, new in pairwise(versions) if old != new]
    assert bool(spans) is bool(changes)
    assert not changes or f">0.{changes[-1]}.1</text>" in ET.tostring(root, encoding="unicode")


@given(st.floats(min_value=0, max_value=1e14), st.floats(min_value=1e-6, max_value=1e14))
def test_ticks_lie_between_the_ends(low: float, span: float) -> None:
    found = pictures.ticks(low, low + span)
    slack = span * 1e-9 + low * 1e-9
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert len(found) <= 11


@given(st.floats(min_value=0, max_value=1e14), NUMBERS, NUMBERS)
def test_whiskers_are_svg_whatever_the_figures(value: float, low: float | None, high: float | None) -> None:
    row = SimpleNamespace(value=value, low=low, high=high, or_more=high is None)
    parts = html.environment().get_template("parts.html").module
    made = parts.whisker(row, pictures.axis([row], open_ended=row.or_more))  # type: ignore
    if made:
        root = ET.fromstring(made)
        spots = [float(node.get("cx", "0")) for node in root.iter("circle")]
        assert all(0 <= spot <= 176 for spot in spots)


@given(st.text(max_size=90), st.text(max_size=90))
def test_badges_are_svg_whatever_the_texts(left: str, right: str) -> None:
    ET.fromstring(pictures.badge(left, right))


@given(st.text(max_size=200))
def test_texts_are_made_harmless_in_templates(value: str) -> None:
    made = html.environment().from_string("<p>{{ value }}</p>{{ value|lines }}{{ value|broken }}").render(value=value)
    assert "<" not in made.replace("<p>", "").replace("</p>", "").replace("<wbr>", "")
    assert not any(char in made for char in "\0\u202e\u200b\x1b")


def test_missing_values_are_dashes_and_unknown_names_are_faults() -> None:
    made = html.environment()
    assert made.from_string("{{ value }}{{ n|rate }}{{ us|day }}").render(value=None, n=None, us=None) == "———"
    assert made.from_string("{{ value }}").render(value=Markup("<b>")) == "<b>"
    with pytest.raises(Exception, match="undefined"):
        made.from_string("{{ nobody }}").render()


def test_doubtful_and_unfinished_runs_have_pages(site: Opened) -> None:
    for number, record in enumerate((records.every_kind(), records.seed_page(), page_records.extreme(1e308))):
        made = site.publish(record.model_copy(update={"started": f"2026-11-0{number + 1}T00:00:00+00:00"})
                            .model_dump_json().encode(), site.token("ann"))  # fmt: skip
        assert made.status_code == 201, made.text
        page = get(site, f"/r/{made.json()['id']}")
        assert page.status_code == 200, page.text
        assert get(site, f"/r/{made.json()['id']}/embed").status_code == 200
    assert get(site, "/").status_code == 200 and Status.DOUBTFUL in text(get(site, "/"))
