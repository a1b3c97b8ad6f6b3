"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def upgrade() -> None:
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    metadata.drop_all(op.get_bind())


def _id() -> sa.Column[Any]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True)


def _to(name: str, table: str, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.ForeignKey(f"{table}.id"), **more)


def _text(name: str, length: int | None = None, *, null: bool = False, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=null, **more)


def _columns(kind: Any, *names: str, null: bool = False, **more: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=null, **more) for name in names]


def _index(table: str, name: str, *columns: str) -> sa.Index:
    return sa.Index(f"ix_{table}_{name}", *columns)


_US, _INT = sa.BigInteger(), sa.Integer()
sa.Table(
    "accounts", metadata, _id(), _text("name", 40, unique=True), *_columns(_US, "created_us"),
    *_columns(_US, "closed_us", null=True),
)  # fmt: skip
sa.Table(
    "boards", metadata, _text("board", 40, primary_key=True), _text("kind", 8), *_columns(_INT, "configurations"),
    _index("boards", "configurations", "configurations", "board"),
    _index("boards", "kind", "kind", "configurations", "board"),
)  # fmt: skip
sa.Table(
    "names", metadata, _text("kind", 12), _text("key", 120), _text("label", 200), *_columns(_INT, "runs"),
    sa.PrimaryKeyConstraint("kind", "key"), _index("names", "runs", "kind", "runs", "key"),
)  # fmt: skip
sa.Table(
    "takes", metadata, _text("origin", 300), _text("stamp", 80), _text("outcome", null=True),
    sa.UniqueConstraint("origin"),
)  # fmt: skip
sa.Table(
    "runs", metadata, _id(), _text("public_id", 16, unique=True), _text("content_hash", 64, unique=True),
    _text("record_id", 200, index=True), _to("account_id", "accounts", index=True),
    _text("origin", 300, null=True, index=True), _text("state", 12), _text("state_reason", null=True),
    *_columns(_US, "state_us", null=True), _to("successor_id", "runs"), *_columns(_US, "received_us", "started_us"),
    *_columns(_INT, "bytes"), _text("samples_hash", 64, null=True), _text("model_key", 120), _text("model", 200),
    _text("hardware_key", 120), _text("hardware", 200), _text("engine_key", 60), _text("engine", 100),
    _text("engine_version", 100, null=True), _text("precision", 40), _text("speculation", 60),
    _text("repro_key", 64, index=True), _text("history_key", 64), _text("suite", 100), _text("run_state", 12),
    *_columns(_INT, "cells", "cells_measured", "cells_sound"), *_columns(_INT, "context_max", null=True),
    *_columns(sa.Float(), "single_tok_s", "total_tok_s", "prefill_tok_s", null=True), _text("trust", 12),
    *_columns(_INT, "trust_notes"), _text("summary"),
    *(_index("runs", name, key, "state", "started_us", "id")
      for name, key in (("engine", "engine_key"), ("hardware", "hardware_key"), ("history", "history_key"),
                        ("model", "model_key"), ("precision", "precision"), ("speculation", "speculation"))),
    _index("runs", "context", "state", "context_max", "started_us", "id"),
    _index("runs", "newest", "state", "started_us", "id"),
)  # fmt: skip
sa.Table(
    "tokens", metadata, _id(), _to("account_id", "accounts", nullable=False, index=True), _text("label", 80),
    _text("hash", 64, unique=True), _text("start", 16), _text("scopes", 80), *_columns(_US, "created_us"),
    *_columns(_US, "used_us", "expires_us", "revoked_us", null=True),
)  # fmt: skip
sa.Table(
    "deeds", metadata, _id(), *_columns(_US, "at_us"), _text("who", 60), _text("what", 40),
    _to("run_id", "runs", index=True), _text("detail", null=True),
)  # fmt: skip
sa.Table(
    "points", metadata, _to("run_id", "runs", nullable=False), _text("phase", 8),
    *_columns(_INT, "context_tokens", "concurrency"), _text("status", 20), *_columns(sa.Boolean(), "sound"),
    *_columns(sa.Float(), "rate_tok_s", "rate_low", "rate_high", "each_tok_s", "ttft_ms", "itl_ms", null=True),
    sa.PrimaryKeyConstraint("run_id", "phase", "context_tokens", "concurrency"),
    _index("points", "context", "context_tokens", "run_id"),
)  # fmt: skip
sa.Table(
    "reports", metadata, _id(), _to("run_id", "runs", nullable=False, index=True), _to("account_id", "accounts"),
    _text("reason"), *_columns(_US, "made_us"), *_columns(_US, "settled_us", null=True, index=True),
    _to("settled_by", "accounts"), _text("outcome", null=True),
)  # fmt: skip
sa.Table(
    "standings", metadata, _text("board", 40), _text("repro_key", 64), _text("model_key", 120),
    _text("hardware_key", 120), _text("engine_key", 60), *_columns(sa.Float(), "value"),
    *_columns(sa.Float(), "low", "high", null=True), *_columns(_INT, "runs"), _to("run_id", "runs", nullable=False),
    sa.PrimaryKeyConstraint("board", "repro_key"), _index("standings", "repro", "repro_key"),
    _index("standings", "value", "board", "value", "repro_key"),
    *(_index("standings", name, f"{name}_key", "board", "value", "repro_key")
      for name in ("model", "hardware", "engine")),
)  # fmt: skip
