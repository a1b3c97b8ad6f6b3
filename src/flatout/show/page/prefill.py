"""Prefill: prompt tokens per second and time to first token by context, cold beside warm."""

from __future__ import annotations

from flatout.flags import Status
from flatout.record import Cell
from flatout.show import about, matrix
from flatout.show.page import values
from flatout.show.page.cells import Shown
from flatout.show.page.decode import flag_marks
from flatout.show.page.heat import Heat
from flatout.show.page.html import Html, hidden, join, tag


def section(shown: Shown, charts: Html | None) -> Html | None:
    cells = [cell for cell in shown.cells if cell.phase == "prefill"]
    if not cells:
        return None
    warm = matrix.warm_ttft(shown.record)
    heat = Heat([_rate(cell) for cell in cells], more=True)
    rows = [_row(shown, cell, warm.get(matrix.row_of(cell)), heat) for cell in cells]
    heads = ["Context", "tok/s", "± 95 %", "TTFT cold", "TTFT warm", "Prompts", "Status"]
    head = tag(
        "tr", [tag("th", text, scope="col", class_={"Prompts": "few", "Status": "l"}.get(text)) for text in heads]
    )
    table = tag(
        "table",
        tag("caption", "Prompt tokens per second by context length, a cold prompt alone on the server; K = 1024 for "
            "contexts, 1000 for rates. TTFT warm: one request whose context is in the prefix cache.", class_="cap"),
        tag("thead", head), tag("tbody", rows), class_="list",
    )  # fmt: skip
    return tag(
        "section",
        tag("h2", "Prefill", id="prefill"),
        tag(
            "div",
            tag("div", table, class_="wide", tabindex="0", role="region", aria_label="Prefill by context"),
            charts,
            class_="beside",
        ),
    )


def _rate(cell: Cell) -> float | None:
    return cell.prefill.prefill_tok_s.value if cell.prefill is not None and about.measured(cell) else None


def _row(shown: Shown, cell: Cell, warm_ms: float | None, heat: Heat) -> Html:
    p = cell.prefill if about.measured(cell) else None
    word = about.status_word(cell.status)
    link = tag("a", about.context(cell), hidden(": all figures of this prefill cell"), href=f"#{shown.anchor(cell)}")
    step = heat.step(_rate(cell))
    why = cell.reason or about.status_sentence(cell.status)
    rate = values.dash(why) if p is None else values.shown(values.rate(p.prefill_tok_s.value), p.prefill_tok_s.reason)
    spread = values.dash(why) if p is None else values.shown(values.interval(p.prefill_tok_s), p.prefill_tok_s.reason)
    cold = (
        values.dash(why) if p is None else values.shown(values.ms(p.ttft_ms.p50), values.why(p.ttft_ms.reasons, "p50"))
    )
    warm = values.shown(values.ms(warm_ms), "no decode cell with one request at this context")
    used = sum(sample.used for sample in p.samples) if p is not None and p.samples else None
    state = tag("span", word, class_="quiet") if cell.status == Status.VALID else tag("b", word, class_="word")
    heated = f"n h{step}" if step is not None else "n"
    return tag(
        "tr",
        tag("th", link, scope="row"),
        tag("td", join(rate, flag_marks(shown, cell)), class_=heated),
        tag("td", spread, class_="soft"),
        tag("td", cold),
        tag("td", warm),
        tag(
            "td",
            values.shown(values.count(used), why if p is None else "the record has no single samples"),
            class_="few",
        ),
        tag("td", state, class_="st"),
    )
