"""Plans are fitted anew where costs have moved, and left alone where they only sway."""

from __future__ import annotations

from random import Random

import pytest

from server.ensemble.costs import CostWatch
from server.scheduling.latency_model import LatencyModel

LOOKS = 600  # half an hour


def looks(noise: float, seed: int, slower: float = 1.0) -> list[bool]:
    """Of a server whose batches take what they take, but for noise; from half the time on `slower`."""
    draw = Random(seed)
    model = LatencyModel({1: 0.002, 16: 0.01})

    def costs() -> list[float]:
        return [(model(16) - model(1)) / 15]

    watch, moved = CostWatch(costs()), []
    for look in range(LOOKS):
        for _ in range(10):
            rows = draw.choice([1, 4, 16])
            took_s = (0.002 + 0.008 * (rows - 1) / 15) * draw.lognormvariate(0, noise)
            model.observe(rows, took_s * (slower if look >= LOOKS / 2 else 1.0))
        moved.append(watch.has_moved(costs()))
        if moved[-1]:
            watch.fitted()
    return moved


@pytest.mark.parametrize("seed", range(4))
def test_a_steady_server_keeps_its_plans(seed):
    assert sum(looks(0.1, seed)) <= 1
    assert sum(looks(0.3, seed)) <= LOOKS / 20


@pytest.mark.parametrize("slower", [0.5, 1.4, 3.0])
def test_a_device_that_is_slower_to_stay_is_followed_within_a_few_looks(slower):
    moved = looks(0.1, 1, slower)
    assert any(moved[LOOKS // 2 : LOOKS // 2 + 5])
    assert sum(moved) <= 4


def test_one_look_alone_moves_nothing_unless_costs_were_guessed():
    watch = CostWatch([1.0, 1.0])
    assert not watch.has_moved([1.0, 1.5])
    assert not watch.has_moved([1.0, 1.0])
    assert not watch.has_moved([1.0, 0.5]), "to the other side"
    assert watch.has_moved([1.0, 1.5], at_once=True)


def test_a_move_that_stays_is_seen_after_a_few_looks():
    watch = CostWatch([1.0, 1.0])
    assert not watch.has_moved([1.0, 1.5])
    assert any(watch.has_moved([1.0, 1.5]) for _ in range(4))
    assert watch.costs_s[0] == 1.0
    assert 1.2 < watch.costs_s[1] < 1.5
    watch.fitted()
    assert not watch.has_moved([1.0, 1.5])
