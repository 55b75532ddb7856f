"""`costudy`: new trials begin from the best checkpoint so far, α-greedily (Rafiki §4.2.2, Algorithm 2).

α falls with the number of ended trials and not with the clock, so that a run can be repeated. Warm and cold
trials are advised apart: the paper's own Gaussian process was misled by their mixture (§7.1.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from server.training.studies.advisors import advise
from server.training.studies.messages import StudySpec, Verdict
from server.training.studies.policy import (
    Fresh,
    Proposal,
    Rules,
    best_checkpoint,
    cooled,
    due_to_cool,
    improves,
    on_plateau,
)
from server.training.studies.trial import Trial, random_of

__all__ = ["COSTUDY", "alpha"]


def alpha(spec: StudySpec, ended: int) -> float:
    """The chance that a trial starts from random weights when `ended` trials are over."""
    return max(spec.alpha_least, spec.alpha * spec.alpha_decay**ended)


def _propose(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    if (resumed := cooled(spec, trials)) is not None:
        return resumed
    if spec.max_trials is not None and len(trials) >= spec.max_trials:
        return None
    ended = sum(trial.state in ("finished", "failed") for trial in trials)
    coin = random_of(spec.seed, len(trials), "coin").random()
    best = best_checkpoint(trials)
    warm = best is not None and coin >= alpha(spec, ended)
    point = advise(spec, trials, warm=warm)
    if point is None:
        return None
    if best is None or not warm:
        return Fresh(point, spec.max_epochs)
    return Fresh(point, spec.max_epochs, origin=best[1], origin_trial=best[0].number)


def _judge(spec: StudySpec, trials: Sequence[Trial], trial: Trial) -> Verdict:
    if due_to_cool(spec, trial):
        return Verdict.PAUSE
    if improves(spec, trials, trial.scores[-1]):
        return Verdict.PUT
    if trial.cool_from is not None:
        return Verdict.CONTINUE
    return Verdict.STOP if on_plateau(trial.scores, spec.patience, spec.min_gain) else Verdict.CONTINUE


COSTUDY = Rules(_propose, _judge)
