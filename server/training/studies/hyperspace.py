"""The space of hyper-parameters, H (Rafiki §4.2.1, Table 1, Figure 4).

Owns the knobs and the order in which they are generated. How good a point is, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from server.training.studies.hooks import OF_NUMBERS, KnobValue, PostHook, PreHook
from server.training.studies.knob import Branching, Dimension, DType, Hook, Knob, KnobGroup

__all__ = ["HyperSpace", "Point", "lower_of"]

# What was drawn in each dimension, and the knobs that came of it.
Point = tuple[dict[str, KnobValue], dict[str, KnobValue]]


class HyperSpace:
    """Knobs by name. Rafiki's two functions add them; `as_json` and `from_json` carry them over REST.

    `log`: the range is logarithmic. `default`: a value that is known to do well. `branching`: what a branch
    from a checkpoint may do to the knob (knobs of the group `architecture` always stay, since the
    checkpoint's weights must fit).
    """

    def __init__(self) -> None:
        self._knobs: dict[str, Knob] = {}
        self._ordered: list[Knob] | None = None

    def add_range_knob(
        self,
        name: str,
        dtype: DType,
        min: float | str,
        max: float | str,
        depends: Sequence[str] | None = None,
        pre_hook: PreHook | Hook | None = None,
        post_hook: PostHook | Hook | None = None,
        *,
        log: bool = False,
        group: KnobGroup = "training",
        branching: Branching = "jitter",
        default: KnobValue | None = None,
    ) -> None:
        """A knob in [min, max): float, integer, or a single character. Raises ValueError if it is not one."""
        bounds = (min, max)
        self._add(
            Knob(
                name,
                dtype,
                bounds,
                "range",
                tuple(depends or ()),
                pre_hook,
                post_hook,
                log,
                group,
                "fixed" if group == "architecture" else branching,
                default,
            )
        )

    def add_categorical_knob(
        self,
        name: str,
        dtype: DType,
        list: Sequence[KnobValue],
        depends: Sequence[str] | None = None,
        pre_hook: PreHook | Hook | None = None,
        post_hook: PostHook | Hook | None = None,
        *,
        group: KnobGroup = "training",
        default: KnobValue | None = None,
    ) -> None:
        """A knob with a list of candidates. Raises ValueError when it is empty or not of the dtype."""
        if isinstance(list, str):
            raise ValueError(f"knob {name!r}: its candidates must be a list, not {list!r}")
        self._add(
            Knob(
                name,
                dtype,
                tuple(list),
                "categorical",
                tuple(depends or ()),
                pre_hook,
                post_hook,
                False,
                group,
                "fixed",
                default,
            )
        )

    def knobs(self) -> list[Knob]:
        """The knobs, each after those that it depends on; otherwise in the order of their adding.

        Raises ValueError for a dependency on a knob that does not exist, and for a circle of them.
        """
        if self._ordered is not None:
            return self._ordered
        for knob in self._knobs.values():
            for other in knob.depends:
                if other not in self._knobs:
                    raise ValueError(f"knob {knob.name!r} depends on {other!r}, which is not a knob")
            for hook in (knob.pre, knob.post):
                if not isinstance(hook, Mapping) or hook["hook"] not in OF_NUMBERS:
                    continue
                if self._knobs[hook["knob"]].dtype == "string":
                    raise ValueError(
                        f"knob {knob.name!r}: the hook {hook['hook']!r} needs a number, and "
                        f"{hook['knob']!r} is a text"
                    )
        graph = TopologicalSorter({name: knob.depends for name, knob in self._knobs.items()})
        try:
            graph.prepare()
        except CycleError as exc:
            raise ValueError(f"knobs depend on each other in a circle: {' → '.join(exc.args[1])}") from exc
        ordered: list[Knob] = []
        rank = {name: place for place, name in enumerate(self._knobs)}
        ready = sorted(graph.get_ready(), key=rank.__getitem__)
        while ready:
            name = ready.pop(0)
            ordered.append(self._knobs[name])
            graph.done(name)
            ready = sorted([*ready, *graph.get_ready()], key=rank.__getitem__)
        self._ordered = ordered
        return ordered

    def dimensions(self) -> list[Dimension]:
        """What an advisor chooses, in the order of generation."""
        return [knob.dimension for knob in self.knobs()]

    def point(self, draw: Callable[[Dimension], KnobValue]) -> Point:
        """One trial's (draws, knobs); a knob that its pre-hook takes out is in neither."""
        draws: dict[str, KnobValue] = {}
        knobs: dict[str, KnobValue] = {}
        for knob in self.knobs():
            bounds = knob.bounds_for(knobs)
            if bounds is None:
                continue
            draws[knob.name] = draw(knob.dimension)
            knobs[knob.name] = knob.value(draws[knob.name], bounds, knobs)
        return draws, knobs

    def default_point(self) -> Point | None:
        """The defaults, and the middle of knobs that have none; None where no knob has one."""
        knobs = self._knobs.values()
        if all(knob.default is None for knob in knobs):
            return None
        first = {knob.name: knob.first() for knob in knobs}
        return self.point(lambda dimension: first[dimension.name])

    def random_point(self, random: np.random.Generator) -> Point:
        """A point drawn uniformly (logarithmically where the knob says so)."""
        return self.point(lambda dimension: dimension.at(random.random()))

    def jittered_point(
        self, draws: Mapping[str, KnobValue], random: np.random.Generator, sigma: float
    ) -> Point:
        """A point near `draws`: logarithmic knobs times a log-normal factor exp(sigma · z).

        Of a linear range, the odds of the place in it are multiplied: so a momentum of 0.9 in [0, 1) comes
        near neither 0.5 nor 1, where a factor on the value would send half of all children to the edge.
        Knobs whose branching is `lower` never rise, and `fixed` ones (all candidates too) stay.
        """
        branching = {name: knob.branching for name, knob in self._knobs.items()}

        def near(dimension: Dimension) -> KnobValue:
            # Drawn for every dimension, so that one knob's kind does not move another knob's numbers.
            shift = sigma * float(random.standard_normal())
            if dimension.name not in draws:
                return dimension.at(random.random())
            before = draws[dimension.name]
            how = branching[dimension.name]
            if how == "fixed" or isinstance(before, str):
                return before
            after = dimension.shifted(before, shift)
            return lower_of(before, after) if how == "lower" else after

        return self.point(near)

    def as_json(self) -> list[dict[str, Any]]:
        """A list of knobs, as `from_json` reads it. Raises ValueError for hooks that are Python code."""
        return [knob.as_json() for knob in self._knobs.values()]

    @classmethod
    def from_json(cls, form: Sequence[Mapping[str, Any]]) -> HyperSpace:
        """The space of a JSON list of knobs. Raises ValueError that names the knob at fault."""
        space = cls()
        for entry in form:
            if not isinstance(entry, Mapping):
                raise ValueError(f'a knob is an object, {{"name": …, "dtype": …}}, not {entry!r:.50}')
            fields = dict(entry)
            kind = fields.pop("kind", "range" if "min" in fields else "categorical")
            adds: Mapping[str, Callable[..., None]] = {
                "range": space.add_range_knob,
                "categorical": space.add_categorical_knob,
            }
            if kind == "categorical":
                fields.pop("branching", None)
            if kind not in adds:
                raise ValueError(
                    f"knob {fields.get('name')!r}: kind must be range or categorical, not {kind!r}"
                )
            try:
                adds[kind](**fields)
            except TypeError as exc:
                raise ValueError(f"knob {fields.get('name')!r} is not well formed: {exc}") from exc
        space.knobs()
        return space

    def _add(self, knob: Knob) -> None:
        if knob.name in self._knobs:
            raise ValueError(f"there is a knob {knob.name!r} already")
        self._knobs[knob.name] = knob
        self._ordered = None


def lower_of(before: float, after: KnobValue) -> KnobValue:
    """What a knob whose branching is `lower` becomes: never above `before`, and of its own type."""
    return after if float(after) < before else before
