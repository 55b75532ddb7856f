"""The questions of calories.sql and similar.sql, with stand-ins for what models answer."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from examples.foodlog.circle import CALORIES_FILE, SIMILAR_FILE
from examples.foodlog.queries import read_queries
from examples.foodlog.tables import load_duckdb


@pytest.fixture(scope="module")
def con(album_folder: Path) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    load_duckdb(con, album_folder)
    con.execute("CREATE TABLE truth AS SELECT image_path AS photo, food_name AS dish FROM labels")
    con.execute("CREATE MACRO udf_food_name(path) AS (SELECT dish FROM truth WHERE photo = path)")
    con.execute("CREATE MACRO udf_calories(dish, weight, way) AS 2.0 * coalesce(weight, 300)")
    # Photos of a dish lie in one direction, those of two dishes never do.
    con.execute(
        "CREATE MACRO udf_food_features(path) AS (SELECT [ascii(dish), ascii(dish[3]), 1.0]::FLOAT[3]"
        " FROM truth WHERE photo = path)"
    )
    con.execute("ATTACH ':memory:' AS ml_udf")
    con.execute("CREATE MACRO ml_udf.similarity(a, b) AS list_cosine_similarity(a, b)")
    return con


def rows(con: duckdb.DuckDBPyConnection, file: Path, number: int) -> list[tuple[Any, ...]]:
    (query,) = (query for query in read_queries(file) if query.number == number)
    return con.execute(query.sql).fetchall()


def test_calories_are_held_against_meals_that_nothing_learned_from(con: duckdb.DuckDBPyConnection) -> None:
    ((meals, off_by, mean_off_by),) = rows(con, CALORIES_FILE, 4)
    assert meals == 300
    assert off_by > 0
    assert mean_off_by > 0


def test_every_meal_has_its_calories(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(con, CALORIES_FILE, 5)
    assert [eaters for eaters, _, _ in found] == ["30 to 52", "over 52", "under 30"]
    assert sum(meals for _, meals, _ in found) == 3_000


def test_the_most_similar_photos_are_named_without_the_photo_itself(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(con, SIMILAR_FILE, 2)
    assert len(found) == 5
    ((first,),) = con.execute("SELECT min(image_path) FROM labels WHERE split = 'holdout'").fetchall()
    assert first not in [path for path, _ in found]


def test_what_looks_alike_is_counted_as_the_same_dish(con: duckdb.DuckDBPyConnection) -> None:
    ((photos, same_dish),) = rows(con, SIMILAR_FILE, 3)
    assert 0 < photos <= 12
    assert same_dish == photos
