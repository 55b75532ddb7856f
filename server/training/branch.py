"""`branch`: successive halving first, then branches from the best checkpoint. The default.

`cold_share` of the budget goes to promotion-based ASHA (Li et al. 2020, "A system for massively parallel
hyperparameter tuning") with paused checkpoints: a free worker takes up the best paused trial of the highest
rung that may rise, else begins a new one from random weights. The rest goes to branches: the best
checkpoint's weights, its knobs jittered, the learning rate never above its parent's. A branch has
`branch_patience` epochs to beat its parent, and as many after each gain; the best of all is the next parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from server.training.advisors import advise
from server.training.messages import StudySpec, Verdict
from server.training.policy import (
    Fresh,
    Proposal,
    Resume,
    Rules,
    best_checkpoint,
    improves,
    on_plateau,
)
from server.training.trial import Trial, random_of

__all__ = ["BRANCH", "rungs"]


def rungs(max_epochs: int, eta: int) -> list[int]:
    """The epochs at which a trial pauses, up to the last one: 1, 3, 9, 27 for 27 epochs and eta 3."""
    reached = [max_epochs]
    while reached[-1] >= eta:
        reached.append(round(reached[-1] / eta))
    return reached[::-1]


def promotable(spec: StudySpec, trials: Sequence[Trial]) -> Resume | None:
    """The best paused trial of the highest rung where it is among the best 1/eta; None if there is none."""
    ladder = rungs(spec.max_epochs, spec.eta)
    cold = [trial for trial in trials if not trial.warm]
    for rung, above in reversed(list(pairwise(ladder))):
        reached = [trial for trial in cold if len(trial.scores) >= rung]
        reached.sort(key=lambda trial: (-trial.scores[rung - 1], trial.number))
        for trial in reached[: len(reached) // spec.eta]:
            if trial.state == "paused" and len(trial.scores) == rung:
                return Resume(trial, above - rung)
    return None


def _propose(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    used = sum(trial.charged + int(trial.in_flight) for trial in trials)
    best = best_checkpoint(trials)
    room = spec.max_trials is None or len(trials) < spec.max_trials
    if used < spec.cold_share * spec.budget_epochs or best is None:
        resumed = promotable(spec, trials)
        if resumed is not None:
            return resumed
        point = advise(spec, trials, warm=False) if room else None
        if point is not None:
            return Fresh(point, rungs(spec.max_epochs, spec.eta)[0])
    if best is None or not room:
        return None
    parent, checkpoint = best
    random = random_of(spec.seed, len(trials), "jitter")
    point = spec.space.jittered_point(parent.draws, random, spec.sigma)
    return Fresh(point, spec.max_epochs, origin=checkpoint, origin_trial=parent.number)


def _judge(spec: StudySpec, trials: Sequence[Trial], trial: Trial) -> Verdict:
    epochs = len(trial.scores)
    if not trial.warm and epochs - trial.start_epoch >= trial.epochs and epochs < spec.max_epochs:
        return Verdict.PAUSE
    if improves(spec, trials, trial.scores[-1]):
        return Verdict.PUT
    if not trial.warm:
        return Verdict.CONTINUE
    worn = on_plateau(trial.scores, spec.branch_patience, spec.min_gain, floor=_parents_score(trials, trial))
    return Verdict.STOP if worn else Verdict.CONTINUE


def _parents_score(trials: Sequence[Trial], trial: Trial) -> float | None:
    parents = (other for other in trials if other.number == trial.origin_trial)
    stored = (checkpoint for parent in parents for checkpoint in parent.checkpoints)
    return next((checkpoint.score for checkpoint in stored if checkpoint.digest == trial.origin), None)


BRANCH = Rules(_propose, _judge)
