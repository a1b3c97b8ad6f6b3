"""The tables, one schema for SQLite and PostgreSQL: what is searched. The records themselves lie in files (`blobs`).

Times are whole microseconds since 1970 (UTC), so both databases sort and compare them alike. Texts that name
something (`model_key`, …) are made by `index`; a board's name by `boards`.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, ForeignKey, Index, Table

metadata: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows by itself for INTEGER alone."""


def _id() -> Column[Any]:
    return Column("id", ID, primary_key=True)


def _text(name: str, length: int, **more: Any) -> Column[Any]:
    return Column(name, sa.String(length), nullable=False, **more)


def _us(name: str, **more: Any) -> Column[Any]:
    return Column(name, sa.BigInteger, **more)


def _real(*names: str) -> list[Column[Any]]:
    return [Column(name, sa.Float) for name in names]


def _count(*names: str) -> list[Column[Any]]:
    return [Column(name, sa.Integer, nullable=False) for name in names]


accounts: Final = Table(
    "accounts", metadata, _id(), _text("name", 40, unique=True), _us("created_us", nullable=False), _us("closed_us"),
)  # fmt: skip

tokens: Final = Table(
    "tokens", metadata, _id(),
    Column("account_id", ForeignKey("accounts.id"), nullable=False, index=True),
    _text("label", 80), _text("hash", 64, unique=True), _text("start", 16), _text("scopes", 80),
    _us("created_us", nullable=False), _us("used_us"), _us("expires_us"), _us("revoked_us"),
    Column("epoch", sa.Integer, nullable=False, server_default=sa.text("0")),
    Column("parent_id", sa.BigInteger),
)  # fmt: skip
"""`hash`: SHA-256 of the token, which is random enough to need no salt; `start`: its first characters, to know it by;
`scopes`: words with spaces between. `epoch`: goes up as somebody signs out; a session of an earlier one has ended.
`parent_id`: the token that it was made with (no foreign key, as in `runs`)."""

runs: Final = Table(
    "runs", metadata, _id(),
    _text("public_id", 16, unique=True), _text("content_hash", 64, unique=True), _text("record_id", 200, index=True),
    Column("account_id", ForeignKey("accounts.id"), index=True),
    Column("origin", sa.String(300), index=True),
    _text("state", 12), Column("state_reason", sa.Text), _us("state_us"),
    Column("successor_id", ForeignKey("runs.id")),
    Column("replaces_id", sa.BigInteger),
    _us("received_us", nullable=False), _us("started_us", nullable=False), *_count("bytes"),
    Column("samples_hash", sa.String(64)),
    _text("model_key", 120), _text("model", 200), _text("hardware_key", 120), _text("hardware", 200),
    _text("engine_key", 60), _text("engine", 100), Column("engine_version", sa.String(100)),
    _text("precision", 40), _text("speculation", 60),
    _text("repro_key", 64, index=True), _text("history_key", 64),
    _text("suite", 100), _text("run_state", 12), *_count("cells", "cells_measured", "cells_sound"),
    Column("context_max", sa.Integer), *_real("single_tok_s", "total_tok_s", "prefill_tok_s"),
    _text("trust", 12), *_count("trust_notes"), Column("summary", sa.Text, nullable=False),
    Index("ix_runs_newest", "state", "started_us", "id"),
    Index("ix_runs_model", "model_key", "state", "started_us", "id"),
    Index("ix_runs_hardware", "hardware_key", "state", "started_us", "id"),
    Index("ix_runs_engine", "engine_key", "state", "started_us", "id"),
    Index("ix_runs_precision", "precision", "state", "started_us", "id"),
    Index("ix_runs_speculation", "speculation", "state", "started_us", "id"),
    Index("ix_runs_context", "state", "context_max", "started_us", "id"),
    Index("ix_runs_history", "history_key", "state", "started_us", "id"),
)  # fmt: skip
"""`public_id`: from the content hash, stands in links. `replaces_id`: the row of the public run whose place this one
takes once it is public (no foreign key: SQLite cannot add one to a table, and rows stay for good). `origin`: the local
result directory's name, for runs that were picked up; never shown to others. `state`: public, queued, hidden, withdrawn
or deleted. `run_state`: the record's own state. `*_tok_s`: the best sound figure of its kind in the run. `trust`: good,
notes or doubtful, with the number of notes; `summary`: JSON of what a list shows."""

