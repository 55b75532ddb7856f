"""Tables and texts, the whole circle in SQL on both engines: dataset → train → deploy → SELECT."""

from __future__ import annotations

import functools
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import psycopg
import pytest
from typer.testing import CliRunner

import ml_udf.duckdb
from ml_udf.cli.app import app
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.duckdb import Registration
from tests.inference_server import InferenceServer, inference_server
from tests.waiting import wait_for_job

JOB_S = 400.0  # a training process begins last on a machine that others use too
LONG = "wonderful " * 20_000


def customers(count: int = 240) -> list[tuple[Any, ...]]:
    """(id, age, plan, member, spent, churned): the young, and those on the free plan, leave."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        age, plan = draw.randint(18, 80), draw.choice(["free", "pro", "größer"])
        churned = "yes" if plan == "free" or age < 30 else "no"
        member = None if number % 12 == 0 else draw.random() < 0.5
        spent = None if number % 10 == 0 else round(draw.uniform(0, 500), 2)
        rows.append((number, age, plan, member, spent, churned))
    return rows


def opinions(count: int = 160) -> list[tuple[str, str]]:
    """(text, mood), in two scripts, with one that is empty."""
    good = ["wonderful", "lovely", "delicious", "великолепно", "素晴らしい"]
    bad = ["awful", "bland", "burnt", "ужасно", "ひどい"]
    things = ["soup", "noodles", "rice", "суп", "麺", "tea"]
    draw = random.Random(1)
    rows = []
    for number in range(count):
        mood, words = ("good", good) if number % 2 else ("bad", bad)
        rows.append(
            (f"{number}: the {draw.choice(things)} was {draw.choice(words)}, {draw.choice(words)}", mood)
        )
    return [*rows, ("", "bad")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    home = tmp_path_factory.mktemp("home")
    with inference_server(home, flags=[f"--connections-file={home / 'connections.toml'}"]) as running:
        yield running


@pytest.fixture(scope="module")
def db(server: InferenceServer) -> Iterator[tuple[duckdb.DuckDBPyConnection, Registration]]:
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE customers"
        " (id INT, age INT, plan VARCHAR, member BOOL, spent DECIMAL(9,2), churned VARCHAR)"
    )
    con.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?)", customers())
    con.execute("CREATE TABLE opinions (text VARCHAR, mood VARCHAR)")
    con.executemany("INSERT INTO opinions VALUES (?, ?)", opinions())
    registration = ml_udf.duckdb.register(con, server.url)
    yield con, registration
    registration.close()
    con.close()


@pytest.fixture(scope="module")
def pg(cluster: Sandbox, server: InferenceServer) -> Iterator[psycopg.Connection[Any]]:
    dsn = cluster.database("training_inputs", url=server.url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE customers"
            " (id int, age int, plan varchar(10), member bool, spent numeric(9,2), churned text)"
        )
        connection.execute("CREATE TABLE opinions (text text, mood text)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO customers VALUES (%s, %s, %s, %s, %s, %s)", customers())
            cursor.executemany("INSERT INTO opinions VALUES (%s, %s)", opinions())
        connection.execute("CREATE ROLE training_inputs LOGIN")
        connection.execute("GRANT SELECT ON customers, opinions TO training_inputs")
        reader = cluster.dsn("training_inputs", user="training_inputs")
        (server.home / "connections.toml").write_text(f'default = "{reader}"\n')
        yield connection


Value = Callable[..., Any]


@pytest.fixture
def in_duckdb(db: tuple[duckdb.DuckDBPyConnection, Registration]) -> Value:
    def value(sql: str) -> Any:
        ((found,),) = db[0].execute(sql).fetchall()
        return found

    return value


@pytest.fixture
def in_postgresql(pg: psycopg.Connection[Any]) -> Value:
    def value(sql: str) -> Any:
        row = pg.execute(sql).fetchone()
        assert row is not None
        return row[0]

    return value


def trained(value: Value, name: str, query: str, rest: str, train: str) -> int:
    value(f"SELECT ml_udf.create_dataset('{name}', $${query}$$, {rest})")
    job = value(f"SELECT ml_udf.train('{name}', {train})")
    wait_for_job(value, job, JOB_S)
    return int(job)


def check_evaluation(value: Value, function: str, dataset: str, job: int, deployed: dict[str, Any]) -> None:
    """What is evaluated in SQL is what the deployment has measured, and what the job's trials say."""
    accuracy = f"FROM ml_udf.evaluate('{function}', '{dataset}') WHERE metric = 'accuracy'"
    assert value(f"SELECT value {accuracy}") == pytest.approx(deployed["test_accuracy"])
    assert value(f'SELECT "rows" {accuracy}') == deployed["test_rows"]
    assert value(f"SELECT baseline {accuracy}") < deployed["test_accuracy"]
    query = "SELECT age, plan, member, spent, churned FROM customers"
    for rows in (f"'{dataset}'", f"'{query}', target => 'churned'"):
        important = f"FROM ml_udf.importance('{function}', {rows}, repeats => 2)"
        assert (
            value(f"SELECT string_agg(feature, ',' ORDER BY feature) {important}") == "age,member,plan,spent"
        )
        assert value(f"SELECT max(importance) {important}") > 0.05
    curve = f"FROM ml_udf.learning_curve({job})"
    epochs, best = (
        f"SELECT sum(epochs) FROM ml_udf.trials WHERE job_id = {job}",
        "SELECT best_score FROM ml_udf.jobs",
    )
    assert value(f"SELECT count(*) {curve}") == value(epochs)
    assert value(f"SELECT max(score) {curve}") == pytest.approx(value(f"{best} WHERE id = {job}"))


