"""What of a column is sent, in which pieces and as which tensor, and how answers find their rows."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from ml_udf.client import column as column_module
from ml_udf.client.column import MAX_VALUE_BYTES, InputColumn, SubBatch, asked_by_key, input_tensor, values_of
from ml_udf.client.prediction import CallStats
from ml_udf.errors import InputInvalid, InputTooLarge
from ml_udf.oip import Tensor, WireError
from tests.unit.ml_udf.infos import info_of


def test_equal_values_are_one_and_every_row_knows_its_place():
    column = InputColumn.of(["b", None, "a", b"b", "a"], "BYTES")
    assert column.distinct == [b"b", b"a"]
    assert column.place == [0, -1, 1, 0, 1]
    assert column.errors == {}


def test_a_value_that_cannot_be_sent_has_an_error_and_no_place():
    column = InputColumn.of(["a", 3.5, "b", "\ud800"], "BYTES")
    assert column.place == [0, -1, 1, -1]
    assert {row: type(error) for row, error in column.errors.items()} == {1: InputInvalid, 3: InputInvalid}
    assert "not float" in column.errors[1].message


@pytest.mark.parametrize(
    "texts", [["a"], ["a", "b", "é"], ["a", "b", "a", "a"], ["", ""], ["a", "\ud800", "a"]]
)
def test_a_column_of_texts_alone_is_as_one_with_a_null(texts):
    whole, with_null = InputColumn.of(texts, "BYTES"), InputColumn.of([*texts, None], "BYTES")
    assert whole.distinct == with_null.distinct
    assert list(whole.place) == list(with_null.place)[:-1]
    assert whole.errors.keys() == with_null.errors.keys()
    answers = [f"of {value!r}" for value in whole.distinct]
    assert whole.spread(answers) == with_null.spread(answers)[:-1]


def test_bytes_of_any_kind_are_bytes():
    assert InputColumn.of([b"a", bytearray(b"a"), memoryview(b"a"), "a"], "BYTES").distinct == [b"a"]


def test_a_value_may_have_the_limits_bytes_and_not_one_more():
    fits, too_large = b"x" * MAX_VALUE_BYTES, b"x" * (MAX_VALUE_BYTES + 1)
    column = InputColumn.of([fits, too_large], "BYTES")
    assert column.place == [0, -1]
    assert isinstance(column.errors[1], InputTooLarge)
    assert MAX_VALUE_BYTES == 32 * 1024 * 1024


def test_a_column_of_numbers_takes_numbers_and_vectors_and_nothing_else():
    values: list[Any] = [1, 2.5, True, [1, 2], (1.0, 2.0), "7", b"7", None, object(), ["x"]]
    column = InputColumn.of(values, "FP32")
    assert column.distinct == [1, 2.5, (1.0, 2.0)]
    assert column.place == [0, 1, 0, 2, 2, -1, -1, -1, -1, -1]
    assert sorted(column.errors) == [5, 6, 8, 9]
    assert all(isinstance(error, InputInvalid) for error in column.errors.values())


def test_a_vector_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(column_module, "MAX_VALUE_BYTES", 32)
    column = InputColumn.of([[1.0] * 4, [1.0] * 5], "FP64")
    assert column.place == [0, -1]
    assert isinstance(column.errors[1], InputTooLarge)


def test_sub_batches_are_cut_by_rows_and_say_where_they_begin():
    column = InputColumn.of([f"{n}" for n in range(7)], "BYTES")
    batches = list(column.sub_batches(3))
    assert [(batch.first, len(batch.rows)) for batch in batches] == [(0, 3), (3, 3), (6, 1)]
    assert [row for batch in batches for row in batch.rows] == column.distinct


def test_sub_batches_are_cut_by_bytes_and_a_large_value_travels_alone(monkeypatch):
    monkeypatch.setattr(column_module, "SUB_BATCH_BYTES", 10)
    column = InputColumn.of([b"aaaa", b"bbbbbb", b"c", b"d" * 30, b"e"], "BYTES")
    assert [batch.rows for batch in column.sub_batches(100)] == [
        [b"aaaa", b"bbbbbb"],
        [b"c"],
        [b"d" * 30],
        [b"e"],
    ]


def test_a_first_value_that_is_too_large_travels_alone_too(monkeypatch):
    monkeypatch.setattr(column_module, "SUB_BATCH_BYTES", 10)
    column = InputColumn.of([b"d" * 30, b"e"], "BYTES")
    assert [batch.rows for batch in column.sub_batches(100)] == [[b"d" * 30], [b"e"]]


def test_numbers_count_eight_bytes_each(monkeypatch):
    monkeypatch.setattr(column_module, "SUB_BATCH_BYTES", 24)
    assert [len(batch.rows) for batch in InputColumn.of(list(range(7)), "INT64").sub_batches(100)] == [
        3,
        3,
        1,
    ]


def test_nothing_to_send_is_no_sub_batch():
    assert list(InputColumn.of([None, None], "BYTES").sub_batches(10)) == []
    assert SubBatch(4) == SubBatch(4, [])


def test_answers_go_back_to_every_row_that_asked():
    assert InputColumn.of(["b", None, "a", "b"], "BYTES").spread(["B", "A"]) == ["B", None, "A", "B"]


def test_texts_become_a_tensor_of_one_element_a_row():
    tensor = input_tensor(info_of(), [b"a", b"b"])
    assert (tensor.name, tensor.datatype, tensor.shape, tensor.elements) == ("x", "BYTES", (2,), [b"a", b"b"])


@pytest.mark.parametrize(
    ("row_shape", "rows", "shape"),
    [
        ((), [1.0, 2.0, 3.0], (3,)),
        ((1,), [1.0, 2.0], (2, 1)),
        ((2,), [(1.0, 2.0), (3.0, 4.0)], (2, 2)),
        ((), [(1.0, 2.0), (3.0, 4.0)], (2, 2)),  # the metadata leaves the width open
        ((1,), [(1.0, 2.0, 3.0)], (1, 3)),
        ((2, 2), [(1.0, 2.0, 3.0, 4.0)], (1, 2, 2)),
        ((0,), [(1.0, 2.0)], (1, 2)),
    ],
)
def test_numbers_become_a_tensor_of_the_functions_shape(row_shape, rows, shape):
    tensor = input_tensor(info_of("FP64", row_shape), rows)
    flat = [number for row in rows for number in (row if isinstance(row, tuple) else (row,))]
    assert (tensor.datatype, tensor.shape, list(tensor.numbers())) == ("FP64", shape, flat)


def test_a_vector_of_another_length_is_refused_with_both_lengths():
    with pytest.raises(InputInvalid, match="a row has 3 numbers, the function takes 2"):
        input_tensor(info_of("FP32", (2,)), [(1.0, 2.0, 3.0)])


def test_vectors_of_unlike_lengths_are_refused():
    with pytest.raises(InputInvalid):
        input_tensor(info_of("FP32"), [(1.0, 2.0), (1.0,)])


def test_a_number_that_the_datatype_cannot_hold_is_refused():
    with pytest.raises(InputInvalid, match="f: "):
        input_tensor(info_of("UINT8"), [1e9])


def test_no_rows_are_an_empty_tensor():
    assert input_tensor(info_of("FP32", (2,)), []).shape == (0, 2)


def test_an_output_is_one_value_a_row_or_a_list_of_several():
    assert values_of(Tensor.of_bytes("label", [b"a", b"\xff"]), 2) == ["a", b"\xff"]
    assert values_of(Tensor.of_numbers("n", "INT32", [1, 2]), 2) == [1, 2]
    assert values_of(Tensor.of_numbers("v", "INT32", [1, 2, 3, 4], (2, 2)), 2) == [[1, 2], [3, 4]]
    assert values_of(Tensor.of_numbers("v", "INT32", []), 0) == []
    floats = values_of(Tensor.of_numbers("v", "FP32", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3)), 2)
    assert floats == [array("f", [1.0, 2.0, 3.0]), array("f", [4.0, 5.0, 6.0])]


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor.of_numbers("n", "INT32", [1, 2, 3]),
        Tensor.of_numbers("n", "INT32", []),
        Tensor.of_numbers("n", "INT32", [1, 2, 3, 4], (4,)),
    ],
)
def test_an_output_of_another_number_of_rows_is_refused(tensor):
    with pytest.raises(WireError, match="2 rows were sent"):
        values_of(tensor, 2)


def test_each_key_is_asked_once_for_its_own_rows_and_answers_come_back_in_order() -> None:
    asked: list[tuple[str, list[Any]]] = []

    def ask(key: str, own: list[Any]) -> list[str]:
        asked.append((key, own))
        return [f"{key}{value}" for value in own]

    keys = ["b", None, "a", "b", "a"]
    assert asked_by_key(keys, ["1", "2", "3", "4", "5"], ask, "-") == ["b1", "-", "a3", "b4", "a5"]
    assert asked == [("b", ["1", "4"]), ("a", ["3", "5"])]
    with pytest.raises(ValueError, match="zip"):
        asked_by_key(keys, ["1"], ask, "-")


def test_what_calls_cost_adds_up_and_rows_are_counted_where_they_come_in() -> None:
    one, other = CallStats(1, 2, 3, 4, 5, 6, 0.5), CallStats(10, 20, 30, 40, 50, 60, 1.5)
    assert one + other == CallStats(11, 22, 33, 44, 55, 66, 2.0)
    one.add_asking(other)
    assert one == CallStats(1, 2, 33, 44, 55, 66, 2.0)


@pytest.mark.parametrize("named", ['{"b": 2, "a": 1}', ' {"b": 2, "a": 1}'])
def test_rows_of_a_table_are_the_same_as_arrays_and_by_names(named: str) -> None:
    arrays: list[Any] = ["[1, 2]", "[3, null]", "[1, 2]"]
    column = InputColumn.of(arrays, "BYTES", ["a", "b"])
    assert (column.distinct, list(column.place)) == ([b"[1, 2]", b"[3, null]"], [0, 1, 0])
    mixed = InputColumn.of([*arrays, named, None], "BYTES", ["a", "b"])
    assert (mixed.distinct, list(mixed.place)) == ([b"[1, 2]", b"[3, null]"], [0, 1, 0, 0, -1])
