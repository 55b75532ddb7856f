"""Datasets, snapshots and jobs in the registry, on both databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from server.errors import UnknownFunction
from server.store.repository import Repository
from server.store.training import TrainingRepository

SPEC = {"name": "food", "query": "SELECT 1", "target": "label", "key": "path"}


def facts(snapshot: str) -> dict[str, Any]:
    return {"id": snapshot, "rows": 100, "classes": ["a", "b"]}


@pytest.fixture
def registry(database: Engine) -> TrainingRepository:
    return TrainingRepository(database)


def test_a_refreshed_dataset_has_a_new_snapshot_and_keeps_the_old(registry: TrainingRepository) -> None:
    registry.add_snapshot("food", SPEC, facts("one"))
    registry.add_snapshot("food", {**SPEC, "query": "SELECT 2"}, facts("two"))
    assert registry.snapshot("food").id == "two"
    assert registry.snapshot("food", "one").spec["query"] == "SELECT 1"
    assert [snapshot.id for snapshot in registry.snapshots("food")] == ["one", "two"]
    assert [snapshot.id for snapshot in registry.datasets()] == ["two"]


def test_the_same_rows_again_are_the_same_snapshot(registry: TrainingRepository) -> None:
    first = registry.add_snapshot("food", SPEC, facts("one"))
    assert registry.add_snapshot("food", SPEC, facts("one")) == first
    assert len(registry.snapshots("food")) == 1


def test_a_dataset_is_known_by_what_was_registered_last_though_the_rows_are_equal(
    registry: TrainingRepository,
) -> None:
    registry.add_snapshot("food", SPEC, facts("one"))
    newer = {**SPEC, "query": "SELECT 2"}
    assert registry.add_snapshot("food", newer, facts("one")).spec == newer
    assert registry.snapshot("food").spec == newer
    assert [dataset.spec for dataset in registry.datasets()] == [newer]
    assert registry.snapshot("food", "one").spec == SPEC, "a snapshot never changes"


def test_what_is_not_there_is_refused_by_name(registry: TrainingRepository) -> None:
    with pytest.raises(UnknownFunction, match="no dataset 'food'"):
        registry.snapshot("food")
    registry.add_snapshot("food", SPEC, facts("one"))
    with pytest.raises(UnknownFunction, match="snapshot nine"):
        registry.snapshot("food", "nine")
    for asked in (registry.job, lambda job: registry.set_job(job, "done")):
        with pytest.raises(UnknownFunction, match="no job 9"):
            asked(9)


def test_a_job_ends_and_may_go_on(registry: TrainingRepository) -> None:
    job = registry.add_job("food", "one", {"budget_epochs": 10})
    assert (job.state, job.ended_at) == ("running", None)
    ended = registry.set_job(job.id, "done", "the budget is used up")
    assert ended.ended_at is not None
    assert ended.ended_at.tzinfo is not None
    again = registry.set_job(job.id, "running", "", {"budget_epochs": 20})
    assert (again.ended_at, again.spec) == (None, {"budget_epochs": 20})
    assert registry.jobs() == [again]
    assert registry.add_job("food", "one", {}).id == job.id + 1


def test_a_jobs_number_is_above_those_that_another_registry_gave(registry: TrainingRepository) -> None:
    numbers = [registry.add_job("food", "one", {}, above=above).id for above in (0, 1, 40, 0, 41, 3)]
    assert numbers[:2] == [1, 2]
    assert numbers[2] > 40
    assert numbers[2:] == list(range(numbers[2], numbers[2] + 4)), "and others go on from there"


@pytest.mark.parametrize("number", [-(10**30), -1, 0, 2**31, 2**63, 10**30])
def test_a_number_that_no_job_can_have_is_none_of_a_job(registry: TrainingRepository, number: int) -> None:
    job = registry.add_job("food", "one", {})
    for asked in (registry.job, registry.whose_job):
        with pytest.raises(UnknownFunction, match=f"there is no job {number}"):
            asked(number)
    assert registry.jobs(after=number) == ([job] if number <= 0 else [])
    assert registry.last_jobs(9, before=number) == ([] if number <= 0 else [job])


def test_an_order_that_comes_after_a_jobs_end_changes_nothing(registry: TrainingRepository) -> None:
    job = registry.add_job("food", "one", {}).id
    assert registry.set_job(job, "paused", among=("running",)).state == "paused"
    assert registry.set_job(job, "running", among=("paused",)).state == "running"
    ended = registry.set_job(job, "done", "the budget is used up")
    for state, among in (("paused", ("running",)), ("cancelled", ("running", "paused"))):
        assert registry.set_job(job, state, among=among) == ended
    assert registry.job(job) == ended


def test_the_deployment_before_is_found_even_when_it_is_retired(
    registry: TrainingRepository, database: Engine, tmp_path: Path
) -> None:
    functions = Repository(database, tmp_path)
    functions.deploy("udf", {"models": ["a/1"]})
    with pytest.raises(UnknownFunction, match="no earlier deployment"):
        registry.deployment_before("udf")
    for version in (2, 3, 4):
        functions.deploy("udf", {"models": [f"a/{version}"]}, fit={"rows": version} if version < 4 else None)
    assert registry.deployment_before("udf") == ({"models": ["a/3"]}, {"rows": 3}, 4)
    assert [each.fit for each in functions.served()] == [{"rows": 3}, None]
