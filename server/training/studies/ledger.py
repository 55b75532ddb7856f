"""A study's records in Optuna's storage: the journal file that outlives the master.

The record of a trial is one attribute, written as a whole, so that no crash leaves half of a change. What
Optuna's dashboard shows (parameters, intermediate values, states) is written after it, and made good when
the study is opened again. Cold and warm trials lie in two Optuna studies: their scores must not feed one
surrogate (Rafiki §7.1.1 saw the bias that comes of it).
"""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from server.training.studies.hyperspace import HyperSpace
from server.training.studies.knob import Dimension
from server.training.studies.messages import StudySpec
from server.training.studies.trial import Trial

__all__ = ["Ledger", "as_begun", "distribution_of", "recorded"]

_RECORD = "ml_udf:trial"
_SPEC = "ml_udf:spec"
_FORGIVEN = "ml_udf:forgiven"
# What may change when a study is opened again: it can be extended, and its leases belong to the day.
_MAY_CHANGE = ("budget_epochs", "budget_s", "max_trials", "lease_s", "max_attempts")


def as_begun(spec: StudySpec, storage: BaseStorage) -> StudySpec:
    """The spec that the study of that name was begun with, extended as `spec` says; `spec` if there is none.

    A study outlives the release that began it: the next may tune other knobs, have other defaults, and know
    settings that this one does not, or no longer. Raises ValueError when the stored spec cannot be read.
    """
    try:
        stored = storage.get_study_user_attrs(storage.get_study_id_from_name(spec.name)).get(_SPEC)
    except KeyError:
        stored = None
    if stored is None:
        return spec
    known = {field.name for field in fields(StudySpec)}
    begun = StudySpec.from_json({name: value for name, value in stored.items() if name in known})
    return replace(begun, **{name: getattr(spec, name) for name in _MAY_CHANGE})


def recorded(study: str, storage: BaseStorage) -> list[Trial]:
    """The trials of the study of that name, by number; none if there is no such study. Writes nothing."""
    trials: list[Trial] = []
    for name in (study, f"{study}/warm"):
        with contextlib.suppress(KeyError):
            for stored in storage.get_all_trials(storage.get_study_id_from_name(name), deepcopy=False):
                if _RECORD in stored.user_attrs:
                    trials.append(Trial.from_json(stored.user_attrs[_RECORD]))
    return sorted(trials, key=lambda trial: trial.number)


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """Optuna's form of a dimension; its bounds are inclusive."""
    if dimension.kind == "choice":
        return CategoricalDistribution(dimension.choices)
    if dimension.kind == "integer":
        return IntDistribution(int(dimension.low), int(dimension.high) - 1, log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


class Ledger:
    """The trials of one study, by number. One master at a time writes it."""

    def __init__(self, spec: StudySpec, storage: BaseStorage) -> None:
        """Opens or creates. Raises ValueError when a study of that name has another spec."""
        self._storage = storage
        self._distributions = _distributions(spec.space)
        self._cold, self._warm = (self._study(name) for name in (spec.name, f"{spec.name}/warm"))
        self._agree(spec)
        # Trials before that number whose errors count no more.
        self.forgiven = int(storage.get_study_user_attrs(self._cold).get(_FORGIVEN, 0))
        self._ids: dict[int, int] = {}
        self._trials: dict[int, Trial] = {}
        for study in (self._cold, self._warm):
            for stored in storage.get_all_trials(study, deepcopy=False):
                if _RECORD in stored.user_attrs:
                    self._read(stored)

    def find(self, number: int) -> Trial | None:
        """The trial of that number, if there is one."""
        return self._trials.get(number)

    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    def add(self, trial: Trial) -> None:
        """A new trial, in one write."""
        names = [name for name in trial.draws if name in self._distributions]
        template = create_trial(
            state=TrialState.RUNNING,
            params={name: trial.draws[name] for name in names},
            distributions={name: self._distributions[name] for name in names},
            user_attrs={_RECORD: trial.as_json()},
        )
        study = self._warm if trial.warm else self._cold
        self._ids[trial.number] = self._storage.create_new_trial(study, template_trial=template)
        self._trials[trial.number] = trial

    def save(self, trial: Trial) -> None:
        """A trial's new record."""
        before = self._trials[trial.number]
        self._storage.set_trial_user_attr(self._ids[trial.number], _RECORD, trial.as_json())
        self._trials[trial.number] = trial
        changed = [
            epoch
            for epoch, score in enumerate(trial.scores, 1)
            if before.scores[epoch - 1 : epoch] != (score,)
        ]
        self._show(trial, changed)

    def forgive(self) -> None:
        """Errors of the trials so far count no more."""
        self._storage.set_study_user_attr(self._cold, _FORGIVEN, len(self._trials))
        self.forgiven = len(self._trials)

    def _read(self, stored: FrozenTrial) -> None:
        trial = Trial.from_json(stored.user_attrs[_RECORD])
        self._ids[trial.number] = stored._trial_id
        self._trials[trial.number] = trial
        if not stored.state.is_finished():
            missing = set(range(1, len(trial.scores) + 1)) - set(stored.intermediate_values)
            self._show(trial, sorted(missing))

    def _show(self, trial: Trial, epochs: list[int]) -> None:
        """Tell Optuna what the record says: the scores of `epochs`, and that the trial is over."""
        identity = self._ids[trial.number]
        for epoch in epochs:
            self._storage.set_trial_intermediate_value(identity, epoch, trial.scores[epoch - 1])
        if trial.state == "failed" or (trial.state == "finished" and trial.best_score is None):
            self._storage.set_trial_state_values(identity, TrialState.FAIL)
        elif trial.state == "finished" and trial.best_score is not None:
            self._storage.set_trial_state_values(identity, TrialState.COMPLETE, [trial.best_score])

    def _study(self, name: str) -> int:
        try:
            return self._storage.create_new_study([StudyDirection.MAXIMIZE], name)
        except DuplicatedStudyError:
            return self._storage.get_study_id_from_name(name)

    def _agree(self, spec: StudySpec) -> None:
        new = spec.fingerprint()
        old: dict[str, Any] | None = self._storage.get_study_user_attrs(self._cold).get(_SPEC)
        if old is not None:
            common = [name for name in new if name in old and name not in _MAY_CHANGE]
            other = [name for name in common if _plain(new[name]) != old[name]]
            if other:
                raise ValueError(
                    f"the study {spec.name!r} exists with another {other[0]}; give this one another name"
                )
        if old != _plain(new):
            self._storage.set_study_user_attr(self._cold, _SPEC, _plain(new))


def _distributions(space: HyperSpace) -> dict[str, BaseDistribution]:
    return {dimension.name: distribution_of(dimension) for dimension in space.dimensions()}


def _plain(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """As JSON gives it back: tuples are lists."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
