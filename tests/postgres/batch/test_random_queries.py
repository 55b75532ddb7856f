"""Random queries mean the same batched. `make -C sql/postgres/batch fuzz` asks many more of them."""

from __future__ import annotations

import time
from pathlib import Path

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.batch.comparing import Tally, compare
from tests.postgres.batch.session import Session

SCHEMA = Path(__file__).with_name("random_schema.sql")
QUERIES = 400
LIMIT_S = 30.0


def test_random_queries_mean_the_same_batched(batches: Sandbox) -> None:
    batches.sql("CREATE DATABASE random")
    batches.sql(SCHEMA.read_text(), "random")
    session, tally = Session(batches.dsn("random")), Tally()
    end_s = time.monotonic() + LIMIT_S
    differences = []
    for seed in range(1, QUERIES + 1):
        if time.monotonic() > end_s:
            break
        differences.append(compare(session, seed, tally))
    session.close()

    assert [str(difference) for difference in differences if difference is not None] == []
    assert tally.batched > tally.queries / 2
