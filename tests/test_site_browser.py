"""The site in a browser: published, browsed, compared, withdrawn; forms; hostile records; with JavaScript off; read by
axe, wide and narrow, light and dark. What the console says, or the policy stops, fails every test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flatout.record import dump
from flatout.site import drawer
from tests import page_records, records, site_records
from tests.chromium import CHROMIUM, NONE, WCAG
from tests.site_client import Opened, opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE)
WAIT_MS = 15_000
WIDE, PHONE = (1440, 1000), (390, 844)
WATCH = """
window.broken = [];
document.addEventListener('securitypolicyviolation', (e) => {
  window.broken.push(e.violatedDirective + ' ' + e.blockedURI);
});
"""
BAD = '<script>window.pwned=1</script>"\'><img src=x onerror="window.pwned=2"><svg onload=window.pwned=3>'


class Served:
    """A site that answers on loopback, with who may publish there."""

    def __init__(self, folder: Path, **more: Any) -> None:
        import uvicorn

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.made: Opened = opened(folder, base_url=self.url, registration="open", **more)
        self.tokens = {
            name: self.made.token(name, scopes)["Authorization"].removeprefix("Bearer ")
            for name, scopes in (("ann", ("publish",)), ("mod", ("publish", "moderate")))
        }
        config = uvicorn.Config(self.made.app, host="127.0.0.1", port=self.port, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, name="site", daemon=True)
        self.thread.start()
        end = time.monotonic() + 60
        while not self.server.started:
            assert time.monotonic() < end and self.thread.is_alive(), "the site did not start within a minute"
            time.sleep(0.02)

    def publish(self, body: bytes, who: str = "ann") -> str:
        made = self.made.publish(body, {"Authorization": f"Bearer {self.tokens[who]}"})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        drawer.DRAWER.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("site"))
    for number in range(8):
        made.publish(
            site_records.body(
                number, model="Qwen/Qwen3.5-9B", gpu="RTX 4090", engine="vllm", command="vllm serve Qwen/Qwen3.5-9B",
                version="0.14.1" if number < 4 else "0.15.0", speed=1.0 if number < 4 else 1.2,
            )
        )  # fmt: skip
    made.publish(site_records.body(20, model="google/gemma-3-27b-it", gpu="MI355X", engine="sglang", speed=3.0))
    made.publish(dump(page_records.full_seed().model_copy(update={"started": "2026-10-30T00:00:00+00:00"})).encode())
    yield made
    made.close()


class Tab:
    """A page in a context of its own, with everything that it said."""

    def __init__(self, browser: Any, site: Served, **options: Any) -> None:
        wide, high = options.pop("size", WIDE)
        self.site = site
        self.context = browser.new_context(viewport={"width": wide, "height": high}, accept_downloads=True, **options)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.noise(), self.said
            assert not [url for url in self.asked if not url.startswith((self.site.url, "data:"))], self.asked

    def noise(self) -> list[str]:
        """What the console said, but for the status of pages that are asked for on purpose."""
        return [text for text in self.said if "the server responded with a status of 4" not in text]

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.site.url + path)
        self.sound()
        return answer

    def sound(self) -> None:
        """Nothing ran that should not, and nothing was stopped from running."""
        if self.page.evaluate("typeof window.broken") == "object":
            assert self.page.evaluate("window.broken") == []
        assert self.page.evaluate("window.pwned") is None

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name).click()
        self.page.wait_for_load_state()

    def sign_in(self, who: str) -> None:
        self.open("/account")
        self.page.get_by_label("Token", exact=True).fill(self.site.tokens[who])
        self.press("Sign in")
        self.page.get_by_role("heading", name=who).wait_for()

    def axe(self, rules: Sequence[str] = ()) -> list[str]:
        """What is wrong: with the whole of WCAG, or by these rules."""
        from axe_playwright_python.sync_playwright import Axe

        only = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": WCAG}
        found = Axe().run(self.page, options={"runOnly": only})
        assert len(found.response["passes"]) > (0 if rules else 5), "axe looked at the page"
        return [
            f"{v['id']}: {[n['html'][:160] + ' ' + n['failureSummary'][:300] for n in v['nodes'][:3]]}"
            for v in found.response["violations"]
        ]


def test_runs_are_found_and_compared(browser: Any, site: Served) -> None:
    name = "acme/model"
    first = site.publish(site_records.body(100, model=name, gpu="RTX 4090"))
    second = site.publish(site_records.body(110, model=name, gpu="RTX 4090", speed=1.3))
    with Tab(browser, site) as tab:
        tab.open("/")
        tab.page.get_by_label("Search").fill(name)
        tab.press("Show")
        rows = tab.page.locator(".runs tbody tr")
        assert rows.count() == 2 and "q=acme" in tab.page.url
        tab.page.get_by_label("Engine").select_option("sglang")
        tab.press("Show")
        assert rows.count() == 2 and tab.page.locator(".chips li").count() == 3
        tab.page.get_by_role("link", name="search:").click()
        assert rows.count() > 2 and "e=sglang" in tab.page.url
        tab.open(f"/?q={name}")
        for box in rows.get_by_role("checkbox").all():
            box.check()
        tab.press("Compare the ticked")
        assert f"r={second}&r={first}" in tab.page.url
        assert "12 slower" in tab.page.locator(".verdict").inner_text()
        tab.page.get_by_role("link", name="Swap A and B").first.click()
        assert "12 faster" in tab.page.locator(".verdict").inner_text()
        tab.page.locator(".between a").first.click()
        assert tab.page.url.endswith(f"/r/{first}")
        tab.sound()


@pytest.mark.parametrize("javascript", [True, False])
def test_a_run_is_withdrawn_and_leaves_a_stone(browser: Any, site: Served, javascript: bool) -> None:
    first, second = (site.publish(site_records.body(n + javascript, model="acme/other")) for n in (120, 130))
    with Tab(browser, site, java_script_enabled=javascript) as tab:
        tab.page.goto(site.url + "/account")
        tab.page.get_by_label("Token", exact=True).fill(site.tokens["ann"])
        tab.press("Sign in")
        tab.page.goto(site.url + f"/r/{first}")
        tab.page.get_by_role("link", name="Withdraw").click()
        tab.page.get_by_label("Reason").fill("The card ran hot.")
        tab.press("Withdraw")
        assert "tick this, too" in tab.page.locator(".err").inner_text()
        assert tab.page.get_by_label("Reason").input_value() == "The card ran hot."
        tab.page.get_by_label("The run that takes its place").fill(f"{site.url}/r/{second}")
        tab.page.get_by_label("Withdraw it for good").check()
        tab.press("Withdraw")
        assert "The card ran hot." in tab.page.locator("main").inner_text()
        tab.page.locator(".pairlist a").click()
        assert tab.page.url.endswith(f"/r/{second}")


@pytest.mark.parametrize("javascript", [True, False])
def test_a_runs_page_works_as_the_report_does(browser: Any, site: Served, javascript: bool) -> None:
    run = site.made.http.get("/api/v1/runs?m=qwen-qwen3.5-4b").json()["runs"][0]["id"]
    with Tab(browser, site, java_script_enabled=javascript) as tab:
        tab.page.goto(f"{site.url}/r/{run}#d/131072/2")
        panel = tab.page.locator('[id="d/131072/2"]')
        assert panel.is_visible() and "258.1" in panel.inner_text()
        panel.get_by_role("link", name="Close").click()
        panel.wait_for(state="hidden")
        tab.page.locator(".switch label", has_text="TTFT").first.click()
        assert "1,422 ms" in tab.page.locator('.matrix a[href="#d/65536/8"] .v:visible').inner_text()
        tab.page.get_by_text("more checks").click()
        assert tab.page.locator(".checks li:visible").count() > 10
        with tab.page.expect_download() as waiting:
            tab.page.get_by_role("link", name="Record", exact=True).click()
        assert waiting.value.suggested_filename == f"flatout-{run}.json"
        if javascript:
            tab.page.locator("#cells th button").first.click()
            tab.page.get_by_text("Put it into another page").click()
            tab.page.get_by_role("button", name="Copy: badge").click()
            tab.page.get_by_role("button", name="Copy: badge").get_by_text("opied").wait_for()
            tab.sound()


def test_signing_in_making_a_token_and_out(browser: Any, site: Served) -> None:
    with Tab(browser, site, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.open("/account/new")
        tab.page.get_by_label("Name").fill("Carol!")
        tab.press("Make the account")
        assert "2 to 39" in tab.page.locator(".err").inner_text()
        tab.page.get_by_label("Name").fill("carol")
        tab.press("Make the account")
        token = tab.page.locator("#c-token").inner_text()
        tab.page.get_by_role("button", name="Copy: token").click()
        tab.page.get_by_role("button", name="Copy: token").get_by_text("Copied").wait_for()
        assert tab.page.evaluate("navigator.clipboard.readText()") == token and token.startswith("flatout_")
        tab.page.get_by_role("link", name="To your account").click()
        tab.page.get_by_role("heading", name="carol").wait_for()
        tab.press("Sign out")
        assert "You are signed out" in tab.page.locator("main").inner_text()
        tab.page.get_by_label("Token", exact=True).fill(token)
        tab.press("Sign in")
        tab.page.get_by_label("Type your account").fill("carol")
        tab.press("Delete my data")
        assert "Your account is closed" in tab.page.locator("main").inner_text()
        tab.page.get_by_label("Token", exact=True).fill(token)
        tab.press("Sign in")
        assert "not known here" in tab.page.locator(".err").inner_text()


def test_a_form_of_another_site_does_nothing(browser: Any, site: Served, tmp_path: Path) -> None:
    """A page elsewhere posts to us with the visitor's own cookie and even a word that was once good."""
    with Tab(browser, site) as tab:
        tab.sign_in("ann")
        word = tab.page.locator("input[name=csrf]").first.input_value()
        tab.context.route(
            "http://evil.example/",
            lambda route: route.fulfill(
                content_type="text/html",
                body=f"<form method=post action='{site.url}/account/sign-out'><input name=csrf value='{word}'>"
                "<button id=go>x</button></form>",
            ),
        )
        tab.page.goto("http://evil.example/")
        tab.page.click("#go")
        tab.page.wait_for_load_state()
        assert "Not allowed" in tab.page.locator("h1").inner_text()
        tab.asked.clear()
        tab.open("/account")
        assert tab.page.get_by_role("heading", name="ann").is_visible(), "still signed in"


