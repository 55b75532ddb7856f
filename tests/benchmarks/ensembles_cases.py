"""What `make bench-ensembles` compares: the settings, the contenders, and one run of one of them.

A  images, four members of 1 to 15 times the cost, on one device; goal 100 ms
C  digits, three peers with Rafiki's latencies (§7.2.2), one a device; goal 560 ms
D  tables, five members on one device; goal 50 ms
E  as C, on one device

Load is relative to the best member alone, in full batches, on one device. The latencies of A and D are
chosen, those of C and E are the paper's: 272, 172 and 128 rows/s in batches of 64. The same setting, split
and seed give every contender the very same rows at the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np
from scipy.optimize import linprog

from server.ensemble.evidence import fit_evidence
from server.ensemble.plan import Plan, fit_plans, solve
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember, SelectionPolicy
from server.scheduling.simulation.arrivals import bursty, poisson, sine, sine_rate
from server.scheduling.simulation.ensembles import (
    EnsembleLoad,
    EnsembleResult,
    simulate_ensemble,
)
from tests.benchmarks.ensembles_data import FittedSplit, fitted, split_of
from tests.benchmarks.schedule_cases import Affine

MAX_BATCH = 64
R_U = 572 / 128  # Rafiki's highest throughput, of its three models; r_l is 1
_LONGER = 4  # times the rows, where the goal would be long beside the simulation
B = (16, 32, 48, 64)


def _ms(fixed: float, per_row: float) -> Affine:
    return Affine(fixed / 1000, per_row / 1000)


@dataclass(frozen=True)
class Setting:
    """An ensemble, where its members are, and what is promised. latencies: by accuracy, ascending."""

    name: str
    family: str
    latencies: tuple[Affine, ...]
    devices: tuple[int, ...]
    slo_s: float


_RAFIKI = (_ms(16.7, 3.333), _ms(26.4, 5.4), _ms(35.5, 7.26))
SETTINGS = {
    "A": Setting("A", "images", (_ms(1, 0.03), _ms(1.5, 0.06), _ms(3, 0.15), _ms(6, 0.4)), (0, 0, 0, 0), 0.1),
    "C": Setting("C", "digits", _RAFIKI, (0, 1, 2), 0.56),
    "D": Setting(
        "D",
        "tables",
        (_ms(1, 0.05), _ms(1, 0.08), _ms(2, 0.1), _ms(3, 0.2), _ms(4, 0.3)),
        (0, 0, 0, 0, 0),
        0.05,
    ),
    "E": Setting("E", "digits", _RAFIKI, (0, 0, 0), 0.56),
}


@dataclass(frozen=True)
class Cell:
    setting: str
    load: float
    arrivals: str = "Poisson"

    @property
    def title(self) -> str:
        return f"{self.setting} at {self.load:g} {self.arrivals}"


QUICK = (Cell("A", 1.1), Cell("A", 1.5), Cell("C", R_U, "sine"), Cell("D", 1.5), Cell("E", 1.1))
FULL = (
    *(Cell("A", load) for load in (0.3, 0.6, 0.9, 1.1, 1.5)),
    Cell("A", 1.1, "sine"),
    Cell("A", 0.9, "bursts"),
    *(Cell("C", load) for load in (1.0, 2.0, 3.0, R_U)),
    Cell("C", 1.0, "sine"),
    Cell("C", R_U, "sine"),
    *(Cell("D", load) for load in (0.6, 0.9, 1.1, 1.5)),
    Cell("D", 0.9, "bursts"),
    *(Cell("E", load) for load in (0.6, 0.9, 1.1, 1.5)),
    Cell("E", 1.1, "sine"),
    Cell("E", 0.9, "bursts"),
)


@dataclass(frozen=True)
class Contender:
    """`rule`: how members combine; batching and refusals as in `simulate_ensemble`.

    fitted_rows: fitted on so many only · l_hat: predicted / true latencies
    """

    name: str
    policy: str
    rule: str = "log_pool"
    batching: str = "goodput"
    refuses: bool = True
    fitted_rows: int | None = None
    l_hat: float = 1.0


OURS = "value"
ACTOR = "actor_critic"
BOUND = "fluid bound"
CONTENDERS = (
    Contender("best, Alg. 3", "best", "vote", "greedy", False),
    Contender("all, Alg. 3, vote", "all", "vote", "greedy", False),
    Contender("async, Alg. 3", "async", "vote", "greedy", False),
    Contender("best", "best"),
    Contender("all", "all"),
    Contender("async", "async"),
    Contender("slackfit", "slackfit"),
    Contender("gear", "gear"),
    Contender(ACTOR, ACTOR),
    Contender(OURS, "value"),
)


# What is believed is wrong, or known from few rows: (the cells, value and gear so impaired).
IMPAIRED_CELLS = (Cell("A", 1.5), Cell("C", R_U, "sine"), Cell("D", 1.5), Cell("E", 1.1))
IMPAIRMENTS: Mapping[str, Mapping[str, float]] = {
    "100 rows": {"fitted_rows": 100},
    "400 rows": {"fitted_rows": 400},
    "l̂ 30 % low": {"l_hat": 0.7},
    "l̂ 30 % high": {"l_hat": 1.3},
}


def impaired(policy: str, how: str) -> Contender:
    options = IMPAIRMENTS[how]
    rows = options.get("fitted_rows")
    return Contender(
        f"{policy}, {how}",
        policy,
        fitted_rows=None if rows is None else int(rows),
        l_hat=options.get("l_hat", 1.0),
    )


@dataclass(frozen=True)
class Prepared:
    """A split in a setting, as the members stand by their cost."""

    ensemble: Ensemble
    fitted: FittedSplit
    best: int

    @property
    def capacity(self) -> float:
        """Rows per second of the best member alone."""
        member = self.ensemble.members[self.best]
        return MAX_BATCH / (member.fixed_s + MAX_BATCH * member.per_row_s)


@cache
def prepared(
    name: str, number: int, rule: str = "log_pool", rows: int | None = None, l_hat: float = 1.0
) -> Prepared:
    """The cheaper members are the less accurate ones on the rows for fitting."""
    setting = SETTINGS[name]
    split = fitted(split_of(setting.family, number), rows, rule)
    order = sorted(range(len(split.accuracies)), key=lambda member: split.accuracies[member])
    ranks = {member: rank for rank, member in enumerate(order)}
    members = tuple(
        EnsembleMember(
            f"m{member}",
            accuracy,
            l_hat * setting.latencies[ranks[member]].fixed_s,
            l_hat * setting.latencies[ranks[member]].per_row_s,
            setting.devices[ranks[member]],
        )
        for member, accuracy in enumerate(split.accuracies)
    )
    return Prepared(Ensemble(members, split.evidence), split, order[-1])


def latencies_of(ensemble: Ensemble) -> list[Affine]:
    return [Affine(member.fixed_s, member.per_row_s) for member in ensemble.members]


@cache
def policy_of(name: str, number: int, contender: Contender) -> SelectionPolicy:
    ensemble = _case(name, number, contender).ensemble
    if contender.policy == ACTOR:
        from tests.benchmarks.ensembles_actor import actor_of  # which is trained on these very settings

        ensemble = replace(ensemble, actor=actor_of(name))
    return selection_policy(contender.policy, ensemble)


def _case(name: str, number: int, contender: Contender) -> Prepared:
    return prepared(name, number, contender.rule, contender.fitted_rows, contender.l_hat)


def arrivals_of(cell: Cell, rate: float, rows: int, seed: int) -> list[float]:
    random, duration_s = Random(f"{seed} arrivals"), rows / rate
    slo_s = SETTINGS[cell.setting].slo_s
    if cell.arrivals == "sine":
        return sine(random, rate, duration_s, duration_s, slo_s / 10)
    if cell.arrivals == "bursts":
        return bursty(random, rate, duration_s, period_s=5 * slo_s)
    return poisson(random, rate, duration_s)


def run(
    cell: Cell, contender: Contender, number: int, rows: int, policy: SelectionPolicy | None = None
) -> EnsembleResult:
    """One simulation of about `rows` rows; the split's number is the seed of the arrivals too."""
    case = _case(cell.setting, number, contender)
    load = EnsembleLoad(
        arrivals_s=_arrivals(cell, number, rows),
        slo_s=SETTINGS[cell.setting].slo_s,
        latencies=[latency.times(1 / contender.l_hat) for latency in latencies_of(case.ensemble)],
        predicted=latencies_of(case.ensemble),
        outcomes=case.fitted.judging,
        max_batch=MAX_BATCH,
        batch_sizes=B,
        seed=number,
    )
    return simulate_ensemble(
        load,
        case.ensemble,
        policy or policy_of(cell.setting, number, contender),
        batching=contender.batching,
        refuses=contender.refuses,
    )


