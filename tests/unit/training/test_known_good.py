"""A study begins with what is known to do well, and the default budget leaves room for a search."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from server.errors import BadOption
from server.training.jobs.spec import JobSpec
from server.training.recipes import RECIPES, Recipe
from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import Assignment, StudySpec
from server.training.studies.study import Master
from tests.unit.training.simulation import run

MODELS = [(task, model) for task in RECIPES.values() for model in task.models]


def with_defaults() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 1e-4, 1.0, log=True, default=0.01)
    space.add_range_knob("dropout", "float", 0.0, 0.9, default=0.1)
    space.add_range_knob("layers", "integer", 1, 4)
    space.add_range_knob("letter", "string", "a", "e", default="b")
    space.add_categorical_knob("kernel", "string", ["linear", "poly"], default="poly")
    return space


KNOWN_GOOD = {"learning_rate": 0.01, "dropout": 0.1, "layers": 2, "letter": "b", "kernel": "poly"}


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
@pytest.mark.parametrize("advisor", ["random", "grid", "gp", "tpe"])
def test_the_first_trial_takes_the_defaults_and_no_later_one_does(policy: Any, advisor: Any) -> None:
    spec = StudySpec("s", with_defaults(), policy=policy, advisor=advisor, budget_epochs=60)
    master = Master(spec, InMemoryStorage())
    run(master)
    first, *others = master.trials()
    assert dict(first.knobs) == KNOWN_GOOD
    assert others
    assert all(dict(trial.knobs) != KNOWN_GOOD for trial in others if not trial.warm)


def test_the_defaults_of_branch_are_trained_to_the_end_and_skip_the_rungs() -> None:
    master = Master(StudySpec("s", with_defaults(), policy="branch"), InMemoryStorage())
    first = master.request("w", 0.0)
    second = master.request("v", 0.0)
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    assert (first.epochs, second.epochs) == (27, 1)


@pytest.mark.parametrize(("task", "model"), MODELS, ids=[model for _, model in MODELS])
def test_every_model_has_a_known_good_start_that_lies_in_its_space(task: Recipe, model: str) -> None:
    space = task.models[model].space()
    assert all(knob.default is not None for knob in space.knobs())
    point = space.default_point()
    assert point is not None
    assert point[1] == {knob.name: knob.default for knob in space.knobs()}
    assert HyperSpace.from_json(space.as_json()).default_point() == point


def test_a_space_without_defaults_begins_at_random() -> None:
    space = HyperSpace()
    space.add_range_knob("x", "float", 0, 1)
    assert space.default_point() is None
    assert "default" not in space.as_json()[0]


@pytest.mark.parametrize(
    "add",
    [
        lambda space: space.add_range_knob("x", "float", 0, 1, default=1.0),
        lambda space: space.add_range_knob("x", "integer", 0, 9, default=0.5),
        lambda space: space.add_range_knob("x", "string", "a", "c", default="c"),
        lambda space: space.add_categorical_knob("x", "string", ["a"], default="b"),
    ],
)
def test_a_default_that_the_knob_cannot_have_is_refused(add: Any) -> None:
    with pytest.raises(ValueError, match=r"'x': the default .* is none of its values"):
        add(HyperSpace())


# The simulated scores are accuracies: as the negative of an error they would be too good to go on.
@pytest.mark.parametrize(
    "task", [task for task in RECIPES.values() if task.has_classes], ids=lambda recipe: recipe.name
)
def test_the_default_budget_lets_every_model_end_its_known_good_trial_and_search_on(task: Recipe) -> None:
    spec = JobSpec.from_json({"dataset": "d", "task": task.name})
    for study in spec.studies(1, "s").values():
        assert study.budget_epochs >= 3 * study.max_epochs
        master = Master(study, InMemoryStorage())
        run(master, epoch_s=lambda given, epoch: 1.0)
        trials = master.trials()
        assert len(trials) >= 4
        assert trials[0].state == "finished"


def test_a_budget_without_its_unit_is_refused_and_the_text_says_how_to_write_it() -> None:
    with pytest.raises(BadOption, match="'10 minutes', '200 epochs' or '30 trials', not '1000'"):
        JobSpec.from_json({"dataset": "d", "budget": "1000"})
    assert JobSpec.from_json({"dataset": "d", "budget": 1000}).budget_epochs == 1000


def test_a_model_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    form = {"dataset": "d", "task": "tabular-classification"}
    there = "logistic_regression, hist_gradient_boosting, random_forest, gradient_boosting, "
    there += "lightgbm, xgboost"
    with pytest.raises(BadOption, match=f"a list of some of {there}, not 'catboost'"):
        JobSpec.from_json({**form, "models": "catboost"})
    with pytest.raises(BadOption, match=rf"some of {there} .*, not catboost"):
        JobSpec.from_json({**form, "models": ["catboost"]})


def test_mirroring_is_a_knob_that_begins_as_off_and_is_off_where_knobs_do_not_name_it() -> None:
    spec = JobSpec.from_json({"dataset": "d", "models": ["vgg"]})
    (flip,) = [knob for knob in spec.space("vgg").knobs() if knob.name == "flip"]
    assert (flip.bounds, flip.default) == ((0, 1), 0)
    for knobs, mirrored in (({"flip": 1}, 1), ({"flip": 0}, 0), ({}, 0)):
        told = spec.train_spec("vgg", Assignment(0, knobs, 5, None, 0, 3))
        assert told["augment"]["flip"] == mirrored
