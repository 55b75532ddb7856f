"""The contract of a function in SQL, the same on every engine and at every endpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Engine, Postgres, SqlError, make_engine
from tests.inference_server import InferenceServer
from tests.models import CLASSES, label_of

VALUES = "(VALUES ('a'), (NULL), ('b'), ('a'), (''), ('ü🍜')) AS v(t)"


@pytest.fixture(scope="module", params=["duckdb", "postgres", "postgres-by-row"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["http", "local"])
def endpoint(request: pytest.FixtureRequest, server: InferenceServer, photos: Path) -> str:
    return server.url if request.param == "http" else f"local:{server.home}?media_root={photos}"


@pytest.fixture(scope="module")
def postgres(engine_name: str, endpoint: str, request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    """One session for all tests: each that answers locally begins with seconds of imports."""
    made = None if engine_name == "duckdb" else make_engine(engine_name, endpoint, request)
    assert made is None or isinstance(made, Postgres)
    yield made
    if made is not None:
        made.close()


@pytest.fixture
def engine(postgres: Postgres | None, endpoint: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine whose session calls the functions by name, with no setting and no table of another test."""
    made = postgres or make_engine("duckdb", endpoint, request)
    yield made
    if postgres is None:
        made.close()
    else:
        postgres.reset()


def numbered(values: str) -> str:
    return f"(SELECT t, row_number() OVER () AS n FROM {values}) AS numbered"


def test_order_and_length_are_kept_and_null_gives_null(engine: Engine):
    rows = engine.query(f"SELECT t, udf_text(t) FROM {numbered(VALUES)} ORDER BY n")
    assert rows == [(t, t if t is None else label_of(t)) for t in ("a", None, "b", "a", "", "ü🍜")]


def test_an_empty_table_gives_no_rows(engine: Engine):
    assert engine.query(f"SELECT udf_text(t) FROM {VALUES} WHERE t = 'nobody'") == []


def test_a_table_of_nulls_gives_nulls(engine: Engine):
    rows = engine.query("SELECT udf_text(t) FROM (VALUES (CAST(NULL AS text)), (NULL)) AS v(t)")
    assert rows == [(None,), (None,)]


def test_the_paper_query_groups_by_the_answer(engine: Engine):
    engine.query(
        "CREATE TEMPORARY TABLE log AS "
        "SELECT CAST(i % 40 AS text) AS t, i AS age FROM generate_series(1, 3000) AS s(i)"
    )
    rows = engine.query(
        "SELECT UDF_TEXT(t) AS answer, count(*) FROM log WHERE age > 30 GROUP BY answer ORDER BY answer"
    )
    expected: dict[str, int] = {}
    for i in range(31, 3001):
        label = label_of(str(i % 40))
        expected[label] = expected.get(label, 0) + 1
    assert rows == sorted(expected.items())


def test_a_photo_is_answered_from_its_file(engine: Engine, photos):
    paths = [str(photos / f"{n}.jpg") for n in range(20)]
    listed = ", ".join(f"('{path}')" for path in paths)
    rows = engine.query(f"SELECT t, udf_photo(t) FROM (VALUES {listed}) AS v(t)")
    assert [row[0] for row in rows] == paths
    assert all(row[1] in ("laksa", "pizza", "satay", "sushi") for row in rows)
    assert engine.query(f"SELECT t, udf_photo(t) FROM (VALUES {listed}) AS v(t)") == rows


