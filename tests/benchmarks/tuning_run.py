"""One study of the tuning benchmark: the real master with what ships, one worker, the trainer of
tuning_task.py, and the choice that a deployment makes.

A budget is one of epochs, as of a job that asks for so many: all of them are trained. A job with the default
budget, one of time, may end sooner, where its score is saturated; so what would have been deployed there
is noted on the way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from optuna.storages import InMemoryStorage

from gpu_worker.tasks.metrics import metric_named
from server.training.jobs.budget import DEFAULT, Budget
from server.training.jobs.saturation import Tried, has_stalled, shows_no_better, stalled_after
from server.training.jobs.spec import JobSpec
from server.training.promotion.deployer import _CANDIDATES, _MARGIN, _candidates
from server.training.promotion.selection import select_ensemble
from server.training.studies.messages import Assignment, StudySpec, Verdict
from server.training.studies.policy import saturated
from server.training.studies.study import Master
from tests.benchmarks.tuning_hyperband import Hyperband
from tests.benchmarks.tuning_task import (
    State,
    Task,
    accuracy,
    begin,
    copy,
    probabilities,
    space,
    train_epoch,
    warm,
)

WORKER = "worker"
MOST_MEMBERS = 8
DEFAULT_EPOCHS = 100  # of a study, in the budget that a job has by default
# What a contender changes of the study that ships, by its name: "branch-late" has its branches for the last
# third of the budget.
POLICIES: dict[str, dict[str, Any]] = {
    "study": {"policy": "study"},
    "costudy": {"policy": "costudy"},
    "asha": {"policy": "asha"},
    "branch": {"policy": "branch"},
    "branch-late": {"policy": "branch", "cold_share": 0.65},
}
OPTUNA = "optuna tpe+hyperband"


@dataclass
class Outcome:
    """One study's result: test accuracies of the checkpoint that is best on validation rows, and of the
    ensemble that a deployment chooses. stopped: that ensemble where the job would have ended for its score,
    after `stopped_after` epochs. steps: the epochs at which the best validation score rose, and what
    validation score and test accuracy the best checkpoint had from then on.
    """

    task: str
    contender: str
    epochs: int
    seed: int
    best: float
    ensemble: float
    members: int
    stopped: float
    stopped_after: int
    trials: int
    above_half: int
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def anytime(self) -> list[float]:
        """Test accuracy of the best checkpoint after each epoch."""
        ends = [epoch for epoch, _, _ in self.steps[1:]] + [self.epochs + 1]
        return [
            test for (begins, _, test), end in zip(self.steps, ends, strict=True) for _ in range(begins, end)
        ]

    @property
    def over_time(self) -> float:
        """Test accuracy of the best checkpoint so far, averaged over the budget: good early counts."""
        return sum(self.anytime) / self.epochs

    def reaches(self, score: float) -> int | None:
        """The epoch at which a checkpoint of at least that validation score came; None = none did."""
        return next((epoch for epoch, reached, _ in self.steps if reached >= score), None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Curve:
    """Counts epochs, so that all contenders share an axis: `Outcome.steps`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.epochs = 0
        self.steps: list[tuple[int, float, float]] = []

    def note(self, state: State, score: float) -> None:
        self.epochs += 1
        if not self.steps or score > self.steps[-1][1]:
            test = accuracy(probabilities(state, self._task.test), self._task.test)
            self.steps.append((self.epochs, score, test))


class Worker:
    """Trains what the master says and keeps checkpoints."""

    def __init__(self, task: Task, master: Master) -> None:
        self._task = task
        self._master = master
        self.curve = Curve(task)
        self.kept: dict[str, State] = {}
        self.stopped: tuple[float, int] | None = None

    def work(self) -> None:
        while True:
            if self.stopped is None and _would_end(self._master, len(self._task.validation.labels)):
                self.stopped = deployed(self._task, self._master, self.kept)[0], self.curve.epochs
            given = self._master.request(WORKER, 0.0)
            if not isinstance(given, Assignment):
                return
            self._train(given)

    def _train(self, given: Assignment) -> None:
        knobs = {name: float(value) for name, value in given.knobs.items()}
        state = self._start(given, knobs)
        best_score, best_state, epoch = -1.0, state, given.start_epoch
        ends = given.start_epoch + given.epochs
        cools = None if given.cool_from is None else (given.cool_from, ends)
        while True:
            epoch += 1
            train_epoch(state, self._task, knobs, epoch, given.seed, cools)
            score = accuracy(probabilities(state, self._task.validation), self._task.validation)
            if score > best_score:
                best_score, best_state = score, copy(state)
            self.curve.note(state, score)
            loss = 0.0 if state.is_finite else float("nan")
            verdict = self._master.report(WORKER, given.trial, epoch, score, 0.0, loss, took_s=1.0)
            if verdict in (Verdict.PUT, Verdict.PAUSE):
                digest = f"{given.trial}/{epoch}"
                if self._master.stored(WORKER, given.trial, epoch, score, digest):
                    self.kept[digest] = copy(state)
            if verdict is Verdict.STOP:
                digest = f"{given.trial}/best"
                self.kept[digest] = best_state
                self._master.finish(WORKER, given.trial, best_score, 0.0, digest)
            if verdict not in (Verdict.CONTINUE, Verdict.PUT):
                return

    def _start(self, given: Assignment, knobs: dict[str, float]) -> State:
        if given.parent is None:
            return begin(self._task, knobs, np.random.default_rng((given.seed, 0)))
        parent = self.kept[given.parent]
        return copy(parent) if given.start_epoch else warm(parent)


