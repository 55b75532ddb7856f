"""Which models may stand in for each other: what a capacity policy chooses among, found of what is served.

A row whose function names its models is answered by those, and by nothing else. Alike are variants of one
model where a row may be answered by whichever is there: of a function that lets a policy choose among them
row by row, and of one by wish that says how accurate its answers are to be, of which those that are so
accurate. A wish that does not say it is for the best of its candidates, which is as good as named. Variants
that nobody asks wait beside each other.

Pure: knows functions, no server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from server.catalog.functions import Function, ModelVersion
from server.catalog.variants import base_of
from server.catalog.wishes import HeldOut

__all__ = ["Alike", "HeldOutOf", "alike"]

HeldOutOf = Callable[[ModelVersion], HeldOut | None]


@dataclass(slots=True)
class Alike:
    """Models of which each may answer the same rows. name: as the policy calls them.

    models: by key · askers: by key, the functions whose goals they have to keep · counted: those whose late
    rows are theirs · asked: the groups of models under which their rows come · min_accuracy: that all askers
    accept; None = whichever
    """

    name: str
    models: dict[str, ModelVersion] = field(default_factory=dict)
    askers: dict[str, Function] = field(default_factory=dict)
    counted: dict[str, Function] = field(default_factory=dict)
    asked: dict[tuple[ModelVersion, ...], None] = field(default_factory=dict)
    min_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class _Asks:
    """A function and the models that it asks; may_choose: whether one of them is enough for a row."""

    function: Function
    models: tuple[ModelVersion, ...]
    may_choose: bool


def alike(
    served: Iterable[Function], has_rows: Callable[[Function], bool], held_out: HeldOutOf
) -> Mapping[str, Alike]:
    """By model key, of all models that served functions ask on workers of this server.

    has_rows: whether rows ever came for a function, of those that are a model under its own name.
    """
    asks = [_asks(function, held_out) for function in served]
    models = {model.key: model for one in asks for model in one.models if not model.endpoint}
    chosen = {model.key for one in asks if one.may_choose for model in one.models}
    named = {
        model.key
        for one in asks
        if not one.may_choose and (not one.function.bare or has_rows(one.function))
        for model in one.models
    }
    found: dict[str, Alike] = {}
    groups: dict[tuple[str, int, bool], Alike] = {}
    for key in sorted(models):
        model = models[key]
        of = (base_of(model.name), model.version, key in chosen)
        group = Alike(key) if key in named else groups.setdefault(of, Alike(key))
        group.models[key] = model
        found[key] = group
    # What a model is under its own name says nothing of its goal where other functions ask it.
    for one in sorted(asks, key=lambda each: each.function.bare):
        _note(one, found)
    return found


def _asks(function: Function, held_out: HeldOutOf) -> _Asks:
    """The model that answers at rest stands first."""
    if function.wants is not None and function.wants.min_accuracy is not None:
        least = function.wants.min_accuracy
        known = ((model, held_out(model)) for model in function.candidates)
        able = [model for model, one in known if one is not None and one.low >= least]
        return _Asks(function, tuple(dict.fromkeys((*function.asked, *able))), may_choose=True)
    of_one = len({(base_of(model.name), model.version) for model in function.asked}) == 1
    return _Asks(function, function.asked, may_choose=function.follows_plans and of_one)


def _note(one: _Asks, found: Mapping[str, Alike]) -> None:
    """Note a function with the models that it asks."""
    function, wants = one.function, one.function.wants
    for place, model in enumerate(one.models):
        group = found.get(model.key)
        if group is None:  # behind another server
            continue
        if not (function.bare and any(not each.bare for each in group.askers.values())):
            group.askers[function.key] = function
        if wants is None or place == 0:
            group.counted[function.key] = function
        group.asked[function.asked if wants is None else (model,)] = None
        if wants is not None and wants.min_accuracy is not None:
            group.min_accuracy = max(group.min_accuracy or 0.0, wants.min_accuracy)
