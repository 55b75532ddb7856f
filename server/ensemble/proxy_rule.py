"""How a proxy answers alone, and that it is not heard where others answered: pure, of one function.

Its confidence is calibrated to say how probably the full function agrees (proxy.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_worker.wire.columns import Column
from server.ensemble.combine import Vote, combine
from server.ensemble.fit import LOG_POOL, Fit, SubsetFit

__all__ = ["ProxyRule"]


@dataclass(frozen=True, slots=True)
class ProxyRule:
    """name: its model's · temperature: as `ProxyFit` has it · is_member: whether it is one of the function's,
    and counts among the others as well
    """

    name: str
    temperature: float
    is_member: bool
    fit: Fit = field(init=False, repr=False, compare=False)  # of it alone

    def __post_init__(self) -> None:
        alone = SubsetFit((0,), (1.0,), 0.0, 0.0)
        object.__setattr__(self, "fit", Fit((self.name,), (self.temperature,), (alone,), 0, 0))

    def heard(self, votes: Sequence[Vote]) -> list[Vote]:
        """Those that count."""
        if self.is_member or len(votes) == 1:
            return list(votes)
        return [vote for vote in votes if vote.member != self.name]

    def answer(self, vote: Vote, classes: Sequence[str]) -> Mapping[str, Column]:
        """Of the proxy alone: its class, and how probable that is. Raises ValueError without its scores."""
        return combine(LOG_POOL, [vote], classes, self.fit)
