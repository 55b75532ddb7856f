from collections import Counter
from itertools import pairwise

import pytest

from examples.foodlog.dishes import DISHES
from examples.foodlog.foodlog import Meal, keep_log
from examples.foodlog.labels import Label, choose_labels


@pytest.fixture(scope="module")
def labels() -> list[Label]:
    return choose_labels(600, tuple(DISHES), seed=7)


@pytest.fixture(scope="module")
def meals(labels: list[Label]) -> list[Meal]:
    return keep_log(labels, 12_000, seed=7)[1]


@pytest.fixture(scope="module")
def dish_of(labels: list[Label]) -> dict[str, str]:
    return {label.image_path: label.food_name for label in labels}


def test_every_dish_is_labelled_equally_often_and_divided_alike(labels: list[Label]) -> None:
    assert set(Counter(label.food_name for label in labels).values()) == {60}
    for dish in DISHES:
        splits = Counter(label.split for label in labels if label.food_name == dish)
        assert splits == {"lesson": 48, "holdout": 12}


def test_a_paths_name_gives_nothing_away(labels: list[Label]) -> None:
    assert not any(dish in label.image_path for label in labels for dish in DISHES)
    neighbours = sum(a.food_name == b.food_name for a, b in pairwise(labels))
    assert neighbours < 2.5 * len(labels) / len(DISHES)


def test_the_same_arguments_keep_the_same_log(labels: list[Label]) -> None:
    assert keep_log(labels, 500, seed=1) == keep_log(labels, 500, seed=1)
    assert keep_log(labels, 500, seed=1) != keep_log(labels, 500, seed=2)


def test_no_user_eats_twice_in_a_minute(meals: list[Meal]) -> None:
    assert len({(meal.user_id, meal.time) for meal in meals}) == len(meals) == 12_000


def test_a_user_has_one_age_and_every_meal_a_user(labels: list[Label]) -> None:
    users, meals = keep_log(labels, 2_000, seed=4)
    ages: dict[int, set[int]] = {}
    for meal in meals:
        ages.setdefault(meal.user_id, set()).add(meal.age)
    assert all(len(known) == 1 for known in ages.values())
    assert set(ages) <= {user.user_id for user in users}


def test_many_meals_share_a_photo(meals: list[Meal], labels: list[Label]) -> None:
    shared = Counter(meal.image_path for meal in meals)
    assert len(shared) > 0.95 * len(labels)
    assert max(shared.values()) > 10


def test_older_users_keep_to_laksa_and_younger_ones_to_pizza(
    meals: list[Meal], dish_of: dict[str, str]
) -> None:
    def share(dish: str, meals: list[Meal]) -> float:
        return sum(dish_of[meal.image_path] == dish for meal in meals) / len(meals)

    older = [meal for meal in meals if meal.age > 52]
    younger = [meal for meal in meals if meal.age <= 30]
    assert len(older) > 1_000
    assert share("laksa", older) > 1.3 * share("laksa", younger)
    assert share("pizza", younger) > 1.3 * share("pizza", older)


def test_salad_spreads_over_the_year(meals: list[Meal], dish_of: dict[str, str]) -> None:
    salads = Counter(meal.time[5:7] for meal in meals if dish_of[meal.image_path] == "salad")
    assert salads["11"] + salads["12"] > 1.8 * (salads["01"] + salads["02"])


def test_a_log_without_photos_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one photo"):
        keep_log([], 10, seed=1)
