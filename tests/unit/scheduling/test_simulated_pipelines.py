"""Pipelines in the simulator: every call is answered once, and what it takes follows from its stages."""

from __future__ import annotations

from random import Random

import pytest

from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.pipelines import PipelineLoad, SimulatedStage, simulate_pipeline
from server.scheduling.splitting import SPLITS

DETECT = SimulatedStage("detect", lambda rows: 0.01 * rows, 8, lambda random: 3)
CLASSIFY = SimulatedStage("classify", lambda rows: 0.004 + 0.002 * rows, 64)


@pytest.mark.parametrize("split", SPLITS)
def test_a_call_alone_takes_what_its_stages_take(split: str) -> None:
    found = simulate_pipeline(PipelineLoad((DETECT, CLASSIFY), [0.0, 10.0], 0.2, split))
    assert found.latencies_s == pytest.approx([0.02, 0.02], abs=1e-3)
    assert found.in_goal == 1.0
    assert found.busy_s == pytest.approx(0.04, abs=1e-3)


def test_every_call_is_answered_once_even_one_without_things() -> None:
    fan_out = SimulatedStage("detect", DETECT.latency_s, 8, lambda random: random.choice((0, 0, 7)))
    arrivals = poisson(Random(5), 40.0, 5.0)
    load = PipelineLoad((fan_out, CLASSIFY), arrivals, 0.3, "none", devices=2, jitter=0.2, seed=5)
    found = simulate_pipeline(load)
    assert len(found.latencies_s) == len(arrivals)
    assert simulate_pipeline(load).latencies_s == found.latencies_s  # to the byte


def test_more_devices_keep_the_goal_that_one_cannot() -> None:
    arrivals = poisson(Random(3), 60.0, 5.0)
    one, two = (
        simulate_pipeline(PipelineLoad((DETECT, CLASSIFY), arrivals, 0.1, "none", devices=devices))
        for devices in (1, 2)
    )
    assert one.in_goal < two.in_goal
    assert one.quantile_s(0.5) > two.quantile_s(0.5)
