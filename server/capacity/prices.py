"""What devices cost: a file, TOML or JSON, of prices by device kind.

    [cpu]
    per_gb_s = 1.0         # of a gigabyte of models on the device for a second
    [cuda]
    per_gb_s = 7.97
    host_per_gb_s = 1.0    # of a copy that waits in host memory; 0 where it is not said
    per_hour = 3.06        # of the worker, whatever it holds

All in one currency, any. A kind needs `per_gb_s` or `per_hour`. This module reads text, not files: whoever
has the text says what the file is called.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Price", "check_kinds", "prices_of"]


@dataclass(frozen=True, slots=True)
class Price:
    """What one kind of device costs: per gigabyte and second of copies, per hour of a worker."""

    per_gb_s: float = 0.0
    per_hour: float = 0.0
    host_per_gb_s: float = 0.0


def prices_of(text: str, file: str) -> Mapping[str, Price]:
    """Device kind → price. file: its name, of which the ending says whether it is `.json` or `.toml`.

    Raises ValueError, with the file, the line and what to write, for what is not such a file.
    """
    content = _parsed(text, file)
    if not isinstance(content, dict) or not content:
        raise ValueError(
            f"{file}, line 1: prices of at least one device kind are missing, like [cpu] per_gb_s = 1"
        )
    return {kind: _price(kind, values, text, file) for kind, values in content.items()}


def check_kinds(prices: Mapping[str, Price], kinds: Collection[str], file: str) -> None:
    """Raises ValueError if a device kind that is there has no price: nothing is taken to cost nothing."""
    missing = sorted(set(kinds) - set(prices))
    if missing:
        raise ValueError(
            f"{file}: no price of {', '.join(missing)}, and workers of it may run; "
            f"known: {', '.join(prices)}. Add [{missing[0]}] with per_gb_s or per_hour, which may be 0"
        )


def _parsed(text: str, file: str) -> object:
    if file.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, text, file))
        except json.JSONDecodeError as fault:
            raise ValueError(f"{file}, line {fault.lineno}: {fault.msg}; JSON is expected") from fault
    if file.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise ValueError(f"{file}: {fault}; TOML is expected") from fault
    raise ValueError(f"{file}: prices are in a file that ends in .toml or .json")


def _once(pairs: list[tuple[str, Any]], text: str, file: str) -> dict[str, Any]:
    """JSON lets a key come twice, and takes the last: here a second price is a mistake."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{file}, line {_line(text, key, last=True)}: {key!r} comes twice")
        found[key] = value
    return found


def _price(kind: str, values: object, text: str, file: str) -> Price:
    known = [one.name for one in fields(Price)]
    at_kind = _line(text, kind)
    if not isinstance(values, dict):
        raise ValueError(
            f"{file}, line {at_kind}: {kind} needs a table with per_gb_s or per_hour, not {values!r}"
        )
    for name, value in values.items():
        line = _line(text, name, after=at_kind)
        if name not in known:
            raise ValueError(f"{file}, line {line}: {kind} has no {name!r}; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(
                f"{file}, line {line}: {name} of {kind} is {value!r}: a number of at least 0 is needed"
            )
    if not {"per_gb_s", "per_hour"} & set(values):
        raise ValueError(
            f"{file}, line {at_kind}: {kind} has neither per_gb_s nor per_hour; one of them is needed"
        )
    return Price(**{name: float(value) for name, value in values.items()})


def _line(text: str, word: str, after: int = 1, *, last: bool = False) -> int:
    """The line, from `after` on, on which the word first stands as a key; `after` where it does not."""
    said = re.compile(rf"(?<![\w-])[\"']?{re.escape(word)}[\"']?\s*[=:\].]")
    found = [
        number for number, line in enumerate(text.splitlines(), 1) if number >= after and said.search(line)
    ]
    return (found[-1] if last else found[0]) if found else after
