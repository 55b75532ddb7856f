"""Budgets that people think in: '10 minutes', '200 epochs', '30 trials'. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from server.errors import BadOption

__all__ = ["DEFAULT", "Budget", "budget_of"]

_FORMS = re.compile(
    r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*(seconds?|minutes?|min|hours?|epochs?|trials?)\s*", re.IGNORECASE
)
_SECONDS = {"second": 1.0, "minute": 60.0, "min": 60.0, "hour": 3600.0}
_MOST = 10**9


@dataclass(frozen=True, slots=True)
class Budget:
    """One of the three is above 0. seconds: of training, those of several workers added up."""

    seconds: float = 0.0
    epochs: int = 0
    trials: int = 0

    @property
    def unit(self) -> str:
        """Which of the three."""
        return "seconds" if self.seconds else "epochs" if self.epochs else "trials"

    @property
    def amount(self) -> float:
        """In its unit."""
        return self.seconds or self.epochs or self.trials

    @property
    def is_short(self) -> bool:
        """Whether a job that says nothing has as much time, or more."""
        return self.seconds <= DEFAULT.seconds

    def __str__(self) -> str:
        if self.seconds:
            is_minutes = self.seconds >= 60 and self.seconds % 6 == 0
            amount, unit = (self.seconds / 60, "minutes") if is_minutes else (self.seconds, "seconds")
            return f"{amount:.6f}".rstrip("0").rstrip(".") + f" {unit}"
        return f"{self.epochs} epochs" if self.epochs else f"{self.trials} trials"


DEFAULT = Budget(seconds=300.0)


def budget_of(given: object) -> Budget:
    """Of a text with its unit, or a whole number of epochs. Raises `BadOption`: '1000' could mean any."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= _MOST:
        return Budget(epochs=given)
    found = _FORMS.fullmatch(given) if isinstance(given, str) else None
    if found is not None:
        amount, unit = float(found[1]), found[2].lower().removesuffix("s")
        if unit in _SECONDS:
            if 0 < amount * _SECONDS[unit] < _MOST:
                return Budget(seconds=amount * _SECONDS[unit])
        elif amount.is_integer() and amount > 0:
            return Budget(epochs=int(amount)) if unit == "epoch" else Budget(trials=int(amount))
    raise BadOption(
        f"'budget' must be a number with its unit, such as '10 minutes', '200 epochs' or '30 trials', "
        f"not {given!r}"
    )
