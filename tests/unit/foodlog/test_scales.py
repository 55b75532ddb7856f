from collections import Counter
from pathlib import Path
from statistics import mean

import duckdb
import pytest

from examples.foodlog.dishes import DISHES
from examples.foodlog.labels import Label, choose_labels
from examples.foodlog.scales import Portion, Weighed, weigh
from examples.foodlog.tables import load_duckdb


@pytest.fixture(scope="module")
def labels() -> list[Label]:
    return choose_labels(200, tuple(DISHES), seed=7)


@pytest.fixture(scope="module")
def scales(labels: list[Label]) -> tuple[list[Weighed], list[Portion]]:
    return weigh(labels, seed=7)


def test_every_dish_is_weighed_equally_often_and_a_fifth_is_held_out(
    scales: tuple[list[Weighed], list[Portion]],
) -> None:
    weighed, _ = scales
    assert set(Counter(meal.food_name for meal in weighed)) == set(DISHES)
    for dish in DISHES:
        splits = Counter(meal.split for meal in weighed if meal.food_name == dish)
        assert splits == {"lesson": 120, "holdout": 30}


def test_more_on_the_plate_is_more_to_eat(scales: tuple[list[Weighed], list[Portion]]) -> None:
    for dish in DISHES:
        mine = [meal for meal in scales[0] if meal.food_name == dish and meal.portion_g is not None]
        middle = sorted(meal.portion_g or 0 for meal in mine)[len(mine) // 2]
        large = [meal.calories for meal in mine if (meal.portion_g or 0) > middle]
        small = [meal.calories for meal in mine if (meal.portion_g or 0) <= middle]
        assert mean(large) > mean(small)


def test_every_photo_has_a_portion_and_some_have_no_weight(
    labels: list[Label], scales: tuple[list[Weighed], list[Portion]]
) -> None:
    _, portions = scales
    assert [portion.image_path for portion in portions] == [label.image_path for label in labels]
    unweighed = sum(portion.portion_g is None for portion in portions)
    assert 0 < unweighed < len(portions) / 4


def test_the_same_arguments_weigh_the_same(labels: list[Label]) -> None:
    assert weigh(labels, seed=1) == weigh(labels, seed=1) != weigh(labels, seed=2)


def test_what_nobody_weighed_is_null_in_the_tables(album_folder: Path) -> None:
    con = duckdb.connect()
    load_duckdb(con, album_folder)
    known = con.execute("SELECT count(*), count(portion_g) FROM weighed").fetchone()
    assert known is not None
    assert 0 < known[1] < known[0] == 1_500
