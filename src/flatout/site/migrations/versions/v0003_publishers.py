"""Rankings that keep publishers apart; sessions that sign-out ends; which token made which."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ADDED = ("others", "others_low", "others_high", "doubtful")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("epoch", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.add_column("tokens", sa.Column("parent_id", sa.BigInteger(), nullable=True))
    op.add_column("standings", sa.Column("others", sa.Integer(), nullable=True))
    op.add_column("standings", sa.Column("others_low", sa.Float(), nullable=True))
    op.add_column("standings", sa.Column("others_high", sa.Float(), nullable=True))
    op.add_column("standings", sa.Column("doubtful", sa.Boolean(), nullable=True))
    # Rows of one publisher without doubtful runs stay as they are; the site makes the others anew when it starts.
    op.execute(
        sa.text(
            "UPDATE standings SET others = 0, doubtful = :no WHERE repro_key NOT IN (SELECT repro_key FROM runs "
            "WHERE state = 'public' GROUP BY repro_key HAVING COUNT(DISTINCT COALESCE(account_id, -1)) > 1 "
            "OR MAX(CASE WHEN trust = 'doubtful' THEN 1 ELSE 0 END) = 1)"
        ).bindparams(sa.bindparam("no", False, sa.Boolean()))
    )


def downgrade() -> None:
    for name in reversed(ADDED):
        op.drop_column("standings", name)
    op.drop_column("tokens", "parent_id")
    op.drop_column("tokens", "epoch")
