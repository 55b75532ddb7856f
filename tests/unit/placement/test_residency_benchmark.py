"""`make bench-residency`: the cells are what they are said to be, and the optimum is one."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tests.benchmarks import residency_rafiqi as rafiqi
from tests.benchmarks.residency_cells import ABLATIONS, BOUND, CONTENDERS, OURS, drawn_cell, run
from tests.benchmarks.residency_online import online_bounds

_ONE_RUN = 1 / rafiqi.LATENCY(1)


def test_a_cell_is_the_same_each_time_and_another_in_the_other_set() -> None:
    assert drawn_cell("report", 3, True) == drawn_cell("report", 3, True)
    assert drawn_cell("report", 3, True) != drawn_cell("tune", 3, True)


def test_cells_are_within_what_is_said_of_them() -> None:
    for several in (False, True):
        for cell in (drawn_cell("report", number, several) for number in range(60)):
            assert (cell.devices > 1) == several
            assert cell.devices <= 8
            assert 5 <= cell.models <= 1000
            assert 0.01 <= cell.load_s <= 0.4
            assert 0.3 <= cell.load <= 1.1
            assert cell.batch_s <= 0.2 * cell.goal_s + 1e-9, "a batch may take a fifth of the goal"


def test_every_contender_gets_the_same_rows() -> None:
    cell = replace(drawn_cell("tune", 3, False), seconds=1.0)
    chosen = [one for one in CONTENDERS if one.name in (BOUND, "clockwork", "gdsf")]
    outcomes = [run(cell, one) for one in chosen]
    assert len({outcome["offered"] for outcome in outcomes}) == 1
    for outcome in outcomes:
        assert sum(outcome["lost"]) == round(outcome["offered"] * (1 - outcome["goodput"]))


def test_a_contender_reaches_the_process_that_runs_it() -> None:
    for one in (*CONTENDERS, *ABLATIONS):
        assert pickle.loads(pickle.dumps(one)) is one


def test_the_optimum_of_one_client_in_sequence_is_half_of_what_runs_without_swaps() -> None:
    assert rafiqi.optimum(rafiqi.order("sequential", 400)) == pytest.approx(0.5 * _ONE_RUN, rel=0.02)


def test_the_optimum_is_above_what_any_rule_does_and_below_no_swaps() -> None:
    rows = 60
    best = rafiqi.optimum(rafiqi.order("Zipf 1.1", rows))
    lru = next(one for one in CONTENDERS if one.name == "lru, overlapped")
    assert rafiqi.throughput(lru, "Zipf 1.1", 1, rows) < best <= _ONE_RUN + 1e-9


def test_who_does_not_know_what_comes_answers_four_of_five_rows_of_one_client_without_a_load() -> None:
    low, high = online_bounds("uniform", 1)
    expected = 1 / (rafiqi.LATENCY(1) + rafiqi.SWAP_S / 5)
    assert low <= expected + 1e-6
    assert high == pytest.approx(expected, rel=1e-4)


def test_five_models_in_four_places_give_rafiqis_fifth_of_the_throughput_in_sequence() -> None:
    published = next(one for one in CONTENDERS if one.loads_block)
    share = rafiqi.throughput(published, "sequential", 1, 60) / _ONE_RUN
    assert share == pytest.approx(0.2, abs=0.02)


def test_a_load_is_not_begun_and_given_up_without_end() -> None:
    cell = replace(drawn_cell("report", 3, True), seconds=1.1)
    ours = next(one for one in CONTENDERS if one.name == OURS)
    assert run(cell, ours)["goodput"] > 0.5
