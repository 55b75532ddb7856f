"""What is known of models, wherever they are: as the core keeps it, and as policies see it.

Pure. What policies see of a model is made when it is looked at, and anew once something of it is another:
there may be thousands of models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from server.placement.link import LinkPlace, LoadTimes
from server.placement.policy import FADE_S, GroupKeys, ModelState, link_name

__all__ = ["KnownModel", "KnownModels", "ServedFunction"]


@dataclass(slots=True, eq=False)
class ServedFunction:
    """A function: its goal, and whether some of its members may answer without the others."""

    group: GroupKeys
    goal_s: float
    in_part: bool


@dataclass(slots=True, eq=False)
class KnownModel:
    """What is known of a model, as `ModelState` has it.

    latency_s: l̂, and the largest batch. nodes: by name, how many of a node's workers hold it. state: what
    policies last saw of it, while that is true: whoever changes something else of it sets this to None.
    """

    size_bytes: int = 0
    last_used_s: float = 0.0
    deaths: int = 0
    failures: int = 0
    dismissed: bool = False
    arrivals: float = 0.0
    arrived_s: float = 0.0
    rows: int = 0
    lost: int = 0
    served_s: float = 0.0
    functions: dict[str, ServedFunction] = field(default_factory=dict)
    latency_s: tuple[Callable[[int], float], int] | None = None
    nodes: Counter[str] = field(default_factory=Counter)
    row_s: float = 0.0  # of a batch of four, by what policies last saw
    state: ModelState | None = None

    @property
    def score(self) -> float:
        """Orders models by the rate at which rows come for them."""
        return math.log(self.arrivals) + self.arrived_s / FADE_S if self.arrivals else -math.inf

    def came(self, now_s: float, rows: int) -> None:
        """Interactive rows came for it."""
        if not self.rows:
            self.served_s = now_s
        self.rows += rows
        self.dismissed = False
        self.arrivals = rows + self.arrivals * math.exp((self.arrived_s - now_s) / FADE_S)
        self.arrived_s = now_s
        self.state = None


class _LoadsOf(Mapping[str, float]):
    """Link → what loading a model over it should take. Every load changes that: it is asked anew."""

    __slots__ = ("_key", "_links", "_nodes", "_size_bytes", "_times")

    def __init__(self, key: str, model: KnownModel, links: Mapping[str, LinkPlace], times: LoadTimes) -> None:
        # Not the model itself, which holds this: a circle would outlive it.
        self._key, self._size_bytes, self._nodes = key, model.size_bytes, model.nodes
        self._links = links
        self._times = times

    def __getitem__(self, link: str) -> float:
        place = self._links[link]
        if place.node and self._nodes[place.node] > 0:
            place = LinkPlace(place.device, place.node, near=True)
        return self._times.expected_s(self._key, place, self._size_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)


class KnownModels(Mapping[str, ModelState]):
    """All models that were heard of and are not forgotten, and what loads of them take."""

    def __init__(self) -> None:
        self._known: dict[str, KnownModel] = {}
        self._load_times = LoadTimes()
        self._links: dict[str, LinkPlace] = {}  # of all workers that there are or were

    def met(self, key: str) -> KnownModel:
        """The model; nothing is known of a new one."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = KnownModel()
        return found

    def forget(self, key: str) -> None:
        """The model is no more."""
        self._known.pop(key, None)
        self._load_times.forget(key)

    def everyone(self) -> ItemsView[str, KnownModel]:
        """All of them, by key."""
        return self._known.items()

    def expected_s(self, key: str, device: str, node: str = "") -> float:
        """What loading the model on that kind of device should take; on that node, if one is named."""
        model = self.met(key)
        place = LinkPlace(device, node, node != "" and model.nodes[node] > 0)
        return self._load_times.expected_s(key, place, model.size_bytes)

    def loaded(self, key: str, device: str, size_bytes: int, load_s: float, node: str = "") -> None:
        """A load there took so long, before the worker held it: what others should take is another, too."""
        place = LinkPlace(device, node, node != "" and self.met(key).nodes[node] > 0)
        self._load_times.observe(key, place, size_bytes, load_s)

    def held(self, node: str, before: Iterable[str], now: Iterable[str]) -> None:
        """A worker of a node that has a name held these models, and holds others from now on."""
        for key in before:
            self.met(key).nodes[node] -= 1
        for key in now:
            self.met(key).nodes[node] += 1

    def link_met(self, device: str, node: str = "") -> None:
        """There is such a kind of device, on that node."""
        self._links[link_name(device, node)] = LinkPlace(device, node)

    def link_gone(self, device: str, node: str) -> None:
        """That node, which has a name, has no such device any more."""
        self._links.pop(link_name(device, node), None)

    def bytes_per_s(self, device: str, node: str = "") -> float | None:
        """What loads of late moved over that link; None before the first."""
        return self._load_times.bytes_per_s(LinkPlace(device, node))

    def __getitem__(self, key: str) -> ModelState:
        model = self._known[key]
        if model.state is None:
            fixed_s, row_s = _line(model.latency_s)
            functions = model.functions.values()
            model.row_s = fixed_s / 4 + row_s
            model.state = ModelState(
                size_bytes=model.size_bytes,
                last_used_s=model.last_used_s,
                deaths=model.deaths,
                failures=model.failures,
                dismissed=model.dismissed,
                load_s=_LoadsOf(key, model, self._links, self._load_times),
                arrivals=model.arrivals,
                arrived_s=model.arrived_s,
                rows=model.rows,
                lost=model.lost,
                served_s=model.served_s,
                goal_s=min((one.goal_s for one in functions), default=math.inf),
                fixed_s=fixed_s,
                row_s=row_s,
                max_batch=model.latency_s[1] if model.latency_s else 1,
                groups=tuple(dict.fromkeys(one.group for one in functions)),
                share=max((1 / len(one.group) if one.in_part else 1.0 for one in functions), default=1.0),
            )
        return model.state

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        return key in self._known


def _line(latency_s: tuple[Callable[[int], float], int] | None) -> tuple[float, float]:
    """l̂ as (fixed seconds, seconds a row): through a batch of one row and the largest."""
    if latency_s is None:
        return 0.0, 0.0
    predicted_s, most = latency_s
    one_s = predicted_s(1)
    row_s = max(0.0, (predicted_s(most) - one_s) / (most - 1)) if most > 1 else 0.0
    return max(0.0, one_s - row_s), row_s if most > 1 else one_s
