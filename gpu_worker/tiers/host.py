"""Models in the host's memory, in the form in which they are copied to the device.

Bounded by bytes: those that were used longest ago leave. What is being copied stays until it is copied.
Knows bytes and whose they are; no files, no device.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_worker.memory import Region
from gpu_worker.networks.network import IsCancelled, Network, check

__all__ = ["HostModel", "HostTier", "Kept"]

_LOOK_S = 0.01
_MOST_KEPT = 256  # contents of networks without weights


@dataclass(slots=True)
class Kept:
    """A network whose weights have left the device: its layers, its traced form, and what was learned of it.

    learned: whatever whoever evicted it wants to find again.
    """

    network: Network
    learned: Any = None


@dataclass(slots=True, eq=False)
class HostModel:
    """One model's bytes. content: what they were made of; models of equal content share one.

    layout: how they are cut into tensors, for whoever makes a network of them. stays: whether it is kept
    after use. is_whole: all its bytes are here.
    """

    content: str
    layout: Any
    memory: Region
    stays: bool
    users: int = 1
    is_whole: bool = False


class HostTier:
    """At most `max_bytes`, but for models under way to the device that find no room. Thread-safe."""

    def __init__(self, max_bytes: int, allocate: Callable[[int], Region] = Region) -> None:
        self.max_bytes = max_bytes
        self._allocate = allocate
        self._models: OrderedDict[str, HostModel] = OrderedDict()  # least recently used first
        self._kept: OrderedDict[str, list[Kept]] = OrderedDict()  # by content, the oldest first
        self._filling: set[str] = set()
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Of the models that it keeps."""
        with self._changed:
            return self._used_bytes()

    def contents(self) -> list[str]:
        """What it keeps, least recently used first."""
        with self._changed:
            return list(self._models)

    def lease(self, content: str, is_cancelled: IsCancelled) -> HostModel | None:
        """The model, to be given back; None: the caller brings it, by `admit` and then `filled`, or `failed`.

        Waits while another caller brings it. Raises `Cancelled`.
        """
        with self._changed:
            while content in self._filling:
                check(is_cancelled)
                self._changed.wait(_LOOK_S)
            model = self._models.get(content)
            if model is None:
                self._filling.add(content)
                return None
            model.users += 1
            self._models.move_to_end(content)
            return model

    def admit(self, content: str, nbytes: int, layout: object) -> HostModel:
        """Memory for a model, for which others leave; leased. One that finds no room is not kept."""
        with self._changed:
            stays = bool(content) and self._make_room(nbytes)
            model = HostModel(content, layout, self._allocate(nbytes), stays)
            if stays:
                self._models[content] = model
            return model

    def filled(self, model: HostModel) -> None:
        """All its bytes are here."""
        model.is_whole = True
        self._end_filling(model.content)

    def failed(self, content: str, model: HostModel | None) -> None:
        """It will not come; what there was of it goes."""
        with self._changed:
            if model is not None and self._models.get(content) is model:
                del self._models[content]
        self._end_filling(content)

    def give_back(self, model: HostModel) -> None:
        """The end of one lease."""
        with self._changed:
            model.users -= 1

    def keep(self, content: str, kept: Kept) -> None:
        """Keeps a network whose weights have left the device: without them it takes little."""
        with self._changed:
            self._kept.setdefault(content, []).append(kept)
            self._kept.move_to_end(content)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            if content in self._models:
                self._models.move_to_end(content)

    def take_kept(self, content: str) -> Kept | None:
        """A network that waits for these weights, if one does."""
        with self._changed:
            waiting = self._kept.get(content)
            if not waiting:
                return None
            kept = waiting.pop()
            if not waiting:
                del self._kept[content]
            return kept

    def clear(self) -> None:
        """Lets go of the models that nobody uses."""
        with self._changed:
            for content in [content for content, model in self._models.items() if not model.users]:
                del self._models[content]

    def _end_filling(self, content: str) -> None:
        with self._changed:
            self._filling.discard(content)
            self._changed.notify_all()

    def _used_bytes(self) -> int:
        return sum(model.memory.nbytes for model in self._models.values())

    def _make_room(self, nbytes: int) -> bool:
        """Whether there is room now. Nobody leaves for what will not fit."""
        used_bytes = self._used_bytes()
        leaving: list[str] = []
        for content, model in self._models.items():
            if used_bytes + nbytes <= self.max_bytes:
                break
            if not model.users:
                leaving.append(content)
                used_bytes -= model.memory.nbytes
        if used_bytes + nbytes > self.max_bytes:
            return False
        for content in leaving:
            del self._models[content]
        return True
