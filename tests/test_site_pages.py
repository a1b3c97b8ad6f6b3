"""The site's pages asked without a browser: what stands on them, forms, headers, files, what is kept of drawings."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from flatout.flags import Status
from flatout.show import page as report_page
from flatout.site import html
from flatout.site.drawer import DRAWER
from flatout.site.errors import Unavailable
from tests import page_records, records, site_records
from tests.site_client import HTML, Open, Opened, Text, text

PAGES = ("/", "/boards", "/boards/single:8192", "/compare", "/about", "/account")


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    DRAWER.close()


# --- lists, filters -----------------------------------------------------------------------------------------------


def test_an_empty_site_says_what_to_do(site: Opened) -> None:
    told = site.text("/")
    assert (
        "No runs yet" in told and "flatout run http://localhost:8000" in told and "--to http://127.0.0.1:8321" in told
    )
    assert "Nothing is ranked yet" in site.text("/boards")


def test_a_local_site_names_the_folder_that_it_picks_up(open_site: Open, tmp_path: Path) -> None:
    site = open_site(results_dir=tmp_path / "results")
    assert str(tmp_path / "results") in site.text("/") and "flatout demo" in site.text("/")


def test_the_list_shows_figures_and_filters(site: Opened) -> None:
    first = site.run(1, model="Qwen/Qwen3.5-4B", gpu="RTX 4090", engine="vllm", version="0.14.1")
    other = site.run(2, model="google/gemma-3-27b-it", gpu="MI355X", engine="sglang", speed=3.0)
    made = site.page("/")
    told = text(made)
    assert f'href="/r/{first}"' in made.text and f'href="/r/{other}"' in made.text
    assert "Qwen/Qwen3.5-4B" in told and "vllm 0. 14. 1" in told and "12 of 12" in told
    assert told.index("google/gemma") < told.index("Qwen/Qwen3.5-4B BF16"), "the newest first"
    rate = site_records.content(1)["cells"][3]["decode"]["total_tok_s"]["value"]
    assert f"{rate:.1f}" in told
    only = site.page("/?m=google-gemma-3-27b-it&q=")
    assert first not in only.text and other in only.text
    assert 'href="/?"' in only.text and "model: google/gemma-3-27b-it" in text(only)
    assert "No run is like that" in site.text("/?m=nothing-of-the-kind")
    wrong = site.page("/?from=yesterday&m=google-gemma-3-27b-it")
    assert wrong.status_code == 422 and "yesterday" in text(wrong) and "Nothing was searched" in text(wrong)


def test_pages_of_the_list_follow_each_other(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.site.pages.runs.ROWS", 2)
    ids = [site.run(number) for number in range(5)]
    seen: list[str] = []
    path: str | None = "/?e=sglang"
    for _ in range(3):
        assert path is not None
        made = site.page(path)
        seen += re.findall(r'name="r" value="(\w{12})"', made.text)
        path = next((link for link in Text(made.text).links if "after=" in link), None)
        assert path is None or path.startswith("/?e=sglang&after=")
    assert seen == ids[::-1] and path is None
    assert site.page("/?after=made-up").status_code == 422


# --- a run --------------------------------------------------------------------------------------------------------


def test_a_runs_page_is_the_reports_own_with_its_checks(site: Opened) -> None:
    run = site.run(1)
    site.run(2, speed=1.001)
    made = site.page(f"/r/{run}")
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
        assert "data:application/gzip" not in report_page.fragment(record).rest


def test_files_of_a_run(site: Opened) -> None:
    run = site.run(3)
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
    run = site.run(4)
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
    run = site.run(5)
    made = site.page(f"/r/{run}/embed")
    rules = made.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", made.text, re.S)
    assert style is not None and "frame-ancestors *" in rules and "script-src" not in rules and "'self' data:" in rules
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in rules
    for path in (*PAGES, f"/r/{run}"):
        assert "frame-ancestors 'none'" in site.page(path).headers["content-security-policy"], path


def test_every_page_holds_to_its_policy(site: Opened) -> None:
    run = site.run(6)
    history = site.site.store.row(run).history_key
    for path in (*PAGES, f"/r/{run}", f"/history/{history}", "/models/qwen-qwen3.5-4b", f"/r/{run}/report", "/nothing"):
        made = site.page(path)
        rules = made.headers["content-security-policy"]
        assert rules.startswith("default-src 'none'; style-src 'self'") and "form-action 'self'" in rules, path
        assert not re.search(r"\sstyle=|\son\w+=|javascript:", made.text), path
        assert "<style" not in made.text and made.text.count("<script") == ("script-src" in rules), path
        outside = re.findall(r'(?:src|href|action)="(?:https?:)?//(?!127\.0\.0\.1:8321)', made.text)
        assert outside == [], path


# --- states -------------------------------------------------------------------------------------------------------


def test_a_withdrawn_run_leaves_a_stone_with_reason_and_successor(site: Opened) -> None:
    old, new = site.run(7), site.run(8)
    site.sign_in()
    form = f"/r/{old}/withdraw"
    assert "tick this, too" in text(site.send(form, form, reason="wrong flags", sure=""))
    empty = site.send(form, form, reason="  ", sure="yes")
    assert empty.status_code == 422 and 'aria-invalid="true" aria-describedby="e-reason"' in empty.text
    unknown = site.send(form, form, reason="wrong flags", sure="yes", successor="aaaaaaaaaaaa")
    assert unknown.status_code == 422 and "aaaaaaaaaaaa" in text(unknown)
    made = site.send(form, form, reason="wrong flags", sure="yes", successor=f"http://127.0.0.1:8321/r/{new}")
    assert (made.status_code, made.headers["location"]) == (303, f"/r/{old}")
    stone = site.page(f"/r/{old}")
    assert stone.status_code == 410 and "wrong flags" in text(stone) and f'href="/r/{new}"' in stone.text
    assert "on 2" not in text(stone) and text(stone).count("This run was withdrawn") == 1  # each thing is told once
    assert re.search(r"\d{4}-\d\d-\d\d", text(stone))
    assert old not in site.page("/").text and site.http.get(f"/r/{old}/record.json").status_code == 410
    assert site.http.get(f"/r/{old}/badge.svg").status_code == 410


def test_only_its_publisher_withdraws_a_run(site: Opened) -> None:
    run = site.run(9, who="bert")
    assert site.page(f"/r/{run}/withdraw").status_code == 403
    site.sign_in("ann")
    assert "Withdraw" not in site.text(f"/r/{run}")
    form = f"/r/{run}/withdraw"
    made = site.send(form, form, reason="mine now", sure="yes")
    assert made.status_code == 403 and site.page(f"/r/{run}").status_code == 200


def test_a_queued_run_is_seen_by_owner_and_moderators(open_site: Open) -> None:
    site = open_site(moderation="queue")
    run = site.run(10)
    assert site.page(f"/r/{run}").status_code == 404 and run not in site.page("/").text
    site.sign_in("ann")
    assert "waits for a moderator" in site.text(f"/r/{run}") and "Make it public" not in site.text(f"/r/{run}")
    assert site.page("/moderate").status_code == 403
    site.sign_in("mod", ("publish", "moderate"))
    assert run in site.page("/moderate").text
    made = site.send(f"/moderate/{run}/approve", "/moderate")
    assert made.headers["location"] == f"/r/{run}?said=approved"
    site.http.cookies.clear()
    assert site.page(f"/r/{run}").status_code == 200 and run in site.page("/").text
    site.sign_in("ann")
    new = site.run(11, replaces=run)
    words = f"takes the place of /r/{run} , which stays public until then"
    assert words in site.text(f"/r/{new}")
    site.sign_in("mod", ("publish", "moderate"))
    assert words in site.text("/moderate") and site.page(f"/r/{run}").status_code == 200
    site.send(f"/moderate/{new}/approve", "/moderate")
    site.http.cookies.clear()
    stone = site.page(f"/r/{run}")
    assert stone.status_code == 410 and f'href="/r/{new}"' in stone.text


def test_reports_are_made_hidden_upon_and_settled(site: Opened) -> None:
    run, other = site.run(11), site.run(12)
    form = f"/r/{run}/report"
    assert site.send(form, form, reason="").status_code == 422
    assert site.send(form, form, reason="no such card").headers["location"] == f"/r/{run}?said=reported"
    assert site.send(f"/r/{other}/report", f"/r/{other}/report", reason="cooled with ice").status_code == 303
    site.sign_in("mod", ("moderate",))
    told = site.page("/moderate")
    assert "no such card" in text(told) and "cooled with ice" in text(told) and "a visitor" in text(told)
    number = re.search(r"/moderate/reports/(\d+)/settle", told.text)
    assert number is not None
    assert site.send(f"/moderate/reports/{number[1]}/settle", "/moderate", outcome="").status_code == 422
    assert site.send(f"/moderate/reports/{number[1]}/settle", "/moderate", outcome="it is real").status_code == 303
    assert site.send(f"/moderate/{other}/hide", "/moderate", reason="").status_code == 422
    assert (
        site.send(f"/moderate/{other}/hide", "/moderate", reason="ice").headers["location"] == f"/r/{other}?said=hidden"
    )
    assert "Reports: 0" in site.text("/moderate") and "hidden" in site.text(f"/r/{other}")
    site.http.cookies.clear()
    stone = site.page(f"/r/{other}")
    assert stone.status_code == 410 and "This run was hidden" in text(stone) and "ice" in text(stone)


# --- accounts -----------------------------------------------------------------------------------------------------


def test_signing_in_and_out(site: Opened) -> None:
    assert "Sign in" in site.text("/account")
    wrong = site.send("/account/sign-in", "/account", token="flatout_" + "x" * 43)
    assert wrong.status_code == 422 and "not known here" in text(wrong) and "xxx" not in text(wrong)
    assert "x" * 8 not in wrong.text, "three may stand in a random word of a form"
    token = site.sign_in()
    told = site.page("/account")
    assert "ann" in text(told) and token not in told.text and told.headers["cache-control"] == "no-store"
    cookie = next(iter(site.http.cookies.jar))
    assert cookie.has_nonstandard_attr("httponly") and cookie.get_nonstandard_attr("samesite") == "lax"
    assert site.send("/account/sign-out", "/account").headers["location"] == "/account?said=out"
    assert "Your runs" not in site.text("/account")


def test_a_session_ends_with_its_token(site: Opened) -> None:
    site.sign_in()
    made = site.send("/account/tokens", "/account", **{"label": "second", "scope-publish": "yes", "days": "30"})
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    second = re.search(r"flatout_[\w-]{43}", made.text)
    assert second is not None and second[0] not in site.page("/account").text, "it is shown once"
    first = re.findall(r"/account/tokens/(\d+)/revoke", site.page("/account").text)[-1]
    assert site.send(f"/account/tokens/{first}/revoke", "/account").status_code == 303
    assert "Your runs" not in site.text("/account")
    assert site.send("/account/sign-in", "/account", token=second[0]).status_code == 303


def test_a_token_gives_no_more_than_it_has(site: Opened) -> None:
    site.sign_in()
    made = site.send("/account/tokens", "/account", **{"label": "x", "scope-moderate": "yes"})
    assert made.status_code == 422 and "no more than" in text(made)
    none = site.send("/account/tokens", "/account", label="x")
    assert none.status_code == 422 and "scopes" in text(none)
    assert site.send("/account/tokens/99999/revoke", "/account").status_code == 404
    assert site.send("/account/tokens/x'y/revoke", "/account").status_code == 404


def test_an_account_is_made_where_the_site_lets_everybody(open_site: Open, tmp_path: Path, site: Opened) -> None:
    assert site.page("/account/new").status_code == 403
    other = open_site(tmp_path / "open", registration="open")
    assert other.send("/account/new", "/account/new", name="X!").status_code == 422
    made = other.send("/account/new", "/account/new", name="carol")
    assert made.status_code == 201 and re.search(r"flatout_[\w-]{43}", made.text)
    assert "carol" in other.text("/account")
    taken = other.send("/account/new", "/account/new", name="carol")
    assert taken.status_code == 422 and "taken" in text(taken)


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://127.0.0.1:8321"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}]
)
def test_a_form_of_our_own_is_taken(site: Opened, headers: dict[str, str]) -> None:
    token = site.token("ann")["Authorization"].removeprefix("Bearer ")
    assert site.send("/account/sign-in", "/account", headers=headers, token=token).status_code == 303


# --- comparisons, boards, subjects, histories ---------------------------------------------------------------------


def test_runs_are_compared_and_swapped(site: Opened) -> None:
    a, b = site.run(20), site.run(21, speed=1.2, version="0.6.0")
    made = site.page(f"/compare?r={a}&r={b}")
    assert made.status_code == 200 and "12 faster" in text(made) and f'href="/compare?r={b}&amp;r={a}"' in made.text
    assert "Not equal: version" in text(made)
    swapped = site.page(f"/compare?r={b}&r=http://127.0.0.1:8321/r/{a}%23d/8192/1")
    assert "12 slower" in text(swapped)
    one = site.text(f"/compare?r={a}")
    assert "Pick another below" in one and "Other runs of this model" in one
    wrong = site.page(f"/compare?r={a}&r=aaaaaaaaaaaa")
    assert "there is no run" in text(wrong) and site.page("/compare?r=zzz").status_code == 404
    cells = [records.burst("8K", 8192, 4, 100.0).model_dump()]
    odd = site.run(22, cells=cells)
    assert "Comparison of two runs" in site.text(f"/compare?r={a}&r={odd}")


def test_too_many_sides_are_said(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.site.pages.compare.MOST_SIDES", 2)
    ids = [site.run(number) for number in (23, 24, 25)]
    told = site.text("/compare?" + "&".join(f"r={i}" for i in ids))
    assert "At most 2 runs" in told and "Add a run" not in told


def test_boards_rank_and_say_how(site: Opened) -> None:
    slow = site.run(30, model="a/slow", command="x --a")
    fast = site.run(31, model="a/fast", speed=2.0, command="x --b")
    near = site.run(32, model="a/near", speed=2.001, command="x --c")
    made = site.page("/boards/single:8192")
    told = text(made)
    order = re.findall(r'<a href="/r/(\w{12})"', made.text)
    assert order == [near, fast, slow] and told.count("shared by 2") == 2
    assert "Decode speed of one request alone" in told and "Not ranked" in told and "±0.4 %" in told
    assert "place is one more than the number of rows shown to be faster" in told
    assert "number of rows with a larger number" in site.text("/boards/users:8192:10")
    assert made.text.count('class="whisk"') == 3
    only = site.page("/boards/single:8192?m=a-slow")
    assert re.findall(r'<a href="/r/(\w{12})"', only.text) == [slow]
    assert "No configuration with these filters" in site.text("/boards/single:8192?m=none")
    assert "or more" in site.text("/boards/users:8192:10")
    for wrong in ("total:8192", "single:x", "users:8192:11", "a" * 300):
        assert site.page(f"/boards/{wrong}").status_code == 404
    all_of_them = site.page("/boards")
    assert 'href="/boards/total:8192:16"' in all_of_them.text and "In front" in text(all_of_them)


def test_subjects_and_histories(site: Opened) -> None:
    runs = [
        site.run(40 + i, speed=1.0 if i < 4 else 1.3, version="1.0" if i < 4 else "1.1", command="x --a")
        for i in range(8)
    ]
    for path in ("/models/qwen-qwen3.5-4b", "/hardware/h200-nvl-141-gb", "/engines/sglang"):
        told = site.text(path)
        assert "8 runs" in told and "One request alone" in told and "the only one" in told, path
    assert site.page("/models/none").status_code == 404 and site.page(f"/hardware/{'h' * 500}").status_code == 404
    made = site.page(f"/history/{site.site.store.row(runs[0]).history_key}")
    told = text(made)
    assert "2 versions of the engine" in told and "+30 %" in made.text and "at the step: engine 1.0 → 1.1" in told
    assert made.text.count('class="dot"') == 8 * 12 and 'class="version"' in made.text
    assert site.page(f"/history/{'0' * 64}").status_code == 404


# --- what does not work -------------------------------------------------------------------------------------------


def test_errors_are_pages_with_words(site: Opened) -> None:
    missing = site.page("/r/aaaaaaaaaaaa")
    assert missing.status_code == 404 and "Not found" in text(missing) and "All runs" in text(missing)
    assert "There is no run 'aaaaaaaaaaaa' here." in text(missing)
    assert site.page("/nothing/at/all").status_code == 404
    assert site.http.get("/r/aaaaaaaaaaaa/record.json", headers={"Accept": "application/json"}).json()["status"] == 404
    assert site.page("/static/none.css").status_code == 404 and site.page("/static/../secret").status_code == 404


def test_a_database_that_is_gone_is_said_on_a_page(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    site.sign_in()

    def gone(*_: object) -> Any:
        raise Unavailable("The database does not answer.")

    monkeypatch.setattr(type(site.site.database), "read", gone)
    for path in ("/", "/account", "/boards"):
        made = site.page(path)
        assert (
            made.status_code == 503 and "does not answer" in text(made) and made.headers["cache-control"] == "no-store"
        )


def test_a_page_comes_compressed_and_is_told_when_it_is_known(site: Opened) -> None:
    run = site.run(60)
    plain = site.page(f"/r/{run}", **{"Accept-Encoding": "identity"})
    zipped = site.page(f"/r/{run}", **{"Accept-Encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip" and zipped.text == plain.text
    assert "content-encoding" not in plain.headers and plain.headers["etag"] != zipped.headers["etag"]
    again = site.page(f"/r/{run}", **{"Accept-Encoding": "identity", "If-None-Match": plain.headers["etag"]})
    assert again.status_code == 304 and not again.content and "content-security-policy" in again.headers
    assert site.page(f"/r/{run}", **{"Accept-Encoding": "gzip;q=0"}).headers.get("content-encoding") is None
    assert plain.headers["cache-control"] == "public, no-cache"
    site.sign_in()
    mine = site.page("/", **{"Accept-Encoding": "gzip"})
    assert mine.headers["cache-control"] == "private, no-cache" and "content-encoding" not in mine.headers


def test_static_files_are_kept_for_good_under_their_own_address(site: Opened) -> None:
    sheets = re.findall(r'href="(/static/[^"]+)"', site.page("/").text)
    assert len(sheets) == 3
    for path in sheets:
        assert "immutable" in site.http.get(path).headers["cache-control"]
        assert "immutable" not in site.http.get(path.partition("?")[0]).headers["cache-control"]


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
        page = site.page(f"/r/{made.json()['id']}")
        assert page.status_code == 200, page.text
        assert site.page(f"/r/{made.json()['id']}/embed").status_code == 200
    assert site.page("/").status_code == 200 and Status.DOUBTFUL in site.text("/")
