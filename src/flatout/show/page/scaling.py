"""The large charts in the page: scaling, the trade-off, and those beside the prefill table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.show import about, charts
from flatout.show.charts import Chart
from flatout.show.page.cells import Shown
from flatout.show.page.html import Html, tag

WITHOUT: Final = (
    "The large charts need the extra “pictures” (pip install 'flatout[pictures]'); the numbers are all here."
)
_GLYPHS: Final = ("●", "■", "▲", "◆", "✚", "▼", "▶", "◀")


def prefill(shown: Shown) -> Html | None:
    made = charts.prefill(shown.record) if charts.available() else []
    return tag("div", [_figure(chart) for chart in made], class_="charts") if made else None


def section(shown: Shown) -> Html | None:
    """None where no decode cell has a number."""
    if not any(cell.phase == "decode" and about.measured(cell) for cell in shown.cells):
        return None
    heading = tag("h2", "Scaling", id="scaling")
    if not charts.available():
        return tag("section", heading, tag("p", WITHOUT, class_="soft"))
    made = charts.scaling(shown.record)
    if not made:
        return None
    doubtful = any(cell.status == "doubtful" for cell in shown.cells)
    note = "Both axes are logarithmic; bars are 95 % intervals" + ("; hollow points are doubtful." if doubtful else ".")
    return tag(
        "section", heading, _key(charts.series_names(shown.record)),
        tag("div", [_figure(chart) for chart in made], class_="charts three"), tag("p", note, class_="cap"),
    )  # fmt: skip


def _figure(chart: Chart) -> Html:
    # `charts.restyle` made this markup: shapes, numbers and escaped text only
    return tag("figure", tag("figcaption", tag("b", chart.title)), Html(chart.svg), class_="large")


def _key(names: Sequence[str]) -> Html:
    items = [
        tag("li", tag("span", _GLYPHS[i % len(_GLYPHS)], class_=f"k-{i}", aria_hidden="true"), f" {name}")
        for i, name in enumerate(names)
    ]
    return tag("ul", items, class_="key")
