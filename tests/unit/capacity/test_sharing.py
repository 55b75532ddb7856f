"""Promises about shared workers: whose passes are in whose way, and how many rows are late for it."""

from __future__ import annotations

import pytest

from server.capacity.sharing import Place, Sharing, too_late_share


def shared() -> Sharing:
    """On a and b: `short`, 1 row/s of 50 ms that may wait for 25; `long`, 1 row/s of 400 ms, on a alone."""
    sharing = Sharing(["a", "b", "c"])
    sharing.book("short", 1.0, 0.075, [Place("a", 20.0, 0.05)])
    sharing.book("long", 1.0, 1.0, [Place("a", 2.5, 0.4)])
    return sharing


@pytest.mark.parametrize(
    ("pass_s", "slack_s", "share"),
    [(0.4, 0.1, 0.75), (0.4, 0.4, 0.0), (0.4, 2.0, 0.0), (0.4, 0.0, 1.0), (0.4, -0.1, 1.0), (0.0, 0.0, 0.0)],
)
def test_a_row_is_too_late_for_a_pass_of_which_more_is_left_than_it_may_wait(
    pass_s: float, slack_s: float, share: float
) -> None:
    assert too_late_share(pass_s, slack_s) == pytest.approx(share)


def test_a_long_pass_blocks_a_short_goal_and_a_short_pass_blocks_no_long_goal() -> None:
    sharing = shared()
    assert sharing.blocked("short", "a", 0.025) == pytest.approx(0.4 * (1 - 0.025 / 0.4))
    assert sharing.blocked("long", "a", 0.6) == 0.0
    assert sharing.blocked("short", "b", 0.025) == 0.0


def test_a_function_is_never_in_its_own_way_beside_others() -> None:
    sharing = shared()
    assert sharing.taken("a") == pytest.approx(0.05 + 0.4)
    assert sharing.taken("a", without="long") == pytest.approx(0.05)
    assert sharing.is_shared


def test_what_leaves_makes_fewer_of_its_neighbours_late_and_what_comes_makes_more() -> None:
    sharing = shared()
    moved = sharing.late_beside("long", [Place("b", 2.5, 0.4)])
    assert moved == {"short": pytest.approx(-0.4 * (1 - 0.025 / 0.4))}
    spread = sharing.late_beside("long", [Place("a", 2.5, 0.4), Place("b", 2.5, 0.4)])
    assert moved["short"] < spread["short"] < 0
    assert sharing.late_beside("long", [Place("a", 2.5, 0.4)]) == {}


def test_a_row_is_late_only_where_all_that_could_answer_it_are_in_too_long_a_pass() -> None:
    sharing = shared()
    sharing.book("short", 1.0, 0.075, [Place("a", 20.0, 0.05), Place("b", 20.0, 0.05)])
    late = sharing.late_beside("long", [Place("a", 2.5, 0.4), Place("c", 2.5, 0.4)])
    assert -0.02 < late["short"] < 0.0  # its copy on b is hardly ever busy


def test_one_copy_more_is_cheapest_where_nobody_waits_for_it() -> None:
    sharing = shared()
    beside = sharing.late_by_one_more("long", Place("a", 2.5, 0.4))
    alone = sharing.late_by_one_more("long", Place("b", 2.5, 0.4))
    assert beside["short"] > 0.1
    assert sum(alone.values()) == 0.0


def test_what_is_booked_again_counts_once() -> None:
    sharing = shared()
    sharing.book("long", 2.0, 1.0, [Place("c", 2.5, 0.4)])
    assert sharing.taken("a") == pytest.approx(0.05)
    assert sharing.taken("c") == pytest.approx(0.8)
    assert not sharing.is_shared
    sharing.book("long", 0.0, 1.0, [])
    assert sharing.taken("c") == 0.0
