"""What is said of a class that a function has not."""

from __future__ import annotations

import pytest

from ml_udf.client.scores import score_of, scores_of
from ml_udf.errors import UnknownLabel, WrongType

CLASSES = [f"dish {number}" for number in range(1000)] + ["Laksa", "laksa goreng", "nasi lemak"]


def hint_for(wanted: str, classes: list[str]) -> str:
    with pytest.raises(UnknownLabel, match=wanted) as refused:
        score_of(dict.fromkeys(classes, 0.5), wanted)
    return refused.value.hint


@pytest.mark.parametrize("wanted", ["laksa", "Laksas", "LAKSA", "lakza"])
def test_of_many_classes_the_nearest_by_name_come_first(wanted: str) -> None:
    assert hint_for(wanted, CLASSES).startswith("its classes, the nearest by name first: Laksa, ")


def test_where_none_is_near_the_first_are_shown() -> None:
    assert hint_for("zzz", CLASSES).startswith("its classes: dish 0, dish 1, dish 2, ")


def test_few_are_shown_of_many_and_all_of_few() -> None:
    assert hint_for("laksa", CLASSES).count(",") == 1 + 12
    assert hint_for("laksa", CLASSES).endswith(", …")
    assert hint_for("b", ["a", "B"]) == "its classes, the nearest by name first: B, a"
    assert hint_for("z", ["a", "a b"]) == "its classes: a, a b"


def test_a_class_with_the_name_in_other_letters_hides_none() -> None:
    assert (
        hint_for("TEA!", ["tea", "Tea", "coffee"])
        == "its classes, the nearest by name first: tea, Tea, coffee"
    )


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_no_probability(number: str) -> None:
    with pytest.raises(WrongType, match=f"{number} as the probability of class 'b'"):
        scores_of(["a", "b", "c"], [0.25, float(number), 0.75])
    assert scores_of(["a", "b"], [0.25, 0.75]) == {"a": 0.25, "b": 0.75}
