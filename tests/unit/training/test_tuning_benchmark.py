"""The tuning benchmark measures what ships, and a seed is one pair of its tests."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from server.training.jobs.spec import JobSpec
from tests.benchmarks import tuning_run
from tests.benchmarks.journal import Journal
from tests.benchmarks.tuning import CONTENDERS, Results, _compared, _key, _results
from tests.benchmarks.tuning_run import OPTUNA, Outcome, run_study, study_of
from tests.benchmarks.tuning_task import tasks


@pytest.mark.parametrize("contender", [each for each in CONTENDERS if each != OPTUNA])
def test_a_contender_differs_from_what_ships_by_its_rule_and_by_the_unit_of_its_budget(
    contender: str,
) -> None:
    (ships,) = JobSpec("d", models=("vgg",)).studies(1, "").values()
    ours = study_of("name", contender, 0, 100)
    differs = {item.name for item in fields(ships) if getattr(ships, item.name) != getattr(ours, item.name)}
    unit = {"budget_epochs", "budget_s", "stale_trials"}
    assert differs <= {"name", "space", "policy", "advisor", "cold_share"} | unit
    assert ours.space.default_point() is not None, "its first trial is the known-good one"


@pytest.mark.parametrize("contender", ["study random", "costudy tpe", "asha random", "branch random", OPTUNA])
def test_a_study_of_the_benchmark_trains_its_budget_and_can_be_run_again(contender: str) -> None:
    (digits, *_) = tasks(0)
    outcome = run_study(digits, contender, 0, 40)
    assert len(outcome.anytime) == outcome.epochs == 40
    assert outcome.anytime[-1] > 0.5
    assert outcome.ensemble > 0.5
    again = run_study(digits, contender, 0, 40)
    assert outcome.as_json() | {"took_s": 0} == again.as_json() | {"took_s": 0}


def outcome_of(contender: str, task: str, seed: int, right: float) -> Outcome:
    return Outcome(task, contender, 10, seed, right, right, 1, right, 10, 1, 1, [(1, right, right)])


def test_the_tests_of_all_tasks_have_one_pair_a_seed() -> None:
    # On one task it wins by far, on the other it loses by less: one gain a seed, not one win and one loss.
    results: Results = {}
    for seed in range(8):
        for task, gain in (("easy", 0.2), ("hard", -0.1)):
            for contender, right in (("asha random", 0.5 + gain), ("study random", 0.5)):
                told = outcome_of(contender, task, seed, right)
                results.setdefault((contender, task), []).append(told)
    for measure in ("ensemble", "best", "over_time", "stopped"):
        compared = _compared(results, "study random", ["easy", "hard"], measure)
        assert (compared["won"], compared["lost"]) == (8, 0)
        assert compared["gain_points"] == pytest.approx(5.0)


def test_a_run_that_was_cut_off_goes_on_and_tells_of_whole_seeds_alone(tmp_path: Path) -> None:
    jobs = [(10, "digits", seed, contender) for seed in (1, 2) for contender in ("asha random", OPTUNA)]
    journal = Journal("tuning", tuning_run, tmp_path, ("training/studies",))
    done = [(_key(job), outcome_of(job[3], job[1], job[2], 0.5).as_json()) for job in jobs[:3]]
    list(journal.keep(iter(done)))
    again = Journal("tuning", tuning_run, tmp_path, ("training/studies",))
    assert [job for job in jobs if _key(job) not in again.known] == jobs[3:]
    results = _results(jobs, again.known)
    assert {key: [each.seed for each in side] for key, side in results.items()} == {
        ("asha random", "digits"): [1],
        (OPTUNA, "digits"): [1],
    }
