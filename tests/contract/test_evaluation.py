"""`ml_udf.evaluate`, `confusion_matrix`, `importance`: the same on every engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sklearn import metrics as of_sklearn

from tests.engines import DuckDb, Engine, Postgres, SqlError, make_engine
from tests.inference_server import InferenceServer
from tests.models import label_of
from tests.typed_server import (
    CLASSES,
    FUNCTIONS,
    TypedServer,
    kind_of,
    price_of,
    scores_of,
    tags_of,
    typed_server,
)

TEXTS = ["x" * (number % 7) + str(number) for number in range(60)]
# Every third row has another label than the function's answer.
LABELS = [kind_of(text) if number % 3 else CLASSES[number % 2] for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def typed() -> Iterator[TypedServer]:
    with typed_server() as running:
        yield running


@pytest.fixture(params=["duckdb", "postgres"])
def engine(request: pytest.FixtureRequest, typed: TypedServer) -> Iterator[Engine]:
    made = make_engine(request.param, typed.url, request, list(FUNCTIONS))
    made.query("DROP TABLE IF EXISTS labelled")
    made.query("CREATE TABLE labelled (t text, label text, price double precision, age integer, plan text)")
    rows = ", ".join(
        f"('{text}', '{label}', {price_of(text) + number % 5}, {number}, 'p{number % 4}')"
        for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    )
    made.query(f"INSERT INTO labelled VALUES {rows}")
    typed.forget()
    yield made
    made.close()


def evaluated(engine: Engine, arguments: str) -> dict[str, tuple[float, float, int]]:
    rows = engine.query(f'SELECT metric, value, baseline, "rows" FROM ml_udf.evaluate({arguments})')
    return {row[0]: row[1:] for row in rows}


def test_a_classification_is_evaluated_as_scikit_learn_does(engine: Engine, typed: TypedServer) -> None:
    found = evaluated(engine, "'udf_kind', 'SELECT t, label FROM labelled;', target => 'label'")
    said, scores = [kind_of(text) for text in TEXTS], [scores_of(text) for text in TEXTS]
    labels = list(CLASSES)
    assert {rows for _, _, rows in found.values()} == {len(TEXTS)}
    assert found["accuracy"][0] == pytest.approx(of_sklearn.accuracy_score(LABELS, said))
    assert found["macro_f1"][0] == pytest.approx(of_sklearn.f1_score(LABELS, said, average="macro"))
    areas = [
        of_sklearn.roc_auc_score([label == name for label in LABELS], [row[at] for row in scores])
        for at, name in enumerate(labels)
    ]
    assert found["auc"][0] == pytest.approx(sum(areas) / len(areas))
    assert set(found) == {"accuracy", "macro_f1", "log_loss", "auc"}
    assert found["accuracy"][1] == max(LABELS.count(label) for label in labels) / len(LABELS)
    assert len(typed.requests) <= 4, "the answers, and the scores of some of the same rows"


def test_what_is_confused_is_told_in_rows(engine: Engine) -> None:
    rows = engine.query(
        'SELECT actual, predicted, "rows" FROM '
        "ml_udf.confusion_matrix('udf_kind', 'SELECT t, label FROM labelled', target => 'label')"
    )
    matrix = of_sklearn.confusion_matrix(LABELS, [kind_of(text) for text in TEXTS], labels=list(CLASSES))
    expected = {
        (CLASSES[row], CLASSES[column], int(matrix[row, column]))
        for row in range(3)
        for column in range(3)
        if matrix[row, column]
    }
    assert set(rows) == expected


def test_a_regression_and_several_labels_have_their_own_metrics(engine: Engine) -> None:
    found = evaluated(engine, "'udf_price', 'SELECT t, price FROM labelled', target => 'price'")
    wanted = [price_of(text) + number % 5 for number, text in enumerate(TEXTS)]
    said = [price_of(text) for text in TEXTS]
    assert found["rmse"][0] == pytest.approx(of_sklearn.mean_squared_error(wanted, said) ** 0.5)
    assert found["mae"][0] == pytest.approx(of_sklearn.mean_absolute_error(wanted, said))
    assert found["r2"][0] == pytest.approx(of_sklearn.r2_score(wanted, said))
    lists = ", ".join(f"('{text}', ARRAY['pizza', 'laksa'])" for text in ("lp", "p", "s"))
    query = f"SELECT * FROM (VALUES {lists}) AS v(t, tags)".replace("'", "''")
    ((name, (value, _, rows)),) = evaluated(engine, f"'udf_tags', '{query}', target => 'tags'").items()
    hits = sum(len({"pizza", "laksa"} & set(tags_of(text))) for text in ("lp", "p", "s"))
    said_or_wanted = 6 + sum(len(tags_of(text)) for text in ("lp", "p", "s"))
    assert (name, rows) == ("micro_f1", 3)
    assert value == pytest.approx(2 * hits / said_or_wanted)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1::float8", "1"),
        ("2.5::float8", "2.5"),
        ("0.1::float4", "0.1"),
        ("4.50::numeric(5, 2)", "4.5"),
        ("123456789012345678901::numeric(38, 0)", "123456789012345678901"),
    ],
)
def test_numbers_are_the_classes_that_their_text_is(engine: Engine, number: str, text: str) -> None:
    query = f"SELECT t, {number} AS label FROM labelled"
    rows = engine.query(
        f"SELECT DISTINCT actual FROM ml_udf.confusion_matrix('udf_kind', '{query}', target => 'label')"
    )
    assert {row[0] for row in rows} == {text}


def test_importance_is_of_the_columns_of_a_table(engine: Engine) -> None:
    query = "SELECT age, plan, (ARRAY[''laksa'', ''pizza'', ''satay''])[age % 3 + 1] AS grade FROM labelled"
    rows = engine.query(
        "SELECT feature, importance, spread, metric FROM "
        f"ml_udf.importance('udf_grade', '{query}', target => 'grade', repeats => 4)"
    )
    (age, plan) = rows
    assert (age[0], age[3]) == ("age", "accuracy")
    assert 0.4 < age[1] < 0.9
    assert age[2] > 0
    assert plan == ("plan", 0.0, 0.0, "accuracy")


def test_a_column_of_single_precision_is_asked_as_a_call_asks_it(engine: Engine, typed: TypedServer) -> None:
    row = "1000.002::float4 AS age, 'p' AS plan"
    engine.query(f"SELECT udf_grade(age, plan) FROM (SELECT {row}) AS t")
    called = [json.loads(sent) for sent in typed.rows]
    typed.forget()
    query = f"SELECT {row}, 'laksa' AS grade".replace("'", "''")
    evaluated(engine, f"'udf_grade', '{query}', target => 'grade'")
    assert [json.loads(sent) for sent in typed.rows] == called == [[1000.0020141601562, "p"]]


def documented() -> list[str]:
    """The statements of the page."""
    page = (Path(__file__).parents[2] / "docs/evaluate.md").read_text()
    block = page.partition("```sql\n")[2].partition("```")[0]
    found = [line.partition(";")[0] for line in block.splitlines()]
    assert len(found) == 5
    return found


def test_the_pages_importance_runs_as_it_is_written(engine: Engine) -> None:
    engine.query("DROP TABLE IF EXISTS customers")
    engine.query(
        "CREATE TABLE customers AS SELECT age, plan, age > 20 AS member, label AS churned FROM labelled"
    )
    rows = engine.query(documented()[3].replace("udf_churn", "udf_grade"))
    assert {row[0] for row in rows} == {"age", "plan"}


def test_nulls_and_faulty_rows_do_not_count(engine: Engine) -> None:
    rows = "(''lp'', ''satay''), (NULL, ''laksa''), (''lp'', NULL), (''missing'', ''laksa'')"
    query = f"SELECT * FROM (VALUES {rows}) v(t, l)"
    with pytest.raises(SqlError, match="there is no file missing") as refused:
        evaluated(engine, f"'udf_kind', '{query}', target => 'l'")
    assert refused.value.sqlstate == "58P01"
    engine.set("on_error", "null")
    assert evaluated(engine, f"'udf_kind', '{query}', target => 'l'")["accuracy"][2] == 1
    empty = "SELECT t, label FROM labelled WHERE false"
    assert evaluated(engine, f"'udf_kind', '{empty}', target => 'label'") == {}


@pytest.mark.parametrize(
    ("arguments", "state", "said"),
    [
        ("'udf_kind', 'SELECT t, label FROM labelled'", "22023", "target is missing"),
        (
            "'udf_kind', 'SELECT t, label FROM labelled', target => 'x'",
            "42703",
            "no column 'x' for the target",
        ),
        ("'udf_kind', 'SELECT * FROM labelled', target => 'label'", "22023", "4 columns beside the target"),
        (
            "'udf_kind', 'SELECT * FROM labelled', target => 'label', input => 'y'",
            "42703",
            "no column 'y' for the input",
        ),
        ("'udf_row', 'SELECT age, label FROM labelled', target => 'label'", "42703", "no column 'plan'"),
        ("'udf_price', 'SELECT t, label FROM labelled', target => 'label'", "22023", "is no number"),
        ("'udf_price', 'SELECT t, ''NaN''::float8 AS p FROM labelled', target => 'p'", "22023", "no number"),
        ("'udf_vector', 'SELECT t, label FROM labelled', target => 'label'", "22023", "nothing to count"),
        ("'udf_nothing', 'SELECT t, label FROM labelled', target => 'label'", "42704", "udf_nothing"),
        ("'udf_kind', 'SELECT t, label FROM nowhere', target => 'label'", "", "nowhere"),
        ("'udf_kind', 'DELETE FROM labelled', target => 'label'", "", "one SELECT"),
        ("'udf_kind', 'SELECT 1 AS t, 2 AS label; SELECT 3', target => 'label'", "", "one SELECT"),
        ("'udf_kind', 'food', target => 'label'", "22023", "'food' is a dataset"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(
    engine: Engine, arguments: str, state: str, said: str
) -> None:
    with pytest.raises(SqlError) as refused:
        evaluated(engine, arguments)
    assert said in refused.value.text
    assert not state or refused.value.sqlstate == state
    assert engine.query("SELECT count(*) FROM labelled") == [(len(TEXTS),)]


def test_of_answers_that_are_no_class_nothing_is_confused_and_of_no_columns_none_is_important(
    engine: Engine,
) -> None:
    with pytest.raises(SqlError, match="does not name one class a row"):
        engine.query(
            "SELECT * FROM ml_udf.confusion_matrix("
            "'udf_price', 'SELECT t, price FROM labelled', target => 'price')"
        )
    with pytest.raises(SqlError, match="does not take the columns of a table"):
        engine.query(
            "SELECT * FROM ml_udf.importance('udf_kind', 'SELECT t, label FROM labelled', target => 'label')"
        )


@pytest.mark.security
def test_a_query_runs_with_its_callers_rights_and_row_security(engine: Engine, typed: TypedServer) -> None:
    if not isinstance(engine, Postgres):
        pytest.skip("DuckDB has no roles")
    engine.query("DROP ROLE IF EXISTS evaluator")
    engine.query("CREATE ROLE evaluator IN ROLE ml_udf_reader")
    engine.query("GRANT USAGE ON FOREIGN SERVER ml_udf TO evaluator; SET ROLE evaluator")
    query = "'udf_kind', 'SELECT t, label FROM labelled', target => 'label'"
    try:
        with pytest.raises(SqlError, match="permission denied for table labelled"):
            evaluated(engine, query)
        with pytest.raises(SqlError, match="permission denied for the rows of a dataset") as refused:
            evaluated(engine, "'udf_kind', 'food'")
        assert refused.value.sqlstate == "42501"
        engine.query(
            "RESET ROLE; GRANT SELECT ON labelled TO evaluator;"
            "ALTER TABLE labelled ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY few ON labelled USING (age < 10); SET ROLE evaluator"
        )
        assert evaluated(engine, query)["accuracy"][2] == 10
    finally:
        engine.query("RESET ROLE; DROP OWNED BY evaluator; DROP ROLE evaluator")


@pytest.fixture(params=["duckdb", "postgres"])
def real(request: pytest.FixtureRequest, server: InferenceServer) -> Iterator[Engine]:
    made = make_engine(request.param, server.url, request)
    yield made
    made.close()


def test_a_datasets_held_out_rows_are_evaluated_where_they_are(real: Engine) -> None:
    name = f"texts_of_{real.name}"
    real.query("DROP TABLE IF EXISTS texts_labelled")
    real.query("CREATE TABLE texts_labelled (t text, label text)")
    rows = ", ".join(f"('text {number}', '{label_of(f'text {number}')}')" for number in range(200))
    real.query(f"INSERT INTO texts_labelled VALUES {rows}")
    real.query(
        f"SELECT ml_udf.create_dataset('{name}', 'SELECT t, label FROM texts_labelled', target => 'label', "
        "key => 't', task => 'text-classification')"
    )
    held = "splits.test" if isinstance(real, DuckDb) else "(splits->>'test')::int"
    ((test_rows,),) = real.query(f"SELECT {held} FROM ml_udf.datasets WHERE name = '{name}'")
    found = evaluated(real, f"'udf_text', '{name}'")
    assert 10 < test_rows < 100
    assert found["accuracy"][0] == 1.0
    assert found["accuracy"][1] < 1.0
    assert {rows for _, _, rows in found.values()} == {test_rows}
    confused = real.query(
        f"SELECT actual, predicted, \"rows\" FROM ml_udf.confusion_matrix('udf_text', '{name}')"
    )
    assert sum(row[2] for row in confused) == test_rows
    assert all(actual == predicted for actual, predicted, _ in confused)
    for statement in documented()[:3]:
        asked = statement.replace("udf_food_name", "udf_text").replace("'food'", f"'{name}'")
        real.query(asked.replace("image_path, label FROM labelled", "t, label FROM texts_labelled"))
    for function, dataset, said in (
        ("udf_photo", name, "are of form text"),
        ("udf_text", "no_such_dataset", "no_such_dataset"),
    ):
        with pytest.raises(SqlError, match=said):
            evaluated(real, f"'{function}', '{dataset}'")
    with pytest.raises(SqlError, match="does not take the columns of a table"):
        real.query(f"SELECT * FROM ml_udf.importance('udf_text', '{name}')")


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "time"])
def test_moments_are_the_classes_that_a_dataset_makes_of_them(real: Engine, kind: str) -> None:
    name = f"{kind}_of_{real.name}"
    real.query("DROP TABLE IF EXISTS moments")
    real.query(
        f"CREATE TABLE moments AS SELECT t, CAST(m AS {kind}) AS m FROM (SELECT concat('text ', n) AS t, "
        "CASE WHEN n % 3 = 0 THEN '2024-01-02 03:04:05' WHEN n % 3 = 1 THEN '0987-06-05 04:03:02' "
        "ELSE '2024-01-02 03:04:05.25' END::timestamp AS m FROM generate_series(1, 60) AS g(n)) AS made"
    )
    query = "SELECT t, m FROM moments"
    real.query(
        f"SELECT ml_udf.create_dataset('{name}', '{query}', target => 'm', key => 't', "
        "task => 'text-classification')"
    )
    real.query("SET TimeZone = 'America/New_York'")  # in which a moment may be shown otherwise
    ((classes,),) = real.query(f"SELECT classes FROM ml_udf.datasets WHERE name = '{name}'")
    rows = real.query(
        f"SELECT DISTINCT actual FROM ml_udf.confusion_matrix('udf_text', '{query}', target => 'm')"
    )
    assert len(classes) == 3
    assert {row[0] for row in rows} == set(classes)


def test_the_learning_curve_of_a_job_that_there_is_not(real: Engine) -> None:
    with pytest.raises(SqlError) as refused:
        real.query("SELECT * FROM ml_udf.learning_curve(123456)")
    assert refused.value.sqlstate == "42704"
