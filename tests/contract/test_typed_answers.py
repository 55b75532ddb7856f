"""Answers of every task in SQL: their types, and what is asked of them by name, the same on every engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import ml_udf.duckdb
import ml_udf.sdk as rafiki
from tests.engines import DuckDb, Engine, Postgres, SqlError, make_engine
from tests.typed_server import (
    CLASSES,
    FUNCTIONS,
    TypedServer,
    boxes_of,
    json_of,
    kind_of,
    price_of,
    scores_of,
    tags_of,
    typed_server,
    vector_of,
)

TEXTS = ["lp", "", "a!s", "ü🍜p", "even"]


@pytest.fixture(scope="module")
def server() -> Iterator[TypedServer]:
    with typed_server() as running:
        yield running


@pytest.fixture(scope="module", params=["duckdb", "postgres", "postgres-by-row"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def postgres(
    engine_name: str, server: TypedServer, request: pytest.FixtureRequest
) -> Iterator[Postgres | None]:
    made = None if engine_name == "duckdb" else make_engine(engine_name, server.url, request, list(FUNCTIONS))
    assert made is None or isinstance(made, Postgres)
    yield made
    if made is not None:
        made.close()


@pytest.fixture
def engine(
    postgres: Postgres | None, server: TypedServer, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """An engine whose session calls the functions by name, with no setting of another test."""
    made = postgres or make_engine("duckdb", server.url, request, list(FUNCTIONS))
    server.forget()
    yield made
    if postgres is None:
        made.close()
    else:
        postgres.reset()


def values(*texts: str | None) -> str:
    rows = ", ".join(
        f"({n}, {'CAST(NULL AS text)' if t is None else quoted(t)})" for n, t in enumerate(texts)
    )
    return f"(VALUES {rows}) AS v(n, t)"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def column(engine: Engine, expression: str, *texts: str | None) -> list[Any]:
    """An expression over `t`, in order; what psycopg gives as JSON and DuckDB as its text is read."""
    rows = engine.query(f"SELECT {expression} FROM {values(*texts)} ORDER BY n")
    return [row[0] for row in rows]


EXPECTED = {
    "udf_kind": (kind_of, "text", "VARCHAR"),
    "udf_tags": (tags_of, "text[]", "VARCHAR[]"),
    "udf_price": (price_of, "double precision", "DOUBLE"),
    "udf_boxes": (boxes_of, "jsonb", 'STRUCT("label" VARCHAR, score DOUBLE, box DOUBLE[])[]'),
    "udf_json": (json_of, "jsonb", "JSON"),
    "udf_vector": (vector_of, "real[]", "FLOAT[4]"),
}


@pytest.mark.parametrize("function", EXPECTED)
def test_an_answer_is_a_value_of_its_type(engine: Engine, server: TypedServer, function: str) -> None:
    expected, of_postgres, of_duckdb = EXPECTED[function]
    texts = [*TEXTS, None, *TEXTS]
    found = column(engine, f"{function}(t)", *texts)
    if function == "udf_json" and isinstance(engine, DuckDb):
        found = [None if value is None else json.loads(value) for value in found]
    wanted = [None if text is None else expected(text) for text in texts]
    if function == "udf_vector":
        found = [None if value is None else [round(number, 9) for number in value] for value in found]
    assert found == wanted
    kind = "typeof" if isinstance(engine, DuckDb) else "pg_typeof"
    named = column(engine, f"CAST({kind}({function}(t)) AS text)", "lp")[0]
    assert named.replace('"label"', "label") == (
        of_duckdb.replace('"label"', "label") if isinstance(engine, DuckDb) else of_postgres
    )
    if engine.name != "postgres-by-row":
        assert max(map(len, server.requests)) == len(TEXTS), (
            "equal texts once, NULL never, all in one request"
        )


def test_what_is_in_an_answer_can_be_asked_with_the_engines_own_functions(engine: Engine) -> None:
    duck = isinstance(engine, DuckDb)
    tagged = "list_contains(udf_tags(t), 'pizza')" if duck else "'pizza' = ANY (udf_tags(t))"
    assert column(engine, tagged, "lp", "l") == [True, False]
    assert column(engine, "udf_price(t) * 2", "lp") == [5.0]
    first = "udf_boxes(t)[1].box[3]" if duck else "(udf_boxes(t)->0->'box'->>2)::float8"
    assert column(engine, first, "lp") == [2.5]
    said = "udf_json(t)->>'said'"
    assert column(engine, said, "lp") == ["lp"]


def test_scores_are_a_classs_probability_by_its_name(engine: Engine, server: TypedServer) -> None:
    found = column(engine, "ml_udf.scores('udf_kind', t)", "lp", None, "even")
    assert found == [dict(zip(CLASSES, scores_of("lp"), strict=True)), None, dict.fromkeys(CLASSES, 0.25)]
    assert column(engine, "ml_udf.scores('udf_tags', t)", "lp") == [found[0]], "of several labels too"


def test_score_is_the_probability_of_one_class(engine: Engine) -> None:
    assert column(engine, "ml_udf.score('udf_kind', t, 'pizza')", "lp", None) == [scores_of("lp")[1], None]
    by_row = column(engine, "ml_udf.score('udf_kind', 'lp', t)", *CLASSES, None)
    assert by_row == [*scores_of("lp"), None]
    where = engine.query(
        f"SELECT t FROM {values('lp', 'l', 'lps')} WHERE ml_udf.score('udf_kind', t, 'satay') > 0.5"
    )
    assert where == [("lp",)]


def test_top_k_are_the_most_probable_classes_first(engine: Engine) -> None:
    (found, nothing, even) = column(engine, "ml_udf.top_k('udf_kind', t, 2)", "lp", None, "even")
    ordered = sorted(zip(CLASSES, scores_of("lp"), strict=True), key=lambda each: -each[1])
    assert found == [{"label": label, "score": score} for label, score in ordered[:2]]
    assert nothing is None
    assert [each["label"] for each in even] == list(CLASSES[:2]), "of equal ones the first"
    (every,) = column(engine, "ml_udf.top_k('udf_kind', t, 100)", "lp")
    assert [each["label"] for each in every] == [label for label, _ in ordered]


def test_the_three_ask_for_a_row_once(engine: Engine, server: TypedServer) -> None:
    if engine.name == "postgres-by-row":
        pytest.skip("one request a row, as without the batching module")
    series = "range(1000)" if isinstance(engine, DuckDb) else "generate_series(0, 999)"
    rows = engine.query(
        "SELECT ml_udf.score('udf_kind', t, 'laksa'), ml_udf.scores('udf_kind', t), "
        "ml_udf.top_k('udf_kind', t, 1) "
        f"FROM (SELECT 'x' || i % 200 AS t FROM {series} AS s(i)) AS texts"
    )
    assert len(rows) == 1000
    assert sorted(server.rows) == sorted({f"x{i}" for i in range(200)})
    assert len(server.requests) <= 4


def test_bytes_of_an_image_are_asked_by_their_own_input(engine: Engine, server: TypedServer) -> None:
    image = "'lp'::BLOB" if isinstance(engine, DuckDb) else "'lp'::bytea"
    for call, expected in (
        ("ml_udf.predict('udf_shown', {})", kind_of("lp")),
        ("ml_udf.score('udf_shown', {}, 'pizza')", scores_of("lp")[1]),
        ("ml_udf.scores('udf_shown', {})", dict(zip(CLASSES, scores_of("lp"), strict=True))),
        ("ml_udf.top_k('udf_shown', {}, 1)", [{"label": "satay", "score": 0.625}]),
        ("(ml_udf.try_predict('udf_shown', {})).value", kind_of("lp")),
        ("(ml_udf.detail('udf_shown', {})).value", kind_of("lp")),
    ):
        assert column(engine, call.format(image), "x") == [expected]
    assert set(server.inputs) == {"image"}
    assert column(engine, "ml_udf.predict('udf_shown', t)", "lp") == [kind_of("lp")]
    assert server.inputs[-1] == "image_path"


def test_a_tables_row_is_given_by_the_names_of_its_columns(engine: Engine, server: TypedServer) -> None:
    sent = '[31, "gold"]'
    table = "(SELECT 31 AS age, 'gold' AS plan, 'x' AS other) AS t"
    row = "t" if isinstance(engine, DuckDb) else "to_jsonb(t)::text"
    rows = engine.query(
        f"SELECT ml_udf.score('udf_row', {row}, 'pizza'), ml_udf.predict('udf_row', '{sent}'), "
        f"udf_row(age, plan) FROM {table}"
    )
    assert [json.loads(each) for each in set(server.rows)] == [json.loads(sent)] * len(set(server.rows))
    assert rows[0][0] == scores_of(sent)[1]
    assert rows[0][1] == kind_of(sent)
    with pytest.raises(
        SqlError, match=r"the row has no 'age', 'plan'; the function takes age, plan"
    ) as refused:
        engine.query("SELECT ml_udf.predict('udf_row', '{\"Age\": 3}')")
    assert refused.value.sqlstate == "22P02"


def test_a_class_that_there_is_not_is_a_fault_of_its_row(engine: Engine) -> None:
    with pytest.raises(SqlError, match=r"there is no class 'burger'") as refused:
        column(engine, "ml_udf.score('udf_kind', 'lp', t)", "laksa", "burger")
    assert refused.value.sqlstate == "22023"
    assert "its classes: laksa, pizza, satay" in refused.value.text
    engine.set("on_error", "null")
    assert column(engine, "ml_udf.score('udf_kind', 'lp', t)", "laksa", "burger") == [
        scores_of("lp")[0],
        None,
    ]


@pytest.mark.parametrize("k", ["0", "-3"])
def test_less_than_one_class_cannot_be_asked_for(engine: Engine, k: str) -> None:
    engine.set("on_error", "null")
    with pytest.raises(SqlError, match=rf"k = {k}: at least one class has to be asked for") as refused:
        column(engine, f"ml_udf.top_k('udf_kind', t, {k})", "lp")
    assert refused.value.sqlstate == "22023"


def test_no_k_gives_null(engine: Engine) -> None:
    assert column(engine, "ml_udf.top_k('udf_kind', t, NULL)", "lp") == [None]


@pytest.mark.parametrize("function", ["udf_price", "udf_vector", "udf_boxes", "udf_json"])
def test_a_task_without_scores_says_so(engine: Engine, function: str) -> None:
    for call in ("scores('{}', t)", "score('{}', t, 'a')", "top_k('{}', t, 1)"):
        with pytest.raises(SqlError, match=f"{function} answers with no probabilities of classes") as refused:
            column(engine, "ml_udf." + call.format(function), "lp")
        assert refused.value.sqlstate == "22023"
        assert "ml_udf.detail shows" in refused.value.text


def test_a_row_at_fault_is_its_error_or_null(engine: Engine) -> None:
    calls = ("scores('udf_kind', t)", "score('udf_kind', t, 'laksa')", "top_k('udf_kind', t, 1)")
    for call in calls:
        with pytest.raises(SqlError, match="there is no file missing") as refused:
            column(engine, "ml_udf." + call, "lp", "missing")
        assert refused.value.sqlstate == "58P01"
    for function in ("udf_price", "udf_tags", "udf_boxes", "udf_vector", "udf_json"):
        with pytest.raises(SqlError, match="there is no file missing"):
            column(engine, f"{function}(t)", "lp", "missing")
    engine.set("on_error", "null")
    for call in (*("ml_udf." + call for call in calls), "udf_price(t)", "udf_tags(t)", "udf_boxes(t)"):
        found = column(engine, call, "lp", "missing")
        assert found[0] is not None
        assert found[1] is None
    assert engine.warned()


def test_an_answer_that_is_not_what_the_server_says_of_it_is_a_fault_of_its_row(engine: Engine) -> None:
    with pytest.raises(SqlError, match="is no list of labels") as refused:
        column(engine, "udf_liar(t)", "lp")
    assert refused.value.sqlstate == "42804"
    engine.set("on_error", "null")
    assert column(engine, "udf_liar(t)", "lp") == [None]


def test_as_text_an_answer_is_json(engine: Engine) -> None:
    for function, (expected, *_) in EXPECTED.items():
        (text,) = column(engine, f"ml_udf.predict('{function}', t)", "lp")
        (tried,) = column(engine, f"(ml_udf.try_predict('{function}', t)).value", "lp")
        assert tried == text
        wanted = expected("lp")
        assert (text if function == "udf_kind" else json.loads(text)) == wanted


def test_detail_has_every_column_of_the_answer(engine: Engine) -> None:
    def told(function: str, text: str = "lp") -> dict[str, Any] | None:
        (found,) = column(engine, f"CAST((ml_udf.detail('{function}', t)).columns AS text)", text)
        return None if found is None else json.loads(found)

    assert told("udf_kind") == {"label": kind_of("lp"), "confidence": 0.625}
    assert told("udf_price") == {"value": price_of("lp"), "low": price_of("lp") - 1, "high": None}
    assert told("udf_tags") == {"labels": tags_of("lp")}
    assert told("udf_tags", "!") == {"labels": tags_of("!")}
    assert told("udf_boxes") == {"boxes": boxes_of("lp")}
    assert told("udf_json") == {"text": json_of("lp")}
    assert told("udf_vector") == {"embedding": vector_of("lp")}
    assert told("udf_kind", "missing") is None
    assert column(engine, "(ml_udf.detail('udf_price', t)).device_seconds", "lp") == [0.25]


@pytest.mark.parametrize("function", EXPECTED)
def test_a_table_is_scored_into_a_column_of_the_answers_type(
    engine: Engine, server: TypedServer, function: str
) -> None:
    expected, of_postgres, of_duckdb = EXPECTED[function]
    engine.query("DROP TABLE IF EXISTS answers")
    engine.query("DROP TABLE IF EXISTS texts")
    engine.query(f"CREATE TABLE texts AS SELECT n AS id, t FROM {values(*TEXTS, None, 'missing')}")
    engine.query("ALTER TABLE texts ADD PRIMARY KEY (id)")
    for _ in range(2):
        if isinstance(engine, DuckDb):
            where: dict[str, Any] = {"result_table": "answers", "on_error": "null"}
            ml_udf.duckdb.score_table(engine.connection, server.url, "texts", function, "t", **where)
        else:
            answers = "result_table => 'answers', on_error => 'null'"
            engine.query(f"CALL ml_udf.score_table('texts', '{function}', 't', {answers})")
    kind = "typeof" if isinstance(engine, DuckDb) else "pg_typeof"
    rows = engine.query(
        f"SELECT t, value, CAST({kind}(value) AS text), error FROM answers JOIN texts USING (id) ORDER BY id"
    )
    assert [row[0] for row in rows] == [*TEXTS, "missing"]
    for text, value, named, error in rows[:-1]:
        found = json.loads(value) if function == "udf_json" and isinstance(engine, DuckDb) else value
        assert error is None
        assert found == (pytest.approx(expected(text)) if function == "udf_vector" else expected(text))
        assert named.replace('"label"', "label") == (
            of_duckdb.replace('"label"', "label") if isinstance(engine, DuckDb) else of_postgres
        )
    assert rows[-1][1] is None
    assert rows[-1][3].startswith("input_not_found: ")
    assert len(server.rows) == len(TEXTS) + 1, "what is answered is not asked again"


@pytest.mark.parametrize(
    ("function", "of_postgres", "of_duckdb"),
    [
        ("udf_tags", "integer", "INTEGER"),
        ("udf_price", "integer", "DATE"),
        ("udf_vector", "integer", "FLOAT[3]"),
        ("udf_boxes", "text[]", "DATE[]"),
    ],
)
def test_a_column_that_cannot_take_the_answers_is_refused_before_any_is_asked_for(
    engine: Engine, server: TypedServer, function: str, of_postgres: str, of_duckdb: str
) -> None:
    engine.query("DROP TABLE IF EXISTS texts")
    kind = of_duckdb if isinstance(engine, DuckDb) else of_postgres
    engine.query(f"CREATE TABLE texts (id integer PRIMARY KEY, t text, answer {kind})")
    engine.query("INSERT INTO texts (id, t) VALUES (1, 'lp')")

    def score() -> None:
        if isinstance(engine, DuckDb):
            ml_udf.duckdb.score_table(engine.connection, server.url, "texts", function, "t", output="answer")
        else:
            engine.query(f"CALL ml_udf.score_table('texts', '{function}', 't', output => 'answer')")

    with pytest.raises(Exception, match=r"do not fit into column answer"):
        score()
    assert server.requests == []


def test_the_sdk_answers_in_pythons_own_types(server: TypedServer) -> None:
    for function, (expected, *_) in EXPECTED.items():
        asked = rafiki.Query(function, (), 0.0, 0.0, 0.0, server.url)
        (found,) = rafiki.query(asked, ["lp"])
        assert (pytest.approx(expected("lp")) if function == "udf_vector" else expected("lp")) == (
            list(found) if function == "udf_vector" else found
        )
    by_image = rafiki.Query("udf_shown", (), 0.0, 0.0, 0.0, server.url)
    assert rafiki.query(by_image, [b"lp", "lp"]) == [kind_of("lp")] * 2
