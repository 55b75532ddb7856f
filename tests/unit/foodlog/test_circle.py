"""What the example trains again and what it finds, with an engine that remembers what it was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.foodlog.circle import Notes, Study, TrainingFailed, begin, deploy, filled, freeze
from examples.foodlog.engines import Engine
from examples.foodlog.tables import Answer

QUIET = Console(quiet=True)
STUDY = Study("food", ("vgg", "resnet"), "40 epochs", {"udf_food_name": "ensemble"})


class Service:
    """Answers the statements of training.sql as an engine would; `asked` are the verbs in their order."""

    def __init__(self, snapshot: str = "s1") -> None:
        self.snapshot = snapshot
        self.jobs: dict[int, str] = {}
        self.functions: set[str] = set()
        self.asked: list[str] = []
        self.engine = Engine("an engine", self.ask)

    def ask(self, sql: str) -> Answer:
        return ("column",), self.rows(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        if "FROM ml_udf.jobs" in sql:
            return [(job, state, "it was so") for job, state in self.jobs.items()]
        if "FROM ml_udf.functions" in sql:
            return [(name,) for name in self.functions]
        verb = sql.partition("ml_udf.")[2].partition("(")[0]
        self.asked.append(verb)
        if verb == "create_dataset":
            return [(self.snapshot,)]
        if verb == "train":
            self.jobs[len(self.jobs) + 1] = "running"
            return [(len(self.jobs),)]
        if verb == "cancel":
            self.jobs[int(sql.partition("cancel(")[2].rstrip(")"))] = "cancelled"
            return [("cancelled",)]
        assert verb == "deploy"
        self.functions.add("udf_food_name")
        return [('{"models": ["food_name_vgg/1"]}',)]


def started(service: Service, notes: Notes, study: Study = STUDY) -> int:
    """The job of a study, as a run of the demo comes to it."""
    return begin(service.engine, study, freeze(service.engine, study, QUIET), notes, QUIET)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "trained.json")


def again(tmp_path: Path) -> Notes:
    """The notes as the next run reads them."""
    return Notes(tmp_path / "trained.json")


@pytest.mark.parametrize("state", ["running", "done"])
def test_the_same_photos_and_the_same_statement_are_not_trained_again(
    notes: Notes, tmp_path: Path, state: str
) -> None:
    service = Service()
    assert started(service, notes) == 1
    service.jobs[1] = state
    assert started(service, again(tmp_path)) == 1
    assert service.asked == ["create_dataset", "train", "create_dataset"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_came_to_nothing_is_begun_anew(notes: Notes, state: str) -> None:
    service = Service()
    started(service, notes)
    service.jobs[1] = state
    assert started(service, notes) == 2


def test_other_photos_are_trained_on_and_what_trained_on_the_old_ones_is_cancelled(notes: Notes) -> None:
    service = Service()
    started(service, notes)
    service.snapshot = "s2"
    assert started(service, notes) == 2
    assert service.jobs == {1: "cancelled", 2: "running"}


def test_another_budget_is_another_job(notes: Notes) -> None:
    service = Service()
    started(service, notes)
    service.jobs[1] = "done"
    longer = Study(STUDY.dataset, STUDY.models, "80 epochs", STUDY.functions)
    assert started(service, notes, longer) == 2
    assert service.jobs[1] == "done"


def test_a_function_is_deployed_once_for_each_job(notes: Notes, tmp_path: Path) -> None:
    service = Service()
    job = started(service, notes)
    service.jobs[job] = "done"
    told = deploy(service.engine, STUDY, job, notes, QUIET)
    assert told["udf_food_name"]["models"] == ["food_name_vgg/1"]
    assert deploy(service.engine, STUDY, job, again(tmp_path), QUIET) == told
    assert service.asked.count("deploy") == 1
    service.functions.clear()
    deploy(service.engine, STUDY, job, again(tmp_path), QUIET)
    assert service.asked.count("deploy") == 2


def test_a_job_that_failed_is_not_deployed_and_says_why(notes: Notes) -> None:
    service = Service()
    job = started(service, notes)
    service.jobs[job] = "failed"
    with pytest.raises(TrainingFailed, match="failed: it was so"):
        deploy(service.engine, STUDY, job, notes, QUIET)
    assert "deploy" not in service.asked


def test_values_stand_in_a_statement_as_literals() -> None:
    filled_in = filled("SELECT :who, :many, :count::int, '=>'", who="Ben's", many=("a", "b"), count=3)
    assert filled_in == "SELECT 'Ben''s', ARRAY['a', 'b'], 3::int, '=>'"
    with pytest.raises(KeyError):
        filled("SELECT :nobody")
