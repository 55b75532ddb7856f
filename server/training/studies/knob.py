"""One knob, and the dimension that advisors see of it. Knows no other knob's value but through its hooks.

A knob whose pre-hook moves its bounds is a plain [0, 1) dimension to the advisors, mapped onto the bounds
of the trial at hand: bounds that change between trials would degrade every sampler that models them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from server.training.studies.hooks import Bounds, Knobs, KnobValue, PostHook, PreHook, post_hook, pre_hook

__all__ = ["Branching", "DType", "Dimension", "Hook", "Knob", "KnobGroup"]

DType = Literal["float", "integer", "string"]
KnobGroup = Literal["preprocessing", "architecture", "training"]
# What a branch from a checkpoint may do to the knob: change it, only lower it, or keep it.
Branching = Literal["jitter", "lower", "fixed"]
Hook = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dimension:
    """What an advisor chooses: a float in [low, high), an integer in [low, high), or one of the choices."""

    name: str
    kind: Literal["float", "integer", "choice"]
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[KnobValue, ...] = ()

    def at(self, unit: float) -> KnobValue:
        """The choice at a point of [0, 1)."""
        if self.kind == "choice":
            return self.choices[min(len(self.choices) - 1, int(unit * len(self.choices)))]
        if self.log:
            value = self.low * (self.high / self.low) ** unit
        else:
            value = self.low + unit * (self.high - self.low)
        return self.clip(value)

    def clip(self, value: float) -> KnobValue:
        """The nearest value inside [low, high): whole for integers, below `high` always."""
        if self.kind == "integer":
            return int(min(max(math.floor(value), self.low), self.high - 1))
        return float(min(max(value, self.low), math.nextafter(self.high, self.low)))

    def shifted(self, value: float, shift: float) -> KnobValue:
        """The value times exp(shift) if the range is logarithmic, else with its odds times exp(shift)."""
        if self.log:
            moved = value * math.exp(shift)
        else:
            unit = min(max(self.unit(value), 1e-6), 1 - 1e-6)
            moved = self.low + (self.high - self.low) / (1 + (1 - unit) / unit * math.exp(-shift))
        # A logarithmic integer may stand between two values; of a linear one, a cell's middle is its value.
        return self.clip(moved + 0.5 if self.log and self.kind == "integer" else moved)

    def unit(self, value: KnobValue) -> float:
        """The inverse of `at` for numbers: a point of [0, 1]."""
        if isinstance(value, str) or self.kind == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices)
        # The middle of an integer's cell, so that `at(unit(v))` is v.
        point = value + 0.5 if self.kind == "integer" else value
        if self.log:
            return math.log(point / self.low) / math.log(self.high / self.low)
        return (point - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Knob:
    """One hyper-parameter: a range [min, max), or a list of candidates. Built by `HyperSpace`."""

    name: str
    dtype: DType
    bounds: Bounds
    kind: Literal["range", "categorical"]
    depends: tuple[str, ...] = ()
    pre: PreHook | Hook | None = None
    post: PostHook | Hook | None = None
    log: bool = False
    group: KnobGroup = "training"
    branching: Branching = "jitter"
    default: KnobValue | None = None  # known to do well on most data; a study's first trial begins with it
    dimension: Dimension = field(init=False)

    def __post_init__(self) -> None:
        self._check()
        # JSON hooks name the knob that they look at; it has to be generated first.
        named = [
            str(hook["knob"])
            for hook in (self.pre, self.post)
            if isinstance(hook, Mapping) and "knob" in hook
        ]
        object.__setattr__(self, "depends", tuple(dict.fromkeys([*self.depends, *named])))
        object.__setattr__(self, "dimension", self._dimension())

    def bounds_for(self, knobs: Knobs) -> Bounds | None:
        """The bounds in a trial where `knobs` are set; None when the trial has no such knob.

        Raises ValueError when the pre-hook leaves nothing to choose.
        """
        if self.pre is None:
            return self.bounds
        hook = pre_hook(self.pre) if isinstance(self.pre, Mapping) else self.pre
        bounds = hook(self.bounds, knobs)
        if bounds is not None and not len(bounds):
            raise ValueError(f"the pre-hook of knob {self.name!r} leaves nothing to choose")
        return bounds

    def value(self, drawn: KnobValue, bounds: Bounds, knobs: Knobs) -> KnobValue:
        """The knob's value, from what an advisor has drawn in its dimension."""
        if self.pre is not None:
            drawn = self._bent(float(drawn), bounds)
        elif self._is_character:
            drawn = chr(int(drawn))
        if self.post is None:
            return drawn
        hook = post_hook(self.post) if isinstance(self.post, Mapping) else self.post
        return hook(drawn, knobs)

    def first(self) -> KnobValue:
        """What the first trial draws: the default, or the middle where the knob has none."""
        if self.default is None:
            return self.dimension.at(0.5)
        return ord(str(self.default)) if self._is_character else self.default

    def as_json(self) -> dict[str, Any]:
        """The knob as JSON. Raises ValueError for a hook that is Python code."""
        if any(hook is not None and not isinstance(hook, Mapping) for hook in (self.pre, self.post)):
            raise ValueError(f"a hook of knob {self.name!r} is Python code, which JSON cannot carry")
        return self.outline()

    def outline(self) -> dict[str, Any]:
        """As `as_json`, but with "code" for a hook that is Python code."""
        form: dict[str, Any] = {"name": self.name, "kind": self.kind, "dtype": self.dtype}
        if self.kind == "range":
            form["min"], form["max"] = self.bounds
        else:
            form["list"] = list(self.bounds)
        extras = {
            "depends": list(self.depends),
            "pre_hook": self.pre,
            "post_hook": self.post,
            "log": self.log,
        }
        form |= {name: extra for name, extra in extras.items() if extra}
        if self.default is not None:
            form["default"] = self.default
        return form | {"group": self.group, "branching": self.branching}

    @property
    def _is_character(self) -> bool:
        return self.dtype == "string" and self.kind == "range"

    def _bent(self, unit: float, bounds: Bounds) -> KnobValue:
        if self.kind == "categorical":
            return Dimension(self.name, "choice", choices=tuple(bounds)).at(unit)
        return self._range(bounds).at(unit)

    def _dimension(self) -> Dimension:
        if self.pre is not None:
            return Dimension(self.name, "float")
        if self.kind == "categorical":
            return Dimension(self.name, "choice", choices=tuple(self.bounds))
        return self._range(self.bounds)

    def _range(self, bounds: Bounds) -> Dimension:
        if self.dtype == "string":
            return Dimension(self.name, "integer", ord(str(bounds[0])), ord(str(bounds[1])))
        low, high = float(bounds[0]), float(bounds[1])
        if self.dtype == "integer":
            low, high = math.ceil(low), math.ceil(high)
        # A hook may close a range; what is left is its lower end.
        high = max(high, low + 1 if self.dtype == "integer" else math.nextafter(low, math.inf))
        return Dimension(self.name, "integer" if self.dtype == "integer" else "float", low, high, self.log)

    def _check(self) -> None:
        name: object = self.name  # of JSON
        if not isinstance(name, str) or not name:
            raise ValueError(f"a knob needs a name, a text, not {name!r}")
        for what, given, known in (
            ("dtype", self.dtype, get_args(DType)),
            ("group", self.group, get_args(KnobGroup)),
            ("branching", self.branching, get_args(Branching)),
        ):
            if given not in known:
                raise ValueError(
                    f"knob {self.name!r}: {what} must be one of {', '.join(known)}, not {given!r}"
                )
        if self.kind == "categorical":
            self._check_list(self.bounds)
        else:
            self._check_range(self.bounds)
        self._check_hooks()
        if self.default is not None:
            self._check_default(self.default)

    def _check_hooks(self) -> None:
        for hook in (self.pre, self.post):
            if hook is not None and not isinstance(hook, Mapping) and not callable(hook):
                raise ValueError(
                    f'knob {self.name!r}: a hook is an object, {{"hook": "at_most", "knob": "…"}}, '
                    f"not {hook!r:.50}"
                )
        if isinstance(self.post, Mapping):
            post_hook(self.post)
            if self.dtype == "string":
                raise ValueError(f"knob {self.name!r}: the hook {self.post['hook']!r} is of numbers")
        if not isinstance(self.pre, Mapping):
            return
        pre_hook(self.pre)
        name = self.pre["hook"]
        if name == "among":
            if self.kind != "categorical":
                raise ValueError(f"knob {self.name!r}: the hook {name!r} is of lists, and this is a range")
            for candidates in self.pre["candidates"].values():
                self._check_list(candidates)
        elif name != "only_when" and (self.kind != "range" or self.dtype == "string"):
            raise ValueError(f"knob {self.name!r}: the hook {name!r} is of ranges of numbers")

    def _check_default(self, default: KnobValue) -> None:
        if self.pre is not None:
            raise ValueError(f"knob {self.name!r}: bounds that a hook moves have no default")
        if self.kind == "categorical":
            fits = default in self.bounds
        elif self._is_character:
            fits = isinstance(default, str) and str(self.bounds[0]) <= default < str(self.bounds[1])
        else:
            kinds = (int,) if self.dtype == "integer" else (int, float)
            fits = isinstance(default, kinds) and float(self.bounds[0]) <= default < float(self.bounds[1])
        if not fits:
            raise ValueError(f"knob {self.name!r}: the default {default!r} is none of its values")

    def _check_list(self, candidates: Sequence[KnobValue]) -> None:
        if not candidates:
            raise ValueError(f"knob {self.name!r}: the list of candidates is empty")
        if len(set(map(repr, candidates))) != len(candidates):
            raise ValueError(f"knob {self.name!r}: a candidate occurs twice")
        kinds = {"float": (int, float), "integer": (int,), "string": (str,)}[self.dtype]
        wrong = [candidate for candidate in candidates if not isinstance(candidate, kinds)]
        if wrong:
            raise ValueError(f"knob {self.name!r}: {wrong[0]!r} is not of dtype {self.dtype}")
        if not all(math.isfinite(candidate) for candidate in candidates if isinstance(candidate, float)):
            raise ValueError(f"knob {self.name!r}: a candidate is not a finite number")

    def _check_range(self, bounds: Bounds) -> None:
        low, high = bounds
        if self.dtype == "string":
            if not all(isinstance(end, str) and len(end) == 1 for end in bounds) or str(low) >= str(high):
                raise ValueError(
                    f"knob {self.name!r}: a range of strings goes from one character to a later one"
                )
            return
        if not all(isinstance(end, int | float) and math.isfinite(end) for end in bounds):
            raise ValueError(f"knob {self.name!r}: min and max must be finite numbers")
        if not float(low) < float(high):
            raise ValueError(f"knob {self.name!r}: the range [{low}, {high}) is empty")
        if self.dtype == "integer" and math.ceil(float(low)) >= math.ceil(float(high)):
            raise ValueError(f"knob {self.name!r}: there is no whole number in the range [{low}, {high})")
        if self.log and float(low) <= 0:
            raise ValueError(f"knob {self.name!r}: a logarithmic range must begin above 0, not at {low}")
