"""Where an ensemble's members live: which of them share devices, and of which kinds these are. Pure.

Members that the same workers hold are on one device of the ensemble, at which so many are at work. Members of
different workers are on devices of their own, which work beside one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["MemberPlace", "places_of"]


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """`device`: its number in the ensemble. kinds: of its workers; one, if they are all of that kind."""

    device: int
    kinds: tuple[str, ...]


def places_of(
    members: Sequence[str], workers: Iterable[tuple[Collection[str], str]]
) -> tuple[MemberPlace | None, ...]:
    """The place of each member; None for one that no worker holds.

    workers: what each holds, and its kind.
    """
    there = [(resident, kind) for resident, kind in workers]
    devices: dict[tuple[int, ...], int] = {}
    places: list[MemberPlace | None] = []
    for member in members:
        holders = tuple(number for number, (resident, _) in enumerate(there) if member in resident)
        if not holders:
            places.append(None)
            continue
        kinds = sorted(there[number][1] for number in holders)
        device = devices.setdefault(holders, len(devices))
        places.append(MemberPlace(device, tuple(kinds) if len(set(kinds)) > 1 else (kinds[0],)))
    return tuple(places)
