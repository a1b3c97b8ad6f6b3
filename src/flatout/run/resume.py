"""Going on with a run that stopped: only what is missing is measured, and only on the same server in the same way."""

from __future__ import annotations

from pathlib import Path

from flatout.flags import Status
from flatout.record import Cell, Record, find, read


class ResumeError(Exception):
    """The run cannot be gone on with; the text names what has changed."""


def missing(cell: Cell) -> bool:
    """Whether a resumed run measures this cell: it should have a number and has none."""
    if cell.status == Status.NOT_RUN:
        return cell.finished is None or (cell.reason or "").startswith(("skipped by the user", "not tried", "token"))
    return cell.status in (Status.FAILED, Status.NO_STEADY_STATE)


def take_up(directory: Path, now: Record) -> tuple[Record, Path]:
    """The stopped run's record, made ready to go on, and its directory. `now`: a new record for today's server.

    Raises ResumeError naming each difference, and RecordError if there is no readable record.
    """
    path = find(directory)
    old = read(path)
    differences = _differences(old, now)
    if differences:
        raise ResumeError(
            "this run cannot be gone on with, since its numbers would not be comparable: " + "; ".join(differences)
        )
    for i, cell in enumerate(old.cells):
        if missing(cell):
            old.cells[i] = next(c for c in now.cells if c.id == cell.id)
    old.state, old.state_reason, old.finished = "running", None, None
    old.warnings.append(f"resumed at {now.started} (flatout {now.client.flatout})")
    old.client.stamp_clock, old.client.load_processes = now.client.stamp_clock, now.client.load_processes
    return old, path.parent


def _differences(old: Record, now: Record) -> list[str]:
    pairs = [
        ("engine", old.engine.name.value, now.engine.name.value),
        ("engine version", old.engine.version.value, now.engine.version.value),
        ("model", old.model.id.value, now.model.id.value),
        ("model as served", old.model.served_as.value, now.model.served_as.value),
        ("launch command", old.engine.launch_command.value, now.engine.launch_command.value),
        ("model length", old.room.model_length.value, now.room.model_length.value),
        ("KV tokens", old.room.kv_tokens.value, now.room.kv_tokens.value),
        ("limit of running requests", old.room.max_running.value, now.room.max_running.value),
        ("API", old.protocol.api, now.protocol.api),
        ("flatout", old.client.flatout, now.client.flatout),
    ]
    found = [f"{name} was {then!r} and is {today!r}" for name, then, today in pairs if then != today]
    if old.plan.fingerprint != now.plan.fingerprint:
        changed = [
            name
            for name in ("suite", "prefill", "decode", "concurrency", "time_s", "precision", "max_output", "options")
            if getattr(old.plan, name) != getattr(now.plan, name)
        ]
        found.append(f"the options differ in {', '.join(changed) or 'something that shapes the measurement'}")
    if [c.id for c in old.cells] != [c.id for c in now.cells]:
        found.append("the cells differ")
    return found