BAD = {
    "missing.jpg": ("58P01", "input_not_found"),
    "text.jpg": ("22P03", "input_undecodable"),
    "empty.jpg": ("22P03", "input_undecodable"),
    "cut.jpg": ("22P03", "input_undecodable"),
    "bomb.png": ("54000", "input_too_large"),
    "escape.jpg": ("42501", "input_forbidden"),
    "../outside/secret.jpg": ("42501", "input_forbidden"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_bad_file_has_an_error_of_its_own(engine: Engine, photos, name):
    path = f"{photos}/{name}"
    with pytest.raises(SqlError) as caught:
        engine.query(f"SELECT udf_photo('{path}')")
    assert caught.value.sqlstate == BAD[name][0]
    assert name.split("/")[-1] in caught.value.text


@pytest.mark.security
def test_a_functions_own_media_roots_are_all_that_it_reads(engine: Engine, photos):
    theirs = photos / "other_team"
    assert engine.query(f"SELECT ml_udf.predict('udf_team', '{photos / 'team' / 'x.jpg'}')")[0][0] in CLASSES
    assert engine.query("SELECT ml_udf.predict('udf_team', 'x.jpg')")[0][0] in CLASSES
    for path in (theirs / "x.jpg", "../other_team/x.jpg", theirs / "absent.jpg"):
        with pytest.raises(SqlError) as refused:
            engine.query(f"SELECT ml_udf.predict('udf_team', '{path}')")
        assert refused.value.sqlstate == "42501", path


def test_a_path_outside_the_media_roots_is_refused(engine: Engine):
    with pytest.raises(SqlError) as caught:
        engine.query("SELECT udf_photo('/etc/passwd')")
    assert caught.value.sqlstate == "42501"


def test_with_on_error_null_bad_rows_are_null_and_one_warning_counts_them(engine: Engine, photos):
    engine.set("on_error", "null")
    names = ["0.jpg", "missing.jpg", "text.jpg", "1.jpg", "missing.jpg"]
    listed = ", ".join(f"('{photos}/{name}')" for name in names)
    rows = engine.query(f"SELECT udf_photo(t) IS NULL FROM (VALUES {listed}) AS v(t)")
    assert [row[0] for row in rows] == [False, True, True, False, True]
    (warning,) = engine.warned()
    assert "2 inputs could not be answered and gave NULL" in warning
    assert "input_not_found" in warning
    assert "missing.jpg" in warning


def test_try_predict_tells_value_confidence_version_and_error(engine: Engine, photos):
    rows = engine.query(
        "SELECT (r).value, (r).confidence, (r).model_version, (r).error "
        "FROM (SELECT ml_udf.try_predict('udf_photo', t) AS r "
        f"FROM (VALUES ('{photos}/0.jpg'), ('{photos}/missing.jpg'), (NULL)) AS v(t)) AS tried"
    )
    (value, confidence, version, error), (no_value, _, _, fault), null = rows
    assert value in ("laksa", "pizza", "satay", "sushi")
    assert 0 < confidence <= 1
    assert version
    assert error is None
    assert no_value is None
    assert fault.startswith("input_not_found: ")
    assert null == (None, None, None, None)


def test_predict_and_predict_many_are_generic(engine: Engine):
    (row,) = engine.query(
        "SELECT ml_udf.predict('udf_text', 'a'), ml_udf.predict_many('udf_text', ARRAY['a', NULL, 'b'])"
    )
    assert row == (label_of("a"), [label_of("a"), None, label_of("b")])


def test_an_unknown_function_is_named(engine: Engine):
    with pytest.raises(SqlError) as caught:
        engine.query("SELECT ml_udf.predict('udf_nothing', 'a')")
    assert caught.value.sqlstate == "42704"
    assert "udf_nothing" in caught.value.text


def test_a_setting_out_of_bounds_says_what_is_allowed(engine: Engine):
    def use() -> None:  # PostgreSQL may refuse the SET, DuckDB refuses the call
        engine.set("batch_rows", "0")
        engine.query("SELECT udf_text('a')")

    with pytest.raises(Exception, match="batch_rows"):
        use()


def test_a_guarded_call_is_not_made_for_the_rows_that_its_guard_leaves_out(engine: Engine, photos):
    rows = engine.query(
        "SELECT CASE WHEN n = 1 THEN udf_photo(t) ELSE 'none' END IS NULL FROM "
        f"(VALUES (1, '{photos}/0.jpg'), (2, '{photos}/missing.jpg')) AS v(n, t)"
    )
    assert [row[0] for row in rows] == [False, False]


def test_a_cancelled_statement_returns_soon_and_the_session_goes_on(engine: Engine):
    engine.query("SELECT udf_text('warm')")
    timer = engine.cancel_after(0.5)
    began_s = time.monotonic()
    with pytest.raises(SqlError):
        engine.query("SELECT udf_slow('a')")
    took_s = time.monotonic() - began_s
    timer.join()
    assert took_s < 2.5
    assert engine.query("SELECT udf_text('a')") == [(label_of("a"),)]


def test_a_view_over_the_function_answers_like_the_function(engine: Engine):
    engine.query(f"CREATE TEMPORARY VIEW answers AS SELECT t, udf_text(t) AS answer FROM {VALUES}")
    rows = engine.query("SELECT answer FROM answers WHERE t = 'b'")
    assert rows == [(label_of("b"),)]


def test_the_views_tell_where_models_are_and_why_they_came(engine: Engine, endpoint: str):
    engine.query("SELECT udf_text('a')")
    held = engine.query(
        "SELECT worker, tier, size_bytes > 0, since < now(), loads > 0 "
        "FROM ml_udf.residency WHERE model LIKE 'text_hash%'"
    )
    came = engine.query(
        "SELECT DISTINCT event, outcome, reason <> '', took_s > 0, error IS NULL "
        "FROM ml_udf.residency_events WHERE model LIKE 'text_hash%'"
    )
    if endpoint.startswith("local:"):  # it is its own worker, which remembers no load
        assert (held, came) == ([("local", "device", True, None, None)], [])
    else:
        assert held == [("w0", "device", True, True, True)]
        assert came == [("load", "done", True, True, True)]


def test_the_views_tell_which_workers_there_are_and_what_was_done(engine: Engine, endpoint: str):
    workers = engine.query("SELECT name, state, device FROM ml_udf.workers")
    assert workers == ([] if endpoint.startswith("local:") else [("w0", "up", "cpu")])
    done = engine.query(
        'SELECT "at", action, worker, model, reason, decided_by, outcome FROM ml_udf.capacity'
    )
    assert done == [], "as many workers as there were at first"


def test_the_views_list_functions_and_models(engine: Engine):
    assert ("udf_text",) in engine.query("SELECT name FROM ml_udf.functions")
    assert ("photo_net",) in engine.query("SELECT name FROM ml_udf.models")
    engine.query("SELECT udf_text('a')")
    assert engine.query("SELECT name FROM ml_udf.stat_functions WHERE rows > 0")
