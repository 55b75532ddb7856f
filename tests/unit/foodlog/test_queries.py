from pathlib import Path
from typing import Any

import duckdb
import pytest

from examples.foodlog.queries import Query, read_queries
from examples.foodlog.tables import ask_duckdb, load_duckdb

QUERIES = read_queries()


@pytest.fixture(scope="module")
def con(album_folder: Path) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    load_duckdb(con, album_folder)
    # The stand-in for a model knows the truth; its columns bear other names than the queries' own.
    con.execute("CREATE TABLE truth AS SELECT image_path AS photo, food_name AS dish FROM labels")
    con.execute("CREATE MACRO udf_food_name(path) AS (SELECT dish FROM truth WHERE photo = path)")
    return con


def by_title(words: str) -> Query:
    (found,) = (query for query in QUERIES if words in query.title)
    return found


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return con.execute(sql).fetchall()


def test_the_tables_keep_their_rows_and_constraints(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(con, "SELECT count(*) FROM foodlog") == [(3_000,)]
    assert rows(con, "SELECT count(*) FROM labels") == [(60,)]
    with pytest.raises(duckdb.ConstraintException):
        con.execute("INSERT INTO foodlog SELECT * FROM foodlog LIMIT 1")
    with pytest.raises(duckdb.ConstraintException):
        con.execute("INSERT INTO foodlog VALUES (1, NULL, 'Katong', '2025-01-01 12:00', 'x.jpg')")
    with pytest.raises(duckdb.ConstraintException):
        con.execute("INSERT INTO labels VALUES ('x.jpg', 'laksa', 'elsewhere')")


def test_training_sees_the_lessons_and_none_of_the_held_out_photos(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(con, "SELECT count(*) FROM lessons") == [(50,)]
    assert rows(
        con, "SELECT count(*) FROM lessons JOIN labels USING (image_path) WHERE split = 'holdout'"
    ) == [(0,)]


def test_the_columns_are_those_of_figure_17(con: duckdb.DuckDBPyConnection) -> None:
    columns = rows(con, "SELECT column_name FROM duckdb_columns() WHERE table_name = 'foodlog'")
    assert [name for (name,) in columns] == ["user_id", "age", "location", "time", "image_path"]


def test_there_are_five_titled_queries_and_each_uses_the_function() -> None:
    assert [query.number for query in QUERIES] == [1, 2, 3, 4, 5]
    assert all("udf_food_name(" in query.sql.lower() for query in QUERIES)
    assert not any("labels" in query.sql for query in QUERIES)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.number))
def test_every_query_answers_on_duckdb(con: duckdb.DuckDBPyConnection, query: Query) -> None:
    names, answer = ask_duckdb(con)(query.sql)
    assert answer
    assert all(len(row) == len(names) and None not in row for row in answer)


def test_the_papers_queries_count_every_meal_of_the_age(con: duckdb.DuckDBPyConnection) -> None:
    for words, age in (("over 30", 30), ("over 52", 52)):
        counted = sum(meals for _, meals in rows(con, by_title(words).sql))
        assert [(counted,)] == rows(con, f"SELECT count(*) FROM foodlog WHERE age > {age}")


def test_the_filter_keeps_rows_by_their_predicted_value(con: duckdb.DuckDBPyConnection) -> None:
    expected = rows(
        con,
        "SELECT location, count(*) AS n, min(time) FROM foodlog JOIN labels USING (image_path)"
        " WHERE food_name = 'laksa' AND time >= '2025-10'"
        " GROUP BY location ORDER BY n DESC, location LIMIT 6",
    )
    assert rows(con, by_title("laksa").sql) == expected


def test_the_join_answers_one_favourite_for_each_country(con: duckdb.DuckDBPyConnection) -> None:
    countries = [country for country, _, _ in rows(con, by_title("favourite").sql)]
    assert countries
    assert len(set(countries)) == len(countries)


def test_the_trend_has_every_month_in_order(con: duckdb.DuckDBPyConnection) -> None:
    answer = ask_duckdb(con)(by_title("spreading").sql)[1]
    assert [row[0] for row in answer] == [f"2025-{month:02d}" for month in range(1, 13)]
    assert all(
        percent == pytest.approx(100 * salads / meals, abs=0.051) for _, meals, salads, percent in answer
    )


def test_a_statement_without_a_title_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("-- 1. Titled\nSELECT 1;\n\nSELECT 2;\n")
    with pytest.raises(ValueError, match="2 statements, and 1"):
        read_queries(file)