def shipped(budget: Budget = DEFAULT) -> StudySpec:
    """The study of one model as a job has it that says nothing, but perhaps for how long."""
    (study,) = JobSpec("benchmark", models=("resnet",), budget_s=budget.seconds).studies(0, "").values()
    return study


def study_of(name: str, contender: str, seed: int, budget_epochs: int) -> StudySpec:
    """What ships, but for the space, the unit of the budget, and for what the contender changes."""
    policy, advisor = contender.split()
    changed = {**POLICIES[policy], "advisor": advisor, "budget_epochs": budget_epochs, "seed": seed}
    return replace(shipped(), name=name, space=space(), budget_s=None, stale_trials=0, **changed)


def run_study(task: Task, contender: str, seed: int, epochs: int) -> Outcome:
    """`contender` is "POLICY ADVISOR", or `OPTUNA`. Everyone has the same budget and longest trial."""
    began_s = time.perf_counter()
    with np.errstate(all="ignore"):  # some knobs make it diverge, and their scores say so
        run = _optuna if contender == OPTUNA else _ours
        outcome = run(task, contender, seed, epochs)
    outcome.took_s = round(time.perf_counter() - began_s, 2)
    return outcome


def _ours(task: Task, contender: str, seed: int, epochs: int) -> Outcome:
    master = Master(study_of(f"{task.name} {contender} {seed}", contender, seed, epochs), InMemoryStorage())
    worker = Worker(task, master)
    worker.work()
    assert worker.curve.epochs == epochs
    progress = master.progress()
    assert progress.best_checkpoint is not None
    ensemble, members = deployed(task, master, worker.kept)
    stopped, stopped_after = worker.stopped or (ensemble, epochs)
    return Outcome(
        task=task.name,
        contender=contender,
        epochs=epochs,
        seed=seed,
        best=_right(task, [worker.kept[progress.best_checkpoint]]),
        ensemble=ensemble,
        members=members,
        stopped=stopped,
        stopped_after=stopped_after,
        trials=len(progress.trials),
        above_half=sum((trial.best_score or 0.0) > 0.5 for trial in progress.trials),
        steps=worker.curve.steps,
    )


def _optuna(task: Task, contender: str, seed: int, epochs: int) -> Outcome:
    """Nothing of ours tells it when to end."""
    curve = Curve(task)
    study = Hyperband(task, shipped(), seed, curve.note)
    study.train(epochs)
    found = study.best(_CANDIDATES)
    ensemble, members = _together(task, found)
    return Outcome(
        task=task.name,
        contender=contender,
        epochs=epochs,
        seed=seed,
        best=_right(task, [next(iter(found.values()))]),
        ensemble=ensemble,
        members=members,
        stopped=ensemble,
        stopped_after=epochs,
        trials=len(study.scores),
        above_half=sum(score > 0.5 for score in study.scores),
        steps=curve.steps,
    )


def _would_end(master: Master, validation_rows: int) -> bool:
    """Whether a job with a budget of time would train no more, for what it has found."""
    if any(trial.state == "paused" and trial.cool_from is not None for trial in master.trials()):
        return False
    budget = Budget(seconds=DEFAULT.seconds * master.spec.budget_epochs / DEFAULT_EPOCHS)
    ends = replace(master.spec, stale_trials=shipped(budget).stale_trials)
    if saturated(ends, master.trials()):
        return True
    metric = metric_named(master.spec.metric)
    scores = tuple(
        trial.best_score
        for trial in master.trials()
        if trial.state == "finished" and trial.best_score is not None
    )
    is_enough = any(shows_no_better(metric, score, validation_rows) for score in scores)
    return is_enough or has_stalled(metric, Tried(scores), [], validation_rows, stalled_after(budget))


def deployed(task: Task, master: Master, kept: Mapping[str, State]) -> tuple[float, int]:
    """Test accuracy of the ensemble that a deployment makes of the study, and how many members it has."""
    candidates = _candidates({"net": master.trials()})
    return _together(task, {name: kept[each.checkpoint.digest] for name, each in candidates.items()})


def _together(task: Task, found: Mapping[str, State]) -> tuple[float, int]:
    chosen = select_ensemble(
        {name: probabilities(state, task.validation) for name, state in found.items()},
        task.validation.labels,
        most=MOST_MEMBERS,
        margin=_MARGIN,
    )
    return _right(task, [found[name] for name in chosen.members]), len(chosen.members)


def _right(task: Task, members: Sequence[State]) -> float:
    """Test accuracy of the members' mean."""
    return accuracy(sum(probabilities(state, task.test) for state in members), task.test)  # type: ignore[arg-type]  # never of none
