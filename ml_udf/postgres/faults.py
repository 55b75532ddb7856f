"""Errors of ml_udf and of queries, as PostgreSQL reports them: message, detail, hint, SQLSTATE.

PL/Python prints an exception as "module.Type: message", and a cancel that came through a query as
"spiexceptions.QueryCanceled: …". Here every error becomes one type that prints as "ml_udf: message".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ml_udf.errors import MlUdfError
from ml_udf.postgres.spi import Plpy, Spi

__all__ = ["PostgresError", "Reports", "reported"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class PostgresError(MlUdfError):
    """PostgreSQL's own rules refuse it (names, rights, languages), with the SQLSTATE they would give."""

    code = "refused"
    usual_hint = ""  # PostgreSQL's own messages say it

    def __init__(self, sqlstate: str, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.sqlstate = sqlstate


class Reports(Protocol):
    """An object whose entry points may be decorated with `reported`."""

    spi: Spi


_S = TypeVar("_S", bound=Reports)


def reported(entry: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """For what SQL calls: errors leave as PostgreSQL reports them. Cancels pass, like everything else."""

    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return entry(self, *args, **kwargs)
        except MlUdfError as error:
            report = _report(self.spi.plpy, error.message, error.sqlstate, error.detail, error.hint)
        except self.spi.plpy.SPIError as error:
            report = _of_query(self.spi.plpy, error)
        raise report  # outside the handlers: the first exception's frames stay out of the CONTEXT

    return functools.update_wrapper(call, entry)


def _of_query(plpy: Plpy, error: Any) -> Exception:  # noqa: ANN401  # a plpy.SPIError
    _, detail, hint, *_ = error.spidata or (None, None, None)
    message = str(error).removeprefix("ml_udf: ")
    return _report(plpy, message, error.sqlstate or "XX000", detail, hint)


def _report(plpy: Plpy, message: str, sqlstate: str, detail: str | None, hint: str | None) -> Exception:
    kind = type("ml_udf", (plpy.Error,), {"__module__": "builtins"})
    report: Exception = kind(message)
    for name, value in (("sqlstate", sqlstate), ("detail", detail), ("hint", hint)):
        if value:
            setattr(report, name, value)
    return report
