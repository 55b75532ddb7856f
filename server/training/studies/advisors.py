"""TrialAdvisors: which knobs the next trial gets (Rafiki Algorithm 1, `adv.next`).

Each is a pure function of the spec, what was observed, and a random stream of the trial's own; so a master
that starts anew advises as the old one would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import TPESampler
from optuna.study import Study, create_study
from optuna.trial import TrialState, create_trial

from server.training.studies.gaussian_process import expected_improvement, fit
from server.training.studies.hooks import KnobValue
from server.training.studies.hyperspace import Point
from server.training.studies.knob import Dimension
from server.training.studies.ledger import distribution_of
from server.training.studies.messages import Advice, StudySpec
from server.training.studies.trial import Trial, random_of

__all__ = ["STARTUP", "Observed", "advise"]

# Trials at random before a model of the scores is of use.
STARTUP = 10


@dataclass(frozen=True, slots=True)
class Observed:
    """One trial as an advisor sees it; `score` is None while nothing is known of it."""

    draws: Mapping[str, KnobValue]
    score: float | None


def advise(
    spec: StudySpec, trials: Sequence[Trial], *, warm: bool, after_epochs: int | None = None
) -> Point | None:
    """The next trial's point; None when the advisor has no more (a grid that is used up).

    Only trials that began as this one will, cold or warm, are shown to the advisor: with their scores after
    `after_epochs` epochs, and without those that ended before; None = with their best. The first cold trial
    gets the defaults of the space, if it has any.
    """
    alike = [trial for trial in trials if trial.warm == warm]
    if not warm and not alike and (known_good := spec.space.default_point()) is not None:
        return known_good
    observed = list(_observed(alike, after_epochs))
    return _ADVISORS[spec.advisor](spec, observed, random_of(spec.seed, len(trials), "advice"))


def _observed(trials: Sequence[Trial], after_epochs: int | None) -> Iterator[Observed]:
    """A trial that failed counts like the worst that was seen, so that its neighbourhood is left alone."""
    scores = [
        trial.best_score
        if after_epochs is None
        else next(iter(trial.scores[after_epochs - 1 : after_epochs]), None)
        for trial in trials
    ]
    worst = min((score for score in scores if score is not None), default=0.0)
    for trial, score in zip(trials, scores, strict=True):
        if trial.state == "failed":
            yield Observed(trial.draws, worst)
        elif after_epochs is None or score is not None or trial.state in ("running", "waiting"):
            yield Observed(trial.draws, score)


def _random(spec: StudySpec, observed: Sequence[Observed], random: np.random.Generator) -> Point:
    return spec.space.random_point(random)


def _grid(spec: StudySpec, observed: Sequence[Observed], random: np.random.Generator) -> Point | None:
    """The first cell, in the study's shuffled order, whose point was not tried."""
    tried = [dict(trial.draws) for trial in observed]
    for point in _cells(spec):
        if point[0] not in tried:
            return point
    return None


def _cells(spec: StudySpec) -> Iterator[Point]:
    dimensions = spec.space.dimensions()
    sizes = [_levels(dimension, spec.grid_points) for dimension in dimensions]
    cells = math.prod(sizes)
    # i → (a·i + b) mod cells visits each cell once and needs no list of them.
    shuffle = random_of(spec.seed, 0, "grid")
    stride = next(a for a in range(max(1, int(cells * 0.618)), cells + 2) if math.gcd(a, cells) == 1)
    offset = int(shuffle.integers(cells))
    for index in range(cells):
        cell = (stride * index + offset) % cells
        units: dict[str, float] = {}
        for dimension, size in zip(dimensions, sizes, strict=True):
            cell, level = divmod(cell, size)
            units[dimension.name] = (level + 0.5) / size
        yield spec.space.point(lambda dimension, units=units: dimension.at(units[dimension.name]))  # type: ignore[misc]  # mypy: no type of a default


def _levels(dimension: Dimension, most: int) -> int:
    if dimension.kind == "choice":
        return len(dimension.choices)
    return min(most, int(dimension.high - dimension.low)) if dimension.kind == "integer" else most


def _gp(spec: StudySpec, observed: Sequence[Observed], random: np.random.Generator) -> Point:
    """The best expected improvement among many random points, and some near the best one.

    Trials that run count as if they brought the mean (so that workers do not all ask for one point).
    """
    scored = [trial for trial in observed if trial.score is not None]
    if len(scored) < STARTUP:
        return spec.space.random_point(random)
    known = [float(trial.score) for trial in scored if trial.score is not None]
    liar = float(np.mean(known))
    scores = np.array([liar if trial.score is None else trial.score for trial in observed])
    dimensions = spec.space.dimensions()
    points = np.stack([_unit(dimensions, trial.draws) for trial in observed])
    best = scored[int(np.argmax(known))]
    candidates = [spec.space.random_point(random) for _ in range(256)]
    candidates += [spec.space.jittered_point(best.draws, random, 0.2) for _ in range(64)]
    gains = expected_improvement(
        fit(points, scores, random),
        np.stack([_unit(dimensions, draws) for draws, _ in candidates]),
        max(known),
    )
    return candidates[int(gains.argmax())]


def _unit(dimensions: Sequence[Dimension], draws: Mapping[str, KnobValue]) -> NDArray[np.float64]:
    """A point of the unit cube: one coordinate for a number, one for each choice; the middle if it is out."""
    coordinates: list[float] = []
    for dimension in dimensions:
        drawn = draws.get(dimension.name)
        if dimension.kind == "choice":
            coordinates += [float(choice == drawn) for choice in dimension.choices]
        else:
            coordinates.append(0.5 if drawn is None else dimension.unit(drawn))
    return np.array(coordinates)


def _tpe(spec: StudySpec, observed: Sequence[Observed], random: np.random.Generator) -> Point:
    """Optuna's TPE: multivariate, in groups for conditional knobs, counting running trials as bad ones."""
    sampler = TPESampler(
        n_startup_trials=STARTUP,
        multivariate=True,
        group=True,
        constant_liar=True,
        seed=int(random.integers(2**31)),
    )
    study = create_study(direction="maximize", sampler=sampler)
    distributions = {each.name: distribution_of(each) for each in spec.space.dimensions()}
    _tell(study, observed, distributions)
    trial = study.ask()

    def draw(dimension: Dimension) -> KnobValue:
        value: KnobValue = trial._suggest(dimension.name, distributions[dimension.name])
        # Optuna's bounds are inclusive, ours are not.
        return dimension.clip(float(value)) if dimension.kind == "float" else value

    return spec.space.point(draw)


def _tell(study: Study, observed: Sequence[Observed], distributions: Mapping[str, object]) -> None:
    for trial in observed:
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING if trial.score is None else TrialState.COMPLETE,
                value=trial.score,
                params=dict(trial.draws),
                distributions={name: distributions[name] for name in trial.draws},  # type: ignore[misc]  # they are Optuna's
            )
        )


_Advisor = Callable[[StudySpec, Sequence[Observed], np.random.Generator], Point | None]
_ADVISORS: Mapping[Advice, _Advisor] = {"random": _random, "grid": _grid, "gp": _gp, "tpe": _tpe}
