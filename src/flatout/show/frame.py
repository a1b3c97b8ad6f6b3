"""One frame of the live view: from the state and the terminal's size to lines. Pure; the clock comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.cells import cell_len

from flatout.flags import Status
from flatout.record import Cell
from flatout.show import about, capacity, matrix, numbers
from flatout.show.layout import EMPTY, Box, Column, Line, Span, box, cut, grid, line, width_of, wrap
from flatout.show.safe import clean
from flatout.show.state import State

SMALLEST: Final = (40, 12)
"""Columns and lines below which a frame has no room and plain lines say more."""
_SHORT: Final[Mapping[str, str]] = {
    Status.OVER_CAPACITY: "no room",
    Status.OVER_LENGTH: "too long",
    Status.NO_STEADY_STATE: "unsteady",
    Status.NOT_RUN: "not run",
    Status.FAILED: "failed",
}
_MARKS: Final[Mapping[str, str]] = {Status.DOUBTFUL: "!", Status.REQUESTS_QUEUED: "q"}
_CELL_WIDEST: Final = 11
_CELL_NARROWEST: Final = 7
_MACHINE: Final = (
    ("CPU", ("cpu_percent", "cpu_use_percent"), " %"),
    ("GPU", ("gpu_percent", "gpu_use_percent"), " %"),
    ("", ("gpu_power_w", "power_w"), " W"),
    ("", ("gpu_temperature_c", "temperature_c"), " °C"),
    ("", ("gpu_clock_mhz", "sm_clock_mhz"), " MHz"),
)


def frame(state: State, width: int, height: int, now_s: float, *, keys: bool, stopping: bool = False) -> list[Line]:
    """Exactly `height` lines, none wider than `width`: header, progress, what runs, the matrix, server and machine, the
    latest notes, and at the bottom the keys."""
    top = [*_header(state, width), *_progress(state, width, now_s), *_doing(state, width, now_s)]
    gauges = _gauges(state, width)
    bottom = _keys(state, width, keys=keys, stopping=stopping)
    room = height - len(top) - len(bottom) - len(gauges) - (1 if gauges else 0)
    notes = _notes(state, width, most=max(1, min(4, room // 5)))
    # a blank line before the matrix, one before the notes
    users = _users(state)
    table = _matrix(state, width, room - len(notes) - (1 if notes else 0) - 1)
    lines = [*top, EMPTY, *table]
    if users and len(lines) + len(gauges) + len(notes) + 4 + len(bottom) <= height:
        lines += [EMPTY, *users]
    if gauges:
        lines += [EMPTY, *gauges]
    if notes:
        lines += [EMPTY, *notes]
    lines = lines[: height - len(bottom)]
    lines += [EMPTY] * (height - len(bottom) - len(lines))
    return [cut(content, width) for content in lines + bottom][:height]


def _header(state: State, width: int) -> list[Line]:
    right = state.suite
    left = cut(line((state.title, "bold")), max(1, width - cell_len(right) - 2))
    pad = width - width_of(left) - cell_len(right)
    lines: list[Line] = [(*left, (" " * max(1, pad), ""), (right, "dim"))]
    return [*lines, line((state.subtitle, "dim"))] if state.subtitle else lines


def _progress(state: State, width: int, now_s: float) -> list[Line]:
    """The bar, the share, the time left, else the time gone."""
    gone = numbers.duration(now_s - state.started_s)
    told = f" {gone} gone"
    if state.left_until_s is not None:
        told = f" {numbers.duration(state.left_until_s - now_s)} left · {gone} gone"
    share = state.share_done or 0.0
    told = f" {share * 100:3.0f} %  {told.strip()}"
    room = max(5, width - max(len(told), 34))
    done = round(share * room)
    return [line(("━" * done, "green"), ("╌" * (room - done), "dim"), told)]


def _doing(state: State, width: int, now_s: float) -> list[Line]:
    """Two lines at all times, so that nothing below jumps: what runs, and what it waits for and how long at most."""
    if state.doing is None:
        return [line(("finished" if state.finished else "starting", "bold")), EMPTY]
    text = clean(state.doing.text, 300)
    first = line(("▸ ", "bold cyan"), (text, "bold"))
    if not state.doing.wait_for:
        return [first, EMPTY]
    waits = f"  waiting for {clean(state.doing.wait_for, 300)}"
    left = ""
    if state.deadline_s is not None:
        left = f", at most {numbers.duration(state.deadline_s - now_s)} more"
    return [first, (*cut(line((waits, "yellow")), max(10, width - cell_len(left))), (left, ""))]


def _matrix(state: State, width: int, room: int) -> list[Line]:
    """Contexts down, prefill and requests at once across; as many lines a row as there is room for."""
    if not state.cells or room < 3:
        return []
    cells = list(state.cells.values())
    phase = "decode" if any(cell.phase == "decode" for cell in cells) else "burst"
    prefill = matrix.of(cells, "prefill")
    main = matrix.of(cells, phase)
    rows = sorted({*prefill.rows, *main.rows}, key=lambda row: row[1] if row[1] is not None else float("inf"))
    key = max([7, *(cell_len(row[0]) for row in rows)])
    columns: list[int] = [0] if prefill.rows else []  # 0 stands for prefill
    columns += main.columns
    wide = min(_CELL_WIDEST, max(_CELL_NARROWEST, (width - key) // max(1, len(columns)) - 1))
    gap = 2 if key + len(columns) * (wide + 2) <= width else 1
    columns = _near(columns, state, max(1, (width - key) // (wide + gap)))
    tall = 2 if len(rows) * 2 + 2 <= room else 1
    shown = _rows_near(rows, state, (room - 2) // tall)
    units = wide >= 10
    about_it = (
        f"tok/s{', TTFT p50' + ('' if units else ' ms') + ' below' if tall > 1 else ''} · columns: requests at once"
    )
    names = {0: "prefill " if wide > 7 else "prefill"}
    head = [box(("context", "dim")), *(box((names.get(n, f"{n} "), "bold")) for n in columns)]
    table: list[list[Box]] = []
    for row in shown:
        line_of: list[Box] = [box((row[0], "bold"))]
        for n in columns:
            cell = prefill.cells.get((row, 1)) if n == 0 else main.cells.get((row, n))
            line_of.append(_box(state, cell, wide, tall, units) if cell is not None else ())
        table.append(line_of)
    layout = [Column(wide=key), *(Column(wide=wide) for _ in columns)]
    lines = grid(head, table, layout, width=width, gaps=(gap, 1))
    return [_caption(about_it, cells, state), *lines]


def _caption(about_it: str, cells: list[Cell], state: State) -> Line:
    done = [cell for cell in cells if cell.id not in state.pending]
    spans: list[Span] = [(about_it, "dim")]
    if any(cell.status == Status.DOUBTFUL for cell in done):
        spans.append((" · ! doubtful", about.style(Status.DOUBTFUL)))
    if any(cell.status == Status.REQUESTS_QUEUED for cell in done):
        spans.append((" · q queued", about.style(Status.REQUESTS_QUEUED)))
    return tuple(spans)


def _near(columns: list[int], state: State, most: int) -> list[int]:
    """As many columns as fit, among them the one that is worked on."""
    if len(columns) <= most:
        return columns
    running = state.running
    now = 0 if running is None or running.phase == "prefill" else running.concurrency
    at = columns.index(now) if now in columns else 0
    first = min(max(0, at - most // 2), len(columns) - most)
    return columns[first : first + most]


def _rows_near(rows: list[matrix.Row], state: State, most: int) -> list[matrix.Row]:
    most = max(1, most)
    if len(rows) <= most:
        return rows
    running = state.running
    at = rows.index(matrix.row_of(running)) if running is not None and matrix.row_of(running) in rows else 0
    first = min(max(0, at - most // 2), len(rows) - most)
    return rows[first : first + most]


def _box(state: State, cell: Cell, wide: int, tall: int, units: bool) -> Box:
    running = state.running
    if running is not None and running.id == cell.id:
        return box(("▸ now ", "bold cyan"))
    if cell.id in state.pending:
        return box(("· ", "dim"))
    rate, ttft_ms = _figures(cell)
    if not about.measured(cell):
        words = about.two_lines(cell.status)
        short = _SHORT.get(cell.status, about.status_word(cell.status))
        fits = tall > 1 and max(map(cell_len, words)) <= wide
        parts = [word for word in words if word] if fits else [short]
        return tuple(cut(line((part, about.style(cell.status))), wide) for part in parts)
    mark = _MARKS.get(cell.status, " ")
    number = line((numbers.rate(rate), _number_style(cell.status)), (mark, about.style(cell.status)))
    if tall == 1:
        return (cut(number, wide),)
    ttft = cut(line((numbers.ms(ttft_ms, unit=units) + " ", "dim")), wide)
    return (cut(number, wide), ttft)


def _number_style(status: str) -> str:
    return "bold" if status == Status.VALID else f"bold {about.style(status)}".strip()


def _figures(cell: Cell) -> tuple[float | None, float | None]:
    """Rate and TTFT p50 of a measured cell."""
    if cell.decode is not None:
        return cell.decode.total_tok_s.value, cell.decode.ttft_ms.p50
    if cell.burst is not None:
        return cell.burst.end_to_end_tok_s.value, cell.burst.ttft_ms.p50
    if cell.prefill is not None:
        return cell.prefill.prefill_tok_s.value, cell.prefill.ttft_ms.p50
    return None, None


def _users(state: State) -> list[Line]:
    """How many at once, as far as it is known by now; only contexts that have an answer."""
    done = [cell for cell in state.cells.values() if cell.id not in state.pending]
    answers = [a for a in capacity.of_cells(done, state.per_user_tok_s) if a.met is not None or a.missed is not None]
    if not answers:
        return []
    told = " · ".join(f"{answer.context}: {answer.text}" for answer in answers)
    return [line((f"at once at ≥ {state.per_user_tok_s:g} tok/s each  ", "dim"), told)]


def _gauges(state: State, width: int) -> list[Line]:
    """Server and streams, then the machine: always two lines, so that nothing jumps."""
    if not state.cells or state.finished:
        return []
    found = state.gauges
    server: list[str] = []
    streams: list[str] = []
    machine: list[str] = []
    if found is not None:
        server += [f"{numbers.count(found.running)} running"] if found.running is not None else []
        server += [f"{numbers.count(found.waiting)} waiting"] if found.waiting is not None else []
        server += [f"KV {numbers.percent(found.kv_use)}"] if found.kv_use is not None else []
        # between cells nobody asks the server's gauges
        server = server or ["no gauges" if found.cell_id is not None else "—"]
        of_asked = f" of {found.asked:,}" if found.asked is not None else ""
        streams += [f"{found.in_flight:,}{of_asked}"] if found.in_flight is not None else []
        streams += [f"{found.events_s:,.0f} events/s"] if found.events_s is not None else []
        machine = machine_parts(found.machine)
    first = line(("server   ", "dim"), " · ".join(server) or numbers.NONE)
    if streams:
        first = (*first, ("    streams  ", "dim"), (" · ".join(streams), ""))
    return [cut(first, width), cut(line(("machine  ", "dim"), " · ".join(machine) or numbers.NONE), width)]


def machine_parts(readings: Mapping[str, float | None]) -> list[str]:
    """The readings that a person watches, those that are there: `GPU 97 %`, `512 W`."""
    parts = []
    for label, names, unit in _MACHINE:
        value = next((readings[name] for name in names if readings.get(name) is not None), None)
        if value is not None:
            parts.append(f"{label} {value:,.0f}{unit}".strip())
    return parts


def _notes(state: State, width: int, most: int) -> list[Line]:
    lines: list[Line] = []
    for warning, text in reversed(state.notes):
        wrapped = wrap(text, max(10, width - 2))
        if lines and len(lines) + len(wrapped) > most:
            break
        head: Span = ("! ", "yellow") if warning else ("  ", "")
        style = "" if warning else "dim"
        block = [line(head if i == 0 else ("  ", ""), (part, style)) for i, part in enumerate(wrapped)]
        lines = block[:most] + lines
    return lines


def _keys(state: State, width: int, *, keys: bool, stopping: bool) -> list[Line]:
    if stopping:
        return [line(("stopping: the record is being written · Ctrl-C again ends at once", "bold yellow"))]
    if state.said:
        return [line((state.said, "bold yellow"))]
    if not keys:
        return [line(("Ctrl-C", "bold"), (" stop", "dim"))]
    return [line(("s", "bold"), (" skip · ", "dim"), ("q", "bold"), (" stop", "dim"))]
