"""Placement policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from server.placement.policies.clockwork import Clockwork
from server.placement.policies.greedy_dual import Gdsf, LfuDa
from server.placement.policies.least_recent import LruBlocking, LruOverlapped
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policies.modelmesh import ModelMesh
from server.placement.policies.value import ValueOfResidency
from server.placement.policy import PlacementPolicy
from server.policy_names import named

__all__ = ["PLACEMENT_POLICIES", "is_spread", "placement_named"]

PLACEMENT_POLICIES: Mapping[str, Callable[..., PlacementPolicy]] = MappingProxyType(
    {
        "value": ValueOfResidency,
        "lru": LeastRecentlyUsed,
        "lru-blocking": LruBlocking,
        "lru-overlapped": LruOverlapped,
        "lfu-da": LfuDa,
        "gdsf": Gdsf,
        "clockwork": Clockwork,
        "modelmesh": ModelMesh,
    }
)


def placement_named(name: str, options: Mapping[str, Any] = MappingProxyType({})) -> PlacementPolicy:
    """A policy by name, with options of its own, or by import path.

    Raises ValueError, naming those known, if there is no such policy, and TypeError for an option it lacks.
    """
    known = {each: partial(make, **options) for each, make in PLACEMENT_POLICIES.items()}
    return named("placement policy", name, known, ("decide",))


def is_spread(members: str) -> bool:
    """Whether members that are apart are spread over nodes; ValueError for neither `packed` nor `spread`."""
    if members not in ("packed", "spread"):
        raise ValueError(f"{members!r} is no way to place members; write packed or spread")
    return members == "spread"