CUSTOMERS = "SELECT id, age, plan, member, spent, churned FROM customers"
TABLE = "target => 'churned', key => 'id', task => 'tabular-classification'"
TEXT = "target => 'mood', key => 'text', task => 'text-classification'"


def test_duckdb_learns_from_a_table_and_its_function_takes_the_columns(
    in_duckdb: Value, db: tuple[duckdb.DuckDBPyConnection, Registration], server: InferenceServer
):
    job = trained(in_duckdb, "churn", CUSTOMERS, TABLE, "budget => '12 epochs', max_epochs => 3")
    models = in_duckdb(f"SELECT list(DISTINCT model ORDER BY model) FROM ml_udf.trials WHERE job_id = {job}")
    assert models == ["hist_gradient_boosting", "logistic_regression", "random_forest"]
    assert in_duckdb(f"SELECT policy FROM ml_udf.jobs WHERE id = {job}") == "study"
    deployed = in_duckdb(f"SELECT ml_udf.deploy('udf_churn', job => {job})")
    assert deployed["test_accuracy"] > 0.85
    check_evaluation(in_duckdb, "udf_churn", "churn", job, deployed)
    ask = "SELECT count(*) FROM customers WHERE udf_churn(age, plan, member, spent) = churned"
    assert in_duckdb(ask) >= 0.9 * len(customers())
    assert in_duckdb("SELECT udf_churn(NULL, 'free', NULL, NULL)") == "yes", (
        "a NULL column is a missing value"
    )
    assert in_duckdb("SELECT udf_churn(70, 'never seen', true, 1.0)") in ("yes", "no")
    assert in_duckdb("SELECT udf_churn('NaN'::DOUBLE, 'free', true, 'inf'::DOUBLE)") == "yes"
    assert in_duckdb("SELECT ml_udf.predict('udf_churn', '[20, \"free\", true, 3]')") == "yes"
    told = in_duckdb("SELECT (ml_udf.try_predict('udf_churn', '[20, \"free\"]')).error")
    assert "input_invalid" in told, "a row that does not fit the columns is its sender's fault"
    assert "age, plan, member, spent" in told
    for endpoint in (server.url, f"local:{server.home}"):
        with duckdb.connect() as other:
            registration = ml_udf.duckdb.register(other, endpoint, functions=["udf_churn"])
            assert other.execute("SELECT udf_churn(20, 'free', true, 3)").fetchall() == [("yes",)], endpoint
            registration.close()


