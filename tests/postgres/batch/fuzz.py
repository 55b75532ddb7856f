"""`python -m tests.postgres.batch.fuzz`: random queries, batched against unbatched, as many as asked for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ml_udf.cli.pg_server import PostgresServer
from tests.postgres.batch.building import batch_cluster
from tests.postgres.batch.comparing import Tally, compare
from tests.postgres.batch.session import Session

__all__ = ["main"]

SCHEMA = Path(__file__).with_name("random_schema.sql")
REPORT_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first query; each has its own")
    parser.add_argument("--pg-config", type=Path, help="the server to test on")
    arguments = parser.parse_args()

    server = PostgresServer.find(arguments.pg_config)
    tally, differences = Tally(), 0
    # Statistics that change meanwhile would make plans that cannot be had again.
    with batch_cluster(server, autovacuum="off") as cluster:
        cluster.sql("CREATE DATABASE random")
        cluster.sql(SCHEMA.read_text(), "random")
        session = Session(cluster.dsn("random"))
        for seed in range(arguments.seed, arguments.seed + arguments.queries):
            difference = compare(session, seed, tally)
            if difference is not None:
                differences += 1
                print(difference, flush=True)  # noqa: T201  # a command that reports
            if tally.queries % REPORT_EVERY == 0:
                print(tally, flush=True)  # noqa: T201
        session.close()
    print(f"PostgreSQL {server.version}: {differences} differences; {tally}")  # noqa: T201
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())
