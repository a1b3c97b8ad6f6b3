"""The HTML compare view: its words and signs, its charts, and the page in a browser, with hostile records too."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.compare import Compared, Comparison, Value, Verdict, check, compare, fail_if
from flatout.compare.ratio import Ratio
from flatout.flags import Status
from flatout.record import Record
from flatout.show import comparison as terminal
from flatout.show.page import compared, compared_charts, compared_head
from flatout.show.page import compared_words as words
from tests import page_records, records
from tests.test_page_browser import PHONE, WIDE, Opened

ANY_RECORD = ("synthetic", "demo", "every", "planted", "planted-all", "extreme", "many-sides", "repeats")


def changed(record: Record, factor: float, *, version: str = "0.5.7") -> Record:
    """The record of another run: another version and flag, each rate by the factor, TTFT and ITL the other way."""
    made = record.model_copy(deep=True)
    made.id = f"{record.id}-{version}"
    made.engine.version = records.fact(version)
    made.engine.launch_command = records.fact(f"{record.engine.launch_command.value} --new-flag {version}")
    for cell in made.cells:
        for rate in [part.total_tok_s for part in (cell.decode,) if part] + [
            part.prefill_tok_s for part in (cell.prefill,) if part
        ]:
            for name in ("value", "low", "high"):
                if (old := getattr(rate, name)) is not None:
                    setattr(rate, name, old * factor)
        if cell.decode is not None:
            for spread in (cell.decode.ttft_ms, cell.decode.itl_ms):
                if spread.p50 is not None:
                    spread.p50 = spread.p50 / factor
    return made


def with_intervals(record: Record) -> Record:
    made = record.model_copy(deep=True)
    for cell in made.cells:
        for d in (cell.decode.ttft_ms, cell.decode.itl_ms, cell.decode.per_request_tok_s) if cell.decode else ():
            if d.p50 is not None:
                d.p50_low, d.p50_high = d.p50 * 0.995, d.p50 * 1.005
    return made


def pair_of_runs() -> Comparison:
    """The seed page against itself: 8 % slower at one request, else 5 % faster, one cell failed, one not planned."""
    a = page_records.full_seed()
    b = changed(a, 1.05)
    for cell in b.cells:
        if cell.decode is not None and cell.concurrency == 1:
            rate = cell.decode.total_tok_s
            for name in ("value", "low", "high"):
                setattr(rate, name, getattr(rate, name) / 1.05 * 0.92)
        if cell.id == "d/8192/16":
            cell.status, cell.error = Status.FAILED, "CUDA out of memory"
        if cell.id == "d/32768/2":  # as fast as before
            assert cell.decode is not None
            cell.decode.total_tok_s = records.rate(657.4)
    b.cells = [cell for cell in b.cells if cell.id != "d/65536/4"]
    return compare([with_intervals(a), with_intervals(b)], names=["results/main", "results/pr"])


def _make(name: str) -> Comparison:
    seed, every = records.seed_page(), records.every_kind()
    if name == "demo":
        return compare([every, changed(every, 0.9)])
    if name == "every":
        return compare([every, seed])
    if name == "planted":
        full = page_records.full_seed()
        planted = page_records.planted(full, statuses=False)
        return compare([planted, changed(planted, 1.1)], names=[page_records.PLANTED, page_records.PLANTED])
    if name == "planted-all":
        return compare([every, page_records.planted(every, statuses=True)], names=[page_records.PLANTED, "b"])
    if name == "extreme":
        values = page_records.EXTREME
        return compare(
            [page_records.extreme(v) for v in (1e308, 5e-324, *values)], sides=[0, *range(1, len(values) + 2)]
        )
    if name == "many-sides":
        return compare([seed, changed(seed, 1.1), changed(seed, 0.9, version="0.5.8"), every], sides=[0, 1, 2, 3])
    if name == "repeats":
        runs = [changed(seed, factor, version=v) for v in ("1", "2") for factor in (1.0, 1.003, 0.998)]
        return compare(runs, sides=[0, 0, 0, 1, 1, 1], names=[f"r/{i}" for i in range(6)])
    return pair_of_runs()


@pytest.fixture(scope="module")
def made() -> Callable[[str], tuple[Comparison, str]]:
    known: dict[str, tuple[Comparison, str]] = {}

    def get(name: str) -> tuple[Comparison, str]:
        if name not in known:
            comparison = _make(name)
            outcomes = check(comparison, fail_if("total_tok_s < -3%; ttft_ms > +10% [8k x 1]; itl_ms < 1 [7k]"))
            known[name] = comparison, compared.render(comparison, outcomes)
        return known[name]

    return get


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page.split("</head>")[1]))


@pytest.mark.parametrize("name", ANY_RECORD)
def test_the_file_holds_no_script_and_its_policy_lets_none_in(made: Any, name: str) -> None:
    page = made(name)[1]
    tags = [re.sub(r'="[^"]*"', "", tag) for tag in re.findall(r"<[A-Za-z][^>]*>", page)]
    names = {name for tag in tags for name in tag.strip("<>/").split()}
    assert "tbody" in names and not {n for n in names if n.startswith("on")}, "markup is as it was made"
    assert not names & {"script", "iframe", "object", "embed", "img", "style" if page.count("<style>") > 1 else ""}
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert style and policy and "script-src" not in policy[1] and "default-src 'none'" in policy[1]
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy[1]
    assert not re.findall(r' (?:src|href)="(?!#|data:)[^"]*"', page), "nothing is loaded"
    assert " style=" not in page, "the policy would not let it stand"


@pytest.mark.parametrize("name", ANY_RECORD)
def test_every_place_is_one_and_every_link_has_one(made: Any, name: str) -> None:
    page = made(name)[1]
    ids = Counter(html.unescape(i) for i in re.findall(r'\sid="([^"]*)"', page))
    assert max(ids.values()) == 1, ids.most_common(3)
    links = {html.unescape(unquote(link)) for link in re.findall(r'href="#([^"]*)"', page)}
    assert links and links <= set(ids)
    groups = set(re.findall(r'type="radio" name="([^"]*)"', page))
    assert len(groups) == page.count("<fieldset"), "each pair has a switch of its own"
    assert len(re.findall(r"<input [^>]* checked>", page)) == len(groups)


def test_the_page_says_what_the_terminal_says(made: Any) -> None:
    comparison, page = made("synthetic")
    told, shown = text_of(page), terminal.text(comparison, 120)
    pair = comparison.pairs[0]
    assert terminal.sentence(pair).replace(" ", " ") in told.replace(" ", " ")
    for difference in pair.differences:
        assert difference.a in told and difference.b in told
    counts = Counter(c.speed.verdict for c in pair.cells if c.measured and not c.doubts)
    assert counts[Verdict.FASTER] > 5 and counts[Verdict.SLOWER] > 2 and counts[Verdict.SAME] == 0
    for cell in pair.cells:
        if cell.measured and cell.speed.ratio is not None:
            for text in (words.ratio(cell.speed.ratio.value), words.interval(cell.speed)):
                assert text in told and text in shown
    for name in ("results/main", "results/pr", "CUDA out of memory", "not planned", comparison.notes[0]):
        assert name in told


def test_each_square_of_the_matrix_has_its_own_cell(made: Any) -> None:
    comparison, page = made("synthetic")
    matrix = page.split('class="matrix ratios"')[1].split("</table>")[0]
    for cell in comparison.pairs[0].cells:
        if cell.key.phase != "decode":
            continue
        square = re.search(rf'<a href="#B/d/{cell.key.tokens}/{cell.key.concurrency}"(.*?)</a>', matrix, re.DOTALL)
        assert square, cell.key
        total = re.search(r'class="v g-total ([^"]*)"(.*?)(?=class="v g-|$)', square[1], re.DOTALL)
        speed = cell.speed
        if not cell.measured:
            assert words.statuses(cell.a_status) in square[1] and total is None
            continue
        assert total and speed
        kinds, inner = total[1].split(), text_of(f"</head><a {total[2]}")
        assert ("doubt" in kinds) == bool(cell.doubts and speed.ratio) and ("doubtful" in inner) == bool(cell.doubts)
        if speed.verdict == Verdict.UNKNOWN:
            assert "unknown" in kinds and "B: failed" in inner
        else:
            word, sign, colour = {
                Verdict.FASTER: ("faster", "▲", "up"), Verdict.SLOWER: ("slower", "▼", "down"),
                Verdict.SAME: ("no difference", "=", "same"),
            }[speed.verdict]  # fmt: skip
            assert word in inner and sign in inner and kinds[0].startswith(colour)
            assert words.ratio(speed.ratio.value) in inner and words.interval(speed) in inner
            assert ("could show" in inner) == (speed.verdict == Verdict.SAME)
    only = re.search(r'<a href="#B/d/65536/4"(.*?)</a>', matrix, re.DOTALL)
    assert only and "not in the plan" in only[1]


def test_less_time_is_faster(made: Any) -> None:
    comparison, page = made("synthetic")
    cell = next(c for c in comparison.pairs[0].cells if c.key.match == ("decode", 8192, 4))
    ttft = cell.figures["ttft_ms"]
    assert ttft.ratio.value < 1 and ttft.verdict == Verdict.FASTER and words.shade(ttft).startswith("up")
    body = page.split('<tbody id="B/d/8192/4">')[1].split("</tbody>")[0]
    row = next(row for row in body.split("<tr") if "TTFT p50" in row)
    assert "▲" in row and "faster" in row


def test_the_full_table_has_every_figure(made: Any) -> None:
    comparison, page = made("synthetic")
    table = page.split('class="all figures"')[1]
    for cell in comparison.pairs[0].cells:
        body = table.split(f'<tbody id="B/{cell.key.phase[0]}/{cell.key.tokens}/{cell.key.concurrency}"')[1]
        body = text_of("</head>" + "<" + body.split("</tbody>")[0])
        assert words.statuses(cell.a_status) in body
        for name, figure in cell.figures.items() if cell.measured else ():
            assert words.LABELS[name] in body and words.value(name, figure.a) in body
    furnished = text_of("</head>" + table.split('<tbody id="B/d/8192/4">')[1].split("</tbody>")[0])
    for label in ("TTFT p99", "ITL p99", "TPOT p50", "longest gap", "acceptance length", "energy, J"):
        assert label in furnished
    link = re.search(
        r'download="flatout-comparison.json" class="file" href="data:application/json;base64,([^"]+)"', page
    )
    link = link or re.search(r'href="data:application/json;base64,([^"]+)"', page)
    assert link and json.loads(base64.b64decode(link[1])) == json.loads(json.dumps(terminal.data(comparison)))


def test_a_gate_and_repeats_and_many_sides_are_told(made: Any) -> None:
    told = text_of(made("synthetic")[1])
    assert "✗ failedtotal_tok_s < -3%" in told.replace("failed ", "failed") and "✓ passed" in told
    assert "nothing was checked" in told and "8K × 1: total_tok_s 454.2 → 417.9" in told
    repeats = text_of(made("repeats")[1])
    assert "Comparison of 2 configurations in 6 runs" in repeats and "3 runs, spread 0.5 %" in repeats
    many = text_of(made("many-sides")[1])
    for part in ("B against A", "C against A", "D against A", "Comparison of 4 runs", "D: the cell is not in the plan"):
        assert part in many
    comparison, page = made("many-sides")
    last = text_of("</head><" + page.split('id="D"')[1].split('id="legend"')[0])
    assert "B: " not in last and "of C / A" in many and "A contaminated" in last and comparison.pairs[2].only_a


def test_equal_runs_have_a_quiet_banner() -> None:
    seed = records.seed_page()
    page = text_of(compared.render(compare([seed, seed.model_copy(deep=True)])))
    assert "Not equal" not in page and "no difference seen" in page
    other = seed.model_copy(deep=True)
    other.hardware.facts["gpu"] = records.fact("H100", source="host")
    other.model.id = records.fact("Qwen/Qwen3-8B")
    assert (
        compared_head.title(compare([seed, other])) == "Qwen3-8B on H100 141 GB against Qwen3.5-4B on H200 NVL 141 GB"
    )
    other.model.id = seed.model.id
    assert compared_head.title(compare([seed, other])) == "Qwen3.5-4B on H100 141 GB against H200 NVL 141 GB"
    assert "≠ Not equal: hardware" in text_of(compared.render(compare([seed, other])))


def test_sides_without_a_common_cell_and_without_cells() -> None:
    a = records.record([records.decode("8K", 8192, 1, 100.0)])
    b = records.record([records.prefill("8K", 8192, 900.0, 9.0), records.burst("8K", 8192, 4, 80.0)])
    page = text_of(compared.render(compare([a, b])))
    assert "no measured cell in common" in page and "the cell is not in the plan" in page and "Bursts" in page
    assert "Sustained decode" not in text_of(compared.render(compare([b, b])))
    assert "0 figures of 0 cells" in text_of(compared.render(compare([records.record([]), records.record([])])))


def test_very_many_cells_stay_a_page() -> None:
    many = page_records.many(3000)
    page = compared.render(compare([many, many]))
    assert "1,000 more cells are too many for a page" in page and "too many for a matrix" in page
    assert len(page) < 12_000_000


def test_a_whole_matrix_stays_small(made: Any) -> None:
    assert len(made("synthetic")[1]) < 1_000_000


# numbers

positive = st.floats(min_value=1e-300, max_value=1e300)
anything = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


def _compared(ratio: float, verdict: Verdict, low: float | None = None, high: float | None = None) -> Compared:
    value = Value(1.0, 0.9, 1.1, (1.0,))
    return Compared("total_tok_s", value, value, Ratio(ratio, low, high), verdict)


@given(positive, st.sampled_from([Verdict.FASTER, Verdict.SLOWER]))
def test_the_shade_grows_with_the_difference_alike_both_ways(ratio: float, verdict: Verdict) -> None:
    made, back = (words.shade(_compared(r, verdict)) for r in (ratio, 1 / ratio))
    assert made == back and re.fullmatch(r"(up|down)[1-4]", made)
    assert made.startswith("up") == (verdict == Verdict.FASTER)
    size = abs(math.log(ratio))
    more = words.shade(_compared(math.exp(min(700, size * 2)), verdict))
    assert int(more[-1]) >= int(made[-1])


@given(st.floats(min_value=0, max_value=math.inf), st.floats(min_value=0, max_value=math.inf))
def test_an_interval_is_told_with_its_ends(low: float, high: float) -> None:
    low, high = sorted((low, high))
    told = words.interval(_compared(1.0, Verdict.SAME, low, high))
    assert len(told) <= 24
    assert ("above" in told) == (high >= 1e6)
    if high < 1e6:
        assert words.ratio(high) in told and (low < 0.0005 or words.ratio(low) in told)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-5, 10**30)), anything, anything, anything, anything, anything),
        max_size=8,
    ),
    st.sampled_from(list(Verdict)),
)
def test_charts_draw_whatever_there_is_within_their_frame(rows: list[Any], verdict: Verdict) -> None:
    spots = []
    for x, a, b, ratio, low, high in rows:
        sides = [None if v is None else Value(v, low, high, (v,)) for v in (a, b)]
        found = Compared("ttft_ms", *sides, None if ratio is None else Ratio(ratio, low, high), verdict)
        key = terminal.Key("decode", "x", x, 1)
        cell = terminal.CellPair(key, ("valid",), ("doubtful",), (), (), {"ttft_ms": found})
        spots += compared_charts.spots([cell], "ttft_ms", lambda c: c.key.tokens)
    chart = compared_charts.draw(sorted(spots, key=lambda s: s.x), "ttft_ms", "<b>", "B", "requests at once")
    if len({s.x for s in spots}) < 2:
        assert chart is None
    if chart is not None:
        assert "nan" not in chart and "inf" not in chart.replace("interval", "") and "<b>&lt;b&gt;</b>" in chart
        for x, y in re.findall(r'[MLc](?:x="|y="|)(-?[\d.]+)[ ,](-?[\d.]+)', chart):
            assert -1 <= float(x) <= compared_charts.WIDE and -1 <= float(y) <= compared_charts.HIGH


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_axes_have_few_round_ticks(most: float) -> None:
    ticks = compared_charts._round_ticks(most)
    assert ticks[0] == 0 and 2 <= len(ticks) <= 6 and ticks[-1] <= most * (1 + 1e-9)


# in a browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, made: Any) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("compared")

    def get(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(made(name)[1], encoding="utf-8")
        return path

    return get


def test_sections_are_there_and_nothing_is_loaded(browser: Any, files: Any) -> None:
    with Opened(browser, files("synthetic")) as opened:
        assert opened.page.locator("h2").all_inner_texts() == [
            "Gate (--fail-if)", "Sustained decode", "Prefill", "Statuses that changed", "All figures", "Legend",
        ]  # fmt: skip
        assert opened.page.locator(".facing .chart:visible").count() == 6
        assert opened.page.get_by_role("heading", level=1).count() == 1
        opened.page.wait_for_timeout(200)
        assert opened.quiet(), (opened.said, opened.asked)


@pytest.mark.parametrize("javascript", [True, False])
def test_a_square_opens_the_figures_of_its_cell(browser: Any, files: Any, javascript: bool) -> None:
    with Opened(browser, files("synthetic"), java_script_enabled=javascript) as opened:
        body = opened.page.locator('[id="B/d/32768/8"]')
        assert not body.is_visible()
        opened.page.locator('.ratios a[href="#B/d/32768/8"]').click()
        body.wait_for(state="visible")
        assert opened.page.url.endswith("#B/d/32768/8") and "32K × 8" in body.inner_text()


@pytest.mark.parametrize("javascript", [True, False])
def test_the_figure_is_switched_everywhere(browser: Any, files: Any, javascript: bool) -> None:
    with Opened(browser, files("synthetic"), java_script_enabled=javascript) as opened:
        square = opened.page.locator('.ratios a[href="#B/d/16384/4"]')
        seen = {}
        for label in ("Total tok/s", "Per request", "TTFT", "ITL"):
            opened.page.locator(".switch label", has_text=label).first.click()
            seen[label] = square.locator(".v:visible").inner_text().split("\n")[0]
            for table in opened.page.locator(".own").all()[:2]:
                assert table.locator(".v:visible").count() >= 1
            assert opened.page.locator(".overlaid h3").first.inner_text() == f"Scaling: {label}"
            assert opened.page.locator(".facing .chart:visible").count() == 6
        assert seen == {"Total tok/s": "1.050", "Per request": "1.000", "TTFT": "0.952", "ITL": "0.952"}


def test_each_pair_is_switched_by_itself(browser: Any, files: Any) -> None:
    with Opened(browser, files("many-sides")) as opened:
        second = opened.page.locator('section[id="C"]')
        second.locator(".switch label", has_text="TTFT").click()
        assert second.locator(".v.g-ttft:visible").count() > 10 and second.locator(".v.g-total:visible").count() == 0
        first = opened.page.locator('section[id="B"]')
        assert first.locator(".v.g-ttft:visible").count() == 0 and first.locator(".v.g-total:visible").count() > 10


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("synthetic", WIDE, "light"), ("synthetic", WIDE, "dark"), ("demo", PHONE, "light"), ("demo", PHONE, "dark"),
     ("many-sides", WIDE, "light")],
)  # fmt: skip
def test_axe_finds_nothing(browser: Any, files: Any, name: str, size: Any, scheme: str) -> None:
    with Opened(browser, files(name), color_scheme=scheme, size=size, reduced_motion="reduce") as opened:
        if name != "many-sides":
            opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert opened.axe() == []
        opened.page.locator(".switch label", has_text="ITL").first.click()
        assert opened.axe(".facing .ratios") == []


@pytest.mark.parametrize("name", ANY_RECORD)
def test_the_page_itself_never_scrolls_sideways(browser: Any, files: Any, name: str) -> None:
    with Opened(browser, files(name)) as opened:
        opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        for wide in (320, 390, 768, 1400, 2200):
            opened.page.set_viewport_size({"width": wide, "height": 900})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= wide


@pytest.mark.parametrize("name", ["planted", "planted-all", "extreme"])
def test_nothing_in_a_record_runs(browser: Any, files: Any, name: str) -> None:
    with Opened(browser, files(name)) as opened:
        document = opened.page
        for link in document.locator("a.cell, .list a, .toc a").all()[:5]:
            document.goto(document.url.split("#")[0] + (link.get_attribute("href") or ""))
        document.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        document.wait_for_timeout(300)
        assert document.evaluate("window.pwned") is None and document.evaluate("document.scripts.length") == 0
        assert document.locator("img, iframe, object, embed, [onload], [onerror], a[href^='javascript']").count() == 0
        assert not opened.said and not [url for url in opened.asked if not url.startswith(("file:", "data:"))]
        if name != "extreme":
            assert "window.pwned=1" in document.locator("body").inner_text(), "it was planted, and stands as text"


def test_the_policy_stops_what_is_planted_in_the_file_itself(browser: Any, files: Any, tmp_path: Path) -> None:
    bad = (
        "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'><style>h1{color:rgb(1,2,3)}</style>"
        "<svg><script>window.pwned=3</script></svg><img src='http://127.0.0.1:9/x.png'>"
    )
    path = tmp_path / "bad.html"
    text = files("synthetic").read_text(encoding="utf-8")
    path.write_text(text.replace('<main id="main">', f'<main id="main">{bad}'), encoding="utf-8")
    with Opened(browser, path) as opened:
        opened.page.wait_for_timeout(300)
        assert opened.page.evaluate("window.pwned") is None
        assert opened.page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(1, 2, 3)"
        assert any("Content Security Policy" in said for said in opened.said)


def test_the_file_comes_out_of_the_page(browser: Any, files: Any, made: Any, tmp_path: Path) -> None:
    with Opened(browser, files("synthetic"), java_script_enabled=False) as opened:
        with opened.page.expect_download() as waiting:
            opened.page.get_by_role("link", name="JSON", exact=True).click()
        target = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(target)
    assert target.name == "flatout-comparison.json"
    assert (
        json.loads(target.read_text())["pairs"][0]["cells"] == terminal.data(made("synthetic")[0])["pairs"][0]["cells"]
    )


def test_paper_has_the_numbers_and_no_controls(browser: Any, files: Any) -> None:
    with Opened(browser, files("synthetic")) as opened:
        opened.page.emulate_media(media="print")
        assert not opened.page.locator(".switch").is_visible() and not opened.page.locator(".toc").is_visible()
        assert opened.page.locator(".ratios").is_visible()
        opened.page.set_viewport_size({"width": 700, "height": 1000})
        for table in opened.page.locator(".matrix").all():
            assert table.evaluate("table => table.getBoundingClientRect().right <= innerWidth + 4"), (
                "paper cannot scroll"
            )
        assert opened.page.pdf(format="A4", print_background=True).startswith(b"%PDF")


def test_a_reader_hears_headers_and_verdicts(browser: Any, files: Any) -> None:
    with Opened(browser, files("synthetic")) as opened:
        matrix = opened.page.get_by_role("table", name="B / A: rows are contexts, columns are simultaneous requests")
        assert matrix.get_by_role("columnheader").count() == 9 and matrix.get_by_role("rowheader").count() == 6
        link = matrix.get_by_role("link", name=re.compile(r"1\.050.*95 % interval.*faster.*16K × 4, all figures"))
        assert link.count() == 1
