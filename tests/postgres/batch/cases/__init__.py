"""The query matrix: what is asked, how many inputs the twin is given for it, and over which nodes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """One query over the tables of schema.sql.

    sent      inputs given to twins, in all; None where the plan decides
    over      the node type under each layer, top down; "" where the calls stay row by row
    singles   calls of scalar forms that are left; None where it does not matter
    before    statements of the same transaction that run first
    after     queries whose result counts, too
    plan      what to EXPLAIN, where that is not the query
    ordered   whether the order of rows is part of the result
    """

    name: str
    sql: str
    sent: int | None
    over: tuple[str, ...]
    singles: int | None = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    plan: str | None = None
    ordered: bool = False

    def __str__(self) -> str:
        return self.name.replace(" ", "_")
