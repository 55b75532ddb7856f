"""The answer cache's store and its rule's contract: a bound that holds, and the right one leaves."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from gpu_worker.wire.protocol import Column
from server.cache.counts import CacheCounts
from server.cache.entry import KeptAnswer, Source, cells_of, column_of, kind_of
from server.cache.rule import Kept, Line
from server.cache.rules.sieve import Sieve
from server.cache.store import AnswerStore

LABEL = kind_of(Column("label", "BYTES", (), []))
CONFIDENCE = kind_of(Column("confidence", "FP32", (), b""))


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def answer(number: int, source: Source, label: str = "ramen") -> KeptAnswer:
    return KeptAnswer(key_of(number), (label, bytes(4)), source, None)


def source() -> Source:
    return Source((LABEL, CONFIDENCE), "model", CacheCounts())


def filled(numbers: Sequence[int], capacity: int) -> AnswerStore:
    made = source()
    store = AnswerStore(capacity * answer(0, made).nbytes, Sieve(0))
    for number in numbers:
        store.keep(answer(number, made))
    return store


def test_what_was_asked_again_outlives_what_was_not() -> None:
    store = filled(range(8), capacity=8)
    store.find([key_of(0), key_of(1)])
    for number in range(8, 14):
        store.keep(answer(number, source()))
    assert key_of(0) in store
    assert key_of(1) in store
    assert [number for number in range(2, 8) if key_of(number) in store] == []


def test_a_scan_of_what_is_asked_once_leaves_what_is_asked_often() -> None:
    store = filled(range(16), capacity=32)
    often = [key_of(number) for number in range(16)]
    for number in range(1_000, 3_000):
        store.keep(answer(number, source()))
        if number % 8 == 0:
            assert all(store.find(often))


def test_the_first_of_two_answers_for_one_key_stays() -> None:
    store = filled([], capacity=8)
    assert store.keep(answer(1, source(), "first"))
    assert not store.keep(answer(1, source(), "later"))
    (found,) = store.find([key_of(1)])
    assert found is not None
    assert found.cells[0] == "first"


def test_an_answer_that_would_fill_the_cache_alone_is_not_kept() -> None:
    store = AnswerStore(8_000, Sieve(0))
    assert not store.keep(answer(1, source(), "x" * 1_000))
    assert len(store) == 0


def test_the_bound_holds_and_counts_say_what_is_kept() -> None:
    random, made = Random(1), source()
    store = AnswerStore(50_000, Sieve(0))
    for _ in range(2_000):
        number = random.randrange(500)
        if store.find([key_of(number)]) == [None]:
            store.keep(answer(number, made, "x" * random.randrange(200)))
        assert store.nbytes <= 50_000
        if number % 100 == 0:
            store.forget(lambda kept: kept.key[0] % 7 == 0)
        assert store.nbytes == sum(kept.nbytes for kept in store) == made.counts.nbytes
        assert len(store) == made.counts.entries
    assert made.counts.evictions > 0


def test_forgetting_lets_go_of_those_that_are_meant_and_of_no_others() -> None:
    store = filled(range(10), capacity=16)
    assert store.forget(lambda kept: kept.key[0] < 4) == 4
    assert [number for number in range(10) if key_of(number) in store] == list(range(4, 10))
    for number in range(20, 40):
        store.keep(answer(number, source()))
    assert len(store) == 16


def test_an_answer_takes_no_more_memory_than_it_is_counted_for() -> None:
    made = source()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = AnswerStore(1 << 30, Sieve(0))
        for number in range(20_000):
            store.keep(KeptAnswer(key_of(number), (f"label {number}", bytes(range(4))), made, None))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.6 * store.nbytes < after - before <= store.nbytes


@pytest.mark.parametrize(
    "column",
    [
        Column("label", "BYTES", (), ["a", "", "ä"]),
        Column("scores", "FP32", (2,), bytes(range(24))),
        Column("value", "FP64", (), bytes(range(24))),
        Column("boxes", "BYTES", (), ["[]", "[]", "[1]"], "boxes"),
    ],
    ids=lambda column: column.name,
)
def test_a_column_comes_back_from_its_cells(column: Column) -> None:
    cells = cells_of(column)
    assert len(cells) == 3
    assert column_of(kind_of(column), cells) == column


def test_a_line_keeps_its_order_whoever_leaves() -> None:
    line, random = Line(), Random(2)
    expected: list[Kept] = []
    for number in range(300):
        if expected and random.random() < 0.4:
            kept = expected.pop(random.randrange(len(expected)))
            line.unlink(kept)
        else:
            kept = Kept(key_of(number), random.randrange(100))
            line.append(kept)
            expected.append(kept)
        assert line.oldest is (expected[0] if expected else None)
        assert bool(line) == bool(expected)
        assert line.nbytes == sum(each.nbytes for each in expected)
        for each, following in pairwise([*expected, None]):
            assert each is not None
            assert line.newer(each) is following
