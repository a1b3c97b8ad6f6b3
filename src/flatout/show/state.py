"""What the live view knows: the events of a run folded into one value."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from flatout.flags import Status
from flatout.record import Cell
from flatout.run.events import CellDone, Doing, Event, Finished, Gauges, Note, Started
from flatout.show import about
from flatout.show.safe import HARD_SPACE, clean

KEPT_NOTES: Final = 20


@dataclass
class State:
    """`per_user_tok_s`: what each user wants, for the line about how many there may be. `pending`: ids of cells without
    their result yet. `deadline_s`: when the wait of `doing` is over at the latest, `left_until_s`: when the run is
    expected to end; both on the caller's clock, None where not known. `notes`: (is a warning, clean text), latest last.
    `said`: the answer to the last key."""

    per_user_tok_s: float = 20.0
    title: str = "flatout"
    subtitle: str = ""
    suite: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    doing: Doing | None = None
    deadline_s: float | None = None
    left_until_s: float | None = None
    share_done: float | None = None
    gauges: Gauges | None = None
    notes: deque[tuple[bool, str]] = field(default_factory=lambda: deque(maxlen=KEPT_NOTES))
    started_s: float = 0.0
    said: str | None = None
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
        state.said = None
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
        event.cell_id,
        event.wait_for,
        event.until_s,
    )
    if before is None or before.cell_id != event.cell_id:
        state.gauges = None
    if event.until_s is None:
        state.deadline_s = None
    elif not same_wait or state.deadline_s is None:
        state.deadline_s = now_s + event.until_s
    state.doing = event
    if event.share_done is not None:
        state.share_done = min(1.0, max(0.0, event.share_done))
    if event.left_s is not None:
        state.left_until_s = now_s + event.left_s
