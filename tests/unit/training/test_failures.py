"""Trials that fail: what the study learns of them, what it does next, and what it says in the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optuna.storages import InMemoryStorage

from server.training.studies.advisors import advise
from server.training.studies.branch import BRANCH
from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import Assignment, NoWorkYet, StudyOver, StudySpec, Verdict
from server.training.studies.study import Master
from server.training.studies.trial import Trial
from tests.unit.training.simulation import inputs, run, spec_of

POLICIES = ["study", "costudy", "asha", "branch"]


def master_of(policy: str = "study", **fields: Any) -> Master:
    return Master(spec_of(policy, **fields), InMemoryStorage())


def assigned(master: Master, worker: str = "w") -> Assignment:
    given = master.request(worker, 0.0)
    assert isinstance(given, Assignment)
    return given


def fail(master: Master, reason: str, worker: str = "w") -> None:
    master.fail(worker, assigned(master, worker).trial, reason, 0.0)


# ── the same error at the start ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_error_three_times_at_the_start_ends_the_study_with_it(policy: str) -> None:
    master = master_of(policy)
    for pid in (4711, 815, 42):
        fail(master, f"the training process {pid} has no sklearn")
    assert master.request("w", 0.0) == StudyOver(
        "the same error 3 times: the training process 42 has no sklearn", failed=True
    )
    assert master.progress().epochs_used == 3


def test_a_study_is_not_ended_by_one_error_while_another_worker_may_still_bring_a_score() -> None:
    master = master_of()
    given = assigned(master, "slow")
    for _ in range(3):
        fail(master, "no sklearn")
    assert master.request("w", 0.0) == NoWorkYet()
    master.report("slow", given.trial, 1, 0.5, 0.0)
    assert isinstance(master.request("w", 0.0), Assignment)


def test_different_errors_and_errors_after_a_score_end_no_study() -> None:
    master = master_of(budget_epochs=200)
    for reason in ("no sklearn", "no memory", "no sklearn"):
        fail(master, reason)
    assert assigned(master).trial == 1
    master = master_of(budget_epochs=200)
    given = assigned(master, "other")
    master.report("other", given.trial, 1, 0.5, 0.0)
    for _ in range(6):
        fail(master, "no sklearn")
    assert assigned(master).trial == 3


def test_workers_that_went_by_no_fault_of_the_trial_are_no_errors_and_no_attempts() -> None:
    master = master_of(max_attempts=2, budget_epochs=50)
    first = assigned(master)
    for _ in range(5):
        master.lose("w", first.trial, "the server stopped")
        again = assigned(master)
        assert (inputs(again), again.attempt) == (inputs(first), 1)
    assert master.progress().epochs_used == 5, "an epoch that was begun is charged"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_whose_lost_epoch_was_the_last_of_the_budget_ends_with_what_it_has_stored(
    policy: str,
) -> None:
    storage = InMemoryStorage()
    spec = spec_of(policy, budget_epochs=4, max_epochs=2)
    master = Master(spec, storage)
    given = assigned(master)
    master.report("w", given.trial, 1, 0.5, 0.0)
    master.stored("w", given.trial, 1, 0.5, "weights")
    for worker, next_worker in (("w", "x"), ("x", "y"), ("y", "z")):
        master.lose(worker, given.trial, "the server stopped")
        assert [trial.state for trial in master.trials()] == ["waiting"]
        master = Master(spec, storage)  # the next server's
        over = master.request(next_worker, 0.0)
    assert over == StudyOver("the budget of epochs is used up")
    assert [(trial.state, trial.best_score, trial.charged) for trial in master.trials()] == [
        ("finished", 0.5, 4)
    ]
    assert [trial.reason for trial in master.trials()] == [f"the server stopped; {over.reason}"]
    assert master.progress().best_checkpoint == "weights"


def test_a_study_that_an_error_ended_is_tried_again_once_somebody_says_so() -> None:
    master = master_of()
    for _ in range(3):
        fail(master, "no sklearn")
    assert isinstance(master.request("w", 0.0), StudyOver)
    master.forgive()
    assert isinstance(master.request("w", 0.0), Assignment)


# ── numbers that are none ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_trial_however_good_its_score(policy: str, loss: float) -> None:
    master = master_of(policy)
    given = assigned(master)
    assert master.report("w", given.trial, 1, 0.9, 0.0, loss) is Verdict.DROP
    (trial,) = master.trials()
    assert (trial.state, trial.reason, trial.charged) == ("failed", f"its loss in epoch 1 is {loss}", 1)
    assert assigned(master).trial == 1


def test_the_loss_of_the_last_epoch_is_shown() -> None:
    master = master_of()
    given = assigned(master)
    for epoch, loss in enumerate((2.0, 1.5), 1):
        master.report("w", given.trial, epoch, 0.5, 0.0, loss)
    assert master.progress().trials[0].loss == 1.5


# ── what advisors hear ────────────────────────────────────────────────────────────────────────────


def line(kind: str = "x") -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob(kind, "float", 0.0, 1.0)
    return space


def test_a_grid_never_tries_a_cell_again_that_failed() -> None:
    master = Master(
        StudySpec("s", line(), policy="study", advisor="grid", grid_points=4, budget_epochs=99, max_epochs=1),
        InMemoryStorage(),
    )
    given = assigned(master, "steady")
    master.report("steady", given.trial, 1, 0.5, 0.0)
    master.finish("steady", given.trial, 0.5, 0.0, "weights")
    while isinstance(other := master.request("w", 0.0), Assignment):
        master.report("w", other.trial, 1, math.nan, 0.0)
    tried = [trial.draws["x"] for trial in master.trials()]
    assert len(tried) == len(set(tried)) == 4


@pytest.mark.parametrize("advisor", ["gp", "tpe"])
def test_advisors_that_learn_keep_away_from_where_trials_failed(advisor: Any) -> None:
    spec = StudySpec("s", line(), advisor=advisor)
    random = np.random.default_rng(0)
    trials: list[Trial] = []
    for number, x in enumerate(random.uniform(0, 1, 24)):
        # The better half fails: it has no score to praise it, and is not to be tried as if unknown.
        state: Any = "failed" if x > 0.5 else "finished"
        scores = () if x > 0.5 else (0.5 + 0.2 * float(x),)
        trials.append(Trial(number, {"x": float(x)}, {"x": float(x)}, 0, "", state, scores=scores))
    found = []
    for _ in range(20):
        point = advise(spec, trials, warm=False)
        assert point is not None
        found.append(float(point[0]["x"]))
        trials.append(Trial(len(trials), *point, 0, "", "failed" if found[-1] > 0.5 else "finished"))
        if found[-1] <= 0.5:
            trials[-1] = Trial(len(trials) - 1, *point, 0, "", "finished", scores=(0.5 + 0.2 * found[-1],))
    assert sum(x > 0.55 for x in found) <= 6


@pytest.mark.parametrize("advisor", ["gp", "tpe"])
def test_branch_compares_cold_trials_after_the_same_number_of_epochs(advisor: Any) -> None:
    spec = StudySpec("s", line(), policy="branch", advisor=advisor, budget_epochs=1000)

    def proposed(later: float) -> Any:
        """What is tried next, where those that rose to 27 epochs ended at `later`."""
        trials = []
        for number in range(15):
            x = number / 15
            risen = number < 4
            scores = (0.5 + x / 10,) + ((later,) * 26 if risen else ())
            state: Any = "finished" if risen else "paused"
            trials.append(Trial(number, {"x": x}, {"x": x}, 0, "", state, scores=scores))
        return advise(spec, trials, warm=False, after_epochs=1)

    assert proposed(0.1) == proposed(0.99)
    heard = {}
    for later in (0.1, 0.99):
        trials = []
        for number in range(12):
            x = number / 12
            scores = (0.5 + x / 10, *((later,) * 26 if number < 1 else ()))
            state: Any = "finished" if number < 1 else "failed"
            trials.append(Trial(number, {"x": x}, {"x": x}, 0, "", state, scores=scores))
        heard[later] = BRANCH.propose(spec, trials)
    assert heard[0.1] == heard[0.99], "after one epoch, for fewer than ten have reached more"


# ── a trial that is given back ────────────────────────────────────────────────────────────────────


def test_a_trial_that_begins_again_gives_its_charge_back_and_ends_as_if_nothing_had_been() -> None:
    steady, paused = master_of(budget_epochs=30), master_of(budget_epochs=30)
    run(steady)
    given = assigned(paused)
    for epoch in (1, 2, 3):
        paused.report("w", given.trial, epoch, 0.1, 0.0)
    paused.release("w", given.trial, "the job was paused")
    assert paused.progress().epochs_used == 0
    run(paused)
    assert paused.progress().epochs_used == 30
    assert [trial.scores for trial in paused.trials()] == [trial.scores for trial in steady.trials()]


# ── knobs of branches ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("explore", [0.0, 1.0])
def test_an_integer_that_a_branch_may_only_lower_stays_an_integer(explore: float) -> None:
    space = HyperSpace()
    space.add_range_knob("batch_rows", "integer", 1, 200, log=True, branching="lower")
    space.add_range_knob("layers", "integer", 1, 9, branching="lower")
    space.add_range_knob("dropout", "float", 0.0, 0.9)
    master = Master(
        StudySpec("s", space, policy="branch", budget_epochs=300, explore=explore), InMemoryStorage()
    )
    run(master)
    branches = [trial for trial in master.trials() if trial.warm]
    assert len(branches) > 5
    for trial in branches:
        assert type(trial.knobs["batch_rows"]) is int
        assert type(trial.knobs["layers"]) is int
        parent = master.trials()[trial.origin_trial or 0]
        assert float(trial.knobs["batch_rows"]) <= float(parent.knobs["batch_rows"])


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_costudys_share_of_cold_starts_falls_with_every_trial_that_ends(ends: str) -> None:
    cold = {}
    for ended in (0, 30):
        starts = 0
        for seed in range(40):
            spec = spec_of("costudy", alpha_decay=0.8, alpha_least=0.0, seed=seed, budget_epochs=10_000)
            master = Master(spec, InMemoryStorage())
            given = assigned(master)
            master.report("w", given.trial, 1, 0.5, 0.0)
            master.stored("w", given.trial, 1, 0.5, "first")
            for number in range(ended):
                worker = f"w{number}"
                other = assigned(master, worker)
                if ends == "badly":
                    master.report(worker, other.trial, 1, math.nan, 0.0)
                else:
                    master.finish(worker, other.trial, 0.1, 0.0, None)
            last = assigned(master, "last")
            starts += last.parent is None
        cold[ended] = starts / 40
    assert cold[0] == 1.0, "nothing has ended: α is 1"
    assert cold[30] <= 0.1, "0.8 to the power of 30"
