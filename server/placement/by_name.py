"""Placement policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from server.placement.lru import LeastRecentlyUsed
from server.placement.policy import PlacementPolicy

__all__ = ["PLACEMENT_POLICIES", "placement_named"]

PLACEMENT_POLICIES: Mapping[str, Callable[[], PlacementPolicy]] = MappingProxyType({"lru": LeastRecentlyUsed})


def placement_named(name: str) -> PlacementPolicy:
    """A policy by name or import path. Raises ValueError, naming those known, if there is no such policy."""
    if name in PLACEMENT_POLICIES:
        return PLACEMENT_POLICIES[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(PLACEMENT_POLICIES)
        raise ValueError(f"no placement policy {name!r}; known: {known}, or a package.module:attribute")
    try:
        found = getattr(importlib.import_module(module), attribute)
        policy = found() if isinstance(found, type) else found
    except Exception as fault:  # it is anybody's code
        raise ValueError(f"placement policy {name!r} cannot be imported: {fault!r}") from fault
    if not callable(getattr(policy, "decide", None)):
        raise ValueError(f"placement policy {name!r} lacks decide")
    return cast(PlacementPolicy, policy)
