"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _accounts()
    _boards()
    _names()
    _takes()
    _runs()
    _tokens()
    _deeds()
    _points()
    _reports()
    _standings()


def downgrade() -> None:
    for table in ("standings", "reports", "points", "deeds", "tokens", "runs", "takes", "names", "boards", "accounts"):
        op.drop_table(table)


def _accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )


def _boards() -> None:
    op.create_table(
        "boards",
        sa.Column("board", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("configurations", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("board", name=op.f("pk_boards")),
    )
    op.create_index("ix_boards_configurations", "boards", ["configurations", "board"], unique=False)
    op.create_index("ix_boards_kind", "boards", ["kind", "configurations", "board"], unique=False)


def _names() -> None:
    op.create_table(
        "names",
        sa.Column("kind", sa.String(length=12), nullable=False),
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_names")),
    )
    op.create_index("ix_names_runs", "names", ["kind", "runs", "key"], unique=False)


def _takes() -> None:
    op.create_table(
        "takes",
        sa.Column("origin", sa.String(length=300), nullable=False),
        sa.Column("stamp", sa.String(length=80), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.UniqueConstraint("origin", name=op.f("uq_takes_origin")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("public_id", sa.String(length=16), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("record_id", sa.String(length=200), nullable=False),
        sa.Column("account_id", ID, nullable=True),
        sa.Column("origin", sa.String(length=300), nullable=True),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("state_us", sa.BigInteger(), nullable=True),
        sa.Column("successor_id", ID, nullable=True),
        sa.Column("received_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("samples_hash", sa.String(length=64), nullable=True),
        sa.Column("model_key", sa.String(length=120), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("hardware_key", sa.String(length=120), nullable=False),
        sa.Column("hardware", sa.String(length=200), nullable=False),
        sa.Column("engine_key", sa.String(length=60), nullable=False),
        sa.Column("engine", sa.String(length=100), nullable=False),
        sa.Column("engine_version", sa.String(length=100), nullable=True),
        sa.Column("precision", sa.String(length=40), nullable=False),
        sa.Column("speculation", sa.String(length=60), nullable=False),
        sa.Column("repro_key", sa.String(length=64), nullable=False),
        sa.Column("history_key", sa.String(length=64), nullable=False),
        sa.Column("suite", sa.String(length=100), nullable=False),
        sa.Column("run_state", sa.String(length=12), nullable=False),
        sa.Column("cells", sa.Integer(), nullable=False),
        sa.Column("cells_measured", sa.Integer(), nullable=False),
        sa.Column("cells_sound", sa.Integer(), nullable=False),
        sa.Column("context_max", sa.Integer(), nullable=True),
        sa.Column("single_tok_s", sa.Float(), nullable=True),
        sa.Column("total_tok_s", sa.Float(), nullable=True),
        sa.Column("prefill_tok_s", sa.Float(), nullable=True),
        sa.Column("trust", sa.String(length=12), nullable=False),
        sa.Column("trust_notes", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_runs_account_id")),
        sa.ForeignKeyConstraint(["successor_id"], ["runs.id"], name=op.f("fk_runs_successor_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("content_hash", name=op.f("uq_runs_content_hash")),
        sa.UniqueConstraint("public_id", name=op.f("uq_runs_public_id")),
    )
    op.create_index(op.f("ix_runs_account_id"), "runs", ["account_id"], unique=False)
    op.create_index("ix_runs_context", "runs", ["state", "context_max", "started_us", "id"], unique=False)
    op.create_index("ix_runs_engine", "runs", ["engine_key", "state", "started_us", "id"], unique=False)
    op.create_index("ix_runs_hardware", "runs", ["hardware_key", "state", "started_us", "id"], unique=False)
    op.create_index("ix_runs_history", "runs", ["history_key", "state", "started_us", "id"], unique=False)
    op.create_index("ix_runs_model", "runs", ["model_key", "state", "started_us", "id"], unique=False)
    op.create_index("ix_runs_newest", "runs", ["state", "started_us", "id"], unique=False)
    op.create_index(op.f("ix_runs_origin"), "runs", ["origin"], unique=False)
    op.create_index("ix_runs_precision", "runs", ["precision", "state", "started_us", "id"], unique=False)
    op.create_index(op.f("ix_runs_record_id"), "runs", ["record_id"], unique=False)
    op.create_index(op.f("ix_runs_repro_key"), "runs", ["repro_key"], unique=False)
    op.create_index("ix_runs_speculation", "runs", ["speculation", "state", "started_us", "id"], unique=False)


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("label", sa.String(length=80), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("start", sa.String(length=16), nullable=False),
        sa.Column("scopes", sa.String(length=80), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=True),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_tokens_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
    op.create_index(op.f("ix_tokens_account_id"), "tokens", ["account_id"], unique=False)


def _deeds() -> None:
    op.create_table(
        "deeds",
        sa.Column("id", ID, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(length=60), nullable=False),
        sa.Column("what", sa.String(length=40), nullable=False),
        sa.Column("run_id", ID, nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_deeds_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deeds")),
    )
    op.create_index(op.f("ix_deeds_run_id"), "deeds", ["run_id"], unique=False)


def _points() -> None:
    op.create_table(
        "points",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("phase", sa.String(length=8), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("sound", sa.Boolean(), nullable=False),
        sa.Column("rate_tok_s", sa.Float(), nullable=True),
        sa.Column("rate_low", sa.Float(), nullable=True),
        sa.Column("rate_high", sa.Float(), nullable=True),
        sa.Column("each_tok_s", sa.Float(), nullable=True),
        sa.Column("ttft_ms", sa.Float(), nullable=True),
        sa.Column("itl_ms", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_points_run_id")),
        sa.PrimaryKeyConstraint("run_id", "phase", "context_tokens", "concurrency", name=op.f("pk_points")),
    )
    op.create_index("ix_points_context", "points", ["context_tokens", "run_id"], unique=False)


def _reports() -> None:
    op.create_table(
        "reports",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_us", sa.BigInteger(), nullable=False),
        sa.Column("settled_us", sa.BigInteger(), nullable=True),
        sa.Column("settled_by", ID, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_reports_account_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_reports_run_id")),
        sa.ForeignKeyConstraint(["settled_by"], ["accounts.id"], name=op.f("fk_reports_settled_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
    )
    op.create_index(op.f("ix_reports_run_id"), "reports", ["run_id"], unique=False)
    op.create_index(op.f("ix_reports_settled_us"), "reports", ["settled_us"], unique=False)


def _standings() -> None:
    op.create_table(
        "standings",
        sa.Column("board", sa.String(length=40), nullable=False),
        sa.Column("repro_key", sa.String(length=64), nullable=False),
        sa.Column("model_key", sa.String(length=120), nullable=False),
        sa.Column("hardware_key", sa.String(length=120), nullable=False),
        sa.Column("engine_key", sa.String(length=60), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_standings_run_id")),
        sa.PrimaryKeyConstraint("board", "repro_key", name=op.f("pk_standings")),
    )
    op.create_index("ix_standings_engine", "standings", ["engine_key", "board", "value", "repro_key"], unique=False)
    op.create_index("ix_standings_hardware", "standings", ["hardware_key", "board", "value", "repro_key"], unique=False)
    op.create_index("ix_standings_model", "standings", ["model_key", "board", "value", "repro_key"], unique=False)
    op.create_index("ix_standings_repro", "standings", ["repro_key"], unique=False)
    op.create_index("ix_standings_value", "standings", ["board", "value", "repro_key"], unique=False)
