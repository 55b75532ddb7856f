"""Queries from inside a function: PL/Python's `plpy`, typed, with each plan prepared once per session.

Owns nothing else. Every name in a query is schema-qualified or in pg_catalog, which the functions' pinned
search_path guarantees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

__all__ = ["Plpy", "Spi"]


Plan: TypeAlias = Any  # plpy's classes exist only inside the server
Result: TypeAlias = Any


class Plpy(Protocol):
    """The part of the module `plpy` that is used here."""

    Error: type[Exception]
    SPIError: type[Exception]

    def execute(self, query: str | Plan, arguments: list[object] = ..., /) -> Result:
        """Run a query or a plan."""

    def cursor(self, query: str, /) -> Any:  # noqa: ANN401  # plpy's cursor
        """Open a cursor on a query that returns rows."""

    def prepare(self, query: str, types: list[str], /) -> Plan:
        """Prepare a plan."""

    def warning(self, message: str, /, **fields: str) -> None:
        """Send a WARNING."""

    def notice(self, message: str, /, **fields: str) -> None:
        """Send a NOTICE."""

    def commit(self) -> None:
        """End the transaction, keeping it; in procedures that are called outside transactions alone."""

    def rollback(self) -> None:
        """End the transaction, forgetting it."""


class Spi:
    """Queries with prepared plans."""

    def __init__(self, plpy: Plpy) -> None:
        self.plpy = plpy
        self._plans: dict[tuple[str, tuple[str, ...]], Plan] = {}

    def rows(self, query: str, *arguments: tuple[str, Any]) -> list[dict[str, Any]]:
        """The rows of a query; arguments are (SQL type, value) for $1, $2, …"""
        types = tuple(kind for kind, _ in arguments)
        plan = self._plans.get((query, types))
        if plan is None:
            plan = self._plans[(query, types)] = self.plpy.prepare(query, list(types))
        return list(self.plpy.execute(plan, [value for _, value in arguments]))

    def row(self, query: str, *arguments: tuple[str, Any]) -> dict[str, Any] | None:
        """The first row, or None."""
        return next(iter(self.rows(query, *arguments)), None)

    def run(self, statements: Sequence[str]) -> None:
        """Run statements that change something."""
        for statement in statements:
            self.plpy.execute(statement)
