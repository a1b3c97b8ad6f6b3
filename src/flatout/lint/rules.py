"""Rules that hold for any table of measurements: each takes the sheet and yields what does not fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from flatout.flags import Flag, Status
from flatout.lint import finding as f
from flatout.lint.finding import Finding, finding
from flatout.lint.sheet import Row, Sheet

MORE_RUNNING: Final = 1.05
"""Window mean of running over asked; above it the cell is contaminated."""
FEW: Final = 5
_TOKENS_OFF = 0.01
_REQUEST_OFF = 0.05
_STREAMS_OFF = {"table": 0.10, "record": 0.15}
_DIP = 0.05
_DIP_BY_CONTEXT = 0.10
_LABEL_OFF = 0.01
_WARM_SHARE = 0.3
_LEAST_CONTEXT = 4096  # below it a TTFT is mostly what every request costs, cached or not
_EPS = 1e-9
_EXPLAINS: Final = frozenset(
    {Flag.UNDERFILLED, Flag.LOW_SAMPLES, Flag.DRIFTING, Flag.THROTTLED, Flag.PREEMPTED, Flag.CLIENT_LIMITED}
    | {Flag.EARLY_STOP, Flag.CACHE_COLD, Flag.CONTAMINATED}
)
"""Flags by which a record itself says why a total is not what its streams give."""


def _spread(row: Row, *names: str) -> float:
    """Relative error that rounding makes in a product or quotient of these fields."""
    total = 0.0
    for name in names:
        value = getattr(row, name)
        if value:
            total += row.half(name) / max(abs(value), 1e-300)
    return total


def _percent(share: float) -> str:
    points = abs(share) * 100
    return f"{points:,.0f} %" if points >= 9.95 else f"{points:.1f} %"


def _n(value: float) -> str:
    """A number as a page would show it."""
    if not math.isfinite(value):
        return str(value)
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _measured(sheet: Sheet, phase: str = "decode") -> Iterator[Row]:
    return (row for row in sheet.rows if row.phase == phase and row.measured)


def tokens(sheet: Sheet) -> Iterator[Finding]:
    for row in _measured(sheet):
        if not row.rate_tok_s or not row.window_s or row.output_tokens is None:
            continue
        expected = row.rate_tok_s * row.window_s
        if not 0 < expected < math.inf:
            continue
        off = (row.output_tokens - expected) / expected
        if abs(off) > _TOKENS_OFF + _spread(row, "rate_tok_s", "window_s", "output_tokens"):
            more = "more" if off > 0 else "fewer"
            text = f"{_n(row.rate_tok_s)} tok/s for {_n(row.window_s)} s make {_n(expected)} tokens; "
            yield finding(f.TOKENS, row.name, text + f"{_n(row.output_tokens)} are counted, {_percent(off)} {more}")


def request(sheet: Sheet) -> Iterator[Finding]:
    """Against TPOT, whose reciprocal it is by definition, where there is one; else against the time between tokens,
    whose median may be a little off."""
    for row in _measured(sheet):
        each = row.per_request_tok_s
        exact = row.tpot_ms is not None
        gap = row.tpot_ms if exact else row.itl_ms
        if not each or not gap:
            continue
        name = "tpot_ms" if exact else "itl_ms"
        off = each * gap / 1e3 - 1
        if abs(off) > (_TOKENS_OFF if exact else _REQUEST_OFF) + _spread(row, "per_request_tok_s", name):
            word = "TPOT" if exact else "between tokens"
            text = f"{_n(gap)} ms {word} are {_n(1e3 / gap)} tok/s; the figure per request is {_n(each)}"
            yield finding(f.REQUEST, row.name, f"{text}, {_percent(off)} {'more' if off > 0 else 'less'}")


def active(sheet: Sheet) -> Iterator[Finding]:
    for row in _measured(sheet):
        if row.active is None or row.concurrency < 1 or row.active <= MORE_RUNNING * row.concurrency + _EPS:
            continue
        more = row.active / row.concurrency - 1
        said = Flag.CONTAMINATED in row.flags
        text = f"{_n(row.active)} requests ran in the mean, {row.concurrency} were asked for ({_percent(more)} more)"
        text += "; the record says so itself" if said else f"; the status says '{row.status[:40]}'"
        yield finding(f.ACTIVE, row.name, text, "note" if said else None)


def completions(sheet: Sheet) -> Iterator[Finding]:
    for row in _measured(sheet):
        size = row.answer_tokens or row.max_output
        if row.completed is None or row.output_tokens is None or not size or row.output_tokens < 0:
            continue
        held = row.completed * size
        before = row.concurrency * (row.max_output or size)
        whose = "" if sheet.source == "record" else " if each has its full length"
        text = f"{_n(row.completed)} completed × {_n(size)} tokens = {_n(held)}{whose}; {_n(row.output_tokens)} counted"
        if held > (row.output_tokens + before) * (1 + _TOKENS_OFF):
            yield finding(f.COMPLETIONS, row.name, text)
        elif sheet.source == "table" and held > row.output_tokens * (1 + _TOKENS_OFF):
            yield finding(f.COMPLETIONS_BEFORE, row.name, text)
        most = (row.completed + row.concurrency + (row.failed or 0)) * (row.max_output or size)
        if row.output_tokens > most * (1 + _TOKENS_OFF):
            text = f"{_n(row.completed)} answers ended and {row.concurrency} ran: at most {_n(most)} tokens; "
            yield finding(f.ANSWERS, row.name, text + f"{_n(row.output_tokens)} counted")


def dip(sheet: Sheet) -> Iterator[Finding]:
    """Along a row of the matrix: lower than with fewer requests, although it is higher again with more. Down a column:
    lower than both a shorter and a longer context."""
    grid = {(r.tokens, r.concurrency): r for r in _measured(sheet) if r.rate_tok_s and r.tokens is not None}
    rows: dict[int, list[Row]] = {}
    columns: dict[int, list[Row]] = {}
    for (length, count), row in sorted(grid.items(), key=lambda item: (item[0][0] or 0, item[0][1])):
        rows.setdefault(length or 0, []).append(row)
        columns.setdefault(count, []).append(row)
    found: dict[str, tuple[Row, list[str]]] = {}
    for line, least in ((rows, _DIP), (columns, _DIP_BY_CONTEXT)):
        for cells in line.values():
            for row, before, after in _dips(cells, least):
                text = f"{_n(row.rate_tok_s or 0)} tok/s, with {before.name} at {_n(before.rate_tok_s or 0)} before it "
                text += f"and {after.name} at {_n(after.rate_tok_s or 0)} after it"
                found.setdefault(row.id, (row, []))[1].append(text)
    for row, texts in found.values():
        yield finding(f.DIP, row.name, "; ".join(texts))


def _dips(cells: list[Row], least: float) -> Iterator[tuple[Row, Row, Row]]:
    """(the low cell, its neighbour before, one after it that is clearly higher: the next, else the highest). A fall
    that the intervals do not show is none."""
    highest_after: list[Row | None] = [None] * len(cells)
    best: Row | None = None
    for i in range(len(cells) - 1, -1, -1):
        highest_after[i] = best
        if best is None or (cells[i].rate_tok_s or 0) > (best.rate_tok_s or 0):
            best = cells[i]
    for i, (before, row) in enumerate(pairwise(cells)):
        after = cells[i + 2] if i + 2 < len(cells) else None
        if after is None or not _clearly_less(row, after, least):
            after = highest_after[i + 1]
        if after is not None and _clearly_less(row, before, least) and _clearly_less(row, after, least):
            yield row, before, after


def _clearly_less(row: Row, other: Row, least: float) -> bool:
    value, theirs = row.rate_tok_s or 0.0, other.rate_tok_s or 0.0
    if value >= theirs * (1 - least):
        return False
    if row.high_tok_s is None or other.low_tok_s is None:
        return True
    return row.high_tok_s < other.low_tok_s


def few(sheet: Sheet) -> Iterator[Finding]:
    """In a table: medians over the completed requests. A record counts its samples itself; see `record_rules`."""
    if sheet.source != "table":
        return
    for row in sheet.rows:
        shown = row.ttft_ms is not None or row.per_request_tok_s is not None
        if row.measured and row.completed is not None and 0 <= row.completed < FEW and shown:
            what = "prompt" if row.phase == "prefill" else "completed request"
            yield finding(f.FEW, row.name, f"{_n(row.completed)} {what}{'' if row.completed == 1 else 's'}")


def label(sheet: Sheet) -> Iterator[Finding]:
    for row in sheet.rows:
        if not row.measured or row.tokens is None or row.prompt_tokens is None:
            continue
        worst = max(row.prompt_tokens, key=lambda n: abs(n - (row.tokens or 0)))
        off = (worst - row.tokens) / max(row.tokens, 1)
        if abs(off) > _LABEL_OFF and abs(worst - row.tokens) > 2:
            more = "more" if off > 0 else "fewer"
            text = f"prompts of {_n(worst)} tokens in the row {row.label[:20]} ({_n(row.tokens)} tokens), "
            yield finding(f.LABEL, row.name, text + f"{_percent(off)} {more}")


def prefill(sheet: Sheet) -> Iterator[Finding]:
    if sheet.source != "table":  # a record's samples are checked one by one
        return
    for row in _measured(sheet, "prefill"):
        if not row.rate_tok_s or not row.ttft_ms or not row.tokens:
            continue
        made = row.rate_tok_s * row.ttft_ms / 1e3
        asked = row.prompt_tokens[0] if row.prompt_tokens else row.tokens
        off = made / asked - 1 if asked else 0.0
        if abs(off) > _LABEL_OFF + _spread(row, "rate_tok_s", "ttft_ms"):
            more = "more" if off > 0 else "fewer"
            text = f"{_n(row.rate_tok_s)} tok/s × {_n(row.ttft_ms)} ms = {_n(made)} tokens; {row.label[:20]} is "
            yield finding(f.PREFILL, row.name, text + f"{_n(asked)} ({_percent(off)} {more})")


def warm(sheet: Sheet) -> Iterator[Finding]:
    """One request alone on a warm context: by the server's cached tokens where it tells them, else by its TTFT against
    the cold one."""
    cold = {r.tokens: r.ttft_ms for r in _measured(sheet, "prefill") if r.ttft_ms}
    for row in _measured(sheet):
        if row.tokens is None or row.tokens < _LEAST_CONTEXT or Flag.CACHE_COLD in row.flags:
            continue
        if row.cached_tokens is not None:
            if row.cached_tokens < row.tokens / 2:
                yield finding(
                    f.WARM, row.name, f"{_n(row.cached_tokens)} of {_n(row.tokens)} prompt tokens were cached"
                )
            continue
        cold_ms = row.cold_ttft_ms or cold.get(row.tokens)
        if row.concurrency != 1 or not row.ttft_ms or not cold_ms:
            continue
        share = row.ttft_ms / cold_ms
        if share > _WARM_SHARE + _spread(row, "ttft_ms"):
            text = f"TTFT {_n(row.ttft_ms)} ms warm, {_n(cold_ms)} ms cold: {_percent(share)} of it is left"
            yield finding(f.WARM, row.name, text)


def streams(sheet: Sheet) -> Iterator[Finding]:
    """total ≈ streams × answer / (TTFT + answer / speed of one)."""
    most = _STREAMS_OFF[sheet.source]
    for row in _measured(sheet):
        size = row.answer_tokens or row.max_output
        figures = (row.per_request_tok_s, row.ttft_ms, size, row.rate_tok_s, row.concurrency)
        if not all(v is not None and v > 0 for v in figures) or row.status != Status.VALID:
            continue
        assert row.per_request_tok_s and row.ttft_ms and size and row.rate_tok_s
        if row.flags & _EXPLAINS or (sheet.max_running and sheet.max_running < row.concurrency):
            continue
        expected = row.concurrency * size / (row.ttft_ms / 1e3 + size / row.per_request_tok_s)
        off = row.rate_tok_s / expected - 1 if 0 < expected < math.inf else 0.0
        inside = (
            row.low_tok_s is not None and row.high_tok_s is not None and row.low_tok_s <= expected <= row.high_tok_s
        )
        if abs(off) > most and not inside:
            text = (
                f"{row.concurrency} × {_n(row.per_request_tok_s)} tok/s with {_n(row.ttft_ms)} ms between answers of "
            )
            text += f"{_n(size)} make {_n(expected)} tok/s; {_n(row.rate_tok_s)} measured"
            yield finding(f.STREAMS, row.name, f"{text}, {_percent(off)} {'more' if off > 0 else 'less'}")


def limit(sheet: Sheet, limits: Mapping[str, float]) -> Iterator[Finding]:
    """`limits`: tok/s by cell id. The lower end of the interval counts, so that noise is no finding."""
    for row in sheet.rows:
        most = limits.get(row.id)
        value = row.low_tok_s if row.low_tok_s is not None else row.rate_tok_s
        if not row.measured or most is None or value is None or not math.isfinite(most) or most <= 0:
            continue
        if value > most * (1 + _TOKENS_OFF) + row.half("rate_tok_s"):
            more = _percent(value / most - 1)
            yield finding(f.LIMIT, row.name, f"{_n(value)} tok/s, the hardware's limit is {_n(most)} ({more} above)")


_COUNTS: Final = ("active", "completed", "failed", "output_tokens", "max_output", "answer_tokens", "cached_tokens")
_ABOVE_0: Final = ("rate_tok_s", "per_request_tok_s", "ttft_ms", "itl_ms", "tpot_ms", "window_s", "cold_ttft_ms")


def numbers(sheet: Sheet) -> Iterator[Finding]:
    """Negative counts, and speeds and times that are not above 0; a measured cell without a rate."""
    for row in sheet.rows:
        wrong = [n for n in _COUNTS if (v := getattr(row, n)) is not None and v < 0]
        wrong += [n for n in _ABOVE_0 if (v := getattr(row, n)) is not None and v <= 0 and (row.measured or v < 0)]
        if row.concurrency < 1:
            wrong.append("concurrency")
        if wrong:
            told = ", ".join(f"{name} is {_n(getattr(row, name))}" for name in wrong)
            yield finding(f.NUMBER, row.name, told)
        elif row.measured and row.rate_tok_s is None and row.phase in ("decode", "prefill"):
            yield finding(f.STATUS, row.name, f"the status is '{row.status[:40]}', but there is no rate")


def twice(sheet: Sheet) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for row in sheet.rows:
        seen[row.id] = seen.get(row.id, 0) + 1
        if seen[row.id] == 2:
            yield finding(f.TWICE, row.name, "there is more than one row for it")


ALL: Final[tuple[Callable[[Sheet], Iterator[Finding]], ...]] = (
    active, dip, completions, tokens, request, streams, prefill, label, warm, few, numbers, twice,
)  # fmt: skip
