"""What a network's weights take of a device's memory, for networks whose weights can leave it and come back.

No torch here: a model that needs none is moved too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["LeavesDevice", "MovesWeights", "Weights"]


@dataclass(slots=True, eq=False)
class Weights:
    """content: what they were made of. memory: the region of the device that holds them."""

    content: str
    memory: Any

    @property
    def nbytes(self) -> int:
        """What they take of the device."""
        return int(self.memory.nbytes)


@runtime_checkable
class LeavesDevice(Protocol):
    """A network that has more on the device than its weights."""

    def left_device(self) -> None:
        """Its weights are about to be off the device; the rest of it must be too."""
        ...


@runtime_checkable
class MovesWeights(Protocol):
    """A network that stays as it is while its weights are away; nobody runs it then.

    weights: None where they cannot leave it.
    """

    weights: Weights | None