def test_postgresql_learns_from_a_table_and_its_function_takes_the_columns(
    in_postgresql: Value, pg: psycopg.Connection[Any]
):
    job = trained(
        in_postgresql,
        "pg_churn",
        CUSTOMERS,
        TABLE,
        "models => '{gradient_boosting}', budget => '4 epochs', max_epochs => 2",
    )
    deployed = in_postgresql(f"SELECT to_jsonb(ml_udf.deploy('udf_pg_churn', job => {job}))")
    assert deployed["test_accuracy"] > 0.85
    check_evaluation(in_postgresql, "udf_pg_churn", "pg_churn", job, deployed)
    ask = "SELECT count(*) FROM customers WHERE udf_pg_churn(age, plan, member, spent) = churned"
    assert in_postgresql(ask) >= 0.9 * len(customers())
    by_name = "SELECT udf_pg_churn(plan => 'free', age => NULL, member => NULL, spent => 'NaN')"
    assert in_postgresql(by_name) == "yes", "a NULL column is a missing value"
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match=r"'many' in column 'age'"):
        in_postgresql("SELECT ml_udf.predict('udf_pg_churn', '[\"many\", \"free\", true, 3]')")
    in_postgresql(f"SELECT ml_udf.deploy('udf_pg_churn', job => {job}, choose => 'best')::text")
    assert in_postgresql(by_name) == "yes", "what is deployed again is the same SQL function"
    plan = "\n".join(row[0] for row in pg.execute("EXPLAIN VERBOSE " + ask.replace("count(*)", "id")))
    assert "udf_pg_churn_row" in plan, "the planner sees the function of one argument, which can be batched"
    if pg.execute("SELECT current_setting('ml_udf.batching', true)").fetchone() == ("on",):
        assert "MlUdfBatch" in plan
    pg.execute("SELECT ml_udf.drop_function('udf_pg_churn')")
    left = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'udf\\_pg\\_churn%'"
    assert in_postgresql(left) == 0


LETTERS = (
    "SELECT id, DATE '2026-01-01' - age * 365 AS born,"
    " TIMESTAMPTZ '2026-01-01 00:00:00+00' + id * INTERVAL '1 hour' AS sent,"
    " 'letter ' || id || ': a customer of the ' || plan || ' plan wrote to us' AS letter, churned"
    " FROM customers"
)


@pytest.mark.parametrize("engine", ["in_duckdb", "in_postgresql"])
def test_dates_and_free_text_are_learnt_from_as_they_are(engine: str, request: pytest.FixtureRequest):
    value: Value = request.getfixturevalue(engine)
    name = f"letters_{engine}"
    job = trained(value, name, LETTERS, TABLE, "budget => '6 epochs', max_epochs => 2")
    value(f"SELECT ml_udf.deploy('udf_{name}', job => {job})::text")
    asked = f"udf_{name}(born, sent, letter)"
    right = value(f"SELECT count(*) FROM ({LETTERS}) AS letters WHERE {asked} = churned")
    assert right >= 0.9 * len(customers())
    of_old = "DATE '1960-01-01', TIMESTAMPTZ '2026-01-05 12:00:00+02'"
    for plan, leaves in (("free", "yes"), ("pro", "no")):
        letter = f"'letter 1000: a customer of the {plan} plan wrote to us'"
        assert value(f"SELECT udf_{name}({of_old}, {letter})") == leaves
    assert value(f"SELECT udf_{name}(NULL, NULL, NULL)") in ("yes", "no")
    assert value(f"SELECT udf_{name}(DATE 'infinity', NULL, 'the free plan')") == "yes"


def test_duckdb_learns_from_texts_of_any_script_and_length(in_duckdb: Value):
    job = trained(
        in_duckdb, "moods", "SELECT text, mood FROM opinions", TEXT, "budget => '18 epochs', max_epochs => 6"
    )
    models = in_duckdb(f"SELECT list(DISTINCT model ORDER BY model) FROM ml_udf.trials WHERE job_id = {job}")
    assert models == ["fasttext", "tfidf_linear"]
    in_duckdb(f"SELECT ml_udf.deploy('udf_mood', job => {job})")
    right = in_duckdb("SELECT count(*) FROM opinions WHERE udf_mood(text) = mood")
    assert right >= 0.8 * len(opinions())
    assert in_duckdb("SELECT udf_mood(NULL)") is None
    assert in_duckdb("SELECT udf_mood('')") in ("good", "bad")
    assert in_duckdb("SELECT udf_mood('素晴らしい великолепно')") == "good"
    assert in_duckdb(f"SELECT udf_mood('{LONG}')") in ("good", "bad")


