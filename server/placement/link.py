"""What loads take: learned per kind of device and node, as a fixed part and a rate; of each model its own.

Pure. A worker's link moves one model at a time: from files, perhaps over a network, through the host's
memory, into the device. Where nodes have names, each has a link of its own, with two rates: of models that
have to come to the node, and of such as are *near*, since another of its workers holds them. What is not
known of a node yet is taken from other nodes with such devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Link", "LinkPlace", "LoadTimes"]

# Before anything was loaded. Hopeful: who is admitted by mistake still meets its own deadline.
_FIRST_FIXED_S = 0.02
_FIRST_S_PER_BYTE = 1e-9  # 1 GB/s
_KEPT = 0.9  # of the weight of what was learned before, at each load
_NEWEST = 0.3  # weight of a model's last load among its own
_MOST_LINKS = 512  # that are remembered: nodes come and go


class LinkPlace(NamedTuple):
    """Where loads take alike. node: "" for any, or where they have no names. near: it has the model."""

    device: str
    node: str = ""
    near: bool = False

    @property
    def of_any_node(self) -> LinkPlace:
        """The same, wherever there is such a device."""
        return LinkPlace(self.device, "", self.near)


class Link:
    """Seconds of a load = fixed + bytes / rate: the line through the loads of late, least squares.

    like: by whose line the time divides, while all that was loaded here is of one size.
    """

    def __init__(self, like: Link | None = None) -> None:
        self._like = like
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._line: tuple[float, float] | None = None

    def observe(self, size_bytes: int, took_s: float) -> None:
        """A model of that size took so long."""
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        new = (1.0, size_bytes, took_s, size_bytes * size_bytes, size_bytes * took_s)
        self._weight, self._x, self._y, self._xx, self._xy = (
            _KEPT * old + one for old, one in zip(sums, new, strict=True)
        )
        self._line = None

    @property
    def bytes_per_s(self) -> float | None:
        """What loads of late moved, in their whole time; None before the first."""
        return self._x / self._y if self._y > 0 else None

    def line(self) -> tuple[float, float]:
        """(fixed seconds, seconds per byte), neither below 0."""
        if self._line is None:
            self._line = self._fitted()
        return self._line

    def _fitted(self) -> tuple[float, float]:
        if not self._weight:
            return _FIRST_FIXED_S, _FIRST_S_PER_BYTE
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread <= 1e-6 * mean_x * mean_x and self._like is not None:
            fixed_s, per_byte_s = self._like.line()
            scale = mean_y / max(1e-9, fixed_s + per_byte_s * mean_x)
            return scale * fixed_s, scale * per_byte_s
        if spread <= 1e-6 * mean_x * mean_x:  # all of one size: how the time divides, nobody knows
            per_byte_s = min(_FIRST_S_PER_BYTE, mean_y / mean_x if mean_x else 0.0)
        else:
            per_byte_s = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread)
        fixed_s = mean_y - per_byte_s * mean_x
        if fixed_s < 0:
            return 0.0, self._xy / self._xx
        return fixed_s, per_byte_s

    def expected_s(self, size_bytes: int) -> float:
        """What a model of that size should take."""
        fixed_s, per_byte_s = self.line()
        return fixed_s + per_byte_s * size_bytes


class LoadTimes:
    """All links. A model takes what it took there before; a new one, the line; a new node is like others."""

    def __init__(self) -> None:
        self._links: dict[LinkPlace, Link] = {}
        self._own_s: dict[tuple[str, LinkPlace], float] = {}

    def observe(self, model: str, place: LinkPlace, size_bytes: int, took_s: float) -> None:
        """The model was loaded there."""
        everywhere = place.of_any_node
        for each in dict.fromkeys((everywhere, place)):
            link = self._links.get(each)
            if link is None:
                self._make_room()
                link = self._links[each] = Link(None if each is everywhere else self._links[everywhere])
            link.observe(size_bytes, took_s)
            before_s = self._own_s.get((model, each), took_s)
            self._own_s[model, each] = before_s + _NEWEST * (took_s - before_s)

    def forget(self, model: str) -> None:
        """The model is no more."""
        for place in [place for place in self._own_s if place[0] == model]:
            del self._own_s[place]

    def expected_s(self, model: str, place: LinkPlace, size_bytes: int) -> float:
        """What loading it there should take."""
        own_s = self._own_s.get((model, place))
        if own_s is not None:
            return own_s
        link = self._links.get(place)
        if not place.node:
            return (link or _FIRST).expected_s(size_bytes)
        if link is not None:
            return link.expected_s(size_bytes)
        return min(self._elsewhere_s(model, place, size_bytes))

    def bytes_per_s(self, place: LinkPlace) -> float | None:
        """What its loads of late moved a second; None before the first."""
        link = self._links.get(place)
        return None if link is None else link.bytes_per_s

    def _elsewhere_s(self, model: str, place: LinkPlace, size_bytes: int) -> Iterator[float]:
        """What others say of a link that nothing came over yet; to be near is never slower."""
        everywhere = place.of_any_node
        if not place.near or everywhere in self._links:
            yield self.expected_s(model, everywhere, size_bytes)
        if place.near:
            yield self.expected_s(model, LinkPlace(place.device, place.node), size_bytes)

    def _make_room(self) -> None:
        """Of too many links the one is forgotten that was met first, with what models took there."""
        if len(self._links) < _MOST_LINKS:
            return
        gone = next((place for place in self._links if place.node), None)
        if gone is not None:
            del self._links[gone]
            for place in [place for place in self._own_s if place[1] == gone]:
                del self._own_s[place]


_FIRST = Link()
