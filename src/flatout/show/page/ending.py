"""The end of the page: statuses and flags, definitions, the watch on the client, and the run in its real order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from flatout.flags import Flag, Status
from flatout.record import Cell, Record
from flatout.show import about, numbers
from flatout.show.page import drawing, values
from flatout.show.page.cells import Shown
from flatout.show.page.detail import name
from flatout.show.page.html import Html, join, tag
from flatout.show.page.words import DEFINITIONS, TOKENS
from flatout.show.safe import clean

_KINDS: Final = {"prefill": "pre", "decode": "dec", "burst": "bur"}


def section(shown: Shown) -> Html:
    return tag(
        "section",
        tag("h2", "Legend", id="legend"),
        tag("div", _statuses(shown), _flags(shown), class_="two"),
        _definitions(shown.record),
        _watch(shown),
        _timeline(shown),
        class_="legend",
    )


def _statuses(shown: Shown) -> Html:
    counts = {status: sum(cell.status == status for cell in shown.cells) for status in Status}
    items = [
        _term(about.status_word(status), about.status_sentence(status), counts[status]) for status in Status
    ]  # fmt: skip
    return tag("div", tag("h3", "Statuses"), tag("dl", items, class_="terms"))


def _flags(shown: Shown) -> Html:
    counts = {flag: sum(any(f.name == flag for f in cell.flags) for cell in shown.cells) for flag in Flag}
    items = [
        _term(flag.replace("_", " "), about.flag_sentence(flag), counts[flag], shown.letters.get(flag, ""))
        for flag in Flag
    ]
    return tag("div", tag("h3", "Flags"), tag("dl", items, class_="terms"))


def _term(word: str, sentence: str, count: int, letter: str = "") -> Html:
    here = tag("span", f" {count:,} here", class_="here") if count else None
    mark = tag("sup", letter) if letter else None
    return tag("div", tag("dt", word, mark, here), tag("dd", sentence), class_=None if count else "absent")


def _definitions(record: Record) -> Html:
    sources: dict[str, int] = {}
    for cell in record.cells:
        if cell.tokens is not None and cell.tokens.source:
            word = clean(cell.tokens.source, 80)
            sources[word] = sources.get(word, 0) + 1
    used = "; ".join(
        f"{word} in {count:,} cell{'s' if count != 1 else ''}" for word, count in list(sources.items())[:8]
    )
    items = [tag("div", tag("dt", word), tag("dd", text)) for word, text in DEFINITIONS]
    here = f" Here: {used}." if used else " This record does not name its source."
    return join(
        tag("h3", "Definitions"),
        tag("dl", items, class_="terms wideterms"),
        tag("p", TOKENS, here, " Rates have K = 1000 and M = 1,000,000, contexts K = 1024. “—” is not known, never "
            "zero.", class_="cap"),
    )  # fmt: skip


def _watch(shown: Shown) -> Html:
    """What flatout saw of itself while it measured."""
    checks = [cell.self_check for cell in shown.cells if cell.self_check is not None]
    client = shown.record.client
    clock = f"Arrivals are stamped by: {clean(client.stamp_clock, 80)}"
    if client.stamp_clock_reason:
        clock += f" ({clean(client.stamp_clock_reason, 200)})"
    clock += (
        f". Calibrated: {clean(client.calibration, 120)}"
        if client.calibration
        else ". This client was not calibrated (flatout calibrate)"
    )
    if not checks:
        told = "This record holds no watch on the client."
    else:
        reads, late = sum(c.reads for c in checks), sum(c.late_reads for c in checks)
        lags = [lag for c in checks if (lag := values.drawable(c.lag_worst_ms)) is not None]
        shares = [share for c in checks if (share := values.drawable(c.cpu_share)) is not None]
        told = (
            f"{values.count(late)} of {values.count(reads)} reads came later than {values.ms(checks[0].late_limit_ms)}"
            f"; the worst lag of the reading loop was {values.ms(max(lags, default=None))}, the client used at most "
            f"{values.percent(max(shares, default=None))} of a core, the clock was set "
            f"{values.count(sum(c.clock_steps for c in checks))} times. Where this could have changed a number, its "
            "cell is flagged client limited."
        )
    return join(tag("h3", "Self-check"), tag("p", f"{clock}. ", told, class_="cap"), _warmups(shown.record))


def _warmups(record: Record) -> Html | None:
    if not record.warmups:
        return None
    items = []
    for warmup in record.warmups[:20]:
        speeds = ", ".join(values.rate(value) for value in warmup.speeds[:12])
        how = "until the speed repeated" if warmup.repeats else "its speed did not repeat"
        note = f" ({clean(warmup.note, 100)})" if warmup.note else ""
        items.append(
            tag("li", f"{clean(warmup.what, 120)}: {speeds or numbers.NONE} {clean(warmup.unit, 40)}{note}, {how}")
        )
    return join(
        tag("p", "Warm-up before the first cell, not measured:", class_="cap"), tag("ul", items, class_="notes")
    )


def _order(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that were begun, as they were."""
    begun = [cell for cell in cells if cell.order is not None or cell.started]
    return sorted(begun, key=lambda cell: (cell.order if cell.order is not None else 10**9, cell.started or ""))


def _seconds(stamp: str | None) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else None
    except (ValueError, OverflowError, OSError):
        return None


def _timeline(shown: Shown) -> Html | None:
    cells = _order(shown.cells)
    if not cells:
        return None
    begin, end = _seconds(shown.record.started), _seconds(shown.record.finished)
    rows, bars = [], []
    ends = [when for cell in cells if (when := _seconds(cell.finished)) is not None]
    last = end if end is not None else max(ends, default=None)
    for number, cell in enumerate(cells, 1):
        start, stop = _seconds(cell.started), _seconds(cell.finished)
        took = stop - start if start is not None and stop is not None else None
        if None not in (begin, last, start, stop) and last > begin:  # type: ignore[operator]
            bars.append(((start - begin) / (last - begin), (stop - begin) / (last - begin), _KINDS[cell.phase]))  # type: ignore[operator]
        again = f", after {len(cell.attempts)} thrown away" if cell.attempts else ""
        after = start - begin if start is not None and begin is not None else None
        rows.append(
            tag(
                "tr", tag("td", f"{number}"),
                tag("th", tag("a", name(cell), href=f"#{shown.anchor(cell)}"), scope="row"),
                tag("td", values.short(numbers.duration(after))), tag("td", values.seconds(took)),
                tag("td", about.status_word(cell.status) + again, class_="l"),
            )
        )  # fmt: skip
    total = values.drawable(last - begin) if begin is not None and last is not None else None
    picture = None
    if bars and total is not None:
        picture = drawing.figure(
            "The run", drawing.strips([bars], f"{len(bars)} cells over the run of {numbers.duration(total)}"), "0 s",
            numbers.duration(total), key="pale: prefill; strong: decode",
        )  # fmt: skip
    head = tag("tr", tag("th", "#", scope="col"), tag("th", "Cell", scope="col"), tag("th", "Began after", scope="col"),
               tag("th", "Took", scope="col"), tag("th", "Status", scope="col", class_="l"))  # fmt: skip
    table = tag("table", tag("caption", "Cells in the order in which they ran", class_="vh"), tag("thead", head),
                tag("tbody", rows), class_="mini")  # fmt: skip
    return join(
        tag("h3", "The run in its real order"),
        tag("div", picture, class_="timeline") if picture else None,
        tag("details", tag("summary", f"{len(cells)} cells in order"),
            tag("div", table, class_="wide", tabindex="0", role="region", aria_label="Cells in order")),
    )  # fmt: skip
