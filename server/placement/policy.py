"""The placement contract: what a placement policy sees, and what it may do.

A policy is a pure function of (state, now): no clock, no I/O, no memory of its own. The live server and the
simulator run the same one, over the same state (`core.py` keeps it). A device is a cache of models (Rafiqi
§3.1); what moves a model into it is a resource of its own, the worker's link, which moves one at a time while
the device computes. All times but `last_used_s` are seconds on one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

__all__ = [
    "Capacity",
    "Evict",
    "Fetch",
    "GroupKeys",
    "ModelState",
    "Moving",
    "PlacementAction",
    "PlacementDecision",
    "PlacementPolicy",
    "PlacementState",
    "Residence",
    "WaitingRows",
    "Wish",
    "WorkerPlaces",
]

GroupKeys = tuple[str, ...]  # keys of models that are wanted together: the members of one function


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
class Residence:
    """A model on a worker: since when, and how long its load took."""

    since_s: float
    load_s: float


@dataclass(frozen=True, slots=True)
class Moving:
    """What is under way on a link: models that leave, then one that comes ("" = none)."""

    loading: str = ""
    evicting: tuple[str, ...] = ()
    since_s: float = 0.0
    ends_s: float = math.inf  # by what is known of the link


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """A worker as a place of models.

    A model that is leaving (`moving.evicting`) is resident until it has left: its last batch is over first.
    offers: groups that may be loaded here where there is room, and for which nothing need leave: at the start
    whatever is served, later what was deployed, or loaded elsewhere.
    """

    name: str
    capacity: Capacity = Capacity()
    device: str = ""  # kind of device
    resident: Mapping[str, Residence] = field(default_factory=dict)
    moving: Moving | None = None
    offers: tuple[GroupKeys, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is known of a model, wherever it is.

    load_s: kind of device → what loading it there should take.
    """

    size_bytes: int = 0  # 0 = not known yet: whoever loads it measures it
    last_used_s: float = 0.0  # Unix time; 0 = never
    rows_per_s: float = 0.0  # sent to workers of late
    deaths: int = 0  # workers that died of loading it, in a row
    load_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody wants the group resident, and others may leave for it.

    without: workers that are not counted on: they hold models, and run nothing.
    """

    group: GroupKeys
    since_s: float
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows that wait for a group.

    sooner_on: the worker where the scheduler could begin them sooner, the load included, than where they can
    run now; "" = nowhere.
    """

    rows: int
    sooner_on: str = ""


@dataclass(frozen=True, slots=True)
class PlacementState:
    """All that a policy sees. `wishes` are in the order in which they came, and none is fulfilled yet.

    waited_for: the groups that rows wait for, resident or not.
    apart: whether members of a group may be on different workers where no worker can hold them all.
    """

    workers: Mapping[str, WorkerPlaces] = field(default_factory=dict)
    models: Mapping[str, ModelState] = field(default_factory=dict)
    wishes: tuple[Wish, ...] = ()
    waited_for: Mapping[GroupKeys, WaitingRows] = field(default_factory=dict)
    apart: bool = False

    def size_bytes(self, key: str) -> int:
        """Of a model; 0 while it is not known."""
        model = self.models.get(key)
        return model.size_bytes if model is not None else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which `from_json` makes the same state."""
        plain = asdict(replace(self, waited_for={}))
        plain["wishes"] = [{**wish, "without": sorted(wish["without"])} for wish in plain["wishes"]]
        plain["waited_for"] = [[list(group), asdict(rows)] for group, rows in self.waited_for.items()]
        for worker in plain["workers"].values():
            if worker["moving"] is not None and worker["moving"]["ends_s"] == math.inf:
                worker["moving"]["ends_s"] = None
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> PlacementState:
        """The state that `to_json` has written. Raises KeyError, TypeError for anything else."""
        return cls(
            workers={name: _worker_of(worker) for name, worker in plain["workers"].items()},
            models={key: ModelState(**model) for key, model in plain["models"].items()},
            wishes=tuple(
                Wish(tuple(wish["group"]), wish["since_s"], frozenset(wish["without"]))
                for wish in plain["wishes"]
            ),
            waited_for={tuple(group): WaitingRows(**rows) for group, rows in plain["waited_for"]},
            apart=plain["apart"],
        )


def _worker_of(plain: Mapping[str, Any]) -> WorkerPlaces:
    moving = plain["moving"]
    return WorkerPlaces(
        name=plain["name"],
        capacity=Capacity(**plain["capacity"]),
        device=plain["device"],
        resident={key: Residence(**there) for key, there in plain["resident"].items()},
        moving=moving
        and Moving(
            moving["loading"],
            tuple(moving["evicting"]),
            moving["since_s"],
            math.inf if moving["ends_s"] is None else moving["ends_s"],
        ),
        offers=tuple(tuple(group) for group in plain["offers"]),
    )


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a model into a worker over its link, after the evictions decided with it."""

    worker: str
    model: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Nothing new is sent to the model there from now on, and once its last batch is over it leaves."""

    worker: str
    model: str


PlacementAction = Fetch | Evict


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Loads and evictions, on idle links alone, one load a worker; and when to ask again at the latest."""

    actions: tuple[PlacementAction, ...] = ()
    until_s: float = math.inf


class PlacementPolicy(Protocol):
    """Which models leave and which come."""

    name: str

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """What to do now; asked whenever something has changed, and at `until_s`."""
        ...