def test_postgresql_learns_from_texts(in_postgresql: Value):
    job = trained(
        in_postgresql,
        "pg_moods",
        "SELECT text, mood FROM opinions",
        TEXT,
        "models => '{fasttext}', budget => '8 epochs', max_epochs => 6, policy => 'study'",
    )
    in_postgresql(f"SELECT ml_udf.deploy('udf_pg_mood', job => {job})::text")
    right = in_postgresql("SELECT count(*) FROM opinions WHERE udf_pg_mood(text) = mood")
    assert right >= 0.8 * len(opinions())
    assert in_postgresql("SELECT udf_pg_mood(NULL)") is None
    assert in_postgresql("SELECT udf_pg_mood('')") in ("good", "bad")
    assert in_postgresql("SELECT udf_pg_mood('素晴らしい великолепно')") == "good"


def test_a_job_rests_while_it_is_paused_and_goes_on_where_it_stood(
    in_duckdb: Value, in_postgresql: Value, server: InferenceServer
):
    in_duckdb(f"SELECT ml_udf.create_dataset('rest', 'SELECT text, mood FROM opinions', {TEXT})")
    job = in_duckdb(
        "SELECT ml_udf.train('rest', models => ['fasttext'], budget => '100000 epochs', policy => 'study',"
        " max_epochs => 10000)"
    )

    def used() -> int:
        return int(in_duckdb(f"SELECT epochs_used FROM ml_udf.jobs WHERE id = {job}"))

    def comes(what: Callable[[], bool]) -> None:
        end_s = time.monotonic() + JOB_S
        while not what():
            assert time.monotonic() < end_s
            time.sleep(0.1)

    comes(lambda: used() > 0)
    trials = f"FROM ml_udf.trials WHERE job_id = {job}"

    def on_command_line(sql: str) -> str:
        (verb,) = re.findall(r"ml_udf\.(\w+)", sql)
        shown = CliRunner().invoke(app, ["jobs", str(job), f"--{verb}", "--endpoint", server.url])
        assert shown.exit_code == 0, shown.output
        row = next(line for line in shown.output.splitlines() if "rest" in line)  # below it: its trials
        return next(word for word in ("paused", "running") if word in row)

    surfaces = (in_duckdb, in_postgresql, on_command_line)
    for pause, resume in zip(surfaces, (*surfaces[1:], in_duckdb), strict=True):
        assert pause(f"SELECT ml_udf.pause({job})") == "paused"
        comes(lambda: in_duckdb(f"SELECT count(*) FILTER (state = 'running') {trials}") == 0)
        rested, stood = used(), in_duckdb(f"SELECT max(epochs) {trials}")
        time.sleep(1.5)
        assert used() == rested
        with pytest.raises(duckdb.Error, match="paused"):
            in_duckdb(f"SELECT ml_udf.extend({job}, 200000)")
        assert resume(f"SELECT ml_udf.resume({job})") == "running"
        comes(functools.partial(lambda before: used() > before, rested))
        assert in_duckdb(f"SELECT max(epochs) {trials}") >= stood, "no epoch is trained twice"
    assert in_postgresql(f"SELECT ml_udf.cancel({job})") == "cancelled"
    with pytest.raises(psycopg.Error, match="cancelled"):
        in_postgresql(f"SELECT ml_udf.resume({job})")


