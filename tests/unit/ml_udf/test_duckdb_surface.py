"""The SQL in front of the functions on DuckDB."""

from __future__ import annotations

import duckdb
import pytest

from ml_udf.duckdb.surface import predict_macro


@pytest.mark.parametrize(
    ("columns", "call"),
    [
        (["a", "A", "a_1"], 'f(1, "A_1" := 2, a_1_1 := 3)'),
        (["", "column", "Ü"], 'f(1, column_1 := 2, "Ü" := 3)'),
        (["a,b", 'q"x', "c" * 70], "f(1, 2, 3)"),
    ],
)
def test_columns_that_duckdb_takes_for_one_or_for_none_are_parameters_all_the_same(
    columns: list[str], call: str
) -> None:
    with duckdb.connect() as con:
        con.execute("CREATE MACRO the_row(function, row, statement) AS row")
        kinds = [(name, "number") for name in columns]
        con.execute(predict_macro("f", "churn", "the_row", kinds, lambda answer: answer))
        assert con.execute(f"SELECT {call}").fetchall() == [("[1.0,2.0,3.0]",)]
