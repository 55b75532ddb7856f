"""`asha`: successive halving with promotions (Li et al. 2020, "A system for massively parallel hyperparameter
tuning"), whose trials pause with their checkpoints. The default of networks of pictures.

A free worker takes up the best paused trial of the highest rung that may rise, else begins a new one from
random weights. Where the space has defaults, its first trial takes them and skips the rungs: no study ends
worse than it would without a search. What the advisor hears of trials are their scores after the same number
of epochs, those of the highest rung that enough of them have reached (Falkner et al. 2018, BOHB).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from server.training.studies.advisors import STARTUP, advise
from server.training.studies.messages import StudySpec, Verdict
from server.training.studies.policy import Fresh, Proposal, Resume, Rules, cooled, due_to_cool, improves
from server.training.studies.trial import Trial

__all__ = ["ASHA", "goes_on", "has_room", "judge", "promotable", "promoted_or_begun", "rungs"]


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


def goes_on(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    """What comes first: a trial whose learning rate shall fall, or the known-good beginning."""
    if (resumed := cooled(spec, trials)) is not None:
        return resumed
    if not trials and (known_good := spec.space.default_point()) is not None:
        return Fresh(known_good, spec.max_epochs)
    return None


def has_room(spec: StudySpec, trials: Sequence[Trial]) -> bool:
    """Whether another trial may begin."""
    return spec.max_trials is None or len(trials) < spec.max_trials


def promoted_or_begun(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    """The paused trial that rises, else a new one; None where there is neither."""
    resumed = promotable(spec, trials)
    if resumed is not None:
        return resumed
    if not has_room(spec, trials):
        return None
    point = advise(spec, trials, warm=False, after_epochs=_compared_after(spec, trials))
    return None if point is None else Fresh(point, rungs(spec.max_epochs, spec.eta)[0])


def _compared_after(spec: StudySpec, trials: Sequence[Trial]) -> int:
    """The epochs after which cold trials are compared: the highest rung that a surrogate can be made of."""
    ladder = rungs(spec.max_epochs, spec.eta)
    epochs = [len(trial.scores) for trial in trials if not trial.warm]
    reached = [rung for rung in ladder if sum(count >= rung for count in epochs) >= STARTUP]
    return max(reached, default=ladder[0])


def judge(spec: StudySpec, trials: Sequence[Trial], trial: Trial) -> Verdict:
    """Pause on the rung, or where the rate shall fall; store what is the best so far."""
    epochs = len(trial.scores)
    if due_to_cool(spec, trial):
        return Verdict.PAUSE
    on_its_rung = epochs - trial.start_epoch >= trial.epochs and epochs < spec.max_epochs
    if on_its_rung and not trial.warm and trial.cool_from is None:
        return Verdict.PAUSE
    return Verdict.PUT if improves(spec, trials, trial.scores[-1]) else Verdict.CONTINUE


def _propose(spec: StudySpec, trials: Sequence[Trial]) -> Proposal | None:
    return goes_on(spec, trials) or promoted_or_begun(spec, trials)


ASHA = Rules(_propose, judge)
