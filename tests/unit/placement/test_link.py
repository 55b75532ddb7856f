"""What loads take is learned: a fixed part and a rate for each kind of device, and of each model its own."""

from __future__ import annotations

import pytest

from server.placement.link import Link, LinkPlace, LoadTimes

MB = 1 << 20
GPU, CPU = LinkPlace("gpu"), LinkPlace("cpu")


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
    assert 0.0 < LoadTimes().expected_s("a", CPU, 100 * MB) < 0.5


def test_a_model_that_was_loaded_there_takes_its_own_time_elsewhere_the_devices() -> None:
    times = LoadTimes()
    times.observe("slow", GPU, MB, 2.0)
    times.observe("quick", GPU, MB, 0.1)
    assert times.expected_s("slow", GPU, MB) == pytest.approx(2.0)
    assert times.expected_s("quick", GPU, MB) == pytest.approx(0.1)
    assert 0.1 < times.expected_s("other", GPU, MB) < 2.0
    assert times.expected_s("slow", CPU, MB) < 0.1, "nothing is known of that device"


def on(node: str, *, near: bool = False) -> LinkPlace:
    return LinkPlace("gpu", node, near)


def test_each_node_has_a_link_of_its_own() -> None:
    times = LoadTimes()
    for size in (10 * MB, 100 * MB):
        times.observe(f"m{size}", on("a"), size, size / (1000 * MB))
        times.observe(f"m{size}", on("b"), size, size / (100 * MB))
    assert times.expected_s("new", on("a"), 50 * MB) == pytest.approx(0.05)
    assert times.expected_s("new", on("b"), 50 * MB) == pytest.approx(0.5)
    assert times.bytes_per_s(on("b")) == pytest.approx(100 * MB)
    assert times.bytes_per_s(on("c")) is None


def test_a_node_that_is_new_is_as_others_are_until_its_first_load_says_how_much_slower_it_is() -> None:
    times = LoadTimes()
    for size in (10 * MB, 100 * MB):
        times.observe(f"m{size}", on("a"), size, 0.02 + size / (1000 * MB))
    assert times.expected_s("new", on("b"), 50 * MB) == pytest.approx(0.07)
    assert times.expected_s(f"m{10 * MB}", on("b"), 10 * MB) == pytest.approx(0.03), "what it took elsewhere"
    times.observe("first", on("b"), 80 * MB, 1.0)  # ten times as long as on the other
    assert times.expected_s("new", on("b"), 50 * MB) > 5 * times.expected_s("new", on("a"), 50 * MB)


def test_what_a_node_has_already_takes_what_such_loads_took_and_never_more_than_bringing_it() -> None:
    times = LoadTimes()
    times.observe("m", on("a"), 100 * MB, 2.0)
    assert times.expected_s("m", on("a", near=True), 100 * MB) == pytest.approx(2.0), "nothing is known yet"
    times.observe("m", on("a", near=True), 100 * MB, 0.1)
    assert times.expected_s("m", on("a"), 100 * MB) == pytest.approx(2.0)
    assert times.expected_s("m", on("a", near=True), 100 * MB) == pytest.approx(0.1)
    times.observe("m", on("b"), 100 * MB, 0.05)
    assert times.expected_s("m", on("b", near=True), 100 * MB) == pytest.approx(0.05)


def test_links_of_nodes_that_came_and_went_are_forgotten_and_those_of_kinds_are_not() -> None:
    times = LoadTimes()
    times.observe("m", GPU, MB, 1.0)
    for number in range(1000):
        times.observe("m", on(f"n{number}"), MB, 1.0)
    assert times.bytes_per_s(on("n0")) is None
    assert times.bytes_per_s(on("n999")) == pytest.approx(MB)
    assert times.bytes_per_s(GPU) == pytest.approx(MB)
