"""What a variant takes on the workers that serve it: bytes, its load, and batches of 1, 4, 16 and 64 rows.

The variant and its original are measured by turns on the same worker, so that both see the same neighbours;
the least of each size counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.catalog.functions import ModelVersion
from server.placement.profiling import Profiler
from server.placement.residency import Residency
from server.training.trainers import Trainers
from server.workers.pool import Worker

__all__ = ["Measured", "Measuring"]

_TURNS = 3
_BUDGET_S = 3.0  # of one turn of one model

Profile = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one model. profile_s: kind of device → rows → seconds."""

    resident_bytes: int
    load_s: float
    profile_s: Profile


class Measuring:
    """`is_waited_for()`: whether rows wait; then a measurement is cut short."""

    def __init__(
        self,
        trainers: Trainers,
        residency: Residency,
        profiler: Profiler,
        is_waited_for: Callable[[], bool] = lambda: False,
    ) -> None:
        self._trainers = trainers
        self._residency = residency
        self._profiler = profiler
        self._is_waited_for = is_waited_for

    async def of(self, *models: ModelVersion) -> dict[str, Measured]:
        """By key, where they are resident; of the others nothing."""
        profiles: dict[str, dict[str, dict[int, float]]] = {model.key: {} for model in models}
        for worker in self._one_of_each_kind(models):
            here = self._residency.resident().get(worker.name, [])
            for _ in range(_TURNS):
                for model in models:
                    if model.key in here:
                        points = await self._profiler.profile(
                            worker, model, self._is_waited_for, budget_s=_BUDGET_S
                        )
                        known = profiles[model.key].setdefault(worker.info.device_name, {})
                        for rows, took_s in points.items():
                            known[rows] = min(took_s, known.get(rows, took_s))
        return {model.key: self._measured(model, profiles[model.key]) for model in models}

    def _one_of_each_kind(self, models: tuple[ModelVersion, ...]) -> list[Worker]:
        """Of each kind of device the worker that holds most of the models."""
        resident = self._residency.resident()
        best: dict[str, tuple[int, Worker]] = {}
        for worker in self._trainers.alive():
            held = sum(model.key in resident.get(worker.name, ()) for model in models)
            kind = worker.info.device_name
            if held and (kind not in best or held > best[kind][0]):
                best[kind] = (held, worker)
        return [worker for _, worker in best.values()]

    def _measured(self, model: ModelVersion, profile_s: dict[str, dict[int, float]]) -> Measured:
        sizes = [
            held.size_bytes
            for place in self._residency.places()
            for held in place.held
            if held.model == model.key
        ]
        loads = [self._residency.swap_s(model, device) for device in profile_s]
        rounded = {
            device: {rows: round(took_s, 7) for rows, took_s in sorted(points.items())}
            for device, points in profile_s.items()
            if points
        }
        return Measured(max(sizes, default=0), round(min(loads, default=0.0), 6), rounded)
