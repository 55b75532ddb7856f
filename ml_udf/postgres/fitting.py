"""Whether an answer is a value of the type that its SQL function returns: PostgreSQL is asked, once a value.

Left to PL/Python, an answer that is none fails the statement with the type's own error, which names neither
the function nor the input, and which `ml_udf.on_error` does not cover.
"""

from __future__ import annotations

from array import array
from typing import Any

from ml_udf.errors import WrongType
from ml_udf.postgres.binary import binary
from ml_udf.postgres.spi import Spi
from ml_udf.postgres.values import fitted

__all__ = ["Fitting"]

_TEXTS = {"text", "character varying", "bytea", "boolean"}  # what `fitted` leaves fits
_NUMBERS = {"real", "double precision", "numeric"}
_MAX_KNOWN = 10_000
_MAX_KNOWN_CHARACTERS = 200  # a pgvector of a thousand numbers has ten thousand, and comes once


class Fitting:
    """The answers that are known to fit, of one session."""

    def __init__(self, spi: Spi) -> None:
        self._spi = spi
        self._known: set[tuple[str, object]] = set()

    def value(self, value: Any, sql_type: str) -> Any:  # noqa: ANN401  # of the wire's types, to the SQL type's
        """An answer for a result of `sql_type`. Raises `BadOption`, `WrongType`."""
        (found,) = fitted([value], sql_type)
        sure = sql_type in _TEXTS or isinstance(found, list)
        sure = sure or (sql_type in _NUMBERS and isinstance(found, int | float))
        if not sure and (sql_type, found) not in self._known:
            self._ask(found, sql_type)
        return found

    def binary(self, value: Any, sql_type: str) -> bytes:  # noqa: ANN401  # of the wire's types
        """The same in the type's binary format, where it `is_binary`. Raises `BadOption`, `WrongType`."""
        if isinstance(value, list | array):
            return binary(value, sql_type)
        found = self.value(value, sql_type)
        if not isinstance(found, list):
            raise WrongType(
                f"the answer {value!r:.80} is no value of type {sql_type}",
                hint="create the function with returns => 'text'",
            )
        return binary(found, sql_type)

    def _ask(self, value: object, sql_type: str) -> None:
        try:
            # The type's name is PostgreSQL's own spelling, from the function's record.
            self._spi.rows(f"SELECT CAST($1 AS {sql_type}) IS NULL", ("text", str(value)))
        except self._spi.plpy.SPIError as error:
            if str(getattr(error, "sqlstate", ""))[:2] not in ("22", "23"):  # of data, of constraints
                raise
            raise WrongType(
                f"the answer {value!r} is no value of type {sql_type}: {error}",
                hint="create the function with returns => 'text', or with a type that holds all its answers",
            ) from None
        if isinstance(value, str) and len(value) > _MAX_KNOWN_CHARACTERS:
            return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add((sql_type, value))
