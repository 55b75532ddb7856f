"""Who does what only one server of a registry may do, and which servers share it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and the one lease there is, which nobody holds."""
    leases = op.create_table(
        "leases",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("holder", sa.String(64), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.bulk_insert(leases, [{"name": "background", "holder": None, "fence": 0, "until_s": 0.0}])
    op.create_table(
        "servers",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(300), nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("process", sa.String(200), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
    )
