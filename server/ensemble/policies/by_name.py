"""Selection policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from server.ensemble.policies.actor_critic import ActorCritic
from server.ensemble.policies.asynchronous import Asynchronous
from server.ensemble.policies.bandits import Exp3, Exp4
from server.ensemble.policies.fixed import all_members, best_member
from server.ensemble.policies.geared import Gear, Value
from server.ensemble.policies.guarded import GuardedSelection, SelectionFault
from server.ensemble.policies.slackfit import SlackFit
from server.ensemble.selection import Ensemble, SelectionPolicy
from server.policy_names import named

__all__ = ["SELECTION_POLICIES", "check_selection_policy", "selection_policy"]

SELECTION_POLICIES: Mapping[str, Callable[[Ensemble], SelectionPolicy]] = MappingProxyType(
    {
        "value": Value,
        "gear": Gear,
        "slackfit": SlackFit,
        "best": best_member,
        "all": all_members,
        "async": Asynchronous,
        "exp3": Exp3,
        "exp4": Exp4,
        "actor_critic": ActorCritic,
    }
)
_VERBS = ("init", "steer", "select", "combine", "observe")


def selection_policy(
    name: str, ensemble: Ensemble, faulted: Callable[[SelectionFault], None] = lambda fault: None
) -> SelectionPolicy:
    """The policy of that name for that ensemble; a user's own is a callable of the ensemble that makes it.

    One of a user's own is guarded: `faulted` is told once, when it is put aside for `value`; at once, where
    it cannot be made (`check_selection_policy`). Raises ValueError for a name that is not known.
    """
    if name in SELECTION_POLICIES:
        return SELECTION_POLICIES[name](ensemble)
    try:
        policy = check_selection_policy(name, ensemble)
    except ValueError as error:
        if ":" not in name:
            raise
        faulted(SelectionFault(name, "make", error))
        return SELECTION_POLICIES["value"](ensemble)
    return GuardedSelection(ensemble, policy, faulted)


def check_selection_policy(name: str, ensemble: Ensemble) -> SelectionPolicy:
    """What is behind that name. Raises ValueError, naming those known, if it is none or makes none."""
    makers = {known: partial(_same, make) for known, make in SELECTION_POLICIES.items()}
    make = named("selection policy", name, makers, (), makes=False)
    try:
        policy = make(ensemble)
    except Exception as fault:  # it is anybody's code
        raise ValueError(f"selection policy {name!r} cannot be made: {fault!r}") from fault
    missing = [verb for verb in _VERBS if not callable(getattr(policy, verb, None))]
    if missing:
        raise ValueError(f"selection policy {name!r} lacks {', '.join(missing)}")
    return policy


def _same(make: Callable[[Ensemble], SelectionPolicy]) -> Callable[[Ensemble], SelectionPolicy]:
    return make
