"""The tuning benchmark's stranger: Optuna's TPE with its Hyperband pruner, as its documentation joins them.

It trains the same networks with the same longest trial, fall of the learning rate and known-good first trial
as the studies that ship. What it prunes is not trained on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from optuna import create_study
from optuna.pruners import HyperbandPruner
from optuna.samplers import TPESampler
from optuna.trial import Trial, TrialState

from server.training.studies.ledger import distribution_of
from server.training.studies.messages import StudySpec
from tests.benchmarks.tuning_task import State, Task, accuracy, begin, copy, probabilities, space, train_epoch


class Hyperband:
    """note: is called with the state and the score of each epoch."""

    def __init__(self, task: Task, ships: StudySpec, seed: int, note: Callable[[State, float], None]) -> None:
        self._task = task
        self._ships = ships
        self._seed = seed
        self._note = note
        self._left = 0
        self._kept: list[tuple[float, State]] = []  # the best epoch of each trial
        knobs = space()
        self._distributions = {each.name: distribution_of(each) for each in knobs.dimensions()}
        pruner = HyperbandPruner(min_resource=1, max_resource=ships.max_epochs, reduction_factor=ships.eta)
        # The name chooses each trial's bracket: without it a run could not be repeated.
        self._study = create_study(
            study_name=f"{task.name} {seed}",
            direction="maximize",
            sampler=TPESampler(seed=seed),
            pruner=pruner,
        )
        known_good = knobs.default_point()
        assert known_good is not None
        self._study.enqueue_trial(dict(known_good[0]))

    @property
    def scores(self) -> list[float]:
        """The best one of each trial."""
        return [score for score, _ in self._kept]

    def train(self, epochs: int) -> None:
        """Use the budget; the last trial ends within it."""
        self._left = epochs
        while self._left:
            trial = self._study.ask(self._distributions)
            score, state = self._trained(trial)
            self._study.tell(trial, score, state=state)

    def best(self, most: int) -> dict[str, State]:
        """Of the best trials, the best first: the state after the best epoch."""
        ranked = sorted(enumerate(self._kept), key=lambda each: (-each[1][0], each[0]))
        return {f"net/{number}": state for number, (_, state) in ranked[:most]}

    def _trained(self, trial: Trial) -> tuple[float | None, TrialState]:
        """The best score of its epochs."""
        knobs = {name: float(value) for name, value in trial.params.items()}
        seeds = np.random.default_rng((self._seed, trial.number))
        seed = int(seeds.integers(2**31))
        state = begin(self._task, knobs, seeds)
        ends = self._ships.max_epochs
        cools = (ends - self._ships.cool_epochs, ends)
        best, at_best = -1.0, state
        told = TrialState.COMPLETE
        for epoch in range(1, min(ends, self._left) + 1):
            falls = cools if epoch > cools[0] else None
            train_epoch(state, self._task, knobs, epoch, seed, falls)
            self._left -= 1
            score = accuracy(probabilities(state, self._task.validation), self._task.validation)
            self._note(state, score)
            if score > best:
                best, at_best = score, copy(state)
            trial.report(score, epoch)
            if not state.is_finite or trial.should_prune():
                told = TrialState.PRUNED
                break
        self._kept.append((best, at_best))
        return best if told is TrialState.COMPLETE else None, told
