"""Placement policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from server.placement.lru import LeastRecentlyUsed
from server.placement.policy import PlacementPolicy
from server.policy_names import named

__all__ = ["PLACEMENT_POLICIES", "placement_named"]

PLACEMENT_POLICIES: Mapping[str, Callable[[], PlacementPolicy]] = MappingProxyType({"lru": LeastRecentlyUsed})


def placement_named(name: str) -> PlacementPolicy:
    """A policy by name or import path. Raises ValueError, naming those known, if there is no such policy."""
    return named("placement policy", name, PLACEMENT_POLICIES, ("decide",))
