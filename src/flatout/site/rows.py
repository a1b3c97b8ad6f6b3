"""What the store tells of runs: rows of `runs`, and changes of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from typing import Any, Final

import sqlalchemy as sa

from flatout.site.schema import accounts, runs


@dataclass(frozen=True, slots=True)
class Published:
    """`created`: False where the site had the record already."""

    public_id: str
    state: str
    created: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """A run that has just come into a state. `repro_key`: the configuration whose ranking that may change."""

    public_id: str
    content_hash: str
    state: str
    repro_key: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of `runs`, by the names there, with the account's name (None: local)."""

    id: int
    public_id: str
    content_hash: str
    record_id: str
    account_id: int | None
    origin: str | None
    state: str
    state_reason: str | None
    state_us: int | None
    successor_id: int | None
    replaces_id: int | None
    received_us: int
    started_us: int
    bytes: int
    samples_hash: str | None
    model_key: str
    model: str
    hardware_key: str
    hardware: str
    engine_key: str
    engine: str
    engine_version: str | None
    precision: str
    speculation: str
    repro_key: str
    history_key: str
    suite: str
    run_state: str
    cells: int
    cells_measured: int
    cells_sound: int
    context_max: int | None
    single_tok_s: float | None
    total_tok_s: float | None
    prefill_tok_s: float | None
    trust: str
    trust_notes: int
    summary: str
    account: str | None

    def told(self) -> dict[str, Any]:
        """What `facts` wrote into `summary`; empty for a deleted run."""
        return dict(json.loads(self.summary))


def now_us() -> int:
    """This moment in microseconds since 1970 (UTC)."""
    return time.time_ns() // 1000


def run_rows() -> sa.Select[Any]:
    """Rows for `run_row`."""
    return sa.select(runs, accounts.c.name.label("account")).join_from(
        runs, accounts, accounts.c.id == runs.c.account_id, isouter=True
    )


def run_row(row: Any) -> RunRow:
    """From a row of `run_rows`."""
    held = row._mapping
    return RunRow(**{name: held[name] for name in _FIELDS})


_FIELDS: Final = tuple(field.name for field in fields(RunRow))


def of_history(wanted: sa.Select[Any], history_key: str, limit: int) -> sa.Select[Any]:
    """Columns of `runs`, of the newest public runs of a configuration over all versions of its engine."""
    mine = wanted.where(runs.c.history_key == history_key, runs.c.state == "public")
    return mine.order_by(runs.c.started_us.desc(), runs.c.id.desc()).limit(limit)