def test_moderators_approve_hide_and_settle(browser: Any, tmp_path: Path) -> None:
    site = Served(tmp_path, moderation="queue")
    try:
        run, other = site.publish(site_records.body(1)), site.publish(site_records.body(2))
        with Tab(browser, site) as tab:
            assert tab.open(f"/r/{run}").status == 404
            tab.sign_in("mod")
            tab.open("/moderate")
            assert tab.axe() == []
            tab.page.locator("tr", has=tab.page.locator(f'a[href="/r/{run}"]')).get_by_role("button").click()
            assert "public now" in tab.page.locator(".notice").inner_text()
            tab.open(f"/r/{other}")
            tab.page.get_by_label("Hide it, for this reason").fill("not a machine that exists")
            tab.press("Hide")
            assert "This run is hidden" in tab.page.locator("main").inner_text()
        with Tab(browser, site) as tab:
            tab.open(f"/r/{run}/report")
            tab.page.get_by_label("What is wrong").fill("measured with ice")
            tab.press("Send")
            assert "Thank you" in tab.page.locator(".notice").inner_text()
            assert tab.open(f"/r/{other}").status == 410
            assert "not a machine that exists" in tab.page.locator("main").inner_text()
        with Tab(browser, site) as tab:
            tab.sign_in("mod")
            tab.open("/moderate")
            tab.page.get_by_label("What was decided").fill("ice is fine")
            tab.press("Settle")
            assert "The report is settled" in tab.page.locator("main").inner_text()
    finally:
        site.close()


