"""Hooks of knobs that can be written as JSON: a study that came over REST brings no code of its own.

A hook is JSON of the form {"hook": NAME, …}, or, in Python, any callable:

| NAME | where | does |
|---|---|---|
| `at_most` | pre, range | lowers the upper bound to `factor` · the other knob's value |
| `at_least` | pre, range | raises the lower bound to `factor` · the other knob's value |
| `among` | pre, categorical | the candidates for each value of the other knob |
| `only_when` | pre | the knob exists only when the other knob has one of `values` |
| `multiple_of` | post, numbers | the nearest multiple of `step` |
| `times` | post, numbers | multiplies by the other knob's value |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["OF_NUMBERS", "Bounds", "KnobValue", "Knobs", "PostHook", "PreHook", "post_hook", "pre_hook"]

KnobValue = float | int | str | bool
Knobs = Mapping[str, KnobValue]
_Made = TypeVar("_Made")
Bounds = tuple[float, float] | Sequence[KnobValue]
# A pre-hook bends a knob's bounds, (min, max) or the candidates; None takes the knob out of this trial.
PreHook = Callable[[Bounds, Knobs], Bounds | None]
# A post-hook adjusts the value that was drawn.
PostHook = Callable[[KnobValue, Knobs], KnobValue]


def pre_hook(form: Mapping[str, Any]) -> PreHook:
    """The pre-hook of a JSON form. Raises ValueError for one that is not known or lacks a field."""
    return _made(_PRE, form, "pre-hook")


def post_hook(form: Mapping[str, Any]) -> PostHook:
    """The post-hook of a JSON form. Raises ValueError for one that is not known or lacks a field."""
    return _made(_POST, form, "post-hook")


def _made(known: Mapping[str, Callable[..., _Made]], form: Mapping[str, Any], what: str) -> _Made:
    name = str(form.get("hook"))
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; known are {', '.join(known)}")
    try:
        for field, is_one, wanted in _FIELDS:
            if field in form and not is_one(form[field]):
                raise ValueError(f"the {what} {name!r}: {field!r} must be {wanted}, not {form[field]!r:.50}")
        return known[name](**{key: value for key, value in form.items() if key != "hook"})
    except TypeError as exc:
        raise ValueError(f"the {what} {name!r} is not complete: {exc}") from exc


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


_FIELDS: Sequence[tuple[str, Callable[[Any], bool], str]] = (
    ("knob", lambda value: isinstance(value, str), "a knob's name"),
    ("factor", _is_number, "a number"),
    ("step", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("values", _is_list, "a list"),
    (
        "candidates",
        lambda value: isinstance(value, Mapping) and all(map(_is_list, value.values())),
        "an object with a list for each value",
    ),
)

# A knob that was itself taken out of a trial has no value. It binds no other; and where another is there only
# with some values of it, a chain of conditions closes as a whole.


def _at_most(knob: str, factor: float = 1.0) -> PreHook:
    return lambda bounds, knobs: (
        (bounds[0], min(_number(bounds[1]), factor * _number(knobs[knob]))) if knob in knobs else bounds
    )


def _at_least(knob: str, factor: float = 1.0) -> PreHook:
    return lambda bounds, knobs: (
        (max(_number(bounds[0]), factor * _number(knobs[knob])), bounds[1]) if knob in knobs else bounds
    )


def _among(knob: str, candidates: Mapping[str, Sequence[KnobValue]]) -> PreHook:
    return lambda bounds, knobs: candidates.get(str(knobs[knob]), bounds) if knob in knobs else bounds


def _only_when(knob: str, values: Sequence[KnobValue]) -> PreHook:
    return lambda bounds, knobs: bounds if knob in knobs and knobs[knob] in values else None


def _multiple_of(step: float) -> PostHook:
    return lambda value, knobs: type(value)(max(1, round(_number(value) / step)) * step)


def _times(knob: str) -> PostHook:
    return lambda value, knobs: _number(value) * _number(knobs[knob]) if knob in knobs else value


def _number(value: KnobValue) -> float:
    if isinstance(value, str):
        raise ValueError(f"the hook needs a number, not {value!r}")
    return value


_PRE: Mapping[str, Callable[..., PreHook]] = {
    "at_most": _at_most,
    "at_least": _at_least,
    "among": _among,
    "only_when": _only_when,
}
_POST: Mapping[str, Callable[..., PostHook]] = {"multiple_of": _multiple_of, "times": _times}
OF_NUMBERS = frozenset(("at_most", "at_least", "times"))  # they compute with the other knob's value
