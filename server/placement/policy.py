"""The placement contract: what a placement policy sees, and what it may do.

A policy is a pure function of (state, now): no clock, no I/O, no memory of its own; what it has to remember
stands in `PlacementState.memory`, which its decision returns anew. The live server and the simulator run the
same one, over the same state (`core.py` keeps it). A device is a cache of models (Rafiqi §3.1); what moves a
model into it is a resource of its own, the worker's link, which moves one at a time while the device
computes. All times but `last_used_s` are seconds on one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

__all__ = [
    "FADE_S",
    "Abort",
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
    "Visits",
    "WaitingRows",
    "Wish",
    "WorkerPlaces",
]

GroupKeys = tuple[str, ...]  # keys of models that are wanted together: the members of one function


def link_name(device: str, node: str) -> str:
    """Of the links of a node's devices of one kind; where nodes have no names, of the kind."""
    return f"{device} @ {node}" if node else device


FADE_S = 5.0  # what came so long ago counts for 1/e
_DEATHS = 2  # a model of whose load so many workers died is no longer loaded unasked


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker may hold; 0 bytes or 0 models = no limit."""

    capacity_bytes: int = 0
    max_models: int = 0

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether models of these sizes fit together."""
        return self.holds(sum(sizes), len(sizes))

    def holds(self, total_bytes: int, models: int) -> bool:
        """Whether so many models fit that take so much together."""
        return (not self.capacity_bytes or total_bytes <= self.capacity_bytes) and (
            not self.max_models or models <= self.max_models
        )


@dataclass(frozen=True, slots=True)
class Residence:
    """A model on a worker: since when, and how long its load took.

    for_rows: rows waited for it when its load began. used: a batch has been sent to it since it came.
    """

    since_s: float
    load_s: float
    for_rows: bool = False
    used: bool = True


