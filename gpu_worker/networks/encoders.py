"""How a value of a table's column becomes numbers: a few kinds of encoder, each fitted on training rows.

    Scaled   (value − mean) / scale                 of numbers and booleans
    Moment   when, and where in year, week and day  of dates and times, as seconds since 1970 in UTC
    Known    a flag for each known text             an unknown text raises no flag
    Rates    what the target was, with that text    of as many texts as there are; an unknown one has the mean
    Words    what a linear model of its words says  of free text

Numpy alone; what is learnt is JSON, and travels inside the model's file.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_worker.zoo.ngrams import NGrams, tfidf

__all__ = ["MANY", "Encoder", "Known", "Moment", "Rates", "Scaled", "Values", "Words", "encoder_from"]

_DAY_S = 86_400.0
_YEAR_S = 365.2425 * _DAY_S
_MOST = 1e30
_MOST_OUTPUTS = 4_096
_MOST_TEXTS = 1 << 20
_STORED = np.float16  # of words, which are many

MANY = 32  # values, of which numpy makes the same numbers sooner: fewer are never an array
Floats = NDArray[np.float32]
Values = Sequence[Any] | NDArray[np.float64]  # of a column: None, or NaN, where one is missing


class Encoder(Protocol):
    """Makes `width` numbers of a value; of a missing one, the numbers that say nothing."""

    @property
    def width(self) -> int:
        """How many numbers stand for one value."""
        ...

    def write(self, out: Floats, values: Values) -> None:
        """The numbers of n values into `out`: float32 [n, width], all 0."""
        ...

    def as_json(self) -> dict[str, Any]:
        """What was learnt."""
        ...


@dataclass(frozen=True, slots=True)
class Scaled:
    """mean, scale: of the training rows."""

    mean: float = 0.0
    scale: float = 1.0

    @property
    def width(self) -> int:
        """One number."""
        return 1

    def write(self, out: Floats, values: Values) -> None:
        """See `Encoder.write`."""
        if len(values) < MANY:
            for row, value in enumerate(values):
                if value is not None:
                    out[row, 0] = min(max((value - self.mean) / self.scale, -_MOST), _MOST)
            return
        numbers = np.array(values, np.float64)  # NaN for None
        with np.errstate(over="ignore"):
            scaled = np.clip((numbers - self.mean) / self.scale, -_MOST, _MOST)
        out[:, 0] = np.where(np.isnan(numbers), 0.0, scaled)

    def as_json(self) -> dict[str, Any]:
        """See `Encoder.as_json`."""
        return {"encoder": "scaled", "mean": self.mean, "scale": self.scale}


@dataclass(frozen=True, slots=True)
class Moment:
    """mean, scale: of the seconds since 1970.

    When it was, scaled; the place in the year and in the day on a circle; the weekday, a flag for each.
    """

    mean: float = 0.0
    scale: float = 1.0

    @property
    def width(self) -> int:
        """Scaled, 2 of the year, 2 of the day, 7 of the week."""
        return 12

    def write(self, out: Floats, values: Values) -> None:
        """See `Encoder.write`."""
        rows = [row for row, value in enumerate(values) if value is not None]
        moments = np.array([values[row] for row in rows], np.float64)
        out[rows, 0] = np.clip((moments - self.mean) / self.scale, -_MOST, _MOST)
        for at, period_s in ((1, _YEAR_S), (3, _DAY_S)):
            angle = 2 * math.pi * np.mod(moments, period_s) / period_s
            out[rows, at] = np.sin(angle)
            out[rows, at + 1] = np.cos(angle)
        # The first of January 1970 was a Thursday, 3 from Monday on.
        weekday = np.mod(np.floor(moments / _DAY_S).astype(np.int64) + 3, 7)
        out[rows, 5 + weekday] = 1.0

    def as_json(self) -> dict[str, Any]:
        """See `Encoder.as_json`."""
        return {"encoder": "moment", "mean": self.mean, "scale": self.scale}


@dataclass(frozen=True)
class Known:
    """texts: those that the training rows showed most often."""

    texts: tuple[str, ...]

    @property
    def width(self) -> int:
        """A flag for each."""
        return len(self.texts)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {text: at for at, text in enumerate(self.texts)}

    def write(self, out: Floats, values: Values) -> None:
        """See `Encoder.write`."""
        places = self._places
        for row, value in enumerate(values):
            place = None if value is None else places.get(value)
            if place is not None:
                out[row, place] = 1.0

    def as_json(self) -> dict[str, Any]:
        """See `Encoder.as_json`."""
        return {"encoder": "known", "texts": list(self.texts)}


@dataclass(frozen=True)
class Rates:
    """texts: [t]; rates: float32 [t + 1, k], what the target was on average with each, and at last with any.

    Micci-Barreca 2001, "A preprocessing scheme for high-cardinality categorical attributes".
    """

    texts: tuple[str, ...]
    rates: Floats

    @property
    def width(self) -> int:
        """A mean for each number of the target."""
        return int(self.rates.shape[1])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {text: at for at, text in enumerate(self.texts)}

    def write(self, out: Floats, values: Values) -> None:
        """See `Encoder.write`."""
        any_text = len(self.texts)
        places = self._places
        out[:] = self.rates[[any_text if value is None else places.get(value, any_text) for value in values]]

    def as_json(self) -> dict[str, Any]:
        """See `Encoder.as_json`."""
        return {"encoder": "rates", "texts": list(self.texts), "rates": _packed(self.rates, np.float32)}


@dataclass(frozen=True, slots=True)
class Words:
    """A linear model of a text. idf: float32 [buckets]; weights: float32 [buckets, k]; bias: float32 [k].

    The first two are rounded to what is stored of them: trees split between numbers that are close together,
    so a model must be taught by the very numbers that it is served with.
    """

    ngrams: NGrams
    idf: Floats
    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        for name in ("idf", "weights"):
            object.__setattr__(self, name, getattr(self, name).astype(_STORED).astype(np.float32))

    @property
    def width(self) -> int:
        """What the model says, for each number of the target."""
        return int(self.weights.shape[1])

    def write(self, out: Floats, values: Values) -> None:
        """See `Encoder.write`."""
        found = self.ngrams.of(["" if value is None else value for value in values])
        shares = tfidf(found, self.idf)
        starts = np.concatenate([[0], found.ends[:-1]]).astype(np.int64)
        some = starts < found.ends  # `reduceat` has no empty sums
        if some.any():
            out[some] = np.add.reduceat(self.weights[found.places] * shares[:, None], starts[some], axis=0)
        out += self.bias

    def as_json(self) -> dict[str, Any]:
        """See `Encoder.as_json`."""
        return {
            "encoder": "words",
            "words": self.ngrams.words,
            "characters": list(self.ngrams.characters),
            "buckets": self.ngrams.buckets,
            "idf": _packed(self.idf, _STORED),
            "weights": _packed(self.weights, _STORED),
            "bias": _packed(self.bias, np.float32),
        }


def encoder_from(form: Mapping[str, Any]) -> Encoder:
    """The inverse of `as_json`. Raises `ValueError`, `KeyError`, `TypeError`: a model comes from anybody."""
    reads = _READS.get(form["encoder"])
    if reads is None:
        raise ValueError(f"there is no encoder {form['encoder']!r}; there are {', '.join(_READS)}")
    found: Encoder = reads(form)
    return found


def _rates(form: Mapping[str, Any]) -> Rates:
    texts = _texts(form)
    return Rates(texts, _unpacked(form["rates"], np.float32, len(texts) + 1))


def _words(form: Mapping[str, Any]) -> Words:
    ngrams = NGrams(
        int(form["words"]), (int(form["characters"][0]), int(form["characters"][1])), form["buckets"]
    )
    idf = _unpacked(form["idf"], _STORED, ngrams.buckets)[:, 0]
    weights = _unpacked(form["weights"], _STORED, ngrams.buckets)
    return Words(ngrams, idf, weights, _unpacked(form["bias"], np.float32, weights.shape[1])[:, 0])


def _texts(form: Mapping[str, Any]) -> tuple[str, ...]:
    texts = tuple(form["texts"])
    if len(texts) > _MOST_TEXTS or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"an encoder's texts must be up to {_MOST_TEXTS} texts")
    return texts


def _scaling(form: Mapping[str, Any]) -> tuple[float, float]:
    mean, scale = float(form["mean"]), float(form["scale"])
    if not (math.isfinite(mean) and math.isfinite(scale) and scale > 0):
        raise ValueError("an encoder's mean and scale must be finite, and the scale above 0")
    return mean, scale


_READS: Mapping[str, Any] = MappingProxyType(
    {
        "scaled": lambda form: Scaled(*_scaling(form)),
        "moment": lambda form: Moment(*_scaling(form)),
        "known": lambda form: Known(_texts(form)),
        "rates": _rates,
        "words": _words,
    }
)


def _packed(numbers: Floats, kind: type[np.floating[Any]]) -> str:
    return base64.b64encode(
        np.ascontiguousarray(numbers, np.dtype(kind).newbyteorder("<")).tobytes()
    ).decode()


def _unpacked(text: str, kind: type[np.floating[Any]], rows: int) -> Floats:
    """float32 [rows, k], finite."""
    flat = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind).newbyteorder("<"))
    width, left = divmod(len(flat), rows)
    if left or not 0 < width <= _MOST_OUTPUTS or not np.isfinite(flat).all():
        raise ValueError("an encoder's numbers are damaged")
    return flat.astype(np.float32).reshape(rows, width)
