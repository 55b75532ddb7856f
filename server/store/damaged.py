"""JSON of the registry that cannot be read any more: it is the fault of its own row, and of no other.

SQLite keeps whatever a failing disk, a hand or a half restored copy has left there. A column is read as it
comes; who makes a noun of its row says what the column is of, and gets it or `DamagedRecord`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from server.errors import ServiceError

__all__ = ["DamagedRecord", "learned_in", "list_in", "object_in", "read_json", "readable", "tell"]

log = logging.getLogger("ml_udf.server.registry")

_Row = TypeVar("_Row")
_Noun = TypeVar("_Noun")
_told: set[str] = set()  # lists are read again and again


class DamagedRecord(ServiceError):
    """A row of the registry cannot be read; the text says of what, and what to do."""


class _Unreadable:
    """Stands where the JSON of a column should."""

    def __init__(self, why: str) -> None:
        self.why = why


def read_json(text: str | bytes) -> Any:  # noqa: ANN401  # whatever it is
    """What a database's driver calls to read a column."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        return _Unreadable(f"it is not JSON: {exc}")


def object_in(column: object, what: str) -> dict[str, Any]:
    """A column's JSON object, a copy. what: it is of. Raises `DamagedRecord`."""
    if isinstance(column, dict):
        return dict(column)
    raise _damaged(column, what, "an object")


def list_in(column: object, what: str) -> list[Any]:
    """A column's JSON array, a copy. Raises `DamagedRecord`."""
    if isinstance(column, list):
        return list(column)
    raise _damaged(column, what, "an array")


def learned_in(column: object, what: str) -> dict[str, Any] | None:
    """A column's JSON object without which all goes on; None where it is damaged, which the log tells."""
    try:
        return None if column is None else object_in(column, what)
    except DamagedRecord as error:
        tell(error)
        return None


def readable(rows: Iterable[_Row], noun_of: Callable[[_Row], _Noun]) -> list[_Noun]:
    """The nouns of all rows but the damaged ones, each of which the log tells once."""
    found = []
    for row in rows:
        try:
            found.append(noun_of(row))
        except DamagedRecord as error:
            tell(error)
    return found


def tell(error: DamagedRecord) -> None:
    """Log it, once."""
    if error.message not in _told:
        _told.add(error.message)
        log.error("registry damaged reason=%r", error.message)


def _damaged(column: object, what: str, wanted: str) -> DamagedRecord:
    why = column.why if isinstance(column, _Unreadable) else f"it is not {wanted}"
    return DamagedRecord(
        f"{what} is damaged in the registry ({why}): restore the registry from a copy, or make it anew"
    )
