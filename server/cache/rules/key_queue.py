"""Keys, first in, first out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

__all__ = ["KeyQueue"]

_PAGE = 256  # keys


class KeyQueue:
    """In pages: Python's collector of garbage looks at a million keys one by one, but into no page, since it
    has learned that a tuple of bytes can be part of no cycle.
    """

    def __init__(self) -> None:
        self._leaving: list[bytes] = []  # the oldest, the next at the end
        self._pages: dict[int, tuple[bytes, ...]] = {}  # by number, none of them empty
        self._first, self._end = 0, 0  # numbers of pages that may be there
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
            self._pages[self._end] = tuple(coming)
            self._end += 1
            coming.clear()

    def popleft(self) -> bytes:
        """The oldest, which leaves. Raises IndexError where nothing is there."""
        if not self._leaving:
            if self._pages:
                while self._first not in self._pages:  # a page that was swept
                    self._first += 1
                self._leaving = list(reversed(self._pages.pop(self._first)))
            else:
                self._leaving, self._coming = self._coming[::-1], []
        return self._leaving.pop()

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """Take out all that are gone, a page at a time. Between two pages others may come and leave."""
        gone, self._leaving = _parted(self._leaving, is_gone)
        yield gone
        number = self._first
        while number < self._end:
            gone, left = _parted(self._pages.get(number, ()), is_gone)
            if gone and left:
                self._pages[number] = tuple(left)
            elif gone:
                del self._pages[number]
            yield gone
            number = max(number + 1, self._first)
        # Whom the oldest page held that has begun to leave meanwhile, and the newest.
        more, self._leaving = _parted(self._leaving, is_gone)
        gone, self._coming = _parted(self._coming, is_gone)
        yield more + gone


def _parted(keys: Sequence[bytes], is_gone: Callable[[bytes], bool]) -> tuple[list[bytes], list[bytes]]:
    """Those that are gone, and the others."""
    gone: list[bytes] = []
    left: list[bytes] = []
    for key in keys:
        (gone if is_gone(key) else left).append(key)
    return gone, left
