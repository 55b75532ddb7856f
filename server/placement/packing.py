"""Which worker holds which members of a group that no worker can hold whole. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from server.placement.policy import Capacity

__all__ = ["packed"]


def packed(
    sizes: Mapping[str, int],
    workers: Mapping[str, Capacity],
    held: Mapping[str, Collection[str]],
    nodes: Mapping[str, str] | None = None,
    *,
    spread: bool = False,
) -> dict[str, tuple[str, ...]] | None:
    """Worker → its members, so that all of the group fit; None if that is not found.

    sizes: model → bytes. held: worker → models that are there. Members stay where they are; the others go,
    the largest first, to the first worker that has room for them beside those of the group, of which the ones
    with most of them come first. Where that fails, all are placed anew.
    nodes: worker → its machine. Of workers that are as good, one on a machine that has more of the group;
    spread: first of all one on a machine that has least of it, where all fit that way.
    """
    on = nodes or {}
    ways = [(held, spread), ({}, spread)] + ([(held, False), ({}, False)] if spread else [])
    return next((found for way in ways if (found := _first_fit(sizes, workers, way[0], on, way[1]))), None)


def _first_fit(
    sizes: Mapping[str, int],
    workers: Mapping[str, Capacity],
    held: Mapping[str, Collection[str]],
    nodes: Mapping[str, str],
    spread: bool,
) -> dict[str, tuple[str, ...]] | None:
    found: dict[str, list[str]] = {name: [] for name in workers}

    def preferred(name: str) -> tuple[int, int]:
        node = nodes.get(name, "")
        there = sum(len(keys) for other, keys in found.items() if node and nodes.get(other) == node)
        return (-there, len(found[name])) if spread else (len(found[name]), there)

    left = dict(sizes)
    for name in sorted(workers, key=lambda name: -sum(key in sizes for key in held.get(name, ()))):
        for key in sizes:
            if key in left and key in held.get(name, ()) and _fits(workers[name], sizes, found[name], key):
                found[name].append(key)
                del left[key]
    for key in sorted(left, key=lambda key: -sizes[key]):
        names = [name for name in workers if _fits(workers[name], sizes, found[name], key)]
        if not names:
            return None
        found[max(names, key=preferred)].append(key)
    return {name: tuple(key for key in sizes if key in keys) for name, keys in found.items() if keys}


def _fits(capacity: Capacity, sizes: Mapping[str, int], beside: Collection[str], key: str) -> bool:
    return capacity.fits([sizes[key], *(sizes[other] for other in beside)])
