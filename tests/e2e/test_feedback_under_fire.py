"""Thousands of labels in one statement, while server and client are killed: each counts once, the last wins.

`make stress-feedback` does the same with a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.inference_server import InferenceServer, inference_server
from tests.postgres.fixtures import batching_cluster, postgres_server
from tests.stress.feedback import dsn_with_server, give_under_fire, served

__all__ = ["batching_cluster", "postgres_server"]

ROWS = 20_000
MOST_BYTES = 500 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InferenceServer]:
    with inference_server(tmp_path / "home") as running:
        served(running, tmp_path / "made")
        yield running


def test_labels_on_duckdb_count_once_whatever_is_killed(server: InferenceServer) -> None:
    outcome = give_under_fire("duckdb", server.url, server, ROWS, kills=1, cancels=1)
    assert outcome.wrong == []
    assert (outcome.server_kills, outcome.client_kills, outcome.cancels) == (1, 1, 1)
    assert outcome.server_bytes < MOST_BYTES


def test_labels_on_postgresql_count_once_whatever_is_killed(
    server: InferenceServer, batching_cluster: Sandbox
) -> None:
    where = dsn_with_server(batching_cluster, server.url)
    outcome = give_under_fire("postgres", where, server, ROWS, kills=1, cancels=1)
    assert outcome.wrong == []
    assert (outcome.server_kills, outcome.client_kills, outcome.cancels) == (1, 1, 1)
    assert outcome.server_bytes < MOST_BYTES
