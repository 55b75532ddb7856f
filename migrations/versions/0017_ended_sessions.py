"""Sessions of browsers that were logged out: whoever copied the cookie has nothing of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "ended_sessions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("and_earlier", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_ended_sessions"),
        sqlite_autoincrement=True,
    )
