"""Which members share devices follows from who holds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.ensemble.places import MemberPlace, places_of


def test_where_all_workers_hold_all_members_there_is_one_device():
    assert places_of("ab", [("ab", "cpu"), ("abc", "cpu")]) == (MemberPlace(0, ("cpu",)),) * 2


def test_members_on_different_workers_are_on_devices_of_their_own():
    found = places_of("abc", [("b", "gpu"), ("ac", "cpu")])
    assert found == (MemberPlace(0, ("cpu",)), MemberPlace(1, ("gpu",)), MemberPlace(0, ("cpu",)))


def test_a_member_that_nobody_holds_has_no_place():
    assert places_of("ab", [("b", "cpu"), ("", "cpu")]) == (None, MemberPlace(0, ("cpu",)))
    assert places_of("ab", []) == (None, None)


def test_workers_of_several_kinds_are_named_each():
    workers = [("a", "gpu"), ("a", "cpu"), ("a", "cpu")]
    assert places_of("a", workers) == (MemberPlace(0, ("cpu", "cpu", "gpu")),)


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.sampled_from(["cpu", "gpu"])), max_size=5))
def test_the_order_of_the_workers_does_not_matter_and_devices_are_counted_from_none(workers):
    found = places_of("abcd", workers)
    assert found == places_of("abcd", list(reversed(workers)))
    devices = {place.device for place in found if place is not None}
    assert devices == set(range(len(devices)))
    for one, place in zip("abcd", found, strict=True):
        for other, its in zip("abcd", found, strict=True):
            together = [one in held for held, _ in workers] == [other in held for held, _ in workers]
            if place is not None and its is not None:
                assert (place.device == its.device) == together
