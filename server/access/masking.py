"""Names that a caller does not see, taken out of what is said to them. Pure.

A function may have members that its users do not see: they are told of these by their places. What repeats a
user's own words is left as it is: where a word that they guess came back as another one, they would know that
they have guessed right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

__all__ = ["masked", "masked_fault", "masked_text"]

_STAGE = re.compile(r"(row \d+: )?stage \d+ \([^)]*\): ")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~-]*(?:/[0-9]+)?")


def masked_text(text: str, hidden: Mapping[str, str]) -> str:
    """The text with other words for hidden names, be it with a version or without."""

    def instead(found: re.Match[str]) -> str:
        word = found[0].rstrip(".")  # that of a sentence
        other = hidden.get(word.partition("/")[0])
        return found[0] if other is None else other + found[0][len(word) :]

    return _NAME.sub(instead, text) if hidden else text


def masked_fault(code: str, message: str, hidden: Mapping[str, str], *, of_stage: bool = False) -> str:
    """What is said of a row. A fault of its input repeats that, and names no model.

    of_stage: it begins with the stage of a pipeline whose fault it is, and that has a name.
    """
    if not code.startswith("input_"):
        return masked_text(message, hidden)
    named = _STAGE.match(message) if of_stage and hidden else None
    return message if named is None else masked_text(named[0], hidden) + message[named.end() :]


def masked(told: Any, hidden: Mapping[str, str]) -> Any:  # noqa: ANN401  # as it says
    """The same for all texts of some JSON, keys too; or of a record, a tuple of records."""
    if not hidden:
        return told
    if isinstance(told, str):
        return masked_text(told, hidden)
    if isinstance(told, dict):
        return {masked_text(key, hidden): masked(value, hidden) for key, value in told.items()}
    if isinstance(told, list):
        return [masked(value, hidden) for value in told]
    if isinstance(told, tuple):
        return tuple(masked(value, hidden) for value in told)
    if is_dataclass(told) and not isinstance(told, type):
        return replace(told, **{each.name: masked(getattr(told, each.name), hidden) for each in fields(told)})
    return told
