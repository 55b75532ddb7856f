"""Rows that belong together are dealt out together, whatever the order they came in."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import BadOption
from server.training.datasets.split import LEFT_OUT, RowNumbers, SplitRatios

ONE_S = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def hashes(values: np.ndarray, salt: int) -> list[int]:
    """A 64-bit hash of each value."""
    table = np.random.default_rng(salt).integers(0, 1 << 63, int(values.max()) + 1)
    return [int(number) for number in table[values]]


def dealt(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    salt: int = 0,
    entities: np.ndarray | None = None,
    times: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The side and the component of every row."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = RowNumbers(Path(folder), by_entity=entities is not None, by_time=times is not None)
        groups = np.arange(len(inputs)) if entities is None else entities
        numbers.add(
            hashes(groups, salt + 1),
            hashes(inputs, salt + 2),
            targets.tolist(),
            None if times is None else times.tolist(),
        )
        try:
            parts = list(
                numbers.split([f"class {at}" for at in range(int(targets.max()) + 1)], SplitRatios())
            )
        finally:
            numbers.close()
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def components_of(numbers: RowNumbers) -> list[int]:
    """The component of every row: the number of the first row in it."""
    numbers._find_components()
    return [c for (c,) in numbers._db.execute("SELECT c FROM component ORDER BY n").fetchall()]


def test_chains_of_shared_entities_and_pictures_are_one_component(tmp_path: Path) -> None:
    numbers = RowNumbers(tmp_path)
    numbers.add([0, 0, 1, 1, 2, 9], [5, 6, 6, 7, 7, 8], [0] * 6)
    assert components_of(numbers) == [0, 0, 0, 0, 0, 5]
    numbers.close()


def test_a_long_chain_that_came_in_any_order_is_one_component(tmp_path: Path) -> None:
    place = np.random.default_rng(0).permutation(2_000)
    numbers = RowNumbers(tmp_path)
    numbers.add((place // 2).tolist(), ((place + 1) // 2).tolist(), [0] * 2_000)
    assert set(components_of(numbers)) == {0}
    numbers.close()


def test_a_split_does_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    time, target = random.integers(0, 1 << 40, 300), random.integers(0, 2, 300)
    place = random.permutation(300)

    def split(name: str, order: np.ndarray, part: int) -> np.ndarray:
        (tmp_path / name).mkdir()
        numbers = RowNumbers(tmp_path / name, by_time=True)
        for start in range(0, 300, part):
            rows = order[start : start + part]
            numbers.add(rows.tolist(), rows.tolist(), target[rows].tolist(), time[rows].tolist())
        parts = [sides for sides, _ in numbers.split(("a", "b"), SplitRatios())]
        numbers.close()
        return np.concatenate(parts)

    straight = split("straight", np.arange(300), 300)
    assert split("shuffled", place, 70).tolist() == straight[place].tolist()


# ── by hash ───────────────────────────────────────────────────────────────────────────────────────


def test_how_often_an_input_occurs_says_nothing_about_its_side() -> None:
    """Zipf-distributed inputs: frequent ones test as often as rare ones, over many data sets."""
    tested: dict[str, list[bool]] = {"frequent": [], "rare": []}
    copies: dict[str, list[float]] = {"all": [], "test": []}
    for salt in range(40):
        random = np.random.default_rng(salt)
        inputs = np.minimum(random.zipf(1.6, 600), 5_000)
        # A label is a function of the input: what occurs often is not always the same class.
        targets = np.array(hashes(inputs, salt)) % 2
        sides, _ = dealt(inputs, targets, salt=salt)
        count = Counter(inputs.tolist())
        side_of = dict(zip(inputs.tolist(), sides.tolist(), strict=True))
        for value, rows in count.items():
            tested["frequent" if rows >= 8 else "rare"].append(side_of[value] == 2)
        of_all = np.array(list(count.values()))
        of_test = np.array([rows for value, rows in count.items() if side_of[value] == 2])
        copies["all"].append(float(np.log(of_all).mean()))
        copies["test"].append(float(np.log(of_test).mean()))
    assert np.mean(tested["rare"]) == pytest.approx(0.15, abs=0.02)
    assert np.mean(tested["frequent"]) == pytest.approx(0.15, abs=0.04)
    assert np.mean(copies["test"]) == pytest.approx(np.mean(copies["all"]), rel=0.15)


@given(SEEDS)
@ONE_S
def test_by_hash_equal_inputs_and_entities_stay_together_and_every_class_is_on_every_side(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(60, 200))
    inputs = np.minimum(random.zipf(1.5, rows), 1_000) * 3
    inputs[:36] = 5_000 + np.arange(36)  # of each class enough different ones
    targets = np.where(np.arange(rows) < 36, np.arange(rows) % 3, inputs // 3 % 3)
    sides, components = dealt(inputs, targets, salt=seed % 1_000)
    for value in np.unique(inputs):
        assert len(set(sides[inputs == value])) == 1
        assert len(set(components[inputs == value])) == 1
    assert {(int(t), int(s)) for t, s in zip(targets, sides, strict=True)} >= {
        (target, side) for target in range(3) for side in range(3)
    }
    assert LEFT_OUT not in sides


def test_a_row_more_moves_few_others() -> None:
    random = np.random.default_rng(3)
    inputs, targets = random.permutation(2_000), random.integers(0, 2, 2_000)
    before, _ = dealt(inputs[:-1], targets[:-1])
    after, _ = dealt(inputs, targets)
    assert (before != after[:-1]).mean() < 0.01


# ── by time ───────────────────────────────────────────────────────────────────────────────────────


@given(SEEDS, st.booleans())
@ONE_S
def test_by_time_there_is_one_cut_for_all_classes_and_nobody_is_on_two_sides_of_it(
    seed: int, with_entities: bool
) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(60, 300))
    times = random.integers(0, 1 + int(random.integers(20, 10_000)), rows)
    # The last class appears late, the first one vanishes.
    targets = np.clip((times / times.max() * 4 + random.normal(0, 0.5, rows)).astype(int), 0, 3)
    inputs = np.minimum(random.zipf(1.8, rows), 3_000)
    entities = random.integers(0, rows // 2, rows) if with_entities else None
    try:
        sides, _ = dealt(inputs, targets, entities=entities, times=times, salt=seed % 1_000)
    except BadOption:  # nothing was left on one side
        return
    latest = [times[sides == side].max() for side in range(3)]
    earliest = [times[sides == side].min() for side in range(3)]
    assert latest[0] < earliest[1], "a row that validates lies before a training row"
    assert latest[1] < earliest[2], "a test row lies before another one"
    for shared in (inputs, entities) if entities is not None else (inputs,):
        for value in np.unique(shared):
            assert len(set(sides[shared == value]) - {LEFT_OUT}) <= 1


def test_a_class_that_appears_late_is_in_the_test_rows_alone() -> None:
    times = np.arange(400)
    targets = np.where(times >= 360, 2, times % 2)
    sides, _ = dealt(times, targets, times=times)
    assert set(sides[targets == 2]) == {2}
    assert [(sides == side).sum() for side in range(3)] == [280, 60, 60]


def test_entities_that_live_through_all_times_keep_their_share_of_each_side() -> None:
    random = np.random.default_rng(0)
    entities, times = random.integers(0, 300, 6_000), random.permutation(6_000)
    sides, _ = dealt(np.arange(6_000), times % 2, entities=entities, times=times)
    on = [len(set(entities[sides == side])) / 300 for side in range(3)]
    assert on == pytest.approx([0.70, 0.15, 0.15], abs=0.06)


def test_too_few_times_are_refused() -> None:
    with pytest.raises(BadOption, match="2 different times"):
        dealt(np.arange(50), np.arange(50) % 2, times=np.arange(50) // 25)


def test_a_split_by_time_that_leaves_a_side_without_rows_is_refused() -> None:
    with pytest.raises(BadOption, match="no row is left for the split"):
        dealt(np.arange(60), np.arange(60) % 2, entities=np.zeros(60, int), times=np.arange(60) // 10)


@pytest.mark.parametrize(
    ("validation", "test"),
    [(0.0, 0.1), (0.1, 0.0), (-0.1, 0.5), (0.5, -0.1), (0.5, 0.4), (math.nan, 0.1), (0.1, 10**400)],
    ids=lambda share: f"{share!s:.9}",
)
def test_every_side_gets_a_share_of_the_rows(validation: float, test: float) -> None:
    with pytest.raises(BadOption, match="above 0 and together below"):
        SplitRatios(validation, test)


def test_most_of_the_rows_may_validate_and_test() -> None:
    assert SplitRatios(0.5, 0.39).validation + SplitRatios(0.01, 0.01).test == 0.51
