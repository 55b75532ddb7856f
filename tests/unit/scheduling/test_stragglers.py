"""Groups of rows of which a late one can be rebuilt: who is in one, and when."""

from __future__ import annotations

import pytest

from server.scheduling.stragglers import CodingGroup, CodingGroups, Rebuild, late_after_s


@pytest.mark.parametrize(
    ("asked_s", "predicted_s", "after_s"),
    [(0.03, 1.0, 0.03), (None, 0.1, 0.2), (None, 1e-4, 0.01), (None, None, 0.25)],
)
def test_rows_are_late_as_the_function_says_or_by_what_their_batch_should_take(
    asked_s: float | None, predicted_s: float | None, after_s: float
):
    assert late_after_s(asked_s, predicted_s, 0.5) == pytest.approx(after_s)


def groups_of(k: int = 2, workers: int = 2) -> tuple[CodingGroups[str], list[CodingGroup[str]]]:
    """Batch 1 on w0 has rows 1:0 and 1:1; batch 2 on w1 has 2:0 and 2:1."""
    groups = CodingGroups[str](k)
    assert groups.sent(1, "w0", [(1, 0), (1, 1)], workers) == []
    return groups, list(groups.sent(2, "w1", [(2, 0), (2, 1)], workers))


def test_rows_of_one_batch_are_in_different_groups():
    _, full = groups_of()
    assert [list(group.rows) for group in full] == [[(1, 0), (2, 0)], [(1, 1), (2, 1)]]


def test_a_late_row_is_rebuilt_once_the_others_and_the_parity_models_answer_are_there():
    groups, (first, second) = groups_of()
    assert list(groups.late((1, 0))) == []
    assert list(groups.coded(first, "sum")) == []
    assert list(groups.answered((2, 0), "other")) == [Rebuild((1, 0), "sum", ("other",))]
    assert list(groups.answered((1, 0), "own")) == []  # which comes after all
    assert not second.is_over


@pytest.mark.parametrize("order", ["late", "coded"])
def test_whatever_comes_last_rebuilds_it(order: str):
    groups, (first, _) = groups_of()
    assert list(groups.answered((2, 0), "other")) == []
    steps = {"late": lambda: groups.late((1, 0)), "coded": lambda: groups.coded(first, "sum")}
    last = steps.pop(order)
    assert list(next(iter(steps.values()))()) == []
    assert len(list(last())) == 1


def test_a_row_that_is_not_late_is_not_rebuilt():
    groups, (first, _) = groups_of()
    list(groups.answered((2, 0), "other"))
    assert list(groups.coded(first, "sum")) == []


def test_where_two_of_a_group_are_missing_none_is_rebuilt():
    groups, (first, _) = groups_of()
    list(groups.late((1, 0)))
    list(groups.late((2, 0)))
    assert list(groups.coded(first, "sum")) == []


@pytest.mark.parametrize("told", ["own", None])
def test_a_group_that_does_not_fill_waits_for_nobody_who_is_answered(told: str | None):
    groups = CodingGroups[str](2)
    groups.sent(1, "w0", [(1, 0)], 2)
    assert list(groups.answered((1, 0), told)) == []
    assert len(groups) == 0
    assert groups.sent(2, "w1", [(2, 0)], 2) == []


def test_a_row_at_fault_or_gone_leaves_nothing_to_rebuild_the_others_by():
    groups, (first, second) = groups_of()
    list(groups.late((1, 0)))
    list(groups.late((1, 1)))
    assert list(groups.answered((2, 0), None)) == []
    groups.forget([(2, 1)])
    assert [group.is_over for group in (first, second)] == [True, True]
    assert list(groups.coded(second, "sum")) == []
    assert len(groups) == 0


def test_a_row_that_is_sent_again_is_in_its_group_already():
    groups, _ = groups_of()
    assert groups.sent(3, "w1", [(1, 0)], 2) == []
    assert len(groups) == 4


def test_rows_of_one_worker_share_a_group_only_where_there_are_fewer_workers_than_rows_in_it():
    few, many = CodingGroups[str](3), CodingGroups[str](3)
    for batch in (1, 2, 3):
        found = few.sent(batch, "w0", [(batch, 0)], 2), many.sent(batch, "w0", [(batch, 0)], 3)
        assert (len(found[0]), len(found[1])) == (batch == 3, 0)
