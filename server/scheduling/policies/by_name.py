"""Batching policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from server.policy_names import named
from server.scheduling.policies.aimd import Aimd
from server.scheduling.policies.clockwork import Clockwork
from server.scheduling.policies.ewma import Ewma
from server.scheduling.policies.ewma_code import EwmaCode
from server.scheduling.policies.goodput import Goodput
from server.scheduling.policies.greedy import Greedy
from server.scheduling.policies.quantile import Quantile
from server.scheduling.policies.window import Window
from server.scheduling.policy import Policy

__all__ = ["POLICIES", "check_policy", "policy_named"]

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "goodput": Goodput,
        "greedy": Greedy,
        "aimd": Aimd,
        "quantile": Quantile,
        "ewma": Ewma,
        "ewma-code": EwmaCode,
        "window": Window,
        "clockwork": Clockwork,
    }
)


def policy_named(name: str) -> Policy:
    """A policy by name or import path. Raises ValueError, naming those known, if there is no such policy."""
    return named("batching policy", name, POLICIES, ("initial", "decide", "observe"))


def check_policy(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError if there is no such policy, or it cannot begin with these options."""
    policy = policy_named(name)
    try:
        policy.initial(dict(options))
    except ValueError:
        raise
    except Exception as fault:
        raise ValueError(f"batching policy {name!r} cannot begin with {dict(options)}: {fault!r}") from fault
