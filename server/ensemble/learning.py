"""What labelled rows teach a selection policy that learns: by the members that it would have asked. Pure.

Where every member answers a labelled row, a policy has rules for what it asked itself: `exp3` divides a loss
by how likely it asked the member that made it. So it is taken through the row as if that had been one to
answer. Of a row that some members answered, since its plan asked no others, it observes just these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.ensemble.evidence import EvidenceStates
from server.ensemble.selection import GOLDEN, Probabilities, RowEvidence, SelectionPolicy, State

__all__ = ["taught", "taught_by"]


def taught(
    policy: SelectionPolicy,
    state: State,
    evidence: EvidenceStates,
    probabilities: NDArray[np.floating[Any]],
    labels: Sequence[int],
    *,
    context: str = "",
    first: int = 0,
) -> State:
    """The state after these rows, one after the other.

    probabilities: [members, rows, classes] · labels: [rows], places among the classes · first: how many rows
    have taught it before, by which it draws its lots
    """
    for row, label in enumerate(labels):
        draw = (first + row) * GOLDEN % 1
        state = policy.observe(
            state, context, _asked(policy, state, evidence, probabilities[:, row].tolist(), draw), label
        )
    return state


def taught_by(
    policy: SelectionPolicy,
    state: State,
    members: Sequence[int],
    probabilities: NDArray[np.floating[Any]],
    labels: Sequence[int],
    *,
    context: str = "",
) -> State:
    """The state after these rows, which just those members answered. Shapes as in `taught`."""
    for row, label in enumerate(labels):
        told = {member: probabilities[member, row].tolist() for member in members}
        state = policy.observe(state, context, told, label) if told else state
    return state


def _asked(
    policy: SelectionPolicy,
    state: State,
    evidence: EvidenceStates,
    probabilities: Sequence[Probabilities],
    draw: float,
) -> Mapping[int, Probabilities]:
    row, told = RowEvidence(draw=draw), {}
    for _ in probabilities:
        choice = policy.select(state, row)
        if not choice.ask:
            break
        for member in choice.ask if choice.beside else choice.ask[:1]:
            told[member] = probabilities[member]
            row.subset |= 1 << member
        sure = policy.combine(state, told).confidence
        row.state = evidence.state_of(row.subset, sure if math.isfinite(sure) else 0.0)
    return told
