"""Rows of a table as numbers: what is fitted, what is missing, what is unknown, what is at fault."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.networks.table import RowInvalid, Table, values_of

KINDS = [
    {"name": "age", "kind": "number"},
    {"name": "plan", "kind": "text"},
    {"name": "member", "kind": "boolean"},
]


def fitted() -> Table:
    return Table.fitted(KINDS, [[20.0, "pro", True], [40.0, "free", None], [None, "pro", False]])


def test_numbers_are_centred_and_scaled_as_the_training_rows_were():
    table = fitted()
    assert table.columns[0].mean == 30.0
    assert table.columns[0].scale == 10.0
    numbers, faults = table.numbers([b'[40, "pro", true]'])
    assert not faults
    #                                age, missing | free, pro, missing | member, missing
    assert numbers.tolist() == [[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]]


def test_a_missing_value_raises_its_own_flag_and_an_unknown_text_raises_none():
    numbers, _ = fitted().numbers([b"[null, null, null]", b'[30, "never seen", false]'])
    assert numbers.tolist() == [[0, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("number", ['"NaN"', '"Infinity"', '"-Infinity"', "NaN", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_a_missing_one(number):
    assert values_of(f'[{number}, "pro", true]', fitted().columns) == [None, "pro", True]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"age": 3}', "has no 'plan', 'member'"),
        ("7", "JSON array of 3"),
        ("[1, 2]", "age, plan, member"),
        ('["old", "pro", true]', "'old' in column 'age' is not a number"),
        ("[true, null, null]", "'True' in column 'age'"),
        ("[1, 5, null]", "'5' in column 'plan' is not a text"),
        ("[1, null, 1]", "'1' in column 'member' is not a boolean"),
    ],
)
def test_a_row_at_fault_says_what_is_wrong_and_spoils_no_other(row, message):
    numbers, faults = fitted().numbers([b'[40, "pro", true]', row.encode(), b'[40, "pro", true]'])
    assert message in faults[1]
    assert list(faults) == [1]
    assert numbers[0].tolist() == numbers[2].tolist() != numbers[1].tolist()
    with pytest.raises(RowInvalid):
        values_of(row, fitted().columns)


def test_rare_texts_are_unknown_and_the_order_of_the_rows_does_not_matter():
    kinds = [{"name": "city", "kind": "text"}]
    rows = [[f"city {number}"] for number in range(100) for _ in range(1 + number % 50)]
    table = Table.fitted(kinds, rows)
    assert table.columns == Table.fitted(kinds, rows[::-1]).columns
    assert table.width == 33
    assert "city 49" in table.columns[0].texts
    assert "city 0" not in table.columns[0].texts


def test_a_table_too_wide_for_memory_is_refused():
    kinds = [{"name": f"c{number}", "kind": "number"} for number in range(3000)]
    with pytest.raises(ValueError, match="4096"):
        Table.fitted(kinds, [])


def test_columns_come_back_from_their_text():
    table = fitted()
    assert Table.from_json(table.as_json()).columns == table.columns


@given(st.lists(st.none() | st.floats(-1e30, 1e30), min_size=1, max_size=30))
def test_whatever_the_numbers_are_what_a_model_sees_is_finite(values):
    table = Table.fitted(KINDS[:1], [[value] for value in values])
    numbers, faults = table.numbers([json.dumps([value]).encode() for value in [*values, 1e300, -1e300]])
    assert not faults
    assert np.isfinite(numbers).all()