points: Final = Table(
    "points", metadata,
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    _text("phase", 8), *_count("context_tokens", "concurrency"), _text("status", 20),
    Column("sound", sa.Boolean, nullable=False),
    *_real("rate_tok_s", "rate_low", "rate_high", "each_tok_s", "ttft_ms", "itl_ms"),
    sa.PrimaryKeyConstraint("run_id", "phase", "context_tokens", "concurrency"),
    Index("ix_points_context", "context_tokens", "run_id"),
)  # fmt: skip
"""The measured cells. `rate_tok_s`: prefill, total or end-to-end tok/s by phase, with its 95 % interval; `each_tok_s`:
per-request median; `ttft_ms`, `itl_ms`: p50. `sound`: status valid or requests_queued."""

standings: Final = Table(
    "standings", metadata,
    _text("board", 40), _text("repro_key", 64), _text("model_key", 120), _text("hardware_key", 120),
    _text("engine_key", 60), Column("value", sa.Float, nullable=False), *_real("low", "high"), *_count("runs"),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("others", sa.Integer), *_real("others_low", "others_high"), Column("doubtful", sa.Boolean),
    sa.PrimaryKeyConstraint("board", "repro_key"),
    Index("ix_standings_value", "board", "value", "repro_key"),
    Index("ix_standings_model", "model_key", "board", "value", "repro_key"),
    Index("ix_standings_hardware", "hardware_key", "board", "value", "repro_key"),
    Index("ix_standings_engine", "engine_key", "board", "value", "repro_key"),
    Index("ix_standings_repro", "repro_key"),
)  # fmt: skip
"""One row a board and configuration: its public runs pooled (`value` with interval, `runs` how many), and the newest
of them (`run_id`), which stands for it in links. `others`: publishers whose runs are shown to differ and are left out,
with the least and the largest of what they measured; `doubtful`: there are doubtful runs alone. Made anew for a
configuration whenever one of its runs changes; null in `others`: the row is older than these columns."""

boards: Final = Table(
    "boards", metadata,
    _text("board", 40, primary_key=True), _text("kind", 8), *_count("configurations"),
    Index("ix_boards_kind", "kind", "configurations", "board"),
    Index("ix_boards_configurations", "configurations", "board"),
)  # fmt: skip
"""How many configurations each board ranks: for the list of boards. `kind`: single, total, prefill or users."""

names: Final = Table(
    "names", metadata,
    _text("kind", 12), _text("key", 120), _text("label", 200), *_count("runs"),
    Column("stamp", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.PrimaryKeyConstraint("kind", "key"),
    Index("ix_names_runs", "kind", "runs", "key"),
)  # fmt: skip
"""What there is to filter by, with the number of public runs. `kind`: model, hardware, engine, precision or
speculation. `stamp`: another number each time that a run of that name comes or goes, or its rankings are made anew."""

reports: Final = Table(
    "reports", metadata, _id(),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("account_id", ForeignKey("accounts.id")),
    Column("reason", sa.Text, nullable=False), _us("made_us", nullable=False), _us("settled_us", index=True),
    Column("settled_by", ForeignKey("accounts.id")),
    Column("outcome", sa.Text),
)  # fmt: skip

deeds: Final = Table(
    "deeds", metadata, _id(),
    _us("at_us", nullable=False), _text("who", 60), _text("what", 40),
    Column("run_id", ForeignKey("runs.id"), index=True),
    Column("detail", sa.Text),
)  # fmt: skip
"""Who did what when: never deleted, and changed in one thing alone: the name of an account that was closed becomes
`deleted-<number>`. `who`: the account's name, `operator` (command line), `site`."""

takes: Final = Table(
    "takes", metadata, _text("origin", 300), _text("stamp", 80), Column("outcome", sa.Text),
    sa.UniqueConstraint("origin"),
)  # fmt: skip
"""Local results that were looked at: by directory, with the file's size and time, and why it was not taken (null: it
was)."""
