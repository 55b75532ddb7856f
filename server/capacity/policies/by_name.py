"""Capacity policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from server.capacity.policies.forecast import Forecast
from server.capacity.policies.infaas import Infaas
from server.capacity.policies.static import Static
from server.capacity.policy import MakePolicy, Policy
from server.policy_names import named

__all__ = ["POLICIES", "policy_named"]

POLICIES: Mapping[str, MakePolicy] = MappingProxyType(
    {
        "static": Static,
        "replicate": lambda: Infaas("replicate", upgrades=False),
        "infaas": Infaas,
        "infaas-warm": lambda: Infaas("infaas-warm", keep_warm=True),
        "forecast": Forecast,
        "forecast-warm": lambda: Forecast("forecast-warm", keep_warm=True),
    }
)


def policy_named(name: str) -> Policy:
    """A policy by name or import path. Raises ValueError, naming those known, if there is no such policy."""
    return named("capacity policy", name, POLICIES, ("decide",))
