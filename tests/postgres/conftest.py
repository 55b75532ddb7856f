"""PostgreSQL's fixtures for this directory."""

from __future__ import annotations

from tests.postgres.fixtures import (
    batching_cluster,
    cluster,
    databases,
    engine,
    fake_server,
    postgres_engine,
    postgres_server,
    template,
)

__all__ = [
    "batching_cluster",
    "cluster",
    "databases",
    "engine",
    "fake_server",
    "postgres_engine",
    "postgres_server",
    "template",
]
