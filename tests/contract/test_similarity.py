"""How alike two vectors are, the same on every engine."""

from __future__ import annotations

import math

import pytest

from tests.engines import Engine, SqlError


@pytest.mark.parametrize(
    ("a", "b", "cosine"),
    [
        ("[1, 0]", "[2, 0]", 1.0),
        ("[1, 0]", "[0, 3]", 0.0),
        ("[1, 0]", "[-1, 0]", -1.0),
        ("[1, 1]", "[1, 0]", math.sqrt(0.5)),
        ("[3e38, 3e38]", "[3e38, 3e38]", 1.0),  # float32's squares of them would be too large
    ],
)
def test_similarity_is_the_cosine(engine: Engine, a: str, b: str, cosine: float) -> None:
    ((found,),) = engine.query(f"SELECT ml_udf.similarity({vector(engine, a)}, {vector(engine, b)})")
    assert found == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [("NULL", "[1, 0]"), ("[0, 0]", "[1, 0]"), ("NULL", "NULL")])
def test_nothing_is_like_null_or_like_zeros(engine: Engine, a: str, b: str) -> None:
    assert engine.query(f"SELECT ml_udf.similarity({vector(engine, a)}, {vector(engine, b)})") == [(None,)]


def test_vectors_of_two_lengths_are_refused(engine: Engine) -> None:
    with pytest.raises(SqlError, match=r"2.*3|3.*2|dimension|length"):
        engine.query(f"SELECT ml_udf.similarity({vector(engine, '[1, 0]')}, {vector(engine, '[1, 0, 0]')})")


def test_a_photo_is_most_like_itself(engine: Engine, photos: object) -> None:
    paths = [f"{photos}/{number}.jpg" for number in range(6)]
    listed = ", ".join(f"('{path}')" for path in paths)
    rows = engine.query(
        f"WITH seen AS (SELECT p, udf_features(p) AS v FROM (VALUES {listed}) AS t(p))"
        " SELECT a.p, b.p FROM seen a JOIN seen b ON true"
        " ORDER BY a.p, ml_udf.similarity(a.v, b.v) DESC"
    )
    nearest = dict(reversed(rows))  # of each, the first one
    assert nearest == {path: path for path in paths}


def vector(engine: Engine, numbers: str) -> str:
    if numbers == "NULL":
        return "CAST(NULL AS real[])"
    width = numbers.count(",") + 1
    return (
        f"CAST({numbers} AS FLOAT[{width}])" if engine.name == "duckdb" else f"CAST(ARRAY{numbers} AS real[])"
    )
