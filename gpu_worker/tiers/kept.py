"""Networks whose weights have left the device: their layers, their traced form, what was learned of them.

A network that is traced can never be let go of as a whole: torch keeps what it traced for as long as the
process lives, and with it all that the trace refers to. So its weights' memory is given back, and the rest is
used again when the model comes back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gpu_worker.networks.network import Network

__all__ = ["Kept", "KeptNetworks"]

_MOST = 256  # contents


@dataclass(slots=True)
class Kept:
    """learned: whatever whoever evicted it wants to find again."""

    network: Network
    learned: Any = None


class KeptNetworks:
    """By content: networks of equal content are each other's equals. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[Kept]] = OrderedDict()  # the oldest first
        self._lock = threading.Lock()

    def keep(self, content: str, kept: Kept) -> None:
        """Keeps it until it is taken, or many others were kept since."""
        with self._lock:
            self._kept.setdefault(content, []).append(kept)
            self._kept.move_to_end(content)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def take(self, content: str) -> Kept | None:
        """A network that waits for these weights, if one does."""
        with self._lock:
            waiting = self._kept.get(content)
            if not waiting:
                return None
            kept = waiting.pop()
            if not waiting:
                del self._kept[content]
            return kept

    def clear(self) -> None:
        """Keeps none any more."""
        with self._lock:
            self._kept.clear()
