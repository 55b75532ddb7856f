"""The registry's promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text, update

from server.catalog.functions import ModelVersion
from server.catalog.retraining import Retraining
from server.errors import BadOption, Overloaded, UnknownFunction
from server.store.repository import Repository
from server.store.retraining import RetrainingRepository
from server.store.tables import DeploymentRow, FunctionRow, ModelVersionRow
from server.store.training import TrainingRepository
from tests.unit.server.manifests import manifest

HOME = Path("/home/of/models")


@pytest.fixture
def repository(database: Engine) -> Repository:
    return Repository(database, HOME)


def add(repository: Repository, name: str = "net", version: int = 1, **fields: object) -> ModelVersion:
    return repository.add_model(manifest(name, version, **fields), HOME / "models" / name / str(version))


def test_a_registered_model_is_listed_as_its_manifest_says(repository: Repository) -> None:
    add(repository, "net", 2)
    add(repository, "net", 1)
    add(repository, "abc", 1, accuracy=0.5)
    found = repository.models()
    assert [(m.name, m.version, m.accuracy) for m in found] == [
        ("abc", 1, 0.5),
        ("net", 1, 0.9),
        ("net", 2, 0.9),
    ]
    assert found[1].classes == ("laksa", "pizza", "satay")
    assert found[1].directory == HOME / "models/net/1"


@pytest.mark.parametrize("change", [{"format": 2}, {"runtime": "of a newer release"}])
def test_a_model_that_this_release_does_not_know_keeps_no_other_from_being_served(
    repository: Repository, database: Engine, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    for name in ("abc", "net"):
        add(repository, name)
    with database.begin() as connection:
        values = {"manifest": manifest("abc", 1) | change}
        connection.execute(update(ModelVersionRow).where(ModelVersionRow.name == "abc").values(values))
    assert [model.key for model in repository.models()] == ["net/1"]
    assert "model not served model=abc/1" in caplog.text


def test_models_follow_their_home_folder_when_it_moves(database: Engine) -> None:
    add(Repository(database, HOME))
    assert Repository(database, Path("/elsewhere")).models()[0].directory == Path("/elsewhere/models/net/1")


def test_registering_the_same_weights_again_changes_nothing(repository: Repository) -> None:
    add(repository, sha256="a" * 64)
    add(repository, sha256="a" * 64)
    assert len(repository.models()) == 1


def test_a_version_never_changes_its_weights(repository: Repository) -> None:
    add(repository, sha256="a" * 64)
    with pytest.raises(BadOption, match="other weights"):
        add(repository, sha256="b" * 64)
    assert repository.models()[0].sha256 == "a" * 64


def test_the_next_version_follows_the_newest(repository: Repository) -> None:
    assert repository.next_model_version("net") == 1
    add(repository, "net", 7)
    assert repository.next_model_version("net") == 8


def test_what_a_load_measured_and_when_it_was_used_are_kept(repository: Repository) -> None:
    model = add(repository)
    assert (model.resident_bytes, model.last_used_at) == (0, 0.0)
    repository.measured(model, 1 << 33, 0.25)
    repository.touched({("net", 1): (1_700_000_000.5, 0.25)})
    found = repository.models()[0]
    assert (found.resident_bytes, found.rows_per_s) == (1 << 33, 0.25)
    assert found.last_used_at == pytest.approx(1_700_000_000.5)


def test_every_deployment_gets_the_next_number_and_the_last_two_are_served(repository: Repository) -> None:
    assert [repository.deploy("f", {"models": [f"net/{n}"]}).version for n in (1, 2, 3)] == [1, 2, 3]
    assert [(d.version, d.spec) for d in repository.served()] == [
        (2, {"models": ["net/2"]}),
        (3, {"models": ["net/3"]}),
    ]


def test_the_versions_of_one_function_do_not_count_for_another(repository: Repository) -> None:
    for _ in range(3):
        repository.deploy("f", {})
    repository.deploy("g", {})
    assert [(d.function, d.version) for d in repository.served()] == [("f", 2), ("f", 3), ("g", 1)]


def test_a_deleted_function_is_served_no_longer_and_its_numbers_never_come_back(
    repository: Repository,
) -> None:
    repository.deploy("f", {})
    repository.deploy("f", {})
    assert repository.delete_function("f")
    assert repository.served() == []
    assert not repository.delete_function("f")
    assert repository.deploy("f", {}).version == 3
    assert [d.version for d in repository.served()] == [3]


def test_a_function_that_a_pipeline_asks_is_not_deleted_whoever_has_deployed_that(
    repository: Repository,
) -> None:
    stages = [{"function": "f", "version": 1}, {"crop": {}}, {"function": "net", "version": 1}]
    for name in ("f", "h"):
        repository.deploy(name, {"models": ["net/1"]})
    repository.deploy("p", {"pipeline": stages})
    with pytest.raises(BadOption, match="function f is a stage of p; delete or deploy that first"):
        repository.delete_function("f")
    assert [each.function for each in repository.served()] == ["f", "h", "p"], "nothing has changed"
    assert repository.delete_function("h")
    repository.deploy("p", {"pipeline": [{"function": "g", "version": 1}]})
    assert repository.delete_function("f"), "only who began with the pipeline's version before asks it yet"


def test_a_pipeline_is_not_deployed_on_a_function_that_has_been_deleted_meanwhile(
    repository: Repository,
) -> None:
    add(repository, "net")
    repository.deploy("f", {"models": ["net/1"]})
    repository.delete_function("f")
    with pytest.raises(UnknownFunction, match="function p: its stage f has just been deleted"):
        repository.deploy("p", {"pipeline": [{"function": "f", "version": 1}]})
    assert repository.served() == []
    repository.deploy("p", {"pipeline": [{"function": "net", "version": 1}]})


def test_a_deleted_function_is_trained_again_no_more(repository: Repository, database: Engine) -> None:
    retrainings = RetrainingRepository(database)
    for name in ("f", "g"):
        repository.deploy(name, {})
        retrainings.amend(name, lambda known, name=name: Retraining(name, every_s=60.0))  # type: ignore[misc]
    repository.delete_function("f")
    assert [each.function for each in retrainings.all()] == ["g"]


def test_a_deployment_takes_no_place_but_that_of_the_version_it_was_compared_with(
    repository: Repository,
) -> None:
    repository.deploy("f", {"first": True}, instead_of=0)
    with pytest.raises(Overloaded, match="version 1 answers for f now"):
        repository.deploy("f", {}, instead_of=0)
    repository.deploy("f", {}, instead_of=1)
    with pytest.raises(Overloaded, match="version 2 answers for f now"):
        repository.deploy("f", {}, instead_of=1)
    repository.delete_function("f")
    with pytest.raises(Overloaded, match="f was deleted"):
        repository.deploy("f", {}, instead_of=2)
    assert repository.served() == []
    assert repository.deploy("f", {}, instead_of=0).version == 3


def test_deployments_keep_their_order_when_the_clock_is_set_back(
    repository: Repository, database: Engine
) -> None:
    training = TrainingRepository(database)
    for number in range(3):
        repository.deploy("f", {"number": number})
    with database.begin() as connection:  # all that was until now is an hour ahead
        ahead = datetime.now(UTC) + timedelta(hours=1)
        connection.execute(update(DeploymentRow).values(deployed_at=ahead))
        connection.execute(update(FunctionRow).values(created_at=ahead))
    repository.deploy("f", {"number": 3})
    repository.deploy("f", {"number": 4})
    assert [each.version for each in repository.deployments("f", 2)] == [5, 4]
    assert training.deployment_before("f")[0] == {"number": 3}
    repository.delete_function("f")
    repository.deploy("f", {"number": 5})
    assert [each.version for each in repository.deployments("f", 9)] == [6], "it has no past"


def test_a_function_cannot_take_the_name_of_a_model(repository: Repository) -> None:
    add(repository, "net")
    with pytest.raises(BadOption, match="name of a model"):
        repository.deploy("net", {})
    assert repository.served() == []


def test_a_model_may_not_take_the_name_of_a_function_while_that_is_served(repository: Repository) -> None:
    repository.deploy("net", {"models": ["other/1"]})
    with pytest.raises(BadOption, match="'net' is the name of a function"):
        add(repository)
    assert repository.models() == []
    repository.delete_function("net")
    add(repository)


def test_deployments_made_at_once_get_numbers_of_their_own(repository: Repository) -> None:
    versions: list[int] = []

    def deploy() -> None:
        for _ in range(5):
            versions.append(repository.deploy("f", {}).version)

    threads = [threading.Thread(target=deploy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 21))


def test_a_verb_that_fails_in_the_middle_leaves_nothing_behind(
    repository: Repository, database: Engine
) -> None:
    with pytest.raises(BadOption):
        repository.add_model(manifest("net", version=0), HOME)
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the dialect's JSON says of a set
        repository.deploy("f", {"models": {1, 2}})
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM functions")).scalar() == 0
        assert connection.execute(text("SELECT count(*) FROM deployments")).scalar() == 0
