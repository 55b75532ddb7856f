"""What was fitted of a deployment's members, kept with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; deployments from before have no fit."""
    op.add_column("deployments", sa.Column("fit", sa.JSON(none_as_null=True), nullable=True))
