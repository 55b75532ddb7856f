"""Which models a worker holds, and which leave when another one is wanted: least recently used first.

Pure: functions of what is resident, what is wanted and when each was used. A worker's device is a cache of
models (Rafiqi §3.1, its LRU order); a group is the members of one function, which run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Capacity", "Stay", "evictions", "starting_set"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker may hold; 0 bytes or 0 models = no limit."""

    capacity_bytes: int = 0
    max_models: int = 0

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether models of these sizes fit together."""
        return (not self.capacity_bytes or sum(sizes) <= self.capacity_bytes) and (
            not self.max_models or len(sizes) <= self.max_models
        )


@dataclass(frozen=True, slots=True)
class Stay:
    """A resident model: when it was last used, and, while rows wait for it, until when it must stay."""

    size_bytes: int
    last_used_s: float
    waited_for: bool = False
    protected_until_s: float = -math.inf


def starting_set(
    groups: Sequence[Sequence[str]], sizes: Mapping[str, int], capacity: Capacity
) -> tuple[tuple[str, ...], ...]:
    """What an empty worker loads, in order: each group of `groups`, most recently used first, that fits.

    A model of unknown size counts as 0 bytes: the worker measures it, and later decisions know better. A
    group that does not fit is passed over; a smaller one behind it may still find room.
    """
    held: dict[str, int] = {}
    loads: list[tuple[str, ...]] = []
    for group in groups:
        new = {key: sizes.get(key, 0) for key in group if key not in held}
        if new and capacity.fits([*held.values(), *new.values()]):
            held |= new
            loads.append(tuple(new))
    return tuple(loads)


def evictions(
    now_s: float, wanted: Mapping[str, int], resident: Mapping[str, Stay], capacity: Capacity
) -> tuple[str, ...] | float | None:
    """Who leaves so that all of `wanted` (key → bytes) fit: keys; or when to ask again; or None, never.

    Models that nobody waits for leave first, then by last use. One that rows wait for stays until it has
    served for a while (`protected_until_s`), or two models in one place would do nothing but swap.
    """
    if not capacity.fits(list(wanted.values())):
        return None
    held = {key: stay for key, stay in resident.items() if key not in wanted}

    def rank(key: str) -> tuple[float, float, str]:
        stay = held[key]
        stays_until_s = max(now_s, stay.protected_until_s) if stay.waited_for else -math.inf
        return stays_until_s, stay.last_used_s, key

    leaving: list[str] = []
    for key in sorted(held, key=rank):
        if capacity.fits([*wanted.values(), *(stay.size_bytes for stay in held.values())]):
            break
        if held[key].waited_for and now_s < held[key].protected_until_s:
            return held[key].protected_until_s
        leaving.append(key)
        del held[key]
    return tuple(leaving)
