"""`actor_critic`: Rafiki's learned policy (§5.2). By the load a network says how often which subset is asked.

State, as the paper has it: the queue (how many wait, and how long the first of them still can), what comes,
the time that each device is still at work, and c(m, b) of every member; times are in goals. Members stand by
their cost, so that a network holds for whoever is the cheaper one. The paper's action is a subset and a batch
size; here batches are cut by the batching policy, and the action is the subset.

The network's answer is a distribution, and is followed as one: of the subsets in order of their cost, each
row takes the one that its own draw falls into. (To take the likeliest, always, is another policy: where two
subsets are as good as each other, as peers on three devices are, all rows go to one of them.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.ensemble.actor import LOAD_INPUTS, SIZES, ActorNetwork
from server.ensemble.evidence import NOTHING, members_of, subset_of
from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.selection import Choice, Ensemble, LoadView, RowEvidence, State

__all__ = ["ActorCritic", "Subsets"]

Floats = NDArray[np.float64]

_LONG = 8.0  # goals of work: more makes no difference
_RARE = 1e-4  # a subset that is asked more rarely is not asked
_STEP = 0.02  # shares that move by less change nothing for any row


class Subsets:
    """The subsets of an ensemble as a network has them: by bit mask less one, members the cheapest first.

    subsets: the same by the members' own numbers · accuracies: of each · by_cost: their places, those that
    take least of the busiest device first
    """

    def __init__(self, ensemble: Ensemble) -> None:
        evidence, members = ensemble.evidence, ensemble.members
        order = sorted(range(len(members)), key=lambda number: members[number].cost_s)
        self._members = [members[number] for number in order]
        masks = range(1, 1 << len(order))
        self.subsets = tuple(subset_of(order[at] for at in members_of(mask)) for mask in masks)
        self.accuracies: Floats = np.array([evidence.accuracy(subset) for subset in self.subsets])
        self.size = len(members), ensemble.devices
        self.costs_s = [_cost_s(ensemble, subset) for subset in self.subsets]
        self.by_cost = sorted(
            range(len(self.subsets)), key=lambda at: (self.costs_s[at], -self.accuracies[at])
        )
        self._least_s = min(member.cost_s for member in members)
        self._most_s = self.costs_s[-1]

    def inputs(self, load: LoadView) -> Floats:
        """What presses now, as the network has it: [`inputs_for` the ensemble]."""
        slo_s = load.slo_s
        at_work = max(sum(load.workers) / len(load.workers), 1e-9)
        fresh = float(load.waiting[NOTHING])
        asked = float(load.waiting.sum()) - fresh
        least, most = self._least_s / at_work, self._most_s / at_work
        work = (fresh * least / slo_s, fresh * most / slo_s, asked * most / slo_s)
        told = [math.log1p(min(each, _LONG)) for each in (*work, load.rate * least, load.rate * most)]
        told.append(min(max(load.slack_s / slo_s, -1.0), 1.0))
        assert len(told) == LOAD_INPUTS
        told += [min(busy_s / slo_s / at_work, 2.0) for busy_s in load.busy_s]
        told += [
            min((member.fixed_s + rows * member.per_row_s) / slo_s, 2.0)
            for member in self._members
            for rows in SIZES
        ]
        return np.array(told)


class ActorCritic(Steady):
    """State: of the subsets in order of cost, up to where in [0, 1) the draws of each one's rows go.

    Raises ValueError for an ensemble without a network, or with one for another size.
    """

    name = "actor_critic"

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble)
        if ensemble.actor is None:
            raise ValueError("'actor_critic' needs an actor that was trained: see ml-udf train-actor --help")
        ensemble.actor.check_fits(len(ensemble.members), ensemble.devices)
        if len(ensemble.evidence.subsets) < (1 << len(ensemble.members)) - 1:
            raise ValueError("'actor_critic' needs evidence of every subset of its members")
        self._network: ActorNetwork = ensemble.actor
        self._known = Subsets(ensemble)
        held = subset_of(ensemble.held)
        # Of a subset whom nobody holds is left out; of nobody at all, whoever is there answers.
        self._ordered = [self._known.subsets[at] & held or held for at in self._known.by_cost]
        self._rest = Rest(len(ensemble.members))

    def init(self) -> State:
        """The most accurate subset, until there is a load."""
        best = int(np.argmax(self._known.accuracies[self._known.by_cost]))
        return {"upto": [0.0] * best + [1.0] * (len(self._ordered) - best)}

    def steer(self, state: State, load: LoadView) -> State:
        """What the network says of the load, if that is another thing than before."""
        shares = self._network.shares(self._known.inputs(load), self._known.accuracies)
        shares = np.where(shares < _RARE, 0.0, shares)
        upto = np.cumsum(shares[self._known.by_cost] / shares.sum())
        if float(np.abs(upto - state["upto"]).max()) < _STEP:
            return state
        return {"upto": upto.tolist()}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Of the subset that the row draws those that neither answered nor are under way."""
        upto: Sequence[float] = state["upto"]
        at = min(bisect_right(upto, row.draw), len(upto) - 1)
        return self._rest.of(self._ordered[at], row)


def _cost_s(ensemble: Ensemble, subset: int) -> float:
    """Device seconds of a row, of the device that it takes most of."""
    by_device = [0.0] * ensemble.devices
    for number in members_of(subset):
        by_device[ensemble.members[number].device] += ensemble.members[number].cost_s
    return max(by_device)
