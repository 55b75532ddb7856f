"""What labelled rows of one context teach: how much more each member is believed there than elsewhere.

    log weight of member m in the context = slow_m + shift_m

A context is for whom, or in what, a row is asked: a user, a session (Clipper §5.3, which keeps a whole state
of selection for each). Here it is one number a member beside what everybody's labels have taught: not beside
the weights themselves, which move with each label of any context, but beside their slow mean, in which each
context counts alike, however many labels it gives. So one of few labels answers nearly as everybody, each is
left alone by the labels of another, and all of them follow when a member breaks. `feedback` learns it. A
value, JSON both ways. Knows no context's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """One context of one deployment.

    shifts: of each member, in the order of `Feedback.members` · rows: labels that it was taught by · at: the
    deployment's `Feedback.taught` after the last of them
    """

    shifts: tuple[float, ...]
    rows: int = 0
    at: int = 0

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it; `from_json` reads it."""
        return {"shifts": [float(f"{shift:.4g}") for shift in self.shifts], "rows": self.rows, "at": self.at}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], members: int) -> Context:
        """Raises ValueError for what is no context of so many members."""
        try:
            shifts = tuple(float(shift) for shift in kept["shifts"])
            rows, at = int(kept["rows"]), int(kept["at"])
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{exc!r} is missing or wrong") from exc
        if len(shifts) != members or not all(map(math.isfinite, shifts)):
            raise ValueError(f"{len(shifts)} shifts are no context of {members} members")
        return cls(shifts, rows, at)
