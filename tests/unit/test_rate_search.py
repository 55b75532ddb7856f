"""The search for the highest rate that a server stands, as the comparison of servers uses it."""

from __future__ import annotations

from tests.benchmarks.serving.search import Search


def found(search: Search, stands: float) -> tuple[float, int]:
    tried = 0
    while (rate := search.next_rate()) is not None:
        search = search.told(rate, passed=rate <= stands)
        tried += 1
    return search.stood, tried


def test_the_highest_rate_is_found_to_the_tolerance_from_below_and_from_above():
    for first in (10.0, 5_000.0):
        rate, tried = found(Search(first, tolerance=0.05), 731.0)
        assert 731.0 / 1.05 <= rate <= 731.0
        assert tried < 40


def test_one_failure_is_tried_again_before_it_is_believed():
    search = Search(100.0).told(100.0, passed=False)
    assert search.next_rate() == 100.0
    assert search.told(100.0, passed=True).next_rate() == 200.0


def test_a_server_that_stands_nothing_ends_the_search():
    assert found(Search(100.0), 0.0)[0] == 0.0
