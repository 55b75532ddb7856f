"""A statement that waits for answers is not over: its NULL rows are warned of once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ml_udf.client.statement import Statement
from ml_udf.duckdb.faults import FaultWarnings, FaultyRowsWarning
from tests.waiting import wait_until


@dataclass(eq=False)
class Asked:
    """What is read of a statement."""

    faulty_rows: int = 0
    options: Any = field(default_factory=lambda: type("Options", (), {"on_error": "null"}))

    def fault_report(self) -> str | None:
        return f"{self.faulty_rows} inputs" if self.faulty_rows else None


@pytest.fixture
def warned() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", FaultyRowsWarning)
        yield caught


def begin(faults: FaultWarnings, asked: Asked) -> None:
    faults.call_begins(cast(Statement, asked))


def end(faults: FaultWarnings, asked: Asked, faulty_rows: int) -> None:
    asked.faulty_rows += faulty_rows
    faults.call_ended(cast(Statement, asked))


def test_the_warning_waits_for_the_call_that_is_under_way(warned):
    faults, slow, other = FaultWarnings(), Asked(), Asked()
    begin(faults, slow)
    begin(faults, slow)
    end(faults, slow, 1)
    begin(faults, other)
    end(faults, other, 3)
    wait_until(lambda: warned)
    assert [str(each.message) for each in warned] == ["3 inputs"], "the timer has looked at both"
    end(faults, slow, 1)
    wait_until(lambda: len(warned) > 1)
    assert [str(each.message) for each in warned] == ["3 inputs", "2 inputs"]


def test_who_asks_for_the_warnings_has_them_of_calls_under_way_too(warned):
    faults, slow = FaultWarnings(), Asked()
    begin(faults, slow)
    begin(faults, slow)
    end(faults, slow, 1)
    faults.flush()
    assert [str(each.message) for each in warned] == ["1 inputs"]
    end(faults, slow, 0)
    faults.flush()
