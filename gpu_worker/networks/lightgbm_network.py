"""LightGBM's own text files, which hold trees and no code.

Answers are those of `LGBMClassifier.predict_proba` and `LGBMRegressor.predict`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import read_regular
from gpu_worker.networks.boosted_trees import MOST_TREE_BYTES, BoostedTrees, Numbers, TreeModel, both
from gpu_worker.networks.coded_columns import CodedColumn, CodedColumns, kind_of
from gpu_worker.networks.extras import required
from gpu_worker.networks.network import Floats
from gpu_worker.networks.tree_checks import check_tree

__all__ = ["load_lightgbm", "read_lightgbm"]

# https://lightgbm.readthedocs.io/en/stable/Parameters.html#objective
_VALUES = frozenset(
    (
        *("regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie"),
        *("cross_entropy", "cross_entropy_lambda"),
    )
)
_REFUSED = {
    "lambdarank": "it orders the rows of a query, and a row alone has no answer",
    "rank_xendcg": "it orders the rows of a query, and a row alone has no answer",
    "": "the file does not say what its numbers mean, as after training with a function of one's own",
}
_CATEGORICAL = re.compile(r"^\[categorical_feature: *([0-9,]*)\]", re.MULTILINE)


def load_lightgbm(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> BoostedTrees:
    """The network of a model's folder; it computes on the CPU, on any device. Raises `ModelUnusable`."""
    return BoostedTrees(read_lightgbm(manifest.path_of_weights()))


def read_lightgbm(path: str) -> TreeModel:
    """The model of a file. Raises `ModelUnusable`: for an objective that no task answers, by its name."""
    lightgbm = required("lightgbm", "lightgbm")
    try:
        text = read_regular(path, MOST_TREE_BYTES).decode()
    except UnicodeDecodeError as exc:
        raise ModelUnusable(f"{path} is no model of LightGBM: it is not text") from exc
    except ValueError as exc:
        raise ModelUnusable(f"the model {exc}") from exc
    head = _head(text, path)
    objective = head.get("objective", "").partition(" ")[0]
    is_known = objective in ("binary", "multiclass", "multiclassova") or objective in _VALUES
    if not is_known:
        reason = _REFUSED.get(objective, "its answers are not known here")
        raise ModelUnusable(f"{path} has the objective {objective!r}, which cannot be served: {reason}")
    try:
        _check(text, int(head["max_feature_idx"]) + 1)
        booster = lightgbm.Booster(model_str=text)
    except (lightgbm.basic.LightGBMError, ValueError, TypeError, KeyError) as exc:
        raise ModelUnusable(f"{path} is no model that LightGBM reads: {exc}") from exc
    columns = CodedColumns(_columns(booster, text, path))

    def run(numbers: Numbers) -> Floats:
        # One thread: the engine runs pieces side by side (see there).
        found = booster.predict(numbers, num_threads=1)
        result: Floats = np.array(found, np.float32).reshape(len(numbers), -1)
        return result

    nbytes = len(text)  # each number of a tree is shorter in memory, and some are there twice
    if objective == "binary":
        return TreeModel(columns, objective, "classification", 2, lambda x: both(run(x)), nbytes)
    if objective in _VALUES:
        return TreeModel(columns, objective, "regression", 1, run, nbytes)
    return TreeModel(columns, objective, "classification", int(head["num_class"]), run, nbytes)


def _head(text: str, path: str) -> dict[str, str]:
    """What stands before the first tree."""
    head, found, _ = text.partition("\nTree=")
    lines = head.splitlines()
    if not found or not lines or lines[0] != "tree":
        raise ModelUnusable(f"{path} is no model of LightGBM: it does not begin with 'tree'")
    pairs = (line.partition("=") for line in lines[1:])
    return {name: value for name, _, value in pairs}


def _check(text: str, width: int) -> None:
    """Raises `ValueError` or `KeyError` for arrays that LightGBM would follow out of its memory."""
    for block in text.partition("\nend of trees")[0].split("\nTree=")[1:]:
        pairs = (line.partition("=") for line in block.splitlines()[1:])
        tree = {name: value.split() for name, _, value in pairs}
        leaves = int(tree["num_leaves"][0])
        if leaves == 1:
            continue
        inner = leaves - 1
        lengths = [
            *(len(tree[name]) for name in ("split_feature", "threshold", "decision_type")),
            *(len(tree[name]) for name in ("left_child", "right_child")),
        ]
        if set(lengths) != {inner} or len(tree["leaf_value"]) != leaves:
            raise ValueError(f"a tree of {leaves} leaves has nodes of other numbers")
        # A child below 0 is a leaf, from −1 on; here the leaves come after the nodes.
        children = [
            [child if child >= 0 else inner + ~child for child in map(int, tree[side])]
            for side in ("left_child", "right_child")
        ]
        no_children = [-1] * leaves
        features = [*map(int, tree["split_feature"]), *no_children]
        check_tree(children[0] + no_children, children[1] + no_children, features, width)
        _check_categories(tree)


def _check_categories(tree: dict[str, list[str]]) -> None:
    """Where a node asks for categories, its threshold is the number of a set of them."""
    sets = int(tree.get("num_cat", ["0"])[0])
    bounds = [int(bound) for bound in tree.get("cat_boundaries", [])]
    asked = [
        float(threshold)
        for threshold, decision in zip(tree["threshold"], tree["decision_type"], strict=True)
        if int(decision) & 1
    ]
    if not all(0 <= number < sets for number in asked):
        raise ValueError("a tree names categories that it does not have")
    if sets and (
        len(bounds) != sets + 1
        or bounds != sorted(bounds)
        or bounds[0] != 0
        or bounds[-1] != len(tree["cat_threshold"])
    ):
        raise ValueError("a tree's sets of categories do not fit together")


def _columns(booster: Any, text: str, path: str) -> Sequence[CodedColumn]:  # noqa: ANN401  # no types for it
    names = booster.feature_name()
    known = booster.pandas_categorical or []
    if not known:
        return [CodedColumn(name) for name in names]
    said = _CATEGORICAL.search(text)
    places = [int(place) for place in said[1].split(",") if place] if said else []
    if len(places) != len(known) or any(place >= len(names) for place in places):
        # Ordered categories are coded too, and LightGBM does not say of which columns they are.
        raise ModelUnusable(
            f"{path} has categories of {len(known)} columns, and says of {len(places)} which they are: "
            "train with unordered categories"
        )
    columns = [CodedColumn(name) for name in names]
    for place, categories in zip(sorted(places), known, strict=True):
        try:
            columns[place] = CodedColumn(names[place], kind_of(categories), tuple(categories))
        except ValueError as exc:
            raise ModelUnusable(f"{path}: column {names[place]!r} cannot be read of a row: {exc}") from exc
    return columns
