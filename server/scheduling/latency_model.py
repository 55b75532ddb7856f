"""l̂(b): how long a batch of b rows will take, on one variant, one kind of device, one shape of rows.

    l̂(b) = profile(b) · shape(b) · level · margin

`profile` is what was measured at registration, piecewise linear. Every batch then corrects, by the logarithm
of what it took beyond the prediction, the `shape` at its size and the `level` of all sizes: sizes that never
run still follow a slow-down of the device. A large deviation counts only as far as the batch before, or the
last one of its size, deviated too, so that one outlier moves little and a real change is followed from the
second batch on. `margin` is a high quantile of what the last 20 batches took beyond the curve as it is now:
it covers the noise.

Workers of one kind need not be alike: `of_worker` is l̂ on one of them (worker_pace.py).

Knows batch sizes and seconds; nothing of queues, policies or models. Its state is plain JSON.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from server.scheduling.worker_pace import WorkerPaces

__all__ = ["LatencyModel", "LatencyOnWorker"]

_LEVEL_GAIN = 0.25  # of a deviation, into the level
_SHAPE_GAIN = 0.15  # into the shape at its size, once that is known; more for the first batches of a size
_NOISE = 0.15  # deviations up to here, in ln, are taken as they are
_RECENT = 20  # batches that the margin covers
_QUANTILE = 0.85  # of them: the fourth slowest of 20
_MOST_MARGIN = 1.5
_MOST_APART = 20.0  # ln, from the profile, of what is kept: 500 million times


class LatencyModel:
    """Call it with rows; teach it with `observe`; `on(device, bucket)` is the model of another kind."""

    def __init__(self, profile_s: Mapping[int, float], *, measured: bool = True) -> None:
        """`profile_s`: rows of a batch → seconds. Raises ValueError if it is empty or not positive.

        Not `measured`, it is a guess, which the first batch of each size replaces. Sizes larger than any that
        ran then count as cheap, up to twice as large, so that they are tried; and as proportional beyond.
        """
        self._kinds: dict[str, LatencyModel] = {}
        self._base: LatencyModel | None = None
        self._paces = WorkerPaces()
        self.start(profile_s, measured=measured)

    def start(self, profile_s: Mapping[int, float], *, measured: bool = True) -> None:
        """Begin anew from that profile, as a new one would; the models of other kinds stay as they are."""
        if not profile_s or any(rows < 1 or not 0 < took < math.inf for rows, took in profile_s.items()):
            raise ValueError("a latency profile needs at least one point, with rows ≥ 1 and seconds > 0")
        self._paces.forget()
        self._profile = sorted(profile_s.items())
        self._near: dict[int, int] = {}  # rows → the learned size that a batch of so many is near
        self._measured = measured
        self._shape = {rows: 0.0 for rows, _ in self._profile if measured}  # ln, by size
        self._seen = dict.fromkeys(self._shape, 3)  # batches by size; the profile counts for three
        self._level = 0.0  # ln
        self._last = 0.0  # what the last batch deviated, ln
        self._last_near: dict[int, float] = {}  # the same, by size
        self._recent: list[tuple[int, float]] = []
        self._resize()

    @property
    def is_known(self) -> bool:
        """Whether it rests on a measurement, and is more than a guess."""
        return self._measured or bool(self._recent)

    def __call__(self, rows: int) -> float:
        """Predicted seconds of a batch of `rows` rows; never less than that of a smaller batch."""
        predicted_s = self._predicted_s.get(rows)
        if predicted_s is None:
            predicted_s = self._predicted_s[rows] = self._cover() * self._on_curve(rows)
        return predicted_s

    def typical_s(self, rows: int) -> float:
        """As calling it, without the margin that covers the noise."""
        return self._on_curve(rows)

    def on(self, device: str, bucket: str) -> LatencyModel:
        """The model of rows of that shape on that kind of device; it starts from what this one knows now.

        What its batches teach it teaches this one too, so that the next kind starts from more than a guess.
        """
        if not device and not bucket:
            return self
        name = f"{device}|{bucket}"
        kind = self._kinds.get(name)
        if kind is None:
            kind = LatencyModel(dict(self._curve), measured=self._measured)
            self._adopt(name, kind)
        return kind

    def of_worker(self, worker: str) -> LatencyOnWorker:
        """l̂ on one worker of the kind."""
        return LatencyOnWorker(self, self._paces, worker)

    def kinds(self, bucket: str) -> list[LatencyModel]:
        """The models of rows of that shape, one for each kind of device where such rows ran."""
        kinds = self._kinds.items()
        return [kind for name, kind in kinds if name.partition("|")[2] == bucket and kind.is_known]

    def learned(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """By kind of device and shape of rows, where that is known: seconds at the sizes that ran, rising."""
        return {
            (device, bucket): [(rows, kind.typical_s(rows)) for rows in sorted(kind._shape)]
            for name, kind in self._kinds.items()
            for device, _, bucket in [name.partition("|")]
            if kind.is_known
        }

    def observe(self, rows: int, seconds: float, *, is_apart: bool = False) -> None:
        """A batch of `rows` rows took `seconds`. Raises ValueError for what cannot have been.

        is_apart: on a worker that is not like the others, and would have on one that is: it teaches how large
        the noise is, and of sizes that hardly ran what they take beside others.
        """
        if rows < 1 or not 0 < seconds < math.inf:
            raise ValueError(f"a batch of {rows} rows cannot have taken {seconds} s")
        size = self._near.get(rows)
        if size is None:
            size = self._near[rows] = self._size_near(rows)
        if size not in self._shape:
            self._near.clear()
            known_s = self._on_curve(rows) if self._measured else seconds
            self._shape[size] = math.log(known_s / _between(self._profile, rows)) - self._level
            self._seen[size] = 1
            self._resize()
        self._correct(size, math.log(seconds / self._on_curve(rows)), is_apart)
        self._recent = [*self._recent, (rows, seconds)][-_RECENT:]
        self._draw()
        if self._base is not None:
            self._base.observe(rows, seconds)

    def _adopt(self, name: str, kind: LatencyModel) -> None:
        kind._base = self
        self._kinds[name] = kind

    def _correct(self, size: int, deviation: float, is_apart: bool) -> None:
        """Take in what a batch near `size` deviated from the curve, ln."""
        gain = (1 - _LEVEL_GAIN) / (1 + self._seen[size])
        if is_apart and gain <= _SHAPE_GAIN:
            return
        believed = max(
            _believed(deviation, self._last), _believed(deviation, self._last_near.get(size, 0.0)), key=abs
        )
        self._last = self._last_near[size] = deviation
        if not is_apart:
            self._level += _LEVEL_GAIN * believed
        self._shape[size] += max(_SHAPE_GAIN, gain) * believed
        self._seen[size] += 1

    def to_json(self) -> dict[str, Any]:
        """All that was learned, as plain values."""
        return {
            "profile_s": [list(point) for point in self._profile],
            "measured": self._measured,
            "shape": [[rows, value, self._seen[rows]] for rows, value in self._shape.items()],
            "level": self._level,
            "last": self._last,
            "last_near": [[rows, value] for rows, value in self._last_near.items()],
            "recent": [list(batch) for batch in self._recent],
            "kinds": {name: kind.to_json() for name, kind in self._kinds.items()},
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LatencyModel:
        """What `to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        profile_s = {int(rows): float(took) for rows, took in state["profile_s"]}
        model = cls(profile_s, measured=bool(state["measured"]))
        model._shape = {int(rows): float(value) for rows, value, _ in state["shape"]}
        model._seen = {int(rows): int(seen) for rows, _, seen in state["shape"]}
        model._level = float(state["level"])
        model._last = float(state["last"])
        model._last_near = {int(rows): float(value) for rows, value in state["last_near"]}
        model._recent = [(int(rows), float(took)) for rows, took in state["recent"]]
        for name, kind in state["kinds"].items():
            model._adopt(name, cls.from_json(kind))
        if any(not abs(value + model._level) < _MOST_APART for value in (0.0, *model._shape.values())):
            raise ValueError(f"no device is so much slower or faster than its profile: e^{model._level:g}")
        model._resize()
        return model

    def _size_near(self, rows: int) -> int:
        """The learned size nearest by ratio; the nearest power of two where none is within 1.5 times."""
        near = min(self._shape, key=lambda size: abs(math.log(size / rows)), default=0)
        if near and max(near, rows) <= 1.5 * min(near, rows):
            return near
        return 1 << round(math.log2(rows))

    def _resize(self) -> None:
        """The learned sizes are others: where they lie on the profile, and batches on the curve."""
        self._profiled_s = [(size, _between(self._profile, size)) for size in sorted(self._shape)]
        self._places: dict[int, tuple[int, int, int, int]] = {}
        self._draw()

    def _draw(self) -> None:
        """profile · shape · level at every learned size, ascending in both coordinates."""
        self._margin: float | None = None  # found when it is asked for
        self._predicted_s: dict[int, float] = {}  # what was asked since the last batch, which many ask again
        curve: list[tuple[int, float]] = []
        highest = 0.0
        shape, level, exp = self._shape, self._level, math.exp
        for size, profiled_s in self._profiled_s:
            here_s = profiled_s * exp(shape[size] + level)
            if here_s > highest:
                highest = here_s
            curve.append((size, highest))
        self._curve = curve if self._measured else self._with_guesses(curve)

    def _on_curve(self, rows: int) -> float:
        """As `_between`. Where a batch lies changes with the sizes alone; each batch moves the curve."""
        curve = self._curve
        place = self._places.get(rows)
        if place is None:
            if len(curve) == 1:
                return _between(curve, rows)
            place = self._places[rows] = _place(curve, rows)
        low, high, past, apart = place
        low_s, high_s = curve[low][1], curve[high][1]
        return low_s if high_s <= low_s else low_s + (high_s - low_s) * past / apart

    def _with_guesses(self, curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
        if not curve:
            return self._profile
        (first, first_s), (last, last_s) = curve[0], curve[-1]
        scale = first_s / _between(self._profile, first)
        smaller = [(rows, min(first_s, scale * took)) for rows, took in self._profile if rows < first]
        return [*smaller, *curve, (2 * last, last_s), (2000 * last, 1000 * last_s)]

    def _cover(self) -> float:
        """The margin. Many models learn between two predictions of theirs, so only these pay for it."""
        if self._margin is None:
            curve_s = {rows: self._on_curve(rows) for rows in {rows for rows, _ in self._recent}}
            beyond = sorted([took / curve_s[rows] for rows, took in self._recent])
            self._margin = (
                min(_MOST_MARGIN, max(1.0, beyond[int(_QUANTILE * (len(beyond) - 1))])) if beyond else 1.0
            )
        return self._margin


class LatencyOnWorker:
    """l̂ of a kind on one of its workers; what it is taught teaches the kind too."""

    __slots__ = ("_kind", "_pace", "_paces")

    def __init__(self, kind: LatencyModel, paces: WorkerPaces, worker: str) -> None:
        self._kind = kind
        self._paces = paces
        self._pace = paces.of(worker)

    @property
    def is_known(self) -> bool:
        """Whether it rests on a measurement, here or on another worker of the kind."""
        return self._kind.is_known

    @property
    def are_alike(self) -> bool:
        """Whether no worker of the kind lies apart from the others."""
        return self._paces.are_alike

    def __call__(self, rows: int) -> float:
        """Predicted seconds of a batch of `rows` rows there."""
        kind = self._kind
        return kind(rows) * self._pace.ratio(kind._level)

    def observe(self, rows: int, seconds: float) -> None:
        """A batch took so long there. Raises ValueError for what cannot have been."""
        kind, pace = self._kind, self._pace
        kind.observe(rows, seconds / pace.ratio(kind._level), is_apart=pace.is_apart)
        level = kind._level
        self._paces.observe(pace, math.log(seconds / kind.typical_s(rows)) + level, level)


def _believed(deviation: float, last: float) -> float:
    """As much of a deviation as is no outlier: a small one whole, of a large one what the last one shared."""
    if abs(deviation) <= _NOISE:
        return deviation
    shared = min(abs(deviation), abs(last)) if deviation * last > 0 else 0.0
    return math.copysign(max(_NOISE, shared), deviation)


def _between(points: Sequence[tuple[int, float]], rows: int) -> float:
    """Linear between the points and beyond the last; a single point is proportional above and flat below."""
    if len(points) == 1:
        size, size_s = points[0]
        return size_s * rows / size if rows > size else size_s
    low, high, past, apart = _place(points, rows)
    low_s, high_s = points[low][1], points[high][1]
    return low_s if high_s <= low_s else low_s + (high_s - low_s) * past / apart


def _place(points: Sequence[tuple[int, float]], rows: int) -> tuple[int, int, int, int]:
    """The points by which a batch is predicted, how far it is past the first, and how far they are apart.

    The same point twice where it is that one's size, or less than all.
    """
    at = bisect_left(points, (rows,))  # which comes before every point of so many rows
    if at == 0 or (at < len(points) and points[at][0] == rows):
        return at, at, 0, 1
    high = min(at, len(points) - 1)
    low = high - 1
    return low, high, rows - points[low][0], points[high][0] - points[low][0]
