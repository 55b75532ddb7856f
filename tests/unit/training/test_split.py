"""Rows that belong together are dealt out together, whatever the order they came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from server.training.split import RowNumbers, Shares


def test_chains_of_shared_entities_and_pictures_are_one_component(tmp_path: Path) -> None:
    numbers = RowNumbers(tmp_path)
    numbers.add([0, 0, 1, 1, 2, 9], [5, 6, 6, 7, 7, 8], [0] * 6)
    assert numbers.components() == [0, 0, 0, 0, 0, 5]
    numbers.close()


def test_a_long_chain_that_came_in_any_order_is_one_component(tmp_path: Path) -> None:
    place = np.random.default_rng(0).permutation(2_000)
    numbers = RowNumbers(tmp_path)
    numbers.add((place // 2).tolist(), ((place + 1) // 2).tolist(), [0] * 2_000)
    assert set(numbers.components()) == {0}
    numbers.close()


def test_a_split_does_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    time, target = random.integers(0, 1 << 40, 300), random.integers(0, 2, 300)
    place = random.permutation(300)

    def split(name: str, order: np.ndarray, part: int) -> np.ndarray:
        (tmp_path / name).mkdir()
        numbers = RowNumbers(tmp_path / name)
        for start in range(0, 300, part):
            rows = order[start : start + part]
            numbers.add(rows.tolist(), rows.tolist(), target[rows].tolist(), time[rows].tolist())
        parts = list(numbers.split(("a", "b"), Shares()))
        numbers.close()
        return np.concatenate(parts)

    straight = split("straight", np.arange(300), 300)
    assert split("shuffled", place, 70).tolist() == straight[place].tolist()
