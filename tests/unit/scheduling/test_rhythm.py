"""Whether interactive rows keep coming, by how they came."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from server.scheduling.rhythm import Rhythm
from server.scheduling.simulation.arrivals import poisson


def after(times_s: Sequence[float]) -> Rhythm:
    rhythm = Rhythm()
    for time_s in times_s:
        rhythm.came(time_s)
    return rhythm


def test_a_first_row_says_nothing() -> None:
    assert not Rhythm().keeps_on(0.0)
    assert not after([5.0]).keeps_on(5.001)


def test_a_steady_stream_is_expected_for_twice_its_gap_and_then_has_ended() -> None:
    rhythm = after([0.05 * number for number in range(100)])
    assert rhythm.keeps_on(4.95 + 0.099)
    assert not rhythm.keeps_on(4.95 + 0.101)


def test_poisson_arrivals_are_expected_through_all_but_few_of_their_pauses() -> None:
    times_s = poisson(Random(3), 20.0, 1000.0)
    rhythm = after(times_s[:32])
    missed = 0
    for time_s in times_s[32:]:
        missed += not rhythm.keeps_on(time_s)
        rhythm.came(time_s)
    assert missed / len(times_s) < 0.005


def test_bursts_are_expected_through_the_pauses_between_them() -> None:
    rhythm = Rhythm()
    for burst in range(10):
        for row in range(10):
            now_s = 0.3 * burst + 0.001 * row
            if burst > 1:
                assert rhythm.keeps_on(now_s)
            rhythm.came(now_s)


def test_no_pause_of_more_than_a_second_is_waited_through() -> None:
    rhythm = after([0.0, 0.9])
    assert rhythm.keeps_on(1.89)
    assert not rhythm.keeps_on(1.91)
    rhythm = after([0.0, 0.9, 60.0])
    assert not rhythm.keeps_on(60.01)
