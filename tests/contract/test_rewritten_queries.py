"""Random queries as they are rewritten, answered by a server: each gives what it gave as written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from ml_udf.client import Client, Options
from ml_udf.duckdb.catalog import known_of
from ml_udf.duckdb.registration import Registration
from ml_udf.duckdb.rewrite import rewrite
from tests.duckdb.random_queries import SEEDS, Queries, make_tables
from tests.inference_server import InferenceServer
from tests.models import CLASSES


@pytest.fixture
def con(server: InferenceServer) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    registration = Registration(con, Client(server.url), {"udf": "udf_text", "udf2": "udf_text"}, Options())
    make_tables(con)
    yield con
    registration.close()
    con.close()


def in_words_of_the_model(query: str) -> str:
    for letter, label in zip("abc", CLASSES, strict=False):
        query = query.replace(f"'{letter}'", f"'{label}'")
    return query


def outcome(con: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The rows in any order, or the kind of error."""
    try:
        return sorted(map(repr, con.execute(query).fetchall()))
    except duckdb.Error as error:
        return type(error)


def rows_sent(con: duckdb.DuckDBPyConnection) -> int:
    found = con.execute("SELECT sum(rows_sent) FROM ml_udf.stat_functions").fetchone()
    assert found is not None
    return int(found[0] or 0)


def test_random_queries_give_what_they_gave_and_send_fewer_rows(con: duckdb.DuckDBPyConnection) -> None:
    known = known_of(con, "t u w answers pairs")
    changed, as_written, cheap_first = 0, 0, 0
    for seed in range(SEEDS):
        query = in_words_of_the_model(Queries(seed).query())
        told = rewrite(query, known)
        if not told.is_changed:
            continue
        changed += 1
        begun = rows_sent(con)
        was = outcome(con, query)
        between = rows_sent(con)
        now = outcome(con, told.query)
        as_written += between - begun
        cheap_first += rows_sent(con) - between
        if isinstance(was, type):
            assert not isinstance(now, type) or now is was, (seed, query, told.query)
        else:
            assert now == was, (seed, query, told.query)
    assert changed > SEEDS / 5
    assert cheap_first < as_written
