"""Looks at test rows, counted and kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of looks."""
    op.create_table(
        "test_looks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("dataset", sa.String(100), nullable=False),
        sa.Column("snapshot", sa.String(64), nullable=False),
        sa.Column("members", sa.String(64), nullable=False),
        sa.Column("rival", sa.String(64), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("right", sa.LargeBinary(), nullable=False),
        sa.Column("best_single", sa.Float(), nullable=False),
        sa.Column("function", sa.String(100), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_test_looks"),
    )
    op.create_index("ix_test_looks_snapshot_members", "test_looks", ["snapshot", "members"])
    op.create_index("ix_test_looks_dataset", "test_looks", ["dataset"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_test_looks_dataset", "test_looks")
    op.drop_index("ix_test_looks_snapshot_members", "test_looks")
    op.drop_table("test_looks")
