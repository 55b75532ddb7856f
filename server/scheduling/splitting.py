"""How the latency goal of a pipeline is split among its stages. Pure.

`none`: no stage has a part of its own; each may take what l̂ of those after it leaves. `even`: equal parts.
`nexus`: parts by which the devices' time for a call is least (Nexus, SOSP 2019, §6.2): a stage with L seconds
runs batches of b rows where 2 · l̂(b) ≤ L, as a row may have to wait for a whole batch before its own, and a
row of it takes l̂(b) / b of a device. A dynamic programme over a grid of the goal finds the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.scheduling.policy import rows_within

__all__ = ["SPLITS", "StageLoad", "goals_s"]

SPLITS = ("none", "even", "nexus")

_GRID = 100  # parts of a goal that a stage's is a whole number of


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage, as far as the split goes by it.

    latency_s: l̂(b) of all its members · rows: of it for one call, γ of the stages before it times the
    call's · max_batch: rows of a batch · before_s: from the answers of the stage before to its own rows.
    """

    latency_s: Callable[[int], float]
    rows: float
    max_batch: int
    before_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """What the rows of one call take by themselves: in as few batches as may be."""
        rows = max(1, math.ceil(self.rows))
        whole, rest = divmod(rows, self.max_batch)
        return whole * self.latency_s(self.max_batch) + (self.latency_s(rest) if rest else 0.0)

    def device_s(self, part_s: float) -> float:
        """Seconds of a device for the rows of one call, where the stage has that part of the goal; inf where
        not even one row fits.
        """
        most = rows_within(self.latency_s, self.max_batch, (part_s - self.before_s) / 2)
        return self.rows * self.latency_s(most) / most if most else math.inf


def goals_s(split: str, stages: Sequence[StageLoad], slo_s: float) -> tuple[float, ...]:
    """By stage, how long after a call has come its rows should be answered; the last is the goal itself.

    Raises ValueError for a split that is none.
    """
    if split == "none":
        return _by_rest(stages, slo_s)
    if split == "even":
        return _ends([slo_s / len(stages)] * len(stages), slo_s)
    if split == "nexus":
        return _ends(_nexus(stages, slo_s) or _in_proportion(stages, slo_s), slo_s)
    raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")


def _by_rest(stages: Sequence[StageLoad], slo_s: float) -> tuple[float, ...]:
    """What is left of the goal when the stages behind have had what they take."""
    ends: list[float] = []
    rest_s = 0.0
    for stage in reversed(stages):
        ends.append(slo_s - rest_s)
        rest_s += stage.alone_s + stage.before_s
    return tuple(reversed(ends))


def _nexus(stages: Sequence[StageLoad], slo_s: float) -> list[float]:
    """The parts of the goal; [] where no batch of one row fits each of them."""
    step_s = slo_s / _GRID
    # By units of the goal that the stages so far have: the least time of devices, and the parts.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (_GRID + 1)
    for stage in stages:
        costs = [stage.device_s(units * step_s) for units in range(_GRID + 1)]
        best = [
            min(
                (
                    (best[units - own][0] + costs[own], (*best[units - own][1], own))
                    for own in range(units + 1)
                ),
                key=lambda found: found[0],
            )
            for units in range(_GRID + 1)
        ]
    cost_s, parts = best[_GRID]
    return [units * step_s for units in parts] if math.isfinite(cost_s) else []


def _in_proportion(stages: Sequence[StageLoad], slo_s: float) -> list[float]:
    """Parts by what one call takes, for a goal that is too short for Nexus's rule."""
    takes_s = [stage.alone_s + stage.before_s for stage in stages]
    whole_s = math.fsum(takes_s)
    return [slo_s * each_s / whole_s if whole_s else slo_s / len(stages) for each_s in takes_s]


def _ends(parts_s: Sequence[float], slo_s: float) -> tuple[float, ...]:
    ends: list[float] = []
    for part_s in parts_s:
        ends.append((ends[-1] if ends else 0.0) + part_s)
    # What the programme leaves over is the last stage's: nothing comes after it.
    return (*ends[:-1], slo_s)
