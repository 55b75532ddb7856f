"""What a job has found lies with it: listing jobs opens none of their journals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Unknown of the jobs that have ended before."""
    op.add_column("jobs", sa.Column("found", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "found")
