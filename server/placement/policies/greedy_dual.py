"""`lfu-da` and `gdsf`: frequency with ageing, of web caches.

Each resident model has a key, K = L + F · C / S: F rows came for it since it did, loading it takes C seconds,
it is S bytes large, and L is the cache's age when it was last asked for. The lowest key leaves, and the age
becomes that key, so that what was popular once does not stay for ever. LFU-DA leaves C and S out.
(M. Arlitt, L. Cherkasova, J. Dilley, R. Friedrich, T. Jin: Evaluating content management techniques for Web
proxy caches, 1999; L. Cherkasova, Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy, HP Labs 1998.) Pure; the age and the keys are the policy's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.placement.policies.demand import loads_on_demand, open_wishes
from server.placement.policy import Evict, PlacementDecision, PlacementState, WorkerPlaces

__all__ = ["Gdsf", "LfuDa"]

_UNKNOWN_S = 1.0  # to load what nothing is known of


class LfuDa:
    """Least frequently used leaves first, with dynamic ageing; wishes are loaded in their order."""

    name = "lfu-da"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """One load a worker at most. Memory: `age`, and by model `keys` of (K, F, rows that ever came)."""
        age: float = state.memory.get("age", 0.0)
        keys = self._keys(state, state.memory.get("keys", {}), age)
        decision = loads_on_demand(state, now_s, open_wishes(state), lambda _, key: (keys[key][0],))
        for action in decision.actions:
            if isinstance(action, Evict):
                age = max(age, keys[action.model][0])
        return replace(decision, memory={"age": age, "keys": keys})

    def worth(self, state: PlacementState, worker: WorkerPlaces, key: str) -> float:
        """C / S."""
        return 1.0

    def _keys(
        self, state: PlacementState, before: Mapping[str, list[Any]], age: float
    ) -> dict[str, list[Any]]:
        """The keys of all that is resident now."""
        keys: dict[str, list[Any]] = {}
        for worker in state.workers.values():
            for key in worker.resident:
                if key in keys:
                    continue
                came = state.models[key].rows if key in state.models else 0
                # A model has been asked for once when it comes: that is why it does.
                last, frequency, known = before.get(key, (0.0, 0, came - 1))
                if came != known:
                    frequency += came - known
                    last = age + frequency * self.worth(state, worker, key)
                keys[key] = [last, frequency, came]
        return keys


class Gdsf(LfuDa):
    """Greedy-Dual-Size-Frequency: what is dear to load, and small, stays longer."""

    name = "gdsf"

    def worth(self, state: PlacementState, worker: WorkerPlaces, key: str) -> float:
        """Seconds a byte."""
        model = state.models.get(key)
        if model is None:
            return _UNKNOWN_S
        return model.load_s.get(worker.link, _UNKNOWN_S) / max(1, model.size_bytes)
