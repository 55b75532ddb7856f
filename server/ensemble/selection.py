"""The contract of a selection policy: which members a row is asked of, and how their answers become one.

Stateless code with an explicit state of plain values (Clipper's listing 2), which the shell keeps:

    init → state
    steer(state, load) → state              the load has changed: which plan to follow from now on
    select(state, row) → Choice             which members next, any of them or all; or enough
    combine(state, evidence) → RowAnswer    from the members that have answered
    observe(state, context, evidence, label) → state     somebody told what is right
    resume(state, before) → state           optional: the state that this policy left, made for other costs

A policy that says `draws_lots = False` gives all rows of the same evidence the same choice, whatever their
`draw`: it is asked once for all of them. One that does not say so is asked row by row. One that says
`heeds_confidence = False` minds only who answered, and not how sure that is: then all rows of a subset are
shown to it, and counted in `LoadView.waiting`, in the first of the subset's states. One that says
`keeps_its_word = True` has promised what its answers are: no row is answered before that is enough, be it
late.

A policy is made for one `Ensemble`, which does not change. No clock, no I/O, no randomness but a row's own
`draw`; the server and the simulator run the same one. Which rows run together on a member is not decided
here (server/scheduling/pool.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from server.ensemble.actor import ActorNetwork
from server.ensemble.evidence import EvidenceStates

__all__ = [
    "ENOUGH",
    "GOLDEN",
    "TYPICAL_ROWS",
    "Choice",
    "Combination",
    "Ensemble",
    "EnsembleMember",
    "LoadView",
    "RowAnswer",
    "RowEvidence",
    "SelectionPolicy",
    "State",
    "draws_lots",
    "heeds_confidence",
    "keeps_its_word",
    "line_through",
    "resumed",
]

State = dict[str, Any]
Probabilities = Sequence[float]
Combination = Callable[[Mapping[int, Probabilities]], Sequence[float]]  # of members' into one distribution
TYPICAL_ROWS = 32  # of a batch, by which a row's cost is reckoned
GOLDEN = 0.6180339887498949  # its multiples spread evenly over [0, 1): rows draw them one after the other


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """A model of a function. l̂(b) = fixed_s + b · per_row_s on the device that holds it.

    is_held: whether any does · is_broken: whether it is left out. Plans ask nobody but those that are held
    and not broken, while there are any.
    """

    name: str
    accuracy: float
    fixed_s: float
    per_row_s: float
    device: int = 0
    is_held: bool = True
    is_broken: bool = False

    @property
    def cost_s(self) -> float:
        """Device seconds of one row in a batch of usual size."""
        return self.fixed_s / TYPICAL_ROWS + self.per_row_s


def line_through(latency_s: Callable[[int], float], most: int) -> tuple[float, float]:
    """`fixed_s` and `per_row_s` of a member, by its l̂ of one row and of `most`, two at least."""
    one_s, most_s = latency_s(1), latency_s(most)
    per_row_s = max((most_s - one_s) / (most - 1), 1e-9)
    return max(one_s - per_row_s, 0.0), per_row_s


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What a policy knows of its function: members, where they are, and what their answers are worth.

    combination: of the members that have answered; None = the mean of their probabilities.
    actor: of `actor_critic`, where one was trained.
    """

    members: tuple[EnsembleMember, ...]
    evidence: EvidenceStates
    combination: Combination | None = None
    actor: ActorNetwork | None = None

    @property
    def devices(self) -> int:
        """How many devices hold a member."""
        return 1 + max(member.device for member in self.members)

    @property
    def held(self) -> tuple[int, ...]:
        """The members that may be asked: those that a device holds and that are not broken; where there are
        none, those that are held, or else all.
        """
        held = [number for number, member in enumerate(self.members) if member.is_held]
        sound = [number for number in held if not self.members[number].is_broken]
        return tuple(sound or held or range(len(self.members)))


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a row needs next: the members to `ask`, best first, any one of them, or with `beside` every one.

    worth: by member, how much likelier right the answer would be with it · only: no other member will do,
    even where it is too late for these · is_free: time is worth nothing, so all may be asked at once. No
    member to ask: it is enough, unless members are still under way that a policy waits for (`waits`).
    """

    ask: tuple[int, ...]
    worth: tuple[float, ...] = ()
    beside: bool = False
    only: bool = False
    waits: bool = False
    is_free: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether the row is to be answered from what is known."""
        return not self.ask and not self.waits


ENOUGH = Choice(())


@dataclass(slots=True)
class RowEvidence:
    """A row as a policy sees it: who answered, who is under way (bit masks), and in which state that is.

    draw: a number in [0, 1) of the row's own, for policies that draw lots.
    """

    subset: int = 0
    under_way: int = 0
    state: int = 0
    draw: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadView:
    """What presses on an ensemble now.

    rate: rows per second over the last goal · waiting: rows, by state of evidence · busy_s: by device, what
    is under way · workers: by device, how many share the work · slack_s: of the row that waits longest
    """

    now_s: float
    slo_s: float
    rate: float
    waiting: NDArray[np.float64]
    busy_s: Sequence[float]
    workers: Sequence[float]
    slack_s: float


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The class, by its number, and the probability that it is right."""

    label: int
    confidence: float


class SelectionPolicy(Protocol):
    """A rule for which members answer."""

    name: str

    def init(self) -> State:
        """The state of a function, or of one context of it, that has not run yet."""
        ...

    def steer(self, state: State, load: LoadView) -> State:
        """Fit the state to the load. The same object, if nothing changes for any row."""
        ...

    def select(self, state: State, row: RowEvidence) -> Choice:
        """What the row needs next."""
        ...

    def combine(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        """One answer from those of the members that have answered. Raises ValueError if none has."""
        ...

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        """Learn from a row whose class became known."""
        ...


def draws_lots(policy: SelectionPolicy) -> bool:
    """Whether what it selects for a row may depend on the row's `draw`; where it does not say, it may."""
    return bool(getattr(policy, "draws_lots", True))


def heeds_confidence(policy: SelectionPolicy) -> bool:
    """Whether what it does may depend on how sure an answer is; where it does not say, it may."""
    return bool(getattr(policy, "heeds_confidence", True))


def keeps_its_word(policy: SelectionPolicy) -> bool:
    """Whether no row is answered from a part of what it asks for, whatever the time."""
    return bool(getattr(policy, "keeps_its_word", False))


def resumed(policy: SelectionPolicy, state: State, before: SelectionPolicy) -> State:
    """Where `policy` goes on that follows upon another, which was in that state: anew, if it is another one.

    The same one, made for other costs, says by `resume` what becomes of the state; else that stays.
    """
    if policy.name != before.name:
        return policy.init()
    resume = getattr(policy, "resume", None)
    return state if resume is None else resume(state, before)