def test_a_job_begins_from_what_another_has_made_public_and_never_from_its_own_test_rows(in_duckdb: Value):
    numbered = "SELECT text || '{}' AS text, mood FROM opinions"
    short = "models => ['fasttext'], budget => '{} epochs', max_epochs => {}, policy => 'study'"
    for name, mark in (("shared", " !"), ("taught", " ?"), ("same", " !")):
        query = numbered.format(mark)
        in_duckdb(f"SELECT ml_udf.create_dataset('{name}', $${query}$$, {TEXT})")
    with pytest.raises(duckdb.Error, match="no public job"):
        in_duckdb(f"SELECT ml_udf.train('taught', {short.format(2, 1)}, pretrained => true)")
    job = in_duckdb(f"SELECT ml_udf.train('shared', {short.format(8, 8)}, visibility => 'public')")
    wait_for_job(in_duckdb, job, JOB_S)
    taught = in_duckdb(f"SELECT ml_udf.train('taught', {short.format(2, 1)}, pretrained => true)")
    wait_for_job(in_duckdb, taught, JOB_S)
    worst = in_duckdb(f"SELECT min(score) FROM ml_udf.trials WHERE job_id = {taught}")
    assert worst > 0.8, "after one epoch"
    with pytest.raises(duckdb.Error, match="by which this one is judged"):
        in_duckdb(f"SELECT ml_udf.train('same', {short.format(2, 1)}, pretrained => true)")


SPENDING = "SELECT id, age, plan, member, age * 2.5 + coalesce(spent, 0) / 100 AS costs FROM customers"
NUMBERS = "target => 'costs', key => 'id', task => 'tabular-regression'"


@pytest.mark.parametrize("engine", ["in_duckdb", "in_postgresql"])
def test_numbers_are_learnt_and_told_as_numbers(engine: str, request: pytest.FixtureRequest):
    value: Value = request.getfixturevalue(engine)
    name = f"costs_{engine}"
    models = "['ridge']" if engine == "in_duckdb" else "'{ridge}'"
    job = trained(
        value, name, SPENDING, NUMBERS, f"models => {models}, budget => '2 trials', max_epochs => 2"
    )
    assert value(f"SELECT metric FROM ml_udf.jobs WHERE id = {job}") == "rmse"
    best = value(f"SELECT best_score FROM ml_udf.jobs WHERE id = {job}")
    assert best == value(f"SELECT min(best_score) FROM ml_udf.trials WHERE job_id = {job}"), (
        "the smallest error"
    )
    deploy = f"ml_udf.deploy('udf_{name}', job => {job}, promote => 'if_better')"
    told = value(f"SELECT {deploy}" if engine == "in_duckdb" else f"SELECT to_jsonb({deploy})")
    assert told["metric"] == "rmse"
    assert told["test_low"] <= told["test_score"] <= told["test_high"] < told["baseline"]
    assert told["baseline_said"].startswith("always saying")
    evaluated = f"SELECT value FROM ml_udf.evaluate('udf_{name}', '{name}') WHERE metric = 'rmse'"
    assert value(evaluated) == pytest.approx(told["test_score"], rel=1e-4)
    assert value(f"SELECT max(importance) FROM ml_udf.importance('udf_{name}', '{name}')") > 1, "of the age"
    assert (told["test_accuracy"], told["majority_accuracy"], told["warning"]) == (None, None, "")
    kind = "typeof" if engine == "in_duckdb" else "pg_typeof"
    asked = f"udf_{name}(40, 'pro', true)"
    assert value(f"SELECT {kind}({asked})::text") in ("DOUBLE", "double precision")
    assert 90 < value(f"SELECT {asked}") < 115
    assert value(f"SELECT avg(abs(udf_{name}(age, plan, member) - age * 2.5)) FROM customers") < 12
    again = value(f"SELECT {deploy}" if engine == "in_duckdb" else f"SELECT to_jsonb({deploy})")
    assert again["promoted"] is False, "what says the same is no better"
    assert again["p_value"] == 1.0
    # More rows come, and the server trains the function again by itself.
    value(f"SELECT ml_udf.create_dataset('{name}', $${SPENDING} WHERE id < 200$$, {NUMBERS})")
    assert value(f"SELECT ml_udf.retrain('udf_{name}', every => '1 day', budget => '1 trials')") == "waiting"
    stands = f"SELECT {{}} FROM ml_udf.retrainings WHERE function = 'udf_{name}'"
    end_s = time.monotonic() + JOB_S
    while not value(stands.format("outcome")):
        assert time.monotonic() < end_s, "it was not trained again"
        time.sleep(0.3)
    assert "version 1 stays" in value(stands.format("outcome")), "as good is not better"
    assert value(stands.format("state")) == "waiting"
    assert value(f"SELECT ml_udf.retrain('udf_{name}', every => 'never')") == "forgotten"


