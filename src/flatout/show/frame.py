"""What the live view knows (a run's events folded into one value), and one frame of it. Pure; the clock comes in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.layout import Layout
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flatout import metrics
from flatout.flags import Status
from flatout.metrics import BY_NAME
from flatout.record import Cell
from flatout.run.events import CellDone, Doing, Event, Finished, Gauges, Note, Started
from flatout.show import about, capacity, matrix, numbers
from flatout.show.safe import GLUE, HARD_SPACE, clean, for_encoding

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
SMALLEST: Final = (40, 12)
"""Columns and lines below which a frame has no room and plain lines say more."""
KEPT_NOTES: Final = 20
LONG_S: Final = 5.0
"""A step that goes on longer tells for how long."""
STEADY: Final = 0.5
"""How much of a new estimate of the time left counts: it comes with each finished cell, and cells differ."""
_SHORT: Final[Mapping[str, str]] = {
    Status.OVER_CAPACITY: "no room", Status.OVER_LENGTH: "too long", Status.NO_STEADY_STATE: "unsteady",
    Status.NOT_RUN: "not run", Status.FAILED: "failed",
}  # fmt: skip
_MARKS: Final[Mapping[str, str]] = {Status.DOUBTFUL: "!", Status.REQUESTS_QUEUED: "q"}
_CELL_WIDEST: Final = 11
_CELL_NARROWEST: Final = 7
_PREFILL: Final = 0  # stands for the column of prefill, beside numbers of requests at once
_MACHINE: Final = (
    ("CPU", ("cpu_percent", "cpu_use_percent"), " %"),
    ("GPU", ("gpu_percent", "gpu_use_percent"), " %"),
    ("", ("gpu_power_w", "power_w"), " W"),
    ("", ("gpu_temperature_c", "temperature_c"), " °C"),
    ("", ("gpu_clock_mhz", "sm_clock_mhz"), " MHz"),
)


@dataclass
class State:
    """`per_user_tok_s`: what each user wants, for the line about how many there may be. `pending`: ids of cells without
    their result yet. `deadline_s`: when the wait of `doing` is over at the latest, `left_until_s`: when the run is
    expected to end; both on the caller's clock, None where not known. `notes`: (is a warning, clean text), latest last.
    `answer`: to the last key."""

    per_user_tok_s: float = 20.0
    title: str = "flatout"
    subtitle: str = ""
    suite: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    doing: Doing | None = None
    doing_since_s: float = 0.0
    deadline_s: float | None = None
    left_until_s: float | None = None
    share_done: float | None = None
    gauges: Gauges | None = None
    notes: deque[tuple[bool, str]] = field(default_factory=lambda: deque(maxlen=KEPT_NOTES))
    started_s: float = 0.0
    answer: str | None = None
    finished: bool = False

    @property
    def running(self) -> Cell | None:
        """The cell that is worked on now."""
        cell_id = self.doing.cell_id if self.doing is not None else None
        return self.cells.get(cell_id) if cell_id is not None else None

    def snapshot(self) -> State:
        """A copy to draw from while events go on."""
        return replace(self, cells=dict(self.cells), pending=set(self.pending), notes=deque(self.notes))


def apply(state: State, event: Event, now_s: float) -> None:
    """Folds one event into the state."""
    if isinstance(event, Doing):
        _doing(state, event, now_s)
    elif isinstance(event, Gauges):
        state.gauges = event
    elif isinstance(event, CellDone):
        state.cells[event.cell.id] = event.cell
        state.pending.discard(event.cell.id)
        state.answer = None
    elif isinstance(event, Note):
        state.notes.append((event.level == "warning", clean(event.text, 300)))
    elif isinstance(event, Started):
        _started(state, event)
    elif isinstance(event, Finished):
        state.finished = True
        state.share_done, state.left_until_s, state.doing = 1.0, None, None


def _started(state: State, event: Started) -> None:
    record = event.record
    parts = [about.engine_name(record), about.precision(record), about.speculation(record)]
    state.title = about.title(record)
    state.subtitle = " · ".join(part for part in parts if part).replace(HARD_SPACE, " ")
    state.suite = clean(record.plan.suite, 40)
    # the conductor goes on changing its record: what is drawn must not change under the drawing
    state.cells = {cell.id: cell.model_copy() for cell in record.cells}
    state.pending = {c.id for c in record.cells if c.status == Status.NOT_RUN and c.finished is None}


def _doing(state: State, event: Doing, now_s: float) -> None:
    before = state.doing
    same_wait = before is not None and (before.cell_id, before.wait_for, before.until_s) == (
        event.cell_id, event.wait_for, event.until_s,
    )  # fmt: skip
    if before is None or before.cell_id != event.cell_id:
        state.gauges = None
    if before is None or (before.cell_id, before.text) != (event.cell_id, event.text):
        state.doing_since_s = now_s
    if event.until_s is None:
        state.deadline_s = None
    elif not same_wait or state.deadline_s is None:
        state.deadline_s = now_s + event.until_s
    state.doing = event
    share = state.share_done
    if event.share_done is not None:
        state.share_done = min(1.0, max(0.0, event.share_done))
    if event.left_s is not None and (state.left_until_s is None or share != state.share_done):
        # between two cells it only counts down: the pace so far tells nothing new while one cell goes on
        old, new = state.left_until_s, now_s + event.left_s
        state.left_until_s = new if old is None else old + (new - old) * STEADY


def frame(state: State, width: int, height: int, now_s: float, *, keys: bool, stopping: bool = False) -> Layout:
    """Exactly `height` lines: header, progress, what runs, the matrix, server and machine, the latest notes, and at the
    bottom the keys."""
    top = [*_header(state, width), _progress(state, width, now_s), *_action(state, now_s)]
    gauges = _gauges(state)
    users = _users(state)
    room = height - len(top) - 2 - len(gauges) - bool(gauges)
    notes = _notes(state, width, most=max(1, min(4, room // 5)))
    room -= len(notes) + bool(notes)
    table, lines = _matrix(state, width, room)
    below = [users if lines + 2 <= room else [], gauges, notes]
    parts = [Layout(Group(*top), size=len(top) + 1), *([Layout(table, size=min(lines, room))] if lines else [])]
    parts += [Layout(Group(Text(), *block), size=len(block) + 1) for block in below if block]
    layout = Layout()
    used = sum(part.size or 0 for part in parts) + 1
    empty = [Layout(Text(" "), size=height - used)] if used < height else []
    layout.split_column(*parts, *empty, Layout(_keys(state, keys=keys, stopping=stopping), size=1))
    return layout


@dataclass(frozen=True, slots=True)
class Drawn:
    """A frame as the console's encoding can take it, no line wider than the console."""

    layout: Layout

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.layout, options)
        for number, line in enumerate(lines):
            texts = [for_encoding(part.text.replace(GLUE, " "), console.encoding) for part in line]
            shown = [Segment(text, part.style) for text, part in zip(texts, line, strict=True)]
            yield from Segment.adjust_line_length(shown, options.max_width)
            if number < len(lines) - 1:
                yield Segment.line()


