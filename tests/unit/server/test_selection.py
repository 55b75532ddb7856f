"""Which members take part: by deployment, and narrowed by a request's own goals."""

from __future__ import annotations

from typing import Any

import pytest

from server.ensemble.select import (
    Limits,
    MemberEstimate,
    members_within,
    select_members,
    subset_within,
)

ACCURACIES = [("small", 0.7), ("large", 0.9), ("medium", 0.8)]
COST_S = {"small": 0.001, "large": 0.010, "medium": 0.003}  # per row


def candidates() -> list[MemberEstimate]:
    return [
        MemberEstimate(name, accuracy, lambda rows, name=name: rows * COST_S[name])  # type: ignore[misc]  # bound early
        for name, accuracy in ACCURACIES
    ]


def test_all_best_and_a_static_subset_are_selected() -> None:
    assert select_members("all", ACCURACIES) == ("small", "large", "medium")
    assert select_members("best", ACCURACIES) == ("large",)
    assert select_members(["medium", "small"], ACCURACIES) == ("small", "medium")


@pytest.mark.parametrize("select", ["worst", [], [3], ["small", 3], None, 5])
def test_a_selection_that_is_no_list_of_names_is_told_what_it_may_be(select: object) -> None:
    with pytest.raises(ValueError, match="select must be 'best', 'all' or a list"):
        select_members(select, ACCURACIES)


def test_a_selection_that_names_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="select names 'nobody'"):
        select_members(["small", "nobody"], ACCURACIES)


def test_no_models_cannot_be_selected_from() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        select_members("all", [])


def test_without_goals_everybody_answers() -> None:
    assert members_within(candidates(), 10, slo_s=None, min_accuracy=None) == ("small", "large", "medium")


def test_an_accuracy_goal_leaves_out_the_weaker_models() -> None:
    assert members_within(candidates(), 10, slo_s=None, min_accuracy=0.75) == ("large", "medium")
    assert members_within(candidates(), 10, slo_s=None, min_accuracy=0.9) == ("large",)
    assert members_within(candidates(), 10, slo_s=None, min_accuracy=0.95) == ()
    assert members_within(candidates(), 10, slo_s=1.0, min_accuracy=0.95) == ()


def test_a_latency_goal_takes_the_most_accurate_models_that_fit_together() -> None:
    assert members_within(candidates(), 10, slo_s=0.131, min_accuracy=None) == ("large", "medium")
    assert members_within(candidates(), 10, slo_s=0.115, min_accuracy=None) == ("small", "large")
    assert members_within(candidates(), 10, slo_s=0.1, min_accuracy=None) == ("large",)


def test_what_members_share_counts_once() -> None:
    assert members_within(candidates(), 10, slo_s=0.126, min_accuracy=None) == ("small", "large")
    assert members_within(candidates(), 10, slo_s=0.098, min_accuracy=None, saved_s=0.005) == (
        "small",
        "medium",
    )  # the first saves nothing
    assert members_within(candidates(), 10, slo_s=0.126, min_accuracy=None, saved_s=0.005) == (
        "large",
        "medium",
    )


def test_when_nothing_fits_the_fastest_model_that_is_accurate_enough_answers() -> None:
    assert members_within(candidates(), 10, slo_s=0.0001, min_accuracy=None) == ("small",)
    assert members_within(candidates(), 10, slo_s=0.0001, min_accuracy=0.75) == ("medium",)


# By what they answer together: two of them are worth more than the best, and all three less than those.
TOGETHER = {
    frozenset(subset): accuracy
    for subset, accuracy in (
        (("small",), 0.7),
        (("large",), 0.9),
        (("medium",), 0.8),
        (("small", "medium"), 0.91),
        (("small", "large"), 0.93),
        (("medium", "large"), 0.95),
        (("small", "medium", "large"), 0.94),
    )
}


def within(slo_s: float | None = None, min_accuracy: float | None = None, **fields: Any) -> tuple[str, ...]:
    return subset_within(candidates(), TOGETHER, 10, Limits(slo_s, min_accuracy), **fields)


def test_limits_that_all_members_keep_leave_all() -> None:
    assert within(slo_s=1.0, min_accuracy=0.94) == ("small", "large", "medium")
    assert within(min_accuracy=0.5) == ("small", "large", "medium")


def test_an_accuracy_is_that_of_a_subset_and_not_of_its_members() -> None:
    assert within(min_accuracy=0.945) == ("large", "medium"), "all of them are right less often"
    assert within(slo_s=0.05, min_accuracy=0.85) == ("small", "medium"), "neither alone is so accurate"


def test_of_the_subsets_that_are_fast_enough_the_most_accurate_answers() -> None:
    assert within(slo_s=0.135) == ("large", "medium")
    assert within(slo_s=0.115) == ("small", "large")
    assert within(slo_s=0.045) == ("small", "medium")
    assert within(slo_s=0.03) == ("medium",)


def test_members_of_several_workers_run_side_by_side() -> None:
    assert within(slo_s=0.1) == ("small", "medium"), "one after the other the large one leaves time for none"
    apart = [{"small", "medium"}, {"large"}]
    assert within(slo_s=0.1, workers=apart) == ("small", "large", "medium")
    assert within(slo_s=0.1, workers=[*apart, {"small", "medium", "large"}]) == ("small", "medium"), (
        "who holds them all runs them all"
    )
    assert within(slo_s=0.1, workers=[{"large"}]) == ("small", "large", "medium"), "the others load elsewhere"


def test_what_members_of_one_worker_share_counts_once() -> None:
    assert within(slo_s=0.126) == ("small", "large")
    assert within(slo_s=0.126, saved_s=0.005) == ("large", "medium")


def test_a_goal_alone_may_be_missed_by_the_fastest() -> None:
    assert within(slo_s=0.0001) == ("small",)


def test_an_accuracy_that_no_subset_has_names_the_best_that_can_be_had() -> None:
    with pytest.raises(ValueError, match=r"accuracy of 0\.96 together; the best, large \+ medium, has 0\.95"):
        within(min_accuracy=0.96)


def test_limits_that_no_subset_keeps_together_name_the_nearest_on_both_sides() -> None:
    with pytest.raises(ValueError, match=r"10 rows in 50 ms with an accuracy of 0\.92: ") as caught:
        within(slo_s=0.05, min_accuracy=0.92)
    assert "small + large would take 110 ms" in str(caught.value)
    assert "in that time the best, small + medium, has 0.91" in str(caught.value)


def test_members_of_a_fit_that_do_not_answer_here_are_left_out() -> None:
    two = [each for each in candidates() if each.name != "small"]
    assert subset_within(two, TOGETHER, 10, Limits(min_accuracy=0.85)) == ("large", "medium")
