"""Plans: from each state of evidence, stop, or which member to ask; solved offline for each price of time.

    W(s) = max(q(s), max over m of Q_m(s))     Q_m(s) = mean of W(child) − λ_device(m) · c_m

q(s) is how often the answer from what is known is right, c_m what a row costs on member m, λ what a second of
a device is worth. A row that nobody has answered is never left so. Of the plans for many prices those stay
that no other beats at less cost: the gears that a load is met with (gearing.py).

A plan reckons with what was counted on the rows that it was made for, and as if rows of one state were
alike; those that it goes on asking are harder. So it promises more than it keeps. Where the rows are known
one by one (`JudgedRows`), its accuracy is what plans for the same prices, made without a fold of the rows,
come to when they are followed on the rows of that fold. What few rows say of a state of evidence is little:
then plans that ask every row of the same members, whatever these say, are among those to choose from.
Pure; numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from server.ensemble.evidence import NOTHING, EvidenceStates, JudgedRows, members_of, subset_of
from server.ensemble.selection import ENOUGH, GOLDEN, Choice, Ensemble

__all__ = [
    "MANY_ROWS",
    "Plan",
    "drawn_together",
    "fit_plans",
    "fixed_plan",
    "judged",
    "solve",
    "undominated",
]

Floats = NDArray[np.float64]

MANY_ROWS = 200  # from which on what they say of a state is worth more than asking all rows the same
_PRICES = 15  # of one device, beside 0
_GEARS = 13  # of several
_ROUNDS, _LAST_ROUNDS = 30, 20
_TIED = 0.03  # members of other devices that are worth so little less may be asked instead
_EVEN = 1e-9
_NOBODY = -1
_KAPPA = 20.0  # observations that a gain over all bins counts for, beside those of a bin


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """choices: by state · remaining_s: states by devices, what a row still costs from there, in expectation.

    accuracy: how often it is right, in expectation, if no row is cut short, by rows that it was not made for
    """

    choices: tuple[Choice, ...]
    remaining_s: Floats
    accuracy: float
    prices: tuple[float, ...] = ()  # none where it does not heed what members say

    @property
    def uses_s(self) -> float:
        """Seconds that a row takes of the device that it takes most of."""
        return float(self.remaining_s[NOTHING].max())

    @property
    def device_s(self) -> float:
        """Seconds that a row takes of all devices together."""
        return float(self.remaining_s[NOTHING].sum())


def fit_plans(ensemble: Ensemble) -> tuple[Plan, ...]:
    """The gears of an ensemble, the richest first; at least one."""
    if ensemble.devices == 1:
        least_s = min(ensemble.members[number].cost_s for number in ensemble.held)
        prices = [0.0, *(np.logspace(-4, 0, _PRICES) * 2 / least_s).tolist()]
        plans = [judged(ensemble, solve(ensemble, (price,))) for price in prices]
        held = subset_of(ensemble.held)
        steady = [subset for subset in ensemble.evidence.subsets if not subset & ~held]
        if ensemble.evidence.rows[NOTHING] >= MANY_ROWS:
            steady = steady[-1:]  # of all members
        plans += [plan for subset in steady if (plan := _steady_plan(ensemble, subset)) is not None]
        return _freed(undominated(plans))
    most_s, fewest_s = _extremes_s(ensemble)
    aims = np.geomspace(most_s, fewest_s, _GEARS).tolist()
    plans = [solve(ensemble, _prices_for(ensemble, aim)) for aim in aims]
    plans = [solve(ensemble, (0.0,) * ensemble.devices), *plans]
    return _freed(undominated([judged(ensemble, plan) for plan in plans]))


def judged(ensemble: Ensemble, plan: Plan) -> Plan:
    """The plan, with the accuracy that plans for its prices have on rows which they were not made for.

    As it is where the rows are not known one by one.
    """
    rows = ensemble.evidence.judged
    if rows is None:
        return plan
    right = rows.right()
    lost = 0.0
    for fold in range(rows.folds):
        without = replace(ensemble, evidence=ensemble.evidence.without(fold))
        held_out = np.flatnonzero(rows.fold == fold)
        answered = _followed(without, _choices(without, plan.prices), rows, held_out)
        lost += float((right[-1, held_out] - right[answered, held_out]).sum())
    everyone = ensemble.evidence.accuracy(ensemble.evidence.subsets[-1])
    return replace(plan, accuracy=max(0.0, everyone - lost / len(rows.fold)))


def _followed(
    ensemble: Ensemble, choices: Sequence[Choice], judged: JudgedRows, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """By whom these rows are answered that follow the choices to their end: places among the subsets."""
    evidence = ensemble.evidence
    most = max(len(choice.ask) for choice in choices)
    ask = np.full((evidence.states, max(1, most)), _NOBODY)
    until = np.ones((evidence.states, max(1, most)))  # of members as good as one another: shares, added up
    for at, choice in enumerate(choices):
        if choice.ask:
            paces = np.cumsum([1 / ensemble.members[number].cost_s for number in choice.ask])
            ask[at, : len(choice.ask)] = choice.ask
            until[at, : len(choice.ask)] = paces / paces[-1]
    place = np.zeros(1 << evidence.members, np.intp)  # of a subset among those counted
    first = np.zeros(1 << evidence.members, np.intp)
    place[list(evidence.subsets)] = np.arange(len(evidence.subsets))
    first[list(evidence.subsets)] = [evidence.first[each] for each in evidence.subsets]
    lot = rows * GOLDEN % 1
    subset, state = np.zeros(len(rows), np.intp), np.zeros(len(rows), np.intp)
    going = np.arange(len(rows))
    while len(going):
        here = state[going]
        drawn = np.minimum((until[here] <= lot[going, None]).sum(axis=1), most - 1)
        member = ask[here, drawn]
        going, member = going[member != _NOBODY], member[member != _NOBODY]
        subset[going] |= 1 << member
        known = subset[going]
        state[going] = first[known] + judged.bins[place[known], rows[going]]
    found: NDArray[np.intp] = place[subset]
    return found


def solve(ensemble: Ensemble, prices: Sequence[float]) -> Plan:
    """The best plan where a second of device d is worth prices[d]."""
    return _evaluated(ensemble, _choices(ensemble, prices), tuple(float(price) for price in prices))


def _choices(ensemble: Ensemble, prices: Sequence[float]) -> list[Choice]:
    """By state, what is best there."""
    evidence = ensemble.evidence
    worth = evidence.right.copy()  # W
    asked: list[Floats] = [np.empty(0)] * (len(evidence.subsets) + 1)
    subsets = (0, *evidence.subsets)
    for at in range(len(subsets) - 1, -1, -1):
        subset = subsets[at]
        here = evidence.states_of(subset)
        table = np.full((here.stop - here.start, evidence.members), -np.inf)
        for number in ensemble.held:
            member = ensemble.members[number]
            following = evidence.following.get((subset, number))
            if following is not None:
                after = following @ worth[evidence.states_of(subset | 1 << number)]
                gain = drawn_together(after - evidence.right[here], evidence.rows[here])
                table[:, number] = evidence.right[here] + gain - prices[member.device] * member.cost_s
        asked[at] = table
        best = table.max(axis=1)
        worth[here] = best if subset == 0 else np.maximum(worth[here], best)
    choices: list[Choice] = []
    for at, subset in enumerate(subsets):
        here = evidence.states_of(subset)
        gains = _gains(evidence, subset)
        for state in range(here.start, here.stop):
            row = asked[at][state - here.start]
            best_of = float(row.max())
            if subset and evidence.right[state] >= best_of - _EVEN:
                choices.append(ENOUGH)
            else:
                choices.append(_asking(ensemble, row, gains[state - here.start]))
    return choices


def fixed_plan(ensemble: Ensemble, subset: int) -> Plan:
    """All members of a counted subset for every row, whatever they say. Raises KeyError for another one."""
    evidence = ensemble.evidence
    choices: list[Choice] = []
    remaining = np.zeros((evidence.states, ensemble.devices))
    for known in (0, *evidence.subsets):
        missing = members_of(subset & ~known)
        here = evidence.states_of(known)
        for member in missing:
            remaining[here, ensemble.members[member].device] += ensemble.members[member].cost_s
        for gains in _gains(evidence, known):
            choices.append(Choice(missing, tuple(gains.tolist()), beside=True) if missing else ENOUGH)
    return Plan(tuple(choices), remaining, evidence.accuracy(subset))


def _steady_plan(ensemble: Ensemble, subset: int) -> Plan | None:
    """The members of a counted subset one after the other, whatever they say.

    In an order in which those that have answered were always counted; None where there is no such order.
    """
    evidence = ensemble.evidence
    ahead = _ways_to(subset, evidence)
    if 0 not in ahead:
        return None
    choices: list[Choice] = []
    for known in (0, *evidence.subsets):
        following = ahead.get(known, ())
        gains = _gains(evidence, known).tolist()
        choices += [Choice(following, tuple(each)) if following else ENOUGH for each in gains]
    return replace(_evaluated(ensemble, choices, ()), accuracy=evidence.expected(subset))


def _ways_to(subset: int, evidence: EvidenceStates) -> dict[int, tuple[int, ...]]:
    """Of subsets from which one comes to this one by counted ones: whom to ask next; at its end nobody."""
    ways: dict[int, tuple[int, ...]] = {}
    for known in (*reversed(evidence.subsets), 0):
        missing = members_of(subset & ~known)
        following = [member for member in missing if known | 1 << member in ways]
        if following or not missing:
            ways[known] = tuple(following[:1])
    return ways


def undominated(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Those that no other one beats in accuracy at no more device time; the richest first."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda each: (each.uses_s, -each.accuracy)):
        if not kept or plan.accuracy > kept[-1].accuracy + _EVEN:
            kept.append(plan)
    return tuple(reversed(kept))


def _freed(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """The richest of all is followed where time is worth nothing."""
    richest, *others = plans
    fresh, *rest = richest.choices
    return replace(richest, choices=(replace(fresh, is_free=True), *rest)), *others


def drawn_together(gains: Floats, rows: Floats) -> Floats:
    """What a member gains in each bin of a subset, drawn to what it gains over all bins. All are [bins]."""
    return (rows * gains + _KAPPA * (rows @ gains) / rows.sum()) / (rows + _KAPPA)  # type: ignore[no-any-return]


def _asking(ensemble: Ensemble, values: Floats, gains: Floats) -> Choice:
    """The best member, then those of other devices that are as good as it; the best first."""
    order = np.argsort(-values, kind="stable").tolist()
    best = order[0]
    ask = [best]
    if ensemble.devices > 1:
        taken = {ensemble.members[best].device}
        for number in order[1:]:
            device = ensemble.members[number].device
            if values[number] >= values[best] - _TIED and device not in taken:
                ask.append(number)
                taken.add(device)
    return Choice(tuple(ask), tuple(gains.tolist()))


def _gains(evidence: EvidenceStates, subset: int) -> Floats:
    """States of the subset by members: how much likelier right the answer is with that member's too."""
    here = evidence.states_of(subset)
    gains = np.zeros((here.stop - here.start, evidence.members))
    for number in range(evidence.members):
        following = evidence.following.get((subset, number))
        if following is not None:
            after = following @ evidence.right[evidence.states_of(subset | 1 << number)]
            gains[:, number] = after - evidence.right[here]
    return gains


