"""Keys, first in, first out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["KeyQueue"]

_PAGE = 256  # keys


class KeyQueue:
    """In pages: Python's collector of garbage looks at a million keys one by one, but into no page, since it
    has learned that a tuple of bytes can be part of no cycle.
    """

    def __init__(self) -> None:
        self._leaving: list[bytes] = []  # the oldest, the next at the end
        self._pages: deque[tuple[bytes, ...]] = deque()
        self._coming: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._leaving or self._pages or self._coming)

    def append(self, key: bytes) -> None:
        """Becomes the newest."""
        self.extend((key,))

    def extend(self, keys: Sequence[bytes]) -> None:
        """Become the newest, in this order."""
        coming = self._coming
        coming.extend(keys)
        if len(coming) >= _PAGE:
            self._pages.append(tuple(coming))
            coming.clear()

    def popleft(self) -> bytes:
        """The oldest, which leaves. Raises IndexError where nothing is there."""
        if not self._leaving:
            if self._pages:
                self._leaving = list(reversed(self._pages.popleft()))
            else:
                self._leaving, self._coming = self._coming[::-1], []
        return self._leaving.pop()
