"""TrialAdvisors: which knobs the next trial gets (Rafiki Algorithm 1, `adv.next`).

Each is a pure function of the space, what was observed, and a random stream of the trial's own; so a master
that starts anew advises as the old one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from server.training.hooks import Value
from server.training.hyperspace import Point
from server.training.messages import Advice, StudySpec
from server.training.trial import Trial, random_of

__all__ = ["Observed", "advise"]


@dataclass(frozen=True, slots=True)
class Observed:
    """One trial as an advisor sees it; `score` is None while nothing is known of it."""

    draws: Mapping[str, Value]
    score: float | None


def advise(spec: StudySpec, trials: Sequence[Trial], *, warm: bool) -> Point | None:
    """The next trial's point; None when the advisor has no more (a grid that is used up).

    Only trials that began as this one will, cold or warm, are told to the advisor.
    """
    observed = [
        Observed(trial.draws, trial.best_score)
        for trial in trials
        if trial.warm == warm and trial.state != "failed"
    ]
    random = random_of(spec.seed, len(trials), "advice")
    return _ADVISORS[spec.advisor](spec, observed, random)


def _random(spec: StudySpec, observed: Sequence[Observed], random: np.random.Generator) -> Point:
    return spec.space.random_point(random)


_Advisor = Callable[[StudySpec, Sequence[Observed], np.random.Generator], Point | None]
_ADVISORS: Mapping[Advice, _Advisor] = {"random": _random}
