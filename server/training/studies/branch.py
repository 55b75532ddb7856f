"""`branch`: successive halving first, then branches from the best checkpoint. The default.

`cold_share` of the budget goes to promotion-based ASHA (Li et al. 2020, "A system for massively parallel
hyperparameter tuning") with paused checkpoints: a free worker takes up the best paused trial of the highest
rung that may rise, else begins a new one from random weights. The rest goes to branches: the best
checkpoint's weights, and its knobs, jittered, or, for a share `explore` of them, drawn anew (population based
training, Jaderberg et al. 2017, perturbs or resamples). A branch goes on while it improves on itself, be it
behind its parent: new knobs often cost accuracy before they bring some. The best checkpoint of all is the
next parent.

Where the space has defaults, its first trial takes them and skips the rungs: no study ends worse than it
would without a search. What the advisor hears of cold trials are their scores after the same number of
epochs, those of the highest rung that enough of them have reached (Falkner et al. 2018, BOHB).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from server.training.studies.advisors import STARTUP, advise
from server.training.studies.hooks import KnobValue
from server.training.studies.hyperspace import Point, lower_of
from server.training.studies.knob import Dimension
from server.training.studies.messages import StudySpec, Verdict
from server.training.studies.policy import (
    Fresh,
    Proposal,
    Resume,
    Rules,
    best_checkpoint,
    cooled,
    due_to_cool,
    improves,
    on_plateau,
    share_used,
)
from server.training.studies.trial import Trial, random_of

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
    if (resumed := cooled(spec, trials)) is not None:
        return resumed
    if not trials and (known_good := spec.space.default_point()) is not None:
        return Fresh(known_good, spec.max_epochs)
    best = best_checkpoint(trials)
    room = spec.max_trials is None or len(trials) < spec.max_trials
    if share_used(spec, trials) < spec.cold_share or best is None:
        resumed = promotable(spec, trials)
        if resumed is not None:
            return resumed
        point = advise(spec, trials, warm=False, after_epochs=_compared_after(spec, trials)) if room else None
        if point is not None:
            return Fresh(point, rungs(spec.max_epochs, spec.eta)[0])
    if best is None or not room:
        return None
    parent, checkpoint = best
    random = random_of(spec.seed, len(trials), "jitter")
    if random.random() < spec.explore:
        point = _resampled(spec, parent, random)
    else:
        point = spec.space.jittered_point(parent.draws, random, spec.sigma)
    return Fresh(point, spec.max_epochs, origin=checkpoint, origin_trial=parent.number)


def _compared_after(spec: StudySpec, trials: Sequence[Trial]) -> int:
    """The epochs after which cold trials are compared: the highest rung that a surrogate can be made of."""
    ladder = rungs(spec.max_epochs, spec.eta)
    epochs = [len(trial.scores) for trial in trials if not trial.warm]
    reached = [rung for rung in ladder if sum(count >= rung for count in epochs) >= STARTUP]
    return max(reached, default=ladder[0])


def _resampled(spec: StudySpec, parent: Trial, random: np.random.Generator) -> Point:
    """A point at random, within what a branch may do to each knob."""
    branching = {knob.name: knob.branching for knob in spec.space.knobs()}

    def draw(dimension: Dimension) -> KnobValue:
        before, after = parent.draws.get(dimension.name), dimension.at(random.random())
        how = branching[dimension.name]
        if before is None or how == "jitter":
            return after
        return before if how == "fixed" or isinstance(before, str) else lower_of(before, after)

    return spec.space.point(draw)


def _judge(spec: StudySpec, trials: Sequence[Trial], trial: Trial) -> Verdict:
    epochs = len(trial.scores)
    cools = trial.cool_from is not None
    if due_to_cool(spec, trial):
        return Verdict.PAUSE
    on_its_rung = epochs - trial.start_epoch >= trial.epochs and epochs < spec.max_epochs
    if on_its_rung and not trial.warm and not cools:
        return Verdict.PAUSE
    if improves(spec, trials, trial.scores[-1]):
        return Verdict.PUT
    if cools or not trial.warm:
        return Verdict.CONTINUE
    return Verdict.STOP if on_plateau(trial.scores, spec.patience, spec.min_gain) else Verdict.CONTINUE


BRANCH = Rules(_propose, _judge)