def test_nothing_in_a_record_runs(browser: Any, tmp_path: Path) -> None:
    site = Served(tmp_path)
    try:
        ids = []
        for number, record in enumerate((page_records.full_seed(), records.every_kind())):
            made = page_records.planted(record, statuses=number == 1)
            cells = [cell.model_copy(update={"id": f"{cell.id}{at}"}) for at, cell in enumerate(made.cells)]
            content = made.model_copy(update={"started": f"2026-11-0{number + 1}T00:00:00+00:00", "cells": cells})
            answer = site.made.publish(dump(content).encode(), {"Authorization": f"Bearer {site.tokens['ann']}"})
            assert answer.status_code == 201, answer.text
            ids.append(answer.json()["id"])
        plain = site_records.content(3, model=BAD, gpu=BAD, engine=BAD, version=BAD, speculation=BAD, quantization=BAD)
        ids.append(site.publish(site_records.json.dumps(plain).encode()))
        rows = [site.made.site.store.row(i) for i in ids]
        paths = ["/", "/boards", "/boards/single:8192", "/compare?r=" + "&r=".join(ids), f"/?q={BAD}&m={BAD}&c=8k",
                 f"/?from={BAD}"]  # fmt: skip
        for row in rows:
            run = row.public_id
            paths += [f"/r/{run}", f"/r/{run}/embed", f"/history/{row.history_key}", f"/compare?r={run}"]
            paths += [f"/{kind}/{key}" for kind, key in (("models", row.model_key), ("engines", row.engine_key)) if key]
        with Tab(browser, site) as tab:
            for path in paths:
                tab.open(path)
                tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
                for copy in tab.page.locator("button[data-copy]:visible").all():
                    copy.click()
                assert (
                    tab.page.locator("img, iframe, object, embed, [onload], [onerror], a[href^=javascript]").count()
                    == 0
                )
                tab.page.wait_for_timeout(50)
                tab.sound()
            for name, value in (("reason", BAD),):
                tab.open(f"/r/{ids[0]}/report")
                tab.page.locator(f"[name={name}]").fill(value)
                tab.press("Send")
            tab.sign_in("mod")
            for path in ("/moderate", f"/r/{ids[0]}", f"/r/{ids[0]}/withdraw"):
                tab.open(path)
            tab.page.get_by_label("Reason").fill(BAD)
            tab.press("Withdraw")
            tab.page.get_by_label("Withdraw it for good").check()
            tab.press("Withdraw")
            tab.sound()
            assert BAD in tab.page.locator("main").inner_text()
    finally:
        site.close()


