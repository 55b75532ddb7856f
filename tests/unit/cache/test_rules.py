"""What each eviction rule does that the others do not."""

from __future__ import annotations

from random import Random

import pytest
from numpy.random import default_rng

from server.cache.rule import MakeRule
from server.cache.rules.by_name import RULES
from server.cache.rules.clock import Clock
from server.cache.rules.ghosts import Ghosts
from server.cache.rules.key_queue import KeyQueue
from server.cache.rules.lru import LeastRecentlyUsed
from server.cache.rules.s3fifo import S3Fifo
from server.cache.rules.sieve import Sieve
from server.cache.rules.sketch import Sketch
from server.cache.rules.tinylfu import TinyLfu
from tests.benchmarks.cache_traces import hit_rate, loop, scan, trace_of
from tests.unit.cache.small_store import SmallStore, key_of


class PlainSieve:
    """The paper's words: one queue, and a hand that walks from its oldest to its newest.

    What is new is there before the hand walks, as a store of ours calls a rule.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._queue: list[int] = []  # the oldest first
        self._visited: set[int] = set()
        self._hand = 0

    def ask(self, number: int) -> bool:
        if number in self._queue:
            self._visited.add(number)
            return True
        self._queue.append(number)
        if len(self._queue) > self._rows:
            self._evict()
        return False

    def _evict(self) -> None:
        while self._queue[self._hand] in self._visited:
            self._visited.discard(self._queue[self._hand])
            self._hand = (self._hand + 1) % len(self._queue)
        del self._queue[self._hand]
        if self._hand == len(self._queue):
            self._hand = 0


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("seed", range(4))
def test_what_is_swept_away_is_held_no_longer_and_the_rest_leaves_as_ever(name: str, seed: int):
    random, store = Random(seed), SmallStore(RULES[name], 3_000)
    for number in hot_and_cold(seed, 2_000):
        store.ask(number, 10)
    for first in range(1_000, 3_000, 100):
        store.ask_new(list(range(first, first + 100)))
    swept = {key for key in store.held if random.random() < 0.4}
    left = store.held.keys() - swept
    came = 10_000
    for gone in store.rule.sweep(swept.__contains__):
        for key in gone:
            del store.held[key]
        if random.random() < 0.5:  # others come meanwhile, and push some out
            store.ask_new(list(range(came, came + 20)))
            came += 20
    assert not store.held.keys() & swept
    for number in hot_and_cold(seed + 9, 1_000):
        store.ask(number, 10)
    assert sum(store.held.values()) <= 3_000
    held = set(store.held)
    assert store.empty() == held
    assert left


def hot_and_cold(seed: int, requests: int) -> list[int]:
    random = Random(seed)
    return [int(random.paretovariate(0.7)) % 300 for _ in range(requests)]


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 60])
def test_sieve_has_the_hits_of_the_papers_words(rows: int):
    for seed in range(5):
        ours, plain = SmallStore(Sieve, rows), PlainSieve(rows)
        for number in hot_and_cold(seed, 3_000):
            assert ours.ask(number) == plain.ask(number)


def left_of(make: MakeRule, asked: str, new: str) -> str:
    """Who is kept, by letters, after these were asked for and then those came."""
    store = SmallStore(make, 3)
    for letter in asked + new:
        store.ask(ord(letter))
    return "".join(sorted(chr(int.from_bytes(key, "little")) for key in store.held))


def test_clock_gives_another_round_to_who_was_asked_again():
    assert left_of(Clock, "abca", "d") == "acd"
    assert left_of(Clock, "abc", "d") == "bcd"


def test_lru_lets_go_of_who_was_asked_for_longest_ago():
    assert left_of(LeastRecentlyUsed, "abcab", "d") == "abd"


def test_s3fifo_filters_what_is_asked_for_once_and_knows_who_comes_back():
    store = SmallStore(S3Fifo, 20)
    for number in (0, 0, 0, *range(1, 40)):
        store.ask(number)
    assert 0 in store  # asked twice more while it was in the small queue
    assert 1 not in store
    gone = next(number for number in range(39, 0, -1) if number not in store)
    store.ask(gone)  # it left of late, and so it goes to the main queue at once
    for number in range(100, 110):
        store.ask(number)
    assert gone in store


def test_tinylfu_keeps_who_is_asked_more_often_than_who_comes():
    store = SmallStore(TinyLfu, 1_000)
    for _ in range(3):
        for number in range(90):
            store.ask(number, 10)
    for number in range(1_000, 3_000):
        store.ask(number, 10)
    assert sum(store.ask(number, 10) for number in range(90)) > 85


def test_tinylfu_trades_no_three_that_are_asked_for_one_large_that_is_asked_as_often():
    store = SmallStore(TinyLfu, 1_000)
    for _ in range(4):
        for number in range(9):
            store.ask(number, 100)
    for _ in range(5):
        store.ask(99, 300)
    assert all(store.ask(number, 100) for number in range(9))


def test_a_scan_takes_little_from_the_rules_that_withstand_one():
    trace = trace_of(scan(default_rng(3), 20_000), 3, mixed=False)
    room = trace.again_bytes // 10
    rate = {name: hit_rate(make, room, trace) for name, make in RULES.items()}
    for name in ("sieve", "s3-fifo", "w-tinylfu"):
        assert rate[name] > rate["lru"]
        assert rate[name] > rate["clock"]


def test_of_a_loop_a_little_larger_than_the_cache_lru_keeps_next_to_nothing_and_tinylfu_most():
    trace = trace_of(loop(default_rng(4), 100_000), 4, mixed=False)
    room = int(0.9 * trace.again_bytes)
    rate = {name: hit_rate(make, room, trace) for name, make in RULES.items()}
    assert rate["lru"] < 0.4
    assert rate["w-tinylfu"] > 0.6


def test_ghosts_are_remembered_until_so_many_bytes_have_left():
    ghosts = Ghosts(1_000)
    ghosts.remember(key_of(1), 100)
    ghosts.remember(key_of(2), 100)
    assert ghosts.recall([key_of(1)])
    assert not ghosts.recall([key_of(1)])  # once
    assert not ghosts.recall([key_of(3)])
    for number in range(10, 20):
        ghosts.remember(key_of(number), 100)
    assert not ghosts.recall([key_of(2)])


def test_about_as_many_ghosts_are_remembered_as_answers_fit():
    ghosts = Ghosts(4_000_000)
    for number in range(10_000):
        ghosts.remember(key_of(number), 400)
    assert len(ghosts.recall([key_of(number) for number in range(10_000)])) > 6_000


def test_a_sketch_never_counts_too_few_until_it_halves():
    sketch = Sketch()
    for number in range(200):
        for _ in range(1 + number % 8):
            sketch.count(key_of(number), 200)
    assert all(sketch.of(key_of(number)) >= 1 + number % 8 for number in range(200))
    assert sum(sketch.of(key_of(number)) > 1 + number % 8 for number in range(200)) < 10


def test_a_sketch_forgets_who_is_no_longer_asked():
    sketch = Sketch()
    for _ in range(15):
        sketch.count(key_of(0), 100)
    for number in range(1, 60_000):
        sketch.count(key_of(number % 50 + 1), 100)
    assert sketch.of(key_of(0)) <= 1


def test_a_sketch_remembers_while_it_grows():
    sketch = Sketch()
    for _ in range(9):
        sketch.count(key_of(7), 10)
    for number in range(100, 3_000):
        sketch.count(key_of(number), number)
    assert sketch.of(key_of(7)) >= 9


def test_a_queue_of_keys_keeps_their_order_however_many_come_at_a_time():
    random, queue = Random(5), KeyQueue()
    expected: list[bytes] = []
    for number in range(400):
        keys = [key_of(1_000 * number + each) for each in range(random.choice([0, 1, 1, 3, 200, 700]))]
        queue.extend(keys)
        expected += keys
        for _ in range(min(len(expected), random.choice([0, 1, 5, 300]))):
            assert queue.popleft() == expected.pop(0)
        assert bool(queue) == bool(expected)
    while expected:
        assert queue.popleft() == expected.pop(0)
    with pytest.raises(IndexError):
        queue.popleft()
