"""`study`: every trial on its own, from random weights (Rafiki Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from server.training.studies.advisors import advise
from server.training.studies.messages import StudySpec, Verdict
from server.training.studies.policy import Fresh, Proposal, Rules, cooled, due_to_cool, has_room, on_plateau
from server.training.studies.trial import Trial

__all__ = ["INDEPENDENT"]


def _propose(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    if (resumed := cooled(spec, trials)) is not None:
        return resumed
    if (spec.max_trials is not None and len(trials) >= spec.max_trials) or not has_room(spec, trials):
        return None
    point = advise(spec, trials, warm=False)
    return None if point is None else Fresh(point, spec.max_epochs)


def _judge(spec: StudySpec, trials: Sequence[Trial], trial: Trial) -> Verdict:
    if due_to_cool(spec, trial):
        return Verdict.PAUSE
    if trial.cool_from is not None:
        return Verdict.CONTINUE
    return Verdict.STOP if on_plateau(trial.scores, spec.patience, spec.min_gain) else Verdict.CONTINUE


INDEPENDENT = Rules(_propose, _judge)
