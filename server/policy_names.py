"""A policy by its name, or a user's own by import path `package.module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

__all__ = ["named"]

_Policy = TypeVar("_Policy")


def named(
    kind: str,
    name: str,
    known: Mapping[str, Callable[[], _Policy]],
    verbs: tuple[str, ...],
    *,
    makes: bool = True,
) -> _Policy:
    """The policy of that name, of those `known`, or behind that import path.

    kind: what it is, for messages. verbs: the methods that it must have. makes: a class behind a path is
    instantiated; else it is what is returned. Raises ValueError, naming those known, if there is none.
    """
    if name in known:
        return known[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"no {kind} {name!r}; known: {', '.join(known)}, or a package.module:attribute")
    try:
        found = getattr(importlib.import_module(module), attribute)
        policy = found() if makes and isinstance(found, type) else found
    except Exception as fault:  # it is anybody's code
        raise ValueError(f"{kind} {name!r} cannot be imported: {fault!r}") from fault
    missing = [verb for verb in verbs if not callable(getattr(policy, verb, None))]
    if missing:
        raise ValueError(f"{kind} {name!r} lacks {', '.join(missing)}")
    return cast(_Policy, policy)
