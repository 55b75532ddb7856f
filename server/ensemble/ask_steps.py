"""A plan as the table that a worker follows: of whom to ask a row next, by how sure its members are so far.

The worker knows neither prices nor evidence. The log-pool of a subset (`log_pool`) needs one number of each
member there: its weight in the subset by its temperature. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import AskStep
from server.ensemble.evidence import NOTHING, EvidenceStates, members_of
from server.ensemble.fit import Fit, Subset
from server.ensemble.selection import Choice

__all__ = ["ask_steps", "next_members", "shares_asked"]

_ENOUGH = -1


def ask_steps(choices: Sequence[Choice], evidence: EvidenceStates, fit: Fit) -> list[AskStep]:
    """Those that rows can come to; members are named by their places in the fit.

    choices: by state of evidence, each asking one member or none. Raises IndexError where nobody is asked.
    """
    steps: list[AskStep] = []
    plan = next_members(choices)
    coming = [0]
    for subset in coming:  # which grows on the way
        here = evidence.states_of(subset)
        following = plan[here]
        edges = list(evidence.edges[subset]) if subset else []
        steps.append(AskStep(subset, _weights(fit, members_of(subset)), edges, following))
        for member in following:
            if member != _ENOUGH and subset | 1 << member not in coming:
                coming.append(subset | 1 << member)
    return steps


def next_members(choices: Sequence[Choice]) -> list[int]:
    """By state, the member to ask next; -1 for none."""
    return [choice.ask[0] if choice.ask else _ENOUGH for choice in choices]


def shares_asked(plan: Sequence[int], evidence: EvidenceStates) -> NDArray[np.float64]:
    """By member, of how many of the rows it is asked, in expectation: [members]. plan: as `next_members`."""
    shares = np.zeros((evidence.states, evidence.members))
    for subset in (*reversed(evidence.subsets), 0):
        here = evidence.states_of(subset)
        for state in range(here.start, here.stop):
            member = plan[state]
            if member != _ENOUGH:
                child = evidence.states_of(subset | 1 << member)
                shares[state] = evidence.following[subset, member][state - here.start] @ shares[child]
                shares[state, member] += 1
    found: NDArray[np.float64] = shares[NOTHING]
    return found


def _weights(fit: Fit, members: Subset) -> list[float]:
    """By member, what the logarithms of its probabilities count in the pool of these."""
    weights = [0.0] * len(fit.members)
    if members:
        for member, weight in zip(members, fit.weights(members), strict=True):
            weights[member] = weight / fit.temperatures[member]
    return weights
