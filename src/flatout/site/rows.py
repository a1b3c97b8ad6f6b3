"""What the store tells of runs: rows of `runs`, and changes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Published:
    """`created`: False where the site had the record already."""

    public_id: str
    state: str
    created: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """A run that has just come into a state."""

    public_id: str
    content_hash: str
    state: str


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


def run_row(row: Any) -> RunRow:
    """From a row of `runs` with the account's name as `account`."""
    held = row._mapping
    return RunRow(**{name: held[name] for name in _FIELDS})


_FIELDS: Final = tuple(field.name for field in fields(RunRow))
