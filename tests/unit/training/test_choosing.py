"""Which models a job trains when it names none: similar in performance, different in architecture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.training.jobs.choosing import behind, choose_models
from server.training.recipes import RECIPES

FAMILIES = {"a": "plain", "a_deep": "plain", "b": "residual", "c": "separable", "d": "branches"}
DEFAULTS = ("a", "b", "c")


def test_while_nothing_is_known_the_tasks_own_models_are_taken():
    assert choose_models(FAMILIES, DEFAULTS, []) == DEFAULTS
    assert choose_models(FAMILIES, DEFAULTS, [{"d": 0.9}]) == DEFAULTS, "a model alone was compared with none"


def test_a_model_that_stays_far_behind_makes_room_for_one_that_was_never_tried():
    results = [{"a": 0.90, "b": 0.92, "c": 0.60}, {"a": 0.70, "b": 0.69, "c": 0.50}]
    assert choose_models(FAMILIES, DEFAULTS, results) == ("b", "a", "d")


def test_models_are_compared_within_their_jobs_since_datasets_differ_in_difficulty():
    results = [{"a": 0.50, "b": 0.48}, {"b": 0.97, "c": 0.99}]
    assert behind(results) == pytest.approx({"a": 0.0, "b": 0.02, "c": 0.0})
    assert choose_models(FAMILIES, DEFAULTS, results) == ("a", "c", "d")


def test_a_model_that_was_never_tried_gets_its_turn_though_the_first_ones_do_well():
    """As jobs go on: what was chosen is trained, and its results are known to the next one."""
    quality = {"a": 0.90, "a_deep": 0.80, "b": 0.91, "c": 0.92, "d": 0.95}
    results: list[dict[str, float]] = []
    for _ in range(4):
        results.append({model: quality[model] for model in choose_models(FAMILIES, DEFAULTS, results)})
    assert set().union(*results) == set(FAMILIES)
    assert choose_models(FAMILIES, DEFAULTS, results) == ("d", "c", "b")


def test_of_one_family_only_the_best_is_taken():
    results = [{"a": 0.90, "a_deep": 0.93, "b": 0.91, "c": 0.92, "d": 0.5}]
    assert choose_models(FAMILIES, DEFAULTS, results) == ("a_deep", "c", "b")


def test_fewer_are_chosen_where_all_were_tried_and_few_are_similar():
    results = [dict.fromkeys(FAMILIES, 0.5) | {"c": 0.9}]
    assert choose_models(FAMILIES, DEFAULTS, results) == ("c",)


SCORES = st.dictionaries(st.sampled_from([*FAMILIES, "gone"]), st.floats(0, 1), max_size=6)


@given(st.lists(SCORES, max_size=5))
def test_what_is_chosen_is_known_of_different_families_and_holds_the_best(results):
    chosen = choose_models(FAMILIES, DEFAULTS, results)
    gaps = {model: gap for model, gap in behind(results).items() if model in FAMILIES}
    families = [FAMILIES[model] for model in chosen if model in gaps]
    assert 1 <= len(chosen) <= len(DEFAULTS)
    assert len(set(chosen)) == len(chosen)
    assert len(set(families)) == len(families)
    if gaps:
        assert gaps[chosen[0]] == min(gaps.values())
        assert set(chosen) - gaps.keys() or gaps.keys() == FAMILIES.keys(), (
            "one is tried, while there are any"
        )


@pytest.mark.parametrize("task", RECIPES.values(), ids=RECIPES)
def test_every_task_begins_with_models_of_different_families(task):
    families = [task.models[model].family for model in task.defaults]
    assert len(set(families)) == len(families)


def test_families_are_groups_somewhere_so_that_diversity_acts():
    families = RECIPES["image-classification"].families
    assert families["resnet"] == families["xception"]
    assert families["squeezenet"] == families["inception"]
    results = [
        {
            "resnet": 0.9,
            "xception": 0.91,
            "squeezenet": 0.9,
            "inception": 0.89,
            "vgg": 0.88,
            "small_cnn": 0.87,
        }
    ]
    chosen = choose_models(families, RECIPES["image-classification"].defaults, results)
    assert chosen == ("xception", "squeezenet", "vgg")
