"""Variants of model versions: what was measured of each way to run one, or why it was refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "model_variants",
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("runtime", sa.String(40), nullable=False),
        sa.Column("precision", sa.String(40), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("resident_bytes", sa.BigInteger(), nullable=False),
        sa.Column("load_s", sa.Float(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("held_out", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model", "version", "name", name="pk_model_variants"),
    )
