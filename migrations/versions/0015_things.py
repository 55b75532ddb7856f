"""Who owns functions, models and datasets, and who sees them; whose a job is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and the jobs' column."""
    op.create_table(
        "things",
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("visibility", sa.String(20), nullable=False),
        sa.Column("shared_with", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_things"),
    )
    op.add_column("jobs", sa.Column("owner", sa.String(100), nullable=False, server_default=""))
