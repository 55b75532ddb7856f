"""`python -m tests.stress.feedback_statement ENGINE WHERE ROWS`: one statement of feedback on `udf_dish`.

A process of its own, so that it can be killed and weighed. A line on its standard input cancels the
statement; the process ends with 130 then. Prints JSON: how many rows had which outcome, and the most memory
that this process had, and PostgreSQL's backend, in bytes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stress.labelled_rows import rows_sql

CANCELLED = 130  # as a shell has it of what Ctrl-C ended

_ASK = (
    "SELECT outcome, count(*) FROM (SELECT ml_udf.feedback('udf_dish', input, label) AS outcome"
    " FROM ({rows}) AS labelled) AS told GROUP BY 1"
)


def on_duckdb(url: str, rows: int) -> list[tuple[Any, ...]]:
    import duckdb

    import ml_udf.duckdb

    con = duckdb.connect()
    con.execute("SET threads = 1")  # several send their parts side by side, in no order
    with contextlib.closing(ml_udf.duckdb.register(con, url, functions=["udf_dish"])):
        con.execute("SET VARIABLE ml_udf_on_error = 'null'")
        con.execute("SET VARIABLE ml_udf_timeout_ms = 600000")
        con.execute(f"CREATE TABLE rows AS {rows_sql(rows, f'range({rows}) AS t(i)').replace('/', '//')}")
        _cancel_when_told(con.interrupt)
        try:
            return con.execute(_ASK.format(rows="SELECT * FROM rows")).fetchall()
        except duckdb.InterruptException:
            raise SystemExit(CANCELLED) from None


def on_postgres(dsn: str, rows: int) -> tuple[list[tuple[Any, ...]], int]:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as con:
        con.execute("SET ml_udf.on_error = 'null'")
        con.execute("SET ml_udf.timeout_ms = '600000'")
        made = rows_sql(rows, f"generate_series(0, {rows - 1}) AS t(i)")
        _cancel_when_told(con.cancel)
        try:
            told = con.execute(_ASK.format(rows=made)).fetchall()
        except psycopg.errors.QueryCanceled:
            raise SystemExit(CANCELLED) from None
        return told, most_bytes(con.info.backend_pid)


def _cancel_when_told(cancel: Callable[[], object]) -> None:
    def wait() -> None:
        if sys.stdin.readline():
            cancel()

    threading.Thread(target=wait, daemon=True).start()


def most_bytes(pid: int | str = "self") -> int:
    """The most resident memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    engine, where, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    backend = 0
    if engine == "duckdb":
        told = on_duckdb(where, rows)
    else:
        told, backend = on_postgres(where, rows)
    outcomes = {str(outcome): count for outcome, count in told}
    found = {"outcomes": outcomes, "client_bytes": most_bytes(), "backend_bytes": backend}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
