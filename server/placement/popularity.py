"""Which models rows come for most and least, by worker and where nobody holds them, and what time they ask.

Pure. Kept up as rows come and models move, so that no decision need look at all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.placement.known_models import KnownModel, KnownModels
from server.placement.policy import FADE_S, GroupKeys, Residence, WorkerPlaces
from server.placement.ranks import Foremost

__all__ = ["Popularity"]


@dataclass(slots=True, eq=False)
class _Demand:
    """Seconds of a worker that rows take which come for its models, fading as arrivals do."""

    seconds: float = 0.0
    at_s: float = 0.0

    def came(self, now_s: float, seconds: float) -> None:
        """Rows came that take so long."""
        self._fade(now_s)
        self.seconds += seconds

    def add(self, model: KnownModel, share: float) -> None:
        """Of a model's rows of late so large a share is its own from now on."""
        if model.arrivals:
            self._fade(model.arrived_s)
            faded = math.exp((model.arrived_s - self.at_s) / FADE_S)
            self.seconds = max(0.0, self.seconds + share * model.arrivals * faded * model.row_s)

    def share(self, now_s: float) -> float:
        """Of its time."""
        return self.seconds * math.exp(min(0.0, (self.at_s - now_s) / FADE_S)) / FADE_S

    def _fade(self, now_s: float) -> None:
        if now_s > self.at_s:
            self.seconds *= math.exp((self.at_s - now_s) / FADE_S)
            self.at_s = now_s


class Popularity:
    """`workers`, `models`: the core's own, as they are now. What it finds is as `PlacementState` has it."""

    def __init__(self, workers: Mapping[str, WorkerPlaces], models: KnownModels) -> None:
        self._workers = workers
        self._models = models
        self._held: frozenset[str] | None = None  # by any worker, or on its way; None = to be found anew
        self._held_before: frozenset[str] = frozenset()
        self._sought = Foremost()  # of those that are not
        self._coldest: dict[str, Foremost] = {}
        self._hottest: dict[str, Foremost] = {}
        self._demand: dict[str, _Demand] = {}
        self._held_by: dict[str, list[str]] = {}  # model → the workers that hold it

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────

    def worker_up(self, name: str) -> None:
        """A worker comes that holds nothing."""
        self._coldest[name], self._hottest[name] = Foremost(), Foremost()
        self._demand[name] = _Demand()

    def worker_down(self, name: str) -> None:
        """A worker is gone that held nothing any more."""
        for kept in (self._coldest, self._hottest, self._demand):
            kept.pop(name, None)
        self._held = None

    def placed(self, name: str, before: Mapping[str, Residence]) -> None:
        """What moves there is another; so is what is resident, unless that is what it was `before`."""
        now = self._workers[name].resident
        if before is not now:
            for key in before:
                if key not in now:
                    self._left(name, key)
            for key in now:
                if key not in before:
                    self._joined(name, key)
        self._held = None

    def came(self, now_s: float, group: GroupKeys, rows: int) -> None:
        """Interactive rows came for the group."""
        held = self._all_held()
        for key in group:
            model = self._models.met(key)
            model.came(now_s, rows)
            if key not in held:
                self._sought.put(key, model.score)
            else:
                self._came_for_held(now_s, key, model, rows)

    def forget(self, key: str) -> None:
        """The model is no more; nobody holds it."""
        self._sought.drop(key)
        self._held_before -= {key}

    # ── what is found ─────────────────────────────────────────────────────────────────────────────────

    def sought(self) -> tuple[str, ...]:
        """Those held nowhere and on no link for which most rows came of late."""
        held = self._all_held()
        if self._sought.is_short:
            self._sought.refill(
                (key, model.score)
                for key, model in self._models.everyone()
                if model.arrivals and key not in held
            )
        return self._sought.keys()

    def coldest(self) -> dict[str, tuple[str, ...]]:
        """By worker those of its models for which fewest rows came."""
        return self._listed(self._coldest, -1)

    def hottest(self) -> dict[str, tuple[str, ...]]:
        """By worker those of its models for which most rows came."""
        return self._listed(self._hottest, 1)

    def demand(self, now_s: float) -> dict[str, float]:
        """By worker the share of its time that the rows take which come for its models."""
        return {name: self._demand[name].share(now_s) for name in self._workers}

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    def _joined(self, name: str, key: str) -> None:
        model = self._models.met(key)
        self._held_by.setdefault(key, []).append(name)
        self._coldest[name].put(key, -model.score)
        self._hottest[name].put(key, model.score)
        holders = self._holders(key)
        for holder in holders:
            share = 1 / len(holders) - (0 if holder == name else 1 / (len(holders) - 1))
            self._demand[holder].add(model, share)

    def _left(self, name: str, key: str) -> None:
        model = self._models.met(key)
        self._held_by[key].remove(name)
        if not self._held_by[key]:
            del self._held_by[key]
        self._coldest[name].drop(key)
        self._hottest[name].drop(key)
        holders = self._holders(key)
        self._demand[name].add(model, -1 / (len(holders) + 1))
        for holder in holders:
            self._demand[holder].add(model, 1 / len(holders) - 1 / (len(holders) + 1))

    def _holders(self, key: str) -> Sequence[str]:
        return self._held_by.get(key, ())

    def _came_for_held(self, now_s: float, key: str, model: KnownModel, rows: int) -> None:
        holders, score = self._holders(key), model.score
        for name in holders:
            if key in self._coldest[name]:
                self._coldest[name].put(key, -score)
            self._hottest[name].put(key, score)
            self._demand[name].came(now_s, rows * model.row_s / len(holders))

    def _all_held(self) -> frozenset[str]:
        """What is held anywhere, or on its way; what is neither any more is sought."""
        if self._held is not None:
            return self._held
        moving = (worker.moving.loading for worker in self._workers.values() if worker.moving)
        held = self._held = frozenset(moving).union(*(worker.resident for worker in self._workers.values()))
        for key in self._held_before - held:
            if (model := self._models.met(key)).arrivals:
                self._sought.put(key, model.score)
        for key in held - self._held_before:
            self._sought.drop(key)
        self._held_before = held
        return held

    def _listed(self, foremost: Mapping[str, Foremost], sign: int) -> dict[str, tuple[str, ...]]:
        for name, worker in self._workers.items():
            if foremost[name].is_short:
                foremost[name].refill((key, sign * self._models.met(key).score) for key in worker.resident)
        return {name: foremost[name].keys() for name in self._workers}
