"""The top of the page: what was measured on what, when, how it went, and the few numbers that people ask for first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flatout.flags import Status
from flatout.record import Cell, Record
from flatout.show import about, capacity
from flatout.show.page import values
from flatout.show.page.cells import Shown
from flatout.show.page.html import Html, join, tag
from flatout.show.safe import HARD_SPACE, clean

SOUND = (Status.VALID, Status.REQUESTS_QUEUED)


def head(shown: Shown) -> Html:
    record = shown.record
    ending = about.ending(record)
    sub = [about.engine_name(record), about.precision(record), about.speculation(record)]
    return tag(
        "header",
        tag("p", "Speed test", class_="kicker"),
        tag("h1", _model(record), " ", tag("span", "on", class_="on"), " ", about.hardware_name(record)),
        tag("p", " · ".join(part for part in sub if part), class_="sub"),
        tag("p", what(record), class_="soft"),
        tag(
            "p", tag("time", about.moment(record.started) or "no date", datetime=clean(record.started, 40)), " · ",
            tag("a", tag("b", verdict(record)), href="#all"),
            class_="verdict",
        ),
        tag("p", "This is not a whole run: ", ending, ".", class_="warn") if ending else None,
        [tag("p", "Note: ", clean(text, 1000), class_="warn") for text in record.warnings[:20]],
        tag("p", clean(record.note, 1000), class_="soft") if record.note else None,
        _left_out(shown),
        _firsts(shown),
        class_="head", id="top",
    )  # fmt: skip


def verdict(record: Record) -> str:
    return about.verdict(record).replace(HARD_SPACE, " ")


def _model(record: Record) -> str:
    """The model without its owner's name, which stands in the run."""
    name = about.model_name(record)
    return name.rsplit("/", 1)[-1] or name


def title(record: Record) -> str:
    return f"{_model(record)} on {about.hardware_name(record)}"


def what(record: Record) -> str:
    """`6 contexts (8K–251K) × 8 concurrency levels (1–128) · prefill at 8K, 16K`."""
    decode = _labels(cell for cell in record.cells if cell.phase == "decode")
    prefill = _labels(cell for cell in record.cells if cell.phase == "prefill")
    burst = _labels(cell for cell in record.cells if cell.phase == "burst")
    parts = []
    if decode:
        levels = sorted({cell.concurrency for cell in record.cells if cell.phase == "decode"})
        plural = "s" if len(decode) != 1 else ""
        parts.append(
            f"{len(decode)} context{plural} ({_ends(decode)}) × {len(levels)} "
            f"concurrency level{'s' if len(levels) != 1 else ''} ({_ends([values.count(n) for n in levels])})"
        )
    if prefill:
        parts.append("prefill at " + ", ".join(prefill[:24]) + (" …" if len(prefill) > 24 else ""))
    if burst:
        parts.append("bursts at " + ", ".join(burst[:24]))
    return " · ".join(parts) or "no cell was planned"


def _labels(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(about.context(cell) for cell in cells))


def _ends(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}–{labels[-1]}"


def _left_out(shown: Shown) -> Html | None:
    if not shown.left_out:
        return None
    return tag(
        "p", f"The record has {len(shown.cells) + shown.left_out:,} cells; the page shows the first "
        f"{len(shown.cells):,}. The record itself has all.", class_="warn",
    )  # fmt: skip


def _firsts(shown: Shown) -> Html | None:
    """One request alone, the most that the system gave, the fastest prefill, and how many users it takes."""
    made = [
        _best(shown, "decode", "One request alone", "tok/s", lambda c: c.concurrency == 1, _total),
        _best(shown, "decode", "All requests together, at most", "tok/s", lambda c: c.concurrency > 1, _total),
        _best(shown, "burst", "Burst, at most", "tok/s", lambda _: True, _end_to_end),
        _best(shown, "prefill", "Prefill, at most", "tok/s", lambda _: True, _prefill),
        _users(shown.record),
    ]
    found = [one for one in made if one is not None]
    return tag("dl", found, class_="firsts") if found else None


def _best(
    shown: Shown,
    phase: str,
    label: str,
    unit: str,
    which: Callable[[Cell], bool],
    figure: Callable[[Cell], float | None],
) -> Html | None:
    """The best sound cell of a phase; doubtful numbers are no headline."""
    scored = [
        (number, cell)
        for cell in shown.cells
        if cell.phase == phase and cell.status in SOUND and which(cell)
        and (number := values.drawable(figure(cell))) is not None
    ]  # fmt: skip
    if not scored:
        return None
    number, cell = max(scored, key=lambda pair: pair[0])
    at = f"at {about.context(cell)}" + (f" × {cell.concurrency}" if phase != "prefill" else "")
    return tag(
        "div", tag("dt", label),
        tag("dd", values.rate(number), tag("span", f" {unit}", class_="unit"), class_="n"),
        tag("dd", tag("a", at, href=f"#{shown.anchor(cell)}"), class_="soft"),
    )  # fmt: skip


def _users(record: Record) -> Html | None:
    answers = [a for a in capacity.capacities(record) if a.text not in ("—", "?")]
    if not answers:
        return None
    short = answers[0]
    below = "; ".join(f"{a.context}: {a.text}" for a in answers[1:4])
    return tag(
        "div", tag("dt", f"At once at ≥ {record.per_user_tok_s:g} tok/s each"),
        tag("dd", short.text, tag("span", f" at {short.context}", class_="unit"), class_="n"),
        tag("dd", below, class_="soft") if below else None,
    )  # fmt: skip


def _total(cell: Cell) -> float | None:
    return cell.decode.total_tok_s.value if cell.decode else None


def _end_to_end(cell: Cell) -> float | None:
    return cell.burst.end_to_end_tok_s.value if cell.burst else None


def _prefill(cell: Cell) -> float | None:
    return cell.prefill.prefill_tok_s.value if cell.prefill else None


def navigation(anchors: Sequence[tuple[str, str]]) -> Html:
    return tag("nav", join([tag("a", word, href=f"#{anchor}") for anchor, word in anchors]), aria_label="Sections",
               class_="toc")  # fmt: skip