def _arrivals(cell: Cell, number: int, rows: int) -> list[float]:
    rows *= _LONGER if cell.arrivals == "sine" or cell.setting == "C" else 1
    return arrivals_of(cell, cell.load * prepared(cell.setting, number).capacity, rows, number)


_BOUND_PRICES = 24
_SINE_STEPS = 16


@cache
def _mixes(name: str, number: int) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
    """Plans that know the rows for judging, with members in full batches: accuracies, and device seconds."""
    case = prepared(name, number)
    judging = case.fitted.judging
    evidence = fit_evidence(len(case.ensemble.members), judging.confidence, judging.correct)
    full = tuple(
        EnsembleMember(m.name, m.accuracy, 0.0, m.per_row_s + m.fixed_s / MAX_BATCH, m.device)
        for m in case.ensemble.members
    )
    ensemble = Ensemble(full, evidence)
    least_s = min(member.cost_s for member in full)
    plans = []
    for price in (0.0, *(np.logspace(-4, 0, _BOUND_PRICES) * 2 / least_s).tolist()):
        if ensemble.devices == 1:
            plans.append(solve(ensemble, (price,)))
            continue
        tilts = np.random.default_rng(number).dirichlet(np.ones(ensemble.devices), 30) * ensemble.devices
        plans += [solve(ensemble, (price * tilt).tolist()) for tilt in (np.ones(ensemble.devices), *tilts)]
    return [plan.accuracy for plan in plans], [plan.remaining_s[0].tolist() for plan in plans]


