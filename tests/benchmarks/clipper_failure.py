"""Clipper's Figure 8: the best of five members fails from 5,000 to 10,000 of 20,000 queries, and comes back.

A query is answered first; then, if it is one of those that are labelled, the label teaches. Two failures:

wrong classes    the member names the class after the right one's place, as surely as before (a wrong list of
                 labels): its mistakes are sure, and always the same
garbled input    the member sees its pixels out of order: its own answers to that

`eg` is what ships: log-weights by exponentiated gradient (server/ensemble/feedback.py), its constants as they
are. `exp3` and `exp4` are the paper's (server/ensemble/policies/bandits.py); of their rates, which the paper
does not give, and of those of `hedge` (Freund & Schapire 1997: one member, drawn by its weight) and of `fixed
share` (Herbster & Warmuth 1998: the members' average by weights of which a little always goes to all) the
best one in hindsight is shown, on these very queries. `omniscient` answers by fitted weights, without the
member while it fails.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.ensemble.feedback import adapted, begun, learned
from server.ensemble.fit import Fit, combined, fit_combination
from server.ensemble.log_pool import at_temperatures
from server.ensemble.policies.bandits import Exp3, Exp4
from server.ensemble.selection import Ensemble, EnsembleMember, RowEvidence
from server.ensemble.subset_answers import fit_ensemble
from tests.benchmarks.clipper_data import FailingSplit, Floats, Labels, failing_split

QUERIES = 20_000
LABELLED = {"100 %": 1.0, "10 %": 0.1, "1 %": 0.01}
FAILURES = ("wrong classes", "garbled input")
OURS = "eg"
BOUND = "omniscient"
LEARNERS = (OURS, "exp3", "exp4", "hedge", "fixed share")
STILL = ("fixed weights", "best member", "best of the others")
CONTENDERS = (*LEARNERS, *STILL, BOUND)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
_SHARED = (0.003, 0.01)  # of a weight, at each label; the latter as our pull
POINTS = 100  # of a curve

Wrong = NDArray[np.bool_]  # by query, whether it was answered wrongly


@dataclass(frozen=True)
class Run:
    """One contender on one stream. Shares of wrong answers, %. curve: cumulative, at 100 queries in turn."""

    whole: float
    failing: float
    after: float  # from the end of the failure on
    curve: list[float]
    rate: float | None = None


@dataclass(frozen=True)
class Stream:
    """Queries in order. told: [members, queries, classes], as answered, failure included."""

    fit: Fit
    told: Floats
    labels: Labels
    labelled: NDArray[np.bool_]
    best: int
    seed: int

    @property
    def fails(self) -> slice:
        return slice(len(self.labels) // 4, len(self.labels) // 2)


def runs(number: int, failure: str, share: float, queries: int = QUERIES) -> dict[str, Run]:
    """Every contender on the same queries, in the same order, with the same ones labelled."""
    stream = stream_of(failing_split(number, queries), number, failure, share)
    found = {}
    for name, answered in _CONTENDERS.items():
        wrong, rate = answered(stream)
        found[name] = _run(stream, wrong, rate)
    return found


def stream_of(split: FailingSplit, number: int, failure: str, share: float) -> Stream:
    everybody = tuple(range(len(split.fitting.told)))
    subsets = [*((member,) for member in everybody), _without(everybody, split.best), everybody]
    fit = fit_combination(
        split.fitting.told, split.fitting.labels, subsets, groups=split.fitting.groups.tolist()
    )
    told, labels = split.judging.told.copy(), split.judging.labels
    fails = slice(len(labels) // 4, len(labels) // 2)
    if failure == "wrong classes":
        told[split.best, fails] = np.roll(told[split.best, fails], 1, axis=1)
    else:
        told[split.best, fails] = split.garbled[fails]
    labelled = np.random.default_rng((number, 31)).random(len(labels)) < share
    return Stream(fit, told, labels, labelled, split.best, number)


def by_learned_weights(stream: Stream) -> tuple[Wrong, None]:
    """What ships: every query by the weights of its time, which every label moves."""
    fit, everybody = stream.fit, tuple(range(len(stream.told)))
    known = at_temperatures(stream.told, fit.temperatures)
    feedback, answers, answered = begun(fit.members, fit), [], 0
    for row in [*np.flatnonzero(stream.labelled).tolist(), len(stream.labels) - 1]:
        until = row + 1
        answers.append(combined(adapted(fit, feedback), everybody, stream.told[:, answered:until]))
        answered = until
        if stream.labelled[row]:
            feedback = learned(feedback, fit, known[:, row:until], [int(stream.labels[row])])
    return np.concatenate(answers).argmax(axis=1) != stream.labels, None


def _exp3(stream: Stream, rate: float) -> Wrong:
    policy = Exp3(_ensemble(stream), rate)
    state, draws = policy.init(), np.random.default_rng((stream.seed, 32)).random(len(stream.labels))
    wrong = np.zeros(len(stream.labels), np.bool_)
    named = stream.told.argmax(axis=2)
    for row, (label, labelled) in enumerate(zip(stream.labels.tolist(), stream.labelled, strict=True)):
        (member,) = policy.select(state, RowEvidence(draw=float(draws[row]))).ask
        wrong[row] = named[member, row] != label
        if labelled:
            state = policy.observe(state, "", {member: stream.told[member, row].tolist()}, label)
    return wrong


def exp4(stream: Stream, rate: float) -> Wrong:
    policy = Exp4(_ensemble(stream), rate)
    state = policy.init()
    wrong = np.zeros(len(stream.labels), np.bool_)
    for row, (label, labelled) in enumerate(zip(stream.labels.tolist(), stream.labelled, strict=True)):
        evidence = dict(enumerate(stream.told[:, row].tolist()))
        wrong[row] = policy.combine(state, evidence).label != label
        if labelled:
            state = policy.observe(state, "", evidence, label)
    return wrong


def _hedge(stream: Stream, rate: float) -> Wrong:
    weights = _weights(stream, rate, shared=0.0)
    draws = np.random.default_rng((stream.seed, 33)).random(len(stream.labels))
    drawn = (weights.cumsum(axis=1) < draws[:, None]).sum(axis=1).clip(max=weights.shape[1] - 1)
    wrong: Wrong = stream.told.argmax(axis=2)[drawn, np.arange(len(draws))] != stream.labels
    return wrong


def _fixed_share(stream: Stream, rate: float) -> Wrong:
    return min((_averaged(stream, rate, shared) for shared in _SHARED), key=lambda wrong: wrong.mean())


def _averaged(stream: Stream, rate: float, shared: float) -> Wrong:
    averaged = np.einsum("qm,mqc->qc", _weights(stream, rate, shared=shared), stream.told)
    wrong: Wrong = averaged.argmax(axis=1) != stream.labels
    return wrong


def _weights(stream: Stream, rate: float, shared: float) -> Floats:
    """[queries, members]: the weights by which each query is answered, from every member's mistakes."""
    losses = stream.told.argmax(axis=2) != stream.labels
    faded = np.exp(-rate * losses.astype(np.float64)).T
    members = len(stream.told)
    weights = np.full(members, 1 / members)
    found = np.empty((len(stream.labels), members))
    for row, labelled in enumerate(stream.labelled.tolist()):
        found[row] = weights
        if labelled:
            weights = weights * faded[row]
            weights /= weights.sum()
            weights = (1 - shared) * weights + shared / members
    return found


