"""A trial's learning rate falls before it ends, and patience does not end it before that."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from gpu_worker.train.spec import TrainSpec
from server.training.jobs.spec import JobSpec
from server.training.studies.messages import Assignment, StudySpec, Verdict
from server.training.studies.study import Master
from server.training.studies.trial import Checkpoint
from tests.unit.training.simulation import run, spec_of

POLICIES = ["study", "costudy", "asha", "branch"]


def cooling(policy: str, **fields: Any) -> StudySpec:
    return spec_of(policy, cool_epochs=5, **fields)


def trained(master: Master, given: Assignment, scores: list[float], worker: str = "w") -> list[Verdict]:
    """Reports the scores; stores what is to be stored."""
    verdicts = []
    for epoch, score in enumerate(scores, given.start_epoch + 1):
        verdicts.append(master.report(worker, given.trial, epoch, score, 0.0))
        if verdicts[-1] in (Verdict.PUT, Verdict.PAUSE):
            master.stored(worker, given.trial, epoch, score, f"{given.trial}/{epoch}")
    return verdicts


def assigned(master: Master, worker: str = "w") -> Assignment:
    given = master.request(worker, 0.0)
    assert isinstance(given, Assignment)
    return given


@pytest.mark.parametrize("policy", ["study", "costudy"])
def test_a_plateau_pauses_a_trial_whose_rate_then_falls_to_its_end(policy: str) -> None:
    master = Master(cooling(policy, patience=2), InMemoryStorage())
    given = assigned(master)
    assert given.cool_from is None
    assert trained(master, given, [0.5, 0.4, 0.4])[-1] is Verdict.PAUSE
    again = assigned(master)
    assert (again.trial, again.start_epoch, again.epochs, again.cool_from) == (0, 3, 5, 3)
    # However its score stays behind: the last epochs of the fall are the best ones.
    *under_way, last = trained(master, again, [0.4, 0.3, 0.3, 0.3, 0.45])
    assert set(under_way) == {Verdict.CONTINUE}
    assert last is Verdict.STOP


@pytest.mark.parametrize("policy", POLICIES)
def test_every_trial_that_ends_by_itself_has_cooled(policy: str) -> None:
    master = Master(cooling(policy, budget_epochs=300), InMemoryStorage())
    run(master, 2)
    assert master.progress().epochs_used == 300
    ended = [trial for trial in master.trials() if trial.state == "finished"]
    # The budget's end cuts off the last ones, one for each worker.
    uncooled = [trial for trial in ended if trial.cool_from is None]
    assert len(ended) > 4
    assert len(uncooled) <= 2
    for trial in ended:
        assert len(trial.scores) <= 27
        if trial.cool_from is not None and trial not in ended[-2:]:
            assert len(trial.scores) == trial.cool_from + 5


def test_the_longest_trial_cools_within_its_longest() -> None:
    master = Master(cooling("study", patience=99), InMemoryStorage())
    given = assigned(master)
    verdicts = trained(master, given, [n / 100 for n in range(1, 23)])
    assert verdicts == [Verdict.CONTINUE] * 21 + [Verdict.PAUSE]
    assert (assigned(master).cool_from, assigned(master).epochs) == (22, 5)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_trials_of_a_study_leave_each_other_the_epochs_that_they_need_to_come_to_their_end(
    workers: int,
) -> None:
    master = Master(cooling("study", budget_epochs=60, patience=99), InMemoryStorage())
    run(master, workers)
    trained = sorted((len(trial.scores), trial.cool_from) for trial in master.trials())
    assert trained == [(6, None), (27, 22), (27, 22)], "three at a time would end after twenty, none cooled"


def test_branches_rungs_compare_trials_whose_rate_has_not_fallen() -> None:
    master = Master(cooling("branch", budget_epochs=400, cold_share=1.0), InMemoryStorage())
    run(master)
    for trial in master.trials():
        if trial.cool_from is not None:
            assert trial.cool_from > 9, "above the rungs"
        elif trial.state == "paused":
            assert len(trial.scores) in (1, 3, 9)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_suspended_while_it_cools_goes_on_along_the_same_fall(policy: str) -> None:
    master = Master(cooling(policy, patience=2, max_epochs=9, eta=9, cold_share=0.0), InMemoryStorage())
    given = assigned(master)
    while given.start_epoch + given.epochs < 9:
        trained(master, given, [0.1])
        given = assigned(master)
    trained(master, given, [0.5, 0.4, 0.4])
    falling = assigned(master)
    trained(master, falling, [0.4, 0.4])
    epochs = falling.start_epoch + 2
    assert master.suspend("w", falling.trial, [Checkpoint(epochs, 0.4, "suspended")], "paused")
    again = assigned(master, "v")
    assert (again.start_epoch, again.epochs, again.cool_from) == (epochs, 3, falling.cool_from)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_is_told_of_a_constant_rate_and_then_of_its_fall(policy: str) -> None:
    spec = JobSpec.from_json({"dataset": "d", "models": ["vgg"], "policy": policy})
    constant = spec.train_spec("vgg", Assignment(0, {}, 5, None, 0, 27))
    falling = spec.train_spec("vgg", Assignment(0, {}, 5, "own", 12, 5, cool_from=12))
    assert constant["schedule"] == "constant"
    assert (falling["schedule"], falling["cool_from"], falling["epochs"]) == ("cool_down", 12, 17)


def test_the_rate_stays_until_the_fall_and_ends_at_zero() -> None:
    spec = TrainSpec("vgg", 17, learning_rate=0.1, schedule="cool_down", cool_from=12)
    rates = [spec.learning_rate_at(epoch / 17) for epoch in range(18)]
    assert rates[:13] == [0.1] * 13
    assert rates[12:] == sorted(rates[12:], reverse=True)
    assert rates[17] == pytest.approx(0.0, abs=1e-12)


def test_tables_have_no_rate_that_falls() -> None:
    spec = JobSpec.from_json({"dataset": "d", "task": "tabular-classification"})
    assert {study.cool_epochs for study in spec.studies(1, "s").values()} == {0}
    assert {study.cool_epochs for study in JobSpec("d").studies(1, "s").values()} == {5}


def test_a_regression_of_texts_has_no_rate_that_falls_and_a_network_of_texts_has() -> None:
    spec = JobSpec.from_json({"dataset": "d", "task": "text-classification"})
    cooling = {model: study.cool_epochs for model, study in spec.studies(1, "s").items()}
    assert cooling == {"tfidf_linear": 0, "fasttext": 5}
