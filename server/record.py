"""Records: frozen to the type checker, plain when they run.

A frozen dataclass sets each field through `object.__setattr__`, which takes 0.9 µs for eight fields instead
of 0.35 (2 cores, Python 3.11), and every request makes about twenty records. What may be kept by code that is
not ours stays truly frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

__all__ = ["record"]

_Record = TypeVar("_Record")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_Record]) -> type[_Record]:
    """A dataclass with slots whose fields nobody may set, as far as the type checker sees."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
