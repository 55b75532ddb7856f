"""What a study is asked for, and what master and workers say to each other (Rafiki Algorithms 1 and 2).

| message | call | answer |
|---|---|---|
| kRequest | `Master.request` | `Assignment`, `NoWorkYet` (ask again later) or `StudyOver` |
| kReport | `Master.report` | `Verdict` |
| kPut, the answer to PUT and PAUSE | `Master.stored` | whether it counted |
| kFinish, the answer to STOP | `Master.finish` | |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args

from gpu_worker.tasks.metrics import metric_named
from server.training.studies.hooks import KnobValue
from server.training.studies.hyperspace import HyperSpace

__all__ = [
    "NO_LIMIT",
    "Advice",
    "Assignment",
    "NoWorkYet",
    "Progress",
    "StudyOver",
    "StudyPolicy",
    "StudySpec",
    "TrialState",
    "Verdict",
]

NO_LIMIT = 10**9  # of epochs: more than anybody trains

StudyPolicy = Literal["study", "costudy", "asha", "branch"]
Advice = Literal["random", "grid", "gp", "tpe"]
TrialState = Literal["running", "waiting", "paused", "finished", "failed"]


class Verdict(StrEnum):
    """What a worker does after an epoch. All but CONTINUE and DROP want a checkpoint."""

    CONTINUE = "continue"
    PUT = "put"  # store the weights as they are, call `stored`, train on
    PAUSE = "pause"  # store weights and optimiser as they are, call `stored`, then request anew
    STOP = "stop"  # store the weights of the best epoch, call `finish`, then request anew
    DROP = "drop"  # the lease is gone: forget the trial, request anew


@dataclass(frozen=True, slots=True)
class StudySpec:
    """One study: a model's knobs over one snapshot of a dataset.

    metric: what scores are of. Within a study they are merits, of which the larger is the better
    (`gpu_worker.tasks.metrics.Metric.merit`); delta and min_gain are in its unit.
    budget_epochs: epochs that may be trained in all, lost and repeated ones too; `NO_LIMIT` = any number.
    budget_s: seconds in which trials may be under way, those of several workers added up; None = any time.
    stale_trials: so many trials that end after the best one, and do not better it, end the study, as does a
    score that cannot be bettered; 0 = neither does. max_epochs: of one trial (in
    `branch`: the highest rung). patience: epochs without a gain of more than `min_gain` that end a trial.
    cool_epochs: the last epochs of a trial, in which its learning rate falls to zero; they begin where its
    score no longer rises, and end the trial; 0 = the trainer has no such phase.
    delta: gain over the best score that is worth a checkpoint (Algorithm 2). alpha: the chance of a cold
    start, times alpha_decay for each finished trial, never below alpha_least. lease_s: a worker that
    reports nothing for so long has lost its trial. grid_points: for each range knob of the `grid` advisor.
    eta: of `asha` and `branch`; cold_share, explore, sigma: of `branch`; see there.

    Raises ValueError for values out of range.
    """

    name: str
    space: HyperSpace
    policy: StudyPolicy = "branch"
    advisor: Advice = "random"
    budget_epochs: int = 300
    max_trials: int | None = None
    max_epochs: int = 27
    patience: int = 5
    min_gain: float = 0.0
    cool_epochs: int = 0
    delta: float = 0.0
    alpha: float = 1.0
    alpha_decay: float = 0.9
    alpha_least: float = 0.05
    eta: int = 3
    cold_share: float = 0.35
    explore: float = 0.5
    sigma: float = 1.0
    grid_points: int = 5
    seed: int = 0
    snapshot: str = ""
    lease_s: float = 60.0
    max_attempts: int = 3
    metric: str = "accuracy"  # of studies that were begun before there were others
    budget_s: float | None = None
    stale_trials: int = 0

    def __post_init__(self) -> None:
        self.space.knobs()
        metric_named(self.metric)
        if self.policy not in get_args(StudyPolicy):
            raise ValueError(f"policy must be one of {', '.join(get_args(StudyPolicy))}, not {self.policy!r}")
        if self.advisor not in get_args(Advice):
            raise ValueError(f"advisor must be one of {', '.join(get_args(Advice))}, not {self.advisor!r}")
        least = {"budget_epochs": 1, "max_epochs": 1, "patience": 1, "eta": 2}
        least |= {"grid_points": 1, "max_attempts": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, not {getattr(self, name)}")
        for name in ("alpha", "alpha_decay", "alpha_least", "cold_share", "explore"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if not 0 <= self.cool_epochs < self.max_epochs:
            raise ValueError(f"cool_epochs must be from 0 to below max_epochs, not {self.cool_epochs}")
        if self.stale_trials < 0 or (self.budget_s is not None and not self.budget_s > 0):
            raise ValueError("budget_s must be above 0, stale_trials not below it")
        if self.max_trials is not None and self.max_trials < 1:
            raise ValueError(f"max_trials must be at least 1, not {self.max_trials}")
        if self.lease_s <= 0 or self.sigma < 0 or self.delta < 0 or self.min_gain < 0:
            raise ValueError("lease_s must be above 0; sigma, delta and min_gain not below it")

    def as_json(self) -> dict[str, Any]:
        """The spec as JSON. Raises ValueError when a knob's hook is Python code."""
        return {**self.fingerprint(), "space": self.space.as_json()}

    def fingerprint(self) -> dict[str, Any]:
        """What tells studies apart, as JSON; of hooks that are Python code, that they are there."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return fields | {"space": [knob.outline() for knob in self.space.knobs()]}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> StudySpec:
        """The inverse of `as_json`; what is left out has its default. Raises ValueError."""
        fields = dict(form)
        try:
            return cls(**fields | {"space": HyperSpace.from_json(fields["space"])})
        except KeyError as exc:
            raise ValueError("a study needs a space of knobs") from exc
        except TypeError as exc:
            raise ValueError(f"the study is not well formed: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Assignment:
    """Epochs of one trial for one worker; a worker that dies leaves exactly this to another.

    parent: hash of the checkpoint to start from, None for random weights. With start_epoch 0 only its
    weights are taken (tensors of the same role, shape and dtype); above 0 it is the trial's own, paused
    state, optimiser and all. epochs: at most so many; the verdict of the last one is never CONTINUE.
    seed: of everything random in the trial. cool_from: the epochs after which the learning rate falls, to
    zero at the end of the assignment; None = it stays.
    """

    trial: int
    knobs: Mapping[str, KnobValue]
    seed: int
    parent: str | None
    start_epoch: int
    epochs: int
    attempt: int = 1
    cool_from: int | None = None


@dataclass(frozen=True, slots=True)
class NoWorkYet:
    """Nothing to do now; other workers' reports may change that."""


@dataclass(frozen=True, slots=True)
class StudyOver:
    """The study is over; `reason` is for people. failed: an error ended it, and nothing was found."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """One trial as people see it. `epochs`: trained and standing; `charged`: with lost ones. `loss`: on the
    training rows, in the last epoch. Scores are values of `metric`. took_s: of all its epochs.
    """

    trial: int
    state: TrialState
    knobs: Mapping[str, KnobValue]
    warm: bool
    parent_trial: int | None
    worker: str | None
    epochs: int
    charged: int
    score: float | None
    best_score: float | None
    reason: str = ""
    loss: float | None = None
    metric: str = "accuracy"
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A study as people see it. `best_checkpoint` is the hash of the checkpoint with the best score; scores
    are values of `metric`. epochs_budget: None where it is not of epochs. share_used: of the budget.
    """

    trials: list[TrialProgress] = field(default_factory=list)
    epochs_used: int = 0
    epochs_budget: int | None = 0
    best_score: float | None = None
    best_trial: int | None = None
    best_checkpoint: str | None = None
    metric: str = "accuracy"
    seconds_used: float = 0.0
    share_used: float = 0.0
