"""The tuning benchmark measures what ships, and a seed is one pair of its tests."""

from __future__ import annotations

from dataclasses import fields

import pytest

from server.training.jobs.spec import JobSpec
from tests.benchmarks.tuning import CONTENDERS, Results, _compared
from tests.benchmarks.tuning_run import Outcome, run_study, shipped, study_of
from tests.benchmarks.tuning_task import tasks


@pytest.mark.parametrize("contender", CONTENDERS)
def test_a_contender_differs_from_what_ships_by_its_rule_alone(contender: str) -> None:
    (ships,) = JobSpec("d", models=("vgg",)).studies(1, "").values()
    ours = study_of("name", contender, 0, shipped().budget_epochs)
    differs = {item.name for item in fields(ships) if getattr(ships, item.name) != getattr(ours, item.name)}
    assert differs <= {"name", "space", "policy", "advisor", "cold_share"}
    if contender == "branch random":
        assert differs <= {"name", "space"}
    assert ours.space.default_point() is not None, "its first trial is the known-good one"


@pytest.mark.parametrize(
    "contender", ["study+ensemble random", "costudy tpe", "asha random", "branch random"]
)
def test_a_study_of_the_benchmark_trains_its_budget(contender: str) -> None:
    (digits, *_) = tasks(0)
    outcome = run_study(digits, contender, 0, 40)
    assert len(outcome.best) == 40
    assert outcome.deployed > 0.5


def test_the_tests_of_all_tasks_have_one_pair_a_seed() -> None:
    def outcome(contender: str, task: str, seed: int, test: float) -> Outcome:
        return Outcome(task, contender, seed, test, test, 1, 1, 1)

    # On one task it wins by far, on the other it loses by less: one gain a seed, not one win and one loss.
    results: Results = {}
    for seed in range(8):
        for task, gain in (("easy", 0.2), ("hard", -0.1)):
            results.setdefault(("branch random", task), []).append(
                outcome("branch random", task, seed, 0.5 + gain)
            )
            results.setdefault(("study random", task), []).append(outcome("study random", task, seed, 0.5))
    compared = _compared(results, "study random", ["easy", "hard"], "deployed")
    assert (compared["won"], compared["lost"]) == (8, 0)
    assert compared["gain_points"] == pytest.approx(5.0)