def _line(*spans: tuple[str, str] | str) -> Text:
    return Text.assemble(*spans, no_wrap=True, overflow="ellipsis")


def _header(state: State, width: int) -> list[RenderableType]:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    line.add_column(no_wrap=True, justify="right", max_width=max(1, width // 3))
    line.add_row(Text(state.title, "bold"), Text("  " + state.suite, "dim"))
    return [line, _line((state.subtitle, "dim"))] if state.subtitle else [line]


def _progress(state: State, width: int, now_s: float) -> RenderableType:
    """The bar, the share, the time left, the time gone."""
    gone = f"{numbers.duration(now_s - state.started_s)} gone"
    text = gone
    if state.left_until_s is not None:
        left_s = state.left_until_s - now_s
        text = f"{numbers.duration(left_s)} left · {gone}" if left_s >= 1 else f"a little longer · {gone}"
    share = state.share_done or 0.0
    text = f"{share * 100:3.0f} %  {text}"
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(width=max(5, width - max(cell_len(text), 34) - 1))
    line.add_column(no_wrap=True)
    bar = ProgressBar(100, share * 100, complete_style="green", finished_style="green", style="dim")
    line.add_row(bar, Text(text))
    return line


def _action(state: State, now_s: float) -> list[RenderableType]:
    """Two lines at all times, so that nothing below jumps: what runs, with the speed so far, and what it waits for."""
    if state.doing is None:
        return [_line(("finished" if state.finished else "starting", "bold")), Text()]
    speed = f"  {numbers.rate(state.gauges.tok_s)} tok/s now" if state.gauges and state.gauges.tok_s else ""
    first = _line(("▸ ", "bold cyan"), (clean(state.doing.text, 300), "bold"), (speed, "bold green"))
    if not state.doing.wait_for:
        so_far_s = now_s - state.doing_since_s
        return [first, _line((f"  for {numbers.duration(so_far_s)} so far" if so_far_s >= LONG_S else "", "dim"))]
    wait = f"  waiting for {clean(state.doing.wait_for, 300)}"
    left = "" if state.deadline_s is None else f", at most {numbers.duration(state.deadline_s - now_s)} more"
    line = Table.grid()
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(no_wrap=True, min_width=cell_len(left))
    line.add_row(Text(wait, "yellow"), Text(left))
    return [first, line]


def _matrix(state: State, width: int, room: int) -> tuple[RenderableType, int]:
    """(the table, its lines): contexts down, prefill and requests at once across; as many lines a row as there is room
    for. Rows and columns without room are counted below it."""
    cells = list(state.cells.values())
    if not cells or room < 1:
        return Text(" "), 0
    if room < 3:
        return _line(("… no room for the table: a higher window shows it", "yellow")), 1
    main = matrix.of(cells, "decode" if any(cell.phase == "decode" for cell in cells) else "burst")
    prefill = matrix.of(cells, "prefill")
    rows = sorted({*prefill.rows, *main.rows}, key=lambda row: row[1] if row[1] is not None else float("inf"))
    columns = [*([_PREFILL] if prefill.rows else []), *main.columns]
    key = max([7, *(cell_len(row[0]) for row in rows)])
    wide = min(_CELL_WIDEST, max(_CELL_NARROWEST, (width - key) // max(1, len(columns)) - 1))
    gap = 2 if key + len(columns) * (wide + 2) <= width else 1
    running = state.running
    at = _PREFILL if running is None or running.phase == "prefill" else running.concurrency
    across = _near(columns, at, max(1, (width - key) // (wide + gap)))
    tall = 2 if len(rows) * 2 + 2 <= room else 1
    most = (room - 2) // tall
    down = rows if len(rows) <= most else _near(rows, matrix.row_of(running) if running else None, max(1, most - 1))
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(Text("context", "dim"), justify="right", width=key, no_wrap=True)
    for n in across:
        name = f"{n} " if n != _PREFILL else "prefill " if wide > _CELL_NARROWEST else "prefill"
        table.add_column(name.replace(" ", GLUE), justify="right", width=wide, no_wrap=True)
    for row in down:
        found = [prefill.cells.get((row, 1)) if n == _PREFILL else main.cells.get((row, n)) for n in across]
        table.add_row(Text(row[0], "bold"), *(_square(state, cell, wide, tall) for cell in found))
    left_out = (("row", len(rows) - len(down)), ("column", len(columns) - len(across)))
    hidden = [f"{count} more {word}{'s' * (count > 1)}" for word, count in left_out if count]
    more = [_line((f"… {' and '.join(hidden)}", "yellow"))] if hidden else []
    caption = _caption(state, cells, tall=tall > 1, unit=wide >= 10)
    return Group(caption, table, *more), 2 + len(down) * tall + len(more)


def _caption(state: State, cells: Sequence[Cell], *, tall: bool, unit: bool) -> Text:
    done = {cell.status for cell in cells if cell.id not in state.pending}
    below = f", TTFT p50{'' if unit else ' ms'} below" if tall else ""
    spans = [(f"tok/s{below} · columns: requests at once", "dim")]
    for status, text in ((Status.DOUBTFUL, " · ! doubtful"), (Status.REQUESTS_QUEUED, " · q queued")):
        if status in done:
            spans.append((text, about.style(status)))
    return _line(*spans)


def _near(items: list[T], now: T | None, most: int) -> list[T]:
    """As many as fit, among them the one that is worked on."""
    at = items.index(now) if now in items else 0
    first = min(max(0, at - most // 2), max(0, len(items) - most))
    return items[first : first + most]


def _square(state: State, cell: Cell | None, wide: int, tall: int) -> Text:
    if cell is None:
        return Text()
    if state.running is not None and state.running.id == cell.id:
        now = state.gauges.tok_s if state.gauges is not None else None
        space = GLUE if wide > _CELL_NARROWEST + 1 else ""
        lines = [(f"▸{space}{numbers.rate(now) if now else 'now'}{GLUE}", "bold cyan")]
    elif cell.id in state.pending:
        lines = [(f"·{GLUE}", "dim")]
    elif about.measured(cell):
        style = "bold" if cell.status == Status.VALID else f"bold {about.style(cell.status)}"
        speed, ttft = metrics.read(cell, metrics.SPEED[cell.phase]), metrics.read(cell, BY_NAME["ttft_ms"])
        lines = [(numbers.rate(speed.number) + _MARKS.get(cell.status, GLUE), style),
                 (numbers.ms(ttft.number, unit=wide >= 10) + GLUE, "dim")]  # fmt: skip
    else:
        words = [word for word in about.two_lines(cell.status) if word]
        short = [_SHORT.get(cell.status, about.status_word(cell.status))]
        fits = tall > 1 and max(map(cell_len, words)) <= wide
        lines = [(word, about.style(cell.status)) for word in (words if fits else short)]
    text = Text(overflow="ellipsis", no_wrap=True)
    for i, (part, style) in enumerate(lines[:tall]):
        text.append(("\n" if i else "") + part, style)
    return text.append("\n" * (tall - min(tall, len(lines))))


def _users(state: State) -> list[RenderableType]:
    """How many at once, as far as it is known by now; only contexts that have an answer."""
    done = [cell for cell in state.cells.values() if cell.id not in state.pending]
    answers = [a for a in capacity.of_cells(done, state.per_user_tok_s) if a.met is not None or a.missed is not None]
    if not answers:
        return []
    told = " · ".join(f"{answer.context}: {answer.text}" for answer in answers)
    return [_line((f"at once at ≥ {state.per_user_tok_s:g} tok/s each  ", "dim"), told)]


def _gauges(state: State) -> list[RenderableType]:
    """Server and streams, then the machine: always two lines, so that nothing jumps."""
    if not state.cells or state.finished:
        return []
    found = state.gauges or Gauges(None)
    server = [f"{numbers.count(found.running)} running"] if found.running is not None else []
    server += [f"{numbers.count(found.waiting)} waiting"] if found.waiting is not None else []
    server += [f"KV {numbers.percent(found.kv_use)}"] if found.kv_use is not None else []
    # between cells nobody asks the server's gauges
    server = server or (["no gauges"] if found.cell_id is not None else [numbers.NONE])
    of_asked = f" of {found.asked:,}" if found.asked is not None else ""
    streams = [f"{found.in_flight:,}{of_asked}"] if found.in_flight is not None else []
    streams += [f"{found.events_s:,.0f} events/s"] if found.events_s is not None else []
    first = _line(("server   ", "dim"), " · ".join(server))
    if streams:
        first.append("    streams  ", "dim").append(" · ".join(streams))
    return [first, _line(("machine  ", "dim"), " · ".join(machine_parts(found.machine)) or numbers.NONE)]


def machine_parts(readings: Mapping[str, float | None]) -> list[str]:
    """The readings that a person watches, those that are there: `GPU 97 %`, `512 W`."""
    parts = []
    for label, names, unit in _MACHINE:
        value = next((readings[name] for name in names if readings.get(name) is not None), None)
        if value is not None:
            parts.append(f"{label} {value:,.0f}{unit}".strip())
    return parts


def _notes(state: State, width: int, most: int) -> list[RenderableType]:
    """The latest notes, folded, as many as have room; the latest always."""
    console = Console(width=max(10, width - 2), color_system=None)
    lines: list[RenderableType] = []
    for warning, note in reversed(state.notes):
        folded = Text(note, "" if warning else "dim").wrap(console, max(10, width - 2))
        if lines and len(lines) + len(folded) > most:
            break
        head = [Text("! " if warning and i == 0 else "  ", "yellow", no_wrap=True) for i in range(len(folded))]
        lines = [first.append_text(line) for first, line in zip(head, folded, strict=True)][:most] + lines
    return lines


def _keys(state: State, *, keys: bool, stopping: bool) -> Text:
    if stopping:
        return _line(("stopping: the record is being written · Ctrl-C again ends at once", "bold yellow"))
    if state.answer:
        return _line((state.answer, "bold yellow"))
    if not keys:
        return _line(("Ctrl-C", "bold"), (" stop", "dim"))
    return _line(("s", "bold"), (" skip · ", "dim"), ("q", "bold"), (" stop", "dim"))
