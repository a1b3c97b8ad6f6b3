"""Both pages in one browser: opened, clicked, read by keyboard, with JavaScript off, on paper, with hostile records."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.compare import check, fail_if
from flatout.record import parse
from flatout.show import comparison as terminal
from flatout.show import page
from flatout.show.exports import csv
from flatout.show.page import Limit, compared
from tests import page_records, records
from tests.chromium import CHROMIUM, NONE, WCAG

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE)
WAIT_MS = 10_000
WIDE, PHONE = (1400, 1000), (390, 844)
PAGES = ("seed", "full", "every", "planted", "extreme")
COMPARISONS = ("pair", "demo", "planted", "extreme", "many-sides", "repeats")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A page's file by name; `compare-…` is a comparison's."""
    folder = tmp_path_factory.mktemp("pages")

    def render(name: str) -> str:
        if name.startswith("compare-"):
            made = page_records.comparison(name.removeprefix("compare-"))
            return compared.render(made, check(made, fail_if("total_tok_s < -3%")))
        limits = {"d/8192/1": Limit(0.4, "bandwidth")} if name == "full" else None
        return page.render(page_records.named(name), limits=limits)

    def get(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(render(name), encoding="utf-8")
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

    def axe(self, part: str | None = None, *, dark: bool = False) -> list[str]:
        """What is wrong by the whole of WCAG; in the dark, where nothing but colours differs, by the colours alone."""
        from axe_playwright_python.sync_playwright import Axe

        only = {"type": "rule", "values": ["color-contrast"]} if dark else {"type": "tag", "values": WCAG}
        found = Axe().run(self.page, context=part, options={"runOnly": only})
        assert len(found.response["passes"]) > (0 if dark else 5), "axe looked at the page"
        return [
            f"{v['id']}: {[n['html'][:160] + ' ' + n['failureSummary'][:300] for n in v['nodes'][:3]]}"
            for v in found.response["violations"]
        ]


def test_sections_are_there_and_nothing_is_loaded(browser: Any, files: Any) -> None:
    for name, sections, charts in (
        ("full", ["Hardware", "Engine", "Run", "Prefill", "Sustained decode", "Scaling", "All measurements",
                  "Legend"], 5),
        ("compare-pair", ["Gate (--fail-if)", "Sustained decode", "Prefill", "Statuses that changed", "All figures",
                          "Legend"], 8),
    ):  # fmt: skip
        with Opened(browser, files(name)) as opened:
            found = opened.page.locator("h2").all_inner_texts()
            assert [n for n in found if n != "Launch command"] == sections
            assert opened.page.locator(".chart:visible").count() == charts
            assert opened.page.get_by_role("heading", level=1).count() == 1
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
    with Opened(browser, files("compare-pair"), java_script_enabled=javascript) as opened:
        body = opened.page.locator('[id="d/32768/8"]')
        assert not body.is_visible()
        opened.page.locator('.ratios a[href="#d/32768/8"]').click()
        body.wait_for(state="visible")
        assert opened.page.url.endswith("#d/32768/8") and "32K × 8" in body.inner_text()


def shown_by_switch(opened: Opened, cell: Any, labels: tuple[str, ...]) -> dict[str, str]:
    shown = {}
    for label in labels:
        opened.page.locator(".switch label", has_text=label).first.click()
        shown[label] = cell.locator(".v:visible").inner_text().split("\n")[0]
    return shown


@pytest.mark.parametrize("javascript", [True, False])
def test_the_figure_is_switched(browser: Any, files: Any, javascript: bool) -> None:
    with Opened(browser, files("full"), java_script_enabled=javascript) as opened:
        cell = opened.page.locator('.matrix a[href="#d/65536/8"]')
        labels = ("Total tok/s", "Per request", "TTFT", "ITL", "Energy per token", "% of limit")
        shown = shown_by_switch(opened, cell, labels)
        joules = 15_369.0 / 48_790
        assert shown == dict(
            zip(labels, ("1,627a", "211.8a", "1,422 msa", "4.70 msa", f"{joules:.3g} Ja", "—a"), strict=True)
        )
    with Opened(browser, files("compare-pair"), java_script_enabled=javascript) as opened:
        square = opened.page.locator('.ratios a[href="#d/16384/4"]')
        shown = shown_by_switch(opened, square, labels[:4])
        assert list(shown.values()) == ["1.050", "1.000", "0.952", "0.952"]
        assert opened.page.locator(".overlaid h3").first.inner_text() == "Scaling: ITL"
        assert opened.page.locator(".switched .chart:visible").count() == 6
    with Opened(browser, files("compare-many-sides"), java_script_enabled=javascript) as opened:
        opened.page.locator(".switch label", has_text="TTFT").click()
        tables = opened.page.locator(".switched .speeds:visible")
        assert tables.count() == 1 and "ms" in tables.inner_text()


def test_more_columns_are_shown_where_they_are_asked_for(browser: Any, files: Any) -> None:
    """The seed's columns fit at 1,400 px; none of the others is read or shown before."""
    with Opened(browser, files("full"), java_script_enabled=False) as opened:
        heads = opened.page.locator("#cells thead th")
        assert heads.count() > 20 and opened.page.locator("#cells thead th:visible").count() == 13
        table = opened.page.locator(".everything .wide")
        assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), "nothing is cut off"
        opened.page.get_by_label("more columns").check()
        assert opened.page.locator("#cells thead th:visible").count() == heads.count()


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
    with Opened(browser, files("full")) as opened:
        head = opened.page.get_by_role("button", name="Output tokens", exact=True)
        column = opened.page.locator("#cells thead th").all_inner_texts().index("Output tokens")

        def shown() -> list[str]:
            return [*opened.page.locator(f"#cells tbody tr > :nth-child({column + 1})").all_inner_texts()]

        planned = shown()
        for descending in (True, False):
            head.click()
            numbers = [int(t.replace(",", "")) for t in shown() if re.fullmatch(r"[\d,]+", t)]
            assert numbers == sorted(numbers, reverse=descending) and len(numbers) == 30
            assert all("—" in text for text in shown()[30:]), "what is missing comes last"
            assert opened.page.locator("#cells th[aria-sort]").inner_text() == "Output tokens"
        head.click()
        assert shown() == planned and opened.page.locator("#cells th[aria-sort]").count() == 0


