"""Embeddings of the food log's photos, kept in a column with an index, and the nearest of one found by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from examples.foodlog.draw import Album, draw_album
from tests.engines import DuckDb, Engine, Postgres, make_engine
from tests.inference_server import InferenceServer

WIDTH = 192  # of squeezenet's features
PHOTOS = 60
NEAREST = 5


@pytest.fixture(scope="module")
def album(photos: Path) -> list[str]:
    folder = photos / "foodlog"
    draw_album(folder, Album(images=PHOTOS, rows=PHOTOS, size_px=64))
    return sorted(str(path) for path in (folder / "images" / "meals").rglob("*.jpg"))


@pytest.fixture
def postgres(server: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    engine = make_engine("postgres", server.url, request)
    assert isinstance(engine, Postgres)
    engine.query("DROP TABLE IF EXISTS foodlog")
    yield engine
    engine.query("DROP TABLE IF EXISTS foodlog")
    engine.query("DROP EXTENSION IF EXISTS vector CASCADE")
    engine.close()


@pytest.fixture
def duck(server: InferenceServer) -> Iterator[DuckDb]:
    engine = DuckDb(server.url)
    yield engine
    engine.close()


def keep_log(engine: Engine, album: list[str], vector: str) -> None:
    """A table of photos, with a column for their embeddings that is not filled yet."""
    assert len(album) == PHOTOS
    engine.query(f"CREATE TABLE foodlog (id integer PRIMARY KEY, image_path text, features {vector})")
    rows = ", ".join(f"({number}, '{path}')" for number, path in enumerate(album))
    engine.query(f"INSERT INTO foodlog (id, image_path) VALUES {rows}")


def test_a_nearest_neighbour_query_goes_by_pgvectors_index(postgres: Postgres, album: list[str]) -> None:
    if not postgres.query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("PGVECTOR IS NOT INSTALLED: its index over embeddings is not tested")
    postgres.query("CREATE EXTENSION vector")
    postgres.query("SELECT ml_udf.drop_function('udf_food_features', if_exists => true)")
    postgres.query("SELECT ml_udf.create_function('udf_food_features', 'udf_features', returns => 'vector')")
    keep_log(postgres, album, f"vector({WIDTH})")
    postgres.query("UPDATE foodlog SET features = udf_food_features(image_path)")
    nearest = (
        "SELECT id FROM foodlog ORDER BY features <=> (SELECT features FROM foodlog WHERE id = 7) "
        f"LIMIT {NEAREST}"
    )
    exact = postgres.query(nearest)
    assert exact[0] == (7,)
    postgres.query("CREATE INDEX by_features ON foodlog USING hnsw (features vector_cosine_ops)")
    postgres.query("SET enable_seqscan = off")
    assert "Index Scan using by_features" in str(postgres.query(f"EXPLAIN {nearest}"))
    assert postgres.query(nearest) == exact
    asked = nearest.replace("(SELECT features FROM foodlog WHERE id = 7)", f"udf_food_features('{album[7]}')")
    assert postgres.query(asked) == exact
    # A function that was made without a type answers real[], which is cast.
    cast = nearest.replace(
        "(SELECT features FROM foodlog WHERE id = 7)", f"udf_features('{album[7]}')::vector"
    )
    assert postgres.query(cast) == exact
    postgres.query("SELECT ml_udf.drop_function('udf_food_features')")


def test_a_nearest_neighbour_query_goes_by_vss_index(duck: DuckDb, album: list[str]) -> None:
    keep_log(duck, album, f"FLOAT[{WIDTH}]")
    duck.query("UPDATE foodlog SET features = udf_features(image_path)")
    nearest = f"SELECT id FROM foodlog ORDER BY array_cosine_distance(features, {{}}) LIMIT {NEAREST}"
    ((seven,),) = duck.query("SELECT features FROM foodlog WHERE id = 7")
    constant = f"{list(seven)}::FLOAT[{WIDTH}]"
    exact = duck.query(nearest.format(constant))
    assert exact[0] == (7,)
    assert duck.query(nearest.format(f"udf_features('{album[7]}')")) == exact
    try:
        duck.connection.execute("LOAD vss")
    except duckdb.Error as error:
        pytest.skip(f"DUCKDB'S VSS IS NOT INSTALLED: its index over embeddings is not tested ({error!s:.80})")
    duck.query("CREATE INDEX by_features ON foodlog USING HNSW (features) WITH (metric = 'cosine')")
    assert "HNSW_INDEX_SCAN" in str(duck.query("EXPLAIN " + nearest.format(constant)))
    assert duck.query(nearest.format(constant)) == exact
