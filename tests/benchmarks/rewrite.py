"""`make bench-rewrite`: rows that DuckDB sends to a model, of queries as written and with the cheap first.

A million rows, and a function whose server answers at once in this process: what is counted is what leaves
the statement, equal inputs once. Each query runs as it is, and as `ml_udf.duckdb.sql` runs it, and both must
give the same.
"""

from __future__ import annotations

import argparse
import hashlib
import time
import zlib
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

import ml_udf.duckdb
from ml_udf.client import Client, Options
from ml_udf.client.transport import HttpResponse
from ml_udf.duckdb.registration import Registration
from ml_udf.oip import InferRequest, InferResponse, Tensor, encode_response
from tests.benchmarks.report import say, write_json
from tests.unit.ml_udf.fake_transport import FakeTransport

_HASH = hashlib.md5(b"note 7", usedforsecurity=False).hexdigest()[:6]
_CHEAP = f"md5(s) LIKE '{_HASH}%'"  # of 100 notes one
_MODEL = "udf(x) = 'a'"
_ONE = "SELECT count(*) FROM t WHERE"

QUERIES = {
    "k = 7, beside it": f"{_ONE} {_MODEL} AND k = 7",
    "k + z = 7, which may fail, after it": f"{_ONE} {_MODEL} AND k + z = 7",
    "k + z = 7, before it": f"{_ONE} k + z = 7 AND {_MODEL}",
    "md5(s) LIKE '…%', after it": f"{_ONE} {_MODEL} AND {_CHEAP}",
    "md5(s) LIKE '…%', before it": f"{_ONE} {_CHEAP} AND {_MODEL}",
    "the same as CASE by hand": f"{_ONE} CASE WHEN {_CHEAP} THEN {_MODEL} END",
    "the same in WITH … AS MATERIALIZED": f"WITH c AS MATERIALIZED (SELECT * FROM t WHERE {_CHEAP}) "
    f"SELECT count(*) FROM c WHERE {_MODEL}",
    "OR k < 99": f"{_ONE} {_MODEL} OR k < 99",
    "a join that keeps 10 %": f"SELECT count(*) FROM t JOIN tenth USING (d) WHERE {_MODEL}",
    "a join, flag = 3 of what is joined (10 %)": "SELECT count(*) FROM t JOIN tags ON t.d = tags.d "
    f"WHERE tags.flag = 3 AND {_MODEL}",
    "LEFT JOIN, flag = 3": "SELECT count(*) FROM t LEFT JOIN tags ON t.d = tags.d "
    f"WHERE tags.flag = 3 AND {_MODEL}",
    "d IN (SELECT …) that keeps 10 %": f"{_ONE} d IN (SELECT d FROM tenth) AND {_MODEL}",
    "a view's column that asks the model": f"SELECT count(*) FROM answers WHERE food = 'a' AND {_CHEAP}",
    "HAVING count(*) > 2 (1 group of 500,000)": "SELECT count(*) FROM (SELECT g FROM t GROUP BY g "
    "HAVING udf(g) = 'a' AND count(*) > 2)",
    "QUALIFY row_number() … = 1 (100 rows)": "SELECT count(*) FROM (SELECT x FROM t "
    f"QUALIFY row_number() OVER (PARTITION BY k ORDER BY x) = 1 AND {_MODEL})",
    "random() < 2: left alone": f"{_ONE} {_MODEL} AND random() < 2 AND {_CHEAP}",
}


class Transport(FakeTransport):
    """Answers one of three labels."""

    def _answer(self, asked: InferRequest, rows: list[bytes]) -> HttpResponse:
        outputs = [
            Tensor.of_bytes("label", [b"abc"[(at := zlib.crc32(row) % 3) : at + 1] for row in rows]),
            Tensor.of_numbers("confidence", "FP32", [0.5] * len(rows)),
            Tensor.of_bytes("error", [b""] * len(rows)),
        ]
        body, headers = encode_response(InferResponse("f", outputs, self.version, asked.id), asked)
        return HttpResponse(200, {name.lower(): value for name, value in headers.items()}, body)


def main() -> None:
    """Count, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    con = duckdb.connect()
    registration = Registration(
        con, Client("http://fake", transport=Transport()), {"udf": "f"}, Options(batch_rows=2048)
    )
    con.execute(
        "CREATE TABLE t AS SELECT i::VARCHAR AS x, (i * 7919 % 100)::INTEGER AS k, 0 AS z, i % 1000 AS d, "
        f"'note ' || (i * 7919 % 100) AS s, (i // 2)::VARCHAR AS g FROM range({rows}) AS r(i)"
    )
    con.execute("UPDATE t SET g = '0' WHERE x = '2'")
    con.execute("CREATE TABLE tenth AS SELECT i AS d FROM range(100) AS r(i)")
    con.execute("CREATE TABLE tags AS SELECT i AS d, i % 10 AS flag FROM range(1000) AS r(i)")
    con.execute("CREATE VIEW answers AS SELECT *, udf(x) AS food FROM t")
    say(f"DuckDB {duckdb.__version__}, {rows:,} rows; rows sent to the model")
    table = Table("udf(x) = 'a' and", "as written", "cheap first", "seconds", "")
    measured = []
    for name, query in QUERIES.items():
        told = ml_udf.duckdb.rewritten(con, query)
        was, sent, took_s = _run(con, query)
        now, sends, takes_s = _run(con, told.query)
        if was != now:
            raise RuntimeError(f"{told.query} gave {now} in place of {was}")
        table.add_row(name, f"{sent:,}", f"{sends:,}", f"{took_s:.1f}", f"{takes_s:.1f}")
        measured.append(
            {
                "name": name,
                "query": query,
                "rewritten": told.query,
                "sent": sent,
                "sent_cheap_first": sends,
                "seconds": took_s,
                "seconds_cheap_first": takes_s,
            }
        )
    Console(width=140).print(table)
    registration.close()
    con.close()
    write_json("rewrite", {"duckdb": duckdb.__version__, "rows": rows, "queries": measured})


def _run(con: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, int, float]:
    before = _sent(con)
    began_s = time.perf_counter()
    found = con.execute(query).fetchall()
    took_s = time.perf_counter() - began_s
    return found, _sent(con) - before, took_s


def _sent(con: duckdb.DuckDBPyConnection) -> int:
    rows = con.execute("SELECT coalesce(sum(rows_sent), 0)::BIGINT FROM ml_udf.stat_functions").fetchall()
    return int(rows[0][0])


if __name__ == "__main__":
    main()
