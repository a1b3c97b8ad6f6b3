"""Which public run one that waits takes the place of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("replaces_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "replaces_id")
