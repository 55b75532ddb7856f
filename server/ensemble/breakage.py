"""Whether a member errs other than was expected of it, told from its last labelled rows; and what was done.

    G = 2·(ll(recent) + ll(held out) − ll(both as one)),    z = ±√G

Of the windows that end at the newest label the most surprising one counts: where it begins is where the
member changed, most likely. The statistic is that of two samples (Wilks 1938), since the held-out rows are a
sample as well; it holds for members that are nearly always right too. Pure; numpy. Knows neither rows nor
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_ROWS", "Deviation", "Expected", "RefitNote", "deviation", "is_off", "most_surprising"]

LEAST_ROWS = 30
# z. Higher than for one window that is looked at once: four members that err as expected reach 3.5 in some
# window every 2,000 labels, and this one in more than 10,000.
_SURPRISE = 4.5
_OFF = 2.0  # z of the other members, once one has surprised


@dataclass(frozen=True, slots=True)
class Expected:
    """The share of rows that a member was wrong on, and of how many rows that is known."""

    wrong: float
    rows: int


@dataclass(frozen=True, slots=True)
class Deviation:
    """A member was wrong on `wrong` of its last `rows` labels, and `expected` were expected.

    z: above 0 where it was wrong more often, below where less.
    """

    member: str
    wrong: int
    rows: int
    expected: float
    z: float

    def __str__(self) -> str:
        found = f"{self.member} wrong on {self.wrong} of its last {self.rows} labels"
        return f"{found}, expected {self.expected:.0f}"


@dataclass(frozen=True, slots=True)
class RefitNote:
    """What was fitted anew, and why. number: how many times that was done to this deployment.

    off: the members that were fitted anew; none where all are as deployed again. since, until: the labels
    (`Feedback.whole`) that had taught before the first of those it rests on, and with the last
    rows: how many it rests on; 0 where no labels told, but how often the members agree: then those in `off`
    are left out
    expected: of each member from now on, in the feedback's order; None where nothing is · at: when, ISO 8601
    """

    number: int
    reason: str
    off: tuple[str, ...]
    since: int
    until: int
    rows: int
    expected: tuple[Expected | None, ...]
    at: str = ""

    def __str__(self) -> str:
        if not self.off:
            return f"{self.reason}: answers as deployed again"
        if not self.rows:
            return f"{self.reason}: left out until it agrees again, or labels tell more"
        return f"{self.reason}: refitted on {self.rows} labelled rows"

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it."""
        return {
            "number": self.number,
            "reason": self.reason,
            "off": list(self.off),
            "since": self.since,
            "until": self.until,
            "rows": self.rows,
            "expected": [None if each is None else [each.wrong, each.rows] for each in self.expected],
            "at": self.at,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> RefitNote:
        """Raises KeyError, TypeError or ValueError for what is none."""
        return cls(
            int(kept["number"]),
            str(kept["reason"]),
            tuple(str(name) for name in kept["off"]),
            int(kept["since"]),
            int(kept["until"]),
            int(kept["rows"]),
            tuple(
                None if each is None else Expected(float(each[0]), int(each[1])) for each in kept["expected"]
            ),
            str(kept["at"]),
        )


def deviation(member: str, was_wrong: Sequence[bool], expected: Expected) -> Deviation | None:
    """The most surprising of the windows of 30 labels and more that end at the newest; None for fewer labels.

    was_wrong: by label, the newest last.
    """
    most = len(was_wrong)
    if most < LEAST_ROWS or not expected.rows:
        return None
    rows = np.arange(LEAST_ROWS, most + 1)
    wrong = np.cumsum(np.asarray(was_wrong, np.int64)[::-1])[LEAST_ROWS - 1 :]
    z = _surprise(wrong, rows, expected)
    at = int(np.abs(z).argmax())
    return Deviation(member, int(wrong[at]), int(rows[at]), float(rows[at] * expected.wrong), float(z[at]))


def most_surprising(
    was_wrong: Mapping[str, Sequence[bool]], expected: Mapping[str, Expected | None]
) -> Deviation | None:
    """The member that errs other than expected beyond what chance explains, the most surprising; or None."""
    found = [
        told
        for member, each in was_wrong.items()
        if (known := expected.get(member)) is not None
        and (told := deviation(member, each, known)) is not None
        and abs(told.z) >= _SURPRISE
    ]
    return max(found, key=lambda told: abs(told.z), default=None)


def is_off(wrong: int, rows: int, expected: Expected) -> bool:
    """Whether so many wrong of so many rows are other than expected, now that some member has surprised."""
    return bool(abs(_surprise(np.array([wrong]), np.array([rows]), expected)[0]) >= _OFF)


def _surprise(
    wrong: NDArray[np.integer[Any]], rows: NDArray[np.integer[Any]], expected: Expected
) -> NDArray[np.float64]:
    held_out = expected.wrong * expected.rows
    both = _likelihood(wrong + held_out, rows + expected.rows)
    apart = _likelihood(wrong, rows) + _likelihood(np.array([held_out]), np.array([expected.rows]))
    root: NDArray[np.float64] = np.sqrt(np.maximum(2 * (apart - both), 0.0))
    return np.where(wrong > rows * expected.wrong, root, -root)


def _likelihood(wrong: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """The log-likelihood of so many wrong of so many rows, at their own share."""
    total = np.zeros(np.broadcast(wrong, rows).shape)
    for count in (wrong, rows - wrong):
        share = count / rows
        total += np.where(count > 0, count * np.log(np.where(count > 0, share, 1.0)), 0.0)
    return total
