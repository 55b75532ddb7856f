"""Where models are and what moves, as an operator sees it: plain values for routes and metrics.

Pure. Times are Unix times, of a placement whose own clock is monotonic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpu_worker.wire.protocol import ResidentsListed
from server.observability.moves import Moves
from server.placement.policy import PlacementState

__all__ = ["HeldModel", "Place", "UnderWay", "place_of", "seen_places"]


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model on a device. loads: how often it was loaded there since the server started."""

    model: str
    size_bytes: int
    since_unix_s: float
    last_used_unix_s: float | None
    rows_per_s: float
    loads: int


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What a link is at. ends_unix_s: when that should be over; None where nothing is known of it."""

    loading: str
    evicting: tuple[str, ...]
    since_unix_s: float
    ends_unix_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """A worker as a place of models.

    host: model → bytes, ready in the host's memory, by the worker's own word of `word_unix_s` (None: it has
    said nothing yet). link_use: the share of the last minute in which the link was busy.
    link_bytes_per_s: of loads of late of models new to its node, in their whole time; None before the first.
    """

    worker: str
    device: str
    capacity_bytes: int
    max_models: int
    held: tuple[HeldModel, ...]
    moving: UnderWay | None
    host: Mapping[str, int] = field(default_factory=dict)
    word_unix_s: float | None = None
    link_busy_s: float = 0.0
    link_use: float = 0.0
    node: str = ""
    link_bytes_per_s: float | None = None

    @property
    def used_bytes(self) -> int:
        """Of the device."""
        return sum(model.size_bytes for model in self.held)


def place_of(
    name: str,
    state: PlacementState,
    moves: Moves,
    now_s: float,
    unix_s: float,
    *,
    reason: str = "",
    word: ResidentsListed | None = None,
    word_unix_s: float | None = None,
) -> Place:
    """The place of one worker.

    now_s and unix_s are the same moment on the two clocks; reason: of what moves.
    """
    worker, link = state.workers[name], moves.links[name]
    sizes = {} if word is None else word.device
    held = []
    for key, there in worker.resident.items():
        model = state.models[key]
        held.append(
            HeldModel(
                key,
                sizes.get(key, model.size_bytes),
                unix_s - (now_s - there.since_s),
                model.last_used_s or None,
                model.arrivals_per_s(now_s),
                moves.loads_of(name, key),
            )
        )
    under_way = None
    if (moving := worker.moving) is not None:
        under_way = UnderWay(
            moving.loading,
            moving.evicting,
            unix_s - (now_s - moving.since_s),
            None if moving.ends_s == math.inf else unix_s + (moving.ends_s - now_s),
            reason,
        )
    return Place(
        name,
        worker.device,
        worker.capacity.capacity_bytes,
        worker.capacity.max_models,
        tuple(held),
        under_way,
        {} if word is None else word.host,
        word_unix_s,
        link.busy_s(now_s),
        link.of_late(now_s),
        worker.node,
        link.bytes_per_s,
    )


def seen_places(places: Iterable[Place], sees: Callable[[str], bool]) -> list[Place]:
    """The places, with the models on them that are seen and no word of the others. sees: by key, or ""."""
    return [
        replace(
            place,
            held=tuple(each for each in place.held if sees(each.model)),
            host={model: size for model, size in place.host.items() if sees(model)},
            moving=_seen_moving(place.moving, sees),
        )
        for place in places
    ]


def _seen_moving(moving: UnderWay | None, sees: Callable[[str], bool]) -> UnderWay | None:
    if moving is None or not all(map(sees, (moving.loading, *moving.evicting))):
        return None
    # A reason may name the model that it is about.
    words = (word for word in moving.reason.split() if "/" not in word or sees(word))
    return replace(moving, reason=" ".join(words))
