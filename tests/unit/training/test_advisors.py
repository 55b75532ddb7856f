"""Advisors: what is tried next, given what was seen."""

from __future__ import annotations

import sys
from subprocess import run
from typing import Any

import numpy as np
import pytest

from server.training.studies.advisors import advise
from server.training.studies.gaussian_process import expected_improvement, fit
from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import StudySpec
from server.training.studies.trial import Trial


def bowl() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("x", "float", 0.0, 1.0)
    space.add_range_knob("y", "float", 1e-4, 1.0, log=True)
    space.add_categorical_knob("kind", "string", ["good", "bad"])
    space.add_range_knob(
        "z", "float", 0, 1, pre_hook={"hook": "only_when", "knob": "kind", "values": ["good"]}
    )
    return space


def height(knobs: Any) -> float:
    flat = 0.0 if knobs["kind"] == "bad" else 0.3
    return float(1.0 - (knobs["x"] - 0.7) ** 2 - (np.log10(knobs["y"]) + 2) ** 2 / 8 + flat)


def tuned(advisor: Any, count: int, seed: int = 0) -> list[Trial]:
    spec = StudySpec("s", bowl(), advisor=advisor, seed=seed)
    trials: list[Trial] = []
    for number in range(count):
        point = advise(spec, trials, warm=False)
        assert point is not None
        draws, knobs = point
        score = height(knobs)
        trials.append(Trial(number, draws, knobs, 0, "", "finished", scores=(score,)))
    return trials


@pytest.mark.parametrize("advisor", ["gp", "tpe"])
def test_advisors_that_learn_find_better_points_than_chance(advisor):
    def reached(which: str) -> float:
        late = [trial.scores[-1] for seed in range(2) for trial in tuned(which, 40, seed)[-15:]]
        return sum(late) / len(late)

    assert reached(advisor) > reached("random") + 0.08


def test_a_grid_visits_each_cell_once_and_then_ends():
    space = HyperSpace()
    space.add_range_knob("layers", "integer", 1, 4)
    space.add_range_knob("rate", "float", 0.01, 1.0, log=True)
    space.add_categorical_knob("kernel", "string", ["a", "b"])
    spec = StudySpec("s", space, advisor="grid", grid_points=4)
    trials: list[Trial] = []
    while (point := advise(spec, trials, warm=False)) is not None:
        trials.append(Trial(len(trials), *point, 0, "", "finished", scores=(0.5,)))
    cells = {tuple(trial.knobs.values()) for trial in trials}
    assert len(trials) == len(cells) == 3 * 4 * 2
    halves = [trial.knobs["kernel"] for trial in trials[:12]]
    assert 2 < halves.count("a") < 10  # an early end has seen all sides


def test_a_grid_over_a_conditional_knob_repeats_no_point():
    spec = StudySpec("s", bowl(), advisor="grid", grid_points=2)
    trials: list[Trial] = []
    while (point := advise(spec, trials, warm=False)) is not None:
        trials.append(Trial(len(trials), *point, 0, "", "finished", scores=(0.5,)))
    assert len(trials) == 4 * 2 + 4  # x, y and z of the good kind; x and y of the bad


@pytest.mark.parametrize("advisor", ["gp", "tpe"])
def test_running_trials_keep_workers_apart(advisor):
    spec = StudySpec("s", bowl(), advisor=advisor)
    trials = tuned(advisor, 15)
    for number in range(15, 20):
        point = advise(spec, trials, warm=False)
        assert point is not None
        trials.append(Trial(number, *point, 0, "", "running"))
    assert len({trial.knobs["x"] for trial in trials[15:]}) == 5


def test_warm_scores_do_not_move_the_advice_for_cold_trials():
    spec = StudySpec("s", bowl(), advisor="gp")
    cold = tuned("gp", 12)
    points = []
    for score in (0.0, 1e6):
        warm = Trial(12, cold[0].draws, cold[0].knobs, 0, "", "finished", origin="c", scores=(score,))
        points.append(advise(spec, [*cold, warm], warm=False))
    assert points[0] == points[1]


def test_a_gaussian_process_agrees_with_what_it_saw_and_doubts_what_it_did_not():
    random = np.random.default_rng(0)
    points = random.random((25, 1)) * 0.5
    process = fit(points, np.sin(6 * points[:, 0]), random)
    seen, doubt = process.predict(np.array([[0.25]]))
    assert seen[0] == pytest.approx(np.sin(1.5), abs=0.1)
    _, far = process.predict(np.array([[1.0]]))
    assert far[0] > 3 * doubt[0]
    gains = expected_improvement(process, np.array([[0.25], [0.0]]), best=1.0)
    assert gains[0] > gains[1] >= 0


def test_equal_scores_leave_the_gaussian_process_sound():
    random = np.random.default_rng(0)
    mean, deviation = fit(np.zeros((5, 2)), np.full(5, 0.5), random).predict(np.ones((1, 2)))
    assert mean[0] == pytest.approx(0.5)
    assert np.isfinite(deviation).all()


def test_the_study_side_loads_no_torch():
    modules = "server.training.studies.study, server.training.promotion.selection"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
