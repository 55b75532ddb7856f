"""What loads take: learned per kind of device, as a fixed part and a rate, and for each model its own.

Pure. A worker's link moves one model at a time: from files, through the host's memory, into the device.
"""

from __future__ import annotations

__all__ = ["Link", "LoadTimes"]

# Before anything was loaded. Hopeful: who is admitted by mistake still meets its own deadline.
_FIRST_FIXED_S = 0.02
_FIRST_S_PER_BYTE = 1e-9  # 1 GB/s
_KEPT = 0.9  # of the weight of what was learned before, at each load
_NEWEST = 0.3  # weight of a model's last load among its own


class Link:
    """Seconds of a load = fixed + bytes / rate: the line through the loads of late, least squares."""

    def __init__(self) -> None:
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
    """The links of all kinds of devices. A model takes what it took there before; a new one, the line."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._own_s: dict[tuple[str, str], float] = {}

    def observe(self, model: str, device: str, size_bytes: int, took_s: float) -> None:
        """The model was loaded on that kind of device."""
        self._links.setdefault(device, Link()).observe(size_bytes, took_s)
        before_s = self._own_s.get((model, device), took_s)
        self._own_s[model, device] = before_s + _NEWEST * (took_s - before_s)

    def forget(self, model: str) -> None:
        """The model is no more."""
        for place in [place for place in self._own_s if place[0] == model]:
            del self._own_s[place]

    def expected_s(self, model: str, device: str, size_bytes: int) -> float:
        """What loading it there should take."""
        own_s = self._own_s.get((model, device))
        if own_s is not None:
            return own_s
        fixed_s, per_byte_s = self._links.get(device, _FIRST).line()
        return fixed_s + per_byte_s * size_bytes


_FIRST = Link()
