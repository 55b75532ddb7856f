"""Calls that name their function by a value: `ml_udf.predict`, `detail`, `scores`, and their like.

Each SQL function is a name in `_READINGS`: what it asks the server for, and what it makes of a row's answer.
One way serves a row alone and many: a column of functions, of inputs, and of the argument that some take
beside them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml_udf.client.column import Value, asked_by_key
from ml_udf.client.scores import Scores, asking_scores, check_k, read_scores, score_of, top_of
from ml_udf.client.statement import Binding, Outcome, Statement
from ml_udf.errors import MlUdfError
from ml_udf.postgres.statements import Statements, Target
from ml_udf.postgres.values import are_plain_texts, composite, detailed, fitted_text

__all__ = ["Asking", "GenericCalls", "generic", "pairs_of"]


class Asking:
    """The statement under way, for a call; its errors say which function they concern."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    @contextlib.contextmanager
    def of(self, target: Target, values: Sequence[Value]) -> Iterator[Statement]:
        """The statement in which `target` is asked of `values`."""
        if any(type(value) is bytes for value in values):
            target = replace(target, sends_bytes=True)
        try:
            statement = self._statements.current(target)
            asked, cached, began_s = statement.stats.batches, statement.stats.cached, time.monotonic()
            yield statement
            self._statements.tell_cached(statement.stats.cached - cached)
            if statement.stats.batches > asked:
                self._statements.count_wait(target, time.monotonic() - began_s)
        except MlUdfError as error:
            self._statements.count_failure(target)
            error.detail = error.detail or f"function {target.binding.function} of server {target.server}"
            raise


@dataclass(frozen=True, slots=True)
class _Reading:
    """What becomes of a row's answer.

    of_answer: of an answer, or its error, with the version; never raises for a row · of_scores: of the
    scores of the function's classes and the row's argument; None where neither: then it is the value, as text
    """

    of_answer: Callable[[Outcome, str | None], Any] | None = None
    of_scores: Callable[[Scores, Any], Any] | None = None
    asks_detail: bool = False


_READINGS: Mapping[str, _Reading] = {
    "predict": _Reading(),
    "try_predict": _Reading(of_answer=composite),
    "detail": _Reading(of_answer=detailed, asks_detail=True),
    "scores": _Reading(of_scores=lambda scores, _: json.dumps(scores, ensure_ascii=False)),
    "score": _Reading(of_scores=score_of),
    "top_k": _Reading(
        of_scores=lambda scores, k: json.dumps(
            [{"label": label, "score": score} for label, score in top_of(scores, k)], ensure_ascii=False
        )
    ),
}


class GenericCalls:
    """The generic functions of one session."""

    def __init__(self, statements: Statements, asking: Asking) -> None:
        self._statements = statements
        self._asking = asking

    def ask(
        self,
        what: str,
        of_rows: Sequence[tuple[str, str] | None],
        inputs: Sequence[Value],
        arguments: Sequence[Any] | None = None,
    ) -> list[Any]:
        """`ml_udf.WHAT` of each row; None where one of its arguments is.

        of_rows: (server, function), or None where either is NULL · arguments: the one that it takes beside
        the input

        Raises the errors of the client.
        """
        reading = _READINGS[what]
        given = [None] * len(inputs) if arguments is None else arguments
        if what == "top_k":
            for k in given:
                if k is not None:
                    check_k(k)
        wanted = [
            None if arguments is not None and argument is None else pair
            for pair, argument in zip(of_rows, given, strict=True)
        ]
        rows = list(zip(inputs, given, strict=True))

        def ask(pair: tuple[str, str], own: list[tuple[Value, Any]]) -> list[Any]:
            server, function = pair
            target = generic(server, function, detail=reading.asks_detail)
            if reading.of_scores is not None:
                target = replace(target, binding=asking_scores(function))
            return self._asked(reading, target, [value for value, _ in own], [each for _, each in own])

        return asked_by_key(wanted, rows, ask, None)

    def _asked(
        self, reading: _Reading, target: Target, values: Sequence[Value], arguments: Sequence[Any]
    ) -> list[Any]:
        check = self._statements.check_interrupts
        with self._asking.of(target, values) as statement:
            if reading.of_answer is not None:
                answers = statement.answers(values, check)
                return [reading.of_answer(answer, statement.version) for answer in answers]
            of_scores = reading.of_scores
            if of_scores is None:
                return statement.values(
                    values, check, lambda _, value: fitted_text(value), fits=are_plain_texts
                )
            return read_scores(
                statement, values, lambda scores, row: of_scores(scores, arguments[row]), check
            )


def generic(server: str, function: str, *, detail: bool = False) -> Target:
    """What a call is for that names server and function by values."""
    return Target(server, Binding(function, detail=detail), needs_usage=True)


def pairs_of(servers: Sequence[str | None], functions: Sequence[str | None]) -> list[tuple[str, str] | None]:
    """(server, function) by row; None where either is NULL."""
    return [
        None if server is None or function is None else (server, function)
        for server, function in zip(servers, functions, strict=True)
    ]
