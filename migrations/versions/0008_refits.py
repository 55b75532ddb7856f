"""Labels have numbers, so that the oldest can go; what members answered to them stands apart; refits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Number the labels by their age. What was answered to them goes: it was kept at other temperatures."""
    op.add_column("deployments", sa.Column("refit", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("deployments", sa.Column("revision", sa.Integer(), server_default="0", nullable=False))
    op.add_column("functions", sa.Column("labels", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("feedback", sa.Column("number", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(
        "UPDATE feedback SET number = counted.number FROM (SELECT function, digest, row_number() OVER"
        " (PARTITION BY function ORDER BY labelled_at, digest) AS number FROM feedback) AS counted"
        " WHERE counted.function = feedback.function AND counted.digest = feedback.digest"
    )
    op.execute(
        "UPDATE functions SET labels ="
        " (SELECT count(*) FROM feedback WHERE feedback.function = functions.name)"
    )
    op.create_index("ix_feedback_function_number", "feedback", ["function", "number"])
    op.drop_column("feedback", "probabilities")
    op.create_table(
        "feedback_answers",
        sa.Column("function", sa.String(100), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("probabilities", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["function"], ["functions.name"], name="fk_feedback_answers_function_functions"
        ),
        sa.PrimaryKeyConstraint("function", "number", name="pk_feedback_answers"),
    )
