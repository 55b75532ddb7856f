"""Resident models are bounded by bytes and by count; what does not fit is refused, nothing leaves for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from gpu_worker.errors import ModelUnusable, NoRoom, UnknownModel
from gpu_worker.model_cache import ModelCache, Resident
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.networks.network import Network

MANIFEST = Manifest("/m", "m", 1, "text-classification", "torch", "hashing", ("a",), InputSpec())


@dataclass
class Sized:
    resident_bytes: int


def put(cache: ModelCache, key: str, size: int = 10, expected: int | None = None) -> None:
    """Loads a model of `size` bytes."""
    expected = size if expected is None else expected
    cache.put(key, MANIFEST, expected, lambda: cast(Network, Sized(size)))


@contextmanager
def in_use(cache: ModelCache, *keys: str) -> Iterator[None]:
    residents = cache.acquire(keys)
    try:
        yield
    finally:
        cache.release(residents)


def test_models_are_told_least_recently_used_first_with_their_users() -> None:
    cache = ModelCache(max_bytes=30, max_models=9)
    for key in "abc":
        put(cache, key)
    with in_use(cache, "a"):
        assert [(there.key, there.users) for there in cache.residents()] == [("b", 0), ("c", 0), ("a", 1)]
    assert cache.keys() == ["b", "c", "a"]


def test_a_model_without_room_is_refused_with_what_it_needs_and_nothing_leaves() -> None:
    cache = ModelCache(max_bytes=30, max_models=9)
    for key in "abc":
        put(cache, key)
    with pytest.raises(NoRoom, match="'d'") as refused:
        put(cache, "d", 25)
    assert refused.value.wanted_bytes == 25
    assert cache.keys() == ["a", "b", "c"]


def test_the_count_is_bounded_too() -> None:
    cache = ModelCache(max_bytes=1000, max_models=2)
    put(cache, "a")
    put(cache, "b")
    with pytest.raises(NoRoom) as refused:
        put(cache, "c")
    assert refused.value.wanted_bytes == 10
    cache.remove("a")
    put(cache, "c")
    assert cache.keys() == ["b", "c"]


def test_a_model_that_could_never_fit_is_unusable() -> None:
    cache = ModelCache(max_bytes=20, max_models=9)
    put(cache, "a")
    with pytest.raises(ModelUnusable, match="21 bytes"):
        put(cache, "b", 21)
    assert cache.keys() == ["a"]


def test_a_model_that_turns_out_bigger_than_its_file_is_refused_once_measured() -> None:
    cache = ModelCache(max_bytes=30, max_models=9)
    put(cache, "a")
    put(cache, "b")
    with pytest.raises(NoRoom) as refused:
        put(cache, "c", size=20, expected=5)
    assert refused.value.wanted_bytes == 20
    assert cache.keys() == ["a", "b"]
    with pytest.raises(ModelUnusable):
        put(cache, "d", size=31, expected=5)
    assert cache.keys() == ["a", "b"]


def test_loading_again_under_the_same_key_replaces_and_does_not_count_twice() -> None:
    cache = ModelCache(max_bytes=20, max_models=2)
    put(cache, "a")
    put(cache, "b")
    put(cache, "a")
    assert sorted(cache.keys()) == ["a", "b"]


def test_a_model_that_was_replaced_while_in_use_counts_until_it_is_let_go() -> None:
    cache = ModelCache(max_bytes=20, max_models=9)
    put(cache, "a")
    with in_use(cache, "a"):
        put(cache, "a")
        with in_use(cache, "a"), pytest.raises(NoRoom):
            put(cache, "b", 11)
    put(cache, "b")


def test_what_fails_to_load_leaves_nothing_behind() -> None:
    cache = ModelCache(max_bytes=20, max_models=9)

    def fail() -> Network:
        raise ModelUnusable("no")

    with pytest.raises(ModelUnusable):
        cache.put("a", MANIFEST, 1, fail)
    assert cache.keys() == []


def test_a_replacement_that_turns_out_too_big_leaves_neither_and_says_its_size() -> None:
    cache = ModelCache(max_bytes=30, max_models=9)
    put(cache, "a")
    put(cache, "d")  # an earlier one of the same key
    with in_use(cache, "a"), pytest.raises(NoRoom) as refused:
        put(cache, "d", 25, expected=5)
    assert refused.value.wanted_bytes == 25
    assert cache.keys() == ["a"]


def test_no_bound_on_the_count_leaves_the_bytes() -> None:
    cache = ModelCache(max_bytes=1000, max_models=0)
    for number in range(100):
        put(cache, str(number))
    with pytest.raises(NoRoom):
        put(cache, "more")


def test_a_model_that_is_being_removed_counts_until_its_last_batch_is_over() -> None:
    cache = ModelCache(max_bytes=20, max_models=9)
    put(cache, "a")
    residents = cache.acquire(["a"])
    removing = threading.Thread(target=cache.remove, args=("a",))
    removing.start()
    while cache.keys():
        pass
    with pytest.raises(NoRoom):
        put(cache, "b", 11)
    put(cache, "b")
    cache.release(residents)
    removing.join(10)
    put(cache, "c")


def test_all_models_of_a_batch_are_leased_or_none() -> None:
    cache = ModelCache(max_bytes=20, max_models=1)
    put(cache, "a")
    with pytest.raises(UnknownModel, match="'x'") as unknown, in_use(cache, "a", "x"):
        pass
    assert unknown.value.missing == ["x"]
    assert [there.users for there in cache.residents()] == [0], "a was not left in use"


def test_removing_waits_for_the_last_batch_but_new_ones_come_too_late() -> None:
    cache = ModelCache(max_bytes=20, max_models=9)
    put(cache, "a")
    residents = cache.acquire(["a"])
    removing = threading.Thread(target=cache.remove, args=("a",))
    removing.start()
    removing.join(0.1)
    assert removing.is_alive()
    with pytest.raises(UnknownModel):
        cache.acquire(["a"])
    cache.release(residents)
    removing.join(10)
    assert not removing.is_alive()


def test_removing_what_is_not_there_says_so() -> None:
    with pytest.raises(UnknownModel, match="'a'"):
        ModelCache(max_bytes=1, max_models=1).remove("a")


def test_batches_go_on_while_another_model_loads() -> None:
    cache = ModelCache(max_bytes=100, max_models=9)
    put(cache, "a")
    loading, may_end = threading.Event(), threading.Event()

    def load() -> Network:
        loading.set()
        assert may_end.wait(10)
        return cast(Network, Sized(10))

    thread = threading.Thread(target=cache.put, args=("b", MANIFEST, 10, load))
    thread.start()
    assert loading.wait(10)
    with in_use(cache, "a"):
        may_end.set()
    thread.join(10)
    assert cache.keys() == ["a", "b"]


def test_a_models_time_per_row_is_the_first_passs_and_then_smoothed() -> None:
    resident = Resident("m", MANIFEST, cast(Network, Sized(10)))
    resident.observe(4, 0.8, 0.8)
    assert resident.row_s == pytest.approx(0.2)
    resident.observe(10, 1.0, 0.1)
    assert resident.row_s == pytest.approx(0.8 * 0.2 + 0.2 * 0.1)
