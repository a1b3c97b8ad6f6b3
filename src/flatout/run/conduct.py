"""The conductor: from options to a record. Never prints; tells a listener what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from flatout.engines.base import TargetError
from flatout.engines.redact import tidy
from flatout.flags import MEASURED, Status
from flatout.load.process import LoadError
from flatout.plan import PlannedCell
from flatout.record import Cell, Record
from flatout.run import begin, burst, decode, row, warmup
from flatout.run.events import Control, Finished, Listener
from flatout.run.idle import faster, measure_baseline
from flatout.run.options import Options
from flatout.run.session import Budget, Session, Stopped
from flatout.run.store import now_iso

GIVE_UP_AFTER: Final = 3
"""Cells in a row that fail before the rest is given up: the server is gone."""

TROUBLE: Final = (Stopped, Budget, TargetError, LoadError)
"""What ends work on a cell and leaves the run as it is."""

EXIT_OK: Final = 0
EXIT_DOUBT: Final = 3


def run(options: Options, listener: Listener, control: Control) -> tuple[Record, Path]:
    """Measures what the options ask for and returns the record with its directory; everything is written by then.

    Raises TargetError (the server cannot be used at all), SuiteError, RecordError and OSError before anything was
    measured; after that, trouble becomes the cells' status.
    """
    with begin.session(options, listener, control) as session:
        state, why = "finished", None
        try:
            _work(session)
        except Stopped:
            state, why = "interrupted", control.stop_reason
        except LoadError as error:
            state, why = "failed", f"the measuring process failed: {error}"
        except TargetError as error:
            state, why = "failed", f"the server, which had answered before: {error}"
        except OSError as error:
            state, why = "failed", f"cannot write {error.filename or 'results'}: {error.strerror or error}"
        except Exception as error:
            _close(session, "failed", f"a fault of flatout's own: {type(error).__name__}: {error}")
            raise
        _close(session, state, why)
        listener(Finished(session.record, session.store.directory))
        return session.record, session.store.directory


def _work(session: Session) -> None:
    todo = [c for c in session.planned if c.verdict == "measure" and session.cell(c.id).finished is None]
    if not todo:
        return
    _find_gauges(session)
    if not session.gauges:
        _base(session)
    if session.options.warmup:
        _warm_up(session)
        if not session.gauges:
            _base(session)  # an engine is slower before it has compiled: the faster answer counts
    failed = 0
    for _, cells in groupby(todo, key=lambda c: c.context_tokens):
        failed = _row(session, list(cells), failed)
        if failed >= GIVE_UP_AFTER:
            _give_up(session, todo)
            return


def _find_gauges(session: Session) -> None:
    """Whether the server tells how many requests it runs; where it should and does not, the reason is said."""
    adapter = session.target.adapter
    why = adapter.gauges_reason
    if adapter.has_gauges:
        why = "they tell no number of running requests"
        try:
            now = adapter.live()
            session.gauges = now is not None and now.running is not None
        except (TargetError, ArithmeticError, ValueError) as error:
            why = str(error)
    if why and not session.gauges:
        session.warn(f"the server's gauges cannot be used, so it is watched by probes instead: {why}")


def _base(session: Session) -> None:
    """Measures the unloaded server, for later probes to be held against."""
    try:
        baseline = measure_baseline(session)
    except Budget as error:
        session.warn(f"the server's unloaded speed is not measured: {error}")
        return
    session.baseline = (
        faster(session.baseline, baseline) if session.baseline and baseline else baseline or session.baseline
    )


def _warm_up(session: Session) -> None:
    """The warm-up; what keeps it from its end is said, and the cells are measured all the same."""
    try:
        warmup.work(session)
    except Stopped as stop:
        if not stop.skip:
            raise
        session.say("the warm-up was skipped")
    except (Budget, TargetError, LoadError) as error:
        session.warn(f"no warm-up: {error}")
        session.recover(error)


def _row(session: Session, cells: Sequence[PlannedCell], failed: int) -> int:
    """Works off one context length; returns how many cells have failed in a row by now."""
    if cells[0].phase == "burst":
        for planned in cells:
            failed = _count_failed(session, planned, failed, partial(burst.work, session, planned))
        return failed
    try:
        contexts = row.prepare(session, cells)
    except TROUBLE as error:
        return failed + _settle(session, cells, error, "skipped by the user while its context was prepared")
    if contexts.cut_to is not None:
        _cut(session, cells, contexts.cut_to)
        return 0
    if contexts.error:
        _fail(session, [c for c in cells if session.cell(c.id).finished is None], contexts.error)
        return failed + 1
    decode_cells = [c for c in cells if c.phase == "decode"]
    for planned in decode_cells:
        failed = _count_failed(session, planned, failed, partial(decode.work, session, planned, contexts))
        if failed >= GIVE_UP_AFTER:
            break
    return failed if decode_cells else 0


def _count_failed(session: Session, planned: PlannedCell, failed: int, work: Callable[[], None]) -> int:
    try:
        work()
    except TROUBLE as error:
        _settle(session, [planned], error, "skipped by the user")
    return failed + 1 if session.cell(planned.id).status == Status.FAILED else 0


def _settle(session: Session, cells: Sequence[PlannedCell], error: Exception, skipped: str) -> bool:
    """What trouble makes of the cells that it hit and that have no result yet; a stop goes up. True: they failed."""
    if isinstance(error, Stopped):
        if not error.skip:
            raise error
        _leave(session, cells, skipped)
    elif isinstance(error, Budget):
        _leave(session, cells, f"token budget: {error}")
    else:
        session.recover(error)
        _fail(session, [c for c in cells if session.cell(c.id).finished is None], str(error))
        return True
    return False


def _emptied(cell: Cell) -> Cell:
    """Without what an earlier go at it left behind: a cell that is not measured shows no figures."""
    cell.decode = cell.burst = cell.window = cell.tokens = cell.telemetry = cell.self_check = None
    cell.flags = []
    return cell


def _leave(session: Session, cells: Iterable[PlannedCell], reason: str) -> None:
    """These cells are not measured, and that is their result."""
    for planned in cells:
        cell = session.cell(planned.id)
        if cell.finished is None:
            _emptied(cell)
            cell.status, cell.reason, cell.finished = Status.NOT_RUN, reason, now_iso()
            session.settle(cell)


def _cut(session: Session, cells: Iterable[PlannedCell], counted: int) -> None:
    """The server shortens prompts of this length in silence: these cells are over its length."""
    for planned in cells:
        cell = session.cell(planned.id)
        cell.status, cell.finished = Status.OVER_LENGTH, now_iso()
        cell.reason = (
            f"the server cut the prompt in silence: it counted {counted:,} of {planned.context_tokens or 0:,} tokens"
        )
        session.settle(cell)


def _fail(session: Session, cells: Iterable[PlannedCell], words: str) -> None:
    words = tidy(words, session.target.redactor.text)
    for planned in cells:
        cell = _emptied(session.cell(planned.id))
        cell.status, cell.reason, cell.error, cell.finished = Status.FAILED, "broke off", words, now_iso()
        session.settle(cell)


def _give_up(session: Session, todo: Iterable[PlannedCell]) -> None:
    rest = [c for c in todo if session.cell(c.id).finished is None]
    if rest:
        session.warn(f"{GIVE_UP_AFTER} cells in a row failed; the remaining {len(rest)} are not tried")
        _leave(session, rest, f"not tried: {GIVE_UP_AFTER} cells before it failed one after the other")


def _close(session: Session, state: str, why: str | None) -> None:
    record = session.record
    record.state = "finished" if state == "finished" else "interrupted" if state == "interrupted" else "failed"
    why = tidy(why, session.target.redactor.text) if why else None
    record.state_reason, record.finished = why, now_iso()
    for cell in record.cells:
        if cell.finished is None and cell.status == Status.NOT_RUN:
            _emptied(cell).reason = f"the run ended before it: {why or 'stopped'}"
    record.prompts.hashes |= session.prompter.hashes
    record.prompts.exact = session.prompter.exact()
    record.protocol.prompt_count = session.prompter.how
    if session.prompter.off:
        keys = ", ".join(sorted(session.prompter.off)[:4])
        session.warn(
            f"{len(session.prompter.off)} prompts were not exactly as long as asked ({keys} …); the real counts are in "
            "the record"
        )
    if why and state == "failed":
        session.warn(why)
    try:
        session.store.write_record(record)
    except OSError as error:
        session.say(f"the record could not be written to its end: {error.strerror or error}", "warning")


def exit_code(record: Record) -> int:
    """0 if every cell that should have been measured is valid or queued (or was skipped by the user); else 3."""
    for cell in record.cells:
        if cell.status in (Status.DOUBTFUL, Status.FAILED, Status.NO_STEADY_STATE):
            return EXIT_DOUBT
        if cell.status == Status.NOT_RUN and cell.finished is None and record.state != "finished":
            return EXIT_DOUBT
    if not any(cell.status in MEASURED for cell in record.cells):
        return EXIT_DOUBT
    return EXIT_OK
