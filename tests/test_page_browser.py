"""The page in a browser: opened, clicked, read by keyboard, with JavaScript off, on paper, and with hostile records."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.record import Record, parse
from flatout.show import page
from flatout.show.exports import csv as csv_export
from flatout.show.page import rows
from flatout.show.page.cells import Limit
from tests import page_records, records
from tests.chromium import CHROMIUM, NONE, WCAG

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE)
WAIT_MS = 10_000
WIDE, PHONE = (1400, 1000), (390, 844)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Callable[[], Record]] = {
        "seed": records.seed_page,
        "full": page_records.full_seed,
        "every": records.every_kind,
        "planted": lambda: page_records.planted(page_records.full_seed(), statuses=False),
        "planted-all": lambda: page_records.planted(records.every_kind(), statuses=True),
        "extreme": lambda: page_records.extreme(1e308),
    }

    def get(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            limits = {"d/8192/1": Limit(0.4, "bandwidth")} if name == "full" else None
            path.write_text(page.render(made[name](), limits=limits), encoding="utf-8")
        return path

    return get


class Opened:
    """A page in a context of its own, with everything that it said and asked for."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **options: Any) -> None:
        wide, high = options.pop("size", WIDE)
        self.context = browser.new_context(viewport={"width": wide, "height": high}, accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri() + fragment)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def quiet(self) -> bool:
        """Nothing in the console, and nothing asked for but the file itself and data in it."""
        others = [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))]
        return not self.said and not others and sum(url.startswith("file:") for url in self.asked) == 1

    def axe(self, part: str | None = None) -> list[str]:
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, context=part, options={"runOnly": {"type": "tag", "values": WCAG}})
        assert len(found.response["passes"]) > 5, "axe looked at the page"
        return [
            f"{v['id']}: {[n['html'][:160] + ' ' + n['failureSummary'][:300] for n in v['nodes'][:3]]}"
            for v in found.response["violations"]
        ]


def test_sections_are_there_and_nothing_is_loaded(browser: Any, files: Any) -> None:
    with Opened(browser, files("full")) as opened:
        names = opened.page.locator("h2").all_inner_texts()
        assert [n for n in names if n != "Launch command"] == [
            "Hardware", "Engine", "Run", "Prefill", "Sustained decode", "Scaling", "All measurements", "Legend",
        ]  # fmt: skip
        assert opened.page.locator(".chart").count() == 5
        opened.page.wait_for_timeout(200)
        assert opened.quiet(), (opened.said, opened.asked)


@pytest.mark.parametrize("javascript", [True, False])
def test_a_cell_opens_by_its_link_and_by_its_address(browser: Any, files: Any, javascript: bool) -> None:
    with Opened(browser, files("full"), java_script_enabled=javascript) as opened:
        panel = opened.page.locator('[id="d/131072/2"]')
        assert not panel.is_visible()
        opened.page.locator('.matrix a[href="#d/131072/2"]').click()
        assert panel.is_visible() and opened.page.url.endswith("#d/131072/2")
        text = panel.inner_text()
        for part in ("128K × 2", "258.1", "807 ms", "contaminated", "Time between tokens", "Running and waiting"):
            assert part in text
        panel.get_by_role("link", name="Close").click()
        panel.wait_for(state="hidden")
    with Opened(browser, files("full"), "#d/131072/2", java_script_enabled=javascript) as opened:
        assert opened.page.locator('[id="d/131072/2"]').is_visible()
        assert opened.page.locator(".panel:visible").count() == 1


@pytest.mark.parametrize("javascript", [True, False])
def test_the_figure_is_switched(browser: Any, files: Any, javascript: bool) -> None:
    with Opened(browser, files("full"), java_script_enabled=javascript) as opened:
        cell = opened.page.locator('.matrix a[href="#d/65536/8"]')
        shown = {}
        for label in ("Total tok/s", "Per request", "TTFT", "ITL", "Energy per token", "% of limit"):
            opened.page.locator(".switch label", has_text=label).first.click()
            shown[label] = cell.locator(".v:visible").inner_text().split("\n")[0]
        joules = 15_369.0 / 48_790
        assert shown == {
            "Total tok/s": "1,627a", "Per request": "211.8a", "TTFT": "1,422 msa", "ITL": "4.70 msa",
            "Energy per token": f"{joules:.3g} Ja", "% of limit": "—",
        }  # fmt: skip


