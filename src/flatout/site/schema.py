"""The tables, one schema for SQLite and PostgreSQL: what is searched. The records themselves lie in files (`blobs`).

Times are whole microseconds since 1970 (UTC), so both databases sort and compare them alike. Texts that name
something (`model_key`, …) are made by `facts`; a board's name by `boards`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself for INTEGER alone."""

accounts: Final = Table(
    "accounts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("created_us", BigInteger, nullable=False),
    Column("closed_us", BigInteger),
)

tokens: Final = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False, index=True),
    Column("label", String(80), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("start", String(16), nullable=False),
    Column("scopes", String(80), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("used_us", BigInteger),
    Column("expires_us", BigInteger),
    Column("revoked_us", BigInteger),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("parent_id", BigInteger),
)
"""`hash`: SHA-256 of the token, which is random enough to need no salt; `start`: its first characters, to know it by;
`scopes`: words with spaces between. `epoch`: goes up as somebody signs out; a session of an earlier one has ended.
`parent_id`: the token that it was made with (no foreign key, as in `runs`)."""

runs: Final = Table(
    "runs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("public_id", String(16), nullable=False, unique=True),
    Column("content_hash", String(64), nullable=False, unique=True),
    Column("record_id", String(200), nullable=False, index=True),
    Column("account_id", ForeignKey("accounts.id"), index=True),
    Column("origin", String(300), index=True),
    Column("state", String(12), nullable=False),
    Column("state_reason", Text),
    Column("state_us", BigInteger),
    Column("successor_id", ForeignKey("runs.id")),
    Column("replaces_id", BigInteger),
    Column("received_us", BigInteger, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("samples_hash", String(64)),
    Column("model_key", String(120), nullable=False),
    Column("model", String(200), nullable=False),
    Column("hardware_key", String(120), nullable=False),
    Column("hardware", String(200), nullable=False),
    Column("engine_key", String(60), nullable=False),
    Column("engine", String(100), nullable=False),
    Column("engine_version", String(100)),
    Column("precision", String(40), nullable=False),
    Column("speculation", String(60), nullable=False),
    Column("repro_key", String(64), nullable=False, index=True),
    Column("history_key", String(64), nullable=False),
    Column("suite", String(100), nullable=False),
    Column("run_state", String(12), nullable=False),
    Column("cells", Integer, nullable=False),
    Column("cells_measured", Integer, nullable=False),
    Column("cells_sound", Integer, nullable=False),
    Column("context_max", Integer),
    Column("single_tok_s", Float),
    Column("total_tok_s", Float),
    Column("prefill_tok_s", Float),
    Column("trust", String(12), nullable=False),
    Column("trust_notes", Integer, nullable=False),
    Column("summary", Text, nullable=False),
    Index("ix_runs_newest", "state", "started_us", "id"),
    Index("ix_runs_model", "model_key", "state", "started_us", "id"),
    Index("ix_runs_hardware", "hardware_key", "state", "started_us", "id"),
    Index("ix_runs_engine", "engine_key", "state", "started_us", "id"),
    Index("ix_runs_precision", "precision", "state", "started_us", "id"),
    Index("ix_runs_speculation", "speculation", "state", "started_us", "id"),
    Index("ix_runs_context", "state", "context_max", "started_us", "id"),
    Index("ix_runs_history", "history_key", "state", "started_us", "id"),
)
"""`public_id`: from the content hash, stands in links. `replaces_id`: the row of the public run whose place this one
takes once it is public (no foreign key: SQLite cannot add one to a table, and rows stay for good). `origin`: the local
result directory's name, for runs that were picked up; never shown to others. `state`: public, queued, hidden, withdrawn
or deleted. `run_state`: the record's own state. `*_tok_s`: the best sound figure of its kind in the run. `trust`: good,
notes or doubtful, with the number of notes; `summary`: JSON of what a list shows."""

points: Final = Table(
    "points",
    metadata,
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("phase", String(8), nullable=False),
    Column("context_tokens", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("status", String(20), nullable=False),
    Column("sound", Boolean, nullable=False),
    Column("rate_tok_s", Float),
    Column("rate_low", Float),
    Column("rate_high", Float),
    Column("each_tok_s", Float),
    Column("ttft_ms", Float),
    Column("itl_ms", Float),
    PrimaryKeyConstraint("run_id", "phase", "context_tokens", "concurrency"),
    Index("ix_points_context", "context_tokens", "run_id"),
)
"""The measured cells. `rate_tok_s`: prefill, total or end-to-end tok/s by phase, with its 95 % interval; `each_tok_s`:
per-request median; `ttft_ms`, `itl_ms`: p50. `sound`: status valid or requests_queued."""

standings: Final = Table(
    "standings",
    metadata,
    Column("board", String(40), nullable=False),
    Column("repro_key", String(64), nullable=False),
    Column("model_key", String(120), nullable=False),
    Column("hardware_key", String(120), nullable=False),
    Column("engine_key", String(60), nullable=False),
    Column("value", Float, nullable=False),
    Column("low", Float),
    Column("high", Float),
    Column("runs", Integer, nullable=False),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("others", Integer),
    Column("others_low", Float),
    Column("others_high", Float),
    Column("doubtful", Boolean),
    PrimaryKeyConstraint("board", "repro_key"),
    Index("ix_standings_value", "board", "value", "repro_key"),
    Index("ix_standings_model", "model_key", "board", "value", "repro_key"),
    Index("ix_standings_hardware", "hardware_key", "board", "value", "repro_key"),
    Index("ix_standings_engine", "engine_key", "board", "value", "repro_key"),
    Index("ix_standings_repro", "repro_key"),
)
"""One row a board and configuration: its public runs pooled (`value` with interval, `runs` how many), and the newest
of them (`run_id`), which stands for it in links. `others`: publishers whose runs are shown to differ and are left out,
with the least and the largest of what they measured; `doubtful`: there are doubtful runs alone. Made anew for a
configuration whenever one of its runs changes; null in `others`: the row is older than these columns."""

boards: Final = Table(
    "boards",
    metadata,
    Column("board", String(40), primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("configurations", Integer, nullable=False),
    Index("ix_boards_kind", "kind", "configurations", "board"),
    Index("ix_boards_configurations", "configurations", "board"),
)
"""How many configurations each board ranks: for the list of boards. `kind`: single, total, prefill or users."""

names: Final = Table(
    "names",
    metadata,
    Column("kind", String(12), nullable=False),
    Column("key", String(120), nullable=False),
    Column("label", String(200), nullable=False),
    Column("runs", Integer, nullable=False),
    Column("stamp", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("kind", "key"),
    Index("ix_names_runs", "kind", "runs", "key"),
)
"""What there is to filter by, with the number of public runs. `kind`: model, hardware, engine, precision or
speculation. `stamp`: another number each time that a run of that name comes or goes, or its rankings are made anew."""

reports: Final = Table(
    "reports",
    metadata,
    Column("id", ID, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("account_id", ForeignKey("accounts.id")),
    Column("reason", Text, nullable=False),
    Column("made_us", BigInteger, nullable=False),
    Column("settled_us", BigInteger, index=True),
    Column("settled_by", ForeignKey("accounts.id")),
    Column("outcome", Text),
)

deeds: Final = Table(
    "deeds",
    metadata,
    Column("id", ID, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("who", String(60), nullable=False),
    Column("what", String(40), nullable=False),
    Column("run_id", ForeignKey("runs.id"), index=True),
    Column("detail", Text),
)
"""Who did what when: never deleted, and changed in one thing alone: the name of an account that was closed becomes
`deleted-<number>`. `who`: the account's name, `operator` (command line), `site`."""

takes: Final = Table(
    "takes",
    metadata,
    Column("origin", String(300), nullable=False),
    Column("stamp", String(80), nullable=False),
    Column("outcome", Text),
    UniqueConstraint("origin"),
)
"""Local results that were looked at: by directory, with the file's size and time, and why it was not taken (null: it
was)."""
