"""What servers did of late, in rings of a fixed size: pages show it after a restart too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "history",
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("ring", sa.String(10), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("stretch", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("server", "ring", "slot", name="pk_history"),
    )
