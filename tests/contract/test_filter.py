"""`ml_udf.filter`: whether a value is of a class; the same on every engine, in batches like any call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.typed_server import CLASSES, FUNCTIONS, TypedServer, scores_of, typed_server

TEXTS = ["lp", "l", "lps", "even", ""]


@pytest.fixture(scope="module")
def server() -> Iterator[TypedServer]:
    with typed_server() as running:
        yield running


@pytest.fixture
def engine(engine_name: str, server: TypedServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, server.url, request, list(FUNCTIONS))
    server.forget()
    yield made
    made.close()


def asked(engine: Engine, call: str, *texts: str | None) -> list[object]:
    """A call over `t`, in order."""
    rows = ", ".join(
        f"({n}, {'CAST(NULL AS text)' if text is None else repr(text)})" for n, text in enumerate(texts)
    )
    return [row[0] for row in engine.query(f"SELECT {call} FROM (VALUES {rows}) AS v(n, t) ORDER BY n")]


@pytest.mark.parametrize("label", CLASSES)
def test_what_passes_has_at_least_that_probability(engine: Engine, label: str) -> None:
    for least in (0, 0.125, 0.25, 0.5, 0.625, 1):
        found = asked(engine, f"ml_udf.filter('udf_kind', t, '{label}', {least})", *TEXTS)
        assert found == [scores_of(text)[CLASSES.index(label)] >= least for text in TEXTS]
        assert found == asked(engine, f"ml_udf.score('udf_kind', t, '{label}') >= {least}", *TEXTS)


def test_without_a_least_probability_half_is_enough(engine: Engine) -> None:
    found = asked(engine, "ml_udf.filter('udf_kind', t, 'satay')", *TEXTS)
    assert found == asked(engine, "ml_udf.filter('udf_kind', t, 'satay', 0.5)", *TEXTS)
    assert set(found) == {True, False}
    named = "min_score := 0.5" if isinstance(engine, DuckDb) else "min_score => 0.5"
    assert asked(engine, f"ml_udf.filter('udf_kind', t, 'satay', {named})", *TEXTS) == found


def test_of_null_nothing_is_said_and_nothing_is_asked(engine: Engine, server: TypedServer) -> None:
    for call in ("t, 'satay', 0.5", "'lp', t, 0.5", "'lp', 'satay', CAST(t AS float)"):
        assert asked(engine, f"ml_udf.filter('udf_kind', {call})", None, None) == [None, None]
    assert set(server.rows) <= {"lp"}, "a constant may be asked for, never NULL"


def test_rows_pass_a_where_clause_and_its_negation(engine: Engine) -> None:
    rows = ", ".join(f"({text!r})" for text in TEXTS)
    passed = f"SELECT t FROM (VALUES {rows}, (NULL)) AS v(t) WHERE {{}}ml_udf.filter('udf_kind', t, 'satay')"
    through = {text for (text,) in engine.query(passed.format(""))}
    held_back = {text for (text,) in engine.query(passed.format("NOT "))}
    assert through | held_back == set(TEXTS)
    assert through == {text for text in TEXTS if scores_of(text)[2] >= 0.5}


def test_rows_are_asked_in_batches_once_and_together_with_their_scores(
    engine: Engine, server: TypedServer
) -> None:
    if engine.name == "postgres-by-row":
        pytest.skip("one request a row, as without the batching module")
    series = "range(1000)" if isinstance(engine, DuckDb) else "generate_series(0, 999)"
    ((count,),) = engine.query(
        "SELECT sum(CASE WHEN ml_udf.score('udf_kind', t, 'pizza') >= 0 THEN 1 ELSE 0 END) "
        f"FROM (SELECT 'x' || i % 200 AS t FROM {series} AS s(i)) AS texts "
        "WHERE ml_udf.filter('udf_kind', t, 'laksa', 0) AND ml_udf.filter('udf_kind', t, 'satay', 0)"
    )
    assert count == 1000
    assert sorted(server.rows) == sorted({f"x{i}" for i in range(200)})
    assert len(server.requests) <= 4


def test_a_cheap_condition_goes_first(engine: Engine, server: TypedServer) -> None:
    series = "range(500)" if isinstance(engine, DuckDb) else "generate_series(0, 499)"
    engine.query(f"CREATE TEMPORARY TABLE numbered AS SELECT i, 'x' || i AS t FROM {series} AS s(i)")
    cheap, dear = "i = 7", "ml_udf.filter('udf_kind', t, 'laksa', 0)"
    for condition in (f"{cheap} AND {dear}", f"{dear} AND {cheap}"):
        server.forget()
        assert engine.query(f"SELECT t FROM numbered WHERE {condition}") == [("x7",)]
        assert server.rows == ["x7"]


def test_a_plan_shows_what_is_asked(engine: Engine) -> None:
    if engine.name != "postgres":
        pytest.skip("PostgreSQL's plan node is meant")
    plan = str(
        engine.query(
            "EXPLAIN SELECT t FROM (VALUES ('a'), ('b')) AS v(t) WHERE ml_udf.filter('udf_kind', t, 'laksa')"
        )
    )
    assert "MlUdfBatch" in plan
    assert "ml_udf.score" in plan


def test_bytes_of_an_image_are_filtered_too(engine: Engine, server: TypedServer) -> None:
    image = "CAST(t AS BLOB)" if isinstance(engine, DuckDb) else "convert_to(t, 'UTF8')"
    found = asked(engine, f"ml_udf.filter('udf_shown', {image}, 'pizza', 0.5)", *TEXTS)
    assert found == [scores_of(text)[1] >= 0.5 for text in TEXTS]
    assert set(server.inputs) == {"image"}


def test_labels_of_several_are_filtered_by_each(engine: Engine) -> None:
    found = asked(engine, "ml_udf.filter('udf_tags', t, 'pizza', 0.2)", *TEXTS)
    assert found == [scores_of(text)[1] >= 0.2 for text in TEXTS]


def test_a_class_that_there_is_not_names_the_nearest_first(engine: Engine) -> None:
    for wanted in ("Pizza", "piza", "pizzas"):
        with pytest.raises(SqlError, match=rf"there is no class '{wanted}'") as refused:
            asked(engine, f"ml_udf.filter('udf_kind', t, '{wanted}', 0.5)", "lp")
        assert refused.value.sqlstate == "22023"
        assert "the nearest by name first: pizza, laksa, satay" in refused.value.text
    engine.set("on_error", "null")
    assert asked(engine, "ml_udf.filter('udf_kind', t, 'pizzas', 0.5)", "lp") == [None]
    assert engine.warned()


def test_what_is_no_probability_is_refused_before_anything_is_asked(
    engine: Engine, server: TypedServer
) -> None:
    engine.set("on_error", "null")
    for least in ("80", "-0.1", "1.01"):
        with pytest.raises(SqlError, match=rf"min_score = {least}: a probability is from 0 to 1") as refused:
            asked(engine, f"ml_udf.filter('udf_kind', t, 'laksa', {least})", "lp")
        assert refused.value.sqlstate == "22023"
        assert "ml_udf.filter(…, 0.8)" in refused.value.text
    assert server.rows == []


def test_a_function_without_probabilities_says_so(engine: Engine) -> None:
    for function in ("udf_price", "udf_vector", "udf_json", "udf_grade"):
        with pytest.raises(SqlError, match=f"{function} answers with no probabilities of classes"):
            asked(engine, f"ml_udf.filter('{function}', t, 'laksa', 0.5)", "lp")