def test_the_policy_stops_what_would_get_into_a_page(browser: Any, site: Served) -> None:
    """Should markup ever get through: no script, style, frame or form of it does anything."""
    bad = (
        "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'><style>h1{color:rgb(1,2,3)}</style>"
        "<iframe srcdoc='<script>parent.pwned=4</script>'></iframe><script src='/r/x/record.json'></script>"
        "<form action='http://127.0.0.1:9/'><button id=go>x</button></form><img src='http://127.0.0.1:9/x.png'>"
    )
    tab = Tab(browser, site)

    def spoil(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace('<main id="main">', f'<main id="main">{bad}'))

    tab.context.route(f"{site.url}/about", spoil)
    tab.page.goto(f"{site.url}/about")
    tab.page.evaluate("document.getElementById('go').click()")
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("window.pwned") is None and tab.page.url == f"{site.url}/about"
    assert tab.page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(1, 2, 3)"
    assert len(tab.page.evaluate("window.broken")) >= 5
    tab.context.close()


def paths_of(site: Served) -> list[str]:
    """One page of each kind."""
    run = site.made.http.get("/api/v1/runs?m=qwen-qwen3.5-4b").json()["runs"][0]["id"]
    nine = site.made.http.get("/api/v1/runs?m=qwen-qwen3.5-9b").json()["runs"]
    row = site.made.site.store.row(nine[0]["id"])
    return [
        "/", "/?m=qwen-qwen3.5-9b&p=BF16", "/?q=nothing-like-this", f"/r/{run}", f"/r/{run}/report", f"/r/{run}/embed",
        f"/compare?r={nine[0]['id']}&r={nine[-1]['id']}", "/compare", "/boards", "/boards/single:8192",
        "/boards/users:8192:10", f"/models/{row.model_key}", f"/hardware/{row.hardware_key}",
        f"/engines/{row.engine_key}", f"/history/{row.history_key}", "/about", "/account", "/account/new",
        "/r/aaaaaaaaaaaa",
    ]  # fmt: skip


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)])
def test_axe_finds_nothing_on_any_page(browser: Any, site: Served, scheme: str, size: tuple[int, int]) -> None:
    """In the dark nothing but the colours differs, so nothing else is looked at again."""
    found, rules = {}, ["color-contrast"] if scheme == "dark" else []
    with Tab(browser, site, color_scheme=scheme, size=size, reduced_motion="reduce") as tab:
        for path in [*paths_of(site), "then", "/account", "/moderate"]:
            if path == "then":
                tab.sign_in("mod")
                continue
            tab.open(path)
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            found[path] = tab.axe(rules)
    assert {path: told for path, told in found.items() if told} == {}