def test_commands_are_copied(browser: Any, files: Any) -> None:
    with Opened(browser, files("seed"), permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.page.locator("button[data-copy=launch-command]").click()
        opened.page.get_by_role("button", name="Copy: Launch command").get_by_text("Copied").wait_for()
        assert opened.page.evaluate("navigator.clipboard.readText()") == records.seed_page().engine.launch_command.value


@pytest.mark.parametrize("javascript", [True, False])
def test_files_come_out_of_the_page(browser: Any, files: Any, javascript: bool, tmp_path: Path) -> None:
    def got(opened: Opened, word: str) -> Path:
        with opened.page.expect_download() as waiting:
            opened.page.get_by_role("link", name=word, exact=True).click()
        target = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(target)
        return target

    record = page_records.full_seed()
    with Opened(browser, files("full"), java_script_enabled=javascript) as opened:
        table = got(opened, "CSV")
        assert table.name == "qwen-sglang-20261130T024100Z-Qwen3.5-4B-sglang.csv"
        assert table.read_bytes().decode() == csv.write(record)
        assert len(json.loads(got(opened, "JSON").read_text())) == len(record.cells)
        assert parse(gzip.decompress(got(opened, "the whole record (JSON, gzip)").read_bytes())) == record
        if javascript:
            assert opened.quiet(), (opened.said, opened.asked)
    with Opened(browser, files("compare-pair"), java_script_enabled=javascript) as opened:
        told = json.loads(got(opened, "JSON").read_text())
        assert told["pairs"] == json.loads(json.dumps(terminal.data(page_records.comparison("pair"))["pairs"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "fragment", "size"), [
    ("full", "", WIDE), ("full", "#d/131072/2", WIDE), ("every", "", PHONE), ("every", "#p/1024", PHONE),
    ("compare-pair", "", WIDE), ("compare-demo", "", PHONE), ("compare-many-sides", "", WIDE),
])  # fmt: skip
def test_axe_finds_nothing(browser: Any, files: Any, scheme: str, name: str, fragment: str, size: Any) -> None:
    with Opened(browser, files(name), fragment, color_scheme=scheme, size=size, reduced_motion="reduce") as opened:
        opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert opened.axe(dark=scheme == "dark") == []
        if not fragment:
            opened.page.locator(".switch label", has_text="ITL").click()
            assert opened.axe(".switched .wide", dark=scheme == "dark") == []


NUMBERS = ".matrix b, .speeds b, td.n, dd.n, .half, .u:not(.why), .word, .pill:not(.long)"
BROKEN = """names => [...document.querySelectorAll(names)].filter(one => one.checkVisibility() && one.textContent.trim()
  && one.getClientRects().length > 1 && getComputedStyle(one).display === 'inline').map(one => one.textContent)"""
OVERFLOWING = """() => [...document.querySelectorAll('.matrix .v, .matrix .word')].filter(one => one.checkVisibility()
  && one.getBoundingClientRect().right > one.closest('td').getBoundingClientRect().right + 1)
  .map(one => one.textContent)"""
WRAPPED = """() => [...document.querySelectorAll('.matrix .v b, .matrix .v .u:not(.why), .matrix .word')]
  .filter(one => one.checkVisibility()
    && one.getBoundingClientRect().height > 2.2 * parseFloat(getComputedStyle(one).fontSize))
  .map(one => one.textContent)"""


@pytest.mark.parametrize("name", [*PAGES, *(f"compare-{name}" for name in COMPARISONS)])
def test_nothing_is_cut_or_broken_at_any_width(browser: Any, files: Any, name: str) -> None:
    """The page never scrolls sideways, no number stands in two lines, and no mark leaves its cell."""
    with Opened(browser, files(name)) as opened:
        opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        for wide in (320, 390, 768, 1400, 1920, 2200):
            opened.page.set_viewport_size({"width": wide, "height": 900})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= wide
            if name not in ("planted", "compare-planted", "extreme", "compare-extreme"):
                assert opened.page.evaluate(BROKEN, NUMBERS) == []
                assert opened.page.evaluate(WRAPPED) == []
                assert opened.page.evaluate(OVERFLOWING) == []


def test_a_phones_first_screen_has_the_first_numbers(browser: Any, files: Any) -> None:
    """And what is told of a table stands beside it, not in it, so that it is never cut."""
    for name in ("full", "compare-pair"):
        with Opened(browser, files(name), size=PHONE) as opened:
            for number in opened.page.locator(".firsts .n").all()[:2]:
                box = number.bounding_box()
                assert box is not None and box["y"] + box["height"] < PHONE[1]
            cut = (
                "names => [...document.querySelectorAll(names)].filter(one => one.scrollWidth > one.clientWidth).length"
            )
            assert opened.page.evaluate(cut, ".cap, .wide caption:not(.vh)") == 0
            assert opened.page.locator(".hint:visible").count() >= 1, "a table that scrolls says so"


@pytest.mark.parametrize("name", ["planted", "planted-all", "extreme"])
def test_nothing_in_a_record_runs(browser: Any, files: Any, name: str) -> None:
    for file, scripts in ((name, 1), (f"compare-{name}", 0)):
        with Opened(browser, files(file)) as opened:
            document = opened.page
            for link in document.locator("a.cell, .list a, .toc a").all()[:5]:
                document.goto(document.url.split("#")[0] + (link.get_attribute("href") or ""))
                document.keyboard.press("Escape")
            for button in document.locator("#cells th button >> nth=0, button[data-copy]").all():
                if button.is_visible():
                    button.click()
            document.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            document.wait_for_timeout(300)
            assert document.evaluate("window.pwned") is None
            assert document.evaluate("document.scripts.length") == scripts
            bad = "img, iframe, object, embed, [onload], [onerror], a[href^='javascript']"
            assert document.locator(bad).count() == 0
            assert not [text for text in opened.said if not text.startswith("Not copied")], opened.said
            assert not [url for url in opened.asked if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("name", ["seed", "compare-pair"])
def test_the_policy_stops_what_is_planted_in_the_file_itself(
    browser: Any, files: Any, tmp_path: Path, name: str
) -> None:
    """Even markup that got into the file would not run: the policy names one script by its hash, or none."""
    made = files(name).read_text(encoding="utf-8")
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


@pytest.mark.parametrize("name", ["full", "compare-pair"])
def test_paper_has_the_numbers_and_no_controls(browser: Any, files: Any, name: str) -> None:
    with Opened(browser, files(name)) as opened:
        opened.page.emulate_media(media="print")
        for control in (".switch", ".toc", ".copy", ".panel"):
            assert opened.page.locator(f"{control}:visible").count() == 0
        opened.page.set_viewport_size({"width": 700, "height": 1000})
        for table in opened.page.locator(".matrix").all():
            assert table.is_visible()
            inside = "table => table.getBoundingClientRect().right <= innerWidth + 4"
            assert table.evaluate(inside) or name == "full", "paper cannot scroll"
        assert opened.page.pdf(format="A4", print_background=True).startswith(b"%PDF")


def test_a_reader_hears_headers_statuses_and_verdicts(browser: Any, files: Any) -> None:
    for name, table, link in (
        ("seed", "Rows are contexts, columns are simultaneous requests",
         r"258\.1.*±0\.4 %.*807 ms TTFT.*doubtful.*128K × 2; flags: contaminated"),
        ("compare-pair", "B / A: rows are contexts, columns are simultaneous requests",
         r"1\.050.*95 % interval.*faster.*16K × 4, all figures"),
    ):  # fmt: skip
        with Opened(browser, files(name)) as opened:
            matrix = opened.page.get_by_role("table", name=table)
            assert matrix.get_by_role("columnheader").count() == 9 and matrix.get_by_role("rowheader").count() == 6
            assert matrix.get_by_role("link", name=re.compile(link)).count() == 1
            # a dash is for the eye alone: why figures are missing stands once, in a list
            assert "—" not in opened.page.locator("#cells, .figures").first.aria_snapshot()