def _still(subset_of: Callable[[Stream], tuple[int, ...]]) -> Callable[[Stream], tuple[Wrong, None]]:
    return lambda stream: (_by_fit(stream, subset_of(stream)), None)


def _by_fit(stream: Stream, subset: tuple[int, ...]) -> Wrong:
    answers = combined(stream.fit, subset, stream.told[list(subset)])
    wrong: Wrong = answers.argmax(axis=1) != stream.labels
    return wrong


def _omniscient(stream: Stream) -> tuple[Wrong, None]:
    everybody = _everybody(stream)
    wrong = _by_fit(stream, everybody)
    wrong[stream.fails] = _by_fit(stream, _without(everybody, stream.best))[stream.fails]
    return wrong, None


def _in_hindsight(answered: Callable[[Stream, float], Wrong]) -> Callable[[Stream], tuple[Wrong, float]]:
    def best(stream: Stream) -> tuple[Wrong, float]:
        return min(((answered(stream, rate), rate) for rate in RATES), key=lambda found: found[0].mean())

    return best


def _everybody(stream: Stream) -> tuple[int, ...]:
    return tuple(range(len(stream.told)))


def _second(stream: Stream) -> tuple[int, ...]:
    """The best of the others by what was known at the fit."""
    singles = {each.members: each.accuracy for each in stream.fit.subsets if len(each.members) == 1}
    return max((one for one in singles if one != (stream.best,)), key=singles.__getitem__)


_CONTENDERS: Mapping[str, Callable[[Stream], tuple[Wrong, float | None]]] = {
    OURS: by_learned_weights,
    "exp3": _in_hindsight(_exp3),
    "exp4": _in_hindsight(exp4),
    "hedge": _in_hindsight(_hedge),
    "fixed share": _in_hindsight(_fixed_share),
    "fixed weights": _still(_everybody),
    "best member": _still(lambda stream: (stream.best,)),
    "best of the others": _still(_second),
    BOUND: _omniscient,
}


def _without(everybody: Sequence[int], member: int) -> tuple[int, ...]:
    return tuple(each for each in everybody if each != member)


def _ensemble(stream: Stream) -> Ensemble:
    """What the paper's policies are made for; they look at no latency and no evidence."""
    members = [
        EnsembleMember(name, each.accuracy, 1e-3, 1e-4)
        for name, each in zip(stream.fit.members, stream.fit.subsets, strict=False)
    ]
    return fit_ensemble(members, stream.fit, stream.told[:, :100], stream.labels[:100])


def _run(stream: Stream, wrong: Wrong, rate: float | None) -> Run:
    at = np.linspace(0, len(wrong), POINTS + 1)[1:].astype(int)
    cumulative = 100 * wrong.cumsum()[at - 1] / at
    return Run(
        100 * float(wrong.mean()),
        100 * float(wrong[stream.fails].mean()),
        100 * float(wrong[stream.fails.stop :].mean()),
        [round(float(each), 3) for each in cumulative],
        rate,
    )


def strongest(found: Mapping[str, Sequence[Run]]) -> str:
    """Of all but ours and the omniscient one, the one that errs least in the mean over the splits."""
    others = [name for name in found if name not in (OURS, BOUND)]
    return min(others, key=lambda name: statistics.mean(each.whole for each in found[name]))
