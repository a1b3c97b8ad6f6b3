"""Fixed-count bursts: all requests at once until all are done."""

from __future__ import annotations

from flatout.flags import Status
from flatout.record import Cell
from flatout.show import about
from flatout.show.page import values
from flatout.show.page.cells import Shown
from flatout.show.page.decode import flag_marks
from flatout.show.page.heat import Heat
from flatout.show.page.html import Html, hidden, join, tag

HEADS = (
    "Context", "Requests at once", "tok/s", "± 95 %", "Took", "TTFT", "Time between tokens", "Completed", "Failed",
    "Status",
)  # fmt: skip


def section(shown: Shown) -> Html | None:
    cells = [cell for cell in shown.cells if cell.phase == "burst"]
    if not cells:
        return None
    heat = Heat([c.burst.end_to_end_tok_s.value for c in cells if c.burst and about.measured(c)], more=True)
    head = tag("tr", [tag("th", text, scope="col", class_="l" if text == "Status" else None) for text in HEADS])
    table = tag(
        "table",
        tag("caption", "All requests at once until all are done: output tokens from the first send to the last end.",
            class_="cap"),
        tag("thead", head), tag("tbody", [_row(shown, cell, heat) for cell in cells]), class_="list",
    )  # fmt: skip
    return tag("section", tag("h2", "Bursts", id="bursts"),
               tag("div", table, class_="wide", tabindex="0", role="region", aria_label="Bursts"))  # fmt: skip


def _row(shown: Shown, cell: Cell, heat: Heat) -> Html:
    b = cell.burst if about.measured(cell) else None
    why = cell.reason or about.status_sentence(cell.status)
    link = tag("a", about.context(cell), hidden(f" × {cell.concurrency}: all figures"), href=f"#{shown.anchor(cell)}")
    word = about.status_word(cell.status)
    state = tag("span", word, class_="quiet") if cell.status == Status.VALID else tag("b", word, class_="word")
    step = heat.step(b.end_to_end_tok_s.value) if b else None
    texts = [values.dash(why)] * 7
    if b is not None:
        rate = b.end_to_end_tok_s
        texts = [
            join(values.shown(values.rate(rate.value), rate.reason), flag_marks(shown, cell)),
            values.shown(values.interval(rate), rate.reason),
            values.shown(values.seconds(b.duration_s), None),
            values.shown(values.ms(b.ttft_ms.p50), values.why(b.ttft_ms.reasons, "p50")),
            values.shown(values.ms(b.itl_ms.p50, fine=True), values.why(b.itl_ms.reasons, "p50")),
            values.shown(values.count(b.completed), None),
            values.shown(values.count(b.failed_requests), None),
        ]
    cells = [tag("td", text, class_=(f"n h{step}" if step is not None else "n") if i == 0 else None)
             for i, text in enumerate(texts)]  # fmt: skip
    return tag("tr", tag("th", link, scope="row"), tag("td", values.count(cell.concurrency)), cells,
               tag("td", state, class_="st"))  # fmt: skip
