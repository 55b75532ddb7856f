"""Labelled paths: read from CSV, and parted into train, validation and test. Knows no pixels."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Example", "Split", "read_examples", "split_of"]

Split = Literal["train", "validation", "test"]

_SHARES: tuple[tuple[Split, float], ...] = (("test", 0.15), ("validation", 0.15), ("train", 1.0))


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled image file, and its part in training."""

    path: str
    label: str
    split: Split


def split_of(key: str) -> Split:
    """The part that a path belongs to, by its hash: 70 % train, 15 % validation, 15 % test.

    It depends on nothing else, so rows that are added later move no other row to another side.
    """
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    for split, share in _SHARES:
        if point < share:
            return split
        point -= share
    return "train"


def read_examples(
    csv_path: str, *, root: str | None = None, path_column: str | None = None, label_column: str | None = None
) -> list[Example]:
    """The examples of a CSV file with a header, each path once.

    The columns are those named, else the first two. Relative paths lie below `root`, by default the file's
    folder. A column `split` (train, validation, test; holdout is another word for test) overrides the hash.
    Raises `ValueError` when columns are missing, a label is empty, or a path has two labels.
    """
    root = os.path.dirname(os.path.abspath(csv_path)) if root is None else root
    with open(csv_path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or [])
        path_column = path_column or (columns[0] if columns else "path")
        label_column = label_column or (columns[1] if len(columns) > 1 else "label")
        missing = {path_column, label_column} - set(columns)
        if missing:
            raise ValueError(
                f"{csv_path} has no column {', '.join(sorted(missing))}; its header is {columns}"
            )
        examples = [_example(row, path_column, label_column, root) for row in reader]
    return list(_once(examples, csv_path))


def _example(row: dict[str, str], path_column: str, label_column: str, root: str) -> Example:
    path, label = row[path_column], row[label_column]
    if not path or not label:
        raise ValueError(f"a row has an empty path or label: {row}")
    word = row.get("split") or split_of(path)
    split: Split | None = next(
        (s for s in get_args(Split) if s == ("test" if word == "holdout" else word)), None
    )
    if split is None:
        raise ValueError(f"the split {word!r} of {path} is not one of {', '.join(get_args(Split))}")
    return Example(os.path.join(root, path), label, split)


def _once(examples: Iterable[Example], csv_path: str) -> Iterable[Example]:
    seen: dict[str, Example] = {}
    for example in examples:
        first = seen.setdefault(example.path, example)
        if first is example:
            yield example
        elif first != example:
            raise ValueError(f"{csv_path} names {example.path} twice, with different labels or splits")
