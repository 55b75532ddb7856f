"""Models, functions and their deployments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the registry's first three tables."""
    op.create_table(
        "model_versions",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task", sa.String(100), nullable=False),
        sa.Column("accuracy", sa.Float(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resident_bytes", sa.BigInteger(), nullable=True),
        sa.Column("load_s", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", "version", name="pk_model_versions"),
    )
    op.create_index("ix_model_versions_last_used_at", "model_versions", ["last_used_at"])
    op.create_table(
        "functions",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("next_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_functions"),
    )
    op.create_table(
        "deployments",
        sa.Column("function", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("deployed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["function"], ["functions.name"], name="fk_deployments_function_functions"),
        sa.PrimaryKeyConstraint("function", "version", name="pk_deployments"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("deployments")
    op.drop_table("functions")
    op.drop_index("ix_model_versions_last_used_at", "model_versions")
    op.drop_table("model_versions")