@pytest.mark.parametrize("engine", ["in_duckdb", "in_postgresql"])
def test_a_decimal_is_a_number_to_learn_and_to_learn_from(engine: str, request: pytest.FixtureRequest):
    value: Value = request.getfixturevalue(engine)
    name = f"prices_{engine}"
    price = "(age * 2.5 + 0.25)::decimal(9, 2)"
    query = f"SELECT id, (age / 2.0)::decimal(12, 4) AS half, plan, {price} AS price FROM customers"
    rows = "target => 'price', key => 'id', task => 'tabular-{}'"
    with pytest.raises((duckdb.Error, psycopg.Error), match="looks like regression"):
        value(f"SELECT ml_udf.create_dataset('{name}', $${query}$$, {rows.format('classification')})")
    models = "['ridge']" if engine == "in_duckdb" else "'{ridge}'"
    job = trained(value, name, query, rows.format("regression"), f"models => {models}, budget => '1 trials'")
    value(f"SELECT ml_udf.deploy('udf_{name}', job => {job})::text")
    off = f"abs(udf_{name}((age / 2.0)::decimal(12, 4), plan) - {price}::float8)"
    assert value(f"SELECT max({off}) FROM customers") < 5
    evaluated = f"FROM ml_udf.evaluate('udf_{name}', '{query.replace('id, ', '')}', target => 'price')"
    assert value(f"SELECT value {evaluated} WHERE metric = 'rmse'") < 5
    assert value(f"SELECT udf_{name}('NaN'::float8, 'pro')") == pytest.approx(
        value(f"SELECT udf_{name}(NULL, 'pro')")
    )
    if engine == "in_postgresql":
        odd = f"SELECT udf_{name}('NaN'::numeric, 'pro') = udf_{name}('-Infinity'::numeric, 'pro')"
        assert value(odd) is True
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            value(f"SELECT udf_{name}(1e400, 'pro')")


def test_decimals_of_few_values_name_the_same_classes_on_both_engines(in_duckdb: Value, in_postgresql: Value):
    query = "SELECT id, age, (id % 3 / 2.0)::decimal(4, 2) AS stars FROM customers"
    rows = "target => 'stars', key => 'id', task => 'tabular-classification'"
    for value, name in ((in_duckdb, "stars"), (in_postgresql, "pg_stars")):
        value(f"SELECT ml_udf.create_dataset('{name}', $${query}$$, {rows})")
        found = value(f"SELECT classes FROM ml_udf.datasets WHERE name = '{name}'")
        assert found == ["0", "0.5", "1"]


def test_a_numeric_that_no_float_holds_is_no_target(in_postgresql: Value):
    for odd in ("1e400", "'NaN'::numeric", "'infinity'::numeric"):
        query = f"SELECT id, age, CASE WHEN id = 7 THEN {odd} ELSE id END AS price FROM customers"
        with pytest.raises(psycopg.Error, match="not a finite number in some rows"):
            in_postgresql(
                f"SELECT ml_udf.create_dataset('odd', $${query}$$, target => 'price', key => 'id',"
                " task => 'tabular-regression')"
            )


def test_a_target_that_does_not_fit_its_task_is_refused_with_the_one_that_does(in_duckdb: Value):
    def refused(target: str, task: str) -> str:
        query = f"SELECT id, age, plan, {target} AS target FROM customers"
        with pytest.raises(duckdb.Error) as caught:
            in_duckdb(
                f"SELECT ml_udf.create_dataset('odd', $${query}$$, target => 'target', key => 'id',"
                f" task => '{task}')"
            )
        return str(caught.value)

    numeric = refused("id * 1.5", "tabular-classification")
    assert "looks like regression: say task => 'tabular-regression'" in numeric
    assert "every row's 'target' is 3; there is nothing to learn" in refused("3", "tabular-regression")
    assert "is of type string; select a number" in refused("plan", "tabular-regression")
    assert "or of a time its epoch" in refused("DATE '2026-01-01' + id", "tabular-regression")
    assert "not a finite number" in refused(
        "CASE WHEN id = 7 THEN 'inf'::DOUBLE ELSE id END", "tabular-regression"
    )
