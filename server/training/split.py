"""Which rows train, validate and test: pure, over arrays, the same for the same rows whatever their order.

Rows that share an entity, or the same input, stay together: they form one component, and components are
dealt out, never rows. Within a class components are ordered by a hash, or by time, and cut by rows: so every
class is in every split in proportion.

Takes some 110 bytes of memory a row, whatever the rows hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.errors import BadOption

__all__ = ["SPLITS", "Shares", "components", "split_rows"]

SPLITS = ("train", "validation", "test")
Numbers = NDArray[Any]

_LEAST_COMPONENTS = 3


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of the rows that validate and test; the rest trains."""

    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        if not (0 < self.validation < 1 and 0 < self.test < 1 and self.validation + self.test < 0.9):
            raise BadOption("'validation' and 'test' are shares of the rows, above 0 and together below 0.9")


def components(*keys: Numbers) -> Numbers:
    """The component of every row: rows that are equal in any of `keys` share one.

    keys: integers, one per row. A component is named by the smallest row in it.
    """
    count = len(keys[0])
    label = np.arange(count, dtype=np.int64)
    groups = [np.unique(key, return_inverse=True)[1] for key in keys]
    while True:
        before = label
        for group in groups:
            least = np.full(int(group.max(initial=-1)) + 1, count, np.int64)
            np.minimum.at(least, group, label)
            label = least[group]
        # A row takes the name of the row that it is named after: long chains fold in a few rounds.
        label = label[label]
        if np.array_equal(before, label):
            return label


def split_rows(
    component: Numbers, order: Numbers, target: Numbers, classes: tuple[str, ...], shares: Shares
) -> Numbers:
    """The split of every row, an index into `SPLITS`.

    component: of `components`. order: per row; a component's smallest counts. The largest test, those before
    them validate, the rest train. target: per row, an index into `classes`; a component that holds several
    counts as one of the rarest of them. Raises `BadOption` for a class that would miss in a split.
    """
    firsts, inverse, rows = np.unique(component, return_inverse=True, return_counts=True)
    place = np.full(len(firsts), order.max(), order.dtype)
    np.minimum.at(place, inverse, order)
    # Classes by how rare they are, so that a component's rarest is its smallest.
    rarity = np.argsort(np.argsort(np.bincount(target, minlength=len(classes)), kind="stable"))
    label = np.full(len(firsts), len(classes))
    np.minimum.at(label, inverse, rarity[target])
    found = np.bincount(label, minlength=len(classes))
    chosen = np.zeros(len(firsts), np.int8)
    sorted_by_place = np.lexsort((firsts, place, label))
    starts = np.concatenate(([0], np.cumsum(found)))
    for begin, end in pairwise(starts):
        mine = sorted_by_place[begin:end]
        if len(mine) >= _LEAST_COMPONENTS:
            chosen[mine] = _dealt(rows[mine], shares)
    split: Numbers = chosen[inverse]
    _check(split, component, target, classes)
    return split


def _check(split: Numbers, component: Numbers, target: Numbers, classes: tuple[str, ...]) -> None:
    for place, name in enumerate(classes):
        mine = target == place
        if len(np.unique(split[mine])) < len(SPLITS):
            raise BadOption(
                f"the class {name!r} has {len(np.unique(component[mine]))} different examples; at least "
                f"{_LEAST_COMPONENTS} are needed, to train, to validate and to test; more where rows must "
                "stay together"
            )


def _dealt(rows: Numbers, shares: Shares) -> Numbers:
    """The splits of one class's components, in their order; each split gets at least one."""
    reached = np.cumsum(rows) / rows.sum()
    count = len(rows)
    trained = int(np.searchsorted(reached, 1 - shares.test - shares.validation, side="right"))
    validated = int(np.searchsorted(reached, 1 - shares.test, side="right"))
    trained = min(max(trained, 1), count - 2)
    validated = min(max(validated, trained + 1), count - 1)
    return np.repeat(np.array([0, 1, 2], np.int8), [trained, validated - trained, count - validated])
