"""Looks at test rows say by which metric they were, and what they scored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Those from before were by accuracy, which their rows still say."""
    op.add_column("test_looks", sa.Column("metric", sa.String(40), server_default="accuracy", nullable=False))
    op.add_column("test_looks", sa.Column("score", sa.Float(), nullable=True))
