"""The resident models: who is loaded, who has rows in flight, who leaves when room is needed.

Bounded by bytes and by count. The least recently used model leaves first; one with rows in flight never
does. Knows no device and no files: loading is a function it is given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu_worker.errors import ModelUnusable, NoRoom, UnknownModel
from gpu_worker.manifest import Manifest
from gpu_worker.network import Network
from gpu_worker.piece_sizes import PieceSizes

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
    """Thread-safe. Loading happens outside its lock, so that batches for other models run meanwhile."""

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

    def put(
        self, key: str, manifest: Manifest, expected_bytes: int, load: Callable[[], Network]
    ) -> tuple[Resident, list[str]]:
        """Makes room, loads, and keeps the model under `key`; a model already there is replaced.

        Returns it with the keys of what was evicted. Raises `NoRoom` when models in use fill the device,
        `ModelUnusable` when the model alone is over the bound, and what `load` raises.
        """
        evicted = self._make_room(key, expected_bytes)
        network = load()
        resident = Resident(key, manifest, network)
        with self._changed:
            self._retire(self._models.pop(key, None))
            self._models[key] = resident
        try:
            # Now its true size is known.
            evicted += self._make_room(key, network.resident_bytes)
        except (NoRoom, ModelUnusable):
            with self._changed:
                if self._models.get(key) is resident:
                    self._retire(self._models.pop(key))
            raise
        return resident, evicted

    def remove(self, key: str) -> None:
        """Takes the model out of reach, then waits until its last batch is done. Raises `UnknownModel`."""
        with self._changed:
            resident = self._models.pop(key, None)
            if resident is None:
                raise UnknownModel(f"the model {key!r} is not resident on this worker")
            self._retire(resident)
            self._changed.wait_for(lambda: resident.users == 0)

    @contextmanager
    def lease(self, keys: Sequence[str]) -> Iterator[list[Resident]]:
        """The models, in the order asked, kept resident for as long as the context lasts."""
        residents = self.acquire(keys)
        try:
            yield residents
        finally:
            self.release(residents)

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

    def _make_room(self, key: str, wanted_bytes: int) -> list[str]:
        """Evicts until `wanted_bytes` fit, in bytes and count, beside all models but `key`."""
        if wanted_bytes > self._max_bytes:
            raise ModelUnusable(
                f"the model {key!r} needs {wanted_bytes} bytes, more than the {self._max_bytes} "
                "that this worker may keep resident"
            )
        evicted: list[str] = []
        with self._changed:
            while not self._fits(key, wanted_bytes):
                victim = next((m for m in self._models.values() if not m.users and m.key != key), None)
                if victim is None:
                    raise NoRoom(
                        f"no room for the model {key!r} ({wanted_bytes} bytes): every resident model has "
                        "rows in flight; try again when they are done"
                    )
                del self._models[victim.key]
                evicted.append(victim.key)
        return evicted

    def _fits(self, key: str, wanted_bytes: int) -> bool:
        others = [model for model in self._models.values() if model.key != key]
        used = sum(model.network.resident_bytes for model in (*others, *self._leaving))
        return used + wanted_bytes <= self._max_bytes and len(others) + 1 <= self._max_models