def test_no_page_scrolls_sideways(browser: Any, site: Served) -> None:
    with Tab(browser, site) as tab:
        tab.sign_in("mod")
        for path in [*paths_of(site), "/moderate"]:
            tab.open(path)
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            for wide in (320, 390, 768, 1440, 2200):
                tab.page.set_viewport_size({"width": wide, "height": 900})
                assert tab.page.evaluate("document.documentElement.scrollWidth") <= wide, (path, wide)


@pytest.mark.parametrize("trust", ["good", "noted", "doubtful"])
def test_a_runs_values_stand_at_one_height_on_a_phone(browser: Any, site: Served, trust: str) -> None:
    """The pages' lists of notes are of a class `notes`, which as a class of a run's trust moved "1 note" down."""
    apart = """trust => [...document.querySelectorAll('.runs tbody tr')].map(row => {
        const [told, cells] = [row.querySelector('.trust'), row.querySelector('[data-l="Cells"] .soft')];
        told.className = 'trust ' + trust;
        return Math.abs(told.getBoundingClientRect().bottom - cells.getBoundingClientRect().bottom);
    })"""
    parts = (Path(drawer.__file__).parent / "templates" / "parts.html").read_text()
    assert f'<span class="trust {trust}">' in parts
    with Tab(browser, site, size=PHONE) as tab:
        tab.open("/")
        found = tab.page.evaluate(apart, trust)
        assert found and max(found) < 4, found


def test_everything_is_reached_by_keyboard(browser: Any, site: Served) -> None:
    with Tab(browser, site) as tab:
        tab.open("/")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.getAttribute('href')") == "#main"
        seen = []
        for _ in range(60):
            tab.page.keyboard.press("Tab")
            seen.append(tab.page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))
        for name in ("Leaderboards", "q", "m", "h", "e", "Show", "r"):
            assert name in seen, name


def test_an_empty_site_in_a_browser(browser: Any, tmp_path: Path) -> None:
    site = Served(tmp_path, results_dir=tmp_path / "results")
    try:
        with Tab(browser, site) as tab:
            tab.open("/")
            assert "No runs yet" in tab.page.locator("main").inner_text() and tab.axe() == []
            tab.open("/boards")
            assert "Nothing is ranked yet" in tab.page.locator("main").inner_text()
    finally:
        site.close()
