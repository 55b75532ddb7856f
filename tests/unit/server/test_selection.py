"""Which members take part: by deployment, and narrowed by a request's own goals."""

from __future__ import annotations

import pytest

from server.ensemble.select import MemberEstimate, members_within, select_members

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
