"""How many rows a second a model version had when it was last used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is known of what was used before."""
    op.add_column("model_versions", sa.Column("rows_per_s", sa.Float(), nullable=True))
