"""Feedback from PostgreSQL's SQL: `ml_udf.feedback`, a row at a time or, by its twin, many."""

from __future__ import annotations

from collections.abc import Sequence

from ml_udf.client.column import Value, asked_by_key
from ml_udf.client.statement import Binding
from ml_udf.errors import MlUdfError
from ml_udf.feedback import give_feedback
from ml_udf.postgres.statements import Statements, Target

__all__ = ["FeedbackCalls"]


class FeedbackCalls:
    """What SQL says of the labels of a server's functions."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def give(
        self,
        of_rows: Sequence[tuple[str, str] | None],
        inputs: Sequence[Value],
        labels: Sequence[str | None],
        *,
        by_id: bool = False,
    ) -> list[str | None]:
        """What became of each row; of_rows: (server, function), or None where either is NULL.

        by_id: the inputs are ids of predictions.

        Raises the errors of the client.
        """
        pairs = list(zip(inputs, labels, strict=True))

        def ask(pair: tuple[str, str], own: list[tuple[Value, str | None]]) -> list[str | None]:
            return self._given(*pair, [value for value, _ in own], [label for _, label in own], by_id)

        return asked_by_key(of_rows, pairs, ask, None)

    def _given(
        self,
        server: str,
        function: str,
        inputs: Sequence[Value],
        labels: Sequence[str | None],
        by_id: bool,
    ) -> list[str | None]:
        target = Target(server, Binding(function), needs_usage=True)
        try:
            statement = self._statements.current(target)
            client = self._statements.client(server)
            check = self._statements.check_interrupts
            return give_feedback(client, statement, inputs, labels, check, by_id=by_id)
        except MlUdfError as error:
            self._statements.count_failure(target)
            error.detail = error.detail or f"function {function} of server {server}"
            raise
