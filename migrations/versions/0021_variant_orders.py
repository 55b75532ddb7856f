"""Orders of variants that wait, by the server that took them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "variant_orders",
        sa.Column("server", sa.String(64), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("variant", sa.String(40), nullable=False),
        sa.Column("wishes", sa.JSON(), nullable=False),
        sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("server", "model", "version", "variant", name="pk_variant_orders"),
    )
