"""One connection of a test, and what the functions under test report of their calls.

The functions of `schema.sql` say in a NOTICE what they were given: `row` for one call of the scalar form,
`batch` for one of the twin. Notices come from parallel workers, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg

__all__ = ["Call", "Outcome", "Session", "layers_of"]


@dataclass(frozen=True)
class Call:
    function: str
    inputs: list[Any]  # one per row; a list of arguments where there are several


@dataclass
class Outcome:
    """What some statements returned, and how they called the functions."""

    rows: list[Any] = field(default_factory=list)
    error: tuple[str, str] | None = None  # SQLSTATE and message
    batches: list[Call] = field(default_factory=list)
    singles: list[Call] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Inputs given to twins."""
        return sum(len(call.inputs) for call in self.batches)

    @property
    def result(self) -> tuple[list[Any], tuple[str, str] | None]:
        return self.rows, self.error


class Session:
    """A connection; each `run` reports on its own statements only."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.prepare_threshold = None  # else psycopg deallocates what a test prepares
        self.connection.add_notice_handler(self._notice)
        self._outcome = Outcome()

    def run(self, *statements: str) -> Outcome:
        """Execute statements in turn; the rows of all of them, up to the first error."""
        self._outcome = outcome = Outcome()
        for statement in statements:
            try:
                cursor = self.connection.execute(statement.encode())
                while True:
                    if cursor.description:
                        outcome.rows.extend(cursor.fetchall())
                    if not cursor.nextset():
                        break
            except psycopg.Error as error:
                outcome.error = (error.sqlstate or "", error.diag.message_primary or str(error))
                break
        return outcome

    def must(self, *statements: str) -> Outcome:
        """`run`, where an error is the test's own fault."""
        outcome = self.run(*statements)
        assert outcome.error is None, outcome.error
        return outcome

    def plan(self, query: str, *, analyze: bool = False) -> dict[str, Any]:
        """The root of EXPLAIN's tree."""
        options = "FORMAT JSON, COSTS OFF, VERBOSE" + (", ANALYZE, TIMING OFF" if analyze else "")
        ((tree,),) = self.must(f"EXPLAIN ({options}) {query}").rows
        root: dict[str, Any] = tree[0]["Plan"]
        return root

    def close(self) -> None:
        self.connection.close()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        message = notice.message_primary or ""
        kind, _, rest = message.partition(" ")
        if kind not in ("row", "batch"):
            self._outcome.notices.append(message)
            return
        function, _, inputs = rest.partition(" ")
        calls = self._outcome.batches if kind == "batch" else self._outcome.singles
        calls.append(Call(function, json.loads(inputs)))


def layers_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The batch nodes of a plan, top down, each with what it is `over` added."""
    found = []
    if plan.get("Custom Plan Provider") == "MlUdfBatch":
        (child,) = (node for node in plan["Plans"] if node["Parent Relationship"] == "Outer")
        found.append(plan | {"over": child["Node Type"]})
    for child in plan.get("Plans", []):
        found += layers_of(child)
    return found
