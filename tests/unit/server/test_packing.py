"""Which worker holds which members of a group that no worker can hold whole."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from server.placement.packing import packed
from server.placement.policy import Capacity

TWO = {"w0": Capacity(max_models=2), "w1": Capacity(max_models=2)}


def test_as_many_as_fit_stay_together() -> None:
    assert packed({"a": 1, "b": 1, "c": 1}, TWO, {}) == {"w0": ("a", "b"), "w1": ("c",)}


def test_members_stay_where_they_are() -> None:
    assert packed({"a": 1, "b": 1, "c": 1}, TWO, {"w1": ["b", "c"]}) == {"w0": ("a",), "w1": ("b", "c")}
    assert packed({"a": 1, "b": 1}, TWO, {"w0": ["a", "b"], "w1": ["a"]}) == {"w0": ("a", "b")}


def test_members_that_are_in_each_others_way_are_placed_anew() -> None:
    workers = {"w0": Capacity(capacity_bytes=4), "w1": Capacity(capacity_bytes=4)}
    sizes = {"a": 2, "b": 2, "c": 3}
    assert packed(sizes, workers, {"w0": ["a"], "w1": ["b"]}) == {"w0": ("c",), "w1": ("a", "b")}


def test_what_does_not_fit_is_not_packed() -> None:
    assert packed({"a": 1, "b": 1, "c": 1}, {"w0": Capacity(max_models=2)}, {}) is None
    assert packed({"a": 5}, {"w0": Capacity(capacity_bytes=4)}, {}) is None
    assert packed({"a": 5}, {}, {}) is None


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    capacities=st.lists(st.integers(1, 10), max_size=3),
    held=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3))),
)
def test_each_member_is_on_one_worker_and_fits_there(
    sizes: list[int], capacities: list[int], held: list[tuple[int, int]]
) -> None:
    models = {f"m{number}": size for number, size in enumerate(sizes)}
    workers = {f"w{number}": Capacity(capacity_bytes=size) for number, size in enumerate(capacities)}
    there: dict[str, list[str]] = {}
    for worker, model in held:
        there.setdefault(f"w{worker}", []).append(f"m{model}")
    found = packed(models, workers, there)
    if found is None:
        # Largest first finds room for a few members wherever two workers of one size have it.
        assert not (len(set(capacities)) == 1 and len(models) == 2 and _fit(sizes, capacities))
        return
    assert sorted(key for keys in found.values() for key in keys) == sorted(models)
    for name, keys in found.items():
        assert workers[name].fits([models[key] for key in keys])


def _fit(sizes: list[int], capacities: list[int]) -> bool:
    for places in product(range(len(capacities)), repeat=len(sizes)):
        loads = [0] * len(capacities)
        for place, size in zip(places, sizes, strict=True):
            loads[place] += size
        if all(load <= capacity for load, capacity in zip(loads, capacities, strict=True)):
            return True
    return False


FOUR = {name: Capacity(max_models=1) for name in ("a0", "b0", "a1", "b1")}
NODES = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}


def test_members_are_on_as_few_machines_as_may_be_or_on_as_many() -> None:
    sizes = {"m": 1, "n": 1}
    assert packed(sizes, FOUR, {}, NODES) == {"a0": ("m",), "a1": ("n",)}
    assert packed(sizes, FOUR, {}, NODES, spread=True) == {"a0": ("m",), "b0": ("n",)}
    assert packed(sizes, FOUR, {"a1": ["n"]}, NODES, spread=True) == {"a1": ("n",), "b0": ("m",)}


def test_what_fits_only_packed_is_packed() -> None:
    workers = {"a0": Capacity(capacity_bytes=6), "b0": Capacity(capacity_bytes=4)}
    sizes = {"k": 3, "l": 3, "m": 2, "n": 2}
    found = packed(sizes, workers, {}, {"a0": "a", "b0": "b"}, spread=True)
    assert found == {"a0": ("k", "l"), "b0": ("m", "n")}
