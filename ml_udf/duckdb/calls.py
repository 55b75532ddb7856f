"""How the functions of one connection are carried out: statements, faults, interrupts, statistics.

Knows columns of Python values; Arrow and SQL are its neighbours' (`vectors`, `surface`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb

from ml_udf.client import Client
from ml_udf.client.column import Value
from ml_udf.client.exchange import ROW_FAULTS
from ml_udf.client.scores import Scores, asking_scores, read_scores
from ml_udf.client.statement import Binding, Outcome, Statement
from ml_udf.config import Options
from ml_udf.duckdb.faults import FaultWarnings, is_spelled_out, spelled_out
from ml_udf.duckdb.interrupts import Interrupts
from ml_udf.duckdb.open_statements import OpenStatement, OpenStatements
from ml_udf.duckdb.pauses import Pauses
from ml_udf.duckdb.surface import options_of
from ml_udf.errors import MlUdfError
from ml_udf.feedback import give_feedback
from ml_udf.scoring.binding import bound

__all__ = ["Calls"]


class Calls:
    """The calls that a connection's statements make; DuckDB's threads come here at once."""

    def __init__(self, con: duckdb.DuckDBPyConnection, client: Client, options: Options) -> None:
        self.faults = FaultWarnings()
        self.interrupts = Interrupts(con)
        self.last_error: MlUdfError | None = None
        self._pauses = Pauses()
        self._client = client
        self._options = options
        self._open = OpenStatements()

    def values(
        self,
        binding: Binding,
        text: str | None,
        column: Sequence[Value],
        fit: Callable[[int, Any], Any] | None = None,
    ) -> list[Any]:
        """A value per row; `text` is the statement's identity. A fault raises or becomes a counted NULL.

        text  None where it is not known: then a statement ends where no call comes for a moment
        fit   as in `Statement.values`
        """
        with self._call(binding, text, column) as (statement, check):
            return statement.values(column, check, fit)

    def scores(
        self, function: str, text: str | None, column: Sequence[Value], read: Callable[[Scores, int], Any]
    ) -> list[Any]:
        """What `read` makes of the scores of each row; `text` as in `values`."""
        with self._call(asking_scores(function), text, column) as (statement, check):
            return read_scores(statement, column, read, check)

    def answers(
        self, binding: Binding, text: str | None, column: Sequence[Value]
    ) -> list[tuple[Outcome, str | None]]:
        """An answer per row with the version that gave it; faults are reported, not raised."""
        with self._call(binding, text, column) as (statement, check):
            return [(answer, statement.version) for answer in statement.answers(column, check)]

    def feedback(
        self,
        binding: Binding,
        text: str | None,
        inputs: Sequence[Value],
        labels: Sequence[str | None],
        *,
        by_id: bool = False,
    ) -> list[str | None]:
        """What became of each labelled row; `text` as in `values`. by_id: the inputs are predictions' ids."""
        with self._call(binding, text) as (statement, check):
            return give_feedback(self._client, statement, inputs, labels, check, by_id=by_id)

    def note(self, error: MlUdfError) -> None:
        """Keep an error whose text alone DuckDB will pass on, as it was before it was spelled out."""
        if not is_spelled_out(error):
            self.last_error = error

    def statistics(self) -> list[dict[str, Any]]:
        """Per function, what this connection has asked so far."""
        return [
            {
                "name": name,
                "statements": count,
                "rows": stats.rows,
                "rows_sent": stats.distinct,
                "batches": stats.batches,
                "retries": stats.retries,
                "failed_rows": stats.failed_rows,
                "cached_rows": stats.cached,
                "seconds": round(stats.elapsed_s, 6),
            }
            for name, (count, stats) in sorted(self._open.costs().items())
        ]

    @contextlib.contextmanager
    def _call(
        self, binding: Binding, text: str | None, column: Sequence[Value] = ()
    ) -> Iterator[tuple[Statement, Callable[[], None]]]:
        statement: Statement | None = None
        sends_bytes = bytes in set(map(type, column))
        try:
            with (
                self._pauses.call() if text is None else contextlib.nullcontext(text) as identity,
                self._open.call(identity) as one,
            ):
                statement = self._statement(one, identity, binding, sends_bytes)
                self.faults.call_begins(statement)
                with self.interrupts.call() as check:
                    yield statement, check
        except MlUdfError as error:
            self.last_error = error
            raise spelled_out(error, binding.function) from error
        finally:
            if statement is not None:
                self.faults.call_ended(statement)

    def _statement(self, one: OpenStatement, text: str, binding: Binding, sends_bytes: bool) -> Statement:
        if (known := one.asked.get((binding, sends_bytes))) is not None:
            return known
        asked = self._image_binding(binding) if sends_bytes else binding
        client = self._client.of_job(one.job)
        options = options_of(text, self._options)
        return self._open.use(one, binding, sends_bytes, lambda: Statement(client, asked, options))

    def _image_binding(self, binding: Binding) -> Binding:
        """Of a function whose rows are paths, the input that takes encoded images instead."""
        with contextlib.suppress(*ROW_FAULTS):  # the call itself will meet them, under on_error's rule
            return bound(binding, self._client.look_up(binding.function), "bytes")
        return binding
