"""Batching policies by name, and a user's own by import path `package.module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

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

_VERBS = ("initial", "decide", "observe")


def policy_named(name: str) -> Policy:
    """A policy by name or import path. Raises ValueError, naming those known, if there is no such policy."""
    if name in POLICIES:
        return POLICIES[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(POLICIES)
        raise ValueError(f"no batching policy {name!r}; known: {known}, or a package.module:attribute")
    try:
        found = getattr(importlib.import_module(module), attribute)
        policy = found() if isinstance(found, type) else found
    except Exception as fault:  # it is anybody's code
        raise ValueError(f"batching policy {name!r} cannot be imported: {fault!r}") from fault
    missing = [verb for verb in _VERBS if not callable(getattr(policy, verb, None))]
    if missing:
        raise ValueError(f"batching policy {name!r} lacks {', '.join(missing)}")
    return cast(Policy, policy)


def check_policy(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError if there is no such policy, or it cannot begin with these options."""
    policy = policy_named(name)
    try:
        policy.initial(dict(options))
    except ValueError:
        raise
    except Exception as fault:
        raise ValueError(f"batching policy {name!r} cannot begin with {dict(options)}: {fault!r}") from fault