@dataclass(frozen=True, slots=True)
class Moving:
    """What is under way on a link: models that leave, then one that comes ("" = none).

    for_rows: rows waited for what comes when its load began. aborted: the load was given up; the link is busy
    until its worker has stopped.
    """

    loading: str = ""
    evicting: tuple[str, ...] = ()
    since_s: float = 0.0
    ends_s: float = math.inf  # by what is known of the link
    for_rows: bool = False
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """A worker as a place of models.

    A model that is leaving (`moving.evicting`) is resident until it has left: its last batch is over first.
    node: the machine that it is on, "" where machines have no names: what others there hold comes from the
    host's memory. is_far: rows reach it over a network.
    offers: groups that may be loaded here where there is room, and for which nothing need leave, in the order
    in which they had best be loaded: at the start whatever is served (`starting.py` says in which order),
    later what was deployed, or loaded elsewhere.
    """

    name: str
    capacity: Capacity = Capacity()
    device: str = ""  # kind of device
    resident: Mapping[str, Residence] = field(default_factory=dict)
    moving: Moving | None = None
    offers: tuple[GroupKeys, ...] = ()
    node: str = ""
    is_far: bool = False

    @property
    def link(self) -> str:
        """By which `ModelState.load_s` knows what loads take here."""
        return link_name(self.device, self.node)


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is known of a model, wherever it is.

    load_s: link → what loading it over that should take. arrivals: interactive rows that came for it,
    each fading over FADE_S; as of `arrived_s`. l̂(b), of a batch on it alone, is fixed_s + row_s · b,
    for up to max_batch rows.
    """

    size_bytes: int = 0  # 0 = not known yet: whoever loads it measures it
    last_used_s: float = 0.0  # Unix time; 0 = never
    deaths: int = 0  # workers that died of loading it, in a row
    failures: int = 0  # loads of it that failed, in a row
    dismissed: bool = False  # it was made to leave, and no rows came for it since: not to be loaded unasked
    load_s: Mapping[str, float] = field(default_factory=dict)
    arrivals: float = 0.0
    arrived_s: float = 0.0
    rows: int = 0  # that ever came for it
    lost: int = 0  # rows that were refused since a batch was last sent to it
    served_s: float = 0.0  # when that was; before the first one, when its first row came
    goal_s: float = math.inf  # of a row, from arrival to answer: the strictest of its functions'; inf = none
    fixed_s: float = 0.0
    row_s: float = 0.0
    max_batch: int = 1
    groups: tuple[GroupKeys, ...] = ()  # the functions that it is a member of, by their members
    share: float = 1.0  # of an answer that needs it; less where other members may answer without it

    @property
    def is_deadly(self) -> bool:
        """Whether so many workers died of loading it that it is loaded only where somebody asks for it."""
        return self.deaths >= _DEATHS

    def arrivals_per_s(self, now_s: float) -> float:
        """The rate at which rows come for it."""
        if not self.arrivals:
            return 0.0
        age_s = now_s - self.arrived_s
        return self.arrivals * math.exp(-age_s / FADE_S) / FADE_S if age_s > 0 else self.arrivals / FADE_S

    def rows_s(self, rows: int) -> float:
        """What so many rows take in batches as large as may be."""
        return self.fixed_s * math.ceil(rows / self.max_batch) + self.row_s * rows

    def batch_s(self, rows: int) -> float:
        """l̂ of a batch of so many rows."""
        return self.fixed_s + self.row_s * rows


@dataclass(frozen=True, slots=True)
class Visits:
    """In which order groups are asked. A visit: rows that come for one group until another's come.

    next: group → the one that came next most often, and how often, the last time counting for a fifth. rows:
    group → rows of a visit, a moving average of the same weight. The mappings are the core's own: to be read,
    not kept.
    """

    last: GroupKeys = ()  # whose visit it is; () = nothing has come yet
    since_s: float = 0.0  # when that began
    gap_s: float = 0.0  # from one visit's beginning to the next one's, moving average; 0 = not known
    rows: Mapping[GroupKeys, float] = field(default_factory=dict)
    next: Mapping[GroupKeys, tuple[GroupKeys, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody wants the group resident, and others may leave for it.

    without: workers that are not counted on: they hold models, and run nothing. by_rows: rows want it, which
    `waited_for` says more of, and they may be gone by now; otherwise somebody waits until it is there.
    """

    group: GroupKeys
    since_s: float
    without: frozenset[str] = frozenset()
    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows that wait for a group.

    fillers: how many of `rows` are in no hurry: bulk rows, and such that are late.
    due_s: when the goals of the others are missed, the soonest first, for at most 64 rows; inf = no goal.
    deadline_s: when the deadlines of the same rows pass, and they are refused; () = never.
    """

    rows: int
    due_s: tuple[float, ...] = ()
    fillers: int = 0
    deadline_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementState:
    """All that a policy sees. `wishes` are in the order in which they came, and none is fulfilled yet.

    waited_for: the groups that rows wait for, resident or not.
    apart: whether members of a group may be on different workers where no worker can hold them all.
    spread: whether these are then on as many machines as may be, and not on as few.
    running: worker → models that batches are under way on there.
    memory: what the policy remembers, plain values; {} at first.
    demand: worker → share of its time that the rows take that come for its models, in batches of four; what
    several workers hold is shared between them. used_bytes: of its models.
    sought, coldest, hottest: so that not all models need be looked at. Those held nowhere and on no link for
    which most rows came of late; by worker those of its models for which fewest did, and most. Some dozens
    each, in no order.
    """

    workers: Mapping[str, WorkerPlaces] = field(default_factory=dict)
    models: Mapping[str, ModelState] = field(default_factory=dict)
    wishes: tuple[Wish, ...] = ()
    waited_for: Mapping[GroupKeys, WaitingRows] = field(default_factory=dict)
    apart: bool = False
    running: Mapping[str, frozenset[str]] = field(default_factory=dict)
    visits: Visits = Visits()
    memory: Mapping[str, Any] = field(default_factory=dict)
    sought: tuple[str, ...] = ()
    coldest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hottest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    demand: Mapping[str, float] = field(default_factory=dict)
    used_bytes: Mapping[str, int] = field(default_factory=dict)
    spread: bool = False

    def size_bytes(self, key: str) -> int:
        """Of a model; 0 while it is not known."""
        return self.models[key].size_bytes if key in self.models else 0

    def bytes_on(self, worker: WorkerPlaces) -> int:
        """Of what the worker holds."""
        found = self.used_bytes.get(worker.name)
        return sum(map(self.size_bytes, worker.resident)) if found is None else found

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which `from_json` makes the same state."""
        visits = self.visits
        return {
            "workers": {name: _plain_worker(worker) for name, worker in self.workers.items()},
            "models": {key: _plain_model(model) for key, model in self.models.items()},
            "wishes": [{**asdict(wish), "without": sorted(wish.without)} for wish in self.wishes],
            "waited_for": [[list(group), _plain_rows(rows)] for group, rows in self.waited_for.items()],
            "apart": self.apart,
            "spread": self.spread,
            "running": {name: sorted(keys) for name, keys in self.running.items()},
            "visits": {
                "last": list(visits.last),
                "since_s": visits.since_s,
                "gap_s": visits.gap_s,
                "rows": [[list(group), rows] for group, rows in visits.rows.items()],
                "next": [[list(group), list(other), share] for group, (other, share) in visits.next.items()],
            },
            "memory": dict(self.memory),
            "sought": list(self.sought),
            "coldest": {name: list(keys) for name, keys in self.coldest.items()},
            "hottest": {name: list(keys) for name, keys in self.hottest.items()},
            "demand": dict(self.demand),
            "used_bytes": dict(self.used_bytes),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> PlacementState:
        """The state that `to_json` has written. Raises KeyError, TypeError for anything else."""
        visits = plain["visits"]
        return cls(
            workers={name: _worker_of(worker) for name, worker in plain["workers"].items()},
            models={key: _model_of(model) for key, model in plain["models"].items()},
            wishes=tuple(
                Wish(tuple(wish["group"]), wish["since_s"], frozenset(wish["without"]), wish["by_rows"])
                for wish in plain["wishes"]
            ),
            waited_for={tuple(group): _waiting_of(rows) for group, rows in plain["waited_for"]},
            apart=plain["apart"],
            spread=plain.get("spread", False),
            running={name: frozenset(keys) for name, keys in plain["running"].items()},
            visits=Visits(
                tuple(visits["last"]),
                visits["since_s"],
                visits["gap_s"],
                {tuple(group): rows for group, rows in visits["rows"]},
                {tuple(group): (tuple(other), share) for group, other, share in visits["next"]},
            ),
            memory=plain["memory"],
            sought=tuple(plain["sought"]),
            coldest={name: tuple(keys) for name, keys in plain["coldest"].items()},
            hottest={name: tuple(keys) for name, keys in plain["hottest"].items()},
            demand=plain["demand"],
            used_bytes=plain["used_bytes"],
        )


def _finite(seconds: float) -> float | None:
    """JSON has no infinity."""
    return seconds if seconds < math.inf else None


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _plain_worker(worker: WorkerPlaces) -> dict[str, Any]:
    plain = asdict(worker)
    if worker.moving is not None:
        plain["moving"]["ends_s"] = _finite(worker.moving.ends_s)
    return plain


def _worker_of(plain: Mapping[str, Any]) -> WorkerPlaces:
    moving = plain["moving"]
    return WorkerPlaces(
        name=plain["name"],
        capacity=Capacity(**plain["capacity"]),
        device=plain["device"],
        resident={key: Residence(**there) for key, there in plain["resident"].items()},
        moving=moving
        and Moving(
            **{**moving, "evicting": tuple(moving["evicting"]), "ends_s": _or_inf(moving["ends_s"])},
        ),
        offers=tuple(tuple(group) for group in plain["offers"]),
        node=plain.get("node", ""),
        is_far=plain.get("is_far", False),
    )


def _plain_model(model: ModelState) -> dict[str, Any]:
    plain = {one.name: getattr(model, one.name) for one in fields(model)}
    return {**plain, "load_s": dict(model.load_s), "goal_s": _finite(model.goal_s)}


def _model_of(plain: Mapping[str, Any]) -> ModelState:
    groups = tuple(tuple(group) for group in plain["groups"])
    return ModelState(**{**plain, "goal_s": _or_inf(plain["goal_s"]), "groups": groups})


def _plain_rows(rows: WaitingRows) -> dict[str, Any]:
    times_s = {"due_s": rows.due_s, "deadline_s": rows.deadline_s}
    return {**asdict(rows), **{name: [_finite(at_s) for at_s in each] for name, each in times_s.items()}}


def _waiting_of(plain: Mapping[str, Any]) -> WaitingRows:
    times_s = {name: tuple(_or_inf(at_s) for at_s in plain[name]) for name in ("due_s", "deadline_s")}
    return WaitingRows(**{**plain, **times_s})


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a model into a worker over its link, after the evictions decided with it.

    reason: for the operator, a few words, the same for all models. because_of: a model that it is about: of
    "successor of" the one before, of "made room for" the one that comes.
    """

    worker: str
    model: str
    reason: str = field(default="", compare=False)
    because_of: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Evict:
    """Nothing new is sent to the model there from now on, and once its last batch is over it leaves.

    reason, because_of: as of a `Fetch`.
    """

    worker: str
    model: str
    reason: str = field(default="", compare=False)
    because_of: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up the load that is under way there. What was loaded of it is gone; what left for it, too.

    reason, because_of: as of a `Fetch`.
    """

    worker: str
    model: str
    reason: str = field(default="", compare=False)
    because_of: str = field(default="", compare=False)


PlacementAction = Fetch | Evict | Abort


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Loads and evictions, on idle links alone, one load a worker; loads to give up on busy ones.

    until_s: when to ask again at the latest. memory: what the policy remembers from now on, plain values;
    None = what it did.
    """

    actions: tuple[PlacementAction, ...] = ()
    until_s: float = math.inf
    memory: Mapping[str, Any] | None = None


class PlacementPolicy(Protocol):
    """Which models leave and which come."""

    name: str

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """What to do now; asked whenever something has changed, and at `until_s`."""
        ...
