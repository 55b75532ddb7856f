"""`branch`: successive halving first (`halving`), then branches from the best checkpoint.

`cold_share` of the budget goes to the halving. The rest goes to branches: the best checkpoint's weights, and
its knobs, jittered, or, for a share `explore` of them, drawn anew (population based training, Jaderberg et
al. 2017, perturbs or resamples). A branch goes on while it improves on itself, be it behind its parent: new
knobs often cost accuracy before they bring some. The best checkpoint of all is the next parent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from server.training.studies.halving import goes_on, has_room, judge, promoted_or_begun
from server.training.studies.hooks import KnobValue
from server.training.studies.hyperspace import Point, lower_of
from server.training.studies.knob import Dimension
from server.training.studies.messages import StudySpec, Verdict
from server.training.studies.policy import (
    Fresh,
    Proposal,
    Rules,
    best_checkpoint,
    on_plateau,
    share_used,
)
from server.training.studies.trial import Trial, random_of

__all__ = ["BRANCH"]


def _propose(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    if (under_way := goes_on(spec, trials)) is not None:
        return under_way
    best = best_checkpoint(trials)
    if share_used(spec, trials) < spec.cold_share or best is None:
        risen = promoted_or_begun(spec, trials)
        if risen is not None:
            return risen
    if best is None or not has_room(spec, trials):
        return None
    parent, checkpoint = best
    random = random_of(spec.seed, len(trials), "jitter")
    if random.random() < spec.explore:
        point = _resampled(spec, parent, random)
    else:
        point = spec.space.jittered_point(parent.draws, random, spec.sigma)
    return Fresh(point, spec.max_epochs, origin=checkpoint, origin_trial=parent.number)


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
    verdict = judge(spec, trials, trial)
    if verdict is not Verdict.CONTINUE or trial.cool_from is not None or not trial.warm:
        return verdict
    return Verdict.STOP if on_plateau(trial.scores, spec.patience, spec.min_gain) else Verdict.CONTINUE


BRANCH = Rules(_propose, _judge)