def _evaluated(ensemble: Ensemble, choices: list[Choice], prices: tuple[float, ...]) -> Plan:
    """What following these choices costs and yields; members as good as one another share rows by pace."""
    evidence = ensemble.evidence
    remaining = np.zeros((evidence.states, ensemble.devices))
    right = evidence.right.copy()
    for subset in (*reversed(evidence.subsets), 0):
        here = evidence.states_of(subset)
        for state in range(here.start, here.stop):
            choice = choices[state]
            if choice.is_enough:
                continue
            paces = [1 / ensemble.members[number].cost_s for number in choice.ask]
            row, hit = np.zeros(ensemble.devices), 0.0
            for number, pace in zip(choice.ask, paces, strict=True):
                share = pace / sum(paces)
                child = evidence.states_of(subset | 1 << number)
                following = evidence.following[subset, number][state - here.start]
                row += share * (following @ remaining[child])
                row[ensemble.members[number].device] += share * ensemble.members[number].cost_s
                hit += share * float(following @ right[child])
            remaining[state], right[state] = row, hit
    return Plan(tuple(choices), remaining, float(right[NOTHING]), prices)


def _extremes_s(ensemble: Ensemble) -> tuple[float, float]:
    """Device seconds a row: of every member for every row, and of the cheapest of each device by turns."""
    there = [ensemble.members[number] for number in ensemble.held]
    on = [[each.cost_s for each in there if each.device == d] for d in range(ensemble.devices)]
    held = [costs for costs in on if costs]
    return max(map(sum, held)), 0.9 / sum(1 / min(costs) for costs in held)


def _prices_for(ensemble: Ensemble, aim_s: float) -> tuple[float, ...]:
    """Prices by which no device is used for more than `aim_s` a row: dearer where one is, else cheaper."""
    costs = [ensemble.members[number].cost_s for number in ensemble.held]
    prices = np.full(ensemble.devices, 0.1 / max(costs))
    seen: list[Floats] = []
    for turn in range(_ROUNDS):
        uses = solve(ensemble, prices.tolist()).remaining_s[NOTHING]
        prices = prices * np.exp(0.5 * np.clip(uses / aim_s - 1, -1, 1) / (1 + turn / 8))
        seen.append(prices)
    geometric: list[float] = np.exp(np.log(np.array(seen[-_LAST_ROUNDS:])).mean(axis=0)).tolist()
    return tuple(geometric)
