"""A recorded timeline decided again: what a policy said of each fleet that it saw, beside what it says now.

A record is one JSON object a line, the fleet and the actions that were allowed (`line_of`, `read_lines`). As
policies are pure, the same policy from the same state says the same: whoever finds a difference has changed
the rule, or has recorded from the middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from server.capacity.policy import Action, Fleet, Policy, State, action_from_json, action_to_json, checked

__all__ = ["Difference", "differences", "line_of", "read_lines", "replay"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay said something else."""

    now_s: float
    was: tuple[Action, ...]
    now: tuple[Action, ...]


def line_of(fleet: Fleet, actions: Iterable[Action]) -> str:
    """One decision, without a line's end."""
    return json.dumps({"fleet": fleet.to_json(), "actions": [action_to_json(one) for one in actions]})


def read_lines(lines: Iterable[str]) -> Iterator[tuple[Fleet, tuple[Action, ...]]]:
    """What `line_of` has written. Raises ValueError, with the line's number, for anything else."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plain = json.loads(line)
            yield Fleet.from_json(plain["fleet"]), tuple(action_from_json(one) for one in plain["actions"])
        except (KeyError, TypeError, ValueError) as fault:
            raise ValueError(f"line {number} is no recorded decision: {fault!r}") from fault


def replay(policy: Policy, fleets: Iterable[Fleet]) -> Iterator[tuple[Action, ...]]:
    """What the policy says of each fleet, from its first state on; without what may not be done."""
    state: State = {}
    for fleet in fleets:
        decision = policy.decide(fleet, state)
        state = decision.state
        yield checked(fleet, decision.actions)[0]


def differences(policy: Policy, recorded: Iterable[tuple[Fleet, tuple[Action, ...]]]) -> list[Difference]:
    """Where the policy now says something else than was recorded from the beginning; [] = they agree."""
    pairs = list(recorded)
    found = zip(pairs, replay(policy, (fleet for fleet, _ in pairs)), strict=True)
    return [Difference(fleet.now_s, was, now) for (fleet, was), now in found if was != now]
