"""Who does what is due of a retraining, and until when no other server may."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Those from before are nobody's."""
    op.add_column("retrainings", sa.Column("owner", sa.String(100), nullable=True))
    op.add_column("retrainings", sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True))
