"""Labels that inputs were given, and what they have taught a deployment."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and the column; deployments from before have been taught nothing."""
    op.add_column("deployments", sa.Column("feedback", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "feedback",
        sa.Column("function", sa.String(100), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("probabilities", sa.LargeBinary(), nullable=False),
        sa.Column("labelled_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["function"], ["functions.name"], name="fk_feedback_function_functions"),
        sa.PrimaryKeyConstraint("function", "digest", name="pk_feedback"),
    )
