"""How alike two vectors are, the same on every engine."""

from __future__ import annotations

import math
import random

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


def test_vectors_of_every_type_of_numbers_are_compared(engine: Engine) -> None:
    kinds = (
        ("FLOAT[2]", "FLOAT[]", "DOUBLE[2]", "DOUBLE[]", "INTEGER[]", "DECIMAL(4,1)[]")
        if engine.name == "duckdb"
        else ("real[]", "double precision[]", "numeric[]", "integer[]")
    )
    own = [f"CAST({'[3, 4]' if engine.name == 'duckdb' else 'ARRAY[3, 4]'} AS {kind})" for kind in kinds]
    pairs = [(one, other) for one in own for other in own]
    compared = ", ".join(f"ml_udf.similarity({one}, {other})" for one, other in pairs)
    assert engine.query(f"SELECT {compared}") == [(pytest.approx(1),) * len(pairs)]


def test_numbers_as_they_are_written_are_compared(engine: Engine) -> None:
    written = ("[3, 4]", "[0.3, 0.4]") if engine.name == "duckdb" else ("ARRAY[3, 4]", "ARRAY[0.3, 0.4]")
    for a in written:
        for b in written:
            assert engine.query(f"SELECT ml_udf.similarity({a}, {b})") == [(pytest.approx(1),)]


def test_nothing_is_like_what_is_no_number(engine: Engine) -> None:
    nan = "ARRAY['NaN', '1']::{}[]" if engine.name != "duckdb" else "['NaN', '1']::{}[]"
    for kind in ("real", "double precision" if engine.name != "duckdb" else "double"):
        same = nan.format(kind)
        assert engine.query(f"SELECT ml_udf.similarity({same}, {same})") == [(None,)]


def test_a_vector_with_a_hole_is_refused(engine: Engine) -> None:
    hole = "CAST({} AS real[])".format("[NULL, 1]" if engine.name == "duckdb" else "ARRAY[NULL, 1]")
    for pair in (f"{hole}, {vector(engine, '[1, 1]')}", f"{vector(engine, '[1, 1]')}, {hole}"):
        with pytest.raises(SqlError, match="NULL"):
            engine.query(f"SELECT ml_udf.similarity({pair})")


def test_vectors_without_numbers_are_like_nothing(engine: Engine) -> None:
    empty = "CAST([] AS real[])" if engine.name == "duckdb" else "CAST('{}' AS real[])"
    assert engine.query(f"SELECT ml_udf.similarity({empty}, {empty})") == [(None,)]


def test_vectors_of_two_lengths_are_refused(engine: Engine) -> None:
    with pytest.raises(SqlError, match=r"2.*3|3.*2|dimension|length"):
        engine.query(f"SELECT ml_udf.similarity({vector(engine, '[1, 0]')}, {vector(engine, '[1, 0, 0]')})")


def test_no_vector_is_more_like_another_than_one_is_like_itself(engine: Engine) -> None:
    """By rounding the quotient is often a little more than 1, where acos ends the statement."""
    drawn = random.Random(1)
    kind = "double" if engine.name == "duckdb" else "double precision"
    for wanted in ("real", kind):
        rows = []
        for _ in range(200):
            numbers = [f"{drawn.gauss(0, 1):.6f}" for _ in range(8)]
            there, back = ", ".join(numbers), ", ".join(f"-({number})" for number in numbers)
            start = "" if engine.name == "duckdb" else "ARRAY"
            rows.append(f"({start}[{there}]::{wanted}[], {start}[{back}]::{wanted}[])")
        ((least, most, angle),) = engine.query(
            "SELECT min(ml_udf.similarity(v, w)), max(ml_udf.similarity(v, v)), "
            f"max(acos(ml_udf.similarity(v, v))) FROM (VALUES {', '.join(rows)}) AS t(v, w)"
        )
        assert (least, most) == (-1.0, 1.0)
        assert angle == pytest.approx(0, abs=1e-6)


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
