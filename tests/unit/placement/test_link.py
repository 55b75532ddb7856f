"""What loads take is learned: a fixed part and a rate for each kind of device, and of each model its own."""

from __future__ import annotations

import pytest

from server.placement.link import Link, LoadTimes

MB = 1 << 20


def test_the_fixed_part_and_the_rate_are_found_from_loads_of_several_sizes() -> None:
    link = Link()
    for size in (1 * MB, 50 * MB, 200 * MB):
        link.observe(size, 0.030 + size / (2000 * MB))
    fixed_s, per_byte_s = link.line()
    assert fixed_s == pytest.approx(0.030)
    assert 1 / per_byte_s == pytest.approx(2000 * MB)
    assert link.expected_s(100 * MB) == pytest.approx(0.080)


def test_a_link_that_becomes_slower_is_followed() -> None:
    link = Link()
    for _ in range(20):
        for size in (10 * MB, 100 * MB):
            link.observe(size, size / (1000 * MB))
    for _ in range(20):
        for size in (10 * MB, 100 * MB):
            link.observe(size, size / (100 * MB))
    assert link.expected_s(100 * MB) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1024, 1024, 1024)])
def test_loads_of_one_size_take_what_they_took(sizes: tuple[int, ...]) -> None:
    link = Link()
    for size in sizes:
        link.observe(size, 0.09)
    assert link.expected_s(sizes[0]) == pytest.approx(0.09)


def test_no_load_is_expected_to_take_less_than_no_time() -> None:
    link = Link()
    link.observe(100 * MB, 0.001)
    link.observe(200 * MB, 1.0)
    link.observe(10 * MB, 1.5)
    assert all(link.expected_s(size) >= 0.0 for size in (0, MB, 10 * MB, 1000 * MB))


def test_before_the_first_load_a_guess_is_hopeful_and_finite() -> None:
    assert 0.0 < LoadTimes().expected_s("a", "cpu", 100 * MB) < 0.5


def test_a_model_that_was_loaded_there_takes_its_own_time_elsewhere_the_devices() -> None:
    times = LoadTimes()
    times.observe("slow", "gpu", MB, 2.0)
    times.observe("quick", "gpu", MB, 0.1)
    assert times.expected_s("slow", "gpu", MB) == pytest.approx(2.0)
    assert times.expected_s("quick", "gpu", MB) == pytest.approx(0.1)
    assert 0.1 < times.expected_s("other", "gpu", MB) < 2.0
    assert times.expected_s("slow", "cpu", MB) < 0.1, "nothing is known of that device"
