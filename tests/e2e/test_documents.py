"""The SQL of README.md and docs/ is typed as it stands there, on the engines that it is written for.

Each block runs on DuckDB and on PostgreSQL. What is written for one of them alone stands on a page or under
a heading that says so, in a block that begins with `-- PostgreSQL`, or in a statement that ends in its name.
Only what stands for something of the reader's own is replaced: addresses, folders, numbers of jobs, the size
of a budget.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import image_model
from tests.task_models import eyes_model
from tests.training_data import draw_photos
from tests.waiting import wait_for_job

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOR_POSTGRES = ("postgresql.md", "plan-node.md")
JOB_S = 300.0
TABLES = (
    *("foodlog", "labelled", "lessons", "photos", "my_photos", "my_labels", "trays", "answered"),
    *("customers", "comments", "food_scores", "looks"),
)
VIEWS = ("meals", "kept_meals")
# A statement: literals, quoted names and comments whole, up to its semicolon and the comment behind that.
STATEMENT = re.compile(r"(?:'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|[^;])+;?[ \t]*(?:--[^\n]*)?")
TEACHES = re.compile(r"\bml_udf\.train\(")


# What stands for something of the reader's own, or takes too long on few pictures, and what it means here.
MEANT = {
    "budget => '300 epochs'": "budget => '3 epochs', models => ARRAY['squeezenet'], size => 32",
    "budget => '120 epochs'": "budget => '4 epochs', size => 32",
    "ARRAY['vgg', 'small_cnn', 'resnet']": "ARRAY['small_cnn', 'squeezenet']",
    "max_epochs => 20": "max_epochs => 2",
    "budget => '2 minutes'": "budget => '8 epochs'",
    "ml_udf.train('mood')": "ml_udf.train('mood', budget => '5 seconds')",
    "budget => '60 epochs'": "budget => '5 epochs'",
    "token '…'": "token 'secret'",
    '"min_accuracy": 0.9, "slo_ms": 50': '"min_accuracy": 0.2, "slo_ms": 5000',
}
NEEDS_PGVECTOR = re.compile(r"USING hnsw|<=>")
NEEDS_VSS = re.compile(r"\bvss;|USING HNSW")


@dataclass(frozen=True)
class Block:
    """Consecutive statements of a page. place: page and line; engines: on which it is typed."""

    place: str
    engines: frozenset[str]
    statements: tuple[str, ...]

    def holds(self, words: str) -> bool:
        return any(re.search(words, statement) for statement in self.statements)


def blocks_for(engine: str) -> list[Block]:
    """First what sets up, then what teaches (the demo's before all), then what asks."""
    found = [block for page in PAGES for block in _of_page(page) if engine in block.engines]

    def rank(block: Block) -> tuple[bool, ...]:
        first = block.holds("CREATE EXTENSION")
        return not first, not block.holds(TEACHES.pattern), not block.place.startswith("demo.md")

    return sorted(found, key=rank)


def _of_page(page: Path) -> Iterator[Block]:
    heading, lines, began = "", list[str](), 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("#") and not began:
            heading = line
        elif line == "```sql":
            lines, began = [], number
        elif line == "```" and began:
            for_postgres = page.name in FOR_POSTGRES or "PostgreSQL" in heading or lines[0] == "-- PostgreSQL"
            engines = {"postgres"} if for_postgres else {"postgres", "duckdb"}
            yield Block(f"{page.name}:{began}", frozenset(engines), tuple(_statements("\n".join(lines))))
            began = 0
        elif began:
            lines.append(line)


def _statements(text: str) -> list[str]:
    return [found.strip() for found in STATEMENT.findall(text) if re.sub(r"--[^\n]*", "", found).strip()]


def _is_for(statement: str, engine: str) -> bool:
    """A comment at its end that is an engine's name says that it is that one's alone."""
    said = re.search(r"-- *(PostgreSQL|DuckDB)$", statement)
    return said is None or said[1].lower().startswith(engine)


@pytest.fixture(scope="module")
def photos(open_folder: Path) -> Path:
    return open_folder / "documented"


@pytest.fixture(scope="module")
def labelled(photos: Path) -> list[tuple[str, str]]:
    dishes = {"a": "laksa", "b": "pizza"}
    rows = [(str(photos / name), dishes[label]) for name, label in draw_photos(photos)]
    for name in ("17", "mine"):
        shutil.copy(photos / "0.png", photos / f"{name}.jpg")
    return rows


@pytest.fixture(params=["duckdb", "postgres"])
def reader(
    request: pytest.FixtureRequest, open_folder: Path, photos: Path, labelled: list[tuple[str, str]]
) -> Iterator[Reader]:
    home = open_folder / f"documented-{request.param}"
    with inference_server(home, media_roots=[photos]) as server:
        made = home / "made"
        server.deploy(image_model(made, "food_squeezenet"), "udf_food_name")
        server.deploy(made / "food_squeezenet" / "1", "udf_food_bytes")
        server.deploy(eyes_model(made, "efficientnet"))
        engine = make_engine(request.param, server.url, request, [])
        typist = Reader(engine, server, photos)
        typist.makes_tables(labelled)
        yield typist
        if engine.name == "postgres":
            typist.clears_away()
            engine.query("DROP EXTENSION IF EXISTS vector CASCADE")
        engine.close()
        for said in typist.untyped:  # now: an engine of DuckDB keeps the warnings of its time to itself
            warnings.warn(said, stacklevel=1)


class Reader:
    """Who types what the pages show, into one engine, in front of a server of its own."""

    def __init__(self, engine: Engine, server: InferenceServer, photos: Path) -> None:
        self.engine = engine
        self._server = server
        self._photos = photos
        self._pictures_job = 0
        self.untyped: list[str] = []  # statements that need what is not installed
        self._has_pgvector = engine.name == "postgres" and _pgvector(engine)
        self._lacks = {
            pattern: name
            for pattern, name, is_there in (
                (NEEDS_PGVECTOR, "pgvector", self._has_pgvector),
                (NEEDS_VSS, "vss", engine.name == "duckdb" and _vss(engine)),
            )
            if not is_there
        }

    def makes_tables(self, labelled: list[tuple[str, str]]) -> None:
        """The tables that the pages take for granted, of the reader's own rows."""
        query = self.engine.query
        self.clears_away()
        query("CREATE SCHEMA shop")
        if self.engine.name == "postgres":
            query("CREATE ROLE analyst")
        pictures = ", ".join(
            f"('{path}', '{label}', {20 + at}, '{box_of(label)}')"
            for at, (path, label) in enumerate(labelled)
        )
        rows = f"(VALUES {pictures}) AS pictures (image_path, label, age, dishes)"
        for name, columns in {
            "foodlog": "image_path, age, 'Bedok' AS location, '2025-12-31 19:30' AS time",
            "labelled": "image_path, label",
            "lessons": "image_path, label AS food_name",
            "photos": "image_path",
            "my_photos": "image_path",
            "my_labels": "image_path, label",
            "trays": "image_path AS photo, dishes",
            "shop.labelled": "image_path, label",
        }.items():
            query(f"CREATE TABLE {name} AS SELECT {columns} FROM {rows}")
        query("ALTER TABLE foodlog ADD PRIMARY KEY (image_path)")
        for name, columns in {
            "customers": "i AS id, 20 + i % 50 AS age, i % 2 = 0 AS member, i * 1.5 AS paid,"
            " CASE i % 3 WHEN 0 THEN 'small' ELSE 'large' END AS plan,"
            " CASE WHEN i % 50 > 25 THEN 'leaves' ELSE 'stays' END AS churned",
            "comments": "i AS id, CASE i % 2 WHEN 0 THEN 'lovely ' ELSE 'awful ' END || i AS comment,"
            " CASE i % 2 WHEN 0 THEN 'glad' ELSE 'cross' END AS mood",
        }.items():
            query(f"CREATE TABLE {name} AS SELECT {columns} FROM generate_series(1, 200) AS t(i)")

    def clears_away(self) -> None:
        for view in VIEWS:
            self.engine.query(f"DROP VIEW IF EXISTS {view}")
        if self.engine.name == "postgres":
            self.engine.query("DROP MATERIALIZED VIEW IF EXISTS dishes")
        for table in TABLES:
            self.engine.query(f"DROP TABLE IF EXISTS {table}")
        self.engine.query("DROP SCHEMA IF EXISTS shop CASCADE")
        if self.engine.name == "postgres":
            for role in ("analyst", "dashboards", "training_data"):
                if self.engine.query(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
                    self.engine.query(f"DROP OWNED BY {role}")
                    self.engine.query(f"DROP ROLE {role}")

    def types(self, block: Block) -> None:
        """Raises `SqlError`."""
        job = self._pictures_job
        for statement in block.statements:
            if not _is_for(statement, self.engine.name):
                continue
            if statement.startswith("CREATE EXTENSION"):
                self.engine.query("DROP EXTENSION ml_udf CASCADE")
            if missing := [name for needs, name in self._lacks.items() if needs.search(statement)]:
                self.untyped.append(f"NOT TYPED, {missing[0]} is not installed: {statement}")
                continue
            rows = self.engine.query(self._meant(statement, job))
            if TEACHES.search(statement):
                ((job,),) = rows
                wait_for_job(self._value, job, JOB_S)
                if block.place.startswith("demo.md"):
                    self._pictures_job = job

    def keeps_answers(self) -> None:
        """What a page calls `answered`: ids of answers, and labels that came later."""
        self.engine.query(
            "CREATE TABLE IF NOT EXISTS answered AS SELECT (d).prediction AS prediction, label"
            " FROM (SELECT ml_udf.detail('udf_food_name', image_path) AS d, label FROM labelled) AS asked"
        )

    def _meant(self, statement: str, job: int) -> str:
        """The statement with the reader's own address, folders, job and budget."""
        for written, meant in MEANT.items():
            statement = statement.replace(written, meant)
        if "vector(" in statement:
            vector = f"udf_food_features('{self._photos}/mine.jpg')"
            ((width,),) = self.engine.query(f"SELECT count(*) FROM unnest({vector}::real[])")
            statement = re.sub(
                r"vector\(\d+\)", f"vector({width})" if self._has_pgvector else "real[]", statement
            )
        statement = re.sub(
            r"\bjob => \d+|(?<=learning_curve\()\d+", lambda at: re.sub(r"\d+", str(job), at[0]), statement
        )
        statement = statement.replace("http://127.0.0.1:8080", self._server.url)
        if self.engine.name == "duckdb":
            statement = re.sub(r"^SET ml_udf\.", "SET VARIABLE ml_udf_", statement)
        return statement.replace("/photos", str(self._photos)).replace("/srv/ml_udf", str(self._server.home))

    def _value(self, sql: str) -> object:
        ((found,),) = self.engine.query(sql)
        return found


def box_of(label: str) -> str:
    """What somebody has drawn around the one dish in a photo of 24 by 24 pixels."""
    return json.dumps([{"label": label, "box": [2, 2, 20, 22]}])


def _pgvector(engine: Engine) -> bool:
    if not engine.query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        return False
    engine.query("CREATE EXTENSION IF NOT EXISTS vector")
    return True


def _vss(engine: Engine) -> bool:
    try:
        engine.query("LOAD vss")
    except SqlError:
        return False
    return True


def test_every_statement_of_the_pages_runs_as_it_is_written(reader: Reader) -> None:
    failed = []
    blocks = blocks_for(reader.engine.name)
    assert len(blocks) > 15
    for block in blocks:
        if block.holds("answered;"):
            reader.keeps_answers()
        try:
            reader.types(block)
        except SqlError as error:
            failed.append(f"{block.place}: {error.text}")
    assert not failed, "\n\n".join(failed)
