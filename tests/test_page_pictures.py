"""The large charts and the pictures for posts."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from flatout.flags import Status
from flatout.record import Record
from flatout.show import charts, picture
from tests import page_records, records

pytest.importorskip("vl_convert", reason="the extra `pictures` is not installed")
pytest.importorskip("altair", reason="the extra `pictures` is not installed")


def of(record: Record) -> list[charts.Chart]:
    return [*charts.prefill(record), *charts.scaling(record)]


def marks(svg: str, kind: str) -> int:
    return len(re.findall(rf'class="[^"]*\b{kind}\b', svg))


def test_a_chart_has_a_mark_for_each_measured_cell() -> None:
    record = records.seed_page()
    total = charts.scaling(record)[0]
    decode = [c for c in record.cells if c.phase == "decode" and c.decode is not None]
    assert "30 points in 6 lines" in total.summary
    # hollow marks have the paper's colour inside: one for each doubtful cell
    assert marks(total.svg, "f-paper") == sum(c.status == Status.DOUBTFUL for c in decode) == 11
    names = [node.text for node in ET.fromstring(total.svg).iter("text")]
    assert sum(name in ("8K", "16K", "32K", "64K", "128K", "251K") for name in names) == 6


def test_places_follow_the_numbers() -> None:
    """On logarithmic axes 1, 2, 4, 8 at once stand at equal distances, and so do 100, 200, 400, 800 tok/s."""
    cells = [records.decode("8K", 8192, n, 100.0 * n, active=1.0) for n in (1, 2, 4, 8)]
    svg = charts.scaling(records.record(cells))[0].svg
    line = re.search(r'<path d="M([^"]*)" [^>]*class="s-0"', svg) or re.search(r'class="s-0"[^>]* d="M([^"]*)"', svg)
    assert line is not None
    points = [tuple(map(float, pair.split(","))) for pair in line.group(1).split("L")]
    steps = [(round(b[0] - a[0], 0), round(a[1] - b[1], 0)) for a, b in pairwise(points)]
    assert len(points) == 4 and len(set(steps)) == 1 and steps[0][0] > 0 and steps[0][1] > 0


def test_charts_have_no_colour_and_nothing_active_of_their_own() -> None:
    for chart in of(records.seed_page()):
        names = {node.tag for node in ET.fromstring(chart.svg).iter()}
        assert names <= {"svg", "g", "path", "line", "rect", "text", "tspan"}
        assert "#" not in chart.svg and "style" not in chart.svg and "href" not in chart.svg
        assert 'fill="' not in chart.svg.replace('fill="none"', "")


def test_restyle_leaves_out_what_could_act() -> None:
    bad = (
        '<svg xmlns="http://www.w3.org/2000/svg" onload="x()"><script>x()</script><a href="javascript:x()">'
        '<text>t</text></a><foreignObject><b/></foreignObject><image href="http://127.0.0.1/"/><style>*{}</style>'
        '<path d="M0,0L10.123,5" fill="#ac0003" stroke="url(#a)" style="fill:red" onclick="x()"/>'
        '<text font-family="x;y" fill="#ab0001">&lt;script&gt;</text></svg>'
    )
    made = charts.restyle(bad, '"><script>')
    assert "x()" not in made and "http" not in made and "url(" not in made and "style=" not in made
    assert '<path d="M0,0L10.1,5" class="f-3"' in made and "&lt;script&gt;" in made
    assert "<script" not in made.replace("&lt;script", "")


@pytest.mark.parametrize("value", page_records.EXTREME)
def test_absurd_numbers_make_a_chart_or_none(value: float) -> None:
    for chart in of(page_records.extreme(value)):
        assert not re.search(r"nan|inf", chart.svg, re.IGNORECASE)


def test_planted_names_are_text_in_charts_and_pictures() -> None:
    record = page_records.planted(records.seed_page(), statuses=False)
    for chart in of(record):
        assert {node.tag for node in ET.fromstring(chart.svg).iter()} <= {"svg", "g", "path", "line", "rect", "text"}
    root = ET.fromstring(picture.svg(record))
    assert {node.tag.rsplit("}", 1)[-1] for node in root.iter()} <= {"svg", "path", "rect", "text"}
    assert picture.png(record).startswith(b"\x89PNG")


def size(png: bytes) -> tuple[int, int]:
    wide, high = struct.unpack(">II", png[16:24])
    return wide, high


def test_the_card_has_the_size_that_sites_show() -> None:
    assert size(picture.png(records.seed_page(), size="card")) == (1200, 630)
    assert size(picture.png(records.every_kind(), size="card")) == (1200, 630)


def test_the_full_picture_grows_with_the_matrix() -> None:
    small = size(picture.png(records.every_kind(), size="full"))
    large = size(picture.png(records.seed_page(), size="full"))
    assert large[0] > small[0] and large[1] > small[1]


def test_a_picture_says_what_the_record_says() -> None:
    drawn = " ".join(node.text or "" for node in ET.fromstring(picture.svg(records.seed_page())).iter())
    for text in (
        "Qwen3.5-4B on H200 NVL 141 GB", "37 of 55 cells measured, 11 doubtful, 3 queued", "4,657", "258.1", "doubtful",
        "queued", "capacity", "a contaminated", "2026-11-30",
    ):  # fmt: skip
        assert text in drawn


def test_what_does_not_fit_is_counted() -> None:
    assert "more cells in the record" in picture.svg(page_records.many(30))
    assert len(picture.svg(page_records.many(200), size="full")) < 3_000_000


def test_no_matrix_no_picture() -> None:
    with pytest.raises(picture.PictureError, match="no decode cells"):
        picture.png(records.record([records.prefill("8K", 8192, 1.0, 1.0)]))
