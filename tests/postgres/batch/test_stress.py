"""Statements stopped at random moments while workers die: the short form of `make stress-plan-node`."""

from __future__ import annotations

import pytest

from ml_udf.cli.pg_server import PostgresServer
from tests.postgres.batch.stress import Stress, stressed


def test_stops_and_dying_workers_leave_no_wrong_row_and_nothing_behind(batch_server: PostgresServer) -> None:
    if batch_server.plpython() is None:
        pytest.skip(f"NO PL/PYTHON for PostgreSQL {batch_server.version}")
    with stressed(batch_server, workers=2) as (cluster, inference):
        stress = Stress(cluster, inference, stops=40, kills=4, seed=7)
        outcome = stress.run(sessions=3, kill_every_s=2.0)
    assert outcome.complaints() == []
    assert sum(outcome.stopped.values()) >= 40
    assert outcome.kills == 4