def test_keys_open_walk_and_close(browser: Any, files: Any) -> None:
    with Opened(browser, files("full")) as opened:
        focused = "document.activeElement.getAttribute('href') || document.activeElement.id"
        opened.page.locator('.matrix a[href="#d/8192/1"]').focus()
        opened.page.keyboard.press("ArrowRight")
        opened.page.keyboard.press("ArrowDown")
        assert opened.page.evaluate(focused) == "#d/16384/2"
        opened.page.keyboard.press("Enter")
        opened.page.locator('[id="d/16384/2"]').wait_for(state="visible")
        opened.page.wait_for_function("document.activeElement.id === 'd/16384/2'")
        opened.page.keyboard.press("ArrowRight")
        opened.page.wait_for_function("document.activeElement.id === 'd/16384/4'")
        opened.page.keyboard.press("Escape")
        opened.page.locator(".panel:visible").wait_for(state="hidden")
        assert opened.page.evaluate(focused) == "#d/16384/2"
        assert opened.quiet(), opened.said


def test_every_cell_of_the_matrix_is_reached_by_tab(browser: Any, files: Any) -> None:
    with Opened(browser, files("seed")) as opened:
        opened.page.locator("#fig-total").focus()
        reached = []
        for _ in range(60):
            opened.page.keyboard.press("Tab")
            reached.append(opened.page.evaluate("document.activeElement.getAttribute('href')"))
        wanted = [f"#{c.id}" for c in records.seed_page().cells if c.phase == "decode"]
        assert [link for link in reached if link in wanted][: len(wanted)] == wanted


def test_the_table_is_sorted_and_put_back(browser: Any, files: Any) -> None:
    record = page_records.full_seed()
    with Opened(browser, files("full")) as opened:
        head = opened.page.get_by_role("button", name="Output tokens", exact=True)
        column = rows.columns(list(record.cells)).index(next(c for c in rows.IN_PAGE if c.name == "output_tokens"))

        def shown() -> list[str]:
            return opened.page.locator(f"#cells tbody tr > :nth-child({column + 1})").all_inner_texts()

        planned = shown()
        head.click()
        numbers = [int(t.replace(",", "")) for t in shown() if re.fullmatch(r"[\d,]+", t)]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) == 30
        assert all("—" in text for text in shown()[30:]), "what is missing comes last"
        assert opened.page.locator("#cells th[aria-sort=descending]").inner_text() == "Output tokens"
        head.click()
        numbers = [int(t.replace(",", "")) for t in shown() if re.fullmatch(r"[\d,]+", t)]
        assert numbers == sorted(numbers) and "—" in shown()[-1]
        head.click()
        assert shown() == planned and opened.page.locator("#cells th[aria-sort]").count() == 0


def test_commands_are_copied(browser: Any, files: Any) -> None:
    with Opened(browser, files("seed"), permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.page.locator("button[data-copy=launch-command]").click()
        opened.page.get_by_role("button", name="Copy: Launch command").get_by_text("Copied").wait_for()
        assert opened.page.evaluate("navigator.clipboard.readText()") == records.seed_page().engine.launch_command.value


@pytest.mark.parametrize("javascript", [True, False])
def test_files_come_out_of_the_page(browser: Any, files: Any, javascript: bool, tmp_path: Path) -> None:
    record = page_records.full_seed()
    with Opened(browser, files("full"), java_script_enabled=javascript) as opened:
        got = {}
        for word in ("CSV", "JSON", "the whole record (JSON, gzip)"):
            with opened.page.expect_download() as waiting:
                opened.page.get_by_role("link", name=word, exact=True).click()
            target = tmp_path / waiting.value.suggested_filename
            waiting.value.save_as(target)
            got[word] = target
        assert got["CSV"].name == "qwen-sglang-20261130T024100Z-Qwen3.5-4B-sglang.csv"
        text = got["CSV"].read_bytes().decode()
        assert text == csv_export.write(record)
        read = list(csv.DictReader(io.StringIO(text)))
        measured = {c.id: c.decode.total_tok_s.value for c in record.cells if c.decode is not None}
        assert {line["cell"]: float(line["total_tok_s"]) for line in read if line["cell"] in measured} == measured
        assert len(json.loads(got["JSON"].read_text())["cells"]) == len(record.cells)
        assert parse(gzip.decompress(got["the whole record (JSON, gzip)"].read_bytes())) == record
        if javascript:
            assert opened.quiet(), (opened.said, opened.asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "fragment", "size"), [("full", "", WIDE), ("full", "#d/131072/2", WIDE),
                         ("every", "", PHONE), ("every", "#p/1024", PHONE)])  # fmt: skip
