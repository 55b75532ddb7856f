"""Selection policies as a user might bring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from server.ensemble.policies.fixed import Static
from server.ensemble.selection import (
    ENOUGH,
    Choice,
    Ensemble,
    LoadView,
    Probabilities,
    RowAnswer,
    RowEvidence,
    State,
)

_T = TypeVar("_T")


def the_first_two(ensemble: Ensemble) -> Static:
    return Static(ensemble, 0b11)


class _Faulty(Static):
    """Faults in one method, as told; `asks` what there is not."""

    def __init__(self, ensemble: Ensemble, method: str) -> None:
        super().__init__(ensemble, 0b11)
        self._method = method
        self.name = f"faulty {method}"

    def init(self) -> State:
        return self._or_fault("init", super().init())

    def steer(self, state: State, load: LoadView) -> State:
        return self._or_fault("steer", super().steer(state, load))

    def select(self, state: State, row: RowEvidence) -> Choice:
        if self._method == "asks":
            return Choice((17,))
        if self._method == "leaves":
            return ENOUGH
        return self._or_fault("select", super().select(state, row))

    def combine(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        return self._or_fault("combine", super().combine(state, evidence))

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        return self._or_fault("observe", super().observe(state, context, evidence, label))

    def _or_fault(self, method: str, told: _T) -> _T:
        if method == self._method:
            raise ZeroDivisionError(method)
        return told


def _faulty(method: str) -> Callable[[Ensemble], _Faulty]:
    return lambda ensemble: _Faulty(ensemble, method)


in_init, in_steer, in_select, in_combine, in_observe, asks, leaves = map(
    _faulty, ("init", "steer", "select", "combine", "observe", "asks", "leaves")
)


def nothing_at_all(ensemble: Ensemble) -> object:
    return object()


def cannot_be_made(ensemble: Ensemble) -> Static:
    raise ZeroDivisionError("made")
