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
from gpu_worker.networks.network import IsCancelled, check

__all__ = ["HostModel", "HostTier"]

_LOOK_S = 0.01


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
        self._max_bytes = max_bytes
        self._allocate = allocate
        self._models: OrderedDict[str, HostModel] = OrderedDict()  # least recently used first
        self._filling: set[str] = set()
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Of the models that it keeps."""
        with self._changed:
            return self._used_bytes()

    def sizes(self) -> dict[str, int]:
        """Content → bytes, of what is here whole."""
        with self._changed:
            return {content: model.memory.nbytes for content, model in self._models.items() if model.is_whole}

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

    def touch(self, content: str) -> None:
        """The model was used until now."""
        with self._changed:
            if content in self._models:
                self._models.move_to_end(content)

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
            if used_bytes + nbytes <= self._max_bytes:
                break
            if not model.users:
                leaving.append(content)
                used_bytes -= model.memory.nbytes
        if used_bytes + nbytes > self._max_bytes:
            return False
        for content in leaving:
            del self._models[content]
        return True