def test_axe_finds_nothing(browser: Any, files: Any, scheme: str, name: str, fragment: str, size: Any) -> None:
    with Opened(browser, files(name), fragment, color_scheme=scheme, size=size, reduced_motion="reduce") as opened:
        opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert opened.axe() == []


def test_axe_finds_nothing_in_any_figure(browser: Any, files: Any) -> None:
    with Opened(browser, files("full"), reduced_motion="reduce") as opened:
        for key in ("each", "ttft", "itl", "energy", "limit"):
            opened.page.locator(f"label[for=fig-{key}]").click()
            assert opened.axe(".decode") == []


@pytest.mark.parametrize("name", ["seed", "full", "every", "planted", "extreme"])
def test_the_page_itself_never_scrolls_sideways(browser: Any, files: Any, name: str) -> None:
    with Opened(browser, files(name)) as opened:
        for wide in (320, 390, 768, 1400, 2200):
            opened.page.set_viewport_size({"width": wide, "height": 900})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= wide


@pytest.mark.parametrize("name", ["planted", "planted-all", "extreme"])
def test_nothing_in_a_record_runs(browser: Any, files: Any, name: str) -> None:
    with Opened(browser, files(name)) as opened:
        document = opened.page
        for link in document.locator(".matrix a.cell, .list a").all()[:4]:
            document.goto(document.url.split("#")[0] + (link.get_attribute("href") or ""))
            document.keyboard.press("Escape")
        document.locator("#cells th button").first.click()
        for copy in document.locator("button[data-copy]").all():
            copy.click()
        document.wait_for_timeout(300)
        assert document.evaluate("window.pwned") is None
        assert document.evaluate("document.scripts.length") == 1
        assert document.locator("img, iframe, object, embed, [onload], [onerror], a[href^='javascript']").count() == 0
        assert not [text for text in opened.said if not text.startswith("Not copied")], opened.said
        assert not [url for url in opened.asked if not url.startswith(("file:", "data:"))]


def test_the_policy_stops_what_is_planted_in_the_file_itself(browser: Any, files: Any, tmp_path: Path) -> None:
    """Even markup that got into the file would not run: the policy names one script by its hash."""
    made = files("seed").read_text(encoding="utf-8")
    bad = (
        "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'><style>h1{color:rgb(1,2,3)}</style>"
        "<svg><script>window.pwned=3</script></svg><iframe srcdoc='<script>parent.pwned=4</script>'></iframe>"
        "<form action='http://127.0.0.1:9/'><button id=go>x</button></form><img src='http://127.0.0.1:9/x.png'>"
    )
    path = tmp_path / "bad.html"
    path.write_text(made.replace('<main id="main">', f'<main id="main">{bad}'), encoding="utf-8")
    with Opened(browser, path) as opened:
        opened.page.evaluate("document.getElementById('go').click()")
        opened.page.wait_for_timeout(300)
        assert opened.page.evaluate("window.pwned") is None
        assert opened.page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(1, 2, 3)"
        assert opened.page.url.startswith("file:")
        assert any("Content Security Policy" in text for text in opened.said)


def test_paper_has_the_numbers_and_no_controls(browser: Any, files: Any) -> None:
    with Opened(browser, files("full")) as opened:
        opened.page.emulate_media(media="print")
        assert not opened.page.locator(".switch").is_visible() and not opened.page.locator(".copy").first.is_visible()
        assert opened.page.locator(".matrix").is_visible()
        assert opened.page.locator(".panel:visible").count() == 0
        assert opened.page.pdf(format="A4", print_background=True).startswith(b"%PDF")


def test_a_reader_hears_headers_and_statuses(browser: Any, files: Any) -> None:
    with Opened(browser, files("seed")) as opened:
        matrix = opened.page.get_by_role("table", name="Rows are contexts, columns are simultaneous requests")
        assert matrix.get_by_role("columnheader").count() == 9 and matrix.get_by_role("rowheader").count() == 6
        link = matrix.get_by_role("link", name=re.compile(r"258\.1.*doubtful.*128K × 2; flags: contaminated"))
        assert link.count() == 1
        assert opened.page.get_by_role("heading", level=1).count() == 1
