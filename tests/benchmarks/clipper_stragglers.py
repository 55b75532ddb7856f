"""Clipper's Figure 9: ensembles of 2 to 16 random forests, a device each, whose batches sometimes straggle.

A batch takes l(b) = 2 ms + 0.1 ms a row, one in two hundred ten times that, and all of it varies (σ = 0.2 in
the log). The goal is Clipper's 20 ms; 2,000 rows come in a second, a quarter of what full batches would let a
device answer. Every row asks every member. Simulated, by the pool that serves.

wait for all        answered when the last member has answered, whenever that is
the rest averaged   Clipper §5.2.2: at the goal, with the mean of what each missing member usually says
at the goal         ours: at the goal, by the weights of those that have answered (log_pool); of more than six
                    members not all subsets have weights of their own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Generic, TypeVar

import numpy as np

from server.ensemble.evidence import members_of
from server.ensemble.fit import combined, fit_combination
from server.ensemble.policies.fixed import all_members
from server.ensemble.selection import Ensemble, EnsembleMember
from server.ensemble.subset_answers import fit_ensemble
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.ensembles import (
    EnsembleLoad,
    EnsembleResult,
    MemberOutcomes,
    simulate_ensemble,
)
from tests.benchmarks.clipper_data import Answers, Floats, forests
from tests.benchmarks.schedule_cases import Affine

SIZES = (2, 4, 6, 8, 12, 16)
SLO_S = 0.02
MAX_BATCH = 64
JUDGED = 2000  # rows, of which those that arrive are drawn
OURS, PAPERS, WAITS = "at the goal", "the rest averaged", "wait for all"
CONTENDERS = (OURS, PAPERS, WAITS)
_LATENCY = Affine(0.002, 0.0001)
_ROWS_PER_S = 2000.0
_STRAGGLING, _TIMES = 0.005, 10.0
_JITTER = 0.2


@dataclass(frozen=True)
class Outcome:
    """Latencies in ms. Shares of the rows, %: late, refused, answered without all members, right."""

    mean_ms: float
    p99_ms: float
    late: float
    refused: float
    incomplete: float
    missing: float  # of all members' answers
    accuracy: float
    good: float  # right and in time, of the offered


def outcomes(number: int, members: int, rows: int) -> dict[str, Outcome]:
    """Every contender on the same rows, which come at the same times."""
    return {name: _outcome(name, number, members, rows) for name in CONTENDERS}


def _outcome(name: str, number: int, members: int, rows: int) -> Outcome:
    ensemble, tables = _prepared(number, members)
    random = Random(f"{number} stragglers of {members}")
    load = EnsembleLoad(
        poisson(Random(f"{number} arrivals"), _ROWS_PER_S, rows / _ROWS_PER_S),
        SLO_S,
        [_Straggling(_LATENCY, Random(random.random())) for _ in range(members)],
        tables[PAPERS if name == PAPERS else OURS],
        max_batch=MAX_BATCH,
        predicted=[_LATENCY] * members,
        jitter=_JITTER,
        seed=number,
    )
    waits = name == WAITS
    result = simulate_ensemble(
        load,
        ensemble,
        all_members(ensemble),
        # Clipper's own batching where it is Clipper's rule, and where nothing may be refused.
        batching="goodput" if name == OURS else "aimd",
        refuses=not waits,
    )
    return _told(result, members)


def _told(result: EnsembleResult, members: int) -> Outcome:
    latencies_ms = np.array([1000 * latency_s for _, latency_s, _ in result.answered_at])
    complete = result.members_of.count(members)
    return Outcome(
        float(latencies_ms.mean()),
        float(np.quantile(latencies_ms, 0.99)),
        100 * result.late / result.offered,
        100 * result.refused / result.offered,
        100 * (1 - complete / result.answered),
        100 * (1 - result.asked / (members * result.answered)),
        100 * result.accuracy,
        100 * result.goodput,
    )


@dataclass(frozen=True)
class _Straggling:
    """What batches really take."""

    latency: Affine
    random: Random

    def __call__(self, rows: int) -> float:
        return self.latency(rows) * (_TIMES if self.random.random() < _STRAGGLING else 1.0)


@cache
def _prepared(number: int, members: int) -> tuple[Ensemble, Mapping[str, MemberOutcomes]]:
    """The first so many forests: their ensemble, and how each rule answers the rows for judging."""
    fitting, judging = (_first(each, members) for each in forests(number, JUDGED))
    names = [f"m{member}" for member in range(members)]
    fit = fit_combination(fitting.told, fitting.labels, members=names, groups=fitting.groups.tolist())
    about = [
        EnsembleMember(name, accuracy, _LATENCY.fixed_s, _LATENCY.per_row_s, device)
        for device, (name, accuracy) in enumerate(zip(names, fitting.accuracies, strict=True))
    ]
    ensemble = fit_ensemble(about, fit, fitting.told, fitting.labels)
    usual = fitting.told.mean(axis=1)

    def pooled(subset: int) -> Floats:
        taking_part = members_of(subset)
        return combined(fit, taking_part, judging.told[list(taking_part)])

    def averaged(subset: int) -> Floats:
        missing = [member for member in range(members) if not subset >> member & 1]
        total: Floats = judging.told[list(members_of(subset))].sum(axis=0) + usual[missing].sum(axis=0)
        return total / members

    counted = frozenset(ensemble.evidence.subsets)
    tables = {OURS: _tables(judging, counted, pooled), PAPERS: _tables(judging, counted, averaged)}
    return ensemble, tables


def _first(answers: Answers, members: int) -> Answers:
    return Answers(answers.told[:members], answers.labels, answers.groups)


_Value = TypeVar("_Value")


class _Filled(dict[int, Sequence[_Value]], Generic[_Value]):
    """By subset, made when it is first asked for: of 16 members there are 65,535."""

    def __init__(self, make: Callable[[int], Sequence[_Value]]) -> None:
        super().__init__({1: make(1)})
        self._make = make

    def __missing__(self, subset: int) -> Sequence[_Value]:
        made = self[subset] = self._make(subset)
        return made


def _tables(judging: Answers, counted: frozenset[int], answered: Callable[[int], Floats]) -> MemberOutcomes:
    """counted: the subsets that have states of evidence; of others nobody asks how sure they are."""
    unasked = [0.0] * len(judging.labels)

    def confidence(subset: int) -> Sequence[float]:
        if subset not in counted:
            return unasked
        told: list[float] = answered(subset).max(axis=1).tolist()
        return told

    def correct(subset: int) -> Sequence[bool]:
        told: list[bool] = (answered(subset).argmax(axis=1) == judging.labels).tolist()
        return told

    return MemberOutcomes(_Filled(confidence), _Filled(correct))
