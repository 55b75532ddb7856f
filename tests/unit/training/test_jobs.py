"""The parameter store's lineage, and what a job's specification says to workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.errors import BadOption
from server.training.checkpoints.parameters import needed
from server.training.jobs.budget import budget_of
from server.training.jobs.spec import JobSpec
from server.training.recipes import HEADS, RECIPES, Recipe
from server.training.studies.messages import Assignment
from server.training.studies.trial import Checkpoint, Trial


def trial(number: int, state: str = "finished", **fields: Any) -> Trial:
    made = Trial(number, {}, {}, 0, "s", state)  # type: ignore[arg-type]  # a state by name
    return replace(made, **fields)


def stored(digest: str, score: float, epoch: int = 1) -> tuple[Checkpoint, ...]:
    return (Checkpoint(epoch, score, digest),)


def test_a_checkpoint_with_living_children_is_kept_however_poor_it_is() -> None:
    parent = trial(0, checkpoints=stored("poor", 0.1))
    better = [trial(number, checkpoints=stored(f"good {number}", 0.9)) for number in range(1, 6)]
    child = trial(6, "waiting", origin="poor", parent="poor")
    assert "poor" not in needed([parent, *better])
    assert "poor" in needed([parent, *better, child])


def test_a_paused_trial_keeps_the_state_that_it_goes_on_from() -> None:
    paused = trial(0, "paused", checkpoints=(*stored("early", 0.1, 1), *stored("last", 0.2, 3)))
    better = [trial(number, checkpoints=stored(f"good {number}", 0.9)) for number in range(1, 6)]
    assert needed([paused, *better]) >= {"last"}
    assert "early" not in needed([paused, *better])


def test_the_budget_is_shared_evenly_and_wholly() -> None:
    spec = JobSpec.from_json(
        {"dataset": "d", "models": ["vgg", "resnet", "squeezenet"], "budget": "100 epochs"}
    )
    assert [study.budget_epochs for study in spec.studies(1, "s").values()] == [34, 33, 33]


def test_a_job_comes_back_from_json_as_it_was() -> None:
    spec = JobSpec.from_json(
        {"dataset": "d", "budget": "7 epochs", "models": ["vgg"], "policy": "study", "seed": 3}
    )
    assert JobSpec.from_json(spec.as_json()) == spec


def test_a_workers_trial_has_its_knobs_where_the_worker_looks_for_them() -> None:
    spec = JobSpec.from_json({"dataset": "d", "models": ["vgg"], "size": 32})
    told = spec.train_spec(
        "vgg", Assignment(0, {"learning_rate": 0.1, "shift": 0.2}, 5, None, start_epoch=3, epochs=6)
    )
    assert told == {
        "architecture": "vgg",
        "epochs": 9,
        "learning_rate": 0.1,
        "schedule": "constant",
        "seed": 5,
        "size": 32,
        "augment": {"shift": 0.2, "flip": 0},
    }


def test_a_budget_is_of_minutes_epochs_or_trials() -> None:
    studies = {
        text: JobSpec.from_json({"dataset": "d", "models": ["vgg", "resnet"], "budget": text}).studies(1, "s")
        for text in ("10 minutes", "200 epochs", "31 trials")
    }
    assert [study.budget_s for study in studies["10 minutes"].values()] == [300.0, 300.0]
    assert [study.budget_epochs for study in studies["200 epochs"].values()] == [100, 100]
    assert [study.max_trials for study in studies["31 trials"].values()] == [16, 15]
    assert [study.stale_trials for study in studies["10 minutes"].values()] == [16, 16]
    exact = [study for text in ("200 epochs", "31 trials") for study in studies[text].values()]
    assert not any(study.stale_trials for study in exact)


def test_the_smaller_of_a_budget_in_trials_and_the_most_of_each_model_counts() -> None:
    form = {"dataset": "d", "models": ["vgg", "resnet"], "budget": "31 trials"}
    for most, each in ((4, [4, 4]), (100, [16, 15])):
        studies = JobSpec.from_json({**form, "max_trials": most}).studies(1, "s")
        assert [study.max_trials for study in studies.values()] == each


@pytest.mark.parametrize("unit", ["epochs", "trials"])
def test_a_budget_too_small_for_its_models_says_which_they_are(unit: str) -> None:
    with pytest.raises(BadOption, match=rf"a budget of 2 {unit} .* 3 models \(vgg, resnet, small_cnn\)"):
        JobSpec.from_json({"dataset": "d", "models": ["vgg", "resnet", "small_cnn"], "budget": f"2 {unit}"})


@pytest.mark.parametrize(
    "text",
    ["2.5 minutes", "45 seconds", "1000001 seconds", "16000000 minutes", "100.123456 minutes", "7 trials"],
)
def test_what_a_budget_is_called_is_that_budget(text: str) -> None:
    assert budget_of(str(budget_of(text))) == budget_of(text)


def test_a_job_that_names_no_budget_has_minutes() -> None:
    assert str(JobSpec.from_json({"dataset": "d"}).budget) == "5 minutes"


@pytest.mark.parametrize("metric", ["f1", "rmse"])
def test_a_metric_that_a_task_does_not_have_is_refused_with_those_that_it_has(metric: str) -> None:
    with pytest.raises(BadOption, match="accuracy"):
        JobSpec.from_json({"dataset": "d", "metric": metric})


@pytest.mark.parametrize(
    "budget",
    [
        "",
        "-3",
        "3.5",
        "1000",
        "0 epochs",
        "0 minutes",
        "999999999 hours",
        "many epochs",
        "1 epoch and a half",
        "1.5 epochs",
    ],
)
def test_a_budget_without_its_unit_or_amount_is_refused(budget: str) -> None:
    with pytest.raises(BadOption, match="budget"):
        JobSpec.from_json({"dataset": "d", "budget": budget})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": [["vgg"]]}, "'models' must be a list of some of small_cnn"),
        ({"first": [1]}, "'first' must name knobs for models"),
        ({"first": {"vgg": 5}}, "'first' must name knobs for models"),
        ({"max_trials": "x"}, "'max_trials' must be a whole number from 1"),
        ({"max_trials": "x", "budget": "30 trials"}, "'max_trials' must be a whole number from 1"),
    ],
)
def test_a_field_of_another_form_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        JobSpec.from_json({"dataset": "d", **given})


BACKBONE = {"name": "eyes", "version": 1, "sha256": "0" * 64}
WHOLE = [recipe for recipe in RECIPES.values() if recipe.models]


@pytest.mark.parametrize("task", [*WHOLE, *HEADS.values()], ids=lambda task: f"{task.name} {task.runtime}")
def test_every_model_of_a_task_has_knobs_and_the_tasks_own_policy(task: Recipe) -> None:
    spec = JobSpec("d", task.name, tuple(task.models), backbone=BACKBONE if task.runtime == "head" else None)
    assert spec.recipe is task
    assert spec.policy == task.policies[0]
    assert JobSpec.from_json(spec.as_json()) == spec
    for model in task.models:
        assert spec.space(model).knobs()


def test_a_heads_trial_is_told_its_backbone_and_nothing_of_pictures() -> None:
    form = {"dataset": "d", "task": "image-regression", "backbone": BACKBONE}
    spec = JobSpec.from_json(form)
    assert spec.models == ("ridge",), "one that takes seconds"
    told = spec.train_spec("ridge", Assignment(0, {"alpha": 3.0}, 5, None, 0, 6))
    assert told == {"alpha": 3.0, "architecture": "ridge", "epochs": 6, "seed": 5, "backbone": BACKBONE}
    with pytest.raises(BadOption, match="must name some of ridge"):
        JobSpec.from_json({**form, "models": ["small_cnn"]})
    with pytest.raises(BadOption, match=r"'backbone\.sha256'"):
        JobSpec.from_json({**form, "backbone": {**BACKBONE, "sha256": None}})
    with pytest.raises(BadOption, match="stand on no backbone"):
        JobSpec.from_json({**form, "task": "tabular-regression"})
    with pytest.raises(BadOption, match="say backbone => 'NAME'"):
        JobSpec.from_json({"dataset": "d", "task": "image-regression"})


@pytest.mark.parametrize("policy", ["branch", "costudy"])
def test_models_of_tables_share_no_weights(policy: str) -> None:
    with pytest.raises(BadOption, match="share no weights"):
        JobSpec.from_json({"dataset": "d", "task": "tabular-classification", "policy": policy})


def test_a_tables_trial_is_told_its_knobs_and_nothing_of_pictures() -> None:
    spec = JobSpec.from_json({"dataset": "d", "task": "tabular-classification", "models": ["random_forest"]})
    told = spec.train_spec("random_forest", Assignment(0, {"max_depth": 3}, 5, None, 0, 6))
    assert told == {"max_depth": 3, "architecture": "random_forest", "epochs": 6, "seed": 5}


def test_knobs_of_an_architecture_are_options_of_the_module() -> None:
    knobs = [
        {"name": "width", "dtype": "integer", "list": [16, 32], "group": "architecture"},
        {"name": "learning_rate", "dtype": "float", "min": 0.001, "max": 0.1},
    ]
    spec = JobSpec.from_json({"dataset": "d", "task": "text-classification", "knobs": knobs})
    told = spec.train_spec("fasttext", Assignment(0, {"width": 16, "learning_rate": 0.01}, 5, None, 0, 6))
    assert told["architecture_options"] == {"width": 16}
    assert told["learning_rate"] == 0.01
    assert not {"size", "augment", "width"} & told.keys()


OWN = "my_nets.blocks:DeepNet"


def test_a_model_of_pictures_may_be_ones_own_by_its_import_path() -> None:
    spec = JobSpec.from_json({"dataset": "d", "models": ["small_cnn", OWN]})
    assert list(spec.studies(1, "")) == ["small_cnn", OWN]
    given = Assignment(0, {"learning_rate": 0.01}, 5, None, 0, 27)
    assert spec.train_spec(OWN, given)["architecture"] == OWN


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("image-classification", "DeepNet"),
        ("image-classification", "my_nets:"),
        ("image-classification", ":DeepNet"),
        ("image-classification", "my nets:DeepNet"),
        ("image-classification", "my_nets/x:DeepNet"),
        ("text-classification", OWN),
        ("tabular-classification", OWN),
    ],
)
def test_what_is_no_model_and_no_import_path_that_fits_the_task_is_refused(task: str, name: str) -> None:
    with pytest.raises(BadOption, match="'models' must name some of"):
        JobSpec.from_json({"dataset": "d", "task": task, "models": [name]})
