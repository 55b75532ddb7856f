"""The resident models: who is loaded, and who has rows in flight.

Bounded by bytes and by count: what does not fit is refused, with what it needs. Who leaves is decided by
whoever owns the engine; a model with rows in flight leaves when they are over. Knows no device and no files:
loading is a function it is given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpu_worker.errors import ModelUnusable, NoRoom, UnknownModel
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.network import Network
from gpu_worker.networks.piece_sizes import PieceSizes

__all__ = ["ModelCache", "Resident"]


@dataclass(slots=True, eq=False)
class Resident:
    """A loaded model under the key by which requests name it.

    users: batches in flight. row_s: smoothed seconds of forward pass per row, 0 while unknown. pieces: the
    rows of a piece on a CPU.
    """

    key: str
    manifest: Manifest
    network: Network
    users: int = 0
    row_s: float = 0.0
    pieces: PieceSizes = field(default_factory=PieceSizes)

    def observe(self, rows: int, took_s: float) -> None:
        """One forward pass of `rows` rows took `took_s`. Of two threads at once, one may be overlooked."""
        self.pieces.observe(rows, took_s)
        row_s = took_s / rows
        self.row_s = row_s if self.row_s == 0.0 else 0.8 * self.row_s + 0.2 * row_s


class ModelCache:
    """Thread-safe. Loading happens outside its lock, so that batches for other models run meanwhile.

    max_models: 0 = as many as the bytes allow.
    """

    def __init__(self, *, max_bytes: int, max_models: int) -> None:
        self._max_bytes = max_bytes
        self._max_models = max_models
        self._models: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._leaving: list[Resident] = []  # out of reach for new batches, still used by old ones
        self._changed = threading.Condition()

    def keys(self) -> list[str]:
        """The resident models, least recently used first."""
        with self._changed:
            return list(self._models)

    def residents(self) -> list[Resident]:
        """The same, with their sizes and users of this moment."""
        with self._changed:
            return list(self._models.values())

    def put(self, key: str, manifest: Manifest, expected_bytes: int, load: Callable[[], Network]) -> Resident:
        """Loads, and keeps the model under `key`; a model already there is replaced.

        Raises `NoRoom`, with the bytes that it needs, when others would have to leave first; `ModelUnusable`
        when the model alone is over the bound; and what `load` raises.
        """
        self._check_room(key, expected_bytes)
        network = load()
        resident = Resident(key, manifest, network)
        with self._changed:
            self._retire(self._models.pop(key, None))
            self._models[key] = resident
        try:
            # Now its true size is known.
            self._check_room(key, network.resident_bytes)
        except (NoRoom, ModelUnusable):
            with self._changed:
                if self._models.get(key) is resident:
                    self._retire(self._models.pop(key))
            raise
        return resident

    def remove(self, key: str) -> None:
        """Takes the model out of reach, then waits until its last batch is done. Raises `UnknownModel`."""
        with self._changed:
            resident = self._models.pop(key, None)
            if resident is None:
                raise UnknownModel(f"the model {key!r} is not resident on this worker")
            self._retire(resident)
            self._changed.wait_for(lambda: resident.users == 0)

    def acquire(self, keys: Sequence[str]) -> list[Resident]:
        """The models, in the order asked, kept resident until `release`. Raises `UnknownModel`."""
        with self._changed:
            missing = [key for key in keys if key not in self._models]
            if missing:
                raise UnknownModel(f"not resident on this worker: {', '.join(map(repr, missing))}")
            residents = [self._models[key] for key in keys]
            for resident in residents:
                resident.users += 1
                self._models.move_to_end(resident.key)
            return residents

    def release(self, residents: Sequence[Resident]) -> None:
        """The end of one `acquire`."""
        with self._changed:
            for resident in residents:
                resident.users -= 1
            self._leaving = [resident for resident in self._leaving if resident.users]
            self._changed.notify_all()

    def _retire(self, resident: Resident | None) -> None:
        if resident is not None and resident.users:
            self._leaving.append(resident)

    def _check_room(self, key: str, wanted_bytes: int) -> None:
        """Whether `wanted_bytes` fit, in bytes and count, beside all models but `key`."""
        if wanted_bytes > self._max_bytes:
            raise ModelUnusable(
                f"the model {key!r} needs {wanted_bytes} bytes, more than the {self._max_bytes} "
                "that this worker may keep resident",
                wanted_bytes=wanted_bytes,
            )
        with self._changed:
            staying = [model for model in self._models.values() if model.key != key]
            if not self._fits(wanted_bytes, staying):
                raise NoRoom(
                    f"no room for the model {key!r} ({wanted_bytes} bytes) beside the "
                    f"{len(staying)} that are resident; unload others first",
                    wanted_bytes=wanted_bytes,
                )

    def _fits(self, wanted_bytes: int, beside: Sequence[Resident]) -> bool:
        used_bytes = sum(model.network.resident_bytes for model in (*beside, *self._leaving))
        few = not self._max_models or len(beside) + 1 <= self._max_models
        return few and used_bytes + wanted_bytes <= self._max_bytes
