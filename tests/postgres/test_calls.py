"""What a call of a function answers, and what of it is sent."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server

PATHS = [f"/img/{n % 9}.jpg" for n in range(60)]


@pytest.fixture
def foodlog(engine: Engine) -> Engine:
    engine.query("CREATE TABLE foodlog (id int, age int, image_path text)")
    values = ", ".join(f"({n}, {n % 50}, '{path}')" for n, path in enumerate(PATHS))
    engine.query(f"INSERT INTO foodlog VALUES {values}, (60, 99, NULL)")
    return engine


def test_the_analysts_query_answers(foodlog: Engine) -> None:
    rows = foodlog.query("SELECT UDF_FOOD_NAME(image_path) AS food, count(*) FROM foodlog GROUP BY food")
    wanted: dict[str | None, int] = {None: 1}
    for path in PATHS:
        wanted[label_of(path)] = wanted.get(label_of(path), 0) + 1
    assert dict(rows) == wanted


def test_each_row_keeps_its_own_answer(foodlog: Engine) -> None:
    rows = foodlog.query("SELECT image_path, udf_food_name(image_path) FROM foodlog ORDER BY id")
    assert [label for _, label in rows] == [label_of(path) if path else None for path, _ in rows]


def test_equal_values_of_a_statement_are_sent_once(foodlog: Engine, fake_server: OipServer) -> None:
    foodlog.query("SELECT udf_food_name(image_path) FROM foodlog")
    assert sorted(fake_server.rows) == sorted(set(PATHS))


def test_the_next_statement_asks_anew(foodlog: Engine, fake_server: OipServer) -> None:
    for _ in range(2):
        foodlog.query("SELECT udf_food_name('/one.jpg')")
    assert fake_server.rows == ["/one.jpg", "/one.jpg"]


def test_null_is_null_and_never_sent(engine: Engine, fake_server: OipServer) -> None:
    assert engine.query("SELECT udf_food_name(NULL), ml_udf.predict('food', NULL::text)") == [(None, None)]
    assert fake_server.requests == []


def test_the_twin_answers_many_rows_in_one_request(engine: Engine, fake_server: OipServer) -> None:
    answers = engine.value("SELECT udf_food_name_batch(%s)", ["/a", None, "/b", "/a"])
    assert answers == [label_of("/a"), None, label_of("/b"), label_of("/a")]
    assert fake_server.requests == [[b"/a", b"/b"]]


def test_the_twin_of_no_rows_is_an_empty_array(engine: Engine, fake_server: OipServer) -> None:
    assert engine.value("SELECT udf_food_name_batch('{}')") == []
    assert fake_server.requests == []


def test_the_twin_and_the_function_share_a_memory(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SELECT udf_food_name('/a'), udf_food_name_batch(ARRAY['/a', '/b'])")
    assert sorted(fake_server.rows) == ["/a", "/b"]


def test_batch_rows_cuts_requests(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SET ml_udf.batch_rows = 4")
    engine.query("SELECT udf_food_name_batch(array_agg('/' || n)) FROM generate_series(1, 10) n")
    assert sorted(map(len, fake_server.requests)) == [2, 4, 4]


def test_the_generic_functions_answer_like_the_named_one(engine: Engine) -> None:
    label = label_of("/a")
    assert engine.value("SELECT ml_udf.predict('food', '/a')") == label
    assert engine.value("SELECT ml_udf.predict_many('food', ARRAY['/a', NULL])") == [label, None]
    assert engine.query("SELECT t.* FROM ml_udf.try_predict('food', '/a') t") == [(label, 0.5, "1", None)]


def test_the_twins_of_the_generic_functions_take_a_function_per_row(engine: Engine) -> None:
    batch = "'{food, NULL, udf_food_name}', ARRAY['/a', '/b', '/c'], '{ml_udf, ml_udf, ml_udf}'"
    assert engine.value(f"SELECT ml_udf.predict_batch({batch})") == [label_of("/a"), None, label_of("/c")]
    tried = engine.query(f"SELECT value FROM unnest(ml_udf.try_predict_batch({batch}))")
    assert tried == [(label_of("/a"),), (None,), (label_of("/c"),)]


def test_try_predict_tells_the_error_of_its_row_alone(engine: Engine) -> None:
    rows = engine.query(
        "SELECT t.value, t.error FROM (VALUES (1, '/a'), (2, 'missing.jpg'), (3, NULL)) v(n, path),"
        " LATERAL ml_udf.try_predict('food', path) t ORDER BY n"
    )
    assert rows == [
        (label_of("/a"), None),
        (None, "input_not_found: there is no file missing.jpg"),
        (None, None),
    ]
    assert engine.warnings == []


def test_encoded_images_go_as_bytes(postgres_engine: Callable[..., Engine], fake_server: OipServer) -> None:
    fake_server.functions["eye"] = "image"
    engine = postgres_engine(fake_server.url)
    engine.query("SELECT ml_udf.create_function('eye', input => 'bytea')")
    photo = b"\xff\xd8\x00" * 400
    assert engine.value("SELECT eye(%s)", photo) == label_of(photo)
    assert engine.value("SELECT ml_udf.predict('eye', %s::bytea)", photo) == label_of(photo)
    assert fake_server.requests == [[photo], [photo]]


def test_bytes_for_a_function_over_paths_go_to_its_other_input(
    engine: Engine, fake_server: OipServer
) -> None:
    photo = b"\xff\xd8" * 50
    engine.query("SELECT ml_udf.create_function('eye', 'udf_food_name', input => 'bytea', verify => false)")
    for call in ("eye(%s)", "(eye_batch(ARRAY[NULL, %s]))[2]", "ml_udf.predict('food', %s::bytea)"):
        assert engine.value(f"SELECT {call}", photo) == label_of(photo)
    assert fake_server.inputs == ["image"] * 3


def test_vectors_go_as_numbers(postgres_engine: Callable[..., Engine]) -> None:
    with oip_server(ours=False) as foreign:
        foreign.functions["total"] = "numbers"
        engine = postgres_engine(foreign.url)
        engine.query("SELECT ml_udf.create_function('total', input => 'float8[]', returns => 'float8')")
        assert engine.value("SELECT total(ARRAY[1, 2, 3.5])") == 6.5
        many = "ARRAY[ROW('{1,2}'), NULL, ROW('{3,4,5}')]::ml_udf.float8_vector[]"
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="a row has 2 numbers"):
            engine.query(f"SELECT total_batch({many})")
        many = many.replace("1,2", "1,2,3")
        assert engine.value(f"SELECT total_batch({many})") == [6.0, None, 12.0]
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="a row has 2 numbers"):
            engine.query("SELECT total(ARRAY[1, 2])")
        for odd in ("ARRAY[[1, 2, 3], [4, 5, 6]]", "ARRAY[1, NULL, 3]"):
            with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="vectors of numbers"):
                engine.query(f"SELECT total({odd})")
            engine.query("SET ml_udf.on_error = 'null'")
            assert engine.value(f"SELECT total({odd})") is None
            engine.query("RESET ml_udf.on_error")


def test_one_version_answers_a_whole_statement(foodlog: Engine, fake_server: OipServer) -> None:
    foodlog.query("BEGIN")
    foodlog.query("DECLARE c CURSOR FOR SELECT udf_food_name(image_path) FROM foodlog ORDER BY id")
    foodlog.query("FETCH 3 FROM c")
    fake_server.version = "2"  # deployed meanwhile; the old version is served no longer
    with pytest.raises(psycopg.errors.UndefinedObject, match=r"version 1 of udf_food_name"):
        foodlog.query("FETCH 3 FROM c")
    foodlog.query("ROLLBACK")
    fake_server.forget()
    foodlog.query("SELECT udf_food_name(image_path) FROM foodlog")
    assert {path for path in fake_server.paths if path.endswith("infer")} == {
        "/v2/models/udf_food_name/versions/2/infer"
    }


def test_planning_sends_no_table_rows(foodlog: Engine, fake_server: OipServer) -> None:
    foodlog.query(
        "EXPLAIN SELECT udf_food_name(image_path) FROM foodlog WHERE udf_food_name(image_path) = 'x'"
    )
    assert fake_server.requests == []


def test_cheap_conditions_and_limit_come_first(foodlog: Engine, fake_server: OipServer) -> None:
    foodlog.query("SELECT id FROM foodlog WHERE udf_food_name(image_path) = 'x' AND age = 3")
    assert set(fake_server.rows) == {path for n, path in enumerate(PATHS) if n % 50 == 3}
    fake_server.forget()
    foodlog.query("SELECT udf_food_name(image_path) FROM foodlog ORDER BY id LIMIT 3")
    assert fake_server.rows == PATHS[:3]


def test_another_server_than_ours_answers_without_any_extra(postgres_engine: Callable[..., Engine]) -> None:
    with oip_server(ours=False) as foreign:
        foreign.functions["sentiment"] = "text"
        engine = postgres_engine(foreign.url, functions=["sentiment"])
        assert engine.query("SELECT sentiment('good'), sentiment('bad')") == [
            (label_of("good"), label_of("bad"))
        ]
        tried = engine.query("SELECT t.* FROM ml_udf.try_predict('sentiment', 'good') t")
        assert tried == [(label_of("good"), None, "1", None)]
        assert not [name for sent in foreign.parameters for name in sent if name.startswith("ml_udf")]
        assert all("versions" not in path for path in foreign.paths)


@pytest.mark.parametrize(
    ("returns", "label", "value"),
    [
        ("boolean", "false", False),
        ("float8", "0.25", 0.25),
        ("jsonb", '{"a": 1}', {"a": 1}),
        ("bytea", "x", b"x"),
    ],
)
def test_answers_take_the_type_asked_for(
    postgres_engine: Callable[..., Engine],
    fake_server: OipServer,
    monkeypatch: pytest.MonkeyPatch,
    returns: str,
    label: str,
    value: object,
) -> None:
    monkeypatch.setattr("tests.postgres.oip_server.label_of", lambda _: label)
    engine = postgres_engine(fake_server.url)
    engine.query(f"SELECT ml_udf.create_function('f', function => 'food', returns => '{returns}')")
    assert engine.value("SELECT f('/a')") == value
    assert engine.value("SELECT (f_batch(ARRAY['/a']))[1]") == value


def test_a_label_that_is_no_boolean_is_refused(engine: Engine) -> None:
    engine.query("SELECT ml_udf.create_function('f', function => 'food', returns => 'boolean')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="is not a boolean"):
        engine.query("SELECT f('/a')")
