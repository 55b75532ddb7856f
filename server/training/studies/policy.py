"""What a tuning policy decides, as pure functions of the spec and the trials so far.

`propose` is asked when a worker is free, `judge` after each report. Leases, budget, retries and storage are
the master's (study.py); a policy never sees a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_worker.tasks.metrics import metric_named
from server.training.studies.hyperspace import Point
from server.training.studies.messages import NO_LIMIT, StudySpec, Verdict
from server.training.studies.trial import Checkpoint, Trial

__all__ = [
    "Fresh",
    "Judge",
    "Proposal",
    "Propose",
    "Resume",
    "Rules",
    "best_checkpoint",
    "cooled",
    "due_to_cool",
    "has_room",
    "improves",
    "on_plateau",
    "saturated",
    "share_used",
]


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new trial: from random weights, or from a checkpoint of `origin_trial`."""

    point: Point
    epochs: int
    origin: Checkpoint | None = None
    origin_trial: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused trial, for `epochs` more; `cools`: its last ones, with a learning rate that falls to zero."""

    trial: Trial
    epochs: int
    cools: bool = False


Proposal = Fresh | Resume
# None: nothing now; more may come of what runs.
Propose = Callable[[StudySpec, Sequence[Trial]], Proposal | None]
# The trial is given with its newest score; the last epoch of an assignment ends it whatever is said here.
Judge = Callable[[StudySpec, Sequence[Trial], Trial], Verdict]


@dataclass(frozen=True, slots=True)
class Rules:
    """One policy."""

    propose: Propose
    judge: Judge


def best_checkpoint(trials: Sequence[Trial]) -> tuple[Trial, Checkpoint] | None:
    """The stored checkpoint with the best score, and its trial; the earliest trial's of equals."""
    stored = [(trial, trial.best_checkpoint) for trial in trials]
    pairs = [(trial, checkpoint) for trial, checkpoint in stored if checkpoint is not None]
    return max(pairs, key=lambda pair: (pair[1].score, -pair[0].number), default=None)


def improves(spec: StudySpec, trials: Sequence[Trial], score: float) -> bool:
    """Whether p − best > δ (Algorithm 2, line 8), against the best that is stored."""
    best = best_checkpoint(trials)
    return best is None or score - best[1].score > spec.delta


def share_used(spec: StudySpec, trials: Sequence[Trial]) -> float:
    """Of the budget, epochs under way too: that of epochs, of time, or where there is neither of trials."""
    shares = [sum(trial.charged + int(trial.in_flight) for trial in trials) / spec.budget_epochs]
    if spec.budget_s is not None:
        shares.append(sum(trial.spent_s for trial in trials) / spec.budget_s)
    elif spec.budget_epochs >= NO_LIMIT and spec.max_trials is not None:
        shares.append(len(trials) / spec.max_trials)
    return max(shares)


def has_room(spec: StudySpec, trials: Sequence[Trial]) -> bool:
    """Whether a whole trial's epochs are left beside what those under way need to come to their end; or
    nothing is under way, or trials do not cool.

    Else trials share what is left, and end before their learning rate has fallen: none is worth much.
    """
    if not spec.cool_epochs:
        return True
    begun = [trial for trial in trials if trial.state in ("running", "waiting", "paused")]
    owed = sum(spec.max_epochs - len(trial.scores) for trial in begun if trial.verdict is not Verdict.STOP)
    charged = sum(trial.charged for trial in trials)
    return not begun or charged + owed + spec.max_epochs <= spec.budget_epochs


def saturated(spec: StudySpec, trials: Sequence[Trial]) -> str:
    """Why no further trial is worth its time, as words; "" while one may be."""
    best = best_checkpoint(trials)
    if not spec.stale_trials or best is None:
        return ""
    metric = metric_named(spec.metric)
    if best[1].score >= metric.merit(metric.best):
        return f"{metric.name} cannot be better"
    later = [trial for trial in trials if trial.number > best[0].number and trial.state == "finished"]
    return f"{len(later)} trials in a row have brought no gain" if len(later) >= spec.stale_trials else ""


def on_plateau(scores: Sequence[float], patience: int, min_gain: float) -> bool:
    """Whether the last `patience` scores brought no gain of more than `min_gain` over all before them."""
    best: float | None = None
    since = 0
    for score in scores:
        if best is None or score - best > min_gain:
            best, since = score, 0
        else:
            since += 1
    return since >= patience


def due_to_cool(spec: StudySpec, trial: Trial) -> bool:
    """Whether the learning rate of a trial shall begin to fall, so that it ends annealed: its score no longer
    rises, or no more epochs are left than that takes.

    A plateau at a constant rate is where the fall pays (Hägele et al. 2024, "Scaling laws and compute-optimal
    training beyond fixed training durations"), and no reason to end. Trials on their way to a lower rung
    wait.
    """
    to_the_end = trial.start_epoch + trial.epochs >= spec.max_epochs
    if not spec.cool_epochs or trial.cool_from is not None or not to_the_end:
        return False
    stays = on_plateau(trial.scores, spec.patience, spec.min_gain)
    return stays or len(trial.scores) >= spec.max_epochs - spec.cool_epochs


def cooled(spec: StudySpec, trials: Sequence[Trial]) -> Resume | None:
    """The first trial that was paused because its learning rate shall fall; None where there is none."""
    due = (trial for trial in trials if trial.state == "paused" and due_to_cool(spec, trial))
    trial = next(due, None)
    return None if trial is None else Resume(trial, spec.cool_epochs, cools=True)
