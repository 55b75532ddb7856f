"""Who holds what a lane needs, while workers come, load, are kept aside and go."""

from __future__ import annotations

from dataclasses import replace

from server.scheduling.lanes import Lane
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.roster import Roster
from tests.unit.scheduling.cores import spec, worker


def lane() -> Lane:
    told = spec()
    return Lane(0.0, ("f", told.names, ""), told, GuardedPolicy(told, lambda fault: None))


def names(roster: Roster, one: Lane) -> tuple[list[str], list[str]]:
    return [each.name for each in roster.holders(one)], [each.name for each in roster.able(one)]


def test_those_that_hold_all_members_are_found_in_the_order_in_which_they_came() -> None:
    roster, one = Roster(), lane()
    for name, held in (("b", True), ("a", True), ("c", False)):
        roster.show(worker(name, "f" if held else "g"))
    assert names(roster, one) == (["b", "a"], ["b", "a"])
    roster.show(worker("c", "f"))
    assert names(roster, one) == (["b", "a", "c"], ["b", "a", "c"])
    roster.show(worker("b", "g"))
    assert names(roster, one) == (["a", "c"], ["a", "c"])


def test_one_that_is_kept_aside_holds_and_is_not_able_and_one_that_is_gone_is_neither() -> None:
    roster, one = Roster(), lane()
    for name in "ab":
        roster.show(worker(name, "f"))
    roster.show(replace(worker("a", "f"), in_flight_limit=0))
    assert names(roster, one) == (["a", "b"], ["b"])
    gone = roster.show(replace(worker("a", "f"), alive=False))
    assert gone.name == "a"
    assert len(roster) == 1
    assert names(roster, one) == (["b"], ["b"])


def test_the_same_answer_is_the_same_sequence_until_something_changes() -> None:
    roster, one = Roster(), lane()
    roster.show(worker("a", "f"))
    found = roster.able(one)
    assert roster.able(one) is found
    roster.forget()
    assert roster.able(one) == found
