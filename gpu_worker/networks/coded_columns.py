"""Rows of a table as tree libraries take them: one number a column, and NaN where a value is missing.

What a text's number is, the model's file says: its place among the column's categories. A text that is not
among them counts as missing, since no tree has seen it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.networks.table import RowInvalid, columns_of, values_of

__all__ = ["CodedColumn", "CodedColumns", "kind_of"]

Category = str | float | bool


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """One column. kind: number, text or boolean. categories: what each of its codes stands for, if any."""

    name: str
    kind: str = "number"
    categories: tuple[Category, ...] = ()


class CodedColumns:
    """The columns of a model, in its order."""

    def __init__(self, columns: Sequence[CodedColumn]) -> None:
        self.columns = tuple(columns)
        self._codes: list[dict[Category, float] | None] = [
            {category: float(code) for code, category in enumerate(column.categories)}
            if column.categories
            else None
            for column in self.columns
        ]

    def numbers(self, rows: Sequence[bytes]) -> tuple[NDArray[np.float64], list[int]]:
        """float64 [n, columns], and the places of rows that could not be read: those are all NaN."""
        columns, faults = columns_of(rows, self.columns, booleans_count=True)
        matrix = np.empty((len(rows), len(self.columns)))
        for at, (values, codes) in enumerate(zip(columns, self._codes, strict=True)):
            matrix[:, at] = values if codes is None else [codes.get(value, math.nan) for value in values]
        return matrix, list(faults)

    def fault_of(self, row: bytes) -> str | None:
        """Why a row does not fit the columns; None for one that does."""
        try:
            self._values(row)
        except RowInvalid as fault:
            return str(fault)
        return None

    def _values(self, row: bytes) -> list[Any]:
        # Not every file says which of its columns were booleans.
        return values_of(row, self.columns, booleans_count=True)


def kind_of(categories: Sequence[Category]) -> str:
    """The kind of a column whose values are these. Raises `ValueError` where they are of several kinds."""
    kinds = {
        "boolean" if isinstance(category, bool) else "text" if isinstance(category, str) else "number"
        for category in categories
    }
    if len(kinds) != 1:
        raise ValueError(f"its categories are of several kinds: {', '.join(sorted(kinds)) or 'none'}")
    return kinds.pop()
