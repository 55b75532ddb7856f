"""`make bench-scale`, short: what it replays is what was recorded, and its bounds are bounds."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale import Recorded, machines, scan
from tests.benchmarks.scale_training import Replay, replay

RECORDED = Recorded.of({"1": [0.002, 0.002], "64": [0.033, 0.034, 0.032]})
TRIALS = [{"scores": [0.5, 0.6, 0.7], "took_s": [1.0, 2.0, 3.0]}, {"scores": [0.4], "took_s": [5.0]}]


def test_batches_take_the_medians_that_were_recorded_and_what_lies_between():
    assert RECORDED(1) == pytest.approx(0.002)
    assert RECORDED(64) == pytest.approx(0.033)
    assert RECORDED(32) == pytest.approx(0.002 + 0.031 * 31 / 63)


def test_four_devices_are_on_a_node_and_the_first_node_is_near():
    devices, nodes = machines(9, 1e9)
    assert [device.node for device in devices] == ["n0"] * 4 + ["n1"] * 4 + ["n2"]
    assert [node.is_far for node in nodes] == [False, True, True]


def test_two_devices_answer_twice_the_rows_of_one():
    one, two = (scan(RECORDED, devices, 1000, 1e9, 1.0).total for devices in (1, 2))
    rates = [result.bulk_answered / result.bulk_done_s for result in (one, two)]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.1)


def test_no_replay_is_quicker_than_its_parts_handed_out_at_once():
    done = replay("study", TRIALS, 2, epochs=24)
    assert (done.epochs, len(done.parts_s)) == (24, 2)
    assert sum(done.parts_s) == pytest.approx(4 * 6.0 + 12 * 5.0)
    assert done.fifo_s == pytest.approx(60.0)
    assert 0.9 < done.of_bound <= 1.0


def test_the_fifo_bound_gives_each_part_to_the_first_worker_that_is_free():
    assert Replay("study", 2, parts_s=[3.0, 1.0, 1.0, 2.0]).fifo_s == pytest.approx(4.0)
