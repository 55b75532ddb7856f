"""JSON of the registry that cannot be read: what it is of is told, and all else is there as ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from server.access.token_registry import TokenRegistry
from server.catalog.catalog import Catalog
from server.catalog.function_spec import single_model_function
from server.errors import ServiceError, UnknownFunction
from server.publisher import Publisher
from server.store.artifacts import Artifacts
from server.store.damaged import DamagedRecord
from server.store.database import migrate, open_database
from server.store.repository import Repository
from server.store.retraining import RetrainingRepository
from server.store.things import StoredThing, ThingRepository
from server.store.tokens import StoredToken, TokenRepository
from server.store.training import TrainingRepository
from server.training.datasets.leakage import training_lineage
from tests.unit.server.manifests import manifest

BROKEN = ('{"models": ["a', "[]", '"text"', "3", "\0", "[" * 100_000)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(made)
    return made


def damage(engine: Engine, table: str, column: str, where: str, json: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = :json WHERE {where}"), {"json": json})


@pytest.fixture(params=BROKEN, ids=lambda json: json[:9])
def broken(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_damaged_job_is_listed_and_says_so(engine: Engine, broken: str) -> None:
    jobs = TrainingRepository(engine)
    for _ in range(2):
        jobs.add_job("food", "s", {"dataset": "food", "models": ["m"]})
    damage(engine, "jobs", "spec", "id = 1", broken)
    damaged, whole = jobs.jobs(("running",))
    assert (damaged.id, damaged.spec, whole.damage) == (1, {}, "")
    assert damaged.damage.startswith("the specification of job 1 is damaged in the registry (")
    assert jobs.set_job(1, "failed", damaged.damage).state == "failed"
    with pytest.raises(UnknownFunction, match="what taught the models of job 1 is not known"):
        training_lineage(damaged, "m", jobs.job)


def test_what_a_job_has_found_may_be_damaged(engine: Engine, broken: str) -> None:
    jobs = TrainingRepository(engine)
    jobs.set_job(jobs.add_job("food", "s", {"dataset": "food"}).id, "done", found={"studies": {}})
    damage(engine, "jobs", "found", "id = 1", broken)
    assert [(job.state, job.found) for job in jobs.jobs()] == [("done", None)]


@pytest.mark.parametrize(("table", "column"), [("datasets", "spec"), ("snapshots", "facts")])
def test_a_damaged_dataset_hides_no_other(engine: Engine, table: str, column: str, broken: str) -> None:
    datasets = TrainingRepository(engine)
    for name in ("a", "b"):
        datasets.add_snapshot(name, {"name": name}, {"id": "s"})
    damage(engine, table, column, "name = 'a'" if table == "datasets" else "dataset = 'a'", broken)
    assert [found.dataset for found in datasets.datasets()] == ["b"]
    with pytest.raises(DamagedRecord, match="of the dataset a is damaged in the registry"):
        datasets.snapshot("a")


@pytest.mark.parametrize("column", ["spec", "fit"])
def test_a_damaged_deployment_is_not_served_and_all_others_are(
    engine: Engine, tmp_path: Path, column: str, broken: str
) -> None:
    registry = Repository(engine, tmp_path)
    for name in ("f", "g"):
        registry.deploy(name, {"models": ["m"]})
    damage(engine, "deployments", column, "function = 'f'", broken)
    assert [each.function for each in registry.served()] == ["g"]
    with pytest.raises(DamagedRecord, match="version 1 of the function f is damaged in the registry"):
        registry.deployment("f", 1)
    assert registry.deploy("f", {"models": ["m"]}).version == 2, "it is deployed anew"
    assert [(each.function, each.version) for each in registry.served()] == [("f", 2), ("g", 1)]


@pytest.mark.parametrize("column", ["feedback", "refit"])
def test_a_function_is_served_without_what_labels_taught_it(
    engine: Engine, tmp_path: Path, column: str, broken: str
) -> None:
    registry = Repository(engine, tmp_path)
    registry.deploy("f", {"models": ["m"]})
    damage(engine, "deployments", column, "function = 'f'", broken)
    (found,) = registry.served()
    assert (found.feedback, found.refit) == (None, None)


def test_a_damaged_model_is_mended_from_its_own_files(engine: Engine, tmp_path: Path, broken: str) -> None:
    registry = Repository(engine, tmp_path)
    for name in ("m", "n"):
        registry.add_model(manifest(name), tmp_path / name)
    damage(engine, "model_versions", "manifest", "name = 'm'", broken)
    assert [model.name for model in registry.models()] == ["n"]
    with pytest.raises(ServiceError):
        registry.add_model(manifest("m", sha256="f" * 64), tmp_path / "m")
    assert [model.name for model in registry.models()] == ["n"], "these are other weights"
    registry.add_model(manifest("m"), tmp_path / "m")
    assert [model.name for model in registry.models()] == ["m", "n"]


def test_a_server_starts_though_what_its_files_or_pipelines_need_is_damaged(
    engine: Engine, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, artifacts = Repository(engine, tmp_path), Artifacts(tmp_path, 1 << 20)
    for name in ("m", "n"):
        registry.add_model(*artifacts.install(manifest(name), None))
    for _ in range(3):  # version 1 is only the pipeline's in the end
        registry.deploy("f", {"models": ["n/1"]})
    registry.deploy("p", {"pipeline": [{"function": "f", "version": 1}, {"function": "n", "version": 1}]})
    damage(engine, "deployments", "spec", "function = 'f' AND version = 1", broken)
    damage(engine, "model_versions", "manifest", "name = 'm'", broken)
    with engine.begin() as connection:
        connection.execute(text("UPDATE model_versions SET sha256 = 'of other files' WHERE name = 'm'"))
    shell: Any = Shell()
    defaults = {"slo_ms": 500.0, "max_batch": 64, "policy": "greedy"}
    catalog = Catalog(lambda model: single_model_function(model, defaults))
    asyncio.run(Publisher(registry, artifacts, catalog, shell, shell, defaults, 1.0).restore())
    assert [each.key for each in catalog.models()] == ["n/1"]
    assert [[each.key for each in served] for served in catalog.functions()] == [["f@2", "f@3"]]
    assert "model not registered" in caplog.text
    assert "function not served function=p" in caplog.text


class Shell:
    """Of dispatcher and residency what is told to them at a start."""

    def configure(self, function: object) -> None: ...

    def know(self, models: object) -> None: ...


def test_a_damaged_share_is_shared_with_nobody(engine: Engine) -> None:
    things = ThingRepository(engine)
    things.add(StoredThing("model", "m", "ann", "private", ("ben",)))
    damage(engine, "things", "shared_with", "name = 'm'", '["ben')
    assert things.all() == [StoredThing("model", "m", "ann", "private", ())]


@pytest.mark.security
@pytest.mark.parametrize("column", ["scopes", "grants", "shares", "users"])
def test_a_damaged_token_may_nothing_and_leaves_the_door_shut(engine: Engine, column: str) -> None:
    tokens = TokenRepository(engine)
    tokens.add(StoredToken("d" * 64, "ann", ("admin",), {}, {}, (), "", NOW), lambda known: None)
    damage(engine, "tokens", column, "name = 'ann'", '{"a": ')
    (found,), ever_made = TokenRegistry(tokens).read()
    assert (found.name, found.scopes, ever_made) == ("ann", frozenset(), True)
    assert tokens.revoke("ann", lambda known: None)


def test_a_damaged_retraining_stops_no_other(engine: Engine) -> None:
    kept = RetrainingRepository(engine)
    insert = "INSERT INTO retrainings (function, budget, outcome, roles) VALUES (:name, '', '', :roles)"
    with engine.begin() as connection:
        for name in ("f", "g"):
            connection.execute(text(insert), {"name": name, "roles": '{"roles": ["a"]}'})
    damage(engine, "retrainings", "roles", "function = 'f'", '{"roles": ')
    assert [each.function for each in kept.all()] == ["g"]
