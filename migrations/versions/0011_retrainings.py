"""Functions that are trained again by themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "retrainings",
        sa.Column("function", sa.String(100), nullable=False),
        sa.Column("every_s", sa.Float(), nullable=True),
        sa.Column("budget", sa.String(40), nullable=False),
        sa.Column("roles", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("function", name="pk_retrainings"),
    )
