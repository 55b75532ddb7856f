"""What stands in a snapshot: counted, shown by a few rows, read by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from server.training.datasets.contents import contents_of, held_out_rows, rows_of

SPLITS = ("train", "train", "validation", "test")


def _snapshot(folder: Path, targets: list[Any], row_group_size: int = 7) -> Path:
    rows = len(targets)
    table = pa.table(
        {
            "key": [f"k{n}" for n in range(rows)],
            "input": [f"row {n}" for n in range(rows)],
            "target": targets,
            "split": [SPLITS[n % 4] for n in range(rows)],
        }
    )
    pq.write_table(table, folder / "rows.parquet", row_group_size=row_group_size)
    return folder / "rows.parquet"


def test_classes_are_counted_by_split_the_most_frequent_first(tmp_path: Path):
    found = contents_of(_snapshot(tmp_path, ["b"] * 8 + ["a"] * 4), has_classes=True)
    assert list(found.counts) == ["b", "a"]
    assert found.counts["b"] == {"train": 4, "validation": 2, "test": 2}


def test_a_class_shows_a_few_rows_from_its_beginning_to_its_end(tmp_path: Path):
    found = contents_of(_snapshot(tmp_path, ["a", "b"] * 50), has_classes=True)
    numbers = [row.number for row in found.examples["b"]]
    assert len(numbers) == 6
    assert (numbers[0], numbers[-1]) == (1, 99)
    assert all(row.target == "b" for row in found.examples["b"])


def test_a_class_of_one_row_shows_that(tmp_path: Path):
    found = contents_of(_snapshot(tmp_path, ["a"] * 10 + ["rare"]), has_classes=True)
    assert [row.number for row in found.examples["rare"]] == [10]


def test_numbers_are_told_by_ten_steps(tmp_path: Path):
    found = contents_of(_snapshot(tmp_path, [float(n) for n in range(100)]), has_classes=False)
    assert [count for _, count in found.numbers] == [10] * 10
    assert found.counts == {}
    assert len(found.examples[""]) == 24


def test_rows_are_read_by_their_numbers_in_the_order_asked(tmp_path: Path):
    file = _snapshot(tmp_path, ["a"] * 30)
    assert [row.input for row in rows_of(file, [29, 0, 7, 13])] == ["row 29", "row 0", "row 7", "row 13"]


def test_a_number_that_is_no_row_is_left_out(tmp_path: Path):
    assert rows_of(_snapshot(tmp_path, ["a"] * 3), [-1, 3, 10**12]) == []


def test_of_many_test_rows_so_many_are_taken_evenly(tmp_path: Path):
    rows, of = held_out_rows(_snapshot(tmp_path, ["a"] * 400), 10)
    assert of == 100
    assert len(rows) == 10
    assert rows[0] == (3, "row 3", "a")
    assert rows[-1] == (399, "row 399", "a")


def test_of_few_test_rows_all_are_taken(tmp_path: Path):
    rows, of = held_out_rows(_snapshot(tmp_path, ["a"] * 12), 10)
    assert ([number for number, _, _ in rows], of) == ([3, 7, 11], 3)
