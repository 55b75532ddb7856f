"""A dictionary by key in parts, each of which grows by itself.

A dictionary of a million keys that grows, or is made anew since many have left it, takes some 70 ms at once,
in which the server does nothing else; a part of it takes a 32nd of that, and no two do so together but by
chance. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

__all__ = ["KeyTable"]

_PARTS = 32  # a power of two
_MASK = _PARTS - 1

Value = TypeVar("Value")


class KeyTable(Generic[Value]):
    """Keys are bytes. The part is that of a key's hash, which Python keys by a secret of the process."""

    def __init__(self) -> None:
        self.parts: tuple[dict[bytes, Value], ...] = tuple({} for _ in range(_PARTS))
        self._gets = tuple(part.get for part in self.parts)
        self._setdefaults = tuple(part.setdefault for part in self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[tuple[bytes, Value]]:
        """The keys with their values, part by part."""
        return chain.from_iterable(part.items() for part in self.parts)

    def __contains__(self, key: bytes) -> bool:
        return key in self.parts[hash(key) & _MASK]

    def __getitem__(self, key: bytes) -> Value:
        return self.parts[hash(key) & _MASK][key]

    def find(self, keys: Sequence[bytes | None]) -> list[Value | None]:
        """The value of each key; None where there is none, and of None."""
        gets = self._gets
        return [gets[hash(key) & _MASK](key) for key in keys]  # type: ignore[arg-type]  # None is nobody's key

    def add(self, keys: Iterable[bytes], values: Iterable[Value]) -> list[bool]:
        """Put in what has no value yet; of each whether it had none."""
        setdefaults = self._setdefaults
        return [
            setdefaults[hash(key) & _MASK](key, value) is value
            for key, value in zip(keys, values, strict=True)
        ]

    def update(self, pairs: Iterable[tuple[bytes, Value]]) -> None:
        """Put these in, over what is there."""
        parts = self.parts
        for key, value in pairs:
            parts[hash(key) & _MASK][key] = value

    def pop(self, key: bytes, default: Value) -> Value:
        """Take a key's value out; what is told in its place where it has none."""
        return self.parts[hash(key) & _MASK].pop(key, default)

    def remove(self, key: bytes) -> Value:
        """Take a key's value out. Raises KeyError."""
        return self.parts[hash(key) & _MASK].pop(key)
