"""What labels of a context have taught a deployment, and the key by whose digests contexts are kept."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_KEY_BYTES = 32


def upgrade() -> None:
    """Add the tables, and a key of this registry's own: servers that share it must agree."""
    op.create_table(
        "feedback_contexts",
        sa.Column("function", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(32), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["function", "version"],
            ["deployments.function", "deployments.version"],
            name="fk_feedback_contexts_function_deployments",
        ),
        sa.PrimaryKeyConstraint("function", "version", "digest", name="pk_feedback_contexts"),
    )
    op.create_index(
        "ix_feedback_contexts_function_version_turn", "feedback_contexts", ["function", "version", "turn"]
    )
    keys = op.create_table(
        "secrets",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )
    op.bulk_insert(keys, [{"name": "feedback", "value": secrets.token_bytes(_KEY_BYTES)}])
