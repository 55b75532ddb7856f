"""The whole circle in SQL, on both engines: dataset → train → watch → deploy → SELECT → rollback."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psycopg
import pytest
from typer.testing import CliRunner

import ml_udf.duckdb
from ml_udf import sdk
from ml_udf.cli.app import app
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.duckdb import Registration
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.training_data import draw_photos

JOB_S = 300.0
README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module")
def labelled(photos: Path) -> list[tuple[str, str]]:
    return draw_photos(photos)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, photos: Path, labelled: list[tuple[str, str]]
) -> Iterator[InferenceServer]:
    home = tmp_path_factory.mktemp("home")
    flags = [f"--connections-file={home / 'connections.toml'}"]
    with inference_server(home, media_roots=[photos], flags=flags) as running:
        yield running


@pytest.fixture
def con(
    server: InferenceServer, labelled: list[tuple[str, str]]
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Registration]]:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE labelled (image_path VARCHAR, label VARCHAR)")
    connection.executemany("INSERT INTO labelled VALUES (?, ?)", labelled)
    registration = ml_udf.duckdb.register(connection, server.url)
    yield connection, registration
    registration.close()
    connection.close()


def wait_for(con: duckdb.DuckDBPyConnection, job: int) -> str:
    deadline_s = time.monotonic() + JOB_S
    while time.monotonic() < deadline_s:
        ((state,),) = con.execute("SELECT state FROM ml_udf.jobs WHERE id = ?", [job]).fetchall()
        if state != "running":
            return str(state)
        time.sleep(0.2)
    raise AssertionError(f"job {job} did not end")


def test_duckdb_trains_and_deploys_a_function_by_sql_alone(
    con: tuple[duckdb.DuckDBPyConnection, Registration], labelled: list[tuple[str, str]]
):
    db, _ = con
    ((snapshot,),) = db.execute(
        "SELECT ml_udf.create_dataset('food', $$SELECT image_path, label FROM labelled$$,"
        " target => 'label', key => 'image_path')"
    ).fetchall()
    assert db.execute("SELECT snapshot, rows, classes FROM ml_udf.datasets").fetchall() == [
        (snapshot, 60, ["a", "b"])
    ]
    ((job,),) = db.execute(
        "SELECT ml_udf.train('food', task => 'image-classification', models => ['resnet', 'squeezenet'],"
        " budget => '10 epochs', max_epochs => 3, size => 32)"
    ).fetchall()
    assert wait_for(db, job) == "done"
    ((used, models),) = db.execute(
        "SELECT sum(epochs), count(DISTINCT model) FROM ml_udf.trials WHERE job_id = ?", [job]
    ).fetchall()
    assert (used, models) == (10, 2)
    ((deployed,),) = db.execute(f"SELECT ml_udf.deploy('udf_food', job => {job})").fetchall()
    assert deployed["version"] == 1
    assert deployed["test_low"] <= deployed["test_accuracy"] <= deployed["test_high"]
    ((evaluated, rows),) = db.execute(
        "SELECT value, rows FROM ml_udf.evaluate('udf_food', 'food') WHERE metric = 'accuracy'"
    ).fetchall()
    assert (evaluated, rows) == (pytest.approx(deployed["test_accuracy"]), deployed["test_rows"])
    members = [name.rpartition("/")[0] for name in deployed["models"]]
    assert deployed["subsets"].keys() >= {*members, "+".join(members)}
    ((right,),) = db.execute("SELECT count(*) FROM labelled WHERE udf_food(image_path) = label").fetchall()
    assert right >= 0.8 * len(labelled)
    db.execute(f"SELECT ml_udf.deploy('udf_food', job => {job}, choose => 'best')").fetchall()
    ((version,),) = db.execute("SELECT ml_udf.rollback('udf_food')").fetchall()
    assert version == 3
    ((rival,),) = db.execute(
        f"SELECT ml_udf.deploy('udf_food', job => {job}, promote => 'if_better')"
    ).fetchall()
    assert (rival["promoted"], rival["version"], rival["p_value"]) == (False, 3, 1.0), "it is its own equal"
    ((models,),) = db.execute("SELECT models FROM ml_udf.functions WHERE name = 'udf_food'").fetchall()
    assert [f"{name}/1" for name in models] == deployed["models"]
    ((embedding,),) = db.execute(
        f"SELECT ml_udf.deploy('udf_food_features', job => {job}, task => 'image-embedding')"
    ).fetchall()
    assert len(embedding["models"]) == 1
    ((kind, found),) = db.execute(
        "SELECT DISTINCT typeof(udf_food_features(image_path)), count(udf_food_features(image_path)) "
        "FROM labelled GROUP BY 1"
    ).fetchall()
    assert (kind.startswith("FLOAT["), found) == (True, len(labelled))


def test_the_readmes_first_ten_minutes_run_as_they_are_written(
    server: InferenceServer,
    labelled: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)  # food.db
    with duckdb.connect("food.db") as own:
        own.execute("CREATE TABLE labelled (image_path VARCHAR, label VARCHAR)")
        own.executemany("INSERT INTO labelled VALUES (?, ?)", labelled)
    (block,) = re.findall(r"```python\n(import duckdb, ml_udf\.duckdb\n.+?)```", README, re.DOTALL)
    wait = re.search(r"^con\.sql\(\"SELECT \* FROM ml_udf\.jobs\"\).*\n", block, re.MULTILINE)
    assert wait is not None
    here: dict[str, Any] = {}

    def run(text: str, written: str, meant: str) -> None:
        assert written in text
        exec(text.replace(written, meant).replace("http://127.0.0.1:8080", server.url), here)

    run(block[: wait.end()], "'300 epochs'", "'3 epochs', models => ['squeezenet'], size => 32")
    db = here["con"]
    ((job,),) = db.execute("SELECT max(id) FROM ml_udf.jobs").fetchall()
    assert wait_for(db, job) == "done"
    capfd.readouterr()
    run(block[wait.end() :], "job => 1", f"job => {job}")
    assert "food" in capfd.readouterr().out
    ((version,),) = db.execute("SELECT version FROM ml_udf.functions WHERE name = 'udf_food_name'").fetchall()
    assert version == "1"
    db.close()


def test_duckdb_refreshes_a_dataset_by_the_query_that_is_registered(
    con: tuple[duckdb.DuckDBPyConnection, Registration], server: InferenceServer
):
    db, _ = con

    def shown() -> dict[str, Any]:
        found = db.execute("SELECT * FROM ml_udf.datasets WHERE name = 'words'")
        names = [column[0] for column in found.description or ()]
        (row,) = found.fetchall()
        return dict(zip(names, row, strict=True))

    db.execute(
        "CREATE TABLE words AS"
        " SELECT i AS id, i // 4 AS who, 'w' || i AS word, i % 2 AS kind FROM range(80) t(i)"
    )
    ((first,),) = db.execute(
        "SELECT ml_udf.create_dataset('words', 'SELECT * FROM words', target => 'kind', key => 'id',"
        " task => 'text-classification', input => 'word', entity => 'who', test => 0.25)"
    ).fetchall()
    before = shown()
    assert db.execute("SELECT ml_udf.refresh_dataset('words')").fetchall() == [(first,)], "the rows are equal"
    db.execute("INSERT INTO words SELECT i, i // 4, 'w' || i, i % 2 FROM range(80, 160) t(i)")
    ((second,),) = db.execute("SELECT ml_udf.refresh_dataset('words')").fetchall()
    with duckdb.connect() as other:
        ml_udf.duckdb.register(other, server.url, functions=[])
        with pytest.raises(duckdb.Error, match="was not registered by this connection"):
            other.execute("SELECT ml_udf.refresh_dataset('words')").fetchall()
    after = shown()
    assert (after["snapshot"], after["rows"]) == (second, 160)
    assert second != first
    assert after["splits"]["test"] == 2 * before["splits"]["test"] == 40, "its shares are kept"
    assert after["taken_at"] > before["taken_at"]


@pytest.mark.parametrize(
    ("query", "target", "told"),
    [
        ("SELECT 1; SELECT 2", "label", "holds 2 statements"),
        ("DELETE FROM labelled", "label", "of type DELETE, and it may only read"),
        ("CREATE TABLE x AS SELECT 1", "label", "of type CREATE, and it may only read"),
        ("SELECT image_path, label FROM labelled", "lable", '"lable" not found'),
        ("SELECT image_path, 'a' AS label FROM labelled", "label", "at least two classes"),
        ("SELECT image_path, label FROM labelled LIMIT 3", "label", "gave 3 rows; at least 10"),
        (
            "SELECT image_path, nullif(label, 'b') AS label FROM labelled",
            "label",
            "NULL in 30 rows; add WHERE label IS NOT NULL",
        ),
        (
            "SELECT 'no/' || image_path AS image_path, label FROM labelled",
            "label",
            "11 of 60 inputs cannot be read",
        ),
    ],
)
def test_a_query_that_makes_no_dataset_is_told_why(
    con: tuple[duckdb.DuckDBPyConnection, Registration], query: str, target: str, told: str
):
    db, _ = con
    with pytest.raises(duckdb.InvalidInputException, match=re.escape(told)):
        db.execute(
            "SELECT ml_udf.create_dataset('bad', ?, target => ?, key => 'image_path')", [query, target]
        ).fetchall()
    assert db.execute("SELECT count(*) FROM ml_udf.datasets WHERE name = 'bad'").fetchall() == [(0,)]


def test_python_trains_in_four_lines_and_the_command_line_shows_it(
    server: InferenceServer, photos: Path, labelled: list[tuple[str, str]]
):
    for path, label in labelled:
        place = photos / "by_label" / label / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((photos / path).read_bytes())
    data = sdk.import_images(photos / "by_label")
    hyper = sdk.HyperConf(budget="16 epochs", models=("resnet",), max_epochs=8, size=32)
    job = sdk.Train("sdk_food", data, hyper=hyper, endpoint=server.url).run()
    ask = sdk.Inference(sdk.get_models(job, timeout_s=JOB_S), function="udf_sdk_food").run()
    image, label = data.rows[0]
    assert sdk.query(ask, [image]) == [label]
    other, another = next(row for row in data.rows if row[1] != label)
    asked: list[str | Path | bytes] = [Path(image).read_bytes(), other, Path(image), Path(other).read_bytes()]
    assert sdk.query(ask, asked) == [label, another, label, another]
    assert sdk.query(ask, []) == []
    assert sdk.query(ask, [image], slo_ms=60_000, min_accuracy=0.0) == [label]
    shown = CliRunner().invoke(app, ["jobs", str(job.id), "--watch", "--endpoint", server.url])
    assert shown.exit_code == 0, shown.output
    assert "sdk_food" in shown.output
    assert "16/16" in shown.output


def test_a_challenger_takes_the_place_of_a_worse_function_and_keeps_it(
    con: tuple[duckdb.DuckDBPyConnection, Registration], server: InferenceServer
):
    def register(shares: str) -> None:
        con[0].execute(
            "SELECT ml_udf.create_dataset('contest', 'SELECT image_path, label FROM labelled',"
            f" target => 'label', key => 'image_path', {shares})"
        ).fetchall()

    register("test => 0.4")
    with httpx.Client(base_url=server.url, timeout=JOB_S) as client:

        def trained(rates: tuple[float, float], seed: int) -> int:
            knobs = [
                {"name": "learning_rate", "dtype": "float", "min": rates[0], "max": rates[1], "log": True}
            ]
            form = {"dataset": "contest", "models": ["resnet", "squeezenet"], "knobs": knobs, "size": 32}
            reply = client.post("/v1/jobs", json={**form, "budget": 6, "max_epochs": 3, "seed": seed})
            job = reply.raise_for_status().json()["id"]
            with client.stream("GET", f"/v1/jobs/{job}/events") as stream:
                stream.read()  # until it ends
            return int(job)

        def deployed(job: int) -> dict[str, Any]:
            form = {"function": "udf_contested", "promote": "if_better"}
            found: dict[str, Any] = client.post(f"/v1/jobs/{job}/deploy", json=form).raise_for_status().json()
            return found

        weak, strong = trained((1e-9, 2e-9), 1), trained((2e-3, 8e-3), 2)
        first, second, third = deployed(weak), deployed(strong), deployed(weak)
        register("validation => 0.4, test => 0.3")
        fourth = deployed(trained((2e-3, 8e-3), 3))
    assert (first["promoted"], first["version"], first["p_value"]) == (True, 1, None), "nothing was there"
    assert (second["promoted"], second["version"]) == (True, 2)
    assert second["p_value"] < 0.05
    assert (third["promoted"], third["version"], third["models"]) == (False, 2, second["models"])
    assert first["test_rows"] == second["test_rows"] == third["test_rows"]
    assert third["test_accuracy"] == first["test_accuracy"] < second["test_accuracy"]
    assert not fourth["promoted"], (
        "on the rows of another split that the champion has not seen, it is no worse"
    )
    members = len(second["models"])
    told = 2**members - 1 if members <= 3 else 2 * members + 1
    assert len(second["subsets"]) == told, "every subset of a few members has its accuracy"
    assert max(second["subsets"].values()) >= second["validation_accuracy"]


def test_watchers_are_told_of_every_epoch_until_the_job_ends(server: InferenceServer):
    job = httpx.post(
        f"{server.url}/v1/jobs",
        json={"dataset": "food", "models": ["resnet"], "budget": 4, "max_epochs": 2, "size": 32},
    ).json()["id"]
    with httpx.stream("GET", f"{server.url}/v1/jobs/{job}/events", timeout=JOB_S) as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[0]["event"] == "job"
    assert events[-1] == {"job": job, "event": "ended", "state": "done", "reason": events[-1]["reason"]}
    assert [event["epoch"] for event in events if event["event"] == "epoch"]


@pytest.mark.security
def test_everything_in_a_used_home_is_the_owners_alone(
    con: tuple[duckdb.DuckDBPyConnection, Registration], server: InferenceServer
) -> None:
    db, _ = con
    db.execute(
        "SELECT ml_udf.create_dataset('kept', $$SELECT image_path, label FROM labelled$$,"
        " target => 'label', key => 'image_path')"
    ).fetchall()
    ((job,),) = db.execute(
        "SELECT ml_udf.train('kept', task => 'image-classification', models => ['squeezenet'],"
        " budget => '1 epochs', max_epochs => 1, size => 32)"
    ).fetchall()
    assert wait_for(db, job) == "done"
    db.execute(f"SELECT ml_udf.deploy('udf_kept', job => {job})").fetchall()
    made_by_tests = {"server.log", "connections.toml"}
    found = [path for path in server.home.rglob("*") if path.name not in made_by_tests]
    kinds = {path.suffix for path in found}
    assert {".parquet", ".safetensors", ".journal", ".json", ".db"} <= kinds, "the home has been used"
    opened = {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}
    assert opened == {}


@pytest.mark.security
def test_workers_get_none_of_the_servers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_UDF_DATABASE_URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("WANTED", "yes")
    with inference_server(tmp_path / "home", flags=["--worker-env=WANTED"], forked=False) as running:
        (worker,) = running.worker_pids()
        variables = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
        names = {variable.partition(b"=")[0] for variable in variables}
        assert not names & {b"ML_UDF_DATABASE_URL", b"PGPASSWORD"}
        assert {b"PATH", b"WANTED"} <= names


def test_a_worker_has_no_more_memory_than_it_is_given(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home", flags=[f"--worker-memory-bytes={3 << 30}"]) as running:
        running.deploy(hashing_model(tmp_path, "text_hash"), "udf_text")  # by a worker that has started
        (worker,) = running.worker_pids()
        limits = Path(f"/proc/{worker}/limits").read_text().splitlines()
        assert next(line.split()[3] for line in limits if line.startswith("Max data size")) == str(3 << 30)
        assert running.home.stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def postgres(
    cluster: Sandbox, server: InferenceServer, labelled: list[tuple[str, str]]
) -> Iterator[psycopg.Connection[Any]]:
    """A database with labelled rows, which the inference server reads as a role that may only SELECT."""
    dsn = cluster.database("training", url=server.url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE labelled (image_path text, label text)")
        with connection.cursor() as cursor, cursor.copy("COPY labelled FROM STDIN") as copy:
            for row in labelled:
                copy.write_row(row)
        connection.execute("CREATE ROLE training_data LOGIN")
        connection.execute("GRANT SELECT ON labelled TO training_data")
        reader = cluster.dsn("training", user="training_data")
        (server.home / "connections.toml").write_text(
            f'default = {{dsn = "{reader}", roles = ["postgres"]}}\n'
        )
        yield connection


def test_both_engines_list_the_photos_that_cannot_be_read(
    con: tuple[duckdb.DuckDBPyConnection, Registration], postgres: psycopg.Connection[Any], photos: Path
):
    db, _ = con
    db.execute("CREATE TABLE many (image_path VARCHAR, label VARCHAR)")
    many = [(f"many/{path}", label) for path, label in draw_photos(photos / "many", 120)]
    db.executemany("INSERT INTO many VALUES (?, ?)", many)
    (photos / "many" / "7.png").write_text("no image")
    given = "'many', 'SELECT * FROM many', target => 'label', key => 'image_path'"
    db.execute(f"SELECT ml_udf.create_dataset({given})").fetchall()
    listing = "SELECT unreadable, unreadable_rows FROM ml_udf.datasets WHERE name = 'many'"
    ((count, (bad,)),) = db.execute(listing).fetchall()
    assert (count, bad["input"], bad["code"]) == (1, "many/7.png", "input_undecodable")
    assert postgres.execute(listing).fetchall() == [(1, [bad])]


def test_postgresql_trains_and_deploys_a_function_by_sql_alone(
    postgres: psycopg.Connection[Any], labelled: list[tuple[str, str]]
):
    def value(sql: str, *parameters: object) -> Any:
        row = postgres.execute(sql, parameters or None).fetchone()
        assert row is not None
        return row[0]

    query = "SELECT image_path, label FROM labelled"
    snapshot = value(
        "SELECT ml_udf.create_dataset('pg_food', %s, target => 'label', key => 'image_path')", query
    )
    # Read by this session, then by the server: the same rows are the same snapshot.
    by_source = "'pg_food', %s, target => 'label', key => 'image_path', source => 'default'"
    assert value(f"SELECT ml_udf.create_dataset({by_source})", query) == snapshot
    assert value("SELECT snapshot FROM ml_udf.datasets WHERE name = 'pg_food'") == snapshot
    assert value("SELECT ml_udf.refresh_dataset('pg_food')") == snapshot, "equal rows are the same snapshot"
    job = value(
        "SELECT ml_udf.train('pg_food', models => '{resnet}', budget => '4 epochs', max_epochs => 2,"
        " size => 32)"
    )
    deadline_s = time.monotonic() + JOB_S
    while value("SELECT state FROM ml_udf.jobs WHERE id = %s", job) == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert value("SELECT state FROM ml_udf.jobs WHERE id = %s", job) == "done"
    assert value("SELECT sum(epochs) FROM ml_udf.trials WHERE job_id = %s", job) == 4
    deployed = value("SELECT to_jsonb(ml_udf.deploy('udf_pg_food', job => %s))", job)
    assert deployed["version"] == 1
    assert max(map(len, (name.split("+") for name in deployed["subsets"]))) == len(deployed["models"])
    assert (deployed["combine"] in deployed["held_out"]) == (len(deployed["models"]) > 1)
    right = value("SELECT count(*) FROM labelled WHERE udf_pg_food(image_path) = label")
    assert right >= 0.8 * len(labelled)
    features = "SELECT ml_udf.deploy('udf_pg_features', job => %s, task => 'image-embedding')"
    value(features, job)
    assert value("SELECT pg_typeof(udf_pg_features(image_path))::text FROM labelled LIMIT 1") == "real[]"
    assert value("SELECT count(udf_pg_features(image_path)) FROM labelled") == len(labelled)
    with pytest.raises(psycopg.Error, match="has no score to be better by"):
        value(features.replace("task", "promote => 'if_better', task"), job)
    with pytest.raises(psycopg.Error, match="no earlier deployment"):
        value("SELECT ml_udf.rollback('udf_pg_food')")
    with pytest.raises(psycopg.Error, match="no dataset 'drinks' here") as caught:
        value("SELECT ml_udf.train('drinks')")
    assert "datasets" in (caught.value.diag.message_hint or "")


def test_what_the_database_refuses_is_told_and_no_dsn_is(
    postgres: psycopg.Connection[Any], server: InferenceServer
):
    def refused(query: str, source: str = "default") -> str:
        with pytest.raises(psycopg.Error) as caught:
            postgres.execute(
                "SELECT ml_udf.create_dataset('bad', %s, 'label', 'image_path', source => %s)",
                [query, source],
            )
        assert caught.value.sqlstate == "22023"
        return str(caught.value)

    postgres.execute(
        "CREATE OR REPLACE FUNCTION writes() RETURNS text LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO labelled VALUES ('x', 'y'); RETURN 'a'; END$$"
    )
    assert "read-only" in refused("SELECT image_path, writes() AS label FROM labelled")
    assert "2 statements" in refused("SELECT 1; SELECT 2")
    assert "DELETE" in refused("WITH gone AS (DELETE FROM labelled RETURNING *) SELECT * FROM gone")
    assert "permission denied" in refused("SELECT rolname AS image_path, rolpassword AS label FROM pg_authid")
    assert "no connection 'other'" in refused("SELECT 1", source="other")
    with (server.home / "connections.toml").open("a") as file:
        file.write('dead = {dsn = "postgresql://someone:s3cret@127.0.0.1:1/gone", roles = ["*"]}\n')
    told = refused("SELECT image_path, label FROM labelled", source="dead")
    assert "'dead' cannot be opened: nothing answers at its address" in told
    for text in (told, server.log):
        assert "s3cret" not in text
        assert "someone" not in text
