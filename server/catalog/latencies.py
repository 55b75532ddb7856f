"""l̂ of every model: one for all functions that share it, kept over restarts.

Owns the latency models and when they are stored. Knows no queue, and not how they are measured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from server.catalog.functions import Form, ModelVersion, forms_of
from server.scheduling.latency_model import LatencyModel
from server.scheduling.terms import Latency

__all__ = ["Latencies", "LatencyStore"]

log = logging.getLogger("ml_udf.server.latencies")

# l̂ of a model that has not run yet. Hopeful: who is admitted by mistake still meets its own deadline.
_FIRST_GUESS_S = {1: 0.001, 64: 0.016}


class LatencyStore(Protocol):
    """Where learned latencies outlive the process: one JSON object per model, by its key NAME/VERSION."""

    def read(self, key: str) -> Mapping[str, Any] | None:
        """What was written for that key; None if there is nothing of use."""
        ...

    def write(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace what was written for these keys. Blocking. Raises OSError."""
        ...


class Latencies:
    """Call it with a model: its l̂, the same object every time."""

    def __init__(self, store: LatencyStore) -> None:
        self._store = store
        self._known: dict[str, LatencyModel] = {}
        self._unsaved: set[str] = set()  # profiled since they were written

    def __call__(self, model: ModelVersion) -> LatencyModel:
        """l̂ as it was learned here before, or a first guess."""
        latency = self._known.get(model.key)
        if latency is None:
            latency = self._known[model.key] = self._restored(model.key)
        return latency

    def of_rows(self, model: ModelVersion, form: Form) -> Latency:
        """l̂ of rows of that form as batches have taught it, on the kind of device that is fastest."""
        kinds = self(model).kinds(form)
        if len(kinds) == 1:
            return kinds[0]
        return (lambda rows: min(kind(rows) for kind in kinds)) if kinds else self(model)

    def is_known(self, model: ModelVersion, device: str) -> bool:
        """Whether the model ran, or was measured, on that kind of device."""
        return any(self(model).on(device, form).is_known for form in _forms(model))

    def profiled(self, model: ModelVersion, device: str, form: Form, profile_s: Mapping[int, float]) -> None:
        """Rows of that form took so long, by batch size; for its other forms that is a guess."""
        for each in _forms(model):
            self(model).on(device, each).start(profile_s, measured=each == form)
        self._unsaved.add(model.key)

    async def save(self, used: Iterable[str]) -> None:
        """Write l̂ of these models, and of those profiled since; a folder that cannot be written is logged."""
        keys, self._unsaved = {*used, *self._unsaved}, set()
        states = {key: self._known[key].to_json() for key in keys if key in self._known}
        try:
            if states:
                await asyncio.to_thread(self._store.write, states)
        except OSError as error:
            log.error("latencies not written error=%r", str(error))

    def _restored(self, key: str) -> LatencyModel:
        state = self._store.read(key)
        if state is not None:
            try:
                return LatencyModel.from_json(state)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("latency of no use model=%s error=%r", key, error)
        return LatencyModel(_FIRST_GUESS_S, measured=False)


def _forms(model: ModelVersion) -> tuple[Form, ...]:
    return forms_of(model.task, model.input.form)