def fluid_bound(cell: Cell, number: int) -> float | None:
    """The best mix of plans if rows were a fluid in full batches, and the rows judged were those counted.

    Shares of the rows for each plan, the rest refused, so that no device works more than all of its time.
    """
    if cell.arrivals == "bursts":
        return None  # a burst may be worked off after it, within the goal
    mean = cell.load * prepared(cell.setting, number).capacity
    if cell.arrivals == "Poisson":
        return _bound_at(cell.setting, number, mean)
    rates = [sine_rate(mean, at, _SINE_STEPS) for at in range(_SINE_STEPS)]
    return sum(rate * _bound_at(cell.setting, number, rate) for rate in rates) / sum(rates)


def _bound_at(name: str, number: int, rate: float) -> float:
    accuracies, uses_s = _mixes(name, number)
    limits = [*(rate * np.array(uses_s).T).tolist(), [1.0] * len(accuracies)]
    found = linprog([-each for each in accuracies], A_ub=limits, b_ub=[1.0] * len(limits), bounds=(0, 1))
    return float(-found.fun)


def unanswerable(cell: Cell, number: int, rows: int) -> float:
    """Share of a run's rows that no policy at all could answer in time: of a fluid of full batches.

    Every device has its fastest member; what comes while as much waits as they can do in a goal is lost.
    """
    case = prepared(cell.setting, number)
    fastest: dict[int, float] = {}
    for member in case.ensemble.members:
        rate = MAX_BATCH / (member.fixed_s + MAX_BATCH * member.per_row_s)
        fastest[member.device] = max(rate, fastest.get(member.device, 0.0))
    able = sum(fastest.values())
    waiting, before_s, lost = 0.0, 0.0, 0
    arrivals_s = _arrivals(cell, number, rows)
    for at_s in arrivals_s:
        waiting = max(0.0, waiting - able * (at_s - before_s))
        before_s = at_s
        if waiting + 1 > able * SETTINGS[cell.setting].slo_s:
            lost += 1
        else:
            waiting += 1
    return lost / max(1, len(arrivals_s))


def alls_accuracy_at(name: str, number: int, within: float = 0.002) -> tuple[float, float, float]:
    """Of the cheapest fitted plan that is as accurate as `all`, but for `within`, on the rows judged:

    its accuracy, that of all members, and its device time beside theirs, in full batches.
    """
    case = prepared(name, number)
    costs = [member.per_row_s + member.fixed_s / MAX_BATCH for member in case.ensemble.members]
    everyone = case.fitted.judging.correct[(1 << len(costs)) - 1]
    target = sum(everyone) / len(everyone)
    followed = [_followed(case, plan, costs) for plan in fit_plans(case.ensemble)]
    enough = [each for each in followed if each[0] >= target - within] or [max(followed)]
    accuracy, cost_s = min(enough, key=lambda each: each[1])
    return accuracy, target, cost_s / sum(costs)


def _followed(case: Prepared, plan: Plan, costs: Sequence[float]) -> tuple[float, float]:
    """Accuracy, and device seconds a row, if every row judged follows the plan to its end."""
    judging, evidence = case.fitted.judging, case.ensemble.evidence
    right, spent_s = 0, 0.0
    for row in range(judging.rows):
        subset, state = 0, 0
        while not (choice := plan.choices[state]).is_enough:
            spent_s += costs[choice.ask[0]]
            subset |= 1 << choice.ask[0]
            state = evidence.state_of(subset, judging.confidence[subset][row])
        right += judging.correct[subset][row]
    return right / judging.rows, spent_s / judging.rows


Measure = Callable[[EnsembleResult], float]
MEASURES: Mapping[str, Measure] = {
    "G": lambda result: 100 * result.goodput,
    "accuracy": lambda result: 100 * result.accuracy,
    "late": lambda result: 100 * result.late / max(1, result.offered),
    "refused": lambda result: 100 * result.refused / max(1, result.offered),
    "β=0": lambda result: 100 * result.reward(0.0),
    "β=.5": lambda result: 100 * result.reward(0.5),
    "β=1": lambda result: 100 * result.reward(1.0),
    "β=2": lambda result: 100 * result.reward(2.0),
    "device ms a row": lambda result: 1000 * result.busy_s / max(1, result.offered),
    "members": lambda result: result.asked / max(1, result.answered),
}
