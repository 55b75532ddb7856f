"""One study of the tuning benchmark: the real master with the defaults that ship, one worker, the trainer of
tuning_task.py, and the choice that a deployment makes.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from optuna.storages import InMemoryStorage

from server.training.jobs.spec import JobSpec
from server.training.promotion.deployer import _MARGIN, _candidates
from server.training.promotion.selection import select_ensemble
from server.training.studies.messages import Assignment, StudySpec, Verdict
from server.training.studies.study import Master
from tests.benchmarks.tuning_task import (
    State,
    Task,
    accuracy,
    begin,
    copy,
    fresh_momentum,
    probabilities,
    space,
    train_epoch,
)

WORKER = "worker"
# What a contender changes of the study that ships, by its name: "asha" is `branch` without its branches.
POLICIES: dict[str, dict[str, Any]] = {
    "study": {"policy": "study"},
    "study+ensemble": {"policy": "study"},
    "costudy": {"policy": "costudy"},
    "asha": {"policy": "branch", "cold_share": 1.0},
    "branch": {"policy": "branch"},
}
ENSEMBLES = ("branch", "asha", "study+ensemble")  # that end in a selection; the others return the best trial


@dataclass
class Outcome:
    """One study's result. anytime[e]: test accuracy of the best checkpoint after e + 1 epochs;
    best[e]: the best validation score by then.
    """

    task: str
    contender: str
    seed: int
    test: float
    ensemble: float
    members: int
    trials: int
    trials_above_half: int
    anytime: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def deployed(self) -> float:
        """Test accuracy of the artefact that the rule names."""
        return self.ensemble if self.contender.split()[0] in ENSEMBLES else self.test

    @property
    def over_time(self) -> float:
        """Test accuracy of the best checkpoint so far, averaged over the budget: good early counts."""
        return sum(self.anytime) / len(self.anytime)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Worker:
    """Trains what it is told and keeps checkpoints; epochs are counted, so that curves share an axis."""

    def __init__(self, task: Task, master: Master) -> None:
        self._task = task
        self._master = master
        self._kept: dict[str, State] = {}
        self.best: list[float] = []
        self.anytime: list[float] = []
        self._deployed = (-1.0, 0.0)

    def work(self) -> None:
        while isinstance(given := self._master.request(WORKER, 0.0), Assignment):
            self._train(given)

    def checkpoints(self) -> dict[str, State]:
        return self._kept

    def _train(self, given: Assignment) -> None:
        knobs = {name: float(value) for name, value in given.knobs.items()}
        state = self._start(given, knobs)
        best_score, best_state, epoch = -1.0, state, given.start_epoch
        ends = given.start_epoch + given.epochs
        cools = None if given.cool_from is None else (given.cool_from, ends)
        while True:
            epoch += 1
            with np.errstate(all="ignore"):  # some knobs make it diverge, and their scores say so
                train_epoch(state, self._task, knobs, epoch, given.seed, cools)
                score = accuracy(probabilities(state, self._task.validation), self._task.validation)
            if score > best_score:
                best_score, best_state = score, copy(state)
            self._note(state, score)
            loss = 0.0 if all(np.isfinite(each).all() for each in state.weights) else float("nan")
            verdict = self._master.report(WORKER, given.trial, epoch, score, 0.0, loss)
            if verdict in (Verdict.PUT, Verdict.PAUSE):
                digest = f"{given.trial}/{epoch}"
                if self._master.stored(WORKER, given.trial, epoch, score, digest):
                    self._kept[digest] = copy(state)
            if verdict is Verdict.STOP:
                digest = f"{given.trial}/best"
                self._kept[digest] = best_state
                self._master.finish(WORKER, given.trial, best_score, 0.0, digest)
            if verdict not in (Verdict.CONTINUE, Verdict.PUT):
                return

    def _start(self, given: Assignment, knobs: dict[str, float]) -> State:
        if given.parent is None:
            return begin(self._task, knobs, np.random.default_rng((given.seed, 0)))
        parent = copy(self._kept[given.parent])
        return parent if given.start_epoch else fresh_momentum(parent.weights, parent.biases)

    def _note(self, state: State, score: float) -> None:
        if score > self._deployed[0]:
            with np.errstate(all="ignore"):
                self._deployed = score, accuracy(probabilities(state, self._task.test), self._task.test)
        self.best.append(self._deployed[0])
        self.anytime.append(self._deployed[1])


def shipped() -> StudySpec:
    """The study of one model as a job that says nothing has it."""
    (study,) = JobSpec("benchmark", models=("resnet",)).studies(0, "").values()
    return study


def study_of(name: str, contender: str, seed: int, budget_epochs: int) -> StudySpec:
    """What ships, but for the space, and for what the contender changes."""
    policy, advisor = contender.split()
    changed = {**POLICIES[policy], "advisor": advisor, "budget_epochs": budget_epochs, "seed": seed}
    return replace(shipped(), name=name, space=space(), **changed)


def run_study(task: Task, contender: str, seed: int, budget_epochs: int) -> Outcome:
    """`contender` is "POLICY ADVISOR". Everyone has the same budget, patience and longest trial."""
    spec = study_of(f"{task.name} {contender} {seed}", contender, seed, budget_epochs)
    began_s = time.perf_counter()
    master = Master(spec, InMemoryStorage())
    worker = Worker(task, master)
    worker.work()
    progress = master.progress()
    assert progress.epochs_used == budget_epochs == len(worker.best)
    assert progress.best_checkpoint is not None
    kept = worker.checkpoints()
    with np.errstate(all="ignore"):
        deployed = accuracy(probabilities(kept[progress.best_checkpoint], task.test), task.test)
        found = {
            name: kept[candidate.checkpoint.digest]
            for name, candidate in _candidates({"net": master.trials()}).items()
        }
        chosen = select_ensemble(
            {name: probabilities(state, task.validation) for name, state in found.items()},
            task.validation.labels,
            most=8,
            margin=_MARGIN,
        )
        mean = sum(probabilities(found[name], task.test) for name in chosen.members)
    above = [trial for trial in progress.trials if (trial.best_score or 0.0) > 0.5]
    return Outcome(
        task=task.name,
        contender=contender,
        seed=seed,
        test=deployed,
        ensemble=float((np.asarray(mean).argmax(axis=1) == task.test.labels).mean()),
        members=len(chosen.members),
        trials=len(progress.trials),
        trials_above_half=len(above),
        anytime=worker.anytime,
        best=worker.best,
        took_s=time.perf_counter() - began_s,
    )
