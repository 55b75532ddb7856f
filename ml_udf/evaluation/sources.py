"""Labelled rows, and what a function answers to them: of a query, or of a dataset's held-out split.

A query's rows are read and asked here. A dataset's rows stay on the server, which asks for them itself and
says what was to be answered and what was. Columns are dealt out anew by a seed, on either side alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

from ml_udf.client.column import Value
from ml_udf.client.function_info import FunctionInfo
from ml_udf.errors import BadOption, UnknownColumn
from ml_udf.evaluation.answered import Answered, target_of
from ml_udf.training import TrainingCalls

__all__ = ["Asker", "DatasetRows", "LabelledRow", "QueryRows", "Source"]

LabelledRow: TypeAlias = Mapping[str, Any]  # a row of a query, by the names of its columns

MOST_ROWS = 100_000  # whose columns are dealt out: they are kept in memory
_PAGE_ROWS = 5_000


class Asker(Protocol):
    """One function, in the statement under way."""

    def info(self) -> FunctionInfo:
        """What its server says of it."""
        ...

    def values(self, inputs: Sequence[Value]) -> list[Any]:
        """Its answers, None for NULL and for a row at fault that is left out."""
        ...

    def probabilities(self, inputs: Sequence[Value]) -> list[Any]:
        """The probabilities of its classes by row, in their order; None as in `values`."""
        ...


class Source(Protocol):
    """Labelled rows and a function."""

    @property
    def info(self) -> FunctionInfo:
        """The function."""
        ...

    def answered(
        self, *, with_probabilities: bool = False, dealt: str | None = None, seed: str = ""
    ) -> Answered:
        """The rows answered; dealt: with the values of this column dealt out anew among them.

        Raises `BadOption`, `UnknownColumn`, and the errors of the client.
        """
        ...


class QueryRows:
    """Rows of a query.

    read: begins to read it, page by page · target, column: of the query, that hold what was to be answered,
    and what is asked; None = the only other one, or the function's own columns
    """

    def __init__(
        self,
        asker: Asker,
        read: Callable[[], Iterable[Sequence[LabelledRow]]],
        target: str,
        column: str | None = None,
    ) -> None:
        self._asker = asker
        self._read = read
        self._target = target
        self._column = column
        self._kept: tuple[list[Value], list[Any]] | None = None

    @property
    def info(self) -> FunctionInfo:
        """See `Source.info`."""
        return self._asker.info()

    def answered(
        self, *, with_probabilities: bool = False, dealt: str | None = None, seed: str = ""
    ) -> Answered:
        """See `Source.answered`."""
        info = self.info
        found = Answered(target_of(info), info.classes)
        ask = self._asker.probabilities if with_probabilities else None
        if dealt is not None:
            inputs, wanted = self._all()
            found.add(wanted, self._asker.values(_dealt(inputs, info.column_names.index(dealt), seed)))
            return found
        for page in self._read():
            inputs, wanted = self._parted(page)
            found.add(wanted, self._asker.values(inputs), [] if ask is None else ask(inputs))
        return found

    def _all(self) -> tuple[list[Value], list[Any]]:
        if self._kept is None:
            inputs: list[Value] = []
            wanted: list[Any] = []
            for page in self._read():
                more, targets = self._parted(page)
                inputs += more
                wanted += targets
                if len(inputs) > MOST_ROWS:
                    raise BadOption(
                        f"the query gives more than {MOST_ROWS:,} rows, whose columns are to be dealt out",
                        hint="a few thousand tell as much: ORDER BY random() LIMIT 5000",
                    )
            self._kept = inputs, wanted
        return self._kept

    def _parted(self, rows: Sequence[LabelledRow]) -> tuple[list[Value], list[Any]]:
        """The inputs of rows, and their targets."""
        if not rows:
            return [], []
        names, own = list(rows[0]), self.info.column_names
        _check_column(self._target, names, "target")
        targets = [row[self._target] for row in rows]
        column = self._column
        if column is None and own:
            for name in own:
                _check_column(name, names, "input")
            return [_row_text([row[name] for name in own]) for row in rows], targets
        if column is None:
            others = [name for name in names if name != self._target]
            if len(others) != 1:
                raise BadOption(
                    f"the query has {len(others)} columns beside the target: {', '.join(others) or 'none'}",
                    hint="name the one to ask for: input => '…'",
                )
            column = others[0]
        _check_column(column, names, "input")
        return [_value(row[column]) for row in rows], targets


class DatasetRows:
    """The held-out rows of a dataset's newest snapshot, which its server has."""

    def __init__(self, calls: TrainingCalls, info: FunctionInfo, dataset: str) -> None:
        self._calls = calls
        self._info = info
        self._dataset = dataset

    @property
    def info(self) -> FunctionInfo:
        """See `Source.info`."""
        return self._info

    def answered(
        self, *, with_probabilities: bool = False, dealt: str | None = None, seed: str = ""
    ) -> Answered:
        """See `Source.answered`."""
        info = self._info
        found = Answered(target_of(info), info.classes)
        first: int | None = 0
        while first is not None:
            told = self._calls.answers(
                self._dataset,
                info.name,
                first=first,
                rows=_PAGE_ROWS,
                scores=with_probabilities,
                dealt=dealt,
                seed=seed,
            )
            found.add(told["targets"], told["answers"], told.get("scores") or [])
            first = told["next"]
        return found


def _check_column(name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        raise UnknownColumn(
            f"the query has no column {name!r} for the {what}", hint="its columns: " + ", ".join(names)
        )


def _value(value: Any) -> Value:  # noqa: ANN401  # of SQL
    """An input as functions take it."""
    if value is None or isinstance(value, str | bytes | int | float | list):
        return value
    return float(value) if isinstance(value, Decimal) else str(value)


def _row_text(values: Sequence[Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> float | str:  # noqa: ANN401  # of SQL
    """What JSON has no type for: a decimal is a number, a date a text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _dealt(inputs: Sequence[Value], place: int, seed: str) -> list[Value]:
    rows = [json.loads(str(row)) for row in inputs]
    column = [row[place] for row in rows]
    random.Random(seed).shuffle(column)
    for row, value in zip(rows, column, strict=True):
        row[place] = value
    return [_row_text(row) for row in rows]
