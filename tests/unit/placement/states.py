"""Placement states, briefly."""

from __future__ import annotations

from server.placement.policy import (
    Capacity,
    GroupKeys,
    ModelState,
    Moving,
    PlacementState,
    Residence,
    WaitingRows,
    Wish,
    WorkerPlaces,
)


def worker(
    name: str, *resident: str, places: int = 2, since_s: float = -100.0, **fields: object
) -> WorkerPlaces:
    """A worker of two places that has held these models for long."""
    there = {key: Residence(since_s, 0.05) for key in resident}
    return WorkerPlaces(name, Capacity(max_models=places), "cpu", there, **fields)  # type: ignore[arg-type]


def state(
    *workers: WorkerPlaces,
    wishes: tuple[Wish, ...] = (),
    waited_for: tuple[GroupKeys, ...] = (),
    last_used_s: dict[str, float] | None = None,
    sizes: dict[str, int] | None = None,
    deaths: dict[str, int] | None = None,
    apart: bool = False,
) -> PlacementState:
    """Models a to f, of 10 bytes each, that were never used unless `last_used_s` says when."""
    models = {
        key: ModelState(
            size_bytes=(sizes or {}).get(key, 10),
            last_used_s=(last_used_s or {}).get(key, 0.0),
            deaths=(deaths or {}).get(key, 0),
            load_s={"cpu": 0.05},
        )
        for key in "abcdef"
    }
    return PlacementState(
        {one.name: one for one in workers}, models, wishes, dict.fromkeys(waited_for, WaitingRows(1)), apart
    )


def wish(*group: str, without: frozenset[str] = frozenset()) -> Wish:
    """Somebody wants these models."""
    return Wish(group, 0.0, without)


def loading(key: str) -> Moving:
    """A link that is busy with a load."""
    return Moving(key, (), 0.0, 0.05)
