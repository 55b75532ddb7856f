"""Evaluation from PostgreSQL's SQL: `ml_udf.evaluate`, `confusion_matrix`, `importance`, `learning_curve`.

A query runs in this session, with the caller's rights and search path. A dataset's rows are the server's;
who may train may have them evaluated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_udf.client.column import Value
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.scores import asking_scores, read_scores
from ml_udf.client.statement import Binding
from ml_udf.evaluation import LabelledRow, names_dataset, result_rows
from ml_udf.postgres.dataset_rows import DatasetRows
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.generic import Asking
from ml_udf.postgres.spi import Spi
from ml_udf.postgres.statements import Statements, Target
from ml_udf.training import TrainingCalls

__all__ = ["Evaluation"]

_TRAINS = """
    SELECT pg_catalog.pg_has_role(current_user, r.oid, 'USAGE') AS found
    FROM pg_catalog.pg_roles r WHERE r.rolname = 'ml_udf_trainer'"""


class Evaluation:
    """What SQL asks of a function's worth."""

    def __init__(self, spi: Spi, statements: Statements, asking: Asking) -> None:
        self._spi = spi
        self._statements = statements
        self._asking = asking
        self._rows = DatasetRows(spi.plpy)

    def rows(self, verb: str, given: Mapping[str, Any], server: str) -> list[dict[str, Any]]:
        """The rows of `ml_udf.VERB`. Raises `PostgresError`, and the errors of the client."""
        if names_dataset(given.get("data") or ""):
            self._check_trains()
        check = self._statements.check_interrupts
        calls = TrainingCalls(self._statements.client(server), check)

        with contextlib.ExitStack() as reading:

            def read(query: str) -> Iterator[Sequence[LabelledRow]]:
                path = given.get("search_path") or ""
                pages = self._rows.pages(query, path, check, given.get("target"))
                # One that is left in the middle gives the search path back here, not when Python comes by.
                return reading.enter_context(contextlib.closing(pages))

            return result_rows(
                verb,
                given,
                calls,
                lambda function: _Asker(self._statements, self._asking, server, function),
                read,
            )

    def _check_trains(self) -> None:
        found = self._spi.row(_TRAINS)
        if found is None or not found["found"]:
            raise PostgresError(
                "42501",
                "permission denied for the rows of a dataset",
                hint="this is for members of ml_udf_trainer; give a query over rows that you may see",
            )


class _Asker:
    """See `ml_udf.evaluation.Asker`."""

    def __init__(self, statements: Statements, asking: Asking, server: str, function: str) -> None:
        self._statements = statements
        self._asking = asking
        self._target = Target(server, Binding(function), needs_usage=True)
        self._scored = Target(server, asking_scores(function), needs_usage=True)
        self._info: FunctionInfo | None = None

    def info(self) -> FunctionInfo:
        if self._info is None:
            with self._asking.of(self._target, []) as statement:
                self._info = statement.info(self._statements.check_interrupts)
        return self._info

    def values(self, inputs: Sequence[Value]) -> list[Any]:
        with self._asking.of(self._target, inputs) as statement:
            return statement.values(inputs, self._statements.check_interrupts)

    def probabilities(self, inputs: Sequence[Value]) -> list[Any]:
        with self._asking.of(self._scored, inputs) as statement:
            check = self._statements.check_interrupts
            return read_scores(statement, inputs, lambda scores, _: [*scores.values()], check)
